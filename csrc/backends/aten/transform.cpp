// PyTorch's copy, which converts layouts and types.
#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_transform_plan(const TransformProblem& p, const Algorithm& algorithm,
                                 const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    output_tensor(b, Role::y, p.y, b[Role::x]).copy_(b[Role::x]);
  });
}

const RegisterBackendOperator<TransformProblem> transform_registered("aten",
                                                                     candidates<TransformProblem>,
                                                                     build_transform_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
