#include "core/tensors.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/DimVector.h>
#include <c10/util/Exception.h>

namespace torch_cudnn_ext {

at::Tensor copy_in_layout(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense()) return t.clone();
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), t.options());
  int64_t last = 0;  // element, counted from the first
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  at::Tensor memory = t.as_strided({last + 1}, {1}).clone();
  return memory.as_strided(t.sizes(), t.strides(), 0);
}

void check_reserve(const char* family, const Algorithm& algorithm, const at::Tensor& reserve,
                   int64_t bytes) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(reserve.nbytes()) == bytes, family, ": reserve has ",
                    reserve.nbytes(), " bytes, wanted ", bytes, ", as ", algorithm.text(),
                    " leaves");
}

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

}  // namespace torch_cudnn_ext
