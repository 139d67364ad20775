#include "problems/checks.h"
#include "problems/folded_dims.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

Dims ReduceProblem::reduced_dims() const {
  Dims dims;
  for (int i = 0; i < x.sizes.size(); ++i) {
    if (reduces(i)) dims.push_back(i);
  }
  return dims;
}

Dims ReduceProblem::rows_order() const {
  Dims order;
  for (int i = 0; i < x.sizes.size(); ++i) {
    if (!reduces(i)) order.push_back(i);
  }
  for (int64_t dim : reduced_dims()) order.push_back(dim);
  return order;
}

int64_t ReduceProblem::reduced_count() const {
  int64_t count = 1;
  for (int64_t dim : reduced_dims()) count *= x.sizes[static_cast<int>(dim)];
  return count;
}

TensorSpec ReduceProblem::output() const {
  TensorSpec y = x;
  for (int64_t dim : reduced_dims()) y.sizes[static_cast<int>(dim)] = 1;
  y.strides = contiguous_strides(y.sizes);
  return y;
}

// A problem read from a text may not be folded.
void ReduceProblem::canonicalise() {
  FoldedDims folded = fold_dims(x.sizes, [&](int i) { return reduces(i); });
  bool contiguous = x.strides == contiguous_strides(x.sizes);
  x.sizes = folded.sizes;
  if (contiguous) x.strides = contiguous_strides(x.sizes);
  first_reduced = folded.first_reduced;
}

void ReduceProblem::validate() const {
  check_sizes("reduce", "x", x, 1, kMaxDims);
  check_contiguous("reduce", "x", x);
  TORCH_CHECK_VALUE(!indices || kind == ReduceKind::min || kind == ReduceKind::max,
                    "reduce: indices is true, wanted false unless kind is min or max");
  check_alignment("reduce", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
