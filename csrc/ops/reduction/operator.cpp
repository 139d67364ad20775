// Reductions over any dimensions: argument checks, Problem, gradients, and what the core must know
// of them.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "core/select/execute.h"
#include "ops/autograd.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {

Dims ReduceProblem::reduced_dims() const {
  Dims dims;
  for (int i = 0; i < x.sizes.size(); ++i) {
    if (reduces(i)) dims.push_back(i);
  }
  return dims;
}

Dims ReduceProblem::rows_order() const {
  Dims order;
  for (int i = 0; i < x.sizes.size(); ++i) {
    if (!reduces(i)) order.push_back(i);
  }
  for (int64_t dim : reduced_dims()) order.push_back(dim);
  return order;
}

int64_t ReduceProblem::reduced_count() const {
  int64_t count = 1;
  for (int64_t dim : reduced_dims()) count *= x.sizes[static_cast<int>(dim)];
  return count;
}

TensorSpec ReduceProblem::output() const {
  TensorSpec y = x;
  for (int64_t dim : reduced_dims()) y.sizes[static_cast<int>(dim)] = 1;
  y.strides = contiguous_strides(y.sizes);
  return y;
}

namespace {

// Sizes of 1 are left out, and neighbours that are both reduced or both kept are one dimension.
struct Folded {
  Dims sizes;
  bool first_reduced = true;
};

template <class Reduces>
Folded fold(c10::IntArrayRef sizes, Reduces&& reduces) {
  Folded out;
  bool last = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    bool reduced = reduces(static_cast<int>(i));
    if (out.sizes.empty()) {
      out.first_reduced = reduced;
    } else if (reduced == last) {
      out.sizes[out.sizes.size() - 1] *= sizes[i];
      continue;
    }
    last = reduced;
    out.sizes.push_back(sizes[i]);
  }
  if (out.sizes.empty()) {
    out.sizes = {1};
  } else if (out.sizes.size() == 1 && !out.first_reduced) {
    out.sizes.push_back(1);
  }
  return out;
}

}  // namespace

// Only from texts can x be anything but folded.
void ReduceProblem::canonicalise() {
  Folded folded = fold(x.sizes, [&](int i) { return reduces(i); });
  bool contiguous = x.strides == contiguous_strides(x.sizes);
  x.sizes = folded.sizes;
  if (contiguous) x.strides = contiguous_strides(x.sizes);
  first_reduced = folded.first_reduced;
}

void ReduceProblem::validate() const {
  check_sizes("reduce", "x", x, 1, kMaxDims);
  TORCH_CHECK_VALUE(x.strides == contiguous_strides(x.sizes),
                    "reduce: x has other strides than its sizes say, wanted :nchw");
  TORCH_CHECK_VALUE(!indices || kind == ReduceKind::min || kind == ReduceKind::max,
                    "reduce: indices is true, wanted it with min and max alone");
  check_alignment("reduce", alignment, x.dtype);
}

