// What the core must know of dropout.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <cmath>

#include "core/tune/measure.h"
#include "ops/arguments.h"

namespace torch_cudnn_ext::dropout {
namespace {

class DropoutOperator : public CoupledOperatorOf<DropoutProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnDropoutForward, cudnnDropoutBackward",
        "dense, any shape",
        "cuDNN: its own random numbers alone (rng=cudnn), no bf16; aten and cpu: PyTorch's alone",
        {"dropout_fwd x=f16[1048576]:nchw rng=philox",
         "dropout_fwd x=f16[1048576]:nchw rng=cudnn"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }
  bool is_random(const DropoutProblem&) const override { return true; }
  bool is_always_coupled() const override { return true; }

  std::vector<SlotSpec> slots(const DropoutProblem& p) const override {
    bool forward = p.pass == Pass::fwd;
    TensorSpec mask{at::kByte, {0}, {1}};
    std::vector<SlotSpec> list{{forward ? Role::x : Role::dy, p.x, false}};
    if (p.train) list.push_back({Role::reserve, mask, forward});
    list.push_back({forward ? Role::y : Role::dx, p.x, true});
    return list;
  }

  Cost cost(const DropoutProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double mask_bytes = p.train ? elements / 8 : 0;  // at least
    return {elements, 2 * static_cast<double>(p.x.nbytes()) + mask_bytes, 1};
  }

  // Random numbers of few bits contain zeros, which would pass for dropped elements.
  void prepare_scratch(const DropoutProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::bwd) return;
    bindings[Role::x].masked_fill_(bindings[Role::x] == 0, 1);
  }

  // A mask is random; fault() checks it.
  Bindings reference(const DropoutProblem&, const Bindings&) const override { return {}; }

  // The output tells the mask. It must drop a share p, and both passes must have multiplied by it.
  std::string fault(const DropoutProblem& p, const Bindings& bindings) const override {
    constexpr double kSigmas = 6;
    const Tensor& y = bindings[Role::y];
    Tensor kept = (y != 0).to(at::kDouble);
    bool forward = p.pass == Pass::fwd;
    Tensor expected = bindings[forward ? Role::x : Role::dy].to(at::kDouble) * kept / (1 - p.p);
    double error = relative_error(bindings[forward ? Role::y : Role::dx], expected);
    // cuDNN keeps 1 / (1 - p) in float32.
    double scale_error = p.rng == RandomStream::cudnn ? 1e-7 : 0;
    if (!(error <= tolerance(p, {}) + scale_error)) {
      return c10::str("relative error ", error,
                      forward ? " of what y keeps of x" : " of dx under y's mask");
    }
    auto n = static_cast<double>(p.x.numel());
    double share = 1 - kept.mean().item<double>();
    double allowed = kSigmas * std::sqrt(p.p * (1 - p.p) / n) + 1 / n;
    if (std::abs(share - p.p) <= allowed) return "";
    return c10::str("a share ", share, " is dropped, wanted ", p.p, " within ", allowed);
  }

  double tolerance(const DropoutProblem& p, const Notes&) const override {
    return 4 * epsilon_of(p.x.dtype);
  }

  std::vector<std::string> heuristic_order(const DropoutProblem& p) const override {
    if (p.rng == RandomStream::cudnn) return {"legacy"};
    return {"aten"};
  }
};

const RegisterOperator<DropoutOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::dropout
