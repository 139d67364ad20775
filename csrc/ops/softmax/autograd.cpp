// Gradients of softmax and log-softmax, autocast, and the override of PyTorch's own operators.
#include "ops/autograd.h"

#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <torch/library.h>

#include "ops/softmax/softmax.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::softmax {
namespace {

template <bool log>
const auto& forward_op() {
  return op_of<forward<log>>(log ? "torch_cudnn_ext::log_softmax" : "torch_cudnn_ext::softmax");
}
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::softmax_backward"); }

struct SoftmaxGradient {
  static constexpr const char* kName = "TorchCudnnExtSoftmaxBackward";
  static constexpr size_t kInputs = 1;
  int64_t dim = 0;
  bool log = false;
  at::ScalarType input_dtype = at::kFloat;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(dim, log, input_dtype, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {in_dtype(call_directly({&grads[0], &saved[0]}, backward, backward_op(), grads[0],
                                   saved[0], dim, log, policy),
                     input_dtype)};
  }
};

template <bool log>
Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, int64_t dim,
                        std::optional<at::ScalarType> dtype, OptionalPolicy policy) {
  return run_with_gradient<SoftmaxGradient>(
      {input}, 1, below_autograd(forward_op<log>(), keys, input, dim, dtype, policy),
      [&](auto& node, const auto& results) {
        node.gradient.dim = dim;
        node.gradient.log = log;
        node.gradient.input_dtype = input.scalar_type();
        node.gradient.policy = policy_to_save(SoftmaxProblem::kFamily, policy);
        save_result(node, results[0]);
      });
}

// Differentiates dx = y (dy - sum(dy y)) for softmax, dx = dy - exp(y) sum(dy) for log-softmax.
struct SoftmaxBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtSoftmaxBackwardBackward";
  static constexpr size_t kInputs = 2;  // grad_output, output
  int64_t dim = 0;
  bool log = false;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(dim, log, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &g = grads[0], &dy = saved[0], &y = saved[1];
    variable_list result(2);
    if (log) {
      Tensor sum = (g * y.exp()).sum(dim, true);
      if (needed[0]) result[0] = g - sum;
      if (needed[1]) result[1] = -g * y.exp() * dy.sum(dim, true);
    } else {
      if (needed[0]) result[0] = backward_op().call(g, y, dim, false, policy);
      if (needed[1]) {
        result[1] = g * (dy - (dy * y).sum(dim, true)) - dy * (g * y).sum(dim, true);
      }
    }
    return result;
  }
};

Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& output,
                         int64_t dim, bool log, OptionalPolicy policy) {
  return run_with_gradient<SoftmaxBackwardGradient>(
      {grad_output, output}, 1,
      below_autograd(backward_op(), keys, grad_output, output, dim, log, policy),
      [&](auto& node, const auto&) {
        node.gradient.dim = dim;
        node.gradient.log = log;
        node.gradient.policy = policy_to_save(SoftmaxProblem::kFamily, policy);
        save_input(node, grad_output);
        save_input(node, output);
      });
}

// The result is float32 under autocast on CUDA alone, as in PyTorch.
template <bool log>
Tensor forward_autocast(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
                        OptionalPolicy policy) {
  BelowAutocast guard(c10::kCUDA);
  bool narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  if (!dtype && narrow) dtype = at::kFloat;
  return forward_op<log>().call(input, dim, dtype, policy);
}

// PyTorch's own operators, overridden.
template <bool log>
struct AtenSoftmax {
  static constexpr const char* kOp = log ? "_log_softmax" : "_softmax";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input, int64_t,
                                            bool half_to_float) {
    if (half_to_float && !input.is_cuda()) return "a narrow type is to become float32 on the CPU";
    return refusal_of_any(keys, {{"input", input}});
  }
  static std::optional<at::ScalarType> dtype(bool half_to_float) {
    return half_to_float ? std::optional<at::ScalarType>(at::kFloat) : std::nullopt;
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input, int64_t dim,
                              bool half_to_float) {
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, dim, half_to_float);
    }
    return forward_autograd<log>(keys, input, dim, dtype(half_to_float), {});
  }
  static Tensor run(const Tensor& input, int64_t dim, bool half_to_float) {
    return forward<log>(input, dim, dtype(half_to_float), {});
  }
  template <c10::DispatchKey key>
  static Tensor plain(const Tensor& input, int64_t dim, bool half_to_float) {
    if constexpr (key == c10::DispatchKey::CPU) {
      return log ? at::cpu::_log_softmax(input, dim, half_to_float)
                 : at::cpu::_softmax(input, dim, half_to_float);
    } else {
      return log ? at::cuda::_log_softmax(input, dim, half_to_float)
                 : at::cuda::_softmax(input, dim, half_to_float);
    }
  }
};

const RegisterOverride<AtenSoftmax<false>, Tensor(const Tensor&, int64_t, bool)> softmax_overridden(
    "_softmax");
const RegisterOverride<AtenSoftmax<true>, Tensor(const Tensor&, int64_t, bool)>
    log_softmax_overridden("_log_softmax");

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("softmax", TORCH_FN(forward_autograd<false>));
  m.impl("log_softmax", TORCH_FN(forward_autograd<true>));
  m.impl("softmax_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("softmax", TORCH_FN(forward_autocast<false>));
  m.impl("log_softmax", TORCH_FN(forward_autocast<true>));
}

}  // namespace torch_cudnn_ext::softmax
