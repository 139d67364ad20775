// Grids under affine maps on the CPU in two ways, in float32 at least.
//   dense      the points of the regular grid, [P, d + 1], times the transposed maps
//   separable  an outer sum of d rows, since a coordinate of the regular grid varies along one
//              dimension only; the gradient is d sums over all other dimensions
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// The coordinates along a dimension of n points.
Tensor axis(int64_t n, bool align_corners, const at::TensorOptions& options) {
  if (n == 1) return at::zeros({1}, options);
  double last = align_corners ? 1.0 : static_cast<double>(n - 1) / static_cast<double>(n);
  return at::linspace(-last, last, n, options);
}

// Coordinate i (0 is x, the last spatial dimension), to broadcast against [N, *space].
Tensor affine_grid_coordinate(const AffineGridProblem& p, int i, const at::TensorOptions& options) {
  int dim = p.grid.sizes.size() - 2 - i;
  Dims sizes(p.grid.sizes.size() - 1, 1);
  sizes[dim] = p.grid.sizes[dim];
  return axis(p.grid.sizes[dim], p.align_corners, options).view(sizes);
}

// [P, d + 1]: x, y, (z,) and 1 for each point.
Tensor regular_grid(const AffineGridProblem& p, const at::TensorOptions& options) {
  int dims = p.grid.sizes.size() - 2;
  Dims space{1};
  for (int i = 1; i <= dims; ++i) space.push_back(p.grid.sizes[i]);
  std::vector<Tensor> columns;
  for (int i = 0; i < dims; ++i)
    columns.push_back(affine_grid_coordinate(p, i, options).expand(space));
  columns.push_back(at::ones(space, options));
  return at::stack(columns, -1).view({-1, dims + 1});
}

Tensor separable_forward(const AffineGridProblem& p, const Tensor& theta) {
  int dims = p.grid.sizes.size() - 2;
  Dims column(dims + 1, 1);
  column[0] = p.theta.sizes[0];
  std::vector<Tensor> points;
  for (int64_t row = 0; row < dims; ++row) {
    Tensor sum = theta.select(1, row).select(1, dims).reshape(column);
    for (int i = dims - 1; i >= 0; --i) {
      sum = sum + theta.select(1, row).select(1, i).reshape(column) *
                      affine_grid_coordinate(p, i, theta.options());
    }
    points.push_back(sum);
  }
  return at::stack(points, -1);
}

Tensor separable_backward(const AffineGridProblem& p, const Tensor& dgrid) {
  int dims = p.grid.sizes.size() - 2;
  std::vector<Tensor> columns;
  std::vector<int64_t> space;
  for (int dim = 1; dim <= dims; ++dim) space.push_back(dim);
  for (int i = 0; i < dims; ++i) {
    std::vector<int64_t> others;
    for (int64_t dim : space) {
      if (dim != dims - i) others.push_back(dim);
    }
    Tensor line = dgrid.sum(others);  // [N, n, d]
    Tensor along = affine_grid_coordinate(p, i, dgrid.options()).view({1, -1, 1});
    columns.push_back((line * along).sum(1));
  }
  columns.push_back(dgrid.sum(space));
  return at::stack(columns, -1);
}

constexpr const char* kAffineGridNames[] = {"dense", "separable"};

BuildResult build_affine_grid_plan(const AffineGridProblem& p, const Algorithm& algorithm) {
  auto compute = compute_dtype(p.theta.dtype);
  bool dense = algorithm.name == "dense";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    if (p.pass == Pass::fwd) {
      Tensor theta = b[Role::x].to(compute);
      Tensor grid = dense ? at::matmul(regular_grid(p, theta.options()), theta.transpose(1, 2))
                                .view(p.grid.sizes)
                          : separable_forward(p, theta);
      give(b, Role::grid, p.grid, grid.to(p.grid.dtype));
      return;
    }
    Tensor dgrid = b[Role::dgrid].to(compute);
    Tensor dtheta =
        dense ? at::matmul(dgrid.flatten(1, -2).transpose(1, 2), regular_grid(p, dgrid.options()))
              : separable_backward(p, dgrid);
    give(b, Role::dx, p.theta, dtheta.to(p.theta.dtype));
  });
}

const auto affine_grid_registered =
    cpu::register_named<AffineGridProblem, kAffineGridNames, build_affine_grid_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
