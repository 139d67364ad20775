// PyTorch's layer and group norm, overridden.
#include <type_traits>

#include "ops/layer_norm/layer_norm.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

OptionalTensor given(const OptionalTensor& t) { return t ? optional_of(*t) : t; }

std::optional<std::string> why_norm_is_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                const OptionalTensor& weight,
                                                const OptionalTensor& bias) {
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias);
  if (auto reason = why_any_is_declined(keys, {{"input", input}, {"weight", w}, {"bias", b}})) {
    return reason;
  }
  if (auto reason = why_dtypes_are_declined(input, {{"weight", w}, {"bias", b}})) return reason;
  if (w.defined() && b.defined() && w.scalar_type() != b.scalar_type()) {
    return "weight and bias have different dtypes";
  }
  return std::nullopt;
}

// A shape is normalized_shape or num_groups.
template <class Shape, Tensor (*norm)(const Tensor&, Shape, const OptionalTensor&,
                                      const OptionalTensor&, double, OptionalPolicy)>
struct AtenNorm {
  using Signature = Tensor(const Tensor&, Shape, const OptionalTensor&, const OptionalTensor&,
                           double, bool);
  static constexpr const char* kOp =
      std::is_same_v<Shape, SymIntArrayRef> ? "layer_norm" : "group_norm";

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 Shape, const OptionalTensor& weight,
                                                 const OptionalTensor& bias, double, bool) {
    return why_norm_is_declined(keys, input, weight, bias);
  }
  static Tensor with_autograd(c10::DispatchKeySet, const Tensor& input, Shape shape,
                              const OptionalTensor& weight, const OptionalTensor& bias,
                              double epsilon, bool) {
    return norm(input, shape, given(weight), given(bias), epsilon, std::nullopt);
  }
};

template <class Norm>
using RegisterNorm = RegisterOverrideOfComposite<Norm, typename Norm::Signature>;
const RegisterNorm<AtenNorm<SymIntArrayRef, layer_norm>> layer_norm_overridden("layer_norm");
const RegisterNorm<AtenNorm<int64_t, group_norm>> group_norm_overridden("group_norm");

}  // namespace
}  // namespace torch_cudnn_ext::layer_norm
