// The problem of conversions between layouts and types.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// One dimension of a conversion; its strides are in elements.
struct TransformStep {
  int64_t size, x, y;
};
using TransformSteps = c10::SmallVector<TransformStep, kMaxDims>;
// The dimensions in the order of y's memory, outermost first.
TransformSteps steps_in_order_of_y(c10::IntArrayRef sizes, c10::IntArrayRef x_strides,
                                   c10::IntArrayRef y_strides);

// y holds the elements of x in strides and a type of its own. Dimensions are in the order of x's
// memory. Neighbours that follow one another in both tensors are merged, and dimensions of size 1
// are removed; if fewer than three are left, ones lead. So a dense tensor that keeps its order is
// [1, 1, n]. A conversion between NCHW and NHWC, in either direction, has one matrix an image,
// which goes from :nchw to :nhwc.
struct TransformProblem {
  static constexpr const char* kFamily = "transform";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec x, y;  // of the same sizes; no two elements of y share memory
  int64_t alignment = 16;

  // The problem of tensors of any number of dimensions, in canonical form. nullopt if it has more
  // dimensions than a problem can have, or if elements of x repeat by a stride of 0.
  static std::optional<TransformProblem> of(c10::IntArrayRef sizes, c10::ScalarType x_dtype,
                                            c10::IntArrayRef x_strides, c10::ScalarType y_dtype,
                                            c10::IntArrayRef y_strides);

  // Whether both tensors hold the same elements in the same order, without gaps.
  bool keeps_order() const { return x.strides == y.strides && is_packed(x); }
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.layout("y", p.y,
                 [&] { return TensorSpec{p.y.dtype, p.x.sizes, contiguous_strides(p.x.sizes)}; });
    visit.optional("dtype", p.y.dtype, p.x.dtype);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
