// Shapes and layouts of convolution's results without data, and autocast.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/convolution.h"

namespace torch_cudnn_ext::convolution {

namespace {

using SymSizes = c10::SmallVector<SymInt, 5>;

Tensor empty_result(const SymSizes& sizes, bool channels_last, const Tensor& like) {
  if (!channels_last) return at::empty_symint(sizes, like.options());
  if (sizes.size() == 3) {
    return at::empty_symint({sizes[0], sizes[2], sizes[1]}, like.options()).transpose(1, 2);
  }
  auto format =
      sizes.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return at::empty_symint(sizes, like.options(), format);
}

SymSizes vector_of(SymIntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

void check_rank(const char* op, const char* name, SymIntArrayRef values, size_t wanted) {
  TORCH_CHECK_VALUE(values.size() == wanted, "torch_cudnn_ext::", op, ": ", name, " is ", values,
                    ", wanted ", wanted, " values");
}

Tensor forward_meta(const Tensor& input, const Tensor& weight, const OptionalTensor&,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    bool transposed, SymIntArrayRef output_padding, SymInt groups,
                    const OptionalTensor&, double, double, bool, OptionalPolicy) {
  TORCH_CHECK_VALUE(input.dim() >= 3 && input.dim() <= 5 && weight.dim() == input.dim(),
                    "torch_cudnn_ext::convolution: input has sizes ", input.sym_sizes(),
                    " and weight has sizes ", weight.sym_sizes(),
                    ", wanted 3, 4 or 5 dimensions, the same number in both");
  TORCH_CHECK_VALUE(input.scalar_type() == weight.scalar_type(),
                    "torch_cudnn_ext::convolution: weight is ", weight.scalar_type(),
                    ", wanted input's dtype ", input.scalar_type());
  size_t spatial = input.dim() - 2;
  SymInt wanted = transposed ? weight.sym_size(0) : weight.sym_size(1) * groups;
  TORCH_CHECK_VALUE(input.sym_size(1) == wanted, "torch_cudnn_ext::convolution: weight has sizes ",
                    weight.sym_sizes(), " and groups is ", groups, ", so input must have ", wanted,
                    " channels, but has sizes ", input.sym_sizes());
  TORCH_CHECK_VALUE(weight.sym_size(0) % groups == 0,
                    "torch_cudnn_ext::convolution: weight has sizes ", weight.sym_sizes(),
                    ", wanted a first size that groups=", groups, " divides");
  check_rank("convolution", "stride", stride, spatial);
  check_rank("convolution", "padding", padding, spatial);
  check_rank("convolution", "dilation", dilation, spatial);
  if (transposed) check_rank("convolution", "output_padding", output_padding, spatial);
  SymSizes sizes{input.sym_size(0), transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  for (size_t i = 0; i < spatial; ++i) {
    auto dim = static_cast<int64_t>(i) + 2;
    SymInt reach = dilation[i] * (weight.sym_size(dim) - 1) + 1;
    if (transposed) {
      sizes.push_back((input.sym_size(dim) - 1) * stride[i] - padding[i] * 2 + reach +
                      output_padding[i]);
    } else {
      SymInt room = input.sym_size(dim) + padding[i] * 2 - reach;
      TORCH_CHECK_VALUE(room >= 0, "torch_cudnn_ext::convolution: weight has sizes ",
                        weight.sym_sizes(), " and dilation is ", dilation,
                        ", which is larger than the padded input of sizes ", input.sym_sizes(),
                        " with padding ", padding);
      sizes.push_back(room / stride[i] + 1);
    }
  }
  return empty_result(sizes, prefers_channels_last(input, weight), input);
}

Tensor backward_input_meta(const Tensor& grad_output, const Tensor& weight,
                           SymIntArrayRef input_size, SymIntArrayRef, SymIntArrayRef,
                           SymIntArrayRef, SymInt, const OptionalTensor&, double, double, bool,
                           OptionalPolicy) {
  return empty_result(vector_of(input_size), prefers_channels_last(grad_output, weight),
                      grad_output);
}

Tensor backward_weight_meta(const Tensor& grad_output, const Tensor& input,
                            SymIntArrayRef weight_size, SymIntArrayRef, SymIntArrayRef,
                            SymIntArrayRef, SymInt, const OptionalTensor&, double, double, bool,
                            OptionalPolicy) {
  return empty_result(vector_of(weight_size), prefers_channels_last(grad_output, input),
                      grad_output);
}

void forward_out_meta(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                      SymIntArrayRef, SymIntArrayRef, bool, SymIntArrayRef, SymInt, Tensor&, double,
                      double, bool, OptionalPolicy) {}

void backward_out_meta(const Tensor&, const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                       SymIntArrayRef, SymInt, Tensor&, double, double, bool, OptionalPolicy) {}

// What is cast under autocast, in the way of PyTorch's own convolution: all tensors, to the lower
// type.
template <c10::DeviceType device>
struct Cast {
  static constexpr c10::DispatchKey kKey =
      device == c10::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  c10::impl::ExcludeDispatchKeyGuard below{kKey};
  c10::ScalarType to = at::autocast::get_lower_precision_fp_from_device_type(device);

  template <class T>
  auto operator()(const T& tensor) const {
    return at::autocast::cached_cast(to, tensor, device);
  }
};

template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                        bool transposed, SymIntArrayRef output_padding, SymInt groups,
                        const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
                        OptionalPolicy policy) {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::convolution");
  Cast<device> cast;
  return op.call(cast(input), cast(weight), cast(bias), stride, padding, dilation, transposed,
                 output_padding, std::move(groups), cast(z), alpha, beta, flip_kernel, policy);
}

template <c10::DeviceType device>
Tensor backward_input_autocast(const Tensor& grad_output, const Tensor& weight,
                               SymIntArrayRef input_size, SymIntArrayRef stride,
                               SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                               const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
                               OptionalPolicy policy) {
  static auto op = find_op<decltype(backward_input)>("torch_cudnn_ext::convolution_backward_input");
  Cast<device> cast;
  return op.call(cast(grad_output), cast(weight), input_size, stride, padding, dilation,
                 std::move(groups), cast(z), alpha, beta, flip_kernel, policy);
}

template <c10::DeviceType device>
Tensor backward_weight_autocast(const Tensor& grad_output, const Tensor& input,
                                SymIntArrayRef weight_size, SymIntArrayRef stride,
                                SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups,
                                const OptionalTensor& z, double alpha, double beta,
                                bool flip_kernel, OptionalPolicy policy) {
  static auto op =
      find_op<decltype(backward_weight)>("torch_cudnn_ext::convolution_backward_weight");
  Cast<device> cast;
  return op.call(cast(grad_output), cast(input), weight_size, stride, padding, dilation,
                 std::move(groups), cast(z), alpha, beta, flip_kernel, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("convolution", TORCH_FN(forward_meta));
  m.impl("convolution_backward_input", TORCH_FN(backward_input_meta));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight_meta));
  m.impl("convolution_out", TORCH_FN(forward_out_meta));
  m.impl("convolution_backward_input_out", TORCH_FN(backward_out_meta));
  m.impl("convolution_backward_weight_out", TORCH_FN(backward_out_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("convolution", TORCH_FN(forward_autocast<c10::kCPU>));
  m.impl("convolution_backward_input", TORCH_FN(backward_input_autocast<c10::kCPU>));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight_autocast<c10::kCPU>));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("convolution", TORCH_FN(forward_autocast<c10::kCUDA>));
  m.impl("convolution_backward_input", TORCH_FN(backward_input_autocast<c10::kCUDA>));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight_autocast<c10::kCUDA>));
}

}  // namespace torch_cudnn_ext::convolution