namespace reduction {
namespace {

using Indexed = std::tuple<Tensor, Tensor>;

// The dimensions to reduce, wrapped and in order; all where none are given.
std::vector<int64_t> check_dims(const char* op, const Tensor& t, at::OptionalIntArrayRef dims) {
  std::vector<int64_t> all(t.dim());
  std::iota(all.begin(), all.end(), 0);
  if (!dims || dims->empty()) return all;
  int64_t limit = std::max<int64_t>(t.dim(), 1);
  std::vector<int64_t> wrapped;
  for (int64_t dim : *dims) {
    TORCH_CHECK_VALUE(dim >= -limit && dim < limit, "torch_cudnn_ext::", op, ": dim is ", dim,
                      ", wanted at least ", -limit, " and less than ", limit,
                      " for input of sizes ", t.sym_sizes());
    wrapped.push_back(dim < 0 ? dim + limit : dim);
  }
  std::sort(wrapped.begin(), wrapped.end());
  auto twice = std::adjacent_find(wrapped.begin(), wrapped.end());
  TORCH_CHECK_VALUE(twice == wrapped.end(), "torch_cudnn_ext::", op, ": dim names dimension ",
                    twice == wrapped.end() ? 0 : *twice, " twice, wanted each at most once");
  return t.dim() == 0 ? all : wrapped;
}

bool contains(const std::vector<int64_t>& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

ReduceKind kind_of(const char* op, std::string_view kind) {
  return reduce_kind_from_text(c10::str("torch_cudnn_ext::", op, ": kind"), kind);
}

std::vector<SymInt> output_sizes(const Tensor& t, const std::vector<int64_t>& dims, bool keepdim) {
  std::vector<SymInt> sizes;
  for (int64_t i = 0; i < t.dim(); ++i) {
    bool reduced = contains(dims, i);
    if (reduced && keepdim) sizes.emplace_back(1);
    if (!reduced) sizes.push_back(t.sym_size(i));
  }
  return sizes;
}

// What nothing is reduced to; minima and maxima of nothing are an error, as PyTorch has it.
Tensor reduce_nothing(const char* op, const Tensor& input, const std::vector<int64_t>& dims,
                      ReduceKind kind, at::IntArrayRef sizes) {
  Tensor y = at::empty(sizes, input.options());
  if (y.numel() == 0) return y;
  bool has_none = kind == ReduceKind::min || kind == ReduceKind::max || kind == ReduceKind::absmax;
  TORCH_CHECK_INDEX(!has_none, "torch_cudnn_ext::", op, ": input has sizes ", input.sizes(),
                    " and dim ", at::IntArrayRef(dims), ", wanted at least one element to reduce");
  bool product = kind == ReduceKind::mul || kind == ReduceKind::mul_no_zeros;
  return y.fill_(product                    ? 1.0
                 : kind == ReduceKind::mean ? std::numeric_limits<double>::quiet_NaN()
                                            : 0.0);
}

// Dimensions in the order of memory, outermost first; those that count indices stay in order. Of
// more than a problem may have in turns, those to reduce come last.
std::vector<int64_t> memory_order(const Tensor& t, const std::vector<int64_t>& dims,
                                  bool keep_order) {
  std::vector<int64_t> order(t.dim());
  std::iota(order.begin(), order.end(), 0);
  if (t.dim() > kMaxDims) {
    std::stable_partition(order.begin(), order.end(),
                          [&](int64_t dim) { return !contains(dims, dim); });
    return order;
  }
  if (keep_order || !is_dense(t)) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return t.stride(a) > t.stride(b); });
  return order;
}

// The values, and the indices where `indices` is set, of sizes with 1 for what was reduced.
Indexed run(const Tensor& input, ReduceKind kind, const std::vector<int64_t>& dims, bool indices,
            OptionalPolicy policy) {
  std::vector<int64_t> order = memory_order(input, dims, indices);
  Tensor x = input.permute(order).contiguous();
  ReduceProblem p;
  p.kind = kind;
  p.indices = indices;
  // Folded here, since a tensor may have more dimensions than a problem.
  auto reduced = [&](int64_t i) { return contains(dims, order[i]); };
  Folded folded = fold(x.sizes(), reduced);
  p.first_reduced = folded.first_reduced;
  p.x = {x.scalar_type(), folded.sizes, contiguous_strides(folded.sizes)};
  p.alignment = alignment_of({&x});
  Bindings bindings;
  bindings[Role::x] = x.view(p.x.sizes);
  execute(p, resolve_policy(ReduceProblem::kFamily, policy), device_of(x.device()), bindings);
  std::vector<int64_t> kept(x.dim());
  for (int64_t i = 0; i < x.dim(); ++i) kept[i] = reduced(i) ? 1 : x.size(i);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  auto unfold = [&](const Tensor& t) {
    return t.defined() ? t.view(kept).permute(back).contiguous() : t;
  };
  return {unfold(bindings[Role::y]), unfold(bindings[Role::indices])};
}

Tensor forward(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
               bool keepdim, OptionalPolicy policy) {
  check_dtype("reduce", "input", input);
  std::vector<int64_t> dims = check_dims("reduce", input, dim);
  ReduceKind op = kind_of("reduce", kind);
  c10::OptionalDeviceGuard guard(input.device());
  auto symbols = output_sizes(input, dims, keepdim);
  auto sizes = C10_AS_INTARRAYREF_SLOW_ALLOC(symbols);
  if (input.numel() == 0) return reduce_nothing("reduce", input, dims, op, sizes);
  return std::get<0>(run(input, op, dims, false, policy)).view(sizes);
}

Tensor forward_meta(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
                    bool keepdim, OptionalPolicy) {
  check_dtype("reduce", "input", input);
  kind_of("reduce", kind);
  return at::empty_symint(output_sizes(input, check_dims("reduce", input, dim), keepdim),
                          input.options());
}

ReduceKind check_indexed_kind(std::string_view kind) {
  ReduceKind op = kind_of("reduce_with_indices", kind);
  TORCH_CHECK_VALUE(op == ReduceKind::min || op == ReduceKind::max,
                    "torch_cudnn_ext::reduce_with_indices: kind is ", kind, ", wanted min or max");
  return op;
}

Indexed with_indices(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
                     bool keepdim, OptionalPolicy policy) {
  const char* name = "reduce_with_indices";
  check_dtype(name, "input", input);
  std::vector<int64_t> dims = check_dims(name, input, dim);
  ReduceKind op = check_indexed_kind(kind);
  c10::OptionalDeviceGuard guard(input.device());
  auto symbols = output_sizes(input, dims, keepdim);
  auto sizes = C10_AS_INTARRAYREF_SLOW_ALLOC(symbols);
  if (input.numel() == 0) {
    Tensor values = reduce_nothing(name, input, dims, op, sizes);
    return {values, at::empty(sizes, input.options().dtype(at::kLong))};
  }
  auto [values, indices] = run(input, op, dims, true, policy);
  return {values.view(sizes), indices.view(sizes)};
}

Indexed with_indices_meta(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
                          bool keepdim, OptionalPolicy) {
  check_dtype("reduce_with_indices", "input", input);
  check_indexed_kind(kind);
  auto sizes = output_sizes(input, check_dims("reduce_with_indices", input, dim), keepdim);
  return {at::empty_symint(sizes, input.options()),
          at::empty_symint(sizes, input.options().dtype(at::kLong))};
}

// --- gradients

// The product of all other elements along the reduced dimensions, without dividing.
Tensor product_of_others(const Tensor& x, const std::vector<int64_t>& dims) {
  if (dims.empty() || x.sym_numel() == 0) return at::ones_like(x);
  std::vector<int64_t> last(dims.size());
  std::iota(last.begin(), last.end(), x.dim() - static_cast<int64_t>(dims.size()));
  Tensor moved = x.movedim(dims, last);
  Tensor rows = moved.flatten(last[0]);
  auto of_those_before = [](const Tensor& t) {
    return at::constant_pad_nd(t, {1, -1}, 1).cumprod(-1);
  };
  Tensor others = of_those_before(rows) * of_those_before(rows.flip(-1)).flip(-1);
  return others.reshape_symint(moved.sym_sizes())
      .movedim(last, dims)
      .contiguous(x.suggest_memory_format());
}

struct ReduceGradient {
  static constexpr const char* kName = "TorchCudnnExtReduceBackward";
  static constexpr size_t kInputs = 1;
  std::string kind;
  std::vector<int64_t> dims;
  std::vector<SymInt> sizes;  // of the input

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(dims);
    visit(sizes);
  }

