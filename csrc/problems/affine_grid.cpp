#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void AffineGridProblem::validate() const {
  check_sizes("affine_grid", "theta", theta, 3, 3);
  check_sizes("affine_grid", "grid", grid, 4, 5);
  int64_t dims = grid.sizes.size() - 2;
  TORCH_CHECK_VALUE(
      theta.sizes[1] == dims && theta.sizes[2] == dims + 1 && theta.sizes[0] == grid.sizes[0] &&
          grid.sizes[grid.sizes.size() - 1] == dims,
      "affine_grid: theta and grid do not belong together, wanted [N,d,d+1] and [N,*space,d]");
  check_same_dtype("affine_grid", "grid", grid, "theta", theta);
  check_contiguous("affine_grid", "theta", theta);
  check_contiguous("affine_grid", "grid", grid);
  check_alignment("affine_grid", alignment, theta.dtype);
}

}  // namespace torch_cudnn_ext
