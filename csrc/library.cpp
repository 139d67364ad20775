#include "library.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

TORCH_LIBRARY(torch_cudnn_ext, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  const std::vector<at::Tag> random_tags = {at::Tag::pt2_compliant_tag,
                                            at::Tag::nondeterministic_seeded};

  // Softmax.
  m.def("softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> Tensor",
        tags);
  m.def("log_softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> Tensor",
        tags);
  m.def(
      "softmax_backward(Tensor grad_output, Tensor output, int dim, bool log, *, str? policy=None) "
      "-> Tensor",
      tags);

  // Spatial transformers. The input's gradient is an empty tensor where it is not wanted.
  m.def(
      "affine_grid(Tensor theta, SymInt[] size, bool align_corners, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "affine_grid_backward(Tensor grad_grid, SymInt[] size, bool align_corners, *, str? "
      "policy=None) -> Tensor",
      tags);
  m.def(
      "grid_sample(Tensor input, Tensor grid, int mode, int padding_mode, bool align_corners, *, "
      "str? policy=None) -> Tensor",
      tags);
  m.def(
      "grid_sample_backward(Tensor grad_output, Tensor input, Tensor grid, int mode, int "
      "padding_mode, bool align_corners, bool input_gradient, *, str? policy=None) -> (Tensor, "
      "Tensor)",
      tags);

  // Dropout with 0 < p < 1, which calls _dropout if a gradient is wanted. The reserve is the mask,
  // of a format and a size that only its algorithm knows; the writer says which that was
  // (core/writer.h).
  m.def("dropout(Tensor input, float p, *, str? policy=None) -> Tensor", random_tags);
  m.def(
      "_dropout(Tensor input, float p, *, str? policy=None) -> (Tensor output, Tensor reserve, "
      "Tensor writer)",
      random_tags);
  m.def(
      "dropout_backward(Tensor grad_output, Tensor reserve, Tensor? writer, float p, SymInt[] "
      "stride, *, str? policy=None) -> Tensor",
      tags);

  // The CTC loss of each sequence, and the gradient of their sum.
  m.def(
      "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int "
      "blank=0, bool zero_infinity=False, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
      "int blank=0, bool zero_infinity=False, *, str? policy=None) -> (Tensor, Tensor)",
      tags);

  // Local response and divisive normalisation.
  m.def(
      "local_response_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float "
      "k=1.0, str window='torch', *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "divisive_norm(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0, "
      "Tensor? means=None, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "_lrn(Tensor input, Tensor? means, str kind, int size, float alpha, float beta, float k, str "
      "window, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "_lrn_backward(Tensor grad_output, Tensor input, Tensor output, Tensor? means, str kind, int "
      "size, float alpha, float beta, float k, str window, *, str? policy=None) -> (Tensor "
      "grad_input, Tensor grad_means)",
      tags);

  // Activations: relu, clipped_relu (coefficient: ceiling), tanh, sigmoid, elu (alpha), swish
  // (beta). The gradient of relu, tanh and sigmoid is computed from the output; that of the others
  // from the input, where it is given. With a trailing underscore: in place.
  m.def("activation(Tensor input, str kind, float coefficient=1.0, *, str? policy=None) -> Tensor",
        tags);
  m.def("activation_(Tensor(a!) input, str kind, float coefficient=1.0, *, str? policy=None) -> ()",
        tags);
  m.def(
      "activation_backward(Tensor grad_output, Tensor? input, Tensor output, str kind, float "
      "coefficient=1.0, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "activation_backward_(Tensor(a!) grad_output, Tensor? input, Tensor output, str kind, float "
      "coefficient=1.0, *, str? policy=None) -> ()",
      tags);

  // activation(alpha * a b + beta * z + bias), batches broadcast as in torch.matmul. activation is
  // none or relu.
  m.def(
      "matmul(Tensor a, Tensor b, Tensor? bias=None, *, bool transpose_a=False, bool "
      "transpose_b=False, float alpha=1.0, float beta=0.0, Tensor? z=None, str activation='none', "
      "str? policy=None) -> Tensor",
      tags);

  // Reductions over the dimensions dim, or all: add, mul, min, max, absmax, mean, norm1, norm2,
  // mul_no_zeros. Indices, of min and max, count over the reduced dimensions.
  m.def(
      "reduce(Tensor input, str kind, int[1]? dim=None, bool keepdim=False, *, str? policy=None) "
      "-> Tensor",
      tags);
  m.def(
      "reduce_with_indices(Tensor input, str kind, int[1]? dim=None, bool keepdim=False, *, str? "
      "policy=None) -> (Tensor values, Tensor indices)",
      tags);
}

namespace torch_cudnn_ext {
namespace {

bool writes(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

// Calls the operator on tensors whose values are written out, and copies back what it wrote.
template <c10::DispatchKey key>
void call_on_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  size_t begin = stack->size() - arguments.size();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[begin + i];
    if (!value.isTensor()) continue;
    at::Tensor lazy = value.toTensor();
    if (!lazy.defined() || !lazy.key_set().has(key)) continue;
    at::Tensor plain = key == c10::DispatchKey::Negative ? lazy.resolve_neg() : lazy.resolve_conj();
    if (writes(arguments[i])) written.emplace_back(lazy, plain);
    value = plain;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
  for (auto& [lazy, plain] : written) lazy.copy_(plain);
}

// PyTorch's own fallback copies the first result into the argument that is written; none of these
// operators returns it.
template <c10::DispatchKey key>
void register_writers() {
  static torch::Library library(torch::Library::IMPL, "torch_cudnn_ext", key, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "torch_cudnn_ext") continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;  // implemented, but not defined
    const auto& arguments = op->schema().arguments();
    if (std::none_of(arguments.begin(), arguments.end(), writes)) continue;
    library.impl(name.name.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&call_on_plain<key>>());
  }
}

}  // namespace

void register_kernels_of_writers() {
  register_writers<c10::DispatchKey::Negative>();
  register_writers<c10::DispatchKey::Conjugate>();
}

}  // namespace torch_cudnn_ext
