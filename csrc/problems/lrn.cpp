#include <cmath>

#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

double LrnProblem::elements() const {
  return std::pow(static_cast<double>(size), end_dim() - first_dim());
}

void LrnProblem::validate() const {
  bool divisive = kind == LrnKind::divisive;
  check_sizes("lrn", "x", x, divisive ? 4 : 3, divisive ? 5 : 3);
  check_contiguous("lrn", "x", x);
  TORCH_CHECK_VALUE(size >= 1, "lrn: size is ", size, ", wanted at least 1");
  TORCH_CHECK_VALUE(!means || divisive, "lrn: means is true for kind=cross_channel, wanted false");
  check_alignment("lrn", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
