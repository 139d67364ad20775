// The problem of batched matrix products.
#pragma once

#include <algorithm>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// y = activation(alpha x w + beta z + bias). x is [batch, m, k] and w is [batch, k, n]; a batch of
// 1 serves all products of the other one. y and z are [batch, m, n] and contiguous, bias is [n].
// Strides express a transpose. There is no backward: gradients are matrix products too.
struct MatmulProblem {
  static constexpr const char* kFamily = "matmul";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec x, w;
  c10::ScalarType compute = c10::ScalarType::Float;
  int64_t alignment = 16;
  bool bias = false;
  Activation activation = Activation::none;
  Accumulate accumulate = Accumulate::none;  // of z; `general` with or without one
  bool z = false;

  TensorSpec output() const {
    Dims sizes{std::max(x.sizes[0], w.sizes[0]), x.sizes[1], w.sizes[2]};
    return {x.dtype, sizes, contiguous_strides(sizes)};
  }
  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("w", p.w);
    visit.written("compute", p.compute, p.default_compute());
    visit.optional("align", p.alignment, int64_t{16});
    visit.optional("bias", p.bias, false);
    visit.optional("act", p.activation, Activation::none);
    visit.optional("accumulate", p.accumulate, Accumulate::none);
    visit.optional("z", p.z, p.accumulate != Accumulate::none);
  }
};

}  // namespace torch_cudnn_ext
