// PyTorch's own convolution and its backward, overridden by ours.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/convolution/convolution.h"
#include "ops/known_kernel.h"
#include "torch/compiled_graphs.h"
#include "torch/convolution_internals.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::convolution {
namespace {

Tensor in_format(const Tensor& t, at::MemoryFormat layout) {
  // Tensors of three dimensions have no other format.
  return t.dim() > 3 ? t.contiguous(layout) : t.contiguous();
}

struct AtenArgs : ForwardArgs {
  bool in_compiled_graph;

  auto tied() const { return std::tuple_cat(ForwardArgs::tied(), std::tie(in_compiled_graph)); }
};

// What all of F.conv* and F.conv_transpose* come down to.
struct AtenConvolution {
  static constexpr const char* kOp = "convolution";
  static constexpr InGraphs kInGraphs = InGraphs::called;

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 const Tensor& weight, const OptionalTensor& bias,
                                                 SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                                                 bool transposed, SymIntArrayRef output_padding,
                                                 const SymInt&) {
    if (auto reason = why_tensor_is_declined(keys, "input", input)) return reason;
    if (auto reason = why_tensor_is_declined(keys, "weight", weight)) return reason;
    if (auto reason = why_tensor_is_declined(keys, "bias", or_undefined(bias))) return reason;
    // It records what PyTorch's kernel calls, not this operator.
    if (does_jit_trace_record()) return "torch.jit.trace is tracing";
    bool padded = std::any_of(output_padding.begin(), output_padding.end(),
                              [](const SymInt& n) { return n != 0; });
    if (padded && !transposed) return "output_padding of a convolution that is not transposed";
    return std::nullopt;
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                              const OptionalTensor& bias, SymIntArrayRef stride,
                              SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                              SymIntArrayRef output_padding, const SymInt& groups) {
    if (is_plain_call({&input, &weight, &or_undefined(bias)})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                 groups);
    }
    return call([&](const ForwardArgs& args) { return forward_autograd(keys, args); }, input,
                weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  }
  static Tensor run(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    bool transposed, SymIntArrayRef output_padding, const SymInt& groups) {
    return KnownKernel<ConvolutionProblem, run_once, plain_forward<AtenArgs>>::call(
        {{{input, weight, bias, stride, padding, dilation, transposed, output_padding, groups,
           kNone, 1, 0, false, std::nullopt}},
         CompiledGraphs::is_running()});
  }
  template <c10::DispatchKey>
  static Tensor plain(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                      bool transposed, SymIntArrayRef output_padding, const SymInt& groups) {
    return pytorch_kernels::convolution(
        input, weight, bias, C10_AS_INTARRAYREF_SLOW(stride), C10_AS_INTARRAYREF_SLOW(padding),
        C10_AS_INTARRAYREF_SLOW(dilation), transposed, C10_AS_INTARRAYREF_SLOW(output_padding),
        groups.guard_int(__FILE__, __LINE__));
  }

 private:
  static Tensor run_once(const AtenArgs& a) {
    return call(run_forward, a.input, a.weight, a.bias, a.stride, a.padding, a.dilation,
                a.transposed, a.output_padding, a.groups);
  }

  // `forward` of the arguments. The code of a compiled graph is made for the layout that PyTorch's
  // kernel gives, which for some kernels is contiguous whatever the operands are.
  template <class Forward>
  static Tensor call(Forward&& forward, const Tensor& input, const Tensor& weight,
                     const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                     SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                     const SymInt& groups) {
    PerDimension steps(stride, input), border(padding, input), gaps(dilation, input),
        extra(output_padding, input);
    auto result_of = [&](const Tensor& x, const Tensor& w) {
      return forward(ForwardArgs{{x, w, bias, steps, border, gaps, transposed, extra, groups, kNone,
                                  1, 0, false, std::nullopt}});
    };
    if (!CompiledGraphs::is_running()) return result_of(input, weight);
    at::MemoryFormat layout = layout_of_pytorch(input, weight, bias, steps, border, gaps,
                                                transposed, extra, groups, std::nullopt);
    if (layout != at::MemoryFormat::Contiguous) {
      return in_format(result_of(input, weight), layout);
    }
    return in_format(result_of(input.contiguous(), weight.contiguous()), layout);
  }
};

