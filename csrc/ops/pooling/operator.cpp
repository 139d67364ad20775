// Pooling by maximum and average: argument checks, Problem, gradients, and what the core must know
// of them.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/avg_pool3d_cpu_dispatch.h>
#include <ATen/ops/avg_pool3d_cuda_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/select/execute.h"
#include "ops/autograd.h"
#include "ops/pooling/pooling.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

namespace {

// PyTorch's: with `ceil`, a last window that starts within the input or the padding before it may
// reach beyond the padding. 0 or less where no window fits.
template <class Int>
Int pooled_size(const Int& in, const Int& window, const Int& padding, const Int& stride,
                const Int& dilation, bool ceil) {
  Int room = in + padding * 2 - dilation * (window - 1) - 1;
  if (ceil) room = room + stride - 1;
  if (room < 0) return 0;
  Int out = room / stride + 1;
  if (ceil && (out - 1) * stride >= in + padding) out = out - 1;
  return out;
}

}  // namespace

int64_t PoolingProblem::window_volume() const {
  return std::accumulate(window.begin(), window.end(), int64_t{1}, std::multiplies<>());
}

bool PoolingProblem::has_one_window() const {
  int dims = spatial_dims();
  return !adaptive && padding == Dims(dims, 0) && dilation == Dims(dims, 1) &&
         std::equal(window.begin(), window.end(), x.sizes.begin() + 2);
}

TensorSpec PoolingProblem::y() const {
  TensorSpec out{x.dtype, {x.sizes[0], x.sizes[1]}, {}};
  for (int i = 0; i < spatial_dims(); ++i) {
    out.sizes.push_back(adaptive ? window[i]
                                 : pooled_size(x.sizes[i + 2], window[i], padding[i], stride[i],
                                               dilation[i], ceil));
  }
  out.strides =
      is_channels_last(x) ? channels_last_strides(out.sizes) : contiguous_strides(out.sizes);
  return out;
}

void PoolingProblem::canonicalise() {
  canonicalise_strides({&x});
  if (!takes_any_alignment()) alignment = 16;
  const int dims = spatial_dims();
  bool divides = true;
  for (int i = 0; i < dims; ++i) divides &= x.sizes[i + 2] % window[i] == 0;
  if (adaptive) {
    padding = Dims(dims, 0);
    dilation = Dims(dims, 1);
    ceil = false;
    if (divides) {
      for (int i = 0; i < dims; ++i) window[i] = x.sizes[i + 2] / window[i];
      adaptive = false;
    }
    stride = window;
  }
  if (ceil) {
    Dims with_ceil = y().sizes;
    ceil = false;
    ceil = y().sizes != with_ceil;
  }
  for (int i = 0; i < dims; ++i) {
    if (window[i] == 1) dilation[i] = 1;
  }
  bool no_padding = padding == Dims(dims, 0);
  if (mode == PoolingMode::avg_exclude && no_padding) mode = PoolingMode::avg_include;
  if (mode == PoolingMode::sum && !ceil && !adaptive && divisor == window_volume()) {
    mode = PoolingMode::avg_include;
    divisor = 1;
  }
  if (pass == Pass::bwd && mode == PoolingMode::max) train = true;
}

void PoolingProblem::validate() const {
  check_sizes("pool", "x", x, 4, 5);
  TORCH_CHECK_VALUE(
      x.strides == contiguous_strides(x.sizes) || x.strides == channels_last_strides(x.sizes),
      "pool: x has strides that are neither contiguous nor channels_last, wanted :nchw or :nhwc");
  TORCH_CHECK_VALUE(x.sizes[0] * x.sizes[1] < INT64_C(1) << 40, "pool: x is too large");
  for (int i = 0; i < spatial_dims(); ++i) {
    TORCH_CHECK_VALUE(window[i] >= 1 && window[i] < INT64_C(1) << 31, "pool: window is ", window[i],
                      ", wanted at least 1");
    TORCH_CHECK_VALUE(stride[i] >= 1 && stride[i] < INT64_C(1) << 31, "pool: stride is ", stride[i],
                      ", wanted at least 1");
    TORCH_CHECK_VALUE(dilation[i] >= 1 && dilation[i] < INT64_C(1) << 31, "pool: dilation is ",
                      dilation[i], ", wanted at least 1");
    TORCH_CHECK_VALUE(padding[i] >= 0 && padding[i] <= window[i] / 2, "pool: pad is ", padding[i],
                      ", wanted 0 to half of window=", window[i]);
    TORCH_CHECK_VALUE(mode == PoolingMode::max || dilation[i] == 1, "pool: dilation is ",
                      dilation[i], ", wanted 1: only a maximum has windows with gaps");
  }
  for (int64_t size : y().sizes) {
    TORCH_CHECK_VALUE(size >= 1,
                      "pool: the window is larger than the padded x, so that y is empty");
  }
  TORCH_CHECK_VALUE(divisor != 0 && (divisor == 1 || mode == PoolingMode::sum), "pool: divisor is ",
                    divisor, ", wanted another one than 1 with mode=sum alone, and not 0");
  TORCH_CHECK_VALUE(!adaptive || mode != PoolingMode::sum,
                    "pool: mode is sum, wanted another one, since adaptive windows differ in size");
  TORCH_CHECK_VALUE(
      !train || mode == PoolingMode::max,
      "pool: train is true, wanted false: an average leaves nothing for its backward");
  check_alignment("pool", alignment, x.dtype);
}

