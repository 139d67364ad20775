// The convolution operator family below the dispatcher: what its registrations share.
#pragma once

#include "ops/common.h"

namespace torch_cudnn_ext::convolution {

// The kernels of CPU and CUDA tensors, and of meta tensors (convolution.cpp, convolution_meta.cpp).
Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
               bool transposed, SymIntArrayRef output_padding, SymInt groups,
               const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
               OptionalPolicy policy);
Tensor backward_input(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                      SymInt groups, const OptionalTensor& z, double alpha, double beta,
                      bool flip_kernel, OptionalPolicy policy);
Tensor backward_weight(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                       SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                       SymInt groups, const OptionalTensor& z, double alpha, double beta,
                       bool flip_kernel, OptionalPolicy policy);
void forward_out(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                 SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                 bool transposed, SymIntArrayRef output_padding, SymInt groups, Tensor& out,
                 double alpha, double beta, bool flip_kernel, OptionalPolicy policy);
void backward_input_out(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                        SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                        OptionalPolicy policy);
void backward_weight_out(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                         SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                         SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                         OptionalPolicy policy);

// Whether the result is channels_last, as PyTorch decides it: when either operand is, float64
// never.
bool prefers_channels_last(const Tensor& a, const Tensor& b);

// The problem that a call on these forward-convolution tensors poses; of the output of the pass
// only sizes matter. Arguments are checked as a call checks them.
ConvolutionProblem make_problem(ConvolutionPass pass, const Tensor& x, const Tensor& w,
                                c10::IntArrayRef stride, c10::IntArrayRef padding,
                                c10::IntArrayRef dilation, int64_t groups, OptionalPolicy policy);

}  // namespace torch_cudnn_ext::convolution
