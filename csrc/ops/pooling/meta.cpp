// What is known of a pooling without data: whether its arguments are valid, the sizes and the
// layout of its result.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "core/writer.h"
#include "ops/pooling/pooling.h"
#include "problems/pooled_size.h"

namespace torch_cudnn_ext::pooling {
namespace {

void check_sizes(const char* op, SymIntArrayRef input, const Windows& w) {
  auto dims = w.dims(), rank = static_cast<int64_t>(input.size());
  TORCH_CHECK_VALUE(dims >= 1 && dims <= 3, "torch_cudnn_ext::", op, ": kernel_size has ", dims,
                    " numbers, wanted 1 to 3, one for each dimension of space");
  TORCH_CHECK_VALUE(rank == dims + 1 || rank == dims + 2, "torch_cudnn_ext::", op,
                    ": input has sizes ", input, ", wanted ", dims + 2, " dimensions, or ",
                    dims + 1, " without a batch");
  check_spatial(op, w.adaptive ? "output_size" : "kernel_size", w.window, dims, w.adaptive ? 0 : 1);
  if (!w.adaptive) {
    check_spatial(op, "stride", w.stride, dims, 1);
    check_spatial(op, "padding", w.padding, dims, 0);
    check_spatial(op, "dilation", w.dilation, dims, 1);
  }
  int64_t first = rank - dims;
  for (int64_t i = w.adaptive ? first : first - 1; i < rank; ++i) {
    TORCH_CHECK_VALUE(input[i] >= 1, "torch_cudnn_ext::", op, ": input has sizes ", input,
                      ", wanted at least 1 in all dimensions but the batch's",
                      w.adaptive ? " and the channels'" : "");
  }
}

}  // namespace

SymInts output_sizes(const char* op, SymIntArrayRef input, const Windows& w) {
  check_sizes(op, input, w);
  size_t first = input.size() - w.window.size();
  SymInts sizes(input.begin(), input.begin() + first);
  for (size_t i = 0; i < w.window.size(); ++i) {
    if (w.adaptive) {
      sizes.push_back(w.window[i]);
      continue;
    }
    TORCH_CHECK_VALUE(w.padding[i] <= w.window[i] / 2, "torch_cudnn_ext::", op, ": padding is ",
                      w.padding[i], ", wanted at most half of kernel_size, which is ", w.window[i]);
    sizes.push_back(pooled_size<SymInt>(input[first + i], w.window[i], w.padding[i], w.stride[i],
                                        w.dilation[i], w.ceil));
    TORCH_CHECK_VALUE(sizes.back() >= 1, "torch_cudnn_ext::", op, ": kernel_size is ", w.window[i],
                      " with dilation ", w.dilation[i], ", wanted no more than the padded input, ",
                      input[first + i], " and ", w.padding[i], " on either side");
  }
  return sizes;
}

Windows checked_windows(const Tensor& input, const AverageArgs& average) {
  Windows w = average.windows();
  if (w.adaptive || w.dims() != 3 || input.dim() < 3) return w;
  // PyTorch wants windows no larger than a volume without its padding.
  SymIntArrayRef volume = input.sym_sizes().slice(input.dim() - 3);
  for (size_t i = 0; i < 3; ++i) {
    TORCH_CHECK_VALUE(w.window[i] <= volume[i], "torch_cudnn_ext::avg_pool: kernel_size is ",
                      w.window[i], ", wanted no more than input has there, ", volume[i]);
  }
  return w;
}

int64_t divisor_of(const AverageArgs& average) {
  const std::optional<int64_t>& divisor = average.divisor;
  TORCH_CHECK_VALUE(!divisor || !average.adaptive,
                    "torch_cudnn_ext::avg_pool: divisor_override is ", *divisor,
                    ", wanted None: adaptive windows differ in size");
  TORCH_CHECK_VALUE(!divisor || *divisor != 0,
                    "torch_cudnn_ext::avg_pool: divisor_override is 0, wanted any other number");
  return divisor.value_or(1);
}

void check_max_backward(const MaxPoolBackwardArgs& args, const Windows& w) {
  constexpr const char* kOp = MaxPoolBackwardArgs::kName;
  check_dtype(kOp, "input", args.input);
  SymInts sizes = output_sizes(kOp, args.input.sym_sizes(), w);
  TORCH_CHECK_VALUE(args.output.sym_sizes().equals(sizes), "torch_cudnn_ext::", kOp,
                    ": output has sizes ", args.output.sym_sizes(), ", wanted ",
                    SymIntArrayRef(sizes));
  check_same(kOp, "grad_output", args.grad_output, "output", args.output);
}

void check_avg_backward(const AvgPoolBackwardArgs& args, const Windows& w) {
  constexpr const char* kOp = "avg_pool_backward";
  check_dtype(kOp, "grad_output", args.grad_output);
  SymInts wanted = output_sizes(kOp, args.input_size, w);
  TORCH_CHECK_VALUE(args.grad_output.sym_sizes() == SymIntArrayRef(wanted),
                    "torch_cudnn_ext::", kOp, ": grad_output has sizes ",
                    args.grad_output.sym_sizes(), ", wanted ", SymIntArrayRef(wanted),
                    " for input_size ", args.input_size);
}

// As PyTorch's: channels_last stays, except for averages and adaptive windows in a volume.
at::MemoryFormat format_of(const Tensor& input, const Windows& w, bool is_max) {
  bool contiguous = w.dims() == 3 && (!is_max || w.adaptive);
  return contiguous ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
}

bool is_mean(const Windows& w) {
  return w.adaptive &&
         std::all_of(w.window.begin(), w.window.end(), [](const auto& n) { return n == 1; });
}

// A mean over all of a volume keeps the input's layout, too.
at::MemoryFormat format_of_result(const Tensor& input, const Windows& w, bool is_max) {
  return !is_max && is_mean(w) ? input.suggest_memory_format() : format_of(input, w, is_max);
}

at::MemoryFormat format_from(bool channels_last, const Windows& w) {
  if (!channels_last) return at::MemoryFormat::Contiguous;
  return w.dims() == 3 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

Tensor lift(const Tensor& t, const Windows& w) {
  Tensor out = t.dim() == w.dims() + 1 ? t.unsqueeze(0) : t;
  return w.dims() == 1 ? out.unsqueeze(-2) : out;
}

Tensor lower(const Tensor& t, const Windows& w, int64_t rank) {
  Tensor out = w.dims() == 1 ? t.squeeze(-2) : t;
  return rank == w.dims() + 1 ? out.squeeze(0) : out;
}

namespace {

// A tensor of these sizes, which have a batch or not.
Tensor empty_of(SymIntArrayRef sizes, const Windows& w, const Tensor& like,
                at::MemoryFormat format) {
  SymInts lifted = copied(sizes);
  auto rank = static_cast<int64_t>(sizes.size());
  if (rank == w.dims() + 1) lifted.insert(lifted.begin(), 1);
  if (w.dims() == 1) lifted.insert(lifted.begin() + 2, 1);
  return lower(at::empty_symint(lifted, like.options(), format), w, rank);
}

Tensor max_pool_meta(const MaxPoolArgs& args) {
  return empty_output("max_pool", args.input, args.w, true);
}

Tensors3 max_pool_train_meta(const MaxPoolTrainArgs& args) {
  return {max_pool_meta(args), no_reserve(args.input), make_writer(0, args.input)};
}

Tensor avg_pool_meta(const AvgPoolArgs& args) {
  divisor_of(args.average);
  return empty_output("avg_pool", args.input, checked_windows(args.input, args.average), false);
}

}  // namespace

Tensor empty_output(const char* op, const Tensor& input, const Windows& w, bool is_max) {
  check_dtype(op, "input", input);
  SymInts sizes = output_sizes(op, input.sym_sizes(), w);
  return empty_of(sizes, w, input, format_of_result(lift(input, w), w, is_max));
}

Tensor max_pool_backward_meta(const MaxPoolBackwardArgs& args) {
  Windows w = args.w;
  check_max_backward(args, w);
  return empty_of(args.input.sym_sizes(), w, args.input, format_from(args.channels_last, w));
}

Tensor avg_pool_backward_meta(const AvgPoolBackwardArgs& args) {
  Windows w = args.average.windows();
  divisor_of(args.average);
  check_avg_backward(args, w);
  return empty_of(args.input_size, w, args.grad_output, format_from(args.channels_last, w));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<max_pool_meta, avg_pool_meta, avg_pool_backward_meta, max_pool_train_meta,
                   max_pool_backward_meta>(m);
}

}  // namespace torch_cudnn_ext::pooling
