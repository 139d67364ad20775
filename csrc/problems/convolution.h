// The problem of the three passes of y = conv(x, w).
#pragma once

#include <optional>

#include "core/base/tensor_spec.h"
#include "problems/common.h"
#include "problems/role.h"

namespace torch_cudnn_ext {

enum class ConvolutionPass : uint8_t { fwd, bwd_data, bwd_filter };
inline constexpr EnumName<ConvolutionPass> kConvolutionPasses[] = {
    {ConvolutionPass::fwd, "fwd"},
    {ConvolutionPass::bwd_data, "bwd_data"},
    {ConvolutionPass::bwd_filter, "bwd_filter"}};
inline const auto& enum_names(ConvolutionPass) { return kConvolutionPasses; }

enum class ConvolutionMode : uint8_t { cross, conv };
inline constexpr EnumName<ConvolutionMode> kConvolutionModes[] = {{ConvolutionMode::cross, "cross"},
                                                                  {ConvolutionMode::conv, "conv"}};
inline const auto& enum_names(ConvolutionMode) { return kConvolutionModes; }

// What a pass computes.
inline Role result_role(ConvolutionPass pass) {
  if (pass == ConvolutionPass::fwd) return Role::y;
  return pass == ConvolutionPass::bwd_data ? Role::x : Role::w;
}

// x, w and y are those of the forward in every pass. A forward may have an epilogue: it gives
// activation(conv(x, w) + z + bias), with one bias for each channel of y.
struct ConvolutionProblem {
  static constexpr const char* kFamily = "conv";

  ConvolutionPass pass = ConvolutionPass::fwd;
  TensorSpec x, w, y;
  Dims padding, stride, dilation;  // one entry a spatial dimension; padding is symmetrical
  int64_t groups = 1;
  c10::ScalarType compute = c10::ScalarType::Float;
  int64_t alignment = 16;  // bytes; the largest power of two up to 16 that all addresses have
  ConvolutionMode mode = ConvolutionMode::cross;
  std::optional<c10::ScalarType> bias, z;
  Activation activation = Activation::none;
  Accumulate accumulate = Accumulate::none;

  int spatial_dims() const { return x.sizes.size() - 2; }
  bool has_epilogue() const { return bias || z || activation != Activation::none; }
  Dims output_sizes() const;
  const TensorSpec& result() const;
  TensorSpec default_output() const;
  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }
  // The tensors of a gradient are always aligned.
  bool takes_any_alignment() const { return pass == ConvolutionPass::fwd; }
  void canonicalise() {
    canonicalise_strides({&x, &w, &y});
    if (!takes_any_alignment()) alignment = 16;
  }
  void validate() const;
  void check_compute() const;  // the part of validate() that concerns a policy's field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("w", p.w);
    visit.written("pad", p.padding, Dims(p.spatial_dims(), 0));
    visit.written("stride", p.stride, Dims(p.spatial_dims(), 1));
    visit.written("dilation", p.dilation, Dims(p.spatial_dims(), 1));
    visit.written("groups", p.groups, int64_t{1});
    visit.written("compute", p.compute, p.default_compute());
    visit.layout("y", p.y, [&] { return p.default_output(); });
    visit.optional("align", p.alignment, int64_t{16});
    visit.optional("mode", p.mode, ConvolutionMode::cross);
    visit.optional("bias", p.bias, std::optional<c10::ScalarType>());
    visit.optional("z", p.z, std::optional<c10::ScalarType>());
    visit.optional("act", p.activation, Activation::none);
    visit.optional("accumulate", p.accumulate, Accumulate::none);
  }
};

}  // namespace torch_cudnn_ext
