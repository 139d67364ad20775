// What the core must know of pooling.
#include "core/operator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/arguments.h"
#include "problems/pooling_taps.h"

namespace torch_cudnn_ext::pooling {
namespace {

// `count` multiples of a power of two from -4 to 4; the count is prime.
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

  // Measured on an H200 over 41 shapes of each type and layout. PyTorch's own kernel comes first if
  // the shape does not plainly tell what is fastest.
  std::vector<std::string> heuristic_order(const PoolingProblem& p) const override {
    bool channels_last = torch_cudnn_ext::is_channels_last(p.x);
    // PyTorch's kernel of an average's gradient is given contiguous copies.
    bool aten_copies = channels_last && p.is_average_gradient();
    if (is_short_work(p.x.nbytes() + p.y().nbytes()) && !aten_copies) {
      return {"aten", classic(p), "graph"};
    }
    return channels_last ? order_of_channels_last(p) : order_of_contiguous(p);
  }

 private:
  static bool overlaps(const PoolingProblem& p) {
    bool any = false;
    for (int i = 0; i < p.spatial_dims(); ++i) any |= p.stride[i] < p.window[i];
    return any;
  }

  static std::vector<std::string> order_of_contiguous(const PoolingProblem& p) {
    std::vector<std::string> pytorch{"aten", classic(p), "graph"};
    std::vector<std::string> cudnn{classic(p), "aten", "graph"};
    bool volume = p.spatial_dims() == 3;
    if (p.mode == PoolingMode::max) {
      if (!p.train) return cudnn;
      // With the gradient, which is slower than PyTorch's if windows of half types overlap.
      bool half = c10::isReducedFloatingType(p.x.dtype);
      bool slow = volume || p.window_volume() > 16 || (half && overlaps(p));
      return slow ? pytorch : cudnn;
    }
    if (p.pass == Pass::bwd) return volume || p.has_one_window() ? pytorch : cudnn;
    if (!p.has_one_window()) return p.window[p.spatial_dims() - 1] < 4 ? cudnn : pytorch;
    bool many = p.x.sizes[0] * p.x.sizes[1] >= 1 << 14;
    return many && !volume && p.window_volume() <= 64 ? cudnn : pytorch;
  }

  // Engines of the graph API are faster for most of these (cudnn/engine_hints.cpp).
  static std::vector<std::string> order_of_channels_last(const PoolingProblem& p) {
    bool volume = p.spatial_dims() == 3, max = p.mode == PoolingMode::max;
    bool cudnn =
        max ? !p.train && !volume
            : p.mode != PoolingMode::sum && p.pass == Pass::bwd && !volume && !p.has_one_window();
    if (cudnn) return {classic(p), "aten", "graph"};
    return {"aten", classic(p), "graph"};
  }

  static const char* classic(const PoolingProblem& p) {
    return p.mode == PoolingMode::max ? "legacy:max" : "legacy:avg";
  }

  // Values of x that differ within each window, so that a maximum has one place. Windows with more
  // elements than there are numbers hold some number twice.
  static Tensor distinct_in_windows(const PoolingProblem& p, at::Device device) {
    Numbers numbers = numbers_of(p.x.dtype);
    at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
    int dims = p.spatial_dims();
    // Numbers repeat with this period, which is longer than any window.
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

}  // namespace
}  // namespace torch_cudnn_ext::pooling
