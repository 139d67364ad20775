#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void SoftmaxProblem::validate() const {
  check_sizes("softmax", "x", x, 3, 3);
  check_contiguous("softmax", "x [outer, n, inner]", x);
  check_alignment("softmax", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
