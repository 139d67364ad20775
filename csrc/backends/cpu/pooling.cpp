// Pooling on the CPU in two ways; sums are in float32 at least.
//   taps    one sweep over all of the output for each position of the window
//   unfold  all windows gathered into rows, which are then reduced; gradients are scattered back
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"
#include "problems/pooling_taps.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// [batch, channels, outputs, window]: the windows of a padded tensor.
Tensor windows_of(const PoolingProblem& p, Tensor t) {
  const int dims = p.spatial_dims();
  for (int i = 0; i < dims; ++i) {
    t = t.unfold(i + 2, p.dilation[i] * (p.window[i] - 1) + 1, p.stride[i])
            .slice(-1, 0, c10::nullopt, p.dilation[i]);
  }
  return t.flatten(2 + dims).flatten(2, 1 + dims);
}

// Places of the windows' elements in the padded plane or volume: [outputs, window].
Tensor positions_of(const PoolingProblem& p, const Tensor& padded) {
  Tensor places = at::arange(padded.numel() / (padded.size(0) * padded.size(1)), at::kLong);
  auto sizes = padded.sizes().vec();
  sizes[0] = sizes[1] = 1;
  return windows_of(p, places.view(sizes)).flatten(0, 2);
}

// The first element of each window that is not padding: a window that holds only -inf equals it.
Tensor first_places(const PoolingProblem& p) {
  auto sizes = p.x.sizes;
  sizes[0] = sizes[1] = 1;
  return (windows_of(p, pooling::padded(p, at::ones(sizes))) > 0).to(at::kByte).argmax(-1);
}

void forward_unfolded(const PoolingProblem& p, Bindings& b, at::ScalarType compute) {
  Tensor windows = windows_of(p, pooling::padded(p, b[Role::x].to(compute)));
  TensorSpec y = p.y();
  Tensor result;
  if (p.mode == PoolingMode::max) {
    Tensor places;
    std::tie(result, places) = windows.max(-1);
    // In another type than PyTorch's indices, which mean something else.
    if (p.train) {
      b[Role::reserve] = at::where(result.isneginf(), first_places(p), places).to(at::kInt);
    }
  } else {
    result = windows.sum(-1);
  }
  result = result.view(y.sizes);
  if (p.mode != PoolingMode::max) result = result / pooling::divisors(p, result);
  give(b, Role::y, y, result.to(p.x.dtype));
}

void backward_unfolded(const PoolingProblem& p, Bindings& b, at::ScalarType compute) {
  Tensor dy = b[Role::dy].to(compute);
  Tensor dx = pooling::padded(p, at::zeros(p.x.sizes, dy.options())).zero_();
  Tensor positions = positions_of(p, dx);
  Tensor planes = dx.flatten(0, 1).flatten(1);
  if (p.mode == PoolingMode::max) {
    const Tensor& places = b[Role::reserve];
    TORCH_CHECK(places.scalar_type() == at::kInt && places.numel() == dy.numel(),
                "cpu:unfold: the forward of this maximum ran another algorithm, so that there are "
                "no indices");
    Tensor rows = places.to(at::kLong).reshape({planes.size(0), -1, 1});
    Tensor where = positions.expand({planes.size(0), -1, -1}).gather(2, rows).squeeze(2);
    planes.scatter_add_(1, where, dy.reshape(where.sizes()));
  } else {
    Tensor share = (dy / pooling::divisors(p, dy)).reshape({planes.size(0), -1, 1});
    Tensor shares = share.expand({-1, -1, positions.size(1)}).flatten(1);
    planes.index_add_(1, positions.flatten(), shares);
  }
  give(b, Role::dx, p.x, pooling::interior(p, planes.view(dx.sizes())).to(p.x.dtype));
}

void run_by_taps(const PoolingProblem& p, Bindings& b, at::ScalarType compute) {
  if (p.pass == Pass::fwd) {
    give(b, Role::y, p.y(), pooling::forward_by_taps(p, b[Role::x].to(compute)).to(p.x.dtype));
    return;
  }
  Tensor x, y;
  if (p.mode == PoolingMode::max) {
    x = b[Role::x].to(compute);
    y = b[Role::y].to(compute);
  }
  give(b, Role::dx, p.x, pooling::backward_by_taps(p, x, y, b[Role::dy].to(compute)).to(p.x.dtype));
}

constexpr const char* kPoolingNames[] = {"taps", "unfold"};

BuildResult build_pooling_plan(const PoolingProblem& p, const Algorithm& algorithm) {
  if (p.adaptive) {
    return Unsupported{"the output's sizes do not divide the input's: windows differ in size"};
  }
  auto compute = compute_dtype(p.x.dtype);
  bool taps = algorithm.name == "taps";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    if (taps) {
      run_by_taps(p, b, compute);
    } else if (p.pass == Pass::fwd) {
      forward_unfolded(p, b, compute);
    } else {
      backward_unfolded(p, b, compute);
    }
  });
}

const auto pooling_registered =
    cpu::register_named<PoolingProblem, kPoolingNames, build_pooling_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