namespace pooling {

namespace {

// Elements that windows read beyond the input: `before` and `after` it in each dimension.
struct Border {
  std::vector<int64_t> before, after;
};

Border border_of(const PoolingProblem& p) {
  Border border;
  TensorSpec y = p.y();
  for (int i = 0; i < p.spatial_dims(); ++i) {
    int64_t end = (y.sizes[i + 2] - 1) * p.stride[i] + p.dilation[i] * (p.window[i] - 1) + 1;
    border.before.push_back(p.padding[i]);
    border.after.push_back(std::max<int64_t>(end - p.padding[i] - p.x.sizes[i + 2], 0));
  }
  return border;
}

double padding_value(const PoolingProblem& p) {
  return p.mode == PoolingMode::max ? -std::numeric_limits<double>::infinity() : 0;
}

}  // namespace

Tensor padded(const PoolingProblem& p, const Tensor& x) {
  Border border = border_of(p);
  std::vector<int64_t> amounts;  // of the last dimension first
  for (int i = p.spatial_dims() - 1; i >= 0; --i) {
    amounts.push_back(border.before[i]);
    amounts.push_back(border.after[i]);
  }
  return at::constant_pad_nd(x, amounts, padding_value(p));
}

Tensor interior(const PoolingProblem& p, const Tensor& padded) {
  Tensor inside = padded;
  for (int i = 0; i < p.spatial_dims(); ++i) {
    inside = inside.narrow(i + 2, p.padding[i], p.x.sizes[i + 2]);
  }
  return inside;
}

Tensor divisors(const PoolingProblem& p, const Tensor& like) {
  if (p.mode == PoolingMode::sum) return at::full({1}, p.divisor, like.options());
  Tensor counts = at::ones({1}, like.options());
  TensorSpec y = p.y();
  for (int i = 0; i < p.spatial_dims(); ++i) {
    // PyTorch counts padding, but nothing beyond it.
    int64_t in = p.x.sizes[i + 2];
    int64_t counted = p.mode == PoolingMode::avg_include ? p.padding[i] : 0;
    Tensor start = at::arange(y.sizes[i + 2], like.options()) * p.stride[i] - p.padding[i];
    Tensor count = (start + p.window[i]).clamp_max(in + counted) - start.clamp_min(-counted);
    std::vector<int64_t> shape(p.spatial_dims(), 1);
    shape[i] = y.sizes[i + 2];
    counts = counts * count.view(shape);
  }
  return counts;
}

void for_each_tap(const PoolingProblem& p, const Tensor& padded,
                  const std::function<void(const Tensor&)>& body) {
  TensorSpec y = p.y();
  for (int64_t tap = 0; tap < p.window_volume(); ++tap) {
    Tensor view = padded;
    int64_t rest = tap;
    for (int i = p.spatial_dims() - 1; i >= 0; --i) {
      int64_t first = rest % p.window[i] * p.dilation[i];
      rest /= p.window[i];
      view = view.slice(i + 2, first, first + (y.sizes[i + 2] - 1) * p.stride[i] + 1, p.stride[i]);
    }
    body(view);
  }
}

Tensor forward_by_taps(const PoolingProblem& p, const Tensor& x) {
  Tensor y;
  for_each_tap(p, padded(p, x), [&](const Tensor& tap) {
    if (!y.defined()) {
      y = tap.clone();
    } else if (p.mode == PoolingMode::max) {
      at::maximum_out(y, y, tap);
    } else {
      y.add_(tap);
    }
  });
  return p.mode == PoolingMode::max ? y : y.div_(divisors(p, y));
}

Tensor backward_by_taps(const PoolingProblem& p, const Tensor& x, const Tensor& y,
                        const Tensor& dy) {
  Tensor dx = padded(p, at::zeros(p.x.sizes, dy.options())).zero_();
  if (p.mode != PoolingMode::max) {
    Tensor share = dy / divisors(p, dy);
    for_each_tap(p, dx, [&](const Tensor& tap) { tap.add_(share); });
    return interior(p, dx);
  }
  // A window of -inf alone equals its padding, which has no gradient.
  Dims inside = p.x.sizes;
  inside[0] = inside[1] = 1;
  std::vector<Tensor> of_input;
  for_each_tap(p, padded(p, at::ones(inside, x.options())) > 0,
               [&](const Tensor& tap) { of_input.push_back(tap); });
  std::vector<Tensor> wins;
  Tensor open = at::ones(y.sizes(), y.options().dtype(at::kBool));
  for_each_tap(p, padded(p, x), [&](const Tensor& tap) {
    Tensor win = at::logical_and((tap == y).logical_or_(tap.isnan()), open);
    win.logical_and_(of_input[wins.size()]);
    open.logical_and_(win.logical_not());
    wins.push_back(win);
  });
  size_t next = 0;
  for_each_tap(p, dx, [&](const Tensor& tap) { tap.add_(at::where(wins[next++], dy, 0)); });
  return interior(p, dx);
}

namespace {

using SymInts = c10::SymDimVector;

SymInts copied(SymIntArrayRef list) { return {list.begin(), list.end()}; }

// The arguments that say which windows there are, of an input with or without batch.
struct Windows {
  SymInts window, stride, padding, dilation;  // one entry a dimension of space
  bool ceil = false, adaptive = false;

