// The problem of softmax and log-softmax.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// Tensors are [outer, n, inner] and contiguous, and the sum runs over n. A dimension of a
// contiguous tensor of any rank has this form.
struct SoftmaxProblem {
  static constexpr const char* kFamily = "softmax";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  bool log = false;
  int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&x}); }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("log", p.log, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