const RegisterOverride<AtenConvolution,
                       Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                              SymIntArrayRef, SymIntArrayRef, bool, SymIntArrayRef, SymInt)>
    overridden("convolution");

// The backward in compiled graphs. Eager code has the gradients of our forward instead.
struct AtenConvolutionBackward {
  static constexpr const char* kOp = "convolution_backward";
  static constexpr InGraphs kInGraphs = InGraphs::only_called;
  using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of input, weight and bias

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys,
                                                 const Tensor& grad_output, const Tensor& input,
                                                 const Tensor& weight, at::OptionalSymIntArrayRef,
                                                 SymIntArrayRef stride, SymIntArrayRef,
                                                 SymIntArrayRef, bool transposed,
                                                 SymIntArrayRef output_padding, const SymInt&,
                                                 std::array<bool, 3>) {
    if (auto reason = why_tensor_is_declined(keys, "grad_output", grad_output)) return reason;
    if (auto reason = why_tensor_is_declined(keys, "input", input)) return reason;
    if (auto reason = why_tensor_is_declined(keys, "weight", weight)) return reason;
    if (input.sym_size(1) == 0) return "input has no channels";
    PerDimension steps(stride, input), extra(output_padding, input);
    SymIntArrayRef step = steps, added = extra;
    for (size_t i = 0; i < added.size(); ++i) {
      if (added[i] == 0) continue;
      if (!transposed) return "output_padding of a convolution that is not transposed";
      if (i >= step.size() || added[i] >= step[i]) return "output_padding of a stride or more";
    }
    return std::nullopt;
  }

  static Gradients run(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                       at::OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride,
                       SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                       SymIntArrayRef output_padding, const SymInt& groups,
                       std::array<bool, 3> wanted) {
    PerDimension steps(stride, input), border(padding, input), gaps(dilation, input),
        extra(output_padding, input);
    at::MemoryFormat layout = layout_of_pytorch(input, weight, kNone, steps, border, gaps,
                                                transposed, extra, groups, bias_sizes);
    Tensor grad = in_format(grad_output, layout);
    bool contiguous = layout == at::MemoryFormat::Contiguous;
    Tensor x = contiguous ? input.contiguous() : input;
    Tensor w = contiguous ? weight.contiguous() : weight;
    using BackwardArgs = BackwardArgsWith<const OptionalTensor&>;
    auto args_of = [&](const Tensor& first, const Tensor& second, const Tensor& like) {
      return BackwardArgs{first, second, like.sym_sizes(), steps, border, gaps, groups, kNone, 1,
                          0,     false,  std::nullopt};
    };
    Gradients result;
    if (wanted[0] && transposed) {
      const std::vector<SymInt> none(SymIntArrayRef(steps).size(), 0);
      std::get<0>(result) = forward(ForwardArgs{{grad, w, kNone, steps, border, gaps, false, none,
                                                 groups, kNone, 1, 0, false, std::nullopt}});
    } else if (wanted[0]) {
      std::get<0>(result) = backward_input({args_of(grad, w, input)});
    }
    if (wanted[1]) {
      std::get<1>(result) =
          backward_weight({transposed ? args_of(x, grad, weight) : args_of(grad, x, weight)});
    }
    if (wanted[0]) std::get<0>(result) = in_format(std::get<0>(result), layout);
    if (wanted[1]) std::get<1>(result) = in_format(std::get<1>(result), layout);
    if (wanted[2]) std::get<2>(result) = bias_gradient(grad);
    return result;
  }
};

const RegisterOverrideBelowAutograd<
    AtenConvolutionBackward,
    AtenConvolutionBackward::Gradients(
        const Tensor&, const Tensor&, const Tensor&, at::OptionalSymIntArrayRef, SymIntArrayRef,
        SymIntArrayRef, SymIntArrayRef, bool, SymIntArrayRef, SymInt, std::array<bool, 3>)>
    backward_overridden("convolution_backward");

}  // namespace
}  // namespace torch_cudnn_ext::convolution
