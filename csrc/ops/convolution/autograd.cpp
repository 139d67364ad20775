// Gradients of convolution. Its three primitives, forward F(x, w), data gradient D(dy, w) and
// filter gradient W(dy, x), are bilinear, and the gradient of each is made of the other two; so one
// node serves them all, to any order, backward and forward.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <ATen/TracerMode.h>
#include <ATen/ops/_fw_primal_ops.h>
#include <ATen/ops/convolution_native.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/convolution/convolution.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::convolution {

namespace {

const auto& forward_op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::convolution");
  return op;
}
const auto& backward_input_op() {
  static auto op = find_op<decltype(backward_input)>("torch_cudnn_ext::convolution_backward_input");
  return op;
}
const auto& backward_weight_op() {
  static auto op =
      find_op<decltype(backward_weight)>("torch_cudnn_ext::convolution_backward_weight");
  return op;
}

struct Geometry {
  SymIntArrayRef stride, padding, dilation;
  const SymInt& groups;
  double alpha;
  bool flip_kernel;
  OptionalPolicy policy;
};

// The bilinear part alone: through the dispatcher, or past it where that makes no difference.
// `result_sizes` is read by D and W.
Tensor bilinear(ConvolutionPass pass, const Tensor& a, const Tensor& b, SymIntArrayRef result_sizes,
                const Geometry& g) {
  auto backward = [&](const auto& kernel, const auto& op) {
    return call_directly({&a, &b}, kernel, op, a, b, result_sizes, g.stride, g.padding, g.dilation,
                         g.groups, OptionalTensor(), g.alpha, 0.0, g.flip_kernel, g.policy);
  };
  switch (pass) {
    case ConvolutionPass::fwd: {
      static const std::vector<SymInt> zeros(3, 0);
      SymIntArrayRef none(zeros.data(), g.stride.size());
      return forward_op().call(a, b, {}, g.stride, g.padding, g.dilation, false, none, g.groups, {},
                               g.alpha, 0, g.flip_kernel, g.policy);
    }
    case ConvolutionPass::bwd_data:
      return backward(backward_input, backward_input_op());
    case ConvolutionPass::bwd_filter:
      return backward(backward_weight, backward_weight_op());
  }
  TORCH_INTERNAL_ASSERT(false);
}

Tensor bias_gradient(const Tensor& grad) {
  c10::SmallVector<int64_t, 4> dims{0};
  for (int64_t i = 2; i < grad.dim(); ++i) dims.push_back(i);
  return grad.sum(dims);
}

// Inputs, in this order: a, b, bias, z. Of these a and b are saved, each only where the other's
// gradient is wanted; then the result, where relu comes last.
struct ConvolutionGradient {
  static constexpr const char* kName = "TorchCudnnExtConvolutionBackward";
  static constexpr size_t kInputs = 4;
  static constexpr bool kForwardMode = true;

  ConvolutionPass pass = ConvolutionPass::fwd;
  c10::SymDimVector a_sizes, b_sizes, b_strides, stride, padding, dilation;
  SymInt groups;
  double alpha = 1, beta = 0;
  bool flip_kernel = false, relu = false;
  bool channels_last = false;  // the layout that the result has, and so its gradient is to have
  std::optional<std::string> policy;

  template <class Visit>
  void attributes(Visit&& visit) {
    for (auto* list : {&a_sizes, &b_sizes, &b_strides, &stride, &padding, &dilation}) visit(*list);
    visit(groups);
    visit(pass);
    visit(alpha);
    visit(beta);
    visit(flip_kernel);
    visit(relu);
    visit(channels_last);
    visit(policy);
  }

  static bool reads(size_t saved, const Needed& needed) {
    return saved == 2 || needed[saved == 0 ? 1 : 0];
  }

