// Matrix products with their epilogue: argument checks, Problem, gradients (products themselves),
// and what the core must know of them.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "core/select/execute.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

void MatmulProblem::canonicalise() {
  canonicalise_strides({&x, &w});
  // One row of elements that lie apart is a matrix in columns.
  for (TensorSpec* t : {&x, &w}) {
    if (t->sizes[1] == 1 && t->strides[2] != 1) t->strides[1] = 1;
  }
}

void MatmulProblem::validate() const {
  check_sizes("matmul", "x", x, 3, 3);
  check_sizes("matmul", "w", w, 3, 3);
  TORCH_CHECK_VALUE(x.dtype == w.dtype, "matmul: w is ", dtype_text(w.dtype), ", wanted x's dtype ",
                    dtype_text(x.dtype));
  TORCH_CHECK_VALUE(x.sizes[2] == w.sizes[1], "matmul: w has ", w.sizes[1], " rows, wanted x's ",
                    x.sizes[2], " columns");
  int64_t a = x.sizes[0], b = w.sizes[0];
  TORCH_CHECK_VALUE(a == b || a == 1 || b == 1, "matmul: w has a batch of ", b,
                    ", wanted 1 or x's ", a);
  check_sizes("matmul", "the product", output(), 3, 3);
  TORCH_CHECK_VALUE(compute == default_compute(), "matmul: compute is ", dtype_text(compute),
                    " for ", dtype_text(x.dtype), " data, wanted ", dtype_text(default_compute()));
  for (const TensorSpec* t : {&x, &w}) {
    bool rows = t->strides[2] == 1 && t->strides[1] >= t->sizes[2];
    bool columns = t->strides[1] == 1 && t->strides[2] >= t->sizes[1];
    TORCH_CHECK_VALUE(rows || columns, "matmul: ", t == &x ? "x" : "w", " has strides ",
                      c10::IntArrayRef(t->strides),
                      ", wanted a matrix in rows or columns without overlap");
  }
  TORCH_CHECK_VALUE(accumulate == Accumulate::none  ? !z
                    : accumulate == Accumulate::add ? z
                                                    : true,
                    "matmul: z is ", z, ", wanted ", !z, " with this accumulate");
  check_alignment("matmul", alignment, x.dtype);
}

namespace matmul {
namespace {

struct Sizes {
  std::vector<SymInt> batch, output;  // the batch as broadcast
  SymInt m, k, n;
};

// Sizes with the transposes applied; raises where they do not fit.
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
                    ", wanted 0 where z is None");
  if (has(z)) {
    check_alike(op, "z", *z, "a", a);
    TORCH_CHECK_VALUE(at::is_expandable_to(z->sym_sizes(), s.output),
                      "torch_cudnn_ext::matmul: z has sizes ", z->sym_sizes(),
                      ", wanted sizes that broadcast to ", SymIntArrayRef(s.output));
  }
  return s;
}

Activation activation_of(std::string_view word) {
  return activation_from_text("torch_cudnn_ext::matmul: activation", word);
}

// Matrices in rows or columns that do not overlap, as kernels take them; `t` is [batch, m, n].
Tensor as_matrices(const Tensor& t) {
  int64_t rows = t.size(-2), columns = t.size(-1), down = t.stride(-2), right = t.stride(-1);
  bool in_rows = (right == 1 || columns == 1) && (down >= columns || rows == 1);
  bool in_columns = (down == 1 || rows == 1) && (right >= rows || columns == 1);
  bool apart = t.stride(0) != 0 || t.size(0) == 1;
  return (in_rows || in_columns) && apart ? t : t.contiguous();
}

// [batch, rows, columns], with a batch of 1 where one matrix serves all.
Tensor with_one_batch(const Tensor& t, at::IntArrayRef batch) {
  int64_t rows = t.size(-2), columns = t.size(-1);
  if (t.numel() == rows * columns) return as_matrices(t.reshape({1, rows, columns}));
  std::vector<int64_t> sizes(batch.begin(), batch.end());
  sizes.push_back(rows);
  sizes.push_back(columns);
  Tensor expanded = t.sizes() == sizes ? t : t.expand(sizes);
  return as_matrices(expanded.reshape({-1, rows, columns}));
}

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
  if (s.k == 0) {  // a sum of nothing
    result.zero_();
    if (has_z) result.add_(*z, beta);
    if (has_bias) result.add_(*bias);
    return act == Activation::relu ? result.relu_() : result;
  }
  Tensor left = transpose_a ? a.transpose(-1, -2) : a;
  Tensor right = transpose_b ? b.transpose(-1, -2) : b;
  // One matrix on the right and rows that follow one another on the left are one product.
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
  execute(p, resolve_policy(MatmulProblem::kFamily, policy), device_of(a.device()), bindings);
  return bindings[Role::y].view(sizes);
}

Tensor forward_meta(const Tensor& a, const Tensor& b, const OptionalTensor& bias, bool transpose_a,
                    bool transpose_b, double alpha, double beta, const OptionalTensor& z,
                    std::string_view activation, OptionalPolicy) {
  Sizes s = check_arguments(a, b, bias, transpose_a, transpose_b, beta, z);
  activation_of(activation);
  return at::empty_symint(s.output, a.options());
}

// --- gradients

const auto& op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::matmul");
  return op;
}

// The rows of all matrices as those of one; for flatten vmap has no rule here.
Tensor as_rows(const Tensor& t) {
  c10::SymInt count = 1;
  for (int64_t i = 0; i < t.dim() - 1; ++i) count *= t.sym_size(i);
  return t.reshape_symint({count, t.sym_size(-1)});
}

