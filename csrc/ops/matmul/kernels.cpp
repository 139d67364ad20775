// Kernel and schema of the matrix product with its epilogue.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "ops/matmul/matmul.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::matmul {
namespace {

struct Sizes {
  std::vector<SymInt> batch, output;  // of the broadcast batch, and of the result
  SymInt m, k, n;
};

// Sizes with the transposes applied. Raises if they do not fit.
Sizes check_arguments(const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                      bool transpose_a, bool transpose_b, double beta, const OptionalTensor& z) {
  const char* op = "matmul";
  check_dtype(op, "a", a);
  check_alike(op, "b", b, "a", a);
  TORCH_CHECK_VALUE(a.dim() >= 2 && b.dim() >= 2,
                    "torch_cudnn_ext::matmul: ", a.dim() < 2 ? "a" : "b", " has sizes ",
                    (a.dim() < 2 ? a : b).sym_sizes(), ", wanted at least two dimensions");
  auto size = [](const Tensor& t, bool transpose, int64_t dim) {
    return t.sym_size(transpose ? -3 - dim : dim);
  };
  Sizes s;
  s.m = size(a, transpose_a, -2);
  s.k = size(a, transpose_a, -1);
  s.n = size(b, transpose_b, -1);
  TORCH_CHECK_VALUE(size(b, transpose_b, -2) == s.k, "torch_cudnn_ext::matmul: b has sizes ",
                    b.sym_sizes(), transpose_b ? " and is transposed" : "", ", wanted ", s.k,
                    " rows: a has sizes ", a.sym_sizes(), transpose_a ? " and is transposed" : "");
  s.batch = at::infer_size_symint(a.sym_sizes().slice(0, a.dim() - 2),
                                  b.sym_sizes().slice(0, b.dim() - 2));
  s.output = s.batch;
  s.output.push_back(s.m);
  s.output.push_back(s.n);
  if (has(bias)) {
    check_alike(op, "bias", *bias, "a", a);
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == s.n,
                      "torch_cudnn_ext::matmul: bias has sizes ", bias->sym_sizes(), ", wanted [",
                      s.n, "]");
  }
  TORCH_CHECK_VALUE(has(z) || beta == 0, "torch_cudnn_ext::matmul: beta is ", beta,
                    ", wanted 0 since z is None");
  if (has(z)) {
    check_alike(op, "z", *z, "a", a);
    TORCH_CHECK_VALUE(at::is_expandable_to(z->sym_sizes(), s.output),
                      "torch_cudnn_ext::matmul: z has sizes ", z->sym_sizes(),
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
  if (t.numel() == rows * columns) return as_matrices(t.reshape({1, rows, columns}));
  std::vector<int64_t> sizes(batch.begin(), batch.end());
  sizes.push_back(rows);
  sizes.push_back(columns);
  Tensor expanded = t.sizes() == sizes ? t : t.expand(sizes);
  return as_matrices(expanded.reshape({-1, rows, columns}));
}

// activation(beta * z + bias), the sum of no products.
Tensor product_of_nothing(Tensor result, const OptionalTensor& bias, double beta,
                          const OptionalTensor& z, Activation activation) {
  result.zero_();
  if (has(z) && beta != 0) result.add_(*z, beta);
  if (has(bias)) result.add_(*bias);
  return activation == Activation::relu ? result.relu_() : result;
}

}  // namespace

Tensor forward(const Tensor& a, const Tensor& b, const OptionalTensor& bias, bool transpose_a,
               bool transpose_b, double alpha, double beta, const OptionalTensor& z,
               std::string_view activation, OptionalPolicy policy) {
  Sizes s = check_arguments(a, b, bias, transpose_a, transpose_b, beta, z);
  Activation act = activation_of(activation);
  c10::OptionalDeviceGuard guard(a.device());
  auto sizes = C10_AS_INTARRAYREF_SLOW_ALLOC(s.output);
  at::IntArrayRef batch = at::IntArrayRef(sizes).slice(0, sizes.size() - 2);
  bool has_bias = has(bias), has_z = has(z) && beta != 0;
  Tensor result = at::empty(sizes, a.options());
  if (result.numel() == 0) return result;
  if (s.k == 0) return product_of_nothing(result, bias, beta, z, act);
  Tensor left = transpose_a ? a.transpose(-1, -2) : a;
  Tensor right = transpose_b ? b.transpose(-1, -2) : b;
  // Contiguous rows on the left and one matrix on the right are one product.
  bool one_product = right.numel() == right.size(-1) * right.size(-2) && left.is_contiguous();
  left = one_product ? left.reshape({1, -1, left.size(-1)}) : with_one_batch(left, batch);
  right = with_one_batch(right, batch);
  MatmulProblem p;
  p.x = spec_of(left);
  p.w = spec_of(right);
  p.compute = p.default_compute();
  p.bias = has_bias;
  p.z = has_z;
  p.activation = act;
  bool plain = alpha == 1 && (!has_z || beta == 1);
  p.accumulate = !plain ? Accumulate::general : has_z ? Accumulate::add : Accumulate::none;
  p.canonicalise();
  Dims product = p.output().sizes;
  Bindings bindings;
  bindings.alpha = alpha;
  bindings.beta = has_z ? beta : 0;
  bindings[Role::x] = left.as_strided(p.x.sizes, p.x.strides);
  bindings[Role::w] = right.as_strided(p.w.sizes, p.w.strides);
  if (has_bias) bindings[Role::bias] = bias->contiguous();
  if (has_z) bindings[Role::z] = z->expand(sizes).contiguous().view(product);
  p.alignment = alignment_of({&left, &right, &bindings[Role::bias], &bindings[Role::z]});
  run_problem(p, policy, a, bindings);
  return bindings[Role::y].view(sizes);
}

namespace {

Tensor forward_meta(const Tensor& a, const Tensor& b, const OptionalTensor& bias, bool transpose_a,
                    bool transpose_b, double alpha, double beta, const OptionalTensor& z,
                    std::string_view activation, OptionalPolicy) {
  Sizes s = check_arguments(a, b, bias, transpose_a, transpose_b, beta, z);
  activation_of(activation);
  return at::empty_symint(s.output, a.options());
}

}  // namespace

// activation(alpha * a b + beta * z + bias). Batches broadcast as in torch.matmul; activation is
// none or relu.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward, forward_meta>(
      m,
      "matmul(Tensor a, Tensor b, Tensor? bias=None, *, bool transpose_a=False, bool "
      "transpose_b=False, float alpha=1.0, float beta=0.0, Tensor? z=None, str activation='none', "
      "str? policy=None) -> Tensor",
      tags());
}

}  // namespace torch_cudnn_ext::matmul