  template <class F>
  void attributes(F&& visit) {
    visit(window);
    visit(stride);
    visit(padding);
    visit(dilation);
    visit(ceil);
    visit(adaptive);
  }
};

Windows windows_of(SymIntArrayRef kernel_size, SymIntArrayRef stride, SymIntArrayRef padding,
                   SymIntArrayRef dilation, bool ceil, bool adaptive) {
  SymIntArrayRef steps = stride.empty() ? kernel_size : stride;
  return {copied(kernel_size), copied(steps), copied(padding), copied(dilation), ceil, adaptive};
}

// The sizes of the result; raises where the arguments make no sense.
SymInts output_sizes(const char* op, SymIntArrayRef input, const Windows& w) {
  auto dims = static_cast<int64_t>(w.window.size()), rank = static_cast<int64_t>(input.size());
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
  SymInts sizes(input.begin(), input.begin() + first);
  for (int64_t i = 0; i < dims; ++i) {
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

// As PyTorch's: channels_last stays, but for averages and adaptive windows in a volume.
at::MemoryFormat format_of(const Tensor& input, const Windows& w, bool is_max) {
  bool contiguous = w.window.size() == 3 && (!is_max || w.adaptive);
  return contiguous ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
}
// Whether one average is over all of space.
bool is_mean(const Windows& w, bool is_max) {
  bool is_pixel =
      std::all_of(w.window.begin(), w.window.end(), [](const auto& n) { return n == 1; });
  return w.adaptive && !is_max && is_pixel;
}
// Of a forward's result; a mean over all of a volume keeps what its input has, too.
at::MemoryFormat format_of_result(const Tensor& input, const Windows& w, bool is_max) {
  return is_mean(w, is_max) ? input.suggest_memory_format() : format_of(input, w, is_max);
}
bool is_channels_last(at::MemoryFormat format) { return format != at::MemoryFormat::Contiguous; }
at::MemoryFormat format_from(bool channels_last, const Windows& w) {
  if (!channels_last) return at::MemoryFormat::Contiguous;
  return w.window.size() == 3 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

// A tensor as batch, channels and two or three dimensions of space, and back.
Tensor lift(const Tensor& t, const Windows& w) {
  Tensor out = t.dim() == static_cast<int64_t>(w.window.size()) + 1 ? t.unsqueeze(0) : t;
  return w.window.size() == 1 ? out.unsqueeze(-2) : out;
}
Tensor lower(const Tensor& t, const Windows& w, int64_t rank) {
  Tensor out = w.window.size() == 1 ? t.squeeze(-2) : t;
  return rank == static_cast<int64_t>(w.window.size()) + 1 ? out.squeeze(0) : out;
}
Tensor dense(const Tensor& t, const Windows& w, at::MemoryFormat format) {
  return lift(t, w).contiguous(format);
}

// One pixel, or one channel, has strides of either layout, but what comes next goes by them.
Tensor with_strides_of(at::MemoryFormat format, const Tensor& t) {
  if (!is_channels_last(format)) return t;
  Dims strides = channels_last_strides(t.sizes());
  return t.strides() == at::IntArrayRef(strides) ? t : strided_view(t, t.sizes(), strides);
}

Dims lifted(const SymInts& values, int64_t of_height) {
  Dims out;
  if (values.size() == 1) out.push_back(of_height);
  for (const SymInt& value : values) out.push_back(value.guard_int(__FILE__, __LINE__));
  return out;
}

// `x` has the input's lifted sizes and its format.
PoolingProblem make_problem(Pass pass, PoolingMode mode, const Windows& w, const TensorSpec& x,
                            int64_t alignment) {
  PoolingProblem p;
  p.pass = pass;
  p.mode = mode;
  p.x = x;
  p.window = lifted(w.window, 1);
  p.stride = lifted(w.stride, 1);
  p.padding = lifted(w.padding, 0);
  p.dilation = lifted(w.dilation, 1);
  p.ceil = w.ceil;
  p.adaptive = w.adaptive;
  p.alignment = alignment;
  return p;
}

void execute_pooling(PoolingProblem& p, OptionalPolicy policy, const Tensor& on,
                     Bindings& bindings) {
  p.canonicalise();
  execute(p, resolve_policy(PoolingProblem::kFamily, policy), device_of(on.device()), bindings);
}

Tensor forward_meta(const char* op, const Tensor& input, const Windows& w, bool is_max) {
  check_dtype(op, "input", input);
  SymInts sizes = output_sizes(op, input.sym_sizes(), w);
  Tensor like = lift(input, w);
  SymInts all(like.sym_sizes().begin(), like.sym_sizes().begin() + 2);
  if (w.window.size() == 1) all.emplace_back(1);
  all.insert(all.end(), sizes.end() - static_cast<int64_t>(w.window.size()), sizes.end());
  Tensor out = at::empty_symint(all, input.options(), format_of_result(like, w, is_max));
  return lower(out, w, input.dim());
}

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

// The result and, with `train`, the reserve of a maximum and its writer.
Tensors3 run_forward(const char* op, const Tensor& input, const Windows& w, PoolingMode mode,
                     int64_t divisor, bool train, OptionalPolicy policy) {
  check_dtype(op, "input", input);
  SymInts sizes = output_sizes(op, input.sym_sizes(), w);
  c10::OptionalDeviceGuard guard(input.device());
  at::MemoryFormat format = format_of(lift(input, w), w, mode == PoolingMode::max);
  if (c10::multiply_integers(sizes) == 0) {
    Tensor y = forward_meta(op, input, w, mode == PoolingMode::max);
    if (!train) return {y, Tensor(), Tensor()};
    return {y, no_reserve(input), make_writer(0, input)};
  }
  Bindings bindings;
  Tensor& x = bindings[Role::x];
  x = dense(input, w, format);
  if (train) align(bindings, {Role::x});
  PoolingProblem p = make_problem(Pass::fwd, mode, w, spec_of(x), alignment_of({&x}));
  p.divisor = divisor;
  p.train = train;
  execute_pooling(p, policy, x, bindings);
  at::MemoryFormat told = format_of_result(lift(input, w), w, mode == PoolingMode::max);
  Tensor y = lower(with_strides_of(told, bindings[Role::y]), w, input.dim());
  if (!train) return {y, Tensor(), Tensor()};
  const Tensor& reserve = bindings[Role::reserve];
  return {y, reserve.defined() ? reserve : no_reserve(input), writer_of_last(input)};
}

// --- maximum

Tensor max_pool(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil, bool adaptive,
                OptionalPolicy policy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  return std::get<0>(run_forward("max_pool", input, w, PoolingMode::max, 1, false, policy));
}

Tensor max_pool_meta(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                     SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil, bool adaptive,
                     OptionalPolicy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  return forward_meta("max_pool", input, w, true);
}

Tensors3 max_pool_train(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                        SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil, bool adaptive,
                        OptionalPolicy policy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  return run_forward("max_pool", input, w, PoolingMode::max, 1, true, policy);
}

Tensors3 max_pool_train_meta(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                             SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil,
                             bool adaptive, OptionalPolicy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  return {forward_meta("max_pool", input, w, true), no_reserve(input), make_writer(0, input)};
}

void check_max_backward(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                        const Windows& w) {
  constexpr const char* kOp = "_max_pool_backward";
  check_dtype(kOp, "input", input);
  SymInts sizes = output_sizes(kOp, input.sym_sizes(), w);
  TORCH_CHECK_VALUE(output.sym_sizes().equals(sizes), "torch_cudnn_ext::", kOp,
                    ": output has sizes ", output.sym_sizes(), ", wanted ", SymIntArrayRef(sizes));
  check_same(kOp, "grad_output", grad_output, "output", output);
}

Tensor max_pool_backward_meta(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                              const Tensor&, const OptionalTensor&, bool channels_last,
                              SymIntArrayRef kernel_size, SymIntArrayRef stride,
                              SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil,
                              bool adaptive, OptionalPolicy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  check_max_backward(grad_output, input, output, w);
  Tensor like = lift(input, w);
  auto format = format_from(channels_last, w);
  return lower(at::empty_symint(like.sym_sizes(), like.options(), format), w, input.dim());
}

// In the layout of the forward, whatever that of tensors that were kept elsewhere is.
Tensor max_pool_backward(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                         const Tensor& reserve, const OptionalTensor& writer, bool channels_last,
                         SymIntArrayRef kernel_size, SymIntArrayRef stride, SymIntArrayRef padding,
                         SymIntArrayRef dilation, bool ceil, bool adaptive, OptionalPolicy policy) {
  Windows w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
  check_max_backward(grad_output, input, output, w);
  check_device("_max_pool_backward", "reserve", reserve, "input", input);
  OptionalPolicy coupled =
      policy_of_backward(PoolingProblem::kFamily, "_max_pool_backward", writer, policy);
  c10::OptionalDeviceGuard guard(input.device());
  at::MemoryFormat format = format_from(channels_last, w);
  if (output.numel() == 0) {
    return max_pool_backward_meta(grad_output, input, output, reserve, writer, channels_last,
                                  kernel_size, stride, padding, dilation, ceil, adaptive, policy)
        .zero_();
  }
  Bindings bindings;
  Tensor &x = bindings[Role::x], &y = bindings[Role::y], &dy = bindings[Role::dy];
  x = dense(input, w, format);
  y = dense(output, w, format);
  dy = dense(grad_output, w, format);
  bindings[Role::reserve] = reserve;
  align(bindings, {Role::x, Role::y, Role::dy, Role::reserve});
  PoolingProblem p = make_problem(Pass::bwd, PoolingMode::max, w, spec_of(x), 16);
  execute_pooling(p, coupled, x, bindings);
  return lower(with_strides_of(format, bindings[Role::dx]), w, input.dim());
}

// --- average

PoolingMode mode_of(bool count_include_pad, std::optional<int64_t> divisor_override) {
  if (divisor_override) return PoolingMode::sum;
  return count_include_pad ? PoolingMode::avg_include : PoolingMode::avg_exclude;
}

int64_t divisor_of(std::optional<int64_t> divisor_override, bool adaptive) {
  TORCH_CHECK_VALUE(!divisor_override || !adaptive,
                    "torch_cudnn_ext::avg_pool: divisor_override is ", *divisor_override,
                    ", wanted None: adaptive windows differ in size");
  TORCH_CHECK_VALUE(!divisor_override || *divisor_override != 0,
                    "torch_cudnn_ext::avg_pool: divisor_override is 0, wanted any other number");
  return divisor_override.value_or(1);
}

// Averages have windows without gaps.
Windows gapless(SymIntArrayRef kernel_size, SymIntArrayRef stride, SymIntArrayRef padding,
                bool ceil, bool adaptive) {
  SymInts ones(kernel_size.size(), 1);
  return windows_of(kernel_size, stride, padding, ones, ceil, adaptive);
}

// As PyTorch, which wants windows no larger than a volume without its padding.
void check_volume(const Tensor& input, const Windows& w) {
  if (w.adaptive || w.window.size() != 3 || input.dim() < 3) return;
  SymIntArrayRef volume = input.sym_sizes().slice(input.dim() - 3);
  for (size_t i = 0; i < 3; ++i) {
    TORCH_CHECK_VALUE(w.window[i] <= volume[i], "torch_cudnn_ext::avg_pool: kernel_size is ",
                      w.window[i], ", wanted no more than input has there, ", volume[i]);
  }
}

Tensor avg_pool(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                SymIntArrayRef padding, bool ceil, bool count_include_pad,
                std::optional<int64_t> divisor_override, bool adaptive, OptionalPolicy policy) {
  Windows w = gapless(kernel_size, stride, padding, ceil, adaptive);
  check_volume(input, w);
  return std::get<0>(run_forward("avg_pool", input, w, mode_of(count_include_pad, divisor_override),
                                 divisor_of(divisor_override, adaptive), false, policy));
}

Tensor avg_pool_meta(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                     SymIntArrayRef padding, bool ceil, bool, std::optional<int64_t> divisor,
                     bool adaptive, OptionalPolicy) {
  divisor_of(divisor, adaptive);
  Windows w = gapless(kernel_size, stride, padding, ceil, adaptive);
  check_volume(input, w);
  return forward_meta("avg_pool", input, w, false);
}

void check_backward(const Tensor& grad_output, SymIntArrayRef input_size, const Windows& w) {
  check_dtype("avg_pool_backward", "grad_output", grad_output);
  SymInts wanted = output_sizes("avg_pool_backward", input_size, w);
  TORCH_CHECK_VALUE(grad_output.sym_sizes() == SymIntArrayRef(wanted),
                    "torch_cudnn_ext::avg_pool_backward: grad_output has sizes ",
                    grad_output.sym_sizes(), ", wanted ", SymIntArrayRef(wanted),
                    " for input_size ", input_size);
}

Tensor avg_pool_backward_meta(const Tensor& grad_output, SymIntArrayRef input_size,
                              bool channels_last, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                              SymIntArrayRef padding, bool ceil, bool,
                              std::optional<int64_t> divisor, bool adaptive, OptionalPolicy) {
  Windows w = gapless(kernel_size, stride, padding, ceil, adaptive);
  divisor_of(divisor, adaptive);
  check_backward(grad_output, input_size, w);
  auto rank = static_cast<int64_t>(input_size.size());
  SymInts sizes = copied(input_size);
  if (rank == static_cast<int64_t>(w.window.size()) + 1) sizes.insert(sizes.begin(), 1);
  if (w.window.size() == 1) sizes.insert(sizes.begin() + 2, 1);
  return lower(at::empty_symint(sizes, grad_output.options(), format_from(channels_last, w)), w,
               rank);
}

Tensor avg_pool_backward(const Tensor& grad_output, SymIntArrayRef input_size, bool channels_last,
                         SymIntArrayRef kernel_size, SymIntArrayRef stride, SymIntArrayRef padding,
                         bool ceil, bool count_include_pad, std::optional<int64_t> divisor_override,
                         bool adaptive, OptionalPolicy policy) {
  Windows w = gapless(kernel_size, stride, padding, ceil, adaptive);
  check_backward(grad_output, input_size, w);
  c10::OptionalDeviceGuard guard(grad_output.device());
  if (grad_output.numel() == 0) {
    return avg_pool_backward_meta(grad_output, input_size, channels_last, kernel_size, stride,
                                  padding, ceil, count_include_pad, divisor_override, adaptive,
                                  policy)
        .zero_();
  }
  at::MemoryFormat format = format_from(channels_last, w);
  Bindings bindings;
  Tensor& dy = bindings[Role::dy];
  dy = dense(grad_output, w, format);
  Dims sizes{dy.size(0), dy.size(1)};
  if (w.window.size() == 1) sizes.push_back(1);
  for (const SymInt& size : input_size.slice(input_size.size() - w.window.size())) {
    sizes.push_back(size.guard_int(__FILE__, __LINE__));
  }
  TensorSpec x{dy.scalar_type(), sizes,
               channels_last ? channels_last_strides(sizes) : contiguous_strides(sizes)};
  PoolingProblem p = make_problem(Pass::bwd, mode_of(count_include_pad, divisor_override), w, x,
                                  alignment_of({&dy}));
  p.divisor = divisor_of(divisor_override, adaptive);
  execute_pooling(p, policy, dy, bindings);
  return lower(with_strides_of(format, bindings[Role::dx]), w,
               static_cast<int64_t>(input_size.size()));
}

// --- gradients

const auto& max_pool_op() {
  static auto op = find_op<decltype(max_pool)>("torch_cudnn_ext::max_pool");
  return op;
}
const auto& max_pool_train_op() {
  static auto op = find_op<decltype(max_pool_train)>("torch_cudnn_ext::_max_pool_train");
  return op;
}
const auto& max_pool_backward_op() {
  static auto op = find_op<decltype(max_pool_backward)>("torch_cudnn_ext::_max_pool_backward");
  return op;
}
const auto& avg_pool_op() {
  static auto op = find_op<decltype(avg_pool)>("torch_cudnn_ext::avg_pool");
  return op;
}
const auto& avg_pool_backward_op() {
  static auto op = find_op<decltype(avg_pool_backward)>("torch_cudnn_ext::avg_pool_backward");
  return op;
}

struct MaxPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtMaxPoolBackward";
  static constexpr size_t kInputs = 1;
  Windows w;
  bool channels_last = false;  // the layout of what the forward left
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    w.attributes(visit);
    visit(channels_last);
    visit(policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_directly({&grads[0], &saved[0], &saved[1], &saved[2], &saved[3]},
                          max_pool_backward, max_pool_backward_op(), grads[0], saved[0], saved[1],
                          saved[2], optional_of(saved[3]), channels_last, w.window, w.stride,
                          w.padding, w.dilation, w.ceil, w.adaptive, policy)};
  }
  // The output, which PyTorch's own gradient does not read; by the algorithm that gave it.
  Tensor remade(TensorList before) const {
    return std::get<0>(max_pool_train_op().call(before[0].detach(), w.window, w.stride, w.padding,
                                                w.dilation, w.ceil, w.adaptive, policy));
  }
};

// An operator of its own to autograd too: where transforms are nested, max_pool calls it at the
// inner level, and the outer one sees nothing else.
Tensors3 max_pool_train_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                 SymIntArrayRef kernel_size, SymIntArrayRef stride,
                                 SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil,
                                 bool adaptive, OptionalPolicy policy) {
  return run_with_gradient<MaxPoolGradient>(
      {input}, 1,
      [&] {
        return max_pool_train_op().redispatch(keys & c10::after_autograd_keyset, input, kernel_size,
                                              stride, padding, dilation, ceil, adaptive, policy);
      },
      [&](auto& node, const auto& results) {
        auto& g = node.gradient;
        g.w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
        g.channels_last = is_channels_last(format_of(lift(input, g.w), g.w, true));
        save_input(node, input);
        save_result(node, results[0]);
        save_input(node, results[1]);
        save_writer(node, "_max_pool_train", PoolingProblem::kFamily, policy, results[2]);
      });
}

Tensor max_pool_autograd(c10::DispatchKeySet keys, const Tensor& input, SymIntArrayRef kernel_size,
                         SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                         bool ceil, bool adaptive, OptionalPolicy policy) {
  if (input.requires_grad() && at::GradMode::is_enabled()) {
    return std::get<0>(max_pool_train_autograd(keys, input, kernel_size, stride, padding, dilation,
                                               ceil, adaptive, policy));
  }
  return run_with_gradient<MaxPoolGradient>(
      {input}, 1,
      [&] {
        return max_pool_op().redispatch(keys & c10::after_autograd_keyset, input, kernel_size,
                                        stride, padding, dilation, ceil, adaptive, policy);
      },
      [](auto&, const auto&) {});
}

// Linear in grad_output: every element of the result comes from where its maximum stands, so that
// the gradient is gathered from there. The reserve is not ours to read, so PyTorch finds the
// places anew.
struct MaxPoolBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtMaxPoolBackwardBackward";
  static constexpr size_t kInputs = 2;  // grad_output, input: its gradient is zero
  Windows w;

