// conv1d and its like, which are composites of `convolution`, and PyTorch's own operator,
// overridden by it.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "ops/convolution/convolution.h"
#include "ops/typed_call.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::convolution {
namespace {

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

// conv1d and its like, with PyTorch's arguments, batched or not, as a call of `convolution`.
Tensor convolution_nd(int spatial, bool transposed, const Tensor& input, const Tensor& weight,
                      const OptionalTensor& bias, SymIntArrayRef stride, SymIntArrayRef padding,
                      SymIntArrayRef output_padding, SymIntArrayRef dilation, const SymInt& groups,
                      OptionalPolicy policy) {
  auto op_name = [&] { return c10::str("conv", transposed ? "_transpose" : "", spatial, "d"); };
  TORCH_CHECK_VALUE(weight.dim() == spatial + 2, "torch_cudnn_ext::", op_name(),
                    ": weight has sizes ", weight.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions");
  bool batched = input.dim() == spatial + 2;
  TORCH_CHECK_VALUE(batched || input.dim() == spatial + 1, "torch_cudnn_ext::", op_name(),
                    ": input has sizes ", input.sym_sizes(), ", wanted ", spatial + 2,
                    " dimensions, or ", spatial + 1, " without a batch");
  Tensor result = call_op(
      ForwardArgs{{batched ? input : input.unsqueeze(0), weight, bias, PerDimension(stride, weight),
                   PerDimension(padding, weight), PerDimension(dilation, weight), transposed,
                   PerDimension(output_padding, weight), groups, kNone, 1, 0, false, policy}});
  return batched ? result : result.squeeze(0);
}

template <int spatial>
Tensor conv(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
            SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
            OptionalPolicy policy) {
  static const std::vector<SymInt> none(spatial, 0);
  return convolution_nd(spatial, false, input, weight, bias, stride, padding, none, dilation,
                        groups, policy);
}

template <int spatial>
Tensor conv_transpose(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef output_padding,
                      SymInt groups, SymIntArrayRef dilation, OptionalPolicy policy) {
  return convolution_nd(spatial, true, input, weight, bias, stride, padding, output_padding,
                        dilation, groups, policy);
}

// What all of F.conv* and F.conv_transpose* come down to.
struct AtenConvolution {
  static constexpr const char* kOp = "convolution";

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
    PerDimension steps(stride, input), border(padding, input), gaps(dilation, input),
        extra(output_padding, input);
    return forward_autograd(keys, {{input, weight, bias, steps, border, gaps, transposed, extra,
                                    groups, kNone, 1, 0, false, std::nullopt}});
  }
  static Tensor run(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    bool transposed, SymIntArrayRef output_padding, const SymInt& groups) {
    PerDimension steps(stride, input), border(padding, input), gaps(dilation, input),
        extra(output_padding, input);
    return forward({{input, weight, bias, steps, border, gaps, transposed, extra, groups, kNone, 1,
                     0, false, std::nullopt}});
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
};

const RegisterOverride<AtenConvolution,
                       Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                              SymIntArrayRef, SymIntArrayRef, bool, SymIntArrayRef, SymInt)>
    overridden("convolution");

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  implement(m, "conv1d", TORCH_FN(conv<1>));
  implement(m, "conv2d", TORCH_FN(conv<2>));
  implement(m, "conv3d", TORCH_FN(conv<3>));
  implement(m, "conv_transpose1d", TORCH_FN(conv_transpose<1>));
  implement(m, "conv_transpose2d", TORCH_FN(conv_transpose<2>));
  implement(m, "conv_transpose3d", TORCH_FN(conv_transpose<3>));
}

}  // namespace torch_cudnn_ext::convolution
