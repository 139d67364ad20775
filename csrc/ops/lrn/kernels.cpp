// Kernels and schemas of local response and divisive normalisation, and the public operators.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include "core/tensors.h"
#include "ops/lrn/lrn.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::lrn {
namespace {

LrnWindow window_of(std::string_view text) {
  return lrn_window_from_text("torch_cudnn_ext::local_response_norm: window", text);
}

// Contiguous. Across channels, space is one dimension.
Tensor as_problems(const LrnProblem& p, const Tensor& t) {
  Tensor dense = t.contiguous();
  if (p.kind == LrnKind::divisive) return dense;
  int64_t n = t.size(0), channels = t.size(1), space = t.numel() / (n * channels);
  return strided_view(dense, {n, channels, space}, {channels * space, space, 1});
}
Tensor with_sizes_of(const Tensor& like, const Tensor& result) {
  return strided_view(result, like.sizes(), contiguous_strides(like.sizes()));
}

// Runs a pass. Binds the tensors, of which y and dy may be undefined.
void run(LrnProblem p, const Tensor& input, const Tensor& means, const Tensor& output,
         const Tensor& grad_output, Bindings& bindings, OptionalPolicy policy) {
  auto bind = [&](Role role, const Tensor& t) {
    if (t.defined()) bindings[role] = as_problems(p, t);
  };
  bind(Role::x, input);
  bind(Role::y, output);
  bind(Role::dy, grad_output);
  bindings[Role::z] = means;
  p.x = spec_of(bindings[Role::x]);
  p.canonicalise();
  p.alignment = alignment_of({&bindings[Role::x], &bindings[Role::dy], &bindings[Role::y], &means});
  run_problem(p, policy, input, bindings);
}

}  // namespace

LrnProblem make_problem(Pass pass, const Form& form, c10::ScalarType dtype, bool means) {
  LrnProblem p;
  p.pass = pass;
  p.x.dtype = dtype;
  p.kind = lrn_kind_from_text("lrn: kind", form.kind);
  p.window = window_of(form.window);
  p.size = form.size;
  p.alpha = form.alpha;
  p.beta = form.beta;
  p.k = form.k;
  p.means = means;
  return p;
}

Tensor forward(const Tensor& input, const OptionalTensor& means, std::string_view kind,
               int64_t size, double alpha, double beta, double k, std::string_view window,
               OptionalPolicy policy) {
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) return at::empty(input.sizes(), input.options());
  Tensor m = contiguous_or_undefined(means);
  Form form{std::string(kind), size, alpha, beta, k, std::string(window)};
  Bindings bindings;
  run(make_problem(Pass::fwd, form, input.scalar_type(), m.defined()), input, m, {}, {}, bindings,
      policy);
  return with_sizes_of(input, bindings[Role::y]);
}

Tensors2 backward(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                  const OptionalTensor& means, std::string_view kind, int64_t size, double alpha,
                  double beta, double k, std::string_view window, OptionalPolicy policy) {
  check_same("_lrn_backward", "grad_output", grad_output, "input", input);
  check_same("_lrn_backward", "output", output, "input", input);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor m = contiguous_or_undefined(means);
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::dx] = at::empty(input.sizes(), input.options());
    bindings[Role::dz] = at::empty(input.sizes(), input.options());
  } else {
    Form form{std::string(kind), size, alpha, beta, k, std::string(window)};
    run(make_problem(Pass::bwd, form, input.scalar_type(), m.defined()), input, m, output,
        grad_output, bindings, policy);
  }
  return {with_sizes_of(input, bindings[Role::dx]),
          m.defined() ? bindings[Role::dz] : at::empty({0}, input.options())};
}

