// What the core must know of activations.
#include <ATen/ATen.h>

#include "ops/activation/activation.h"

namespace torch_cudnn_ext::activation {

Tensor forward_formula(const ActivationProblem& p, const Tensor& x) {
  double c = p.coefficient;
  switch (p.kind) {
    case ActivationKind::relu:
      return x.clamp_min(0);
    case ActivationKind::clipped_relu:
      return x.clamp(0, c);
    case ActivationKind::tanh:
      return x.tanh();
    case ActivationKind::sigmoid:
      return x.sigmoid();
    case ActivationKind::elu:
      return at::where(x > 0, x, c * x.clamp_max(0).expm1());
    case ActivationKind::swish:
      return x * (c * x).sigmoid();
  }
  TORCH_INTERNAL_ASSERT(false);
}

Tensor backward_formula(const ActivationProblem& p, const Tensor& dy, const Tensor& x,
                        const Tensor& y) {
  double c = p.coefficient;
  const Tensor& v = x.defined() ? x : y;
  switch (p.kind) {
    case ActivationKind::relu:
      return dy.masked_fill(v <= 0, 0);
    case ActivationKind::clipped_relu:
      return dy.masked_fill((v <= 0).logical_or(v >= c), 0);
    case ActivationKind::tanh:
      return dy * (1 - y * y);
    case ActivationKind::sigmoid:
      return dy * (y * (1 - y));
    case ActivationKind::elu:
      return dy * at::where(v > 0, 1, x.defined() ? c * x.masked_fill(x >= 0, 0).exp() : y + c);
    case ActivationKind::swish: {
      Tensor s = (c * x).sigmoid();
      return dy * s * (1 + c * x * (1 - s));
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

namespace {

class ActivationOperator : public OperatorOf<ActivationProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute, cudnnActivationForward, cudnnActivationBackward",
            "dense, any shape",
            "graph: gradients of elu and clipped_relu read x, so not after a call in place",
            {"activation_fwd x=f16[6422528]:nchw kind=relu",
             "activation_fwd x=f16[6422528]:nchw kind=swish"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }

  std::vector<SlotSpec> slots(const ActivationProblem& p) const override {
    if (p.pass == Pass::fwd) return {{Role::x, p.x, false}, {Role::y, p.x, true}};
    std::vector<SlotSpec> slots{
        {Role::y, p.x, false}, {Role::dy, p.x, false}, {Role::dx, p.x, true}};
    if (!p.from_output) slots.insert(slots.begin(), {Role::x, p.x, false});
    return slots;
  }

  Cost cost(const ActivationProblem& p) const override {
    auto tensors = static_cast<double>(slots(p).size());
    return {static_cast<double>(p.x.numel()), tensors * static_cast<double>(p.x.nbytes()), 1};
  }

  // A gradient is taken at an output that the forward computes.
  void prepare_scratch(const ActivationProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    const Tensor& x = bindings[p.from_output ? Role::y : Role::x];
    bindings[Role::y].copy_(forward_formula(p, x.to(at::kDouble)));
  }

  Bindings reference(const ActivationProblem& p, const Bindings& bindings) const override {
    auto in_double = [&](Role role) { return bindings[role].to(at::kDouble); };
    Bindings out;
    if (p.pass == Pass::fwd) {
      out[Role::y] = forward_formula(p, in_double(Role::x));
    } else {
      Tensor x = p.from_output ? Tensor() : in_double(Role::x);
      out[Role::dx] = backward_formula(p, in_double(Role::dy), x, in_double(Role::y));
    }
    return out;
  }

  // Rounding of the result, and of a few operations in float32 at least. cuDNN computes tanh and
  // similar functions in float32 with fewer digits.
  double tolerance(const ActivationProblem& p, const Notes&) const override {
    return 2 * epsilon_of(p.x.dtype) + 128 * epsilon_of(compute_dtype(p.x.dtype));
  }

  std::vector<std::string> heuristic_order(const ActivationProblem&) const override {
    return {"aten", "legacy", "graph"};
  }
};

const RegisterOperator<ActivationOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::activation
