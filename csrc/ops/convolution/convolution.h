// The convolution operator family below the dispatcher: what its registrations share.
#pragma once

#include "ops/arguments.h"

namespace torch_cudnn_ext::convolution {

// The kernels of CPU, CUDA and meta tensors (convolution.cpp).
Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
               bool transposed, SymIntArrayRef output_padding, SymInt groups,
               const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
               OptionalPolicy policy);
// relu(conv + bias + z)
Tensor forward_relu(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    SymInt groups, const OptionalTensor& z, bool flip_kernel,
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

// What the arguments of an operator are called, for its error messages.
struct Names {
  const char* op;
  const char* x;
  const char* w;
  const char* y;
};

// One call of a primitive in the words of the forward convolution.
struct Request {
  ConvolutionPass pass;
  const Names& names;
  const Tensor& first;    // x, or grad_output of the two backward passes
  const Tensor& second;   // w, or x for bwd_filter
  SymIntArrayRef result;  // the sizes that the two backward passes are asked for
  SymIntArrayRef stride, padding, dilation;
  const SymInt& groups;
  bool flip_kernel = false;
  double alpha = 1, beta = 0;
  OptionalPolicy policy = std::nullopt;
  // Of a transposed convolution, which is a bwd_data that finds the sizes of its result.
  std::optional<SymIntArrayRef> output_padding = std::nullopt;
  Activation activation = Activation::none;

  const char* first_name() const { return pass == ConvolutionPass::fwd ? names.x : names.y; }
};

using SymSizes = c10::SmallVector<SymInt, 5>;
struct Sizes {
  SymSizes x, w, y;
  const SymSizes& of(Role role) const { return role == Role::x ? x : role == Role::w ? w : y; }
};

// What a call is before there are data (convolution_meta.cpp), the same for all kernels:
// its sizes; raises where there is no such convolution,
Sizes checked_sizes(const Request& r, const OptionalTensor& bias);
// raises unless z or out is fit for the result,
void check_like(const Request& r, const char* name, const Tensor& t, SymIntArrayRef sizes);
// whether the result is channels_last, which PyTorch decides; float64 never is,
bool prefers_channels_last(const Request& r, const Sizes& sizes);
// and a tensor of that layout.
Tensor empty_result(SymIntArrayRef sizes, bool channels_last, const Tensor& like);

// The same transposed convolution with less output_padding than stride: as many strides as
// output_padding has, as it may where dilation is larger still, are zeros behind the input.
// Nullopt where it is so already, or where arguments are not valid.
struct WithoutSurplus {
  Tensor input;
  SymSizes output_padding;
};
std::optional<WithoutSurplus> without_surplus(const Tensor& input, SymIntArrayRef stride,
                                              SymIntArrayRef dilation,
                                              SymIntArrayRef output_padding);

// The problem that a call on these forward-convolution tensors poses; of the output of the pass
// only sizes matter. Arguments are checked as a call checks them. A bias is the forward's alone.
ConvolutionProblem make_problem(ConvolutionPass pass, const Tensor& x, const Tensor& w,
                                c10::IntArrayRef stride, c10::IntArrayRef padding,
                                c10::IntArrayRef dilation, int64_t groups, bool has_bias,
                                OptionalPolicy policy);

}  // namespace torch_cudnn_ext::convolution