  // With sizes of 1 for what was reduced.
  Tensor spread(const Tensor& t) const {
    std::vector<SymInt> kept = sizes;
    for (int64_t dim : dims) kept[dim] = 1;
    return t.reshape_symint(kept);
  }
  SymInt count() const {
    SymInt count = 1;
    for (int64_t dim : dims) count *= sizes[dim];
    return count;
  }

  // Of each of several equal extremes. Their number may be none that float16 has.
  Tensor share_of(const Tensor& g, const Tensor& hit) const {
    Tensor share = g.to(compute_dtype(g.scalar_type())) / hit.sum(dims, true);
    return share.to(g.scalar_type());
  }

  // `saved` is x and y where the gradient reads them. Equal extremes share it, as PyTorch's do.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    Tensor g = spread(grads[0]);
    ReduceKind op = kind_of("reduce", kind);
    if (op == ReduceKind::add) return {g.expand_symint(sizes)};
    if (op == ReduceKind::mean) return {g.expand_symint(sizes) / count()};
    const Tensor& x = saved[0];
    Tensor y = spread(saved[1]);
    switch (op) {
      case ReduceKind::min:
      case ReduceKind::max: {
        Tensor hit = x == y;
        return {hit * share_of(g, hit)};
      }
      case ReduceKind::absmax: {
        Tensor hit = x.abs() == y;
        return {hit * x.sign() * share_of(g, hit)};
      }
      case ReduceKind::norm1:
        return {g * x.sign()};
      case ReduceKind::norm2: {
        Tensor zero = y == 0;
        return {x * (g / y.masked_fill(zero, 1)).masked_fill(zero, 0)};
      }
      default: {
        Tensor zero = x == 0;
        Tensor quotient = y / x.masked_fill(zero, 1);
        if (op == ReduceKind::mul_no_zeros) return {(g * quotient).masked_fill(zero, 0)};
        // Only where there are zeros: products of some may overflow where that of all does not.
        Tensor any_zero = dims.empty() ? zero : zero.any(dims, true);
        Tensor others = product_of_others(at::where(any_zero, x, 1), dims);
        return {g * at::where(any_zero, others, quotient)};
      }
    }
  }
};

