// Reductions on the CPU in two ways, in float32 at least. Elements are prepared (absolute value,
// square, ...), then combined:
//   serial  strips of neighbours with running results, and those with the first of them
//   tree    one half with the other until one is left, so that errors grow with log n
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// Values [kept, n] and, if indices are wanted, their places.
struct Items {
  Tensor values, places;

  int64_t count() const { return values.size(1); }
  Items part(int64_t first, int64_t length) const {
    return {values.narrow(1, first, length),
            places.defined() ? places.narrow(1, first, length) : places};
  }
};

Items combine(const ReduceProblem& p, const Items& a, const Items& b) {
  if (p.indices) {
    Tensor better = p.kind == ReduceKind::max ? b.values > a.values : b.values < a.values;
    Tensor nans = a.values.isnan().logical_and_(b.values.isnan());
    Tensor same = (b.values == a.values).logical_or_(nans);
    Tensor earlier = same.logical_and_(b.places < a.places);
    Tensor nan = b.values.isnan().logical_and_(a.values.isnan().logical_not_());
    Tensor take = better.logical_or_(earlier).logical_or_(nan);
    return {at::where(take, b.values, a.values), at::where(take, b.places, a.places)};
  }
  switch (p.kind) {
    case ReduceKind::min:
      return {at::minimum(a.values, b.values), {}};
    case ReduceKind::max:
    case ReduceKind::absmax:
      return {at::maximum(a.values, b.values), {}};
    case ReduceKind::mul:
    case ReduceKind::mul_no_zeros:
      return {a.values * b.values, {}};
    default:
      return {a.values + b.values, {}};
  }
}

Items serial(const ReduceProblem& p, const Items& all) {
  constexpr int64_t kStrip = 64;
  int64_t width = std::min(kStrip, all.count());
  Items lanes = all.part(0, width);
  for (int64_t first = width; first < all.count(); first += width) {
    int64_t length = std::min(width, all.count() - first);
    Items made = combine(p, lanes.part(0, length), all.part(first, length));
    if (length < width) {
      Items rest = lanes.part(length, width - length);
      made.values = at::cat({made.values, rest.values}, 1);
      if (p.indices) made.places = at::cat({made.places, rest.places}, 1);
    }
    lanes = made;
  }
  Items result = lanes.part(0, 1);
  for (int64_t i = 1; i < width; ++i) result = combine(p, result, lanes.part(i, 1));
  return result;
}

Items tree(const ReduceProblem& p, Items items) {
  while (items.count() > 1) {
    int64_t half = items.count() / 2;
    Items made = combine(p, items.part(0, half), items.part(half, half));
    if (items.count() % 2 == 1) {
      Items odd = items.part(2 * half, 1);
      made.values = at::cat({made.values, odd.values}, 1);
      if (p.indices) made.places = at::cat({made.places, odd.places}, 1);
    }
    items = made;
  }
  return items;
}

Tensor prepared(ReduceKind kind, const Tensor& x) {
  if (kind == ReduceKind::absmax || kind == ReduceKind::norm1) return x.abs();
  if (kind == ReduceKind::norm2) return x.square();
  if (kind == ReduceKind::mul_no_zeros) return x.masked_fill(x == 0, 1);
  return x;
}

constexpr const char* kReductionNames[] = {"serial", "tree"};

BuildResult build_reduction_plan(const ReduceProblem& p, const Algorithm& algorithm) {
  auto compute = compute_dtype(p.x.dtype);
  bool by_tree = algorithm.name == "tree";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    Items items{prepared(p.kind, reduced_rows(p, b[Role::x]).to(compute)), {}};
    if (p.indices) {
      items.places =
          at::arange(items.count(), b[Role::x].options().dtype(at::kLong)).expand_as(items.values);
    }
    Items result = by_tree ? tree(p, items) : serial(p, items);
    if (p.kind == ReduceKind::mean) result.values = result.values / p.reduced_count();
    if (p.kind == ReduceKind::norm2) result.values = result.values.sqrt();
    TensorSpec y = p.output();
    Tensor values = result.values.to(p.x.dtype).reshape(y.sizes);
    // A reduction of one element is a view of x.
    give(b, Role::y, y, values.is_alias_of(b[Role::x]) ? values.clone() : values);
    if (!p.indices) return;
    give(b, Role::indices, {at::kLong, y.sizes, y.strides}, result.places.reshape(y.sizes));
  });
}

const auto reduction_registered =
    cpu::register_named<ReduceProblem, kReductionNames, build_reduction_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