  // As PyTorch has it. Over one dimension of space the gradient's layout has no say.
  // Transforms of torch.func know of no other layout than the contiguous one.
  Tensor in_layout_of_result(const Tensor& grad) const {
    if (is_transformed(grad)) return grad;
    if (grad.dim() == 4 && channels_last) return grad.contiguous(at::MemoryFormat::ChannelsLast);
    if (grad.dim() == 5 && channels_last) return grad.contiguous(at::MemoryFormat::ChannelsLast3d);
    if (grad.dim() <= 3) return grad;
    Tensor dense = grad.contiguous();
    // Of one channel or one pixel, strides may still tell the other layout.
    bool tells = dense.suggest_memory_format() == at::MemoryFormat::Contiguous;
    return tells ? dense : dense.flatten().view_symint(grad.sym_sizes());
  }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) const {
    const Tensor &a = saved[0], &b = saved[1];
    Tensor grad = relu ? at::threshold_backward(grads[0], saved[2], 0) : grads[0];
    if (needed[0] || needed[1]) grad = in_layout_of_result(grad);
    Geometry g{stride, padding, dilation, groups, alpha, flip_kernel, policy};
    variable_list result(kInputs);
    if (needed[0]) {
      switch (pass) {
        case ConvolutionPass::fwd:  // dx = D(dy, w)
          result[0] = bilinear(ConvolutionPass::bwd_data, grad, b, a_sizes, g);
          break;
        case ConvolutionPass::bwd_data:  // of dy: F(g, w)
          result[0] = bilinear(ConvolutionPass::fwd, grad, b, {}, g);
          break;
        case ConvolutionPass::bwd_filter:  // of dy: F(x, g)
          result[0] = bilinear(ConvolutionPass::fwd, b, grad, {}, g);
          break;
      }
    }
    if (needed[1]) {
      switch (pass) {
        case ConvolutionPass::fwd:  // dw = W(dy, x)
          result[1] = bilinear(ConvolutionPass::bwd_filter, grad, a, b_sizes, g);
          result[1] = with_strides_of_parameter(std::move(result[1]), b_strides);
          break;
        case ConvolutionPass::bwd_data:  // of w: W(dy, g)
          result[1] = bilinear(ConvolutionPass::bwd_filter, a, grad, b_sizes, g);
          result[1] = with_strides_of_parameter(std::move(result[1]), b_strides);
          break;
        case ConvolutionPass::bwd_filter:  // of x: D(dy, g)
          result[1] = bilinear(ConvolutionPass::bwd_data, a, grad, b_sizes, g);
          break;
      }
    }
    if (needed[2]) {
      result[2] = bias_gradient(grad);
      // Without channels of x there are none of y, yet as many in the bias as in w.
      bool none = pass == ConvolutionPass::fwd && a_sizes[1] == 0;
      if (none) result[2] = at::constant_pad_nd_symint(result[2], {0, b_sizes[0]}, 0);
    }
    if (needed[3]) result[3] = beta == 1 ? grad : grad.mul(beta);
    return result;
  }
};

Tensor tangent_of(const Tensor& t) { return t._fw_grad(0); }
Tensor primal_of(const Tensor& t) {
  return torch::autograd::isFwGradDefined(t) ? at::_ops::_fw_primal::call(t, 0) : t;
}

Tensor plus(const Tensor& sum, const Tensor& term) { return sum.defined() ? sum.add(term) : term; }

// The sum of the terms with one factor replaced by its tangent.
Tensor tangent_of_result(ConvolutionPass pass, const Tensor& a, const Tensor& b,
                         const OptionalTensor& bias, const OptionalTensor& z,
                         SymIntArrayRef result_sizes, const Geometry& g, double beta) {
  using torch::autograd::isFwGradDefined;
  Tensor tangent;
  if (isFwGradDefined(a)) {
    tangent = bilinear(pass, tangent_of(a), primal_of(b), result_sizes, g);
  }
  if (isFwGradDefined(b)) {
    tangent = plus(tangent, bilinear(pass, primal_of(a), tangent_of(b), result_sizes, g));
  }
  if (z && isFwGradDefined(*z)) tangent = plus(tangent, tangent_of(*z).mul(beta));
  if (bias && isFwGradDefined(*bias) && result_sizes[1] != 0) {
    c10::SmallVector<SymInt, 5> shape(result_sizes.size(), 1);
    shape[1] = bias->sym_size(0);
    tangent = plus(tangent, tangent_of(*bias).view_symint(shape).expand_symint(result_sizes));
  }
  return tangent;
}

