// Conversions between layouts and types on the CPU in two ways, each on one thread:
//   gather  every element in the order of y's memory, so that y is written in lines
//   tiles   squares of two dimensions through a buffer, so that x is read and y is written in lines
#include <ATen/Dispatch.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

struct Step {
  int64_t size, x, y;  // strides in elements
};
using TransformSteps = std::vector<Step>;

// The dimensions in the order of y's memory, outermost first.
TransformSteps steps_of(const TransformProblem& p) {
  TransformSteps steps;
  for (int i = 0; i < p.x.sizes.size(); ++i) {
    steps.push_back({p.x.sizes[i], p.x.strides[i], p.y.strides[i]});
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.y > b.y; });
  return steps;
}

// Calls `visit` with the places in x and y of each index of the dimensions, the last one fastest.
template <class From, class To, class Visit>
void walk(c10::ArrayRef<Step> steps, const From* x, To* y, const Visit& visit) {
  if (steps.empty()) return visit(x, y);
  const Step& step = steps.front();
  for (int64_t i = 0; i < step.size; ++i) {
    walk(steps.slice(1), x + i * step.x, y + i * step.y, visit);
  }
}

template <class From, class To>
void gather(TransformSteps steps, const From* x, To* y) {
  Step line = steps.back();
  steps.pop_back();
  walk<From, To>(steps, x, y, [&](const From* from, To* to) {
    for (int64_t i = 0; i < line.size; ++i) {
      to[i * line.y] = c10::convert<To>(from[i * line.x]);
    }
  });
}

// One tile: up to kTile rows and columns, of which y has the columns in lines.
constexpr int64_t kTile = 32;
template <class From, class To>
void move_tile(const Step& rows, const Step& columns, const From* from, To* to) {
  std::array<To, kTile * kTile> buffer;
  auto read = [&](int64_t row, int64_t column) {
    buffer[row * kTile + column] = c10::convert<To>(from[row * rows.x + column * columns.x]);
  };
  if (rows.x < columns.x) {
    for (int64_t j = 0; j < columns.size; ++j) {
      for (int64_t i = 0; i < rows.size; ++i) read(i, j);
    }
  } else {
    for (int64_t i = 0; i < rows.size; ++i) {
      for (int64_t j = 0; j < columns.size; ++j) read(i, j);
    }
  }
  for (int64_t i = 0; i < rows.size; ++i) {
    for (int64_t j = 0; j < columns.size; ++j) {
      to[i * rows.y + j * columns.y] = buffer[i * kTile + j];
    }
  }
}

// The columns are y's innermost dimension. The rows are the innermost of the others in x.
template <class From, class To>
void tiles(TransformSteps steps, const From* x, To* y) {
  Step columns = steps.back();
  steps.pop_back();
  auto inner = std::min_element(steps.rbegin(), steps.rend(),
                                [](const Step& a, const Step& b) { return a.x < b.x; });
  Step rows = *inner;
  steps.erase(std::prev(inner.base()));
  walk<From, To>(steps, x, y, [&](const From* from, To* to) {
    for (int64_t i = 0; i < rows.size; i += kTile) {
      Step some_rows{std::min(kTile, rows.size - i), rows.x, rows.y};
      for (int64_t j = 0; j < columns.size; j += kTile) {
        Step some_columns{std::min(kTile, columns.size - j), columns.x, columns.y};
        move_tile(some_rows, some_columns, from + i * rows.x + j * columns.x,
                  to + i * rows.y + j * columns.y);
      }
    }
  });
}

// Calls a function with a number of this type, which tells the type.
template <class Function>
void with_type(c10::ScalarType dtype, const Function& function) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "transform",
                                  [&] { function(scalar_t{}); });
}

constexpr const char* kTransformNames[] = {"gather", "tiles"};

BuildResult build_transform_plan(const TransformProblem& p, const Algorithm& algorithm) {
  bool by_tiles = algorithm.name == "tiles";
  return make_plan(algorithm, {}, [p, by_tiles, steps = steps_of(p)](Bindings& b) {
    const at::Tensor& x = b[Role::x];
    at::Tensor& y = output_tensor(b, Role::y, p.y, x);
    with_type(p.x.dtype, [&](auto from) {
      with_type(p.y.dtype, [&](auto to) {
        using From = decltype(from);
        using To = decltype(to);
        (by_tiles ? tiles<From, To> : gather<From, To>)(steps, x.const_data_ptr<From>(),
                                                        y.mutable_data_ptr<To>());
      });
    });
  });
}

const auto transform_registered =
    cpu::register_named<TransformProblem, kTransformNames, build_transform_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
