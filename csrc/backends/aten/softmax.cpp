// PyTorch's softmax.
#include "backends/aten/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext::aten {
namespace {

const Algorithm kTransposed{"aten", "transposed", {}};

// PyTorch has a special kernel for sums over the last dimension. `transposed` makes copies for it
// if the sum runs over another one.
BuildResult build_softmax_plan(const SoftmaxProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  bool lies_in_rows = p.x.sizes[2] == 1;
  bool transposed = algorithm == kTransposed;
  if (transposed && lies_in_rows)
    return Unsupported{"the sum runs over the last dimension already"};
  if (transposed && device.is_target()) return needs_device();
  if (auto reason = transposed ? std::nullopt : why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p, lies_in_rows, transposed](Bindings& b) {
    auto rows = [&](Role role) {
      if (transposed) return b[role].transpose(1, 2).contiguous();
      return lies_in_rows ? without_unit_dim(b[role], 2) : b[role];
    };
    auto result = [&](const Tensor& t) {
      if (transposed) return t.transpose(1, 2);
      return lies_in_rows ? with_unit_dim(t, 2) : t;
    };
    int64_t dim = transposed ? 2 : 1;
    if (p.pass == Pass::fwd) {
      Tensor x = rows(Role::x);
      give(b, Role::y, p.x,
           result(p.log ? at::_log_softmax(x, dim, false) : at::_softmax(x, dim, false)));
      return;
    }
    Tensor dy = rows(Role::dy), y = rows(Role::y);
    give(b, Role::dx, p.x,
         result(p.log ? at::_log_softmax_backward_data(dy, y, dim, p.x.dtype)
                      : at::_softmax_backward_data(dy, y, dim, p.x.dtype)));
  });
}

std::vector<Candidate> all(const SoftmaxProblem& p, const Device& device) {
  std::vector<Candidate> list = candidates(p, device);
  if (p.x.sizes[2] > 1) list.push_back({kTransposed, "PyTorch"});
  return list;
}

const RegisterBackendOperator<SoftmaxProblem> softmax_registered("aten", all, build_softmax_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
