// Where cuDNN 9.19 counts in 32 bits what does not fit. Shared by the graph API's backend and
// PyTorch's, whose own choice is the same engine.
#pragma once

#include <algorithm>
#include <limits>

#include "core/problem.h"

namespace torch_cudnn_ext {

inline bool exceeds_int(int64_t elements) { return elements > std::numeric_limits<int>::max(); }

// The filter gradient's engine 19, of half types, steps over 8 images at a time, into memory that
// is not there.
inline bool exceeds_int_in_8_images(const ConvolutionProblem& p) {
  int64_t batch = p.x.sizes[0];
  return p.pass == ConvolutionPass::bwd_filter && c10::isReducedFloatingType(p.x.dtype) &&
         batch > 8 && exceeds_int(8 * (std::max(p.x.numel(), p.y.numel()) / batch));
}

}  // namespace torch_cudnn_ext