struct MatmulGradient {
  static constexpr const char* kName = "TorchCudnnExtMatmulBackward";
  static constexpr size_t kInputs = 4;  // a, b, bias, z
  bool transpose_a = false, transpose_b = false, relu = false;
  double alpha = 1, beta = 0;
  std::vector<SymInt> a_sizes, b_sizes, z_sizes;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(transpose_a);
    visit(transpose_b);
    visit(relu);
    visit(alpha);
    visit(beta);
    visit(a_sizes);
    visit(b_sizes);
    visit(z_sizes);
    visit(policy);
  }

  // alpha x y, summed to these sizes.
  Tensor product(const Tensor& x, bool transpose_x, const Tensor& y, bool transpose_y,
                 SymIntArrayRef sizes) const {
    Tensor result = op().call(x, y, {}, transpose_x, transpose_y, alpha, 0, {}, "none", policy);
    return at::sum_to(result, sizes);
  }

  // `saved` is a and b, each where the other's gradient reads it, then y where relu comes last.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &a = saved[0], &b = saved[1];
    Tensor grad = relu ? at::threshold_backward(grads[0], saved[2], 0) : grads[0];
    variable_list result(kInputs);
    if (needed[0]) {
      result[0] = transpose_a ? product(b, transpose_b, grad, true, a_sizes)
                              : product(grad, false, b, !transpose_b, a_sizes);
    }
    if (needed[1]) {
      // One matrix for all rows of a: one product over all rows.
      bool rows = b_sizes.size() == 2 && a.dim() > 2 && !transpose_a;
      Tensor x = rows ? as_rows(a) : a, dy = rows ? as_rows(grad) : grad;
      result[1] = transpose_b ? product(dy, true, x, transpose_a, b_sizes)
                              : product(x, !transpose_a, dy, false, b_sizes);
    }
    if (needed[2]) result[2] = at::sum_to(grad, grad.sym_sizes().slice(grad.dim() - 1));
    if (needed[3]) result[3] = at::sum_to(grad * beta, SymIntArrayRef(z_sizes));
    return result;
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b,
                        const OptionalTensor& bias, bool transpose_a, bool transpose_b,
                        double alpha, double beta, const OptionalTensor& z,
                        std::string_view activation, OptionalPolicy policy) {
  const Tensor& added = or_undefined(z);
  return run_with_gradient<MatmulGradient>(
      {a, b, or_undefined(bias), added}, 1,
      [&] {
        return op().redispatch(keys & c10::after_autograd_keyset, a, b, bias, transpose_a,
                               transpose_b, alpha, beta, z, activation, policy);
      },
      [&](auto& node, const auto& results) {
        MatmulGradient& g = node.gradient;
        g.transpose_a = transpose_a;
        g.transpose_b = transpose_b;
        g.alpha = alpha;
        g.beta = beta;
        g.relu = activation_of(activation) == Activation::relu;
        g.a_sizes = a.sym_sizes().vec();
        g.b_sizes = b.sym_sizes().vec();
        if (added.defined()) g.z_sizes = added.sym_sizes().vec();
        g.policy = policy_to_save(MatmulProblem::kFamily, policy);
        if (g.relu) save_result(node, results[0]);
      },
      [&](auto& node) {
        save_input(node, node.should_compute_output(1) ? a : Tensor());
        save_input(node, node.should_compute_output(0) ? b : Tensor());
      });
}

// In the lower type, as PyTorch casts for its own products.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                        bool transpose_a, bool transpose_b, double alpha, double beta,
                        const OptionalTensor& z, std::string_view activation,
                        OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device);
  auto cast = [&](const auto& t) { return at::autocast::cached_cast(dtype, t, device); };
  return op().call(cast(a), cast(b), cast(bias), transpose_a, transpose_b, alpha, beta, cast(z),
                   activation, policy);
}

// --- what the core must know

class MatmulOperator : public OperatorOf<MatmulProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute",
            "row-major, column-major; batches",
            "no f64; f32 only as TF32; bias, relu, alpha and beta are fused",
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
    if (p.activation == Activation::relu) y.relu_();
    Bindings out;
    out[Role::y] = y;
    return out;
  }

  // Roundings of the output and the epilogue, plus the error of a sum of k terms; TF32 keeps 10
  // bits of each factor.
  double tolerance(const MatmulProblem& p, const Notes& notes) const override {
    double sum = epsilon_of(p.compute) * std::sqrt(cost(p).reduction_length);
    double tolerance = 4 * epsilon_of(p.x.dtype) + 4 * sum;
    if (notes.has(Note::tf32)) tolerance += 2e-3;
    if (notes.has(Note::down_convert)) {
      tolerance += 8e-3 + epsilon_of(at::kHalf) * std::sqrt(cost(p).reduction_length);
    }
    return tolerance;
  }

  std::vector<std::string> heuristic_order(const MatmulProblem&) const override {
    return {"aten", "graph"};
  }
};

const RegisterOperator<MatmulOperator> registered;

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { m.impl("matmul", TORCH_FN(forward)); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { m.impl("matmul", TORCH_FN(forward)); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { m.impl("matmul", TORCH_FN(forward_meta)); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) { m.impl("matmul", TORCH_FN(forward_autograd)); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("matmul", TORCH_FN(forward_autocast<at::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("matmul", TORCH_FN(forward_autocast<at::kCUDA>));
}

}  // namespace matmul
}  // namespace torch_cudnn_ext
