// How problems look to cuDNN, in both of its APIs.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <iterator>

#include "problems/problem.h"

namespace torch_cudnn_ext {

inline TensorSpec lift_to_plane(const TensorSpec& line) {
  TensorSpec out{line.dtype, {line.sizes[0], line.sizes[1], 1, line.sizes[2]}, {}};
  if (line.strides == contiguous_strides(line.sizes)) {
    out.strides = contiguous_strides(out.sizes);
  } else if (line.strides == channels_last_strides(line.sizes)) {
    out.strides = channels_last_strides(out.sizes);
  } else {
    out.strides = {line.strides[0], line.strides[1], line.sizes[2] * line.strides[2],
                   line.strides[2]};
  }
  return out;
}

// cuDNN's classic API and its fast engines take two or three spatial dimensions. A convolution over
// one dimension equals one over a plane of height 1.
inline ConvolutionProblem lift_to_plane(const ConvolutionProblem& problem) {
  if (problem.spatial_dims() != 1) return problem;
  ConvolutionProblem out = problem;
  for (auto spec : {&ConvolutionProblem::x, &ConvolutionProblem::w, &ConvolutionProblem::y}) {
    out.*spec = lift_to_plane(problem.*spec);
  }
  out.padding = {0, problem.padding[0]};
  out.stride = {1, problem.stride[0]};
  out.dilation = {1, problem.dilation[0]};
  return out;
}

// Whether a maximum keeps the places in its windows for its gradient, which the graph API then
// reads over channels-last tensors; without them cuDNN 9.19 crashes. Over contiguous tensors it
// reads x and y. Single pixels are both.
inline bool keeps_indices(const PoolingProblem& p) { return p.train && p.x.strides[1] == 1; }

inline cudnnReduceTensorOp_t cudnn_reduction(ReduceKind kind) {
  // In the order of ReduceKind.
  constexpr cudnnReduceTensorOp_t kOps[] = {
      CUDNN_REDUCE_TENSOR_ADD,   CUDNN_REDUCE_TENSOR_MUL,   CUDNN_REDUCE_TENSOR_MIN,
      CUDNN_REDUCE_TENSOR_MAX,   CUDNN_REDUCE_TENSOR_AMAX,  CUDNN_REDUCE_TENSOR_AVG,
      CUDNN_REDUCE_TENSOR_NORM1, CUDNN_REDUCE_TENSOR_NORM2, CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS};
  static_assert(std::size(kOps) == static_cast<size_t>(ReduceKind::mul_no_zeros) + 1);
  return kOps[static_cast<size_t>(kind)];
}

}  // namespace torch_cudnn_ext