namespace {

Tensor forward_meta(const Tensor& input, const OptionalTensor&, std::string_view, int64_t, double,
                    double, double, std::string_view, OptionalPolicy) {
  return at::empty_symint(input.sym_sizes(), input.options());
}

Tensors2 backward_meta(const Tensor& grad_output, const Tensor& input, const Tensor&,
                       const OptionalTensor& means, std::string_view, int64_t, double, double,
                       double, std::string_view, OptionalPolicy) {
  check_same("_lrn_backward", "grad_output", grad_output, "input", input);
  Tensor dx = at::empty_symint(input.sym_sizes(), input.options());
  return {dx, or_undefined(means).defined() ? at::empty_like(dx) : at::empty({0}, dx.options())};
}

const auto& inner_op() { return op_of<forward>("torch_cudnn_ext::_lrn"); }

Tensor local_response_norm(const Tensor& input, int64_t size, double alpha, double beta, double k,
                           std::string_view window, OptionalPolicy policy) {
  constexpr const char* kOp = "local_response_norm";
  check_dtype(kOp, "input", input);
  TORCH_CHECK_VALUE(input.dim() >= 3, "torch_cudnn_ext::", kOp, ": input has sizes ",
                    input.sym_sizes(), ", wanted at least 3 dimensions (batch, channels, ...)");
  TORCH_CHECK_VALUE(size >= 1, "torch_cudnn_ext::", kOp, ": size is ", size, ", wanted at least 1");
  window_of(window);
  Tensor y =
      inner_op().call(input, std::nullopt, "cross_channel", size, alpha, beta, k, window, policy);
  return y.contiguous(format_of(input));
}

Tensor divisive_norm(const Tensor& input, int64_t size, double alpha, double beta, double k,
                     const OptionalTensor& means, OptionalPolicy policy) {
  constexpr const char* kOp = "divisive_norm";
  check_dtype(kOp, "input", input);
  TORCH_CHECK_VALUE(input.dim() == 4 || input.dim() == 5, "torch_cudnn_ext::", kOp,
                    ": input has sizes ", input.sym_sizes(),
                    ", wanted 4 or 5 dimensions (batch, channels, height, width)");
  TORCH_CHECK_VALUE(size >= 1, "torch_cudnn_ext::", kOp, ": size is ", size, ", wanted at least 1");
  if (means) check_same(kOp, "means", *means, "input", input);
  Tensor y = inner_op().call(input, means, "divisive", size, alpha, beta, k, "cudnn", policy);
  return y.contiguous(format_of(input));
}

// PyTorch's operator is composed of others, and autocast runs some of them in float32: on CUDA the
// power, on the CPU the average over a volume.
template <c10::DeviceType device>
Tensor local_response_norm_autocast(const Tensor& input, int64_t size, double alpha, double beta,
                                    double k, std::string_view window, OptionalPolicy policy) {
  BelowAutocast guard(device);
  bool wide = device == c10::kCUDA || input.dim() > 3;
  Tensor x = wide ? at::autocast::cached_cast(at::kFloat, input, device) : input;
  return local_response_norm(x, size, alpha, beta, k, window, policy);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  m.def(
      "local_response_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float "
      "k=1.0, str window='torch', *, str? policy=None) -> Tensor",
      TORCH_FN(local_response_norm), tags());
  m.def(
      "divisive_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0, "
      "Tensor? means=None, *, str? policy=None) -> Tensor",
      TORCH_FN(divisive_norm), tags());
  define_operator<forward, forward_meta>(
      m,
      "_lrn(Tensor input, Tensor? means, str kind, int size, float alpha, float beta, float k, str "
      "window, *, str? policy=None) -> Tensor",
      tags());
  define_operator<backward, backward_meta>(
      m,
      "_lrn_backward(Tensor grad_output, Tensor input, Tensor output, Tensor? means, str kind, int "
      "size, float alpha, float beta, float k, str window, *, str? policy=None) -> (Tensor "
      "grad_input, Tensor grad_means)",
      tags());
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("local_response_norm", TORCH_FN(local_response_norm_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("local_response_norm", TORCH_FN(local_response_norm_autocast<c10::kCUDA>));
}

}  // namespace torch_cudnn_ext::lrn
