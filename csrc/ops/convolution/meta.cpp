// What is known of a convolution without data: whether its arguments are valid, the sizes and the
// layout of its result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "ops/convolution/convolution.h"

namespace torch_cudnn_ext::convolution {
namespace {

// All but sizes. It comes first: sizes are found by indexing with, and dividing by, what it checks.
void check_arguments(const Request& r) {
  const Names& n = r.names;
  const Tensor& a = r.first;
  const Tensor& b = r.second;
  const char* a_name = r.first_name();
  const char* b_name = r.pass == ConvolutionPass::bwd_filter ? n.x : n.w;
  TORCH_CHECK_VALUE(a.dim() >= 3 && a.dim() <= 5, "torch_cudnn_ext::", n.op, ": ", a_name,
                    " has sizes ", a.sym_sizes(), ", wanted 3, 4 or 5 dimensions");
  TORCH_CHECK_VALUE(b.dim() == a.dim(), "torch_cudnn_ext::", n.op, ": ", b_name, " has sizes ",
                    b.sym_sizes(), ", wanted as many dimensions as ", a_name, ", which has sizes ",
                    a.sym_sizes());
  check_dtype(n.op, a_name, a);
  check_alike(n.op, b_name, b, a_name, a);
  int64_t spatial = a.dim() - 2;
  check_spatial(n.op, "stride", r.stride, spatial, 1);
  check_spatial(n.op, "padding", r.padding, spatial, 0);
  check_spatial(n.op, "dilation", r.dilation, spatial, 1);
  TORCH_CHECK_VALUE(r.groups >= 1, "torch_cudnn_ext::", n.op, ": groups is ", r.groups,
                    ", wanted at least 1");
  if (r.output_padding) {
    check_spatial(n.op, "output_padding", *r.output_padding, spatial, 0);
  } else if (r.pass != ConvolutionPass::fwd) {
    const char* name = r.pass == ConvolutionPass::bwd_data ? n.x : n.w;
    TORCH_CHECK_VALUE(r.result.size() == static_cast<size_t>(a.dim()), "torch_cudnn_ext::", n.op,
                      ": ", name, " is ", r.result, ", wanted ", a.dim(), " sizes");
  }
}

SymSizes copy_of(SymIntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

// How many positions a kernel spans.
SymInt reach(const Request& r, const SymSizes& w, size_t i) {
  return r.dilation[i] * (w[i + 2] - 1) + 1;
}

// The x of the convolution whose backward-data pass a transposed convolution is.
SymSizes transposed_x(const Request& r, const SymSizes& w) {
  const char* op = r.names.op;
  SymIntArrayRef input = r.first.sym_sizes();
  SymIntArrayRef output_padding = *r.output_padding;
  SymSizes x{input[0], w[1] * r.groups};
  for (size_t i = 0; i < r.stride.size(); ++i) {
    TORCH_CHECK_VALUE(input[i + 2] >= 1, "torch_cudnn_ext::", op, ": input has sizes ", input,
                      ", wanted at least 1 in each dimension of space");
    // without_surplus took whole strides out of what is less than dilation.
    TORCH_CHECK_VALUE(output_padding[i] < r.stride[i], "torch_cudnn_ext::", op,
                      ": output_padding is ", output_padding, ", wanted less than stride ",
                      r.stride, " or dilation ", r.dilation);
    x.push_back((input[i + 2] - 1) * r.stride[i] - r.padding[i] * 2 + reach(r, w, i) +
                output_padding[i]);
    TORCH_CHECK_VALUE(x[i + 2] >= 1, "torch_cudnn_ext::", op, ": the output would have the size ",
                      x[i + 2], " for input ", input, ", weight ", SymIntArrayRef(w),
                      " and padding ", r.padding, ", wanted at least 1");
  }
  return x;
}

void check_bias(const Request& r, const Tensor& bias, const SymInt& channels) {
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.sym_size(0) == channels,
                    "torch_cudnn_ext::", r.names.op, ": bias has sizes ", bias.sym_sizes(),
                    ", wanted [", channels, "]");
  check_alike(r.names.op, "bias", bias, r.first_name(), r.first);
}

}  // namespace

Sizes checked_sizes(const Request& r, const OptionalTensor& bias) {
  check_arguments(r);
  const Names& n = r.names;
  bool transposed = r.output_padding.has_value();
  Sizes s;
  s.w = copy_of(r.pass == ConvolutionPass::bwd_filter ? r.result : r.second.sym_sizes());
  for (size_t i = 0; i < s.w.size(); ++i) {
    bool goes_with_x = i == 1 && !transposed;
    TORCH_CHECK_VALUE(goes_with_x || s.w[i] >= 1, "torch_cudnn_ext::", n.op, ": ", n.w,
                      " has sizes ", SymIntArrayRef(s.w), ", wanted at least 1 in each");
  }
  if (transposed) {
    s.x = transposed_x(r, s.w);
  } else if (r.pass == ConvolutionPass::bwd_data) {
    s.x = copy_of(r.result);
  } else {
    s.x = copy_of((r.pass == ConvolutionPass::fwd ? r.first : r.second).sym_sizes());
  }
  TORCH_CHECK_VALUE(s.w[1] * r.groups == s.x[1], "torch_cudnn_ext::", n.op, ": ", n.w,
                    " has sizes ", SymIntArrayRef(s.w), " and groups is ", r.groups, ", so ", n.x,
                    " must have ", s.w[1] * r.groups, " channels, but has sizes ",
                    SymIntArrayRef(s.x));
  TORCH_CHECK_VALUE(s.w[0] % r.groups == 0, "torch_cudnn_ext::", n.op, ": ", n.w, " has sizes ",
                    SymIntArrayRef(s.w), ", wanted a first size that groups=", r.groups,
                    " divides");
  // As in PyTorch: without channels of x there are none of y.
  s.y = {s.x[0], s.x[1] == 0 ? s.x[1] : s.w[0]};
  for (size_t i = 0; i < r.stride.size(); ++i) {
    TORCH_CHECK_VALUE(s.x[i + 2] >= 1 || (s.x[i + 2] == 0 && (s.x[0] == 0 || s.x[1] == 0)),
                      "torch_cudnn_ext::", n.op, ": ", n.x, " has sizes ", SymIntArrayRef(s.x),
                      ", wanted at least 1 in each dimension of space");
    SymInt room = s.x[i + 2] + r.padding[i] * 2 - reach(r, s.w, i);
    TORCH_CHECK_VALUE(room >= 0, "torch_cudnn_ext::", n.op, ": ", n.w, " has sizes ",
                      SymIntArrayRef(s.w), " and dilation is ", r.dilation,
                      ", which is larger than the padded ", n.x, " of sizes ", SymIntArrayRef(s.x),
                      " with padding ", r.padding);
    s.y.push_back(room / r.stride[i] + 1);
  }
  if (r.pass != ConvolutionPass::fwd) {
    TORCH_CHECK_VALUE(r.first.sym_sizes() == SymIntArrayRef(s.y), "torch_cudnn_ext::", n.op, ": ",
                      n.y, " has sizes ", r.first.sym_sizes(), ", wanted ", SymIntArrayRef(s.y),
                      ", the output sizes for ", n.x, " ", SymIntArrayRef(s.x), " and ", n.w, " ",
                      SymIntArrayRef(s.w));
  }
  if (has(bias)) check_bias(r, *bias, transposed ? s.x[1] : s.w[0]);
  return s;
}

void check_like(const Request& r, const char* name, const Tensor& t, SymIntArrayRef sizes) {
  TORCH_CHECK_VALUE(t.sym_sizes() == sizes, "torch_cudnn_ext::", r.names.op, ": ", name,
                    " has sizes ", t.sym_sizes(), ", wanted ", sizes);
  check_alike(r.names.op, name, t, r.first_name(), r.first);
}

namespace {

// What an operator of PyTorch's says of this CPU; false if PyTorch is built without oneDNN.
bool onednn_says(const char* op) {
  auto schema = c10::Dispatcher::singleton().findSchema({op, ""});
  return schema && schema->typed<bool()>().call();
}

// Whether PyTorch on the CPU gives a volume to oneDNN: ConvParams::use_mkldnn of its
// Convolution.cpp.
bool runs_in_onednn(const Request& r, const Sizes& sizes) {
  if (!at::globalContext().userEnabledMkldnn()) return false;
  if (r.first.scalar_type() == at::kHalf) {
    static const bool has_fp16 = onednn_says("mkldnn::_is_mkldnn_fp16_supported");
    return has_fp16;
  }
  if (r.first.scalar_type() == at::kBFloat16) {
    static const bool has_bf16 = onednn_says("mkldnn::_is_mkldnn_bf16_supported");
    return has_bf16;
  }
  const SymSizes& x = r.output_padding ? sizes.y : sizes.x;
  const SymInt& height = sizes.w[sizes.w.size() - 2];
  const SymInt& width = sizes.w[sizes.w.size() - 1];
  auto not_one = [](const SymInt& value) { return value != 1; };
  bool worth_it = at::get_num_threads() > 1 || not_one(width) || not_one(height) ||
                  std::any_of(r.stride.begin(), r.stride.end(), not_one) ||
                  std::any_of(r.dilation.begin(), r.dilation.end(), not_one) || x[0] >= 16;
  return worth_it && (r.groups > 1 || (width > 3 && height > 3) || x[0] > 1 ||
                      x[0] * x[1] * x[2] * x[3] > 20480);
}

// For a tensor over one dimension of space, this is what PyTorch finds for the same tensor as a
// plane of height 1.
bool is_channels_last(const Tensor& t) {
  if (t.dim() == 4) return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  if (t.dim() == 5) return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast3d;
  if (t.sym_stride(1) > t.sym_stride(2)) return false;  // the rest costs a view
  return t.unsqueeze(2).suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

}  // namespace

// Either operand decides, with two exceptions. Over one dimension of space PyTorch makes x
// contiguous first, so as not to take a transposed sequence for channels_last. On the CPU it has
// kernels of its own for volumes, which give contiguous results.
bool prefers_channels_last(const Request& r, const Sizes& sizes) {
  if (r.first.scalar_type() == at::kDouble) return false;
  if (r.first.dim() == 3) {
    return r.pass != ConvolutionPass::bwd_filter && is_channels_last(r.second);
  }
  if (!is_channels_last(r.first) && !is_channels_last(r.second)) return false;
  // Fake tensors run here as meta tensors, but keep the key of their device.
  bool on_cpu = r.first.key_set().has_backend(c10::BackendComponent::CPUBit);
  return r.first.dim() == 4 || !on_cpu || runs_in_onednn(r, sizes);
}

Tensor empty_result(SymIntArrayRef sizes, bool channels_last, const Tensor& like) {
  if (!channels_last) return at::empty_symint(sizes, like.options());
  if (sizes.size() == 3) {
    return at::empty_symint({sizes[0], sizes[2], sizes[1]}, like.options()).transpose(1, 2);
  }
  auto format =
      sizes.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return at::empty_symint(sizes, like.options(), format);
}

std::optional<WithoutSurplus> without_surplus(const Tensor& input, SymIntArrayRef stride,
                                              SymIntArrayRef dilation,
                                              SymIntArrayRef output_padding) {
  size_t spatial = stride.size();
  if (dilation.size() != spatial || output_padding.size() != spatial ||
      input.dim() != static_cast<int64_t>(spatial) + 2) {
    return std::nullopt;
  }
  bool any = false;
  for (size_t i = 0; i < spatial; ++i) {
    if (stride[i] < 1 || output_padding[i] < 0) return std::nullopt;
    if (output_padding[i] < stride[i]) continue;
    bool valid = output_padding[i] < dilation[i];
    if (!valid || input.sym_size(static_cast<int64_t>(i) + 2) < 1) return std::nullopt;
    any = true;
  }
  if (!any) return std::nullopt;
  SymSizes rest;
  SymSizes pad;  // of the last dimension first, each before and after
  for (size_t i = 0; i < spatial; ++i) {
    rest.push_back(output_padding[i] % stride[i]);
    size_t last = spatial - 1 - i;
    pad.append({0, output_padding[last] / stride[last]});
  }
  return WithoutSurplus{at::constant_pad_nd_symint(input, pad, 0), std::move(rest)};
}

}  // namespace torch_cudnn_ext::convolution
