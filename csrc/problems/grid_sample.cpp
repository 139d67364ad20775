#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

TensorSpec GridSampleProblem::output() const {
  TensorSpec y{x.dtype, {x.sizes[0], x.sizes[1]}, {}};
  for (int i = 1; i <= spatial_dims(); ++i) y.sizes.push_back(grid.sizes[i]);
  y.strides = contiguous_strides(y.sizes);
  return y;
}

void GridSampleProblem::canonicalise() {
  canonicalise_strides({&x});
  input_gradient = input_gradient || pass == Pass::fwd;
}

void GridSampleProblem::validate() const {
  check_sizes("grid_sample", "x", x, 4, 5);
  int rank = x.sizes.size();
  check_sizes("grid_sample", "grid", grid, rank, rank);
  TORCH_CHECK_VALUE(grid.sizes[0] == x.sizes[0] && grid.sizes[rank - 1] == rank - 2,
                    "grid_sample: x and grid do not belong together, wanted [N,C,*space] and "
                    "[N,*output space,",
                    rank - 2, "]");
  check_same_dtype("grid_sample", "grid", grid, "x", x);
  check_contiguous("grid_sample", "grid", grid);
  TORCH_CHECK_VALUE(mode != SampleMode::bicubic || rank == 4,
                    "grid_sample: mode is bicubic, wanted bilinear or nearest in 3-D");
  check_alignment("grid_sample", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
