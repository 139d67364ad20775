// PyTorch's activations, written into the output, which may be the input.
#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

void activation_forward(const ActivationProblem& p, const Tensor& x, Tensor& y) {
  double c = p.coefficient;
  switch (p.kind) {
    case ActivationKind::relu:
      at::clamp_min_out(y, x, 0);
      return;
    case ActivationKind::clipped_relu:
      at::clamp_out(y, x, 0, c);
      return;
    case ActivationKind::tanh:
      at::tanh_out(y, x);
      return;
    case ActivationKind::sigmoid:
      at::sigmoid_out(y, x);
      return;
    case ActivationKind::elu:
      at::elu_out(y, x, c);
      return;
    case ActivationKind::swish:
      if (c == 1) {
        at::silu_out(y, x);
      } else {
        Tensor wide = x.to(compute_dtype(p.x.dtype));
        y.copy_(wide * (wide * c).sigmoid_());
      }
  }
}

void activation_backward(const ActivationProblem& p, const Tensor& dy, const Tensor& x,
                         const Tensor& y, Tensor& dx) {
  double c = p.coefficient;
  switch (p.kind) {
    case ActivationKind::relu:
      at::threshold_backward_out(dx, dy, y, 0);
      return;
    case ActivationKind::clipped_relu:
      at::hardtanh_backward_out(dx, dy, p.from_output ? y : x, 0, c);
      return;
    case ActivationKind::tanh:
      at::tanh_backward_out(dx, dy, y);
      return;
    case ActivationKind::sigmoid:
      at::sigmoid_backward_out(dx, dy, y);
      return;
    case ActivationKind::elu:
      at::elu_backward_out(dx, dy, c, 1, 1, p.from_output, p.from_output ? y : x);
      return;
    case ActivationKind::swish:
      // The gradient of x sigmoid(c x) is that of silu at c x.
      if (c == 1) {
        at::silu_backward_out(dx, dy, x);
      } else {
        auto compute = compute_dtype(p.x.dtype);
        dx.copy_(at::silu_backward(dy.to(compute), x.to(compute) * c));
      }
  }
}

BuildResult build_activation_plan(const ActivationProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    bool is_forward = p.pass == Pass::fwd;
    Tensor& out =
        output_tensor(b, is_forward ? Role::y : Role::dx, p.x, b[is_forward ? Role::x : Role::dy]);
    if (is_forward) {
      activation_forward(p, b[Role::x], out);
    } else {
      activation_backward(p, b[Role::dy], b[Role::x], b[Role::y], out);
    }
  });
}

const RegisterBackendOperator<ActivationProblem> activation_registered(
    "aten", candidates<ActivationProblem>, build_activation_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
