// Kernels and schemas of activations. A problem is an elementwise function of a dense tensor.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>

#include "ops/activation/activation.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::activation {

ActivationProblem problem_of(const char* op, const Tensor& t, std::string_view kind,
                             double coefficient, Pass pass, bool from_output) {
  check_dtype(op, pass == Pass::fwd ? "input" : "output", t);
  ActivationProblem p;
  p.pass = pass;
  p.kind = activation_kind_from_text(c10::str("torch_cudnn_ext::", op, ": kind"), kind);
  p.coefficient = coefficient;
  p.from_output = from_output;
  p.x = {t.scalar_type(), {1}, {1}};
  p.canonicalise();
  p.validate();
  return p;
}

namespace {

// The elements without gaps, in the order of `like` if it is defined.
Tensor dense(const Tensor& t, const Tensor& like = {}) {
  if (!t.defined()) return t;
  if (!like.defined()) return is_dense(t) ? t : t.clone(at::MemoryFormat::Preserve);
  if (t.strides() == like.strides()) return t;
  return at::empty_strided(like.sizes(), like.strides(), t.options()).copy_(t);
}

// All tensors are dense in one order. The result may be x or dy.
void run_into(ActivationProblem p, const Tensor& x, const Tensor& y, const Tensor& dy,
              const Tensor& dx, OptionalPolicy policy) {
  if (y.numel() == 0) return;
  Bindings bindings;
  bindings[Role::x] = flat(x);
  bindings[Role::y] = flat(y);
  bindings[Role::dy] = flat(dy);
  bindings[Role::dx] = flat(dx);
  p.x = spec_of(bindings[Role::y]);
  p.alignment = alignment_of({&x, &y, &dy, &dx});
  run_problem(p, policy, y, bindings);
}

// A gradient that is computed from y alone does not read x.
void backward_into(const ActivationProblem& p, const Tensor& dy, const OptionalTensor& input,
                   const Tensor& y, const Tensor& dx, OptionalPolicy policy) {
  Tensor x = p.from_output ? Tensor() : dense(*input, y);
  run_into(p, x, y, dy, dx, policy);
}

ActivationProblem backward_problem(const char* op, const Tensor& grad_output,
                                   const OptionalTensor& input, const Tensor& output,
                                   std::string_view kind, double coefficient) {
  auto p = problem_of(op, output, kind, coefficient, Pass::bwd, !has(input));
  check_same(op, "output", output, "grad_output", grad_output);
  if (has(input)) check_same(op, "input", *input, "grad_output", grad_output);
  TORCH_CHECK_VALUE(p.from_output || has(input), "torch_cudnn_ext::", op,
                    ": input is None, wanted the forward's input");
  return p;
}

// A gradient in PyTorch's layout: the one of dy, or of the output for relu and if dy is not dense.
Tensor empty_gradient(ActivationKind kind, const Tensor& grad_output, const Tensor& output) {
  bool as_dy = kind != ActivationKind::relu && is_dense(grad_output);
  return at::empty_like(as_dy ? grad_output : output);
}

}  // namespace

Tensor forward(const Tensor& input, std::string_view kind, double coefficient,
               OptionalPolicy policy) {
  auto p = problem_of("activation", input, kind, coefficient);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor x = dense(input);
  Tensor y = at::empty_like(x);
  run_into(p, x, y, {}, {}, policy);
  return y;
}

void forward_inplace(Tensor& input, std::string_view kind, double coefficient,
                     OptionalPolicy policy) {
  auto p = problem_of("activation_", input, kind, coefficient);
  c10::OptionalDeviceGuard guard(input.device());
  at::assert_no_internal_overlap(input);
  Tensor x = dense(input);
  run_into(p, x, x, {}, {}, policy);
  if (!x.is_same(input)) input.copy_(x);
}

Tensor backward(const Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                std::string_view kind, double coefficient, OptionalPolicy policy) {
  auto p = backward_problem("activation_backward", grad_output, input, output, kind, coefficient);
  c10::OptionalDeviceGuard guard(output.device());
  Tensor dx = empty_gradient(p.kind, grad_output, output);
  backward_into(p, dense(grad_output, dx), input, dense(output, dx), dx, policy);
  return dx;
}

void backward_inplace(Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                      std::string_view kind, double coefficient, OptionalPolicy policy) {
  auto p = backward_problem("activation_backward_", grad_output, input, output, kind, coefficient);
  c10::OptionalDeviceGuard guard(output.device());
  at::assert_no_internal_overlap(grad_output);
  Tensor y = dense(output);
  Tensor dy = dense(grad_output, y);
  backward_into(p, dy, input, y, dy, policy);
  if (!dy.is_same(grad_output)) grad_output.copy_(dy);
}

namespace {

Tensor forward_meta(const Tensor& input, std::string_view kind, double coefficient,
                    OptionalPolicy) {
  problem_of("activation", input, kind, coefficient);
  return at::empty_like(input);
}

void forward_inplace_meta(Tensor& input, std::string_view kind, double coefficient,
                          OptionalPolicy) {
  problem_of("activation_", input, kind, coefficient);
}

Tensor backward_meta(const Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                     std::string_view kind, double coefficient, OptionalPolicy) {
  auto p = backward_problem("activation_backward", grad_output, input, output, kind, coefficient);
  return empty_gradient(p.kind, grad_output, output);
}

void backward_inplace_meta(Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                           std::string_view kind, double coefficient, OptionalPolicy) {
  backward_problem("activation_backward_", grad_output, input, output, kind, coefficient);
}

}  // namespace

// kind is relu, clipped_relu (coefficient: ceiling), tanh, sigmoid, elu (alpha) or swish (beta).
// The gradient of relu, tanh and sigmoid is computed from the output, that of the others from the
// input if it is given. A name that ends in an underscore is an operator in place.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward, forward_meta>(
      m, "activation(Tensor input, str kind, float coefficient=1.0, *, str? policy=None) -> Tensor",
      tags());
  define_operator<forward_inplace, forward_inplace_meta>(
      m,
      "activation_(Tensor(a!) input, str kind, float coefficient=1.0, *, str? policy=None) -> ()",
      tags());
  define_operator<backward, backward_meta>(
      m,
      "activation_backward(Tensor grad_output, Tensor? input, Tensor output, str kind, float "
      "coefficient=1.0, *, str? policy=None) -> Tensor",
      tags());
  define_operator<backward_inplace, backward_inplace_meta>(
      m,
      "activation_backward_(Tensor(a!) grad_output, Tensor? input, Tensor output, str kind, float "
      "coefficient=1.0, *, str? policy=None) -> ()",
      tags());
}

}  // namespace torch_cudnn_ext::activation
