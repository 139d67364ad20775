// The problem of norms by the statistics of one sample: layer, RMS, instance and group norm.
#pragma once

#include <optional>
#include <string_view>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class LayerNormKind : uint8_t { layer, rms, instance, group };
inline constexpr EnumName<LayerNormKind> kLayerNormKinds[] = {{LayerNormKind::layer, "layer"},
                                                              {LayerNormKind::rms, "rms"},
                                                              {LayerNormKind::instance, "instance"},
                                                              {LayerNormKind::group, "group"}};
inline const auto& enum_names(LayerNormKind) { return kLayerNormKinds; }
inline LayerNormKind layer_norm_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLayerNormKinds, what, text);
}

// layer and rms: x is [rows, n] and contiguous, is normalised over n, and has parameters [n].
// instance and group: x is [batch, channels, space] with parameters [channels], and contiguous; in
// an instance norm it may also be nhwc. epsilon is given at the run.
struct LayerNormProblem {
  static constexpr const char* kFamily = "layer_norm";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and y, dy, dx
  LayerNormKind kind = LayerNormKind::layer;
  int64_t groups = 1;  // of channels, in a group norm; else 1
  std::optional<c10::ScalarType> w, bias;
  bool stats = true;  // whether a forward also gives mean and invstd; a backward reads them
  int64_t alignment = 16;

  // All kinds seen alike: each group of [batch, groups, channels / groups, space] is normalised.
  struct View {
    int64_t batch, groups, channels, space;

    int64_t count() const { return batch * groups; }  // of statistics
    int64_t length() const { return channels / groups * space; }
  };
  View view() const;
  bool has_mean() const { return kind != LayerNormKind::rms; }
  TensorSpec statistics() const;
  TensorSpec parameters(c10::ScalarType dtype) const { return {dtype, {view().channels}, {1}}; }

  void canonicalise() { canonicalise_strides({&x}); }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.optional("groups", p.groups, int64_t{1});
    visit.optional("w", p.w, std::optional<c10::ScalarType>());
    visit.optional("bias", p.bias, std::optional<c10::ScalarType>());
    visit.optional("stats", p.stats, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
