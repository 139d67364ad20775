// Kernels and schemas of activations. A problem is an elementwise function of a dense tensor.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>

#include "core/tensors.h"
#include "ops/activation/activation.h"
#include "ops/call.h"
#include "ops/known_kernel.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::activation {

ActivationProblem problem_of(const char* op, const Tensor& t, std::string_view kind,
                             double coefficient, Pass pass, bool from_output) {
  check_dtype(op, pass == Pass::fwd ? "input" : "output", t);
  ActivationProblem p;
  p.pass = pass;
  auto known = known_enum_value(kActivationKinds, kind);  // without a text for an error
  p.kind =
      known ? *known : activation_kind_from_text(c10::str("torch_cudnn_ext::", op, ": kind"), kind);
  p.coefficient = coefficient;
  p.from_output = from_output;
  p.x = {t.scalar_type(), {1}, {1}};
  p.canonicalise();
  p.validate();
  return p;
}

namespace {

template <bool inplace>
ActivationProblem checked(const ForwardArgs<inplace>& a) {
  return problem_of(a.kName, a.input, a.kind, a.coefficient);
}

template <bool inplace>
ActivationProblem checked(const BackwardArgs<inplace>& a) {
  auto p = problem_of(a.kName, a.output, a.kind, a.coefficient, Pass::bwd, !has(a.input));
  check_same(a.kName, "output", a.output, "grad_output", a.grad_output);
  if (has(a.input)) check_same(a.kName, "input", *a.input, "grad_output", a.grad_output);
  TORCH_CHECK_VALUE(p.from_output || has(a.input), "torch_cudnn_ext::", a.kName,
                    ": input is None, wanted the forward's input");
  return p;
}

// The elements without gaps, in the order of `like` if it is defined.
Tensor dense(const Tensor& t, const Tensor& like = {}) {
  if (!like.defined()) return is_dense(t) ? t : t.clone(at::MemoryFormat::Preserve);
  if (t.strides() == like.strides()) return t;
  return at::empty_strided(like.sizes(), like.strides(), t.options()).copy_(t);
}

// The elements of a dense tensor in the order of memory. The tensor may be undefined.
Tensor elements(const Tensor& t) {
  return t.defined() ? strided_view(t, {t.numel()}, {1}) : Tensor();
}

// All tensors are dense in one order. The result may be x or dy.
void run_into(ActivationProblem p, const Tensor& x, const Tensor& y, const Tensor& dy,
              const Tensor& dx, OptionalPolicy policy) {
  if (y.numel() == 0) return;
  Bindings bindings;
  bindings[Role::x] = elements(x);
  bindings[Role::y] = elements(y);
  bindings[Role::dy] = elements(dy);
  bindings[Role::dx] = elements(dx);
  p.x = spec_of(bindings[Role::y]);
  p.alignment = alignment_of({&x, &y, &dy, &dx});
  run_problem(p, policy, y, bindings);
}

// A gradient that is computed from y alone does not read x.
Tensor input_read(const ActivationProblem& p, const OptionalTensor& input, const Tensor& y) {
  return p.from_output ? Tensor() : dense(*input, y);
}

// A gradient in PyTorch's layout: the one of dy, or of the output for relu and if dy is not dense.
Tensor empty_gradient(const ActivationProblem& p, const BackwardArgs<false>& a) {
  bool as_dy = p.kind != ActivationKind::relu && is_dense(a.grad_output);
  return at::empty_like(as_dy ? a.grad_output : a.output);
}

Tensor run_forward(const ForwardArgs<false>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  Tensor x = dense(a.input);
  Tensor y = at::empty_like(x);
  run_into(p, x, y, {}, {}, a.policy);
  return y;
}

// PyTorch's own functions of one argument.
std::optional<Tensor> plain_forward(const ForwardArgs<false>& a) {
  if (!is_dense(a.input)) return std::nullopt;
  if (a.kind == "relu") return at::relu(a.input);
  if (a.kind == "tanh") return at::tanh(a.input);
  if (a.kind == "sigmoid") return at::sigmoid(a.input);
  return std::nullopt;
}

Tensor forward(const ForwardArgs<false>& a) {
  return KnownKernel<ActivationProblem, run_forward, plain_forward>::call(a);
}

void forward_inplace(const ForwardArgs<true>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  at::assert_no_internal_overlap(a.input);
  Tensor x = dense(a.input);
  run_into(p, x, x, {}, {}, a.policy);
  if (!x.is_same(a.input)) a.input.copy_(x);
}

Tensor backward(const BackwardArgs<false>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.output.device());
  Tensor dx = empty_gradient(p, a);
  Tensor y = dense(a.output, dx), dy = dense(a.grad_output, dx);
  run_into(p, input_read(p, a.input, y), y, dy, dx, a.policy);
  return dx;
}

void backward_inplace(const BackwardArgs<true>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.output.device());
  at::assert_no_internal_overlap(a.grad_output);
  Tensor y = dense(a.output), dy = dense(a.grad_output, y);
  run_into(p, input_read(p, a.input, y), y, dy, dy, a.policy);
  if (!dy.is_same(a.grad_output)) a.grad_output.copy_(dy);
}

Tensor forward_meta(const ForwardArgs<false>& a) {
  checked(a);
  return at::empty_like(a.input);
}

Tensor backward_meta(const BackwardArgs<false>& a) { return empty_gradient(checked(a), a); }

template <class Args>
void inplace_meta(const Args& a) {
  checked(a);
}

void register_all(torch::Library& m) {
  register_kernels<forward, forward_inplace, backward, backward_inplace>(m);
}

}  // namespace

// kind is relu, clipped_relu (coefficient: ceiling), tanh, sigmoid, elu (alpha) or swish (beta).
// The gradient of relu, tanh and sigmoid is computed from the output, that of the others from the
// input if it is given. A name that ends in an underscore is an operator in place.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(
      m,
      {"activation(Tensor input, str kind, float coefficient=1.0, *, str? policy=None) -> Tensor",
       "activation_(Tensor(a!) input, str kind, float coefficient=1.0, *, str? policy=None) -> "
       "()",
       "activation_backward(Tensor grad_output, Tensor? input, Tensor output, str kind, float "
       "coefficient=1.0, *, str? policy=None) -> Tensor",
       "activation_backward_(Tensor(a!) grad_output, Tensor? input, Tensor output, str kind, "
       "float coefficient=1.0, *, str? policy=None) -> ()"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<forward_meta, inplace_meta<ForwardArgs<true>>, backward_meta,
                   inplace_meta<BackwardArgs<true>>>(m);
}

}  // namespace torch_cudnn_ext::activation
