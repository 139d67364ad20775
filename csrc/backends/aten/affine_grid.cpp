// PyTorch's own grids under affine maps.
#include <algorithm>

#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_plan(const AffineGridProblem& p, const Algorithm& algorithm,
                       const Device& device) {
  if (auto refused = refuse(algorithm, device)) return *refused;
  Dims size{p.grid.sizes[0], 1};
  for (int i = 1; i + 1 < p.grid.sizes.size(); ++i) size.push_back(p.grid.sizes[i]);
  bool one_point = std::find(size.begin() + 2, size.end(), 1) != size.end();
  if (!device.is_cuda() && one_point && c10::isReducedFloatingType(p.theta.dtype)) {
    return Unsupported{
        "PyTorch 2.11 has no grid of one point a dimension in f16 and bf16 on the CPU"};
  }
  return make_plan(algorithm, {}, [p, size](Bindings& b) {
    if (p.pass == AffineGridPass::fwd) {
      give(b, Role::grid, p.grid, at::affine_grid_generator(b[Role::x], size, p.align_corners));
    } else {
      give(b, Role::dx, p.theta,
           at::affine_grid_generator_backward(b[Role::dgrid], size, p.align_corners));
    }
  });
}

const RegisterBackendOperator<AffineGridProblem> registered("aten", candidates<AffineGridProblem>,
                                                            build_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
