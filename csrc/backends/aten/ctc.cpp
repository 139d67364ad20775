// PyTorch's CTC loss.
#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

at::IntArrayRef lengths(const Tensor& t) {
  return {t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel())};
}

BuildResult build_ctc_plan(const CtcProblem& p, const Algorithm& algorithm, const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  Notes notes;
  if (p.gradient && device.is_cuda()) notes.add(Note::nondeterministic);  // atomic additions
  return make_plan(algorithm, notes, [p](Bindings& b) {
    const Tensor &x = b[Role::x], &targets = b[Role::targets];
    at::IntArrayRef inputs = lengths(b[Role::input_lengths]);
    at::IntArrayRef labels = lengths(b[Role::target_lengths]);
    auto [losses, log_alpha] = at::_ctc_loss(x, targets, inputs, labels, p.blank, false);
    if (p.gradient) {
      give(b, Role::dx, p.log_probs,
           at::_ctc_loss_backward(at::ones_like(losses), x, targets, inputs, labels, losses,
                                  log_alpha, p.blank, false));
    }
    give(b, Role::y, {p.log_probs.dtype, {p.log_probs.sizes[1]}, {1}}, losses);
  });
}

const RegisterBackendOperator<CtcProblem> ctc_registered("aten", candidates<CtcProblem>,
                                                         build_ctc_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
