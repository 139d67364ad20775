// PyTorch's pooling operators, overridden. Those that also return the indices of maxima stay
// PyTorch's.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "ops/pooling/pooling.h"
#include "torch/internals.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::pooling {
namespace {

using at::IntArrayRef;

// A list of one is for all dimensions.
SymInts for_each(IntArrayRef list, size_t dims) {
  if (list.size() == 1) return SymInts(dims, list[0]);
  return {list.begin(), list.end()};
}

// `lists`: the arguments that have one number for each dimension of space, or one for all; a stride
// may be empty.
template <class List>
std::optional<std::string> why_pooling_is_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                   size_t dims, std::initializer_list<List> lists) {
  for (const List& list : lists) {
    if (list.size() > 1 && list.size() != dims) return "a list has another length";
  }
  if (auto reason = why_any_is_declined(keys, {{"input", input}})) return reason;
  auto rank = static_cast<size_t>(input.dim());
  if (rank != dims + 1 && rank != dims + 2) return c10::str("input has ", rank, " dimensions");
  return std::nullopt;
}

// An empty stride is written out, since AOTInductor passes None for an empty list.
SymInts steps_of(IntArrayRef stride, IntArrayRef kernel_size, size_t dims) {
  return for_each(stride.empty() ? kernel_size : stride, dims);
}

template <size_t dims>
struct AtenMaxPool {
  static constexpr const char* kOps[] = {"max_pool1d", "max_pool2d", "max_pool3d"};
  static constexpr const char* kOp = kOps[dims - 1];

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 IntArrayRef kernel_size, IntArrayRef stride,
                                                 IntArrayRef padding, IntArrayRef dilation, bool) {
    return why_pooling_is_declined(keys, input, dims, {kernel_size, stride, padding, dilation});
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                              IntArrayRef dilation, bool ceil) {
    SymInts window = for_each(kernel_size, dims), steps = steps_of(stride, kernel_size, dims),
            border = for_each(padding, dims), gaps = for_each(dilation, dims);
    MaxPoolArgs args{input, {window, steps, border, gaps, ceil, false}, {}};
    // PyTorch's own kernel for sequences on the CPU, which runs if nothing is recorded, gives a
    // contiguous result.
    bool contiguous =
        dims == 1 && input.is_cpu() && !(input.requires_grad() && at::GradMode::is_enabled());
    auto laid_out = [&](const Tensor& y) { return contiguous ? y.contiguous() : y; };
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return laid_out(max_pool(args));
    }
    return laid_out(max_pool_autograd(keys, args));
  }
};

template <size_t dims>
struct AtenAvgPool {
  static constexpr const char* kOp = dims == 2 ? "avg_pool2d" : "avg_pool3d";

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 IntArrayRef kernel_size, IntArrayRef stride,
                                                 IntArrayRef padding, bool, bool,
                                                 std::optional<int64_t>) {
    return why_pooling_is_declined(keys, input, dims, {kernel_size, stride, padding});
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                              bool ceil, bool count_include_pad, std::optional<int64_t> divisor) {
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, kernel_size, stride, padding, ceil, count_include_pad, divisor);
    }
    return avg_pool_autograd(
        keys, {input, for_each(kernel_size, dims), steps_of(stride, kernel_size, dims),
               for_each(padding, dims), ceil, count_include_pad, divisor, false, std::nullopt});
  }
  static Tensor run(const Tensor& input, IntArrayRef kernel_size, IntArrayRef stride,
                    IntArrayRef padding, bool ceil, bool count_include_pad,
                    std::optional<int64_t> divisor) {
    return avg_pool({input, for_each(kernel_size, dims), steps_of(stride, kernel_size, dims),
                     for_each(padding, dims), ceil, count_include_pad, divisor, false,
                     std::nullopt});
  }
  template <c10::DispatchKey key>
  static Tensor plain(const Tensor& input, IntArrayRef kernel_size, IntArrayRef stride,
                      IntArrayRef padding, bool ceil, bool count_include_pad,
                      std::optional<int64_t> divisor) {
    constexpr bool on_cpu = key == c10::DispatchKey::CPU;
    namespace kernels = pytorch_kernels;
    auto pool = dims == 2 ? on_cpu ? kernels::cpu::avg_pool2d : kernels::cuda::avg_pool2d
                : on_cpu  ? kernels::cpu::avg_pool3d
                          : kernels::cuda::avg_pool3d;
    return pool(input, kernel_size, stride, padding, ceil, count_include_pad, divisor);
  }
};

template <size_t dims>
struct AtenAdaptiveAvgPool {
  static constexpr const char* kOp = dims == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d";

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 SymIntArrayRef output_size) {
    for (const SymInt& size : output_size) {
      if (size < 1) return "output_size is 0 or less";
    }
    return why_pooling_is_declined(keys, input, dims, {output_size});
  }
  static Tensor with_autograd(c10::DispatchKeySet, const Tensor& input,
                              SymIntArrayRef output_size) {
    SymInts none(dims, 0);
    return call_op(AvgPoolArgs{input, {output_size, output_size, none, false, true, {}, true}, {}});
  }
};

using MaxPoolSignature = Tensor(const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef,
                                bool);
using AvgPoolSignature = Tensor(const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef, bool, bool,
                                std::optional<int64_t>);
using AdaptiveSignature = Tensor(const Tensor&, SymIntArrayRef);
const RegisterOverrideOfComposite<AtenMaxPool<1>, MaxPoolSignature> max_pool1d("max_pool1d");
const RegisterOverrideOfComposite<AtenMaxPool<2>, MaxPoolSignature> max_pool2d("max_pool2d");
const RegisterOverrideOfComposite<AtenMaxPool<3>, MaxPoolSignature> max_pool3d("max_pool3d");
const RegisterOverride<AtenAvgPool<2>, AvgPoolSignature> avg_pool2d("avg_pool2d");
const RegisterOverride<AtenAvgPool<3>, AvgPoolSignature> avg_pool3d("avg_pool3d");
const RegisterOverrideOfComposite<AtenAdaptiveAvgPool<2>, AdaptiveSignature> adaptive_avg_pool2d(
    "adaptive_avg_pool2d");
const RegisterOverrideOfComposite<AtenAdaptiveAvgPool<3>, AdaptiveSignature> adaptive_avg_pool3d(
    "adaptive_avg_pool3d");

}  // namespace
}  // namespace torch_cudnn_ext::pooling
