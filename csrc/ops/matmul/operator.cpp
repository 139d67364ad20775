// What the core must know of matrix products.
#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "ops/arguments.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::matmul {
namespace {

class MatmulOperator : public OperatorOf<MatmulProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute",
            "row-major, column-major; batches",
            "graph: no f64; f32 only as TF32; bias, activation, alpha and beta are fused",
            {"matmul_fwd x=f16[1,4096,1024]:nchw w=f16[1,1024,1024]:nchw"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }
  std::optional<at::Float32Op> float32_op() const override { return at::Float32Op::MATMUL; }

  std::vector<SlotSpec> slots(const MatmulProblem& p) const override {
    TensorSpec y = p.output();
    std::vector<SlotSpec> slots{{Role::x, p.x, false}, {Role::w, p.w, false}};
    if (p.bias) slots.push_back({Role::bias, {p.x.dtype, {y.sizes[2]}, {1}}, false});
    if (p.z) slots.push_back({Role::z, y, false});
    slots.push_back({Role::y, y, true});
    return slots;
  }

  Cost cost(const MatmulProblem& p) const override {
    double bytes = bytes_of(slots(p));
    auto k = static_cast<double>(p.x.sizes[2]);
    return {2 * k * static_cast<double>(p.output().numel()), bytes, k};
  }

  void set_scalars(const MatmulProblem& p, Bindings& bindings) const override {
    if (p.accumulate == Accumulate::add) bindings.beta = 1;
    if (p.accumulate != Accumulate::general) return;
    bindings.alpha = 0.75;
    bindings.beta = p.z ? 1.5 : 0;
  }

  Bindings reference(const MatmulProblem& p, const Bindings& bindings) const override {
    auto in_double = [&](Role role) { return bindings[role].to(at::kDouble); };
    Tensor y = at::matmul(in_double(Role::x), in_double(Role::w));
    if (p.accumulate == Accumulate::general) y.mul_(bindings.alpha);
    if (p.z) y.add_(in_double(Role::z), p.accumulate == Accumulate::add ? 1 : bindings.beta);
    if (p.bias) y.add_(in_double(Role::bias));
    activate(p.activation, y);
    Bindings out;
    out[Role::y] = std::move(y);
    return out;
  }

  // Rounding of the output and the epilogue, plus the error of a sum of k terms. TF32 keeps 10 bits
  // of each factor.
  double tolerance(const MatmulProblem& p, const Notes& notes) const override {
    double terms = std::sqrt(cost(p).reduction_length);
    double tolerance = 4 * epsilon_of(p.x.dtype) + 4 * epsilon_of(p.compute) * terms;
    if (notes.has(Note::tf32)) tolerance += 2e-3;
    if (notes.has(Note::down_convert)) tolerance += 8e-3 + epsilon_of(at::kHalf) * terms;
    return tolerance;
  }

  std::vector<std::string> heuristic_order(const MatmulProblem&) const override {
    return {"aten", "graph"};
  }
};

const RegisterOperator<MatmulOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::matmul