// One way through autograd for the three: `run` calls the kernel below.
template <class Run>
Tensor with_autograd(ConvolutionPass pass, const Tensor& a, const Tensor& b,
                     const OptionalTensor& bias, const OptionalTensor& z, double beta,
                     const Geometry& g, bool relu, Run&& run) {
  using torch::autograd::isFwGradDefined;
  const Tensor &bias_tensor = or_undefined(bias), &z_tensor = or_undefined(z);
  bool any_tangent = isFwGradDefined(a) || isFwGradDefined(b) || isFwGradDefined(bias_tensor) ||
                     isFwGradDefined(z_tensor);
  Tensor result = run_with_gradient<ConvolutionGradient>(
      {a, b, bias_tensor, z_tensor}, 1, run,
      [&](auto& node, const auto& results) {
        ConvolutionGradient& own = node.gradient;
        own.pass = pass;
        own.a_sizes = a.sym_sizes();
        own.b_sizes = b.sym_sizes();
        own.b_strides = b.sym_strides();
        own.stride = g.stride;
        own.padding = g.padding;
        own.dilation = g.dilation;
        own.groups = g.groups;
        own.alpha = g.alpha;
        own.beta = beta;
        own.flip_kernel = g.flip_kernel;
        own.relu = relu;
        own.channels_last = results[0].suggest_memory_format() != at::MemoryFormat::Contiguous;
        own.policy = policy_to_save(ConvolutionProblem::kFamily, g.policy);
        if (relu) save_result(node, results[0]);
      },
      [&](auto& node) {
        save_input(node, node.should_compute_output(1) ? a : Tensor());
        save_input(node, node.should_compute_output(0) ? b : Tensor());
      });
  if (any_tangent) {
    auto sizes = result.sym_sizes().vec();
    Tensor tangent = tangent_of_result(pass, a, b, bias, z, sizes, g, beta);
    if (relu && tangent.defined()) tangent = at::threshold_backward(tangent, result, 0);
    if (tangent.defined()) result._set_fw_grad(tangent, 0, false);
  }
  return result;
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                        const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                        SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                        SymInt groups, const OptionalTensor& z, double alpha, double beta,
                        bool flip_kernel, OptionalPolicy policy) {
  if (transposed) {
    if (auto same = without_surplus(input, stride, dilation, output_padding)) {
      return forward_autograd(keys, same->input, weight, bias, stride, padding, dilation, true,
                              same->output_padding, groups, z, alpha, beta, flip_kernel, policy);
    }
  }
  Geometry g{stride, padding, dilation, groups, alpha, flip_kernel, policy};
  ConvolutionPass pass = transposed ? ConvolutionPass::bwd_data : ConvolutionPass::fwd;
  return with_autograd(pass, input, weight, bias, z, beta, g, false, [&] {
    return forward_op().redispatch(keys & c10::after_autograd_keyset, input, weight, bias, stride,
                                   padding, dilation, transposed, output_padding, groups, z, alpha,
                                   beta, flip_kernel, policy);
  });
}

Tensor forward_relu_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                             const OptionalTensor& bias, SymIntArrayRef stride,
                             SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                             const OptionalTensor& z, bool flip_kernel, OptionalPolicy policy) {
  static auto op = find_op<decltype(forward_relu)>("torch_cudnn_ext::convolution_relu");
  Geometry g{stride, padding, dilation, groups, 1, flip_kernel, policy};
  return with_autograd(ConvolutionPass::fwd, input, weight, bias, z, 1, g, true, [&] {
    return op.redispatch(keys & c10::after_autograd_keyset, input, weight, bias, stride, padding,
                         dilation, groups, z, flip_kernel, policy);
  });
}

Tensor backward_input_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                               const Tensor& weight, SymIntArrayRef input_size,
                               SymIntArrayRef stride, SymIntArrayRef padding,
                               SymIntArrayRef dilation, SymInt groups, const OptionalTensor& z,
                               double alpha, double beta, bool flip_kernel, OptionalPolicy policy) {
  Geometry g{stride, padding, dilation, groups, alpha, flip_kernel, policy};
  return with_autograd(ConvolutionPass::bwd_data, grad_output, weight, {}, z, beta, g, false, [&] {
    return backward_input_op().redispatch(keys & c10::after_autograd_keyset, grad_output, weight,
                                          input_size, stride, padding, dilation, groups, z, alpha,
                                          beta, flip_kernel, policy);
  });
}

