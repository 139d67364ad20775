// Kernels and schemas of reductions over any dimensions.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/call.h"
#include "ops/reduction/reduction.h"
#include "ops/schema.h"
#include "problems/folded_dims.h"

namespace torch_cudnn_ext::reduction {

std::vector<int64_t> check_dims(const char* op, const Tensor& t, at::OptionalIntArrayRef dims) {
  std::vector<int64_t> all(t.dim());
  std::iota(all.begin(), all.end(), 0);
  if (!dims || dims->empty()) return all;
  std::vector<int64_t> wrapped;
  for (int64_t dim : *dims) wrapped.push_back(check_dim(op, t, dim));
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
  auto known = known_enum_value(kReduceKinds, kind);  // without a text for an error
  if (known) return *known;
  return reduce_kind_from_text(c10::str("torch_cudnn_ext::", op, ": kind"), kind);
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<int64_t>(i);
  return places;
}

namespace {

ReduceKind checked_kind(const ReduceArgs& a) { return kind_of(a.kName, a.kind); }

ReduceKind checked_kind(const IndexedArgs& a) {
  ReduceKind kind = kind_of(a.kName, a.kind);
  TORCH_CHECK_VALUE(kind == ReduceKind::min || kind == ReduceKind::max,
                    "torch_cudnn_ext::reduce_with_indices: kind is ", a.kind,
                    ", wanted min or max");
  return kind;
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

// The result of no elements. Minima and maxima of none are an error, as in PyTorch.
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

// Dimensions in the order of memory, outermost first. They stay in order if indices count over
// them. If there are more than a problem may have, those to reduce come last.
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

// The values, and the indices if `indices` is set. Reduced dimensions have the size 1.
IndexedArgs::Result run(const Tensor& input, ReduceKind kind, const std::vector<int64_t>& dims,
                        bool indices, OptionalPolicy policy) {
  std::vector<int64_t> order = memory_order(input, dims, indices);
  Tensor x = input.permute(order).contiguous();
  ReduceProblem p;
  p.kind = kind;
  p.indices = indices;
  // A tensor may have more dimensions than a problem.
  auto reduced = [&](int64_t i) { return contains(dims, order[i]); };
  FoldedDims folded = fold_dims(x.sizes(), reduced);
  p.first_reduced = folded.first_reduced;
  p.x = {x.scalar_type(), folded.sizes, contiguous_strides(folded.sizes)};
  p.alignment = alignment_of({&x});
  Bindings bindings;
  bindings[Role::x] = x.view(p.x.sizes);
  run_problem(p, policy, x, bindings);
  std::vector<int64_t> kept(x.dim());
  for (int64_t i = 0; i < x.dim(); ++i) kept[i] = reduced(i) ? 1 : x.size(i);
  auto unfold = [&](const Tensor& t) {
    return t.defined() ? t.view(kept).permute(inverse(order)).contiguous() : t;
  };
  return {unfold(bindings[Role::y]), unfold(bindings[Role::indices])};
}

// The result, with indices if `Args` asks for them.
template <class Args>
IndexedArgs::Result reduce(const Args& a) {
  constexpr bool kIndices = std::is_same_v<Args, IndexedArgs>;
  const Tensor& input = a.input;
  check_dtype(a.kName, "input", input);
  std::vector<int64_t> dims = check_dims(a.kName, input, a.dim);
  ReduceKind kind = checked_kind(a);
  c10::OptionalDeviceGuard guard(input.device());
  auto symbols = output_sizes(input, dims, a.keepdim);
  auto sizes = C10_AS_INTARRAYREF_SLOW_ALLOC(symbols);
  if (input.numel() == 0) {
    Tensor values = reduce_nothing(a.kName, input, dims, kind, sizes);
    return {values, kIndices ? at::empty(sizes, input.options().dtype(at::kLong)) : Tensor()};
  }
  auto [values, indices] = run(input, kind, dims, kIndices, a.policy);
  return {values.view(sizes), kIndices ? indices.view(sizes) : Tensor()};
}

Tensor forward(const ReduceArgs& a) { return std::get<0>(reduce(a)); }

IndexedArgs::Result with_indices(const IndexedArgs& a) { return reduce(a); }

template <class Args>
Tensor values_meta(const Args& a) {
  check_dtype(a.kName, "input", a.input);
  checked_kind(a);
  std::vector<int64_t> dims = check_dims(a.kName, a.input, a.dim);
  return at::empty_symint(output_sizes(a.input, dims, a.keepdim), a.input.options());
}

IndexedArgs::Result with_indices_meta(const IndexedArgs& a) {
  Tensor values = values_meta(a);
  return {values, at::empty_symint(values.sym_sizes(), values.options().dtype(at::kLong))};
}

}  // namespace

// kind is add, mul, min, max, absmax, mean, norm1, norm2 or mul_no_zeros; dim is all dimensions if
// it is not given. Indices, of min and max, count over the reduced dimensions.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m, {"reduce(Tensor input, str kind, int[1]? dim=None, bool keepdim=False, *, str? "
             "policy=None) -> Tensor",
             "reduce_with_indices(Tensor input, str kind, int[1]? dim=None, bool keepdim=False, *, "
             "str? policy=None) -> (Tensor values, Tensor indices)"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward, with_indices>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward, with_indices>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<values_meta<ReduceArgs>, with_indices_meta>(m);
}

}  // namespace torch_cudnn_ext::reduction
