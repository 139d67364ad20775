// PyTorch's products. The kernel of a single product adds the bias; the rest of the epilogue
// follows.
#include "backends/aten/plan.h"
#include "core/tensors.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::aten {
namespace {

Tensor only_matrix(const Tensor& t) {
  return strided_view(t, t.sizes().slice(1), t.strides().slice(1));
}

Tensor matmul_product(const MatmulProblem& p, const Bindings& b) {
  const Tensor &x = b[Role::x], &w = b[Role::w], &z = b[Role::z], &bias = b[Role::bias];
  bool general = p.accumulate == Accumulate::general;
  double alpha = general ? b.alpha : 1, beta = general ? b.beta : 1;
  TensorSpec y = p.output();
  // With this addend a product is scaled by alpha before it is rounded.
  auto zero = [&] { return at::zeros({1}, x.options()); };
  // PyTorch 2.11 leaves some batched products of half types unwritten if alpha and beta are 0.
  if (alpha == 0 && (!p.z || beta == 0)) {
    Tensor made = at::zeros(y.sizes, x.options());
    return p.bias ? made.add_(bias) : made;
  }
  if (y.sizes[0] == 1) {
    Tensor first = only_matrix(x), second = only_matrix(w);
    Tensor made = p.z          ? at::addmm(only_matrix(z), first, second, beta, alpha)
                  : p.bias     ? at::addmm(bias, first, second, 1, alpha)
                  : alpha == 1 ? at::mm(first, second)
                               : at::addmm(zero(), first, second, 0, alpha);
    if (p.z && p.bias) made.add_(bias);
    return strided_view(made, y.sizes, {made.numel(), made.stride(0), made.stride(1)});
  }
  Tensor first = x.expand({y.sizes[0], -1, -1}), second = w.expand({y.sizes[0], -1, -1});
  Tensor made = p.z          ? at::baddbmm(z, first, second, beta, alpha)
                : alpha == 1 ? at::bmm(first, second)
                             : at::baddbmm(zero(), first, second, 0, alpha);
  if (p.bias) made.add_(bias);
  return made;
}

BuildResult build_matmul_plan(const MatmulProblem& p, const Algorithm& algorithm,
                              const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  Notes notes;
  if (uses_tf32(at::Float32Op::MATMUL, p.x.dtype, device)) notes.add(Note::tf32);
  return make_plan(algorithm, notes, [p](Bindings& b) {
    Tensor y = matmul_product(p, b);
    activate(p.activation, y);
    give(b, Role::y, p.output(), y);
  });
}

const RegisterBackendOperator<MatmulProblem> matmul_registered("aten", candidates<MatmulProblem>,
                                                               build_matmul_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
