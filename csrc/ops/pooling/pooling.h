// Pooling by its definition, in ATen operators: every position of the window is a shifted view of
// the input. It is the reference of all algorithms, and parts of it are the CPU's algorithms.
// Knows windows of one size only, not adaptive ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "problems/problem.h"

namespace torch_cudnn_ext::pooling {

using at::Tensor;

// The input with what its windows read beyond it, and the way back from such a tensor.
Tensor padded(const PoolingProblem& p, const Tensor& x);
Tensor interior(const PoolingProblem& p, const Tensor& padded);

// What the windows' sums are divided by, to be broadcast over the output.
Tensor divisors(const PoolingProblem& p, const Tensor& like);

// Calls with a view of the padded tensor for each position of the window, in memory order: what
// all windows have there, in the output's sizes.
void for_each_tap(const PoolingProblem& p, const Tensor& padded,
                  const std::function<void(const Tensor&)>& body);

Tensor forward_by_taps(const PoolingProblem& p, const Tensor& x);
// As PyTorch, gives the gradient of a maximum to the first of several. An average reads dy alone.
Tensor backward_by_taps(const PoolingProblem& p, const Tensor& x, const Tensor& y,
                        const Tensor& dy);

}  // namespace torch_cudnn_ext::pooling
