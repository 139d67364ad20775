// Kernels and schemas of activations. A problem is an elementwise function of a dense tensor.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
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

// Runs a problem on the elements of tensors that are dense in one order.
void run_flat(ActivationProblem p, Bindings& bindings, std::initializer_list<const Tensor*> tensors,
              OptionalPolicy policy) {
  const Tensor& one = bindings[p.pass == Pass::fwd ? Role::x : Role::y];
  p.x = spec_of(one);
  p.alignment = alignment_of(tensors);
  run_problem(p, policy, one, bindings);
}

Bindings bindings_of(const Tensor& x, const Tensor& y, const Tensor& dy) {
  Bindings bindings;
  bindings[Role::x] = elements(x);
  bindings[Role::y] = elements(y);
  bindings[Role::dy] = elements(dy);
  return bindings;
}

// The result is x or dy.
void run_inplace(const ActivationProblem& p, const Tensor& x, const Tensor& y, const Tensor& dy,
                 OptionalPolicy policy) {
  bool forward = p.pass == Pass::fwd;
  if ((forward ? x : dy).numel() == 0) return;
  Bindings bindings = bindings_of(x, y, dy);
  bindings[forward ? Role::y : Role::dx] = bindings[forward ? Role::x : Role::dy];
  run_flat(p, bindings, {&x, &y, &dy}, policy);
}

// The result is new, in the layout of `like`.
Tensor run_new(const ActivationProblem& p, const Tensor& x, const Tensor& y, const Tensor& dy,
               const Tensor& like, OptionalPolicy policy) {
  if (like.numel() == 0) return at::empty_like(like);
  Bindings bindings = bindings_of(x, y, dy);
  run_flat(p, bindings, {&x, &y, &dy}, policy);
  Role result = p.pass == Pass::fwd ? Role::y : Role::dx;
  return strided_view(bindings[result], like.sizes(), like.strides());
}

// A gradient that is computed from y alone does not read x.
Tensor input_read(const ActivationProblem& p, const OptionalTensor& input, const Tensor& y) {
  return p.from_output ? Tensor() : dense(*input, y);
}

// What a gradient has PyTorch's layout of: dy, or the output for relu and if dy is not dense.
const Tensor& like_gradient(const ActivationProblem& p, const BackwardArgs<false>& a) {
  bool as_dy = p.kind != ActivationKind::relu && is_dense(a.grad_output);
  return as_dy ? a.grad_output : a.output;
}

Tensor run_forward(const ForwardArgs<false>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  Tensor x = dense(a.input);
  return run_new(p, x, {}, {}, x, a.policy);
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
  run_inplace(p, x, {}, {}, a.policy);
  if (!x.is_same(a.input)) a.input.copy_(x);
}

Tensor run_backward(const BackwardArgs<false>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.output.device());
  Tensor like = dense(like_gradient(p, a));
  Tensor y = dense(a.output, like), dy = dense(a.grad_output, like);
  return run_new(p, input_read(p, a.input, y), y, dy, like, a.policy);
}

// PyTorch's own gradients that the output alone determines.
std::optional<Tensor> plain_backward(const BackwardArgs<false>& a) {
  if (a.kind == "relu") return at::threshold_backward(a.grad_output, a.output, 0);
  if (a.kind == "tanh") return at::tanh_backward(a.grad_output, a.output);
  if (a.kind == "sigmoid") return at::sigmoid_backward(a.grad_output, a.output);
  return std::nullopt;
}

Tensor backward(const BackwardArgs<false>& a) {
  return KnownKernel<ActivationProblem, run_backward, plain_backward>::call(a);
}

void backward_inplace(const BackwardArgs<true>& a) {
  auto p = checked(a);
  c10::OptionalDeviceGuard guard(a.output.device());
  at::assert_no_internal_overlap(a.grad_output);
  Tensor y = dense(a.output), dy = dense(a.grad_output, y);
  run_inplace(p, input_read(p, a.input, y), y, dy, a.policy);
  if (!dy.is_same(a.grad_output)) a.grad_output.copy_(dy);
}

Tensor forward_meta(const ForwardArgs<false>& a) {
  checked(a);
  return at::empty_like(a.input);
}

Tensor backward_meta(const BackwardArgs<false>& a) {
  return at::empty_like(like_gradient(checked(a), a));
}

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
