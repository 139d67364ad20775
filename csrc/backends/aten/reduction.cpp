// PyTorch's reductions.
#include "backends/aten/plan.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::aten {
namespace {

// The product over one dimension after the other, innermost first. It is in float32 at least, in
// contrast to PyTorch's CPU kernel for half precision.
Tensor reduction_product(Tensor x, const Dims& dims) {
  auto compute = compute_dtype(x.scalar_type());
  for (int i = dims.size() - 1; i >= 0; --i) x = at::prod(x, dims[i], true, compute);
  return x;
}

Tensor reduce(const ReduceProblem& p, const Tensor& x) {
  Dims dims = p.reduced_dims();
  switch (p.kind) {
    case ReduceKind::add:
      return at::sum(x, dims, true);
    case ReduceKind::mul:
      return reduction_product(x, dims);
    case ReduceKind::min:
      return at::amin(x, dims, true);
    case ReduceKind::max:
      return at::amax(x, dims, true);
    case ReduceKind::absmax:
      return at::linalg_vector_norm(x, INFINITY, dims, true);
    case ReduceKind::mean:
      return at::mean(x, dims, true);
    case ReduceKind::norm1:
      return at::linalg_vector_norm(x, 1, dims, true);
    case ReduceKind::norm2:
      return at::linalg_vector_norm(x, 2, dims, true);
    case ReduceKind::mul_no_zeros:
      return reduction_product(at::masked_fill(x, x == 0, 1), dims);
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::tuple<Tensor, Tensor> reduce_with_indices(const ReduceProblem& p, const Tensor& x) {
  Tensor rows = reduced_rows(p, x);
  auto [values, indices] = p.kind == ReduceKind::max ? at::max(rows, 1) : at::min(rows, 1);
  Dims sizes = p.output().sizes;
  return {values.view(sizes), indices.view(sizes)};
}

BuildResult build_reduction_plan(const ReduceProblem& p, const Algorithm& algorithm,
                                 const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    TensorSpec y = p.output();
    if (!p.indices) {
      give(b, Role::y, y, reduce(p, b[Role::x]).to(p.x.dtype));
      return;
    }
    auto [values, indices] = reduce_with_indices(p, b[Role::x]);
    give(b, Role::y, y, values);
    give(b, Role::indices, {at::kLong, y.sizes, y.strides}, indices);
  });
}

const RegisterBackendOperator<ReduceProblem> reduction_registered("aten", candidates<ReduceProblem>,
                                                                  build_reduction_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
