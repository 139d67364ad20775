// Kernels, schemas, gradients and autocast of softmax and log-softmax, and the override of
// PyTorch's own operators. A problem is [outer, n, inner], summed over n.
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_nd.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include "ops/autograd.h"
#include "ops/call.h"
#include "ops/known_kernel.h"
#include "ops/schema.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::softmax {
namespace {

using OptionalDtype = std::optional<at::ScalarType>;

template <bool log>
struct ForwardArgs {
  static constexpr const char* kName = log ? "log_softmax" : "softmax";
  using Result = Tensor;
  const Tensor& input;
  int64_t dim;
  OptionalDtype dtype;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, dim, dtype, policy); }
};

struct BackwardArgs {
  static constexpr const char* kName = "softmax_backward";
  using Result = Tensor;
  const Tensor &grad_output, &output;
  int64_t dim;
  bool log;
  OptionalPolicy policy;

  auto tied() const { return std::tie(grad_output, output, dim, log, policy); }
};

// The view [outer, n, inner] of a contiguous tensor, in which n is dimension `dim`.
Tensor as_rows(const Tensor& t, int64_t dim) {
  int64_t n = t.size(dim), inner = c10::multiply_integers(t.sizes().slice(dim + 1));
  return strided_view(t, {t.numel() / (n * inner), n, inner}, {n * inner, inner, 1});
}

// Runs a pass. `first` is x, or dy with y as `second`. The result is contiguous, as PyTorch's is.
Tensor run(Pass pass, const Tensor& first, const Tensor& second, int64_t dim, bool log,
           OptionalPolicy policy) {
  if (first.dim() == 0) {  // a scalar is a row of one element
    Tensor row = second.defined() ? second.reshape({1}) : second;
    return run(pass, first.reshape({1}), row, 0, log, policy).reshape(at::IntArrayRef());
  }
  c10::OptionalDeviceGuard guard(first.device());
  if (first.numel() == 0) return at::empty(first.sizes(), first.options());
  Tensor a = first.contiguous(), b = second.defined() ? second.contiguous() : second;
  Bindings bindings;
  bool forward = pass == Pass::fwd;
  bindings[forward ? Role::x : Role::dy] = as_rows(a, dim);
  if (!forward) bindings[Role::y] = as_rows(b, dim);
  SoftmaxProblem p;
  p.pass = pass;
  p.log = log;
  p.x = spec_of(bindings[forward ? Role::x : Role::y]);
  p.canonicalise();
  p.alignment = alignment_of({&a, &b});
  run_problem(p, policy, a, bindings);
  return pytorch_kernels::view(bindings[forward ? Role::y : Role::dx], first.sizes());
}

// A dimension counted from 0. Raises if it or the dtype is wrong: the schema takes any integer as a
// dtype.
template <bool log>
int64_t check_arguments(const ForwardArgs<log>& a) {
  auto number = static_cast<int>(a.dtype.value_or(at::kFloat));
  TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int>(at::ScalarType::NumOptions),
                    "torch_cudnn_ext::", a.kName, ": dtype is ", number, ", wanted a dtype");
  return check_dim(a.kName, a.input, a.dim);
}

int64_t check_arguments(const BackwardArgs& a) {
  check_dtype(a.kName, "grad_output", a.grad_output);
  check_same(a.kName, "output", a.output, "grad_output", a.grad_output);
  return check_dim(a.kName, a.output, a.dim);
}

// PyTorch's own kernel.
template <bool log>
Tensor pytorch_forward(const Tensor& input, int64_t dim, bool half_to_float) {
  namespace kernels = pytorch_kernels;
  if (input.is_cpu()) {
    return log ? kernels::cpu::_log_softmax(input, dim, half_to_float)
               : kernels::cpu::_softmax(input, dim, half_to_float);
  }
  return log ? kernels::cuda::_log_softmax(input, dim, half_to_float)
             : kernels::cuda::_softmax(input, dim, half_to_float);
}

