// What the files of the CTC loss share: its kernels.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace torch_cudnn_ext::ctc {

// Losses [N].
Tensor forward(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t blank, bool zero_infinity,
               OptionalPolicy policy);
// Losses [N] and the gradient [T, N, C] of their sum.
std::tuple<Tensor, Tensor> forward_with_gradient(const Tensor& log_probs, const Tensor& targets,
                                                 const Tensor& input_lengths,
                                                 const Tensor& target_lengths, int64_t blank,
                                                 bool zero_infinity, OptionalPolicy policy);

}  // namespace torch_cudnn_ext::ctc