  template <class F>
  void attributes(F&& visit) {
    w.attributes(visit);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    variable_list result(kInputs);
    if (needed[0]) {
      // In one dimension of space, by an operator that batches of gradients have.
      auto flat = [space = w.window.size()](const Tensor& t) {
        auto sizes = t.sym_sizes();
        SymInts kept = copied(sizes.slice(0, sizes.size() - space));
        SymInt places = 1;
        for (const SymInt& size : sizes.slice(sizes.size() - space)) places *= size;
        kept.push_back(places);
        return t.reshape_symint(kept);
      };
      Tensor indices = indices_in(saved[0]);
      Tensor gathered = flat(grads[0]).gather(-1, flat(indices));
      result[0] = gathered.reshape_symint(indices.sym_sizes());
    }
    if (needed[1]) result[1] = at::zeros_like(saved[0]);
    return result;
  }

 private:
  // Of each maximum in its flattened plane or volume.
  Tensor indices_in(const Tensor& input) const {
    at::NoGradGuard no_grad;
    auto ints = [](const SymInts& list) { return C10_AS_INTARRAYREF_SLOW(SymIntArrayRef(list)); };
    Tensor x = input.detach();
    if (w.adaptive) {
      if (w.window.size() == 1) return std::get<1>(at::adaptive_max_pool1d(x, ints(w.window)));
      return std::get<1>(w.window.size() == 2 ? at::adaptive_max_pool2d(x, ints(w.window))
                                              : at::adaptive_max_pool3d(x, ints(w.window)));
    }
    auto find = w.window.size() == 1   ? at::max_pool1d_with_indices
                : w.window.size() == 2 ? at::max_pool2d_with_indices
                                       : at::max_pool3d_with_indices;
    return std::get<1>(
        find(x, ints(w.window), ints(w.stride), ints(w.padding), ints(w.dilation), w.ceil));
  }
};

Tensor max_pool_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                  const Tensor& input, const Tensor& output, const Tensor& reserve,
                                  const OptionalTensor& writer, bool channels_last,
                                  SymIntArrayRef kernel_size, SymIntArrayRef stride,
                                  SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil,
                                  bool adaptive, OptionalPolicy policy) {
  return run_with_gradient<MaxPoolBackwardGradient>(
      {grad_output, input}, 1,
      [&] {
        return max_pool_backward_op().redispatch(
            keys & c10::after_autograd_keyset, grad_output, input, output, reserve, writer,
            channels_last, kernel_size, stride, padding, dilation, ceil, adaptive, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.w = windows_of(kernel_size, stride, padding, dilation, ceil, adaptive);
        save_input(node, input);
      });
}

// Forward and backward of an average are linear, and each is the gradient of the other.
struct AvgPoolGradient {
  Windows w;
  bool count_include_pad = true;
  std::optional<int64_t> divisor;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    w.attributes(visit);
    visit(count_include_pad);
    visit(divisor);
    visit(policy);
  }
};

