// The problem of reductions over any dimensions.
#pragma once

#include <string_view>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class ReduceKind : uint8_t {
  add,
  mul,
  min,
  max,
  absmax,
  mean,
  norm1,
  norm2,
  mul_no_zeros,
};
inline constexpr EnumName<ReduceKind> kReduceKinds[] = {{ReduceKind::add, "add"},
                                                        {ReduceKind::mul, "mul"},
                                                        {ReduceKind::min, "min"},
                                                        {ReduceKind::max, "max"},
                                                        {ReduceKind::absmax, "absmax"},
                                                        {ReduceKind::mean, "mean"},
                                                        {ReduceKind::norm1, "norm1"},
                                                        {ReduceKind::norm2, "norm2"},
                                                        {ReduceKind::mul_no_zeros, "mul_no_zeros"}};
inline const auto& enum_names(ReduceKind) { return kReduceKinds; }
inline ReduceKind reduce_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kReduceKinds, what, text);
}

// x is contiguous. Adjacent dimensions that are all reduced or all kept are merged into one, and
// dimensions of size 1 are removed, so that reduced and kept dimensions alternate. At least one is
// reduced. y has the rank of x, with size 1 for each reduced dimension.
struct ReduceProblem {
  static constexpr const char* kFamily = "reduce";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec x;
  bool first_reduced = false;  // whether dimension 0 is reduced
  ReduceKind kind = ReduceKind::add;
  bool indices = false;  // of min or max, counted over the reduced dimensions
  int64_t alignment = 16;

  bool reduces(int dim) const { return (dim % 2 == 0) == first_reduced; }
  Dims reduced_dims() const;
  Dims rows_order() const;  // the kept dimensions, then the reduced ones
  int64_t reduced_count() const;
  TensorSpec output() const;
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("first_reduced", p.first_reduced, false);
    visit.required("kind", p.kind);
    visit.optional("indices", p.indices, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
