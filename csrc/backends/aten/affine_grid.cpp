// PyTorch's grids under affine maps.
#include <algorithm>

#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_affine_grid_plan(const AffineGridProblem& p, const Algorithm& algorithm,
                                   const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  Dims size{p.grid.sizes[0], 1};
  for (int i = 1; i + 1 < p.grid.sizes.size(); ++i) size.push_back(p.grid.sizes[i]);
  // PyTorch 2.11 does not support f16 and bf16 for a dimension of one point.
  bool one_point = std::find(size.begin() + 2, size.end(), 1) != size.end();
  at::ScalarType inside = one_point ? compute_dtype(p.theta.dtype) : p.theta.dtype;
  Notes notes;
  if (uses_tf32(at::Float32Op::MATMUL, p.theta.dtype, device)) notes.add(Note::tf32);
  return make_plan(algorithm, notes, [p, size, inside](Bindings& b) {
    if (p.pass == Pass::fwd) {
      at::Tensor grid = at::affine_grid_generator(b[Role::x].to(inside), size, p.align_corners);
      give(b, Role::grid, p.grid, grid.to(p.grid.dtype));
    } else {
      at::Tensor dgrid = b[Role::dgrid].to(inside);
      at::Tensor dx = at::affine_grid_generator_backward(dgrid, size, p.align_corners);
      give(b, Role::dx, p.theta, dx.to(p.theta.dtype));
    }
  });
}

const RegisterBackendOperator<AffineGridProblem> affine_grid_registered(
    "aten", candidates<AffineGridProblem>, build_affine_grid_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
