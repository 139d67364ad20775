// Every operator's schema, and what follows from the schemas alone. PyTorch's own positional
// arguments first, then ours by keyword.
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

  m.def(
      "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, "
      "SymInt[1] padding=0, SymInt[1] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, "
      "SymInt[3] padding=0, SymInt[3] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, "
      "SymInt[1] padding=0, SymInt[1] output_padding=0, SymInt groups=1, SymInt[1] dilation=1, *, "
      "str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1, *, "
      "str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv_transpose3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, "
      "SymInt[3] padding=0, SymInt[3] output_padding=0, SymInt groups=1, SymInt[3] dilation=1, *, "
      "str? policy=None) -> Tensor",
      tags);

  // alpha * op + beta * z. With flip_kernel the kernel is flipped: convolution in the mathematical
  // sense.
  m.def(
      "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
      "SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, *, Tensor? "
      "z=None, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> Tensor",
      tags);
  // relu(op + z + bias)
  m.def(
      "convolution_relu(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] "
      "padding, SymInt[] dilation, SymInt groups, *, Tensor? z=None, bool flip_kernel=False, str? "
      "policy=None) -> Tensor",
      tags);
  m.def(
      "convolution_backward_input(Tensor grad_output, Tensor weight, SymInt[] input_size, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, Tensor? z=None, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> Tensor",
      tags);
  m.def(
      "convolution_backward_weight(Tensor grad_output, Tensor input, SymInt[] weight_size, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, Tensor? z=None, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> Tensor",
      tags);

  // out = alpha * op + beta * out. Not differentiable: they refuse tensors that require a gradient.
  m.def(
      "convolution_out(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] "
      "padding, "
      "SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, *, Tensor(a!) "
      "out, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> ()",
      tags);
  m.def(
      "convolution_backward_input_out(Tensor grad_output, Tensor weight, SymInt[] input_size, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, Tensor(a!) out, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> ()",
      tags);
  m.def(
      "convolution_backward_weight_out(Tensor grad_output, Tensor input, SymInt[] weight_size, "
      "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, *, Tensor(a!) out, "
      "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None) -> ()",
      tags);

  // Pooling over the one to three last dimensions: as many as kernel_size has entries. An empty
  // stride is kernel_size. With adaptive, kernel_size holds the output's sizes, and padding and
  // stride do not count. A divisor of 1 makes sums.
  m.def(
      "max_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
      "dilation, bool ceil_mode=False, bool adaptive=False, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "avg_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool "
      "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None, bool "
      "adaptive=False, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "avg_pool_backward(Tensor grad_output, SymInt[] input_size, bool channels_last, SymInt[] "
      "kernel_size, SymInt[] stride, SymInt[] padding, bool ceil_mode=False, bool "
      "count_include_pad=True, int? divisor_override=None, bool adaptive=False, *, str? "
      "policy=None) -> Tensor",
      tags);
  // A reserve has a format and a size that only its algorithm knows. The writer says which that was
  // (core/writer.h). channels_last is the layout that the forward ran in.
  m.def(
      "_max_pool_train(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
      "SymInt[] dilation, bool ceil_mode, bool adaptive, *, str? policy=None) -> (Tensor output, "
      "Tensor reserve, Tensor writer)",
      tags);
  m.def(
      "_max_pool_backward(Tensor grad_output, Tensor input, Tensor output, Tensor reserve, Tensor? "
      "writer, bool channels_last, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
      "SymInt[] dilation, bool ceil_mode, bool adaptive, *, str? policy=None) -> Tensor",
      tags);

  // Batch normalisation. `batch_norm` and `batch_norm_train` are made of the inner operators; a
  // reserve is what PyTorch's own forward leaves for its backward. An argument named `mode` would
  // clash with one of PyTorch's, where it makes an operator that mutates functional.
  m.def(
      "batch_norm(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
      "weight=None, Tensor? bias=None, bool training=False, float momentum=0.1, float eps=1e-05, "
      "*, str mode=\"spatial\", Tensor? z=None, str activation=\"none\", str? policy=None) -> "
      "Tensor",
      tags);
  m.def(
      "batch_norm_train(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
      "weight=None, Tensor? bias=None, float momentum=0.1, float eps=1e-05, *, str "
      "mode=\"spatial\", Tensor? z=None, str activation=\"none\", str? policy=None) -> (Tensor "
      "output, Tensor mean, Tensor invstd)",
      tags);
  // Of training, the statistics that it gave; else the running ones, so the variance.
  m.def(
      "batch_norm_backward(Tensor grad_output, Tensor input, Tensor? weight, Tensor mean, Tensor "
      "invstd_or_var, bool training, float eps, *, str mode=\"spatial\", Tensor? reserve=None, "
      "str? policy=None) -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
      tags);
  m.def(
      "_batch_norm_train(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
      "weight, Tensor? bias, float momentum, float eps, str norm_mode, Tensor? z, str activation, "
      "str? "
      "policy) -> (Tensor output, Tensor mean, Tensor invstd, Tensor reserve)",
      tags);
  // The same without running statistics, so that nothing is changed, which vmap would refuse.
  m.def(
      "_batch_norm_train_alone(Tensor input, Tensor? weight, Tensor? bias, float eps, str "
      "norm_mode, Tensor? z, str activation, str? policy) -> (Tensor output, Tensor mean, Tensor "
      "invstd, Tensor reserve)",
      tags);
  m.def(
      "_batch_norm_infer(Tensor input, Tensor running_mean, Tensor running_var, Tensor? weight, "
      "Tensor? bias, float eps, str norm_mode, Tensor? z, str activation, str? policy) -> Tensor",
      tags);

  // Recurrent networks. Arguments in the order of torch._VF; without hx states begin at zero.
  // The inner operators also return and take the reserve and its writer; cells are cuDNN's numbers.
  m.def(
      "lstm(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float "
      "dropout, bool train, bool bidirectional, bool batch_first, *, bool skip_input=False, bool "
      "single_bias=False, str? policy=None) -> (Tensor, Tensor, Tensor)",
      tags);
  m.def(
      "lstm_packed(Tensor data, int[] batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases, "
      "int num_layers, float dropout, bool train, bool bidirectional, *, bool skip_input=False, "
      "bool single_bias=False, str? policy=None) -> (Tensor, Tensor, Tensor)",
      tags);
  for (const char* name : {"gru", "rnn_tanh", "rnn_relu"}) {
    m.def(c10::str(name,
                   "(Tensor input, Tensor? hx, Tensor[] params, bool has_biases, int num_layers, "
                   "float dropout, bool train, bool bidirectional, bool batch_first, *, bool "
                   "skip_input=False, bool single_bias=False, str? policy=None) -> (Tensor, "
                   "Tensor)")
              .c_str(),
          tags);
    m.def(c10::str(name,
                   "_packed(Tensor data, int[] batch_sizes, Tensor? hx, Tensor[] params, bool "
                   "has_biases, int num_layers, float dropout, bool train, bool bidirectional, *, "
                   "bool skip_input=False, bool single_bias=False, str? policy=None) -> (Tensor, "
                   "Tensor)")
              .c_str(),
          tags);
  }
  m.def(
      "_rnn(Tensor input, int[] batch_sizes, Tensor? hx, Tensor? cx, Tensor[] params, int cell, "
      "int bias, int num_layers, float dropout, bool bidirectional, bool skip_input, bool "
      "for_backward, *, str? policy=None) -> (Tensor output, Tensor hy, Tensor cy, Tensor reserve, "
      "Tensor writer)",
      random_tags);
  m.def(
      "_rnn_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, int[] "
      "batch_sizes, Tensor? hx, Tensor? cx, Tensor[] params, Tensor output, Tensor reserve, "
      "Tensor? "
      "writer, int cell, int bias, int num_layers, float dropout, bool bidirectional, bool "
      "skip_input, *, str? policy=None) -> (Tensor, Tensor, Tensor, Tensor)",
      tags);

  // Layer, RMS, instance and group norm: views of one operator, which is left whole in graphs. A
  // result of the inner operators that there is not is empty: vmap takes no lists of tensors.
  m.def(
      "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
      "float eps=1e-05, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, *, "
      "str? policy=None) -> Tensor",
      tags);
  m.def(
      "instance_norm(Tensor input, Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None, "
      "Tensor? weight=None, Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, "
      "float eps=1e-05, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float "
      "eps=1e-05, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "_normalize(Tensor input, Tensor? weight, Tensor? bias, str kind, int groups, float eps, "
      "bool statistics, *, str? policy=None) -> (Tensor output, Tensor mean, Tensor invstd)",
      tags);
  m.def(
      "_normalize_backward(Tensor grad_output, Tensor input, Tensor? weight, Tensor mean, Tensor "
      "invstd, str kind, int groups, bool has_bias, float eps, *, str? policy=None) -> (Tensor "
      "grad_input, Tensor grad_weight, Tensor grad_bias)",
      tags);
}

namespace torch_cudnn_ext {
namespace {

bool writes(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

// Calls the operator on tensors that hold their values as they are, and copies what it wrote back.
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

// For all operators that write into an argument. PyTorch's fallback for tensors that are negated or
// conjugated lazily copies the first result into that argument; none of these returns it.
template <c10::DispatchKey key>
void register_writing(torch::Library& m) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "torch_cudnn_ext") continue;
    auto op = dispatcher.findSchema(name);  // none of what is implemented and not yet defined
    if (!op) continue;
    const auto& arguments = op->schema().arguments();
    if (std::none_of(arguments.begin(), arguments.end(), writes)) continue;
    m.impl(name.name.c_str(), torch::CppFunction::makeFromBoxedFunction<&call_on_plain<key>>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Negative, m) {
  register_writing<c10::DispatchKey::Negative>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Conjugate, m) {
  register_writing<c10::DispatchKey::Conjugate>(m);
}

}  // namespace torch_cudnn_ext
