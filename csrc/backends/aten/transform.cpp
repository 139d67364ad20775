// PyTorch's copy, which converts layouts and types.
#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_plan(const TransformProblem& p, const Algorithm& algorithm,
                       const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    output_tensor(b, Role::y, p.y, b[Role::x]).copy_(b[Role::x]);
  });
}

const RegisterBackendOperator<TransformProblem> registered("aten", candidates<TransformProblem>,
                                                           build_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