Tensor backward_weight_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                const Tensor& input, SymIntArrayRef weight_size,
                                SymIntArrayRef stride, SymIntArrayRef padding,
                                SymIntArrayRef dilation, SymInt groups, const OptionalTensor& z,
                                double alpha, double beta, bool flip_kernel,
                                OptionalPolicy policy) {
  Geometry g{stride, padding, dilation, groups, alpha, flip_kernel, policy};
  return with_autograd(ConvolutionPass::bwd_filter, grad_output, input, {}, z, beta, g, false, [&] {
    return backward_weight_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input,
                                           weight_size, stride, padding, dilation, groups, z, alpha,
                                           beta, flip_kernel, policy);
  });
}

// Calls an operator that writes into `out`; neither it nor `tensors` have gradients.
template <class Op, class... Args>
void write_into(const Op& op, const char* name, c10::DispatchKeySet keys, Tensor& out,
                std::initializer_list<Tensor> tensors, Args&&... args) {
  auto check = [&](const Tensor& t) {
    TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(t), "torch_cudnn_ext::", name,
                      ": an argument requires a gradient, but writing into out= is not "
                      "differentiable; use the function without out=, with z=");
    TORCH_CHECK_VALUE(!torch::autograd::isFwGradDefined(t), "torch_cudnn_ext::", name,
                      ": an argument has a tangent, but writing into out= is not differentiable");
  };
  for (const Tensor& t : tensors) check(t);
  check(out);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatch(keys & c10::after_ADInplaceOrView_keyset, std::forward<Args>(args)...);
  }
  torch::autograd::increment_version(out);
}

void forward_out_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                          const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                          SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                          SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                          OptionalPolicy policy) {
  static auto op = find_op<decltype(forward_out)>("torch_cudnn_ext::convolution_out");
  write_into(op, "convolution_out", keys, out, {input, weight, or_undefined(bias)}, input, weight,
             bias, stride, padding, dilation, transposed, output_padding, groups, out, alpha, beta,
             flip_kernel, policy);
}

void backward_input_out_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                 const Tensor& weight, SymIntArrayRef input_size,
                                 SymIntArrayRef stride, SymIntArrayRef padding,
                                 SymIntArrayRef dilation, SymInt groups, Tensor& out, double alpha,
                                 double beta, bool flip_kernel, OptionalPolicy policy) {
  static auto op =
      find_op<decltype(backward_input_out)>("torch_cudnn_ext::convolution_backward_input_out");
  write_into(op, "convolution_backward_input_out", keys, out, {grad_output, weight}, grad_output,
             weight, input_size, stride, padding, dilation, groups, out, alpha, beta, flip_kernel,
             policy);
}

void backward_weight_out_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                  const Tensor& input, SymIntArrayRef weight_size,
                                  SymIntArrayRef stride, SymIntArrayRef padding,
                                  SymIntArrayRef dilation, SymInt groups, Tensor& out, double alpha,
                                  double beta, bool flip_kernel, OptionalPolicy policy) {
  static auto op =
      find_op<decltype(backward_weight_out)>("torch_cudnn_ext::convolution_backward_weight_out");
  write_into(op, "convolution_backward_weight_out", keys, out, {grad_output, input}, grad_output,
             input, weight_size, stride, padding, dilation, groups, out, alpha, beta, flip_kernel,
             policy);
}

// A list in which one value stands for all dimensions: padding="valid" makes such in aten.
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

