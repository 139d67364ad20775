// Activations on the CPU in two ways, in float32 at least.
//   exponential  comparisons and selections; sigmoid and swish from one exponential, tanh from
//   expm1,
//                both of values that are not positive, so that nothing overflows
//   hyperbolic   maxima and minima; sigmoid and swish from cosh, tanh from expm1 of positive values
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

Tensor sigmoid(const Tensor& x, bool hyperbolic) {
  if (hyperbolic) {
    constexpr double kOne = 60;  // from here on sigmoid is 1; cosh is finite
    Tensor half = x.clamp_max(kOne).div_(2);
    return half.exp().div_(half.cosh().mul_(2));
  }
  Tensor e = x.abs().neg_().exp_();
  return at::where(x < 0, e, 1).div_(1 + e);
}

Tensor tanh(const Tensor& x, bool hyperbolic) {
  if (hyperbolic) {
    constexpr double kOne = 30;  // from here on tanh is 1
    Tensor e = x.abs().clamp_max_(kOne).mul_(2).expm1_();
    return (e / (e + 2)).copysign_(x);
  }
  Tensor e = x.abs().mul_(-2).expm1_();
  Tensor size = (-e).div_(e + 2);
  return at::where(x < 0, -size, size);
}

Tensor activation_forward(const ActivationProblem& p, const Tensor& x, bool hyperbolic) {
  double c = p.coefficient;
  switch (p.kind) {
    case ActivationKind::relu:
      return hyperbolic ? at::clamp_min(x, 0) : x.masked_fill(x <= 0, 0);
    case ActivationKind::clipped_relu:
      return hyperbolic ? at::clamp(x, 0, c) : x.masked_fill(x <= 0, 0).masked_fill_(x >= c, c);
    case ActivationKind::tanh:
      return tanh(x, hyperbolic);
    case ActivationKind::sigmoid:
      return sigmoid(x, hyperbolic);
    case ActivationKind::elu:
      if (hyperbolic) return x.clamp_min(0) + x.clamp_max(0).expm1_().mul_(c);
      return at::where(x > 0, x, x.clamp_max(0).expm1_().mul_(c));
    case ActivationKind::swish:
      return sigmoid(c * x, hyperbolic).mul_(x);
  }
  TORCH_INTERNAL_ASSERT(false);
}

// dy at the elements in `open`, else zero: `exponential` fills zeros in, `hyperbolic` gathers.
Tensor pass_where(const Tensor& open, const Tensor& dy, bool hyperbolic) {
  if (!hyperbolic) return dy.masked_fill(open.logical_not(), 0);
  Tensor at = open.nonzero().squeeze(1);
  return at::zeros_like(dy).index_copy_(0, at, dy.index_select(0, at));
}

Tensor activation_backward(const ActivationProblem& p, const Tensor& dy, const Tensor& x,
                           const Tensor& y, bool hyperbolic) {
  double c = p.coefficient;
  const Tensor& from = p.from_output ? y : x;
  switch (p.kind) {
    case ActivationKind::relu:
      return pass_where((y <= 0).logical_not(), dy, hyperbolic);
    case ActivationKind::clipped_relu:
      return pass_where((from <= 0).logical_or(from >= c).logical_not(), dy, hyperbolic);
    case ActivationKind::tanh:
      return hyperbolic ? (1 - y).mul_(1 + y).mul_(dy) : dy - dy * y * y;
    case ActivationKind::sigmoid:
      return hyperbolic ? (1 - y).mul_(y).mul_(dy) : (dy * y).sub_(dy * y * y);
    case ActivationKind::elu: {
      Tensor slope = p.from_output ? y + c
                     : hyperbolic  ? x.clamp_max(0).expm1_().add_(1).mul_(c)
                                   : x.clamp_max(0).exp_().mul_(c);
      return at::where(from <= 0, dy * slope, dy);
    }
    case ActivationKind::swish: {
      Tensor s = sigmoid(c * x, hyperbolic);
      if (hyperbolic) return (1 - s).mul_(c * x).add_(1).mul_(s).mul_(dy);
      return (s + c * y * (1 - s)).mul_(dy);
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

constexpr const char* kActivationNames[] = {"exponential", "hyperbolic"};

BuildResult build_activation_plan(const ActivationProblem& p, const Algorithm& algorithm) {
  auto compute = compute_dtype(p.x.dtype);
  bool hyperbolic = algorithm.name == "hyperbolic";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    auto input = [&](Role role) { return b[role].defined() ? b[role].to(compute) : Tensor(); };
    if (p.pass == Pass::fwd) {
      give(b, Role::y, p.x, activation_forward(p, input(Role::x), hyperbolic).to(p.x.dtype));
      return;
    }
    Tensor dx = activation_backward(p, input(Role::dy), input(Role::x), input(Role::y), hyperbolic);
    give(b, Role::dx, p.x, dx.to(p.x.dtype));
  });
}

const auto activation_registered =
    cpu::register_named<ActivationProblem, kActivationNames, build_activation_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
