// The problem of affine grids.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// A regular grid of points over [-1, 1]^d under one affine map a sample: grid[n] = base theta[n]^T.
struct AffineGridProblem {
  static constexpr const char* kFamily = "affine_grid";

  Pass pass = Pass::fwd;
  TensorSpec theta;  // [N, d, d + 1], contiguous
  TensorSpec grid;   // [N, *space, d], contiguous; space in the order of tensors, points as x, y
  bool align_corners = false;
  int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&theta}); }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("theta", p.theta);
    visit.required("grid", p.grid);
    visit.written("align_corners", p.align_corners, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
