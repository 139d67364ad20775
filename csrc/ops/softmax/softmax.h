// What the files of softmax and log-softmax share: kernels.
#pragma once

#include "ops/arguments.h"

namespace torch_cudnn_ext::softmax {

template <bool log>
Tensor forward(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
               OptionalPolicy policy);
Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim, bool log,
                OptionalPolicy policy);

}  // namespace torch_cudnn_ext::softmax
