// What the core must know of conversions between layouts and types.
#include <ATen/ATen.h>

#include "ops/arguments.h"

namespace torch_cudnn_ext::transform {
namespace {

class TransformOperator : public OperatorOf<TransformProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute, cudnnTransformTensor",
            "any strides; result dense",
            "graph: dense tensors whose order stays; legacy: types stay",
            {"transform_fwd x=f32[32,64,3136]:nchw y=:nhwc",
             "transform_fwd x=f32[1,1,6422528]:nchw dtype=f16"}};
  }
  // A batch is a part of a merged dimension.
  std::vector<BatchSize> batch_sizes() const override { return {}; }

  std::vector<SlotSpec> slots(const TransformProblem& p) const override {
    return {{Role::x, p.x, false}, {Role::y, p.y, true}};
  }

  Cost cost(const TransformProblem& p) const override { return {0, bytes_of(slots(p)), 1}; }

  Bindings reference(const TransformProblem&, const Bindings& bindings) const override {
    Bindings out;
    out[Role::y] = bindings[Role::x].to(at::kDouble);
    return out;
  }

  // One rounding, if y's type does not hold every number of x's.
  double tolerance(const TransformProblem& p, const Notes&) const override {
    bool is_exact = c10::promoteTypes(p.x.dtype, p.y.dtype) == p.y.dtype;
    return is_exact ? 0 : epsilon_of(p.y.dtype);
  }

  // cuDNN's conversions are not measured against PyTorch's, so PyTorch's come first.
  std::vector<std::string> heuristic_order(const TransformProblem&) const override {
    return {"aten", "legacy", "graph"};
  }
};

const RegisterOperator<TransformOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::transform
