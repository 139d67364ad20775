#include "problems/pooling_taps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace torch_cudnn_ext::pooling {

Tensor padded(const PoolingProblem& p, const Tensor& x) {
  TensorSpec y = p.y();
  std::vector<int64_t> amounts;  // those of the last dimension first
  for (int i = p.spatial_dims() - 1; i >= 0; --i) {
    int64_t end = (y.sizes[i + 2] - 1) * p.stride[i] + p.dilation[i] * (p.window[i] - 1) + 1;
    amounts.push_back(p.padding[i]);
    amounts.push_back(std::max<int64_t>(end - p.padding[i] - p.x.sizes[i + 2], 0));
  }
  double value = p.mode == PoolingMode::max ? -std::numeric_limits<double>::infinity() : 0;
  return at::constant_pad_nd(x, amounts, value);
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
  // A window that holds only -inf equals its padding, which has no gradient.
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

}  // namespace torch_cudnn_ext::pooling
