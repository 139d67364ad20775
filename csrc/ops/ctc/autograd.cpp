// Gradients of the CTC loss, and autocast.
#include "ops/autograd.h"

#include <torch/library.h>

#include "ops/ctc/ctc.h"

namespace torch_cudnn_ext::ctc {
namespace {

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::ctc_loss"); }
const auto& with_gradient_op() {
  return op_of<forward_with_gradient>("torch_cudnn_ext::_ctc_loss");
}

// The forward has computed the gradient as its second result, which has no derivative; PyTorch's
// has none either.
struct CtcGradient {
  static constexpr const char* kName = "TorchCudnnExtCtcLossBackward";
  static constexpr size_t kInputs = 1;

  template <class F>
  void attributes(F&&) {}
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads[1].defined(),
        "the derivative of torch_cudnn_ext::ctc_loss's gradient is not implemented");
    return {saved[0] * grads[0].unsqueeze(0).unsqueeze(2)};
  }
};

// Under nested transforms ctc_loss calls _ctc_loss at the inner level, so the outer level sees only
// _ctc_loss.
std::tuple<Tensor, Tensor> forward_with_gradient_autograd(
    c10::DispatchKeySet keys, const Tensor& log_probs, const Tensor& targets,
    const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank, bool zero_infinity,
    OptionalPolicy policy) {
  return run_with_gradient<CtcGradient>(
      {log_probs}, 2,
      below_autograd(with_gradient_op(), keys, log_probs, targets, input_lengths, target_lengths,
                     blank, zero_infinity, policy),
      [](auto& node, const auto& results) { save_result(node, results[1]); });
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& log_probs, const Tensor& targets,
                        const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                        bool zero_infinity, OptionalPolicy policy) {
  if (at::GradMode::is_enabled() && log_probs.requires_grad()) {
    return std::get<0>(forward_with_gradient_autograd(
        keys, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, policy));
  }
  return run_with_gradient<CtcGradient>(
      {log_probs}, 1,
      below_autograd(forward_op(), keys, log_probs, targets, input_lengths, target_lengths, blank,
                     zero_infinity, policy),
      [](auto&, const auto&) {});
}

template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                        const Tensor& target_lengths, int64_t blank, bool zero_infinity,
                        OptionalPolicy policy) {
  BelowAutocast guard(device);
  return forward_op().call(at::autocast::cached_cast(at::kFloat, log_probs, device), targets,
                           input_lengths, target_lengths, blank, zero_infinity, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autograd));
  m.impl("_ctc_loss", TORCH_FN(forward_with_gradient_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autocast<c10::kCUDA>));
}

}  // namespace torch_cudnn_ext::ctc
