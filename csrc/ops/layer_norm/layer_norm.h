// What the parts of layer, RMS, instance and group norm share. The four public operators are views
// of an inner one that takes [rows, n] or [batch, channels, space]. Knows no algorithm.
#pragma once

#include <c10/core/SymInt.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/call.h"

namespace torch_cudnn_ext::layer_norm {

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

// The result, mean and inverse deviation. A result that is not wanted, or that a kind does not
// have, is empty.
struct NormalizeArgs {
  static constexpr const char* kName = "_normalize";
  using Result = Tensors3;
  const Tensor& input;
  const OptionalTensor &weight, &bias;
  std::string_view kind;
  int64_t groups;
  double epsilon;
  bool statistics;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, weight, bias, kind, groups, epsilon, statistics, policy);
  }
};

// Gradients of the input, of the weight if there is one, and of the bias if asked for.
struct NormalizeBackwardArgs {
  static constexpr const char* kName = "_normalize_backward";
  using Result = Tensors3;
  const Tensor &grad_output, &input;
  const OptionalTensor& weight;
  const Tensor &mean, &invstd;
  std::string_view kind;
  int64_t groups;
  bool has_bias;
  double epsilon;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(grad_output, input, weight, mean, invstd, kind, groups, has_bias, epsilon,
                    policy);
  }
};

// As the operator `_normalize`, but a result that is not there is undefined.
Tensors3 run_normalize(const NormalizeArgs& args);
Tensors3 normalize_backward(const NormalizeBackwardArgs& args);

// The public operators, with PyTorch's arguments.
Tensor layer_norm(const Tensor& input, SymIntArrayRef normalized_shape,
                  const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                  OptionalPolicy policy);
Tensor group_norm(const Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                  const OptionalTensor& bias, double epsilon, OptionalPolicy policy);

// --- what is known of a call without data. What is wrong with its arguments raises ValueError.

LayerNormKind kind_of(std::string_view text);
void check_arguments(LayerNormKind kind, const Tensor& input, const OptionalTensor& weight,
                     const OptionalTensor& bias);
// Whether the gradient keeps the layout of its input. It does where PyTorch's group norm keeps it.
bool gives_nhwc_gradient(LayerNormKind kind, const Tensor& input);
Tensor nothing(const Tensor& like);

// --- the formulas, in ATen operators

// What is normalised together is one group of [batch, groups, channels, space].
struct SymView {
  SymInt batch, groups, channels, space;  // channels of a group
};
SymView view_of(LayerNormKind kind, const Tensor& input, int64_t groups);
Tensor viewed(const Tensor& t, const SymView& v);
Tensor parameter_viewed(const Tensor& t, const SymView& v);

struct Normalised {
  Tensor mean;  // undefined for rms
  Tensor invstd, x;
};
Normalised normalise(LayerNormKind kind, const Tensor& x, double epsilon);

// dx, dw and dbias as functions of dy, x and w (which may be undefined).
std::vector<Tensor> gradients(LayerNormKind kind, const Tensor& grad_output, const Tensor& input,
                              const Tensor& weight, int64_t groups, double epsilon,
                              at::ScalarType compute);

}  // namespace torch_cudnn_ext::layer_norm
