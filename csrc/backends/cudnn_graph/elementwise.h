// What graphs of elementwise operations on dense tensors share. Knows nothing of the operator.
#pragma once

#include <numeric>

#include "core/base/tensor_spec.h"

namespace torch_cudnn_ext::graph {

// Engines take a matrix in rows. The number of columns is the largest power of two that divides the
// number of elements, up to a bound that leaves rows to distribute.
inline TensorSpec as_matrix(c10::ScalarType dtype, int64_t elements) {
  constexpr int64_t kColumns = 4096, kFewest = 8;
  int64_t columns = std::gcd(elements, kColumns);
  if (columns < kFewest) columns = elements;
  Dims sizes{1, elements / columns, columns};
  return {dtype, sizes, contiguous_strides(sizes)};
}

}  // namespace torch_cudnn_ext::graph
