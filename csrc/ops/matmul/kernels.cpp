// Kernel and schema of the matrix product with its epilogue.
#include <ATen/ExpandUtils.h>
#include <ATen/core/DimVector.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "core/tensors.h"
#include "ops/call.h"
#include "ops/known_kernel.h"
#include "ops/matmul/matmul.h"
#include "ops/schema.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::matmul {
namespace {

struct Sizes {
  std::vector<SymInt> batch, output;  // of the broadcast batch, and of the result
  SymInt m, k, n;
};

// Sizes with the transposes applied. Raises if they do not fit.
Sizes check_arguments(const MatmulArgs& args) {
  const char* op = args.kName;
  const Tensor &a = args.a, &b = args.b;
  check_dtype(op, "a", a);
  check_alike(op, "b", b, "a", a);
  TORCH_CHECK_VALUE(a.dim() >= 2 && b.dim() >= 2,
                    "torch_cudnn_ext::matmul: ", a.dim() < 2 ? "a" : "b", " has sizes ",
                    (a.dim() < 2 ? a : b).sym_sizes(), ", wanted at least two dimensions");
  auto size = [](const Tensor& t, bool transpose, int64_t dim) {
    return t.sym_size(transpose ? -3 - dim : dim);
  };
  Sizes s;
  s.m = size(a, args.transpose_a, -2);
  s.k = size(a, args.transpose_a, -1);
  s.n = size(b, args.transpose_b, -1);
  TORCH_CHECK_VALUE(size(b, args.transpose_b, -2) == s.k, "torch_cudnn_ext::matmul: b has sizes ",
                    b.sym_sizes(), args.transpose_b ? " and is transposed" : "", ", wanted ", s.k,
                    " rows: a has sizes ", a.sym_sizes(),
                    args.transpose_a ? " and is transposed" : "");
  s.batch = at::infer_size_symint(a.sym_sizes().slice(0, a.dim() - 2),
                                  b.sym_sizes().slice(0, b.dim() - 2));
  s.output = s.batch;
  s.output.push_back(s.m);
  s.output.push_back(s.n);
  if (has(args.bias)) {
    const Tensor& bias = *args.bias;
    check_alike(op, "bias", bias, "a", a);
    TORCH_CHECK_VALUE(bias.dim() == 1 && bias.sym_size(0) == s.n,
                      "torch_cudnn_ext::matmul: bias has sizes ", bias.sym_sizes(), ", wanted [",
                      s.n, "]");
  }
  TORCH_CHECK_VALUE(has(args.z) || args.beta == 0, "torch_cudnn_ext::matmul: beta is ", args.beta,
                    ", wanted 0 since z is None");
  if (has(args.z)) {
    const Tensor& z = *args.z;
    check_alike(op, "z", z, "a", a);
    TORCH_CHECK_VALUE(at::is_expandable_to(z.sym_sizes(), s.output),
                      "torch_cudnn_ext::matmul: z has sizes ", z.sym_sizes(),
                      ", wanted sizes that broadcast to ", SymIntArrayRef(s.output));
  }
  return s;
}

// `t`, [batch, m, n], or a copy, as kernels take it: matrices in rows or columns without overlap.
Tensor as_matrices(const Tensor& t) {
  int64_t rows = t.size(-2), columns = t.size(-1), down = t.stride(-2), right = t.stride(-1);
  bool in_rows = (right == 1 || columns == 1) && (down >= columns || rows == 1);
  bool in_columns = (down == 1 || rows == 1) && (right >= rows || columns == 1);
  bool apart = t.stride(0) != 0 || t.size(0) == 1;
  return (in_rows || in_columns) && apart ? t : t.contiguous();
}

// [batch, rows, columns], with a batch of 1 if one matrix serves all.
Tensor with_one_batch(const Tensor& t, at::IntArrayRef batch) {
  int64_t rows = t.size(-2), columns = t.size(-1);
  if (t.numel() == rows * columns) {
    return as_matrices(
        strided_view(t, {1, rows, columns}, {rows * columns, t.stride(-2), t.stride(-1)}));
  }
  std::vector<int64_t> sizes(batch.begin(), batch.end());
  sizes.push_back(rows);
  sizes.push_back(columns);
  Tensor expanded = t.sizes() == sizes ? t : t.expand(sizes);
  return as_matrices(expanded.reshape({-1, rows, columns}));
}

Tensor transposed(const Tensor& t) {
  at::DimVector sizes(t.sizes()), strides(t.strides());
  std::swap(sizes.end()[-1], sizes.end()[-2]);
  std::swap(strides.end()[-1], strides.end()[-2]);
  return strided_view(t, sizes, strides);
}

// The rows of all matrices of a contiguous tensor, as one matrix.
Tensor as_one_matrix(const Tensor& t) {
  int64_t columns = t.size(-1);
  return strided_view(t, {1, t.numel() / columns, columns}, {t.numel(), columns, 1});
}

// What is no product: of no elements, or each a sum of none.
Tensor without_products(const MatmulArgs& a, at::IntArrayRef sizes, bool adds_z,
                        Activation activation) {
  Tensor result = at::zeros(sizes, a.a.options());
  if (result.numel() == 0) return result;
  if (adds_z) result.add_(*a.z, a.beta);
  if (has(a.bias)) result.add_(*a.bias);
  activate(activation, result);
  return result;
}

Tensor run_forward(const MatmulArgs& a) {
  Sizes s = check_arguments(a);
  MatmulProblem p;
  p.activation = activation_of(a.activation);
  c10::OptionalDeviceGuard guard(a.a.device());
  auto sizes = C10_AS_INTARRAYREF_SLOW_ALLOC(s.output);
  at::IntArrayRef batch = at::IntArrayRef(sizes).slice(0, sizes.size() - 2);
  p.bias = has(a.bias);
  p.z = has(a.z) && a.beta != 0;
  if (s.k == 0 || c10::multiply_integers(sizes) == 0) {
    return without_products(a, sizes, p.z, p.activation);
  }
  Tensor left = a.transpose_a ? transposed(a.a) : a.a;
  Tensor right = a.transpose_b ? transposed(a.b) : a.b;
  // Contiguous rows on the left and one matrix on the right are one product.
  bool one_product = right.numel() == right.size(-1) * right.size(-2) && left.is_contiguous();
  left = one_product ? as_one_matrix(left) : with_one_batch(left, batch);
  right = with_one_batch(right, batch);
  p.x = spec_of(left);
  p.w = spec_of(right);
  p.compute = p.default_compute();
  bool plain = a.alpha == 1 && (!p.z || a.beta == 1);
  p.accumulate = !plain ? Accumulate::general : p.z ? Accumulate::add : Accumulate::none;
  p.canonicalise();
  Dims product = p.output().sizes;
  Bindings bindings;
  bindings.alpha = a.alpha;
  bindings.beta = p.z ? a.beta : 0;
  bindings[Role::x] = strided_view(left, p.x.sizes, p.x.strides);
  bindings[Role::w] = strided_view(right, p.w.sizes, p.w.strides);
  if (p.bias) bindings[Role::bias] = a.bias->contiguous();
  if (p.z) bindings[Role::z] = a.z->expand(sizes).contiguous().view(product);
  p.alignment = alignment_of({&left, &right, &bindings[Role::bias], &bindings[Role::z]});
  run_problem(p, a.policy, a.a, bindings);
  return pytorch_kernels::view(bindings[Role::y], sizes);
}

// PyTorch's own product of two matrices.
std::optional<Tensor> plain_forward(const MatmulArgs& a) {
  bool fits =
      a.a.dim() == 2 && a.b.dim() == 2 && a.alpha == 1 && !has(a.z) && a.activation == "none";
  if (!fits) return std::nullopt;
  Tensor left = a.transpose_a ? transposed(a.a) : a.a;
  Tensor right = a.transpose_b ? transposed(a.b) : a.b;
  return has(a.bias) ? at::addmm(*a.bias, left, right) : at::mm(left, right);
}

Tensor forward(const MatmulArgs& a) {
  return KnownKernel<MatmulProblem, run_forward, plain_forward>::call(a);
}

Tensor forward_meta(const MatmulArgs& a) {
  Sizes s = check_arguments(a);
  activation_of(a.activation);
  return at::empty_symint(s.output, a.a.options());
}

}  // namespace

// activation(alpha * a b + beta * z + bias). Batches broadcast as in torch.matmul.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(
      m,
      {"matmul(Tensor a, Tensor b, Tensor? bias=None, *, bool transpose_a=False, bool "
       "transpose_b=False, float alpha=1.0, float beta=0.0, Tensor? z=None, str activation='none', "
       "str? policy=None) -> Tensor"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<forward_meta>(m); }

}  // namespace torch_cudnn_ext::matmul
