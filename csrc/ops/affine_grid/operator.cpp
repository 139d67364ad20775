// What the core must know of grids under affine maps.
#include <ATen/ATen.h>

#include <cmath>

#include "ops/arguments.h"

namespace torch_cudnn_ext::affine_grid {
namespace {

class AffineGridOperator : public OperatorOf<AffineGridProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnSpatialTfGridGeneratorForward, cudnnSpatialTfGridGeneratorBackward",
        "contiguous",
        "cuDNN: 2-D, align_corners=True, two points a dimension at least; no bf16",
        {"affine_grid_fwd theta=f32[32,2,3]:nchw grid=f32[32,56,56,2]:nchw align_corners=true"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"theta", 0}, {"grid", 0}}; }

  // PyTorch's implementation is a matrix product.
  std::optional<at::Float32Op> float32_op() const override { return at::Float32Op::MATMUL; }

  std::vector<SlotSpec> slots(const AffineGridProblem& p) const override {
    if (p.pass == Pass::fwd) {
      return {{Role::x, p.theta, false}, {Role::grid, p.grid, true}};
    }
    return {{Role::dgrid, p.grid, false}, {Role::dx, p.theta, true}};
  }

  Cost cost(const AffineGridProblem& p) const override {
    auto terms = static_cast<double>(p.theta.sizes[2]);
    auto coordinates = static_cast<double>(p.grid.numel());
    double points = coordinates / static_cast<double>(p.theta.numel()) * terms;
    return {2 * terms * coordinates, static_cast<double>(p.theta.nbytes() + p.grid.nbytes()),
            p.pass == Pass::fwd ? terms : points};
  }

  Bindings reference(const AffineGridProblem& p, const Bindings& bindings) const override {
    Bindings out;
    bool forward = p.pass == Pass::fwd;
    Tensor given = bindings[forward ? Role::x : Role::dgrid].to(at::kDouble);
    Dims size{p.grid.sizes[0], 1};
    for (int i = 1; i + 1 < p.grid.sizes.size(); ++i) size.push_back(p.grid.sizes[i]);
    if (forward) {
      out[Role::grid] = at::affine_grid_generator(given, size, p.align_corners);
    } else {
      out[Role::dx] = at::affine_grid_generator_backward(given, size, p.align_corners);
    }
    return out;
  }

  // Rounding of the regular grid, which PyTorch makes in the data's type, and of the sums.
  double tolerance(const AffineGridProblem& p, const Notes& notes) const override {
    double tf32 = notes.has(Note::tf32) ? 2e-3 : 0, terms = std::sqrt(cost(p).reduction_length);
    return tf32 + 4 * epsilon_of(p.theta.dtype) +
           4 * epsilon_of(compute_dtype(p.theta.dtype)) * terms;
  }

  // PyTorch computes the regular grid and its product in half a dozen kernels, cuDNN in one.
  std::vector<std::string> heuristic_order(const AffineGridProblem&) const override {
    return {"legacy", "aten"};
  }
};

const RegisterOperator<AffineGridOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::affine_grid
