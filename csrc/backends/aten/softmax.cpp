// PyTorch's own softmax.
#include "backends/aten/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext::aten {
namespace {

BuildResult build_plan(const SoftmaxProblem& p, const Algorithm& algorithm, const Device& device) {
  if (auto refused = refuse(algorithm, device)) return *refused;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    // Rows in memory order have a kernel of their own, which is chosen by the last dimension.
    bool last = p.x.sizes[2] == 1;
    auto rows = [&](Role role) { return last ? without_unit_dim(b[role], 2) : b[role]; };
    auto result = [&](const Tensor& t) { return last ? with_unit_dim(t, 2) : t; };
    if (p.pass == Pass::fwd) {
      Tensor x = rows(Role::x);
      give(b, Role::y, p.x,
           result(p.log ? at::_log_softmax(x, 1, false) : at::_softmax(x, 1, false)));
      return;
    }
    Tensor dy = rows(Role::dy), y = rows(Role::y);
    give(b, Role::dx, p.x,
         result(p.log ? at::_log_softmax_backward_data(dy, y, 1, p.x.dtype)
                      : at::_softmax_backward_data(dy, y, 1, p.x.dtype)));
  });
}

const RegisterBackendOperator<SoftmaxProblem> registered("aten", candidates<SoftmaxProblem>,
                                                         build_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
