// Gradients of convolution, and its autocast. Its three primitives, forward F(x, w), data gradient
// D(dy, w) and filter gradient W(dy, x), are bilinear, and the gradient of each is made of the
// other two; so one node serves them all, to any order, backward and forward.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/autocast.h"
#include "ops/convolution/convolution.h"
#include "problems/tensor_steps.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::convolution {
namespace {

struct Geometry {
  SymIntArrayRef stride, padding, dilation;
  const SymInt& groups;
  double alpha;
  bool flip_kernel;
  OptionalPolicy policy;
};

// The bilinear part alone: through the dispatcher, or past it if that makes no difference.
// `result_sizes` is read by D and W.
Tensor bilinear(ConvolutionPass pass, const Tensor& a, const Tensor& b, SymIntArrayRef result_sizes,
                const Geometry& g) {
  BackwardArgsWith<const OptionalTensor&> args{a,         b,          result_sizes,  g.stride,
                                               g.padding, g.dilation, g.groups,      kNone,
                                               g.alpha,   0.0,        g.flip_kernel, g.policy};
  switch (pass) {
    case ConvolutionPass::fwd: {
      static const std::vector<SymInt> zeros(3, 0);
      SymIntArrayRef none(zeros.data(), g.stride.size());
      return call_op(ForwardArgs{{a, b, kNone, g.stride, g.padding, g.dilation, false, none,
                                  g.groups, kNone, g.alpha, 0, g.flip_kernel, g.policy}});
    }
    case ConvolutionPass::bwd_data:
      return call_kernel({&a, &b}, backward_input, {args});
    case ConvolutionPass::bwd_filter:
      return call_kernel({&a, &b}, backward_weight, {args});
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Inputs, in this order: a, b, bias, z. Saved are a and b, each only if the other's gradient is
// wanted; then the result, if relu comes last.
struct ConvolutionGradient {
  static constexpr const char* kName = "TorchCudnnExtConvolutionBackward";
  static constexpr size_t kInputs = 4;
  static constexpr bool kForwardMode = true;

  ConvolutionPass pass = ConvolutionPass::fwd;
  c10::SymDimVector a_sizes, b_sizes, b_strides, stride, padding, dilation;
  SymInt groups;
  double alpha = 1, beta = 0;
  bool flip_kernel = false, relu = false;
  bool channels_last = false;  // layout of the result, and so of its gradient
  std::optional<std::string> policy;

  auto attributes() {
    return std::tie(a_sizes, b_sizes, b_strides, stride, padding, dilation, groups, pass, alpha,
                    beta, flip_kernel, relu, channels_last, policy);
  }

  static bool reads(size_t saved, const Needed& needed) {
    return saved == 2 || needed[saved == 0 ? 1 : 0];
  }

  // As PyTorch has it. Over one dimension of space the gradient keeps its layout. Transforms of
  // torch.func know of no other layout than the contiguous one.
  Tensor in_layout_of_result(const Tensor& grad) const {
    if (is_transformed(grad)) return grad;
    if (grad.dim() == 4 && channels_last) return grad.contiguous(at::MemoryFormat::ChannelsLast);
    if (grad.dim() == 5 && channels_last) return grad.contiguous(at::MemoryFormat::ChannelsLast3d);
    if (grad.dim() <= 3) return grad;
    Tensor dense = grad.contiguous();
    // The strides of one channel or one pixel may still be those of the other layout.
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
      // If x has no channels, y has none, but the bias has as many as w.
      bool none = pass == ConvolutionPass::fwd && a_sizes[1] == 0;
      if (none) result[2] = at::constant_pad_nd_symint(result[2], {0, b_sizes[0]}, 0);
    }
    if (needed[3]) result[3] = beta == 1 ? grad : grad.mul(beta);
    return result;
  }
};

Tensor plus(const Tensor& sum, const Tensor& term) { return sum.defined() ? sum.add(term) : term; }

// The sum over the factors: the term with one of them replaced by its tangent.
Tensor tangent_of_result(ConvolutionPass pass, const Tensor& a, const Tensor& b,
                         const OptionalTensor& bias, const OptionalTensor& z,
                         SymIntArrayRef result_sizes, const Geometry& g, double beta) {
  Tensor tangent;
  if (has_tangent(a)) {
    tangent = bilinear(pass, tangent_of(a), primal_of(b), result_sizes, g);
  }
  if (has_tangent(b)) {
    tangent = plus(tangent, bilinear(pass, primal_of(a), tangent_of(b), result_sizes, g));
  }
  if (z && has_tangent(*z)) tangent = plus(tangent, tangent_of(*z).mul(beta));
  if (bias && has_tangent(*bias) && result_sizes[1] != 0) {
    c10::SmallVector<SymInt, 5> shape(result_sizes.size(), 1);
    shape[1] = bias->sym_size(0);
    tangent = plus(tangent, tangent_of(*bias).view_symint(shape).expand_symint(result_sizes));
  }
  return tangent;
}

// One way through autograd for all; relu, if it comes last, is part of the operator.
template <class Args>
Tensor with_autograd(c10::DispatchKeySet keys, const Args& args, ConvolutionPass pass,
                     const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                     const OptionalTensor& z, const Geometry& g, double beta, bool relu = false) {
  const Tensor &bias_tensor = or_undefined(bias), &z_tensor = or_undefined(z);
  bool any_tangent =
      has_tangent(a) || has_tangent(b) || has_tangent(bias_tensor) || has_tangent(z_tensor);
  Tensor result = run_with_gradient<ConvolutionGradient>(
      {a, b, bias_tensor, z_tensor}, 1, [&] { return redispatch(keys, args); },
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
    if (tangent.defined()) set_tangent(result, tangent);
  }
  return result;
}

template <class Args>
Geometry geometry_of(const Args& a) {
  return {a.stride, a.padding, a.dilation, a.groups, a.alpha, a.flip_kernel, a.policy};
}

// The gradient of relu is made of the result. If a gradient of another activation is wanted, the
// convolution and the activation are two steps.
Tensor forward_fused_autograd(c10::DispatchKeySet keys, const ForwardFusedArgs& a) {
  auto activation = activation_from_text("convolution_fused: activation", a.activation);
  bool relu = activation == Activation::relu;
  const Tensor &bias = or_undefined(a.bias), &z = or_undefined(a.z);
  bool is_differentiated = compute_requires_grad(a.input, a.weight, bias, z);
  for (const Tensor* t : {&a.input, &a.weight, &bias, &z}) is_differentiated |= has_tangent(*t);
  if (is_differentiated && !relu) {
    c10::SmallVector<SymInt, 3> none(a.stride.size(), 0);
    ForwardArgs plain{{a.input, a.weight, a.bias, a.stride, a.padding, a.dilation, false, none,
                       a.groups, a.z, 1, has(a.z) ? 1.0 : 0.0, a.flip_kernel, a.policy}};
    Tensor result = forward_autograd(keys, plain);
    activate(activation, result);
    return result;
  }
  Geometry g{a.stride, a.padding, a.dilation, a.groups, 1, a.flip_kernel, a.policy};
  return with_autograd(keys, a, ConvolutionPass::fwd, a.input, a.weight, a.bias, a.z, g, 1, relu);
}

template <ConvolutionPass pass, class Args>
Tensor backward_autograd(c10::DispatchKeySet keys, const Args& a) {
  return with_autograd(keys, a, pass, a.grad_output, a.other, kNone, a.last, geometry_of(a),
                       a.beta);
}

// Calls an operator that writes into its last tensor; neither this nor `tensors` have gradients.
template <class Args>
void write_into(c10::DispatchKeySet keys, const Args& args,
                std::initializer_list<const Tensor*> tensors) {
  auto check = [&](const Tensor& t) {
    TORCH_CHECK_VALUE(!compute_requires_grad(t), "torch_cudnn_ext::", args.kName,
                      ": an argument requires a gradient, but writing into out= is not "
                      "differentiable; use the function without out=, with z=");
    TORCH_CHECK_VALUE(!has_tangent(t), "torch_cudnn_ext::", args.kName,
                      ": an argument has a tangent, but writing into out= is not differentiable");
  };
  for (const Tensor* t : tensors) check(*t);
  check(args.last);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    redispatch(keys, args, c10::after_ADInplaceOrView_keyset);
  }
  increment_version(args.last);
}

void forward_out_autograd(c10::DispatchKeySet keys, const ForwardOutArgs& args) {
  write_into(keys, args, {&args.input, &args.weight, &or_undefined(args.bias)});
}

template <class Args>
void backward_out_autograd(c10::DispatchKeySet keys, const Args& args) {
  write_into(keys, args, {&args.grad_output, &args.other});
}

}  // namespace

