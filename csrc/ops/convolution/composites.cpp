// conv1d and its like, which are composites of `convolution`.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

#include "ops/convolution/convolution.h"
#include "ops/typed_call.h"

namespace torch_cudnn_ext::convolution {
namespace {

// conv1d and its like, with PyTorch's arguments, batched or not, as a call of `convolution`.
Tensor convolution_nd(int spatial, bool transposed, const Tensor& input, const Tensor& weight,
                      const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                      SymIntArrayRef output_padding, SymIntArrayRef dilation, const SymInt& groups,
                      OptionalPolicy policy) {
  auto op_name = [&] { return c10::str("conv", transposed ? "_transpose" : "", spatial, "d"); };
  TORCH_CHECK_VALUE(weight.dim() == spatial + 2, "torch_cudnn_ext::", op_name(),
                    ": weight has sizes ", weight.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions");
  bool batched = input.dim() == spatial + 2;
  TORCH_CHECK_VALUE(batched || input.dim() == spatial + 1, "torch_cudnn_ext::", op_name(),
                    ": input has sizes ", input.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions, or ", spatial + 1, " without a batch");
  Tensor result = call_op(
      ForwardArgs{{batched ? input : input.unsqueeze(0), weight, bias, PerDimension(stride, weight),
                   PerDimension(padding, weight), PerDimension(dilation, weight), transposed,
                   PerDimension(output_padding, weight), groups, kNone, 1, 0, false, policy}});
  return batched ? result : result.squeeze(0);
}

template <int spatial>
Tensor conv(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
            SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
            OptionalPolicy policy) {
  static const std::vector<SymInt> none(spatial, 0);
  return convolution_nd(spatial, false, input, weight, bias, stride, padding, none, dilation,
                        groups, policy);
}

template <int spatial>
Tensor conv_transpose(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                      SymInt groups, SymIntArrayRef dilation, OptionalPolicy policy) {
  return convolution_nd(spatial, true, input, weight, bias, stride, padding, output_padding,
                        dilation, groups, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  implement(m, "conv1d", TORCH_FN(conv<1>));
  implement(m, "conv2d", TORCH_FN(conv<2>));
  implement(m, "conv3d", TORCH_FN(conv<3>));
  implement(m, "conv_transpose1d", TORCH_FN(conv_transpose<1>));
  implement(m, "conv_transpose2d", TORCH_FN(conv_transpose<2>));
  implement(m, "conv_transpose3d", TORCH_FN(conv_transpose<3>));
}

}  // namespace torch_cudnn_ext::convolution
