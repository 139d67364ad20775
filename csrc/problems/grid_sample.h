// The problem of sampling a tensor at the points of a grid.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// The values of both enumerations are those of PyTorch's operators.
enum class SampleMode : uint8_t { bilinear, nearest, bicubic };
inline constexpr EnumName<SampleMode> kSampleModes[] = {{SampleMode::bilinear, "bilinear"},
                                                        {SampleMode::nearest, "nearest"},
                                                        {SampleMode::bicubic, "bicubic"}};
inline const auto& enum_names(SampleMode) { return kSampleModes; }

enum class SamplePadding : uint8_t { zeros, border, reflection };
inline constexpr EnumName<SamplePadding> kSamplePaddings[] = {
    {SamplePadding::zeros, "zeros"},
    {SamplePadding::border, "border"},
    {SamplePadding::reflection, "reflection"}};
inline const auto& enum_names(SamplePadding) { return kSamplePaddings; }

// The values of x at the points of a grid. Results are contiguous.
struct GridSampleProblem {
  static constexpr const char* kFamily = "grid_sample";

  Pass pass = Pass::fwd;
  TensorSpec x;     // [N, C, *space]
  TensorSpec grid;  // [N, *output space, d], contiguous
  SampleMode mode = SampleMode::bilinear;
  SamplePadding padding = SamplePadding::zeros;
  bool align_corners = false;
  bool input_gradient = true;  // of bwd: whether it gives dx in addition to dgrid
  int64_t alignment = 16;

  int spatial_dims() const { return x.sizes.size() - 2; }
  TensorSpec output() const;
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("grid", p.grid);
    visit.written("mode", p.mode, SampleMode::bilinear);
    visit.written("padding", p.padding, SamplePadding::zeros);
    visit.written("align_corners", p.align_corners, false);
    visit.optional("input_gradient", p.input_gradient, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
