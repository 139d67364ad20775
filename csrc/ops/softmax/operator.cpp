// Softmax and log-softmax: argument checks, Problem, gradients, and what the core must know of
// them.
#include <ATen/ATen.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/select/execute.h"
#include "core/tensors.h"
#include "ops/autograd.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

void SoftmaxProblem::validate() const {
  check_sizes("softmax", "x", x, 3, 3);
  TORCH_CHECK_VALUE(x.strides == contiguous_strides(x.sizes),
                    "softmax: x has other strides than its sizes [outer, n, inner] say, wanted "
                    ":nchw");
  check_alignment("softmax", alignment, x.dtype);
}

namespace softmax {
namespace {

const char* op_name(bool log) { return log ? "log_softmax" : "softmax"; }

// The view [outer, n, inner] of a contiguous tensor; the sum runs over n, its dimension `dim`.
Tensor as_rows(const Tensor& t, int64_t dim) {
  int64_t n = t.size(dim), inner = c10::multiply_integers(t.sizes().slice(dim + 1));
  return strided_view(t, {t.numel() / (n * inner), n, inner}, {n * inner, inner, 1});
}

// `first` is x, or dy with y as `second`. As PyTorch's, the result is contiguous.
Tensor run(Pass pass, const Tensor& first, const Tensor& second, int64_t dim, bool log,
           OptionalPolicy policy) {
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
  execute(p, resolve_policy(SoftmaxProblem::kFamily, policy), device_of(a.device()), bindings);
  return at::native::view(bindings[forward ? Role::y : Role::dx], first.sizes());
}

constexpr int64_t kOne[] = {1};  // sizes of a scalar as a row

int64_t check_dim(const char* op, const Tensor& t, int64_t dim) {
  int64_t dims = std::max<int64_t>(t.dim(), 1);
  TORCH_CHECK_VALUE(dim >= -dims && dim < dims, "torch_cudnn_ext::", op, ": dim is ", dim,
                    ", wanted at least ", -dims, " and less than ", dims, " for input of sizes ",
                    t.sym_sizes());
  return dim < 0 ? dim + dims : dim;
}

// Any integer comes through as a dtype.
void check_is_dtype(const char* op, std::optional<at::ScalarType> dtype) {
  auto number = static_cast<int>(dtype.value_or(at::kFloat));
  TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int>(at::ScalarType::NumOptions),
                    "torch_cudnn_ext::", op, ": dtype is ", number, ", wanted a dtype");
}

template <bool log>
Tensor forward(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
               OptionalPolicy policy) {
  const char* op = op_name(log);
  check_is_dtype(op, dtype);
  dim = check_dim(op, input, dim);
  Tensor x = dtype ? in_dtype(input, *dtype) : input;
  check_dtype(op, "input", x);
  if (x.dim() == 0)
    return run(Pass::fwd, x.reshape(kOne), {}, 0, log, policy).reshape(at::IntArrayRef());
  return run(Pass::fwd, x, {}, dim, log, policy);
}

template <bool log>
Tensor forward_meta(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
                    OptionalPolicy) {
  check_is_dtype(op_name(log), dtype);
  check_dim(op_name(log), input, dim);
  Tensor y = at::empty_symint(input.sym_sizes(),
                              input.options().dtype(dtype.value_or(input.scalar_type())));
  check_dtype(op_name(log), "input", y);
  return y;
}

int64_t check_backward(const Tensor& grad_output, const Tensor& output, int64_t dim) {
  check_dtype("softmax_backward", "grad_output", grad_output);
  check_same("softmax_backward", "output", output, "grad_output", grad_output);
  return check_dim("softmax_backward", output, dim);
}

Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim, bool log,
                OptionalPolicy policy) {
  dim = check_backward(grad_output, output, dim);
  if (output.dim() == 0) {
    return run(Pass::bwd, grad_output.reshape(kOne), output.reshape(kOne), 0, log, policy)
        .reshape(at::IntArrayRef());
  }
  return run(Pass::bwd, grad_output, output, dim, log, policy);
}

Tensor backward_meta(const Tensor& grad_output, const Tensor& output, int64_t dim, bool,
                     OptionalPolicy) {
  check_backward(grad_output, output, dim);
  return at::empty_symint(output.sym_sizes(), grad_output.options());
}

// --- gradients

const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::softmax_backward");
  return op;
}

struct SoftmaxGradient {
  static constexpr const char* kName = "TorchCudnnExtSoftmaxBackward";
  static constexpr size_t kInputs = 1;
  int64_t dim = 0;
  bool log = false;
  at::ScalarType input_dtype = at::kFloat;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(dim);
    visit(log);
    visit(input_dtype);
    visit(policy);
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
  static auto op = find_op<decltype(forward<log>)>(log ? "torch_cudnn_ext::log_softmax"
                                                       : "torch_cudnn_ext::softmax");
  return run_with_gradient<SoftmaxGradient>(
      {input}, 1,
      [&] { return op.redispatch(keys & c10::after_autograd_keyset, input, dim, dtype, policy); },
      [&](auto& node, const auto& results) {
        node.gradient.dim = dim;
        node.gradient.log = log;
        node.gradient.input_dtype = input.scalar_type();
        node.gradient.policy = policy_to_save(SoftmaxProblem::kFamily, policy);
        save_result(node, results[0]);
      });
}

// softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy).
struct SoftmaxBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtSoftmaxBackwardBackward";
  static constexpr size_t kInputs = 2;  // grad_output, output
  int64_t dim = 0;
  bool log = false;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(dim);
    visit(log);
    visit(policy);
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
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, output, dim,
                                        log, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.dim = dim;
        node.gradient.log = log;
        node.gradient.policy = policy_to_save(SoftmaxProblem::kFamily, policy);
        save_input(node, grad_output);
        save_input(node, output);
      });
}

// As PyTorch does, on CUDA alone: the result is float32 under autocast.
template <bool log>
Tensor forward_autocast(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
                        OptionalPolicy policy) {
  static auto op = find_op<decltype(forward<log>)>(log ? "torch_cudnn_ext::log_softmax"
                                                       : "torch_cudnn_ext::softmax");
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCUDA);
  bool narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  if (!dtype && narrow) dtype = at::kFloat;
  return op.call(input, dim, dtype, policy);
}

// --- PyTorch's own, overridden

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

// --- what the core must know

class SoftmaxOperator : public OperatorOf<SoftmaxProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnSoftmaxForward, cudnnSoftmaxBackward",
            "contiguous; any dimension",
            "fast needs allow_reduced_range; log-softmax: accurate alone",
            {"softmax_fwd x=f16[32,64,3136]:nchw"}};
  }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_SOFTMAX_FAST", "fast", nullptr},
            {1, "CUDNN_SOFTMAX_ACCURATE", "accurate", nullptr}};
  }

  std::vector<SlotSpec> slots(const SoftmaxProblem& p) const override {
    if (p.pass == Pass::fwd) return {{Role::x, p.x, false}, {Role::y, p.x, true}};
    return {{Role::y, p.x, false}, {Role::dy, p.x, false}, {Role::dx, p.x, true}};
  }

  Cost cost(const SoftmaxProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    auto bytes = static_cast<double>(p.x.nbytes());
    bool forward = p.pass == Pass::fwd;
    // Maximum, difference, exponential, sum, quotient; product, sum, difference, product.
    return {(forward ? 5 : 4) * elements, (forward ? 2 : 3) * bytes,
            static_cast<double>(p.x.sizes[1])};
  }

  // A gradient is taken at a point that a forward would have given.
  void prepare_scratch(const SoftmaxProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    Tensor y = bindings[Role::y].to(at::kFloat);
    bindings[Role::y].copy_(p.log ? y.log_softmax(1) : y.softmax(1));
  }

  Bindings reference(const SoftmaxProblem& p, const Bindings& bindings) const override {
    Bindings out;
    if (p.pass == Pass::fwd) {
      Tensor x = bindings[Role::x].to(at::kDouble);
      out[Role::y] = p.log ? x.log_softmax(1) : x.softmax(1);
      return out;
    }
    Tensor y = bindings[Role::y].to(at::kDouble), dy = bindings[Role::dy].to(at::kDouble);
    out[Role::dx] = p.log ? dy - y.exp() * dy.sum(1, true) : y * (dy - (dy * y).sum(1, true));
    return out;
  }

  // Rounding of exponential and quotient, and of a sum in float32 at least.
  double tolerance(const SoftmaxProblem& p, const Notes&) const override {
    auto sum_dtype = compute_dtype(p.x.dtype);
    return 4 * epsilon_of(p.x.dtype) +
           4 * epsilon_of(sum_dtype) * std::sqrt(cost(p).reduction_length);
  }

  // Rows in memory order are what PyTorch's own kernel is best at, but for the gradient of softmax,
  // whose product it rounds and stores first: cuDNN's took 0.55 to 0.76 of the time for rows of 10
  // to 1024 on an H200, 4 times for 50257. Of sums across channels, of 1 to 64 images of 2 to 4096
  // pixels and 2 to 8192 channels, the first of this order took 1.05 times what the fastest took on
  // an H100 (geometric mean of 826): cuDNN has a thread or a warp a pixel, which are few where
  // images are small.
  std::vector<std::string> heuristic_order(const SoftmaxProblem& p) const override {
    int64_t channels = p.x.sizes[1], pixels = p.x.sizes[2];
    bool rows = pixels == 1, few = pixels < 32, many_channels = channels >= 64;
    bool cudnn = rows ? p.pass == Pass::bwd && !p.log && channels <= 1024 : !few || !many_channels;
    std::vector<std::string> order{"aten", "legacy:accurate"};
    if (cudnn) std::swap(order[0], order[1]);
    bool copies =
        few ? pixels >= 16 && channels >= 1024
            : many_channels && p.x.sizes[0] * pixels <= 64 * std::min<int64_t>(channels, 256);
    if (copies) order.insert(order.begin(), "aten:transposed");
    return order;
  }
};

const RegisterOperator<SoftmaxOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("softmax", TORCH_FN(forward<false>));
  m.impl("log_softmax", TORCH_FN(forward<true>));
  m.impl("softmax_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("softmax", TORCH_FN(forward_meta<false>));
  m.impl("log_softmax", TORCH_FN(forward_meta<true>));
  m.impl("softmax_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("softmax", TORCH_FN(forward_autograd<false>));
  m.impl("log_softmax", TORCH_FN(forward_autograd<true>));
  m.impl("softmax_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("softmax", TORCH_FN(forward_autocast<false>));
  m.impl("log_softmax", TORCH_FN(forward_autocast<true>));
}

}  // namespace softmax
}  // namespace torch_cudnn_ext
