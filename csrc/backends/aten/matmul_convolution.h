// Convolutions that are one product of matrices, which PyTorch gives to cuBLAS.
#pragma once

#include <memory>
#include <optional>

#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext::aten {

// How the matrices lie in memory.
enum class Matrices : uint8_t {
  rows,   // windows are the rows: channels-last, or one window an image
  planes  // one matrix of windows an image: contiguous
};

// nullopt if no product computes the convolution.
std::optional<Matrices> matrices_of(const ConvolutionProblem& p);

std::shared_ptr<Plan> make_matmul_convolution(const ConvolutionProblem& p,
                                              const Algorithm& algorithm, Notes notes,
                                              Matrices matrices);

}  // namespace torch_cudnn_ext::aten
