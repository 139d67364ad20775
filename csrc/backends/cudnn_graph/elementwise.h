// What graphs of elementwise operations on dense tensors share. Knows nothing of the operator.
#pragma once

#include <numeric>
#include <string>

#include "core/algorithm.h"
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

// The erratum of an engine of cuDNN 9.19; empty if none is known.
inline std::string elementwise_erratum(const Algorithm& algorithm) {
  const std::string* kernel = algorithm.option("k24");
  bool affected = kernel != nullptr && *kernel == "35";
  return affected ? "kernel 35 of cuDNN 9.19 fails when it runs on some sizes" : "";
}

}  // namespace torch_cudnn_ext::graph