struct AvgPoolForwardGradient : AvgPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtAvgPoolBackward";
  static constexpr size_t kInputs = 1;
  SymInts input_size;
  bool channels_last = false;

  template <class F>
  void attributes(F&& visit) {
    AvgPoolGradient::attributes(visit);
    visit(input_size);
    visit(channels_last);
  }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_directly({&grads[0]}, avg_pool_backward, avg_pool_backward_op(), grads[0],
                          input_size, channels_last, w.window, w.stride, w.padding, w.ceil,
                          count_include_pad, divisor, w.adaptive, policy)};
  }
};

struct AvgPoolBackwardGradient : AvgPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtAvgPoolBackwardBackward";
  static constexpr size_t kInputs = 1;

  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {avg_pool_op().call(grads[0], w.window, w.stride, w.padding, w.ceil, count_include_pad,
                               divisor, w.adaptive, policy)};
  }
};

Tensor avg_pool_autograd(c10::DispatchKeySet keys, const Tensor& input, SymIntArrayRef kernel_size,
                         SymIntArrayRef stride, SymIntArrayRef padding, bool ceil,
                         bool count_include_pad, std::optional<int64_t> divisor, bool adaptive,
                         OptionalPolicy policy) {
  return run_with_gradient<AvgPoolForwardGradient>(
      {input}, 1,
      [&] {
        return avg_pool_op().redispatch(keys & c10::after_autograd_keyset, input, kernel_size,
                                        stride, padding, ceil, count_include_pad, divisor, adaptive,
                                        policy);
      },
      [&](auto& node, const auto&) {
        auto& g = node.gradient;
        g.w = gapless(kernel_size, stride, padding, ceil, adaptive);
        g.count_include_pad = count_include_pad;
        g.divisor = divisor;
        g.policy = policy_to_save(PoolingProblem::kFamily, policy);
        g.input_size = copied(input.sym_sizes());
        at::NoGradGuard no_grad;
        // The gradient of a mean is contiguous.
        g.channels_last =
            !is_mean(g.w, false) && is_channels_last(format_of(lift(input, g.w), g.w, false));
      });
}