Tensor bias_gradient(const Tensor& grad) {
  c10::SmallVector<int64_t, 4> dims{0};
  for (int64_t i = 2; i < grad.dim(); ++i) dims.push_back(i);
  return grad.sum(dims);
}

Tensor forward_autograd(c10::DispatchKeySet keys, const ForwardArgs& args) {
  return call_without_surplus(args, [&](const ForwardArgs& a) {
    return with_autograd(keys, a, a.transposed ? ConvolutionPass::bwd_data : ConvolutionPass::fwd,
                         a.input, a.weight, a.bias, a.last, geometry_of(a), a.beta);
  });
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, forward_fused_autograd,
                   backward_autograd<ConvolutionPass::bwd_data, BackwardInputArgs>,
                   backward_autograd<ConvolutionPass::bwd_filter, BackwardWeightArgs>,
                   forward_out_autograd, backward_out_autograd<BackwardInputOutArgs>,
                   backward_out_autograd<BackwardWeightOutArgs>>(m);
}

// As PyTorch's own convolution: all tensors to the lower type.
template <c10::DeviceType device>
static void register_autocast(torch::Library& m) {
  register_kernels<autocast<device, ForwardArgs>, autocast<device, ForwardFusedArgs>,
                   autocast<device, BackwardInputArgs>, autocast<device, BackwardWeightArgs>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) { register_autocast<c10::kCPU>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) { register_autocast<c10::kCUDA>(m); }

}  // namespace torch_cudnn_ext::convolution
