// The problem of elementwise activations.
#pragma once

#include <string_view>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class ActivationKind : uint8_t { relu, clipped_relu, tanh, sigmoid, elu, swish };
inline constexpr EnumName<ActivationKind> kActivationKinds[] = {
    {ActivationKind::relu, "relu"}, {ActivationKind::clipped_relu, "clipped_relu"},
    {ActivationKind::tanh, "tanh"}, {ActivationKind::sigmoid, "sigmoid"},
    {ActivationKind::elu, "elu"},   {ActivationKind::swish, "swish"}};
inline const auto& enum_names(ActivationKind) { return kActivationKinds; }
inline ActivationKind activation_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kActivationKinds, what, text);
}

// A function of each element of a dense tensor. The tensor is [n], whatever its shape.
struct ActivationProblem {
  static constexpr const char* kFamily = "activation";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  ActivationKind kind = ActivationKind::relu;
  double coefficient = 1;    // ceiling of clipped_relu, alpha of elu, beta of swish; else 1
  bool from_output = false;  // the gradient is computed from y alone
  int64_t alignment = 16;

  bool has_coefficient() const {
    return kind == ActivationKind::clipped_relu || kind == ActivationKind::elu ||
           kind == ActivationKind::swish;
  }
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.optional("coefficient", p.coefficient, 1.0);
    visit.optional("from_output", p.from_output, p.pass == Pass::bwd && !p.has_coefficient());
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
