// PyTorch's sampler.
#include "backends/aten/plan.h"
#include "core/errata.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_grid_sample_plan(const GridSampleProblem& p, const Algorithm& algorithm,
                                   const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  Notes notes;
  // On CUDA dx is summed by atomic additions; dgrid is not.
  bool atomic = p.pass == Pass::bwd && p.input_gradient && device.is_cuda();
  if (atomic) notes.add(Note::nondeterministic);
  TensorSpec y = p.output(), dx{p.x.dtype, p.x.sizes, contiguous_strides(p.x.sizes)};
  return make_plan(algorithm, notes, [p, y, dx](Bindings& b) {
    auto mode = static_cast<int64_t>(p.mode), padding = static_cast<int64_t>(p.padding);
    bool plane = p.spatial_dims() == 2;
    if (p.pass == Pass::fwd) {
      auto sample = plane ? at::grid_sampler_2d : at::grid_sampler_3d;
      give(b, Role::y, y, sample(b[Role::x], b[Role::grid], mode, padding, p.align_corners));
      return;
    }
    auto sample_backward = plane ? at::grid_sampler_2d_backward : at::grid_sampler_3d_backward;
    auto [grad_input, grad_grid] =
        sample_backward(b[Role::dy], b[Role::x], b[Role::grid], mode, padding, p.align_corners,
                        {p.input_gradient, true});
    if (p.input_gradient) give(b, Role::dx, dx, grad_input);
    give(b, Role::dgrid, p.grid, grad_grid);
  });
}

const RegisterBackendOperator<GridSampleProblem> grid_sample_registered(
    "aten", candidates<GridSampleProblem>, build_grid_sample_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