Tensor avg_pool_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                  SymIntArrayRef input_size, bool channels_last,
                                  SymIntArrayRef kernel_size, SymIntArrayRef stride,
                                  SymIntArrayRef padding, bool ceil, bool count_include_pad,
                                  std::optional<int64_t> divisor, bool adaptive,
                                  OptionalPolicy policy) {
  return run_with_gradient<AvgPoolBackwardGradient>(
      {grad_output}, 1,
      [&] {
        return avg_pool_backward_op().redispatch(
            keys & c10::after_autograd_keyset, grad_output, input_size, channels_last, kernel_size,
            stride, padding, ceil, count_include_pad, divisor, adaptive, policy);
      },
      [&](auto& node, const auto&) {
        auto& g = node.gradient;
        g.w = gapless(kernel_size, stride, padding, ceil, adaptive);
        g.count_include_pad = count_include_pad;
        g.divisor = divisor;
        g.policy = policy_to_save(PoolingProblem::kFamily, policy);
      });
}

// --- autocast: as PyTorch does, over volumes on the CPU alone, in float32

Tensor cast(const Tensor& input, SymIntArrayRef kernel_size) {
  return kernel_size.size() == 3 ? at::autocast::cached_cast(at::kFloat, input, at::kCPU) : input;
}

Tensor max_pool_autocast(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                         SymIntArrayRef padding, SymIntArrayRef dilation, bool ceil, bool adaptive,
                         OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCPU);
  return max_pool_op().call(cast(input, kernel_size), kernel_size, stride, padding, dilation, ceil,
                            adaptive, policy);
}

Tensor avg_pool_autocast(const Tensor& input, SymIntArrayRef kernel_size, SymIntArrayRef stride,
                         SymIntArrayRef padding, bool ceil, bool count_include_pad,
                         std::optional<int64_t> divisor, bool adaptive, OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCPU);
  return avg_pool_op().call(cast(input, kernel_size), kernel_size, stride, padding, ceil,
                            count_include_pad, divisor, adaptive, policy);
}

// --- PyTorch's own, overridden. Where indices of maxima are asked for, it is not by these.

// A list of one is for all dimensions.
SymInts for_each(at::IntArrayRef list, size_t dims) {
  if (list.size() == 1) return SymInts(dims, list[0]);
  return {list.begin(), list.end()};
}

// `lists`: the arguments of one number a dimension of space, or of one for all; a stride may be
// empty.
template <class List>
std::optional<std::string> refusal_of_pooling(c10::DispatchKeySet keys, const Tensor& input,
                                              size_t dims, std::initializer_list<List> lists) {
  for (const List& list : lists) {
    if (list.size() > 1 && list.size() != dims) return "a list has another length";
  }
  if (auto reason = refusal_of_any(keys, {{"input", input}})) return reason;
  auto rank = static_cast<size_t>(input.dim());
  if (rank != dims + 1 && rank != dims + 2) return c10::str("input has ", rank, " dimensions");
  return std::nullopt;
}

// PyTorch's empty stride, the window's own, written out: AOTInductor calls with None for a list
// that is empty.
SymInts steps_of(at::IntArrayRef stride, at::IntArrayRef kernel_size, size_t dims) {
  return for_each(stride.empty() ? kernel_size : stride, dims);
}

template <size_t dims>
struct AtenMaxPool {
  static constexpr const char* kOps[] = {"max_pool1d", "max_pool2d", "max_pool3d"};
  static constexpr const char* kOp = kOps[dims - 1];

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                            at::IntArrayRef padding, at::IntArrayRef dilation,
                                            bool) {
    return refusal_of_pooling(keys, input, dims, {kernel_size, stride, padding, dilation});
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              at::IntArrayRef kernel_size, at::IntArrayRef stride,
                              at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil) {
    SymInts window = for_each(kernel_size, dims), steps = steps_of(stride, kernel_size, dims),
            border = for_each(padding, dims), gaps = for_each(dilation, dims);
    // PyTorch's own kernel for sequences on the CPU, where nothing is recorded, gives such.
    bool contiguous =
        dims == 1 && input.is_cpu() && !(input.requires_grad() && at::GradMode::is_enabled());
    auto laid_out = [&](Tensor y) { return contiguous ? y.contiguous() : y; };
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return laid_out(max_pool(input, window, steps, border, gaps, ceil, false, {}));
    }
    return laid_out(max_pool_autograd(keys, input, window, steps, border, gaps, ceil, false, {}));
  }
};

template <size_t dims>
struct AtenAvgPool {
  static constexpr const char* kOp = dims == 2 ? "avg_pool2d" : "avg_pool3d";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                            at::IntArrayRef padding, bool, bool,
                                            std::optional<int64_t>) {
    return refusal_of_pooling(keys, input, dims, {kernel_size, stride, padding});
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              at::IntArrayRef kernel_size, at::IntArrayRef stride,
                              at::IntArrayRef padding, bool ceil, bool count_include_pad,
                              std::optional<int64_t> divisor) {
    if (is_plain_call({&input})) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      return run(input, kernel_size, stride, padding, ceil, count_include_pad, divisor);
    }
    return avg_pool_autograd(keys, input, for_each(kernel_size, dims),
                             steps_of(stride, kernel_size, dims), for_each(padding, dims), ceil,
                             count_include_pad, divisor, false, {});
  }
  static Tensor run(const Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                    at::IntArrayRef padding, bool ceil, bool count_include_pad,
                    std::optional<int64_t> divisor) {
    return avg_pool(input, for_each(kernel_size, dims), steps_of(stride, kernel_size, dims),
                    for_each(padding, dims), ceil, count_include_pad, divisor, false, {});
  }
  template <c10::DispatchKey key>
  static Tensor plain(const Tensor& input, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, bool ceil, bool count_include_pad,
                      std::optional<int64_t> divisor) {
    constexpr bool on_cpu = key == c10::DispatchKey::CPU;
    auto pool = dims == 2 ? on_cpu ? at::cpu::avg_pool2d : at::cuda::avg_pool2d
                : on_cpu  ? at::cpu::avg_pool3d
                          : at::cuda::avg_pool3d;
    return pool(input, kernel_size, stride, padding, ceil, count_include_pad, divisor);
  }
};

