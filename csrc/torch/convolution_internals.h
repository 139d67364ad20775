// The private interfaces of PyTorch that convolutions need; see internals.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>

#include <optional>

namespace torch_cudnn_ext {

// ATen/native/ConvUtils.h: which kernel PyTorch runs for a convolution, and the layout of that
// kernel's results. The compiler's fake tensors ask the same two functions.
inline at::MemoryFormat layout_of_pytorch(const at::Tensor& input, const at::Tensor& weight,
                                          const std::optional<at::Tensor>& bias,
                                          c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                          c10::SymIntArrayRef dilation, bool transposed,
                                          c10::SymIntArrayRef output_padding,
                                          const c10::SymInt& groups,
                                          at::OptionalSymIntArrayRef bias_sizes) {
  if (input.dim() <= 3) return at::MemoryFormat::Contiguous;
  at::native::ConvBackend backend =
      at::native::select_conv_backend(input, weight, bias, stride, padding, dilation, transposed,
                                      output_padding, groups, bias_sizes);
  return at::native::_determine_backend_memory_format(input, weight, backend);
}

}  // namespace torch_cudnn_ext
