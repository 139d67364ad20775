// Pooling by its definition, in ATen operators: every position of the window is a shifted view of
// the input. This is the reference of all algorithms, and the CPU's algorithms use parts of it. It
// takes windows of one size only, not adaptive ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "problems/problem.h"

namespace torch_cudnn_ext::pooling {

using at::Tensor;

// The input extended by what its windows read outside of it, and the part of such a tensor that is
// the input.
Tensor padded(const PoolingProblem& p, const Tensor& x);
Tensor interior(const PoolingProblem& p, const Tensor& padded);

// What the sums of the windows are divided by; broadcasts over the output.
Tensor divisors(const PoolingProblem& p, const Tensor& like);

// Calls `body` for each position of the window, in the order of memory, with a view of the padded
// tensor: the elements that all windows have at this position, in the output's sizes.
void for_each_tap(const PoolingProblem& p, const Tensor& padded,
                  const std::function<void(const Tensor&)>& body);

Tensor forward_by_taps(const PoolingProblem& p, const Tensor& x);
// If several elements of a window are its maximum, the first one gets the gradient, as in PyTorch.
// An average reads dy alone.
Tensor backward_by_taps(const PoolingProblem& p, const Tensor& x, const Tensor& y,
                        const Tensor& dy);

}  // namespace torch_cudnn_ext::pooling
