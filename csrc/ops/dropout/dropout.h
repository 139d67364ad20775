// What the files of the dropout operators share: kernels.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace torch_cudnn_ext::dropout {

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

Tensor forward(const Tensor& input, double p, OptionalPolicy policy);
// The result, the reserve for the backward, and its writer.
Tensors3 forward_train(const Tensor& input, double p, OptionalPolicy policy);
// `stride` holds the strides of the forward's result, in whose order the reserve is.
Tensor backward(const Tensor& grad_output, const Tensor& reserve, const OptionalTensor& writer,
                double p, SymIntArrayRef stride, OptionalPolicy policy);

}  // namespace torch_cudnn_ext::dropout
