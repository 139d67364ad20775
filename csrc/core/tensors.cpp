#include "core/tensors.h"

#include <c10/util/DimVector.h>

namespace torch_cudnn_ext {

at::Tensor with_unit_dim(const at::Tensor& t, int dim) {
  c10::DimVector sizes(t.sizes()), strides(t.strides());
  int64_t stride = dim < t.dim() ? sizes[dim] * strides[dim] : 1;
  sizes.insert(sizes.begin() + dim, 1);
  strides.insert(strides.begin() + dim, stride);
  return strided_view(t, sizes, strides);
}

at::Tensor without_unit_dim(const at::Tensor& t, int dim) {
  c10::DimVector sizes(t.sizes()), strides(t.strides());
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return strided_view(t, sizes, strides);
}

at::Tensor crossing(const ConvolutionProblem& p, const at::Tensor& w) {
  if (p.mode == ConvolutionMode::cross) return w;
  Dims axes;
  for (int i = 2; i < p.w.sizes.size(); ++i) axes.push_back(i);
  return w.flip(axes);
}

}  // namespace torch_cudnn_ext
