// Errata of PyTorch 2.11's convolutions: problems that crash it, never end, or give wrong results.
#pragma once

#include <optional>

#include "core/backend.h"
#include "problems/problem.h"

namespace torch_cudnn_ext::aten {

// Why PyTorch's convolution must not run this problem.
std::optional<Unsupported> erratum_of_convolution(const ConvolutionProblem& p,
                                                  const Device& device);
// Why no other convolution that the problem is rewritten as may run.
std::optional<Unsupported> erratum_of_rewriting(const ConvolutionProblem& p, const Device& device);
// The same for the problem with folded channels, whose windows are one column wide.
std::optional<Unsupported> erratum_of_folding(const ConvolutionProblem& p, const Device& device);

}  // namespace torch_cudnn_ext::aten
