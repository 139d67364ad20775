// Steps on the tensors of one family that its operator and its backends share. They work above
// autograd too. Knows nothing of how a call binds its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/silu.h>

#include "problems/convolution.h"
#include "problems/reduction.h"

namespace torch_cudnn_ext {

// Turns the weight of the problem's mode into the one that cross-correlation needs, and back.
inline at::Tensor flip_for_mode(const ConvolutionProblem& p, const at::Tensor& w) {
  if (p.mode == ConvolutionMode::cross) return w;
  Dims axes;
  for (int i = 2; i < p.w.sizes.size(); ++i) axes.push_back(i);
  return w.flip(axes);
}

// Adds one number to each channel, which is dimension 1.
inline void add_bias(at::Tensor& result, const at::Tensor& bias) {
  Dims shape(static_cast<int>(result.dim()), 1);
  shape[1] = bias.size(0);
  result.add_(bias.view(shape));
}

// In place.
inline void activate(Activation activation, at::Tensor& result) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::relu:
      result.relu_();
      break;
    case Activation::relu6:
      at::hardtanh_(result, 0, 6);
      break;
    case Activation::sigmoid:
      result.sigmoid_();
      break;
    case Activation::tanh:
      result.tanh_();
      break;
    case Activation::silu:
      at::silu_(result);
      break;
    case Activation::gelu:
      at::gelu_(result);
      break;
    case Activation::gelu_tanh:
      at::gelu_(result, "tanh");
      break;
  }
}

// The epilogue of a convolution without its bias, in place. `tensors` gives a tensor by its role.
template <class Tensors>
void add_z_and_activate(const ConvolutionProblem& p, at::Tensor& result, const Tensors& tensors) {
  if (p.z) result.add_(tensors[Role::z]);
  activate(p.activation, result);
}

template <class Tensors>
void add_epilogue(const ConvolutionProblem& p, at::Tensor& result, const Tensors& tensors) {
  if (p.bias) add_bias(result, tensors[Role::bias]);
  add_z_and_activate(p, result, tensors);
}

// What a reduction reads, as [kept, reduced].
inline at::Tensor reduced_rows(const ReduceProblem& p, const at::Tensor& x) {
  return x.permute(p.rows_order()).reshape({-1, p.reduced_count()});
}

}  // namespace torch_cudnn_ext
