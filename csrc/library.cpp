// Every operator's schema. PyTorch's own positional arguments first, then ours by keyword.
#include <torch/library.h>

TORCH_LIBRARY(torch_cudnn_ext, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};

  m.def(
      "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] "
      "padding=0, "
      "SymInt[1] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] "
      "padding=0, "
      "SymInt[2] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
      tags);
  m.def(
      "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, SymInt[3] "
      "padding=0, "
      "SymInt[3] dilation=1, SymInt groups=1, *, str? policy=None) -> Tensor",
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
}
