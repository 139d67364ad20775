// Pooling by PyTorch's operators.
//   default  PyTorch's own kernel; a maximum makes indices, for the backward
//   taps     maxima without indices: one sweep over the output for each position of the window
#include <algorithm>
#include <limits>
#include <numeric>

#include "backends/aten/plan.h"
#include "core/errata.h"

namespace torch_cudnn_ext::aten {
namespace {

const Algorithm kTaps{"aten", "taps", {}};  // needs no memory
constexpr int64_t kMostTaps = 64;           // each is a kernel

std::vector<Candidate> all(const PoolingProblem& p, const Device& device) {
  std::vector<Candidate> list = candidates(p, device);
  if (p.pass == Pass::fwd && p.mode == PoolingMode::max) list.push_back({kTaps, "PyTorch"});
  return list;
}

std::optional<int64_t> divisor_override(const PoolingProblem& p) {
  if (p.mode == PoolingMode::sum) return p.divisor;
  return std::nullopt;
}

std::tuple<Tensor, Tensor> max_with_indices(const PoolingProblem& p, const Tensor& x) {
  bool plane = p.spatial_dims() == 2;
  if (p.adaptive) {
    return plane ? at::adaptive_max_pool2d(x, p.window) : at::adaptive_max_pool3d(x, p.window);
  }
  auto pool = plane ? at::max_pool2d_with_indices : at::max_pool3d_with_indices;
  return pool(x, p.window, p.stride, p.padding, p.dilation, p.ceil);
}

Tensor max_backward(const PoolingProblem& p, const Bindings& b) {
  const Tensor &x = b[Role::x], &dy = b[Role::dy], &indices = b[Role::reserve];
  TORCH_CHECK(indices.scalar_type() == at::kLong && indices.sizes() == dy.sizes(),
              "aten:default: the forward of this maximum ran another algorithm, so that there are "
              "no indices");
  bool plane = p.spatial_dims() == 2;
  if (p.adaptive) {
    return plane ? at::adaptive_max_pool2d_backward(dy, x, indices)
                 : at::adaptive_max_pool3d_backward(dy, x, indices);
  }
  auto pool = plane ? at::max_pool2d_with_indices_backward : at::max_pool3d_with_indices_backward;
  return pool(dy, x, p.window, p.stride, p.padding, p.dilation, p.ceil, indices);
}

// One average of all elements, which PyTorch's adaptive pooling computes as a mean.
bool is_global_average(const PoolingProblem& p) {
  bool average = p.mode == PoolingMode::avg_include || p.mode == PoolingMode::avg_exclude;
  return average && p.has_one_window();
}

Tensor average(const PoolingProblem& p, const Tensor& x) {
  if (is_global_average(p)) {
    std::vector<int64_t> space(p.spatial_dims());
    std::iota(space.begin(), space.end(), 2);
    return x.mean(space, true);
  }
  bool plane = p.spatial_dims() == 2;
  if (p.adaptive) {
    return plane ? at::_adaptive_avg_pool2d(x, p.window) : at::_adaptive_avg_pool3d(x, p.window);
  }
  auto pool = plane ? at::avg_pool2d : at::avg_pool3d;
  return pool(x, p.window, p.stride, p.padding, p.ceil, p.mode != PoolingMode::avg_exclude,
              divisor_override(p));
}

// The kernels read only sizes and layout of the input: any memory will do.
void average_backward(const PoolingProblem& p, bool contiguous, Bindings& b) {
  if (is_global_average(p)) {
    const Tensor& dy = b[Role::dy];
    at::div_out(output_tensor(b, Role::dx, p.x, dy), dy.expand(p.x.sizes),
                at::scalar_tensor(p.window_volume(), at::kDouble));
    return;
  }
  Tensor dy = contiguous ? b[Role::dy].contiguous() : b[Role::dy];
  bool plane = p.spatial_dims() == 2, counts_padding = p.mode != PoolingMode::avg_exclude;
  Dims strides = contiguous ? contiguous_strides(p.x.sizes) : p.x.strides;
  Tensor like = at::empty_strided(p.x.sizes, strides, dy.options());
  Tensor result;
  if (!p.adaptive) {
    auto pool = plane ? at::avg_pool2d_backward : at::avg_pool3d_backward;
    result =
        pool(dy, like, p.window, p.stride, p.padding, p.ceil, counts_padding, divisor_override(p));
  } else if (plane) {
    result = at::_adaptive_avg_pool2d_backward(dy, like);
  } else {
    result = at::_adaptive_avg_pool3d_backward(dy, like);
  }
  give(b, Role::dx, p.x, result);
}

// PyTorch's documentation says that all of these except avg_pool2d and means add atomically on a
// GPU.
Notes pooling_notes_of(const PoolingProblem& p, const Device& device) {
  bool adds_in_order =
      is_global_average(p) || (p.mode != PoolingMode::max && !p.adaptive && p.spatial_dims() == 2);
  if (p.pass == Pass::fwd || !device.is_cuda() || adds_in_order) return {};
  return {Note::nondeterministic};
}

// The windows that read an element of the input at a position of theirs: `count` from `first` on.
// The first of them reads `element`.
struct Reach {
  int64_t first, count, element;
};

Reach reach_of(const PoolingProblem& p, int i, int64_t position, int64_t windows) {
  const int64_t stride = p.stride[i], offset = p.padding[i] - position * p.dilation[i];
  const int64_t last = p.x.sizes[i + 2] - 1 + offset;
  const int64_t first = offset > 0 ? (offset + stride - 1) / stride : 0;
  const int64_t end = last < 0 ? 0 : std::min(windows, last / stride + 1);
  if (first >= end) return {0, 0, 0};
  return {first, end - first, first * stride - offset};
}

void maximum_by_taps(const PoolingProblem& p, const TensorSpec& y_spec, Bindings& b) {
  const Tensor& x = b[Role::x];
  const Tensor& y = output_tensor(b, Role::y, y_spec, x);
  y.fill_(-std::numeric_limits<double>::infinity());
  for (int64_t tap = 0; tap < p.window_volume(); ++tap) {
    Tensor read = x, written = y;
    int64_t rest = tap;
    for (int i = p.spatial_dims() - 1; i >= 0; --i) {
      auto [first, count, element] = reach_of(p, i, rest % p.window[i], y_spec.sizes[i + 2]);
      rest /= p.window[i];
      written = written.narrow(i + 2, first, count);
      read = read.slice(i + 2, element, element + count * p.stride[i], p.stride[i]);
    }
    at::maximum_out(written, written, read);
  }
}

BuildResult build_taps(const PoolingProblem& p, const Device& device) {
  if (device.is_target()) return needs_device();
  bool takes = p.pass == Pass::fwd && p.mode == PoolingMode::max && !p.train && !p.adaptive;
  if (!takes || p.window_volume() > kMostTaps) {
    return Unsupported{
        c10::str("takes maxima that no backward follows, of windows of one size and "
                 "at most ",
                 kMostTaps, " elements")};
  }
  return make_plan(kTaps, {}, [p, y_spec = p.y()](Bindings& b) { maximum_by_taps(p, y_spec, b); });
}

BuildResult build_pooling_plan(const PoolingProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  if (algorithm == kTaps) return build_taps(p, device);
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  bool half = c10::isReducedFloatingType(p.x.dtype);
  bool is_max = p.mode == PoolingMode::max;
  bool has_kernel = is_max || p.adaptive || p.spatial_dims() == 2 || is_global_average(p);
  if (!device.is_cuda() && half && !has_kernel) {
    return Unsupported{"PyTorch has no average over volumes in half precision on the CPU"};
  }
  bool contiguous = erratum_applies("pytorch-pool-average-gradient", p, algorithm, device);
  Notes notes = pooling_notes_of(p, device);
  return make_plan(algorithm, notes, [p, y_spec = p.y(), is_max, contiguous](Bindings& b) {
    if (p.pass == Pass::fwd) {
      const Tensor& x = b[Role::x];
      if (!is_max) {
        give(b, Role::y, y_spec, average(p, x));
        return;
      }
      auto [y, indices] = max_with_indices(p, x);
      give(b, Role::y, y_spec, y);
      if (p.train) b[Role::reserve] = indices;
    } else if (is_max) {
      give(b, Role::dx, p.x, max_backward(p, b));
    } else {
      average_backward(p, contiguous, b);
    }
  });
}

const RegisterBackendOperator<PoolingProblem> pooling_registered("aten", all, build_pooling_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