template <bool log>
std::optional<Tensor> plain_forward(const ForwardArgs<log>& a) {
  bool same_dtype = a.dtype.value_or(a.input.scalar_type()) == a.input.scalar_type();
  if (!same_dtype || !a.input.is_contiguous()) return std::nullopt;
  return pytorch_forward<log>(a.input, a.dim, false);
}

template <bool log>
Tensor run_forward(const ForwardArgs<log>& a) {
  int64_t dim = check_arguments(a);
  Tensor x = a.dtype ? in_dtype(a.input, *a.dtype) : a.input;
  check_dtype(a.kName, "input", x);
  return run(Pass::fwd, x, {}, dim, log, a.policy);
}

template <bool log>
Tensor forward(const ForwardArgs<log>& a) {
  return KnownKernel<SoftmaxProblem, run_forward<log>, plain_forward<log>>::call(a);
}

template <bool log>
Tensor forward_meta(const ForwardArgs<log>& a) {
  check_arguments(a);
  at::ScalarType dtype = a.dtype.value_or(a.input.scalar_type());
  Tensor y = at::empty_symint(a.input.sym_sizes(), a.input.options().dtype(dtype));
  check_dtype(a.kName, "input", y);
  return y;
}

Tensor run_backward(const BackwardArgs& a) {
  return run(Pass::bwd, a.grad_output, a.output, check_arguments(a), a.log, a.policy);
}

Tensor backward(const BackwardArgs& a) {
  return KnownKernel<SoftmaxProblem, run_backward>::call(a);
}

Tensor backward_meta(const BackwardArgs& a) {
  check_arguments(a);
  return at::empty_symint(a.output.sym_sizes(), a.grad_output.options());
}

struct SoftmaxGradient {
  static constexpr const char* kName = "TorchCudnnExtSoftmaxBackward";
  static constexpr size_t kInputs = 1;
  int64_t dim = 0;
  bool log = false;
  at::ScalarType input_dtype = at::kFloat;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(dim, log, input_dtype, policy); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    Tensor dx =
        call_kernel({&grads[0], &saved[0]}, backward, {grads[0], saved[0], dim, log, policy});
    return {in_dtype(dx, input_dtype)};
  }
};

template <bool log>
Tensor forward_autograd(c10::DispatchKeySet keys, const ForwardArgs<log>& a) {
  return run_with_gradient<SoftmaxGradient>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient = {a.dim, log, a.input.scalar_type(),
                         policy_to_save(SoftmaxProblem::kFamily, a.policy)};
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

  auto attributes() { return std::tie(dim, log, policy); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &g = grads[0], &dy = saved[0], &y = saved[1];
    variable_list result(2);
    if (log) {
      Tensor sum = (g * y.exp()).sum(dim, true);
      if (needed[0]) result[0] = g - sum;
      if (needed[1]) result[1] = -g * y.exp() * dy.sum(dim, true);
    } else {
      if (needed[0]) result[0] = call_op(BackwardArgs{g, y, dim, false, policy});
      if (needed[1]) {
        result[1] = g * (dy - (dy * y).sum(dim, true)) - dy * (g * y).sum(dim, true);
      }
    }
    return result;
  }
};

Tensor backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& a) {
  return run_with_gradient<SoftmaxBackwardGradient>(
      {a.grad_output, a.output}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {a.dim, a.log, policy_to_save(SoftmaxProblem::kFamily, a.policy)};
        save_input(node, a.grad_output, a.output);
      });
}

// The result is float32 under autocast on CUDA alone, as in PyTorch.
template <bool log>
Tensor forward_autocast(const ForwardArgs<log>& a) {
  BelowAutocast guard(c10::kCUDA);
  auto given = a.input.scalar_type();
  bool widens = !a.dtype && (given == at::kHalf || given == at::kBFloat16);
  return call_op(
      ForwardArgs<log>{a.input, a.dim, widens ? OptionalDtype(at::kFloat) : a.dtype, a.policy});
}

