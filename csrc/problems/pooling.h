// The problem of pooling by maximum, average and sum.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class PoolingMode : uint8_t { max, avg_include, avg_exclude, sum };
inline constexpr EnumName<PoolingMode> kPoolingModes[] = {{PoolingMode::max, "max"},
                                                          {PoolingMode::avg_include, "avg_include"},
                                                          {PoolingMode::avg_exclude, "avg_exclude"},
                                                          {PoolingMode::sum, "sum"}};
inline const auto& enum_names(PoolingMode) { return kPoolingModes; }

// Pooling over windows of a plane or a volume; a line is a plane of height 1. All tensors have x's
// dtype and layout, which is contiguous or channels-last.
struct PoolingProblem {
  static constexpr const char* kFamily = "pool";

  Pass pass = Pass::fwd;
  TensorSpec x;
  Dims window;  // if adaptive: the sizes of the output
  Dims padding, stride, dilation;
  PoolingMode mode = PoolingMode::max;
  bool ceil = false;      // a last window may reach beyond the padding
  bool adaptive = false;  // windows have different sizes, as even as possible
  int64_t divisor = 1;    // of sums
  bool train = false;     // of a maximum: saves what its backward reads
  int64_t alignment = 16;

  int spatial_dims() const { return x.sizes.size() - 2; }
  int64_t window_volume() const;
  bool is_average_gradient() const { return pass == Pass::bwd && mode != PoolingMode::max; }
  bool has_one_window() const;  // which is all of x
  TensorSpec y() const;
  // A maximum and its backward run the same algorithm, so both have aligned tensors.
  bool takes_any_alignment() const {
    return !train && (mode != PoolingMode::max || pass == Pass::fwd);
  }
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("window", p.window, Dims(p.spatial_dims(), 1));
    visit.written("pad", p.padding, Dims(p.spatial_dims(), 0));
    visit.written("stride", p.stride, p.window);
    visit.written("dilation", p.dilation, Dims(p.spatial_dims(), 1));
    visit.written("mode", p.mode, PoolingMode::max);
    visit.optional("ceil", p.ceil, false);
    visit.optional("adaptive", p.adaptive, false);
    visit.optional("divisor", p.divisor, int64_t{1});
    visit.optional("train", p.train, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
