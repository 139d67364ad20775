// What the files of the matrix product share: its kernel.
#pragma once

#include "ops/arguments.h"

namespace torch_cudnn_ext::matmul {

Tensor forward(const Tensor& a, const Tensor& b, const OptionalTensor& bias, bool transpose_a,
               bool transpose_b, double alpha, double beta, const OptionalTensor& z,
               std::string_view activation, OptionalPolicy policy);

// Raises if there is no activation of this name.
inline Activation activation_of(std::string_view name) {
  return activation_from_text("torch_cudnn_ext::matmul: activation", name);
}

}  // namespace torch_cudnn_ext::matmul
