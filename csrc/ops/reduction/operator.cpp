// What the core must know of reductions.
#include <ATen/ATen.h>

#include <cmath>

#include "core/tensors.h"
#include "ops/arguments.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::reduction {
namespace {

class ReduceOperator : public OperatorOf<ReduceProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute, cudnnReduceTensor",
            "contiguous; any dimensions",
            "graph: add, mul, min, max and absmax over leading dimensions or all, no indices; its "
            "extremes drop NaN and need allow_reduced_range; legacy: up to 2^31 - 1 elements",
            {"reduce_fwd x=f32[4096,1024]:nchw first_reduced=true kind=add"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }

  std::vector<SlotSpec> slots(const ReduceProblem& p) const override {
    TensorSpec y = p.output();
    std::vector<SlotSpec> slots{{Role::x, p.x, false}, {Role::y, y, true}};
    if (p.indices) slots.push_back({Role::indices, {at::kLong, y.sizes, y.strides}, true});
    return slots;
  }

  Cost cost(const ReduceProblem& p) const override {
    double bytes = bytes_of(slots(p));
    auto elements = static_cast<double>(p.x.numel());
    return {p.kind == ReduceKind::norm2 ? 2 * elements : elements, bytes,
            static_cast<double>(p.reduced_count())};
  }

  // Products stay close to 1, and have zeros only if the kind leaves them out. Extremes are unique,
  // so that every algorithm names the same index.
  void prepare_scratch(const ReduceProblem& p, Bindings& bindings) const override {
    Tensor& x = bindings[Role::x];
    if (p.kind == ReduceKind::mul || p.kind == ReduceKind::mul_no_zeros) {
      Tensor zeros = x.abs() < 0.3;
      x.copy_((x.to(at::kDouble) / std::sqrt(2.0 * static_cast<double>(p.reduced_count()))).exp());
      if (p.kind == ReduceKind::mul_no_zeros) x.masked_fill_(zeros, 0);
    } else if (p.indices) {
      Tensor rows = reduced_rows(p, x);
      Tensor at = rows.slice(1, 0, 1).abs().mul(1e3).to(at::kLong).remainder(rows.size(1));
      rows.scatter_(1, at, p.kind == ReduceKind::max ? 100 : -100);
      Dims order = p.rows_order(), back = order;
      for (int i = 0; i < order.size(); ++i) back[static_cast<int>(order[i])] = i;
      x.copy_(rows.reshape(x.permute(order).sizes()).permute(back));
    }
  }

  Bindings reference(const ReduceProblem& p, const Bindings& bindings) const override {
    Bindings out;
    Tensor rows = reduced_rows(p, bindings[Role::x].to(at::kDouble));
    Dims sizes = p.output().sizes;
    out[Role::y] = value_of(p.kind, rows).reshape(sizes);
    if (p.indices) {
      out[Role::indices] = (p.kind == ReduceKind::max ? rows.argmax(1) : rows.argmin(1))
                               .reshape(sizes)
                               .to(at::kDouble);
    }
    return out;
  }

  // Rounding of the output, plus the error of a sum of that many terms. Each factor of a product
  // adds its rounding.
  double tolerance(const ReduceProblem& p, const Notes&) const override {
    double terms = std::sqrt(static_cast<double>(p.reduced_count()));
    return 2 * epsilon_of(p.x.dtype) + 8 * epsilon_of(compute_dtype(p.x.dtype)) * terms;
  }

  std::vector<std::string> heuristic_order(const ReduceProblem&) const override {
    return {"aten", "legacy"};
  }

 private:
  static Tensor value_of(ReduceKind kind, const Tensor& rows) {
    switch (kind) {
      case ReduceKind::add:
        return rows.sum(1);
      case ReduceKind::mul:
        return rows.prod(1);
      case ReduceKind::min:
        return rows.amin(1);
      case ReduceKind::max:
        return rows.amax(1);
      case ReduceKind::absmax:
        return rows.abs().amax(1);
      case ReduceKind::mean:
        return rows.mean(1);
      case ReduceKind::norm1:
        return rows.abs().sum(1);
      case ReduceKind::norm2:
        return rows.square().sum(1).sqrt();
      case ReduceKind::mul_no_zeros:
        return rows.masked_fill(rows == 0, 1).prod(1);
    }
    TORCH_INTERNAL_ASSERT(false);
  }
};

const RegisterOperator<ReduceOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::reduction
