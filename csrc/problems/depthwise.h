// Which convolutions have one filter a channel.
#pragma once

#include "problems/convolution.h"

namespace torch_cudnn_ext {

// One channel a group, and one or more filters for it.
inline bool is_depthwise(const ConvolutionProblem& p) { return p.groups > 1 && p.w.sizes[1] == 1; }

// Those of common networks: over planes, with small windows, one filter a channel and no epilogue.
inline bool is_common_depthwise(const ConvolutionProblem& p) {
  const auto& window = p.w.sizes;
  return is_depthwise(p) && p.spatial_dims() == 2 && p.groups == window[0] &&
         p.dilation == Dims(2, 1) && window[2] <= 5 && window[3] <= 5 &&
         window[2] * window[3] > 1 && !p.has_epilogue();
}

}  // namespace torch_cudnn_ext
