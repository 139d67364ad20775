// What the files of the matrix product share: its arguments.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace torch_cudnn_ext::matmul {

struct MatmulArgs {
  static constexpr const char* kName = "matmul";
  using Result = Tensor;
  const Tensor &a, &b;
  const OptionalTensor& bias;
  bool transpose_a, transpose_b;
  double alpha, beta;
  const OptionalTensor& z;
  std::string_view activation;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(a, b, bias, transpose_a, transpose_b, alpha, beta, z, activation, policy);
  }
};

// Raises if there is no activation of this name.
inline Activation activation_of(std::string_view name) {
  return activation_from_text("torch_cudnn_ext::matmul: activation", name);
}

}  // namespace torch_cudnn_ext::matmul
