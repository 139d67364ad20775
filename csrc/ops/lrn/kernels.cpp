// Kernels and schemas of local response and divisive normalisation, and the public operators.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include "ops/call.h"
#include "ops/lrn/lrn.h"
#include "ops/schema.h"

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

// Runs a pass on what is bound, in the tensors' own sizes.
void run(Pass pass, const FormArgs& form, Bindings& b, OptionalPolicy policy) {
  const Tensor& x = b[Role::x];
  LrnProblem p = make_problem(pass, form, x.scalar_type(), b[Role::z].defined());
  for (Role role : {Role::x, Role::y, Role::dy}) {
    if (b[role].defined()) b[role] = as_problems(p, b[role]);
  }
  p.x = spec_of(x);
  p.canonicalise();
  p.alignment = alignment_of({&x, &b[Role::dy], &b[Role::y], &b[Role::z]});
  run_problem(p, policy, x, b);
}

Tensor forward(const LrnArgs& a) {
  c10::OptionalDeviceGuard guard(a.input.device());
  if (a.input.numel() == 0) return at::empty(a.input.sizes(), a.input.options());
  Bindings b;
  b[Role::x] = a.input;
  b[Role::z] = contiguous_or_undefined(a.means);
  run(Pass::fwd, a.form, b, a.policy);
  return with_sizes_of(a.input, b[Role::y]);
}

Tensor forward_meta(const LrnArgs& a) {
  return at::empty_symint(a.input.sym_sizes(), a.input.options());
}

BackwardArgs::Result backward(const BackwardArgs& a) {
  const Tensor& input = a.input;
  check_same(a.kName, "grad_output", a.grad_output, "input", input);
  check_same(a.kName, "output", a.output, "input", input);
  c10::OptionalDeviceGuard guard(input.device());
  Bindings b;
  if (input.numel() == 0) {
    b[Role::dx] = at::empty(input.sizes(), input.options());
    b[Role::dz] = at::empty(input.sizes(), input.options());
  } else {
    b[Role::x] = input;
    b[Role::y] = a.output;
    b[Role::dy] = a.grad_output;
    b[Role::z] = contiguous_or_undefined(a.means);
    run(Pass::bwd, a.form, b, a.policy);
  }
  return {with_sizes_of(input, b[Role::dx]),
          has(a.means) ? b[Role::dz] : at::empty({0}, input.options())};
}

BackwardArgs::Result backward_meta(const BackwardArgs& a) {
  check_same(a.kName, "grad_output", a.grad_output, "input", a.input);
  Tensor dx = at::empty_symint(a.input.sym_sizes(), a.input.options());
  return {dx, has(a.means) ? at::empty_like(dx) : at::empty({0}, dx.options())};
}

// --- the public operators

struct LocalResponseArgs {
  static constexpr const char* kName = "local_response_norm";
  using Result = Tensor;
  const Tensor& input;
  int64_t size;
  double alpha, beta, k;
  std::string_view window;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, size, alpha, beta, k, window, policy); }
};

struct DivisiveArgs {
  static constexpr const char* kName = "divisive_norm";
  using Result = Tensor;
  const Tensor& input;
  int64_t size;
  double alpha, beta, k;
  const OptionalTensor& means;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, size, alpha, beta, k, means, policy); }
};

template <class Args>
void check_arguments(const Args& a, bool dims_fit, const char* wanted) {
  check_dtype(a.kName, "input", a.input);
  TORCH_CHECK_VALUE(dims_fit, "torch_cudnn_ext::", a.kName, ": input has sizes ",
                    a.input.sym_sizes(), ", wanted ", wanted);
  TORCH_CHECK_VALUE(a.size >= 1, "torch_cudnn_ext::", a.kName, ": size is ", a.size,
                    ", wanted at least 1");
}

Tensor local_response_norm(const LocalResponseArgs& a) {
  check_arguments(a, a.input.dim() >= 3, "at least 3 dimensions (batch, channels, ...)");
  window_of(a.window);
  FormArgs form{"cross_channel", a.size, a.alpha, a.beta, a.k, a.window};
  return call_op(LrnArgs{a.input, std::nullopt, form, a.policy}).contiguous(format_of(a.input));
}

Tensor divisive_norm(const DivisiveArgs& a) {
  check_arguments(a, a.input.dim() == 4 || a.input.dim() == 5,
                  "4 or 5 dimensions (batch, channels, height, width)");
  if (a.means) check_same(a.kName, "means", *a.means, "input", a.input);
  FormArgs form{"divisive", a.size, a.alpha, a.beta, a.k, "cudnn"};
  return call_op(LrnArgs{a.input, a.means, form, a.policy}).contiguous(format_of(a.input));
}

// PyTorch's operator is composed of others, and autocast runs some of them in float32: on CUDA the
// power, on the CPU the average over a volume.
template <c10::DeviceType device>
Tensor local_response_norm_autocast(const LocalResponseArgs& a) {
  BelowAutocast guard(device);
  bool wide = device == c10::kCUDA || a.input.dim() > 3;
  Tensor x = wide ? at::autocast::cached_cast(at::kFloat, a.input, device) : a.input;
  return local_response_norm({x, a.size, a.alpha, a.beta, a.k, a.window, a.policy});
}

}  // namespace

LrnProblem make_problem(Pass pass, const FormArgs& form, c10::ScalarType dtype, bool means) {
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

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m,
         {"local_response_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float "
          "k=1.0, str window='torch', *, str? policy=None) -> Tensor",
          "divisive_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0, "
          "Tensor? means=None, *, str? policy=None) -> Tensor",
          "_lrn(Tensor input, Tensor? means, str kind, int size, float alpha, float beta, float k, "
          "str window, *, str? policy=None) -> Tensor",
          "_lrn_backward(Tensor grad_output, Tensor input, Tensor output, Tensor? means, str kind, "
          "int size, float alpha, float beta, float k, str window, *, str? policy=None) -> (Tensor "
          "grad_input, Tensor grad_means)"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward, backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward, backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<forward_meta, backward_meta>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  register_kernels<local_response_norm, divisive_norm>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<local_response_norm_autocast<c10::kCPU>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<local_response_norm_autocast<c10::kCUDA>>(m);
}

}  // namespace torch_cudnn_ext::lrn
