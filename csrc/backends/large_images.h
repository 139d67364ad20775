// Problems whose sizes overflow numbers in cuDNN 9.19. Shared by backends that run the same
// kernels.
#pragma once

#include <algorithm>
#include <limits>

#include "problems/problem.h"

namespace torch_cudnn_ext {

inline bool exceeds_int(int64_t elements) { return elements > std::numeric_limits<int>::max(); }

// The filter gradient's engine 19 for half types steps over 8 images at a time. It accesses memory
// out of bounds if their elements exceed an int.
inline bool exceeds_int_in_8_images(const ConvolutionProblem& p) {
  int64_t batch = p.x.sizes[0];
  return p.pass == ConvolutionPass::bwd_filter && c10::isReducedFloatingType(p.x.dtype) &&
         batch > 8 && exceeds_int(8 * (std::max(p.x.numel(), p.y.numel()) / batch));
}

constexpr int64_t kMostBlocks = 65535;  // in the second and third dimension of a launch grid

constexpr const char* kExceedsGrid =
    "cuDNN 9.19's launch would have more than 65535 blocks in a dimension of its grid";

// All kernels over planes except the gradients of maxima have one block row an image if an image
// has this many results.
inline bool exceeds_grid(const PoolingProblem& p) {
  constexpr int64_t kResultsOfBlock = 256;
  TensorSpec y = p.y();
  bool concerned = p.pass == Pass::fwd || p.mode != PoolingMode::max;
  return concerned && p.spatial_dims() == 2 && p.x.strides == contiguous_strides(p.x.sizes) &&
         p.x.sizes[0] > kMostBlocks && y.sizes[2] * y.sizes[3] >= kResultsOfBlock;
}

}  // namespace torch_cudnn_ext