template <size_t dims>
struct AtenAdaptiveAvgPool {
  static constexpr const char* kOp = dims == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            SymIntArrayRef output_size) {
    for (const SymInt& size : output_size) {
      if (size < 1) return "output_size is 0 or less";
    }
    return refusal_of_pooling(keys, input, dims, {output_size});
  }
  static Tensor with_autograd(c10::DispatchKeySet, const Tensor& input,
                              SymIntArrayRef output_size) {
    SymInts none(dims, 0);
    return avg_pool_op().call(input, output_size, output_size, none, false, true, {}, true, {});
  }
};

using MaxPoolSignature = Tensor(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                at::IntArrayRef, bool);
using AvgPoolSignature = Tensor(const Tensor&, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                bool, bool, std::optional<int64_t>);
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

// --- what the core must know

// Multiples of a power of two from -4 to 4, `count` of them, which is prime.
struct Numbers {
  int64_t count, factor;
  double step;
};
Numbers numbers_of(c10::ScalarType dtype) {
  if (dtype == at::kBFloat16) return {509, 211, 1.0 / 64};
  if (dtype == at::kHalf) return {4093, 1699, 1.0 / 512};
  return {16777213, 6700417, 1.0 / 2097152};
}

class PoolingOperator : public CoupledOperatorOf<PoolingProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnPoolingForward, cudnnPoolingBackward",
        "nchw, nhwc; 1 to 3 dimensions of space",
        "cuDNN: no dilation, no adaptive windows of several sizes; legacy: no further window of "
        "ceil mode, volumes contiguous; graph: no sums; indices by PyTorch alone",
        {"pool_fwd x=f16[32,64,112,112]:nhwc window=3 pad=1 stride=2 mode=max train=true",
         "pool_fwd x=f16[32,64,112,112]:nhwc window=3 pad=1 stride=2 mode=avg_include"}};
  }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_POOLING_MAX", "max", nullptr},
            {1, "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING", "avg", nullptr},
            {2, "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING", "avg", nullptr},
            {3, "CUDNN_POOLING_MAX_DETERMINISTIC", "max_deterministic", nullptr}};
  }

  std::vector<SlotSpec> slots(const PoolingProblem& p) const override {
    TensorSpec y = p.y();
    SlotSpec reserve{Role::reserve, {at::kByte, {0}, {1}}, p.pass == Pass::fwd};
    std::vector<SlotSpec> slots;
    if (p.pass == Pass::fwd) {
      slots = {{Role::x, p.x, false}, {Role::y, y, true}};
      if (p.train) slots.push_back(reserve);
    } else if (p.mode == PoolingMode::max) {
      slots = {{Role::x, p.x, false},
               {Role::y, y, false},
               {Role::dy, y, false},
               reserve,
               {Role::dx, p.x, true}};
    } else {
      slots = {{Role::dy, y, false}, {Role::dx, p.x, true}};
    }
    return slots;
  }

  Cost cost(const PoolingProblem& p) const override {
    double bytes = bytes_of(slots(p));
    double volume = window_elements(p);
    return {volume * static_cast<double>(p.y().numel()), bytes, volume};
  }

  void prepare_scratch(const PoolingProblem& p, Bindings& bindings) const override {
    if (p.mode != PoolingMode::max) return;
    Tensor& x = bindings[Role::x];
    x.copy_(distinct_in_windows(p, x.device()));
    if (p.pass == Pass::bwd) bindings[Role::y].copy_(forward_in_double(p, x));
  }

  Bindings reference(const PoolingProblem& p, const Bindings& bindings) const override {
    Bindings out;
    if (p.pass == Pass::fwd) {
      out[Role::y] = forward_in_double(p, bindings[Role::x]);
    } else {
      out[Role::dx] = backward_in_double(p, bindings);
    }
    return out;
  }

  // A maximum is exact, its gradient a sum over the windows that overlap.
  double tolerance(const PoolingProblem& p, const Notes&) const override {
    double overlaps = 1;
    for (int i = 0; i < p.spatial_dims() && !p.adaptive; ++i) {
      overlaps *= std::ceil(static_cast<double>(p.window[i]) / static_cast<double>(p.stride[i]));
    }
    auto sum_dtype = compute_dtype(p.x.dtype);
    return 4 * epsilon_of(p.x.dtype) * std::sqrt(overlaps) +
           4 * epsilon_of(sum_dtype) * std::sqrt(window_elements(p));
  }

  // Measured on an H200 over 41 shapes of each type and layout. Where what leads depends on the
  // shape in no plain way, PyTorch's own kernel comes first.
  std::vector<std::string> heuristic_order(const PoolingProblem& p) const override {
    return torch_cudnn_ext::is_channels_last(p.x) ? order_of_channels_last(p)
                                                  : order_of_contiguous(p);
  }

 private:
  static bool overlaps(const PoolingProblem& p) {
    bool any = false;
    for (int i = 0; i < p.spatial_dims(); ++i) any |= p.stride[i] < p.window[i];
    return any;
  }

  static std::vector<std::string> order_of_contiguous(const PoolingProblem& p) {
    const std::vector<std::string> pytorch{"aten", classic(p), "graph"};
    const std::vector<std::string> cudnn{classic(p), "aten", "graph"};
    bool volume = p.spatial_dims() == 3;
    if (p.mode == PoolingMode::max) {
      if (!p.train) return cudnn;
      // With the gradient, which is the slower one where windows of half types overlap.
      bool half = c10::isReducedFloatingType(p.x.dtype);
      bool slow = volume || p.window_volume() > 16 || (half && overlaps(p));
      return slow ? pytorch : cudnn;
    }
    if (p.pass == Pass::bwd) return volume || p.has_one_window() ? pytorch : cudnn;
    if (!p.has_one_window()) return p.window[p.spatial_dims() - 1] < 4 ? cudnn : pytorch;
    bool many = p.x.sizes[0] * p.x.sizes[1] >= 1 << 14;
    return many && !volume && p.window_volume() <= 64 ? cudnn : pytorch;
  }

  // Engines 2 and 3 of the graph API lead, which are compiled at run time; option 34 is engine 2's
  // best for a gradient's indices and for gradients, 0.5 to 0.8 of PyTorch's time or less.
  static std::vector<std::string> order_of_channels_last(const PoolingProblem& p) {
    constexpr const char* kTiled = "graph:eng2/k24=34";
    bool volume = p.spatial_dims() == 3, line = p.spatial_dims() == 2 && p.x.sizes[2] == 1;
    bool large = p.x.numel() >= 1 << 23;
    if (p.mode == PoolingMode::sum || (volume && p.x.numel() < 1 << 20)) {
      return {"aten", classic(p), "graph"};
    }
    if (p.mode == PoolingMode::max) {
      if (p.train) return {kTiled, "graph:eng2", "aten", classic(p)};
      if (volume) return {kTiled, "aten", classic(p)};
      if (large && !overlaps(p)) return {"graph:eng2", classic(p), "aten"};
      return {classic(p), "aten", "graph"};
    }
    if (p.pass == Pass::bwd) {
      if (volume || p.has_one_window()) return {kTiled, "graph:eng2", "aten", classic(p)};
      return {kTiled, "graph:eng2", classic(p), "aten"};
    }
    if (p.window_volume() > (p.has_one_window() && !volume ? 1024 : 16))
      return {"aten", classic(p)};
    if (volume) return {kTiled, "aten", classic(p)};
    bool dense = p.stride == Dims(p.spatial_dims(), 1);
    const char* engine =
        !p.has_one_window() && (dense || (line && large)) ? "graph:eng2" : "graph:eng3";
    return {engine, "aten", classic(p)};
  }

  static const char* classic(const PoolingProblem& p) {
    return p.mode == PoolingMode::max ? "legacy:max" : "legacy:avg";
  }

  // Values of x of which no two in a window are equal, so that a maximum stands in one place:
  // windows of more elements than there are numbers have some that are.
  static Tensor distinct_in_windows(const PoolingProblem& p, at::Device device) {
    Numbers numbers = numbers_of(p.x.dtype);
    at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
    int dims = p.spatial_dims();
    // Places are numbered anew behind so many, which no window reaches over.
    Dims period = p.window;
    double volume = 1;
    for (int i = 0; i < dims; ++i) {
      if (p.adaptive) period[i] = p.x.sizes[i + 2] / p.window[i] + 2;
      volume *= static_cast<double>(period[i]);
    }
    double room = std::pow(static_cast<double>(numbers.count) / volume, 1.0 / dims);
    Dims shape(dims + 2, 1);
    shape[0] = p.x.sizes[0];
    shape[1] = p.x.sizes[1];
    Tensor places = at::arange(shape[0] * shape[1], options).view(shape);
    int64_t unit = 1;
    for (int i = 0; i < dims; ++i) {
      period[i] *= std::max(static_cast<int64_t>(room), int64_t{1});
      Tensor place = at::arange(p.x.sizes[i + 2], options).div_(p.dilation[i], "floor");
      place.remainder_(period[i]).mul_(unit);
      unit *= period[i];
      shape = Dims(dims + 2, 1);
      shape[i + 2] = p.x.sizes[i + 2];
      places = places + place.view(shape);
    }
    places.mul_(numbers.factor).remainder_(numbers.count).sub_(numbers.count / 2);
    return places.to(at::kDouble).mul_(numbers.step);
  }

  static double window_elements(const PoolingProblem& p) {
    if (!p.adaptive) return static_cast<double>(p.window_volume());
    return static_cast<double>(p.x.numel()) / static_cast<double>(p.y().numel());
  }

  static Tensor forward_in_double(const PoolingProblem& p, const Tensor& input) {
    Tensor x = input.to(at::kDouble);
    if (!p.adaptive) return forward_by_taps(p, x);
    bool plane = p.spatial_dims() == 2;
    if (p.mode == PoolingMode::max) {
      return std::get<0>(plane ? at::adaptive_max_pool2d(x, p.window)
                               : at::adaptive_max_pool3d(x, p.window));
    }
    return plane ? at::adaptive_avg_pool2d(x, p.window) : at::adaptive_avg_pool3d(x, p.window);
  }

  static Tensor backward_in_double(const PoolingProblem& p, const Bindings& b) {
    Tensor dy = b[Role::dy].to(at::kDouble);
    if (p.mode == PoolingMode::max) {
      Tensor x = b[Role::x].to(at::kDouble);
      if (!p.adaptive) return backward_by_taps(p, x, forward_by_taps(p, x), dy);
      return p.spatial_dims() == 2 ? at::adaptive_max_pool2d_backward(
                                         dy, x, std::get<1>(at::adaptive_max_pool2d(x, p.window)))
                                   : at::adaptive_max_pool3d_backward(
                                         dy, x, std::get<1>(at::adaptive_max_pool3d(x, p.window)));
    }
    if (!p.adaptive) return backward_by_taps(p, {}, {}, dy);
    Tensor like = at::empty(p.x.sizes, dy.options());
    return p.spatial_dims() == 2 ? at::_adaptive_avg_pool2d_backward(dy, like)
                                 : at::_adaptive_avg_pool3d_backward(dy, like);
  }
};