// conv1d and its like: PyTorch's arguments, batched or not, in terms of `convolution`.
Tensor convolution_nd(int spatial, bool transposed, const Tensor& input, const Tensor& weight,
                      const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                      SymIntArrayRef output_padding, SymIntArrayRef dilation, SymInt groups,
                      OptionalPolicy policy) {
  auto op_name = [&] { return c10::str("conv", transposed ? "_transpose" : "", spatial, "d"); };
  TORCH_CHECK_VALUE(weight.dim() == spatial + 2, "torch_cudnn_ext::", op_name(),
                    ": weight has sizes ", weight.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions");
  bool batched = input.dim() == spatial + 2;
  TORCH_CHECK_VALUE(batched || input.dim() == spatial + 1, "torch_cudnn_ext::", op_name(),
                    ": input has sizes ", input.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions, or ", spatial + 1, " without a batch");
  Tensor result = forward_op().call(
      batched ? input : input.unsqueeze(0), weight, bias, PerDimension(stride, weight),
      PerDimension(padding, weight), PerDimension(dilation, weight), transposed,
      PerDimension(output_padding, weight), std::move(groups), {}, 1, 0, false, policy);
  return batched ? result : result.squeeze(0);
}

template <int spatial>
Tensor conv(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
            SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
            OptionalPolicy policy) {
  static const std::vector<SymInt> none(spatial, 0);
  return convolution_nd(spatial, false, input, weight, bias, stride, padding, none, dilation,
                        std::move(groups), policy);
}

template <int spatial>
Tensor conv_transpose(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                      SymInt groups, SymIntArrayRef dilation, OptionalPolicy policy) {
  return convolution_nd(spatial, true, input, weight, bias, stride, padding, output_padding,
                        dilation, std::move(groups), policy);
}

// What all of F.conv* and F.conv_transpose* come down to.
struct AtenConvolution {
  static constexpr const char* kOp = "convolution";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            const Tensor& weight, const OptionalTensor& bias,
                                            SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                                            bool transposed, SymIntArrayRef output_padding,
                                            const SymInt&) {
    if (auto reason = refusal_of(keys, "input", input)) return reason;
    if (auto reason = refusal_of(keys, "weight", weight)) return reason;
    if (auto reason = refusal_of(keys, "bias", or_undefined(bias))) return reason;
    // It records what PyTorch's kernel calls, not this operator.
    if (at::tracer::impl::is_dispatch_enabled()) return "torch.jit.trace is tracing";
    bool padded = std::any_of(output_padding.begin(), output_padding.end(),
                              [](const SymInt& n) { return n != 0; });
    if (padded && !transposed) return "output_padding of a convolution that is not transposed";
    return std::nullopt;
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                              const OptionalTensor& bias, SymIntArrayRef stride,
                              SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                              SymIntArrayRef output_padding, SymInt groups) {
    if (is_plain_call({&input, &weight, &or_undefined(bias)})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                 std::move(groups));
    }
    return forward_autograd(keys, input, weight, bias, PerDimension(stride, input),
                            PerDimension(padding, input), PerDimension(dilation, input), transposed,
                            PerDimension(output_padding, input), std::move(groups), {}, 1, 0, false,
                            {});
  }
  static Tensor run(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    bool transposed, SymIntArrayRef output_padding, SymInt groups) {
    return forward(input, weight, bias, PerDimension(stride, input), PerDimension(padding, input),
                   PerDimension(dilation, input), transposed, PerDimension(output_padding, input),
                   std::move(groups), {}, 1, 0, false, {});
  }
  template <c10::DispatchKey>
  static Tensor plain(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                      bool transposed, SymIntArrayRef output_padding, const SymInt& groups) {
    return at::native::convolution(
        input, weight, bias, C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(padding),
        C10_AS_INTARRAYREF_SLOW(dilation), transposed, C10_AS_INTARRAYREF_SLOW(output_padding),
        groups.guard_int(__FILE__, __LINE__));
  }
};

const RegisterOverride<AtenConvolution,
                       Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                              SymIntArrayRef, SymIntArrayRef, bool, SymIntArrayRef, SymInt)>
    overridden("convolution");

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("convolution", TORCH_FN(forward_autograd));
  m.impl("convolution_relu", TORCH_FN(forward_relu_autograd));
  m.impl("convolution_backward_input", TORCH_FN(backward_input_autograd));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight_autograd));
  m.impl("convolution_out", TORCH_FN(forward_out_autograd));
  m.impl("convolution_backward_input_out", TORCH_FN(backward_input_out_autograd));
  m.impl("convolution_backward_weight_out", TORCH_FN(backward_weight_out_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  m.impl("conv1d", TORCH_FN(conv<1>));
  m.impl("conv2d", TORCH_FN(conv<2>));
  m.impl("conv3d", TORCH_FN(conv<3>));
  m.impl("conv_transpose1d", TORCH_FN(conv_transpose<1>));
  m.impl("conv_transpose2d", TORCH_FN(conv_transpose<2>));
  m.impl("conv_transpose3d", TORCH_FN(conv_transpose<3>));
}

}  // namespace torch_cudnn_ext::convolution
