// What the parts of convolution share: its operators' arguments, and what is known of a call
// without data. Knows no algorithm.
#pragma once

#include <ATen/ops/convolution.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <tuple>
#include <vector>

#include "ops/call.h"

namespace torch_cudnn_ext::convolution {

inline const OptionalTensor kNone;

// --- arguments. The last tensor is the addend z, or the result `out`.

template <class Last>
struct ForwardArgsWith {
  const Tensor &input, &weight;
  const OptionalTensor& bias;
  SymIntArrayRef stride, padding, dilation;
  bool transposed;
  SymIntArrayRef output_padding;
  const SymInt& groups;
  Last last;
  double alpha, beta;
  bool flip_kernel;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                    groups, last, alpha, beta, flip_kernel, policy);
  }
};
struct ForwardArgs : ForwardArgsWith<const OptionalTensor&> {
  static constexpr const char* kName = "convolution";
  using Result = Tensor;
};
struct ForwardOutArgs : ForwardArgsWith<Tensor&> {
  static constexpr const char* kName = "convolution_out";
  using Result = void;
};

// activation(conv + bias + z)
struct ForwardFusedArgs {
  static constexpr const char* kName = "convolution_fused";
  using Result = Tensor;
  const Tensor &input, &weight;
  const OptionalTensor& bias;
  SymIntArrayRef stride, padding, dilation;
  const SymInt& groups;
  std::string_view activation;
  const OptionalTensor& z;
  bool flip_kernel;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, weight, bias, stride, padding, dilation, groups, activation, z,
                    flip_kernel, policy);
  }
};

// For both backward operators: `other` is the weight or the input, `result` the sizes of the
// gradient.
template <class Last>
struct BackwardArgsWith {
  const Tensor &grad_output, &other;
  SymIntArrayRef result, stride, padding, dilation;
  const SymInt& groups;
  Last last;
  double alpha, beta;
  bool flip_kernel;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(grad_output, other, result, stride, padding, dilation, groups, last, alpha,
                    beta, flip_kernel, policy);
  }
};
struct BackwardInputArgs : BackwardArgsWith<const OptionalTensor&> {
  static constexpr const char* kName = "convolution_backward_input";
  using Result = Tensor;
};
struct BackwardWeightArgs : BackwardArgsWith<const OptionalTensor&> {
  static constexpr const char* kName = "convolution_backward_weight";
  using Result = Tensor;
};
struct BackwardInputOutArgs : BackwardArgsWith<Tensor&> {
  static constexpr const char* kName = "convolution_backward_input_out";
  using Result = void;
};
struct BackwardWeightOutArgs : BackwardArgsWith<Tensor&> {
  static constexpr const char* kName = "convolution_backward_weight_out";
  using Result = void;
};

// A list in which one value is for all dimensions: padding="valid" makes such lists in aten.
class PerDimension {
 public:
  PerDimension(SymIntArrayRef given, const Tensor& like) : given_(given) {
    if (given.size() == 1 && like.dim() > 3) expanded_.assign(like.dim() - 2, given[0]);
  }
  operator SymIntArrayRef() const { return expanded_.empty() ? given_ : expanded_; }

 private:
  SymIntArrayRef given_;
  std::vector<SymInt> expanded_;
};

// Kernels of CPU, CUDA and meta tensors, and the forward's at autograd's keys. run_forward is
// forward without the short way of calls that ran before.
Tensor run_forward(const ForwardArgs& args);
Tensor forward(const ForwardArgs& args);
Tensor backward_input(const BackwardInputArgs& args);
Tensor backward_weight(const BackwardWeightArgs& args);
Tensor forward_autograd(c10::DispatchKeySet keys, const ForwardArgs& args);
// PyTorch's own convolution on a GPU. On the CPU its result may depend on the strides of dimensions
// of size 1, so it is called on a problem's tensors alone.
template <class Args>
std::optional<Tensor> plain_forward(const Args& a) {
  if (!a.input.is_cuda() || a.transposed) return std::nullopt;
  return at::convolution_symint(a.input, a.weight, a.bias, a.stride, a.padding, a.dilation, false,
                                a.output_padding, a.groups);
}
// The sum over images and positions.
Tensor bias_gradient(const Tensor& grad);

// --- what is known of a call without data

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
  // Given for a transposed convolution: a bwd_data that finds the sizes of its result.
  std::optional<SymIntArrayRef> output_padding = std::nullopt;
  // Given if z is part of the problem.
  std::optional<Activation> activation = std::nullopt;

  const char* first_name() const { return pass == ConvolutionPass::fwd ? names.x : names.y; }
};

using SymSizes = c10::SmallVector<SymInt, 5>;
struct Sizes {
  SymSizes x, w, y;
  const SymSizes& of(Role role) const { return role == Role::x ? x : role == Role::w ? w : y; }
};

// The sizes of a call; raises ValueError if there is no such convolution.
Sizes checked_sizes(const Request& r, const OptionalTensor& bias);
// Raises ValueError unless z or out is fit for the result.
void check_like(const Request& r, const char* name, const Tensor& t, SymIntArrayRef sizes);
// Whether the result is channels_last, which PyTorch decides; float64 never is.
bool prefers_channels_last(const Request& r, const Sizes& sizes);
Tensor empty_result(SymIntArrayRef sizes, bool channels_last, const Tensor& like);

// What replaces input and output_padding, so that the same transposed convolution has less
// output_padding than stride. If dilation is larger than stride, output_padding may hold whole
// strides: as many zeros are put after the input. Nullopt if there is no whole stride in it, or if
// arguments are not valid.
struct WithoutSurplus {
  Tensor input;
  SymSizes output_padding;
};
std::optional<WithoutSurplus> without_surplus(const Tensor& input, SymIntArrayRef stride,
                                              SymIntArrayRef dilation,
                                              SymIntArrayRef output_padding);

// `kernel` of the arguments, or of the same convolution without surplus.
template <class Args, class Kernel>
typename Args::Result call_without_surplus(const Args& a, Kernel&& kernel) {
  auto same = a.transposed ? without_surplus(a.input, a.stride, a.dilation, a.output_padding)
                           : std::nullopt;
  if (!same) return kernel(a);
  return kernel(
      Args{{same->input, a.weight, a.bias, a.stride, a.padding, a.dilation, true,
            same->output_padding, a.groups, a.last, a.alpha, a.beta, a.flip_kernel, a.policy}});
}

// The problem that a call on these forward-convolution tensors poses; of the output of the pass
// only sizes matter. Arguments are checked as a call checks them. A bias is the forward's alone.
ConvolutionProblem make_problem(ConvolutionPass pass, const Tensor& x, const Tensor& w,
                                c10::IntArrayRef stride, c10::IntArrayRef padding,
                                c10::IntArrayRef dilation, int64_t groups, bool has_bias,
                                OptionalPolicy policy);

}  // namespace torch_cudnn_ext::convolution
