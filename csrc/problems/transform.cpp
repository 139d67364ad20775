#include "problems/transform.h"

#include <algorithm>

#include "problems/checks.h"

namespace torch_cudnn_ext {

namespace {

constexpr size_t kFewestDims = 3;

using Step = TransformStep;

// The same without dimensions of size 1. Dimensions that can be merged are neighbours.
TransformSteps longer_steps(c10::IntArrayRef sizes, c10::IntArrayRef x_strides,
                            c10::IntArrayRef y_strides) {
  TransformSteps steps = steps_in_order_of_y(sizes, x_strides, y_strides);
  steps.erase(std::remove_if(steps.begin(), steps.end(), [](const Step& s) { return s.size == 1; }),
              steps.end());
  return steps;
}

TransformSteps merged(const TransformSteps& steps) {
  TransformSteps out;
  for (const Step& inner : steps) {
    bool merges = !out.empty() && out.back().x == inner.x * inner.size &&
                  out.back().y == inner.y * inner.size;
    if (merges) {
      out.back() = {out.back().size * inner.size, inner.x, inner.y};
    } else {
      out.push_back(inner);
    }
  }
  return out;
}

}  // namespace

TransformSteps steps_in_order_of_y(c10::IntArrayRef sizes, c10::IntArrayRef x_strides,
                                   c10::IntArrayRef y_strides) {
  TransformSteps steps;
  for (size_t i = 0; i < sizes.size(); ++i) {
    steps.push_back({sizes[i], x_strides[i], y_strides[i]});
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.y > b.y; });
  return steps;
}

std::optional<TransformProblem> TransformProblem::of(c10::IntArrayRef sizes,
                                                     c10::ScalarType x_dtype,
                                                     c10::IntArrayRef x_strides,
                                                     c10::ScalarType y_dtype,
                                                     c10::IntArrayRef y_strides) {
  TransformSteps steps = merged(longer_steps(sizes, x_strides, y_strides));
  bool repeats = std::any_of(steps.begin(), steps.end(), [](const Step& s) { return s.x == 0; });
  if (repeats || steps.size() > kMaxDims) return std::nullopt;
  // Dimensions of equal strides in x, which overlap, stay in the order of y.
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.x > b.x; });
  TransformProblem p;
  p.x.dtype = x_dtype;
  p.y.dtype = y_dtype;
  auto add = [&](const Step& step) {
    p.x.sizes.push_back(step.size);
    p.x.strides.push_back(step.x);
    p.y.strides.push_back(step.y);
  };
  for (size_t i = steps.size(); i < kFewestDims; ++i) add({1, 1, 1});
  for (const Step& step : steps) add(step);
  p.y.sizes = p.x.sizes;
  canonicalise_strides({&p.x, &p.y});
  return p;
}

void TransformProblem::canonicalise() {
  TransformProblem folded = of(x.sizes, x.dtype, x.strides, y.dtype, y.strides).value();
  x = folded.x;
  y = folded.y;
}

void TransformProblem::validate() const {
  check_sizes("transform", "x", x, 1, kMaxDims);
  TransformSteps steps = longer_steps(x.sizes, x.strides, y.strides);
  double reach = 0;  // in elements from the first; steps go from the largest to the smallest
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    auto stride = static_cast<double>(step->y);
    TORCH_CHECK_VALUE(stride > reach, "transform: y has the strides ", c10::IntArrayRef(y.strides),
                      " over the sizes ", c10::IntArrayRef(y.sizes),
                      ", wanted strides by which no two elements share memory");
    reach += static_cast<double>(step->size - 1) * stride;
  }
  check_sizes("transform", "y", y, 1, kMaxDims);
  check_alignment("transform", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
