// The problem of batch normalisation.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class BatchNormPass : uint8_t { fwd, infer, bwd };
inline constexpr EnumName<BatchNormPass> kBatchNormPasses[] = {
    {BatchNormPass::fwd, "fwd"}, {BatchNormPass::infer, "infer"}, {BatchNormPass::bwd, "bwd"}};
inline const auto& enum_names(BatchNormPass) { return kBatchNormPasses; }

// x is [N, C, S]. S is space of any rank. The statistics are those over N and S. Statistics of each
// activation are the same problem of [N, C * S, 1], so that cuDNN's modes are algorithms.
// Statistics and parameters are float32, or float64 for float64 data.
struct BatchNormProblem {
  static constexpr const char* kFamily = "batch_norm";

  BatchNormPass pass = BatchNormPass::fwd;
  TensorSpec x;          // and y, z, dy, dx
  bool running = false;  // fwd: updates running statistics
  bool z = false;        // fwd, infer: y = activation(batch_norm(x) + z)
  Activation activation = Activation::none;
  bool train = true;  // bwd: the statistics are those of x, and have a gradient
  int64_t alignment = 16;

  c10::ScalarType statistic_dtype() const { return compute_dtype(x.dtype); }
  TensorSpec statistic() const { return {statistic_dtype(), {x.sizes[1]}, {1}}; }
  // x as [N, C, S, 1], with strides that tell the layout.
  TensorSpec image(c10::ScalarType dtype) const {
    int64_t last = is_channels_last() ? x.sizes[1] : 1;
    return {dtype,
            {x.sizes[0], x.sizes[1], x.sizes[2], 1},
            {x.strides[0], x.strides[1], x.strides[2], last}};
  }
  bool has_training_statistics() const {
    return pass == BatchNormPass::fwd || (pass == BatchNormPass::bwd && train);
  }
  bool is_channels_last() const { return x.strides != contiguous_strides(x.sizes); }
  // The tensors of a training step are always aligned.
  bool takes_any_alignment() const { return pass == BatchNormPass::infer; }
  void canonicalise() {
    canonicalise_strides({&x});
    if (!takes_any_alignment()) alignment = 16;
  }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.optional("running", p.running, false);
    visit.optional("z", p.z, false);
    visit.optional("act", p.activation, Activation::none);
    visit.optional("train", p.train, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
