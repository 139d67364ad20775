// The schemas of convolution. Results are alpha * op + beta * z, or activation(op + z + bias). With
// flip_kernel the kernel is flipped: convolution in the mathematical sense. Operators with `out`
// compute out = alpha * op + beta * out; they are not differentiable, and tensors that require a
// gradient are an error.
#include "ops/schema.h"

namespace torch_cudnn_ext {
namespace {

void define_for(torch::Library& m, const std::string& dims) {
  std::string list = "SymInt[" + dims + "] ";
  std::string head = "d(Tensor input, Tensor weight, Tensor? bias=None, " + list + "stride=1, " +
                     list + "padding=0, ";
  std::string tail = ", *, str? policy=None) -> Tensor";
  define(m, {"conv" + dims + head + list + "dilation=1, SymInt groups=1" + tail,
             "conv_transpose" + dims + head + list + "output_padding=0, SymInt groups=1, " + list +
                 "dilation=1" + tail});
}

// An operator whose last tensor is z, and one whose last tensor is out.
void define_both(torch::Library& m, const std::string& name, const std::string& arguments) {
  std::string scale = "float alpha=1.0, float beta=0.0, bool flip_kernel=False, str? policy=None)";
  define(m, {name + "(" + arguments + ", *, Tensor? z=None, " + scale + " -> Tensor",
             name + "_out(" + arguments + ", *, Tensor(a!) out, " + scale + " -> ()"});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  for (const char* dims : {"1", "2", "3"}) define_for(m, dims);
  std::string geometry = ", SymInt[] stride, SymInt[] padding, SymInt[] dilation, ";
  define_both(m, "convolution",
              "Tensor input, Tensor weight, Tensor? bias" + geometry +
                  "bool transposed, SymInt[] output_padding, SymInt groups");
  define_both(
      m, "convolution_backward_input",
      "Tensor grad_output, Tensor weight, SymInt[] input_size" + geometry + "SymInt groups");
  define_both(
      m, "convolution_backward_weight",
      "Tensor grad_output, Tensor input, SymInt[] weight_size" + geometry + "SymInt groups");
  define(m, {"convolution_fused(Tensor input, Tensor weight, Tensor? bias" + geometry +
             "SymInt groups, str activation, *, Tensor? z=None, bool flip_kernel=False, "
             "str? policy=None) -> Tensor"});
}

}  // namespace torch_cudnn_ext
