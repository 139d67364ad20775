// The form of a reduction that its problem has: neighbouring dimensions that are both reduced or
// both kept are one dimension, and those of size 1 are left out. Knows no tensor.
#pragma once

#include "problems/problem.h"

namespace torch_cudnn_ext {

struct FoldedDims {
  Dims sizes;
  bool first_reduced = true;
};

// `reduces` tells of an index of `sizes` whether that dimension is reduced. The sizes may be more
// than a problem can have.
template <class Reduces>
FoldedDims fold_dims(c10::IntArrayRef sizes, Reduces&& reduces) {
  FoldedDims out;
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

}  // namespace torch_cudnn_ext