const auto& op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::reduce");
  return op;
}
const auto& with_indices_op() {
  static auto op = find_op<decltype(with_indices)>("torch_cudnn_ext::reduce_with_indices");
  return op;
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, std::string_view kind,
                        at::OptionalIntArrayRef dim, bool keepdim, OptionalPolicy policy) {
  return run_with_gradient<ReduceGradient>(
      {input}, 1,
      [&] {
        return op().redispatch(keys & c10::after_autograd_keyset, input, kind, dim, keepdim,
                               policy);
      },
      [&](auto& node, const auto& results) {
        node.gradient.kind = kind;
        node.gradient.dims = check_dims("reduce", input, dim);
        node.gradient.sizes = input.sym_sizes().vec();
        ReduceKind op = kind_of("reduce", kind);
        if (op == ReduceKind::add || op == ReduceKind::mean) return;
        save_input(node, input);
        save_result(node, results[0]);
      });
}

// To the element that the index names, alone.
struct ReduceWithIndicesGradient {
  static constexpr const char* kName = "TorchCudnnExtReduceWithIndicesBackward";
  static constexpr size_t kInputs = 1;
  std::vector<int64_t> dims;
  std::vector<SymInt> sizes;  // of the input

  template <class F>
  void attributes(F&& visit) {
    visit(dims);
    visit(sizes);
  }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0] || !grads[0].defined()) return {Tensor()};
    // Kept dimensions, then the reduced ones, first as one.
    std::vector<int64_t> order, back(sizes.size());
    std::vector<SymInt> kept;
    SymInt count = 1;
    for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i) {
      if (contains(dims, i)) continue;
      order.push_back(i);
      kept.push_back(sizes[i]);
    }
    std::vector<SymInt> flat = kept, ordered = kept;
    for (int64_t dim : dims) {
      order.push_back(dim);
      ordered.push_back(sizes[dim]);
      count *= sizes[dim];
    }
    for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
    flat.push_back(count);
    kept.emplace_back(1);
    Tensor zeros = at::zeros_symint(flat, grads[0].options());
    Tensor dx = zeros.scatter(-1, saved[0].reshape_symint(kept), grads[0].reshape_symint(kept));
    return {dx.reshape_symint(ordered).permute(back)};
  }
};

Indexed with_indices_autograd(c10::DispatchKeySet keys, const Tensor& input, std::string_view kind,
                              at::OptionalIntArrayRef dim, bool keepdim, OptionalPolicy policy) {
  return run_with_gradient<ReduceWithIndicesGradient>(
      {input}, 1,
      [&] {
        return with_indices_op().redispatch(keys & c10::after_autograd_keyset, input, kind, dim,
                                            keepdim, policy);
      },
      [&](auto& node, const auto& results) {
        node.gradient.dims = check_dims("reduce_with_indices", input, dim);
        node.gradient.sizes = input.sym_sizes().vec();
        save_input(node, results[1]);  // it has no history
      });
}

// --- autocast: PyTorch has products in float32, and on CUDA sums and norms too

template <c10::DeviceType kDevice>
Tensor forward_autocast(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
                        bool keepdim, OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  ReduceKind k = kind_of("reduce", kind);
  bool product = k == ReduceKind::mul || k == ReduceKind::mul_no_zeros;
  bool sum = k == ReduceKind::add || k == ReduceKind::norm1 || k == ReduceKind::norm2;
  bool widens = product || (sum && kDevice == at::kCUDA);
  return op().call(widens ? at::autocast::cached_cast(at::kFloat, input, kDevice) : input, kind,
                   dim, keepdim, policy);
}

// --- what the core must know

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

  // Products keep near to 1, and have no zeros but for those that are left out. Extremes are
  // unique: every algorithm must name the same index.
  void prepare_scratch(const ReduceProblem& p, Bindings& bindings) const override {
    Tensor& x = bindings[Role::x];
    if (p.kind == ReduceKind::mul || p.kind == ReduceKind::mul_no_zeros) {
      Tensor zeros = x.abs() < 0.3;
      x.copy_((x.to(at::kDouble) / std::sqrt(2.0 * p.reduced_count())).exp());
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

  // Rounding of the output, plus the error of a sum of that many terms; of a product each factor
  // adds its rounding.
  double tolerance(const ReduceProblem& p, const Notes&) const override {
    auto compute = compute_dtype(p.x.dtype);
    return 2 * epsilon_of(p.x.dtype) +
           8 * epsilon_of(compute) * std::sqrt(static_cast<double>(p.reduced_count()));
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

void register_kernels(torch::Library& m) {
  m.impl("reduce", TORCH_FN(forward));
  m.impl("reduce_with_indices", TORCH_FN(with_indices));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("reduce", TORCH_FN(forward_meta));
  m.impl("reduce_with_indices", TORCH_FN(with_indices_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("reduce", TORCH_FN(forward_autograd));
  m.impl("reduce_with_indices", TORCH_FN(with_indices_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("reduce", TORCH_FN(forward_autocast<at::kCPU>));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("reduce", TORCH_FN(forward_autocast<at::kCUDA>));
}

}  // namespace reduction
}  // namespace torch_cudnn_ext
