#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void DropoutProblem::validate() const {
  check_sizes("dropout", "x", x, 1, 1);
  check_contiguous("dropout", "x", x);
  TORCH_CHECK_VALUE(p > 0 && p < 1, "dropout: p is ", p, ", wanted more than 0 and less than 1");
}

}  // namespace torch_cudnn_ext