const RegisterOperator<PoolingOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("max_pool", TORCH_FN(max_pool));
  m.impl("avg_pool", TORCH_FN(avg_pool));
  m.impl("avg_pool_backward", TORCH_FN(avg_pool_backward));
  m.impl("_max_pool_train", TORCH_FN(max_pool_train));
  m.impl("_max_pool_backward", TORCH_FN(max_pool_backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("max_pool", TORCH_FN(max_pool_meta));
  m.impl("avg_pool", TORCH_FN(avg_pool_meta));
  m.impl("avg_pool_backward", TORCH_FN(avg_pool_backward_meta));
  m.impl("_max_pool_train", TORCH_FN(max_pool_train_meta));
  m.impl("_max_pool_backward", TORCH_FN(max_pool_backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("max_pool", TORCH_FN(max_pool_autograd));
  m.impl("avg_pool", TORCH_FN(avg_pool_autograd));
  m.impl("avg_pool_backward", TORCH_FN(avg_pool_backward_autograd));
  m.impl("_max_pool_train", TORCH_FN(max_pool_train_autograd));
  m.impl("_max_pool_backward", TORCH_FN(max_pool_backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("max_pool", TORCH_FN(max_pool_autocast));
  m.impl("avg_pool", TORCH_FN(avg_pool_autocast));
}

}  // namespace pooling
}  // namespace torch_cudnn_ext