// PyTorch's autocast widens the whole loss on the CPU; on CUDA it widens the parts.
Tensor widened_by_autocast(const Tensor& t) {
  bool is_half = t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
  return is_half && t.is_cpu() && at::autocast::is_autocast_enabled(at::kCPU) ? t.to(at::kFloat)
                                                                              : t;
}

int64_t reduction_of(std::string_view reduction) {
  if (reduction == "mean") return at::Reduction::Mean;
  if (reduction == "sum") return at::Reduction::Sum;
  TORCH_CHECK_VALUE(reduction == "none", "torch_cudnn_ext::cross_entropy: reduction is '",
                    reduction, "', wanted 'none', 'mean' or 'sum'");
  return at::Reduction::None;
}

// The loss of class indices, with PyTorch's loss of log-probabilities.
Tensor cross_entropy(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                     int64_t ignore_index, std::string_view reduction, OptionalPolicy policy) {
  TORCH_CHECK_VALUE(!input.sym_sizes().equals(target.sym_sizes()),
                    "torch_cudnn_ext::cross_entropy: target has the sizes of input, ",
                    target.sym_sizes(), ", wanted an index for each row of classes");
  int64_t classes = input.dim() == 1 ? 0 : 1;
  Tensor log_probabilities =
      call_op(ForwardArgs<true>{widened_by_autocast(input), classes, std::nullopt, policy});
  OptionalTensor factors = has(weight) ? OptionalTensor(widened_by_autocast(*weight)) : weight;
  return at::nll_loss_nd(log_probabilities, target, factors, reduction_of(reduction), ignore_index);
}

// PyTorch's own operators, overridden.
template <bool log>
struct AtenSoftmax {
  static constexpr const char* kOp = log ? "_log_softmax" : "_softmax";

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 int64_t, bool half_to_float) {
    if (half_to_float && !input.is_cuda()) return "a narrow type is to become float32 on the CPU";
    return why_any_is_declined(keys, {{"input", input}});
  }
  static ForwardArgs<log> args(const Tensor& input, int64_t dim, bool half_to_float) {
    return {input, dim, half_to_float ? OptionalDtype(at::kFloat) : std::nullopt, {}};
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input, int64_t dim,
                              bool half_to_float) {
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, dim, half_to_float);
    }
    return forward_autograd<log>(keys, args(input, dim, half_to_float));
  }
  static Tensor run(const Tensor& input, int64_t dim, bool half_to_float) {
    return forward<log>(args(input, dim, half_to_float));
  }
  template <c10::DispatchKey>
  static Tensor plain(const Tensor& input, int64_t dim, bool half_to_float) {
    return pytorch_forward<log>(input, dim, half_to_float);
  }
};

const RegisterOverride<AtenSoftmax<false>, Tensor(const Tensor&, int64_t, bool)> softmax_overridden(
    "_softmax");
const RegisterOverride<AtenSoftmax<true>, Tensor(const Tensor&, int64_t, bool)>
    log_softmax_overridden("_log_softmax");

void register_all(torch::Library& m) {
  register_kernels<forward<false>, forward<true>, backward>(m);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m,
         {"softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> Tensor",
          "log_softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> "
          "Tensor",
          "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, "
          "str reduction='mean', *, str? policy=None) -> Tensor",
          "softmax_backward(Tensor grad_output, Tensor output, int dim, bool log, *, str? "
          "policy=None) -> Tensor"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  implement(m, "cross_entropy", TORCH_FN(cross_entropy));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<forward_meta<false>, forward_meta<true>, backward_meta>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd<false>, forward_autograd<true>, backward_autograd>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<forward_autocast<false>, forward_autocast<true>>(m);
}

}  // namespace torch_cudnn_ext::softmax
