// What the core must know of grid sampling.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/arguments.h"

namespace torch_cudnn_ext::grid_sample {
namespace {

class GridSampleOperator : public OperatorOf<GridSampleProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnSpatialTfSamplerForward, cudnnSpatialTfSamplerBackward",
            "x: nchw, nhwc (cuDNN: nchw); result contiguous",
            "cuDNN: 2-D, bilinear, zeros, align_corners=True, at most 1024 channels, no bf16; cpu: "
            "bilinear; differentiable twice with PyTorch 2.15, else once",
            {"grid_sample_fwd x=f32[8,16,28,28]:nchw grid=f32[8,28,28,2]:nchw align_corners=true"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"x", 0}, {"grid", 0}}; }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_SAMPLER_BILINEAR", "bilinear", nullptr}};
  }

  std::vector<SlotSpec> slots(const GridSampleProblem& p) const override {
    std::vector<SlotSpec> list{{Role::x, p.x, false}, {Role::grid, p.grid, false}};
    if (p.pass == Pass::fwd) {
      list.push_back({Role::y, p.output(), true});
      return list;
    }
    list.push_back({Role::dy, p.output(), false});
    if (p.input_gradient) list.push_back({Role::dx, contiguous_x(p), true});
    list.push_back({Role::dgrid, p.grid, true});
    return list;
  }

  Cost cost(const GridSampleProblem& p) const override {
    double taps = 1;
    if (p.mode == SampleMode::bilinear) taps = 1 << p.spatial_dims();
    if (p.mode == SampleMode::bicubic) taps = 16;
    auto elements = static_cast<double>(p.output().numel());
    double bytes = static_cast<double>(p.x.nbytes() + p.grid.nbytes() + p.output().nbytes());
    if (p.pass == Pass::fwd) return {2 * taps * elements, bytes, taps};
    bytes += static_cast<double>(p.grid.nbytes() + (p.input_gradient ? p.x.nbytes() : 0));
    // Each element of dx sums its share of the points; dgrid sums channels.
    double points = static_cast<double>(p.output().numel()) / static_cast<double>(p.x.numel());
    return {(p.input_gradient ? 4 : 2) * taps * elements, bytes,
            taps * std::max(points + 1, static_cast<double>(p.x.sizes[1]))};
  }

  // The points lie in the tensor and a pixel around it, three tenths of a pixel beyond a centre.
  // There the rounding of a coordinate makes no result jump.
  void prepare_scratch(const GridSampleProblem& p, Bindings& bindings) const override {
    int dims = p.spatial_dims();
    for (int i = 0; i < dims; ++i) {
      Tensor coordinate = bindings[Role::grid].select(dims + 1, i);
      auto n = static_cast<double>(p.x.sizes[dims + 1 - i]);
      Tensor uniform = at::special_ndtr(coordinate.to(at::kDouble));
      Tensor pixel = (uniform * (n + 1)).floor() - 0.7;
      double last = std::max(n - 1, 1.0);
      coordinate.copy_(p.align_corners ? pixel * (2 / last) - 1 : (pixel * 2 + 1) / n - 1);
    }
  }

  Bindings reference(const GridSampleProblem& p, const Bindings& bindings) const override {
    auto mode = static_cast<int64_t>(p.mode), padding = static_cast<int64_t>(p.padding);
    Tensor x = bindings[Role::x].to(at::kDouble), grid = bindings[Role::grid].to(at::kDouble);
    bool plane = p.spatial_dims() == 2;
    Bindings out;
    if (p.pass == Pass::fwd) {
      auto sample = plane ? at::grid_sampler_2d : at::grid_sampler_3d;
      out[Role::y] = sample(x, grid, mode, padding, p.align_corners);
      return out;
    }
    auto sample_backward = plane ? at::grid_sampler_2d_backward : at::grid_sampler_3d_backward;
    auto [dx, dgrid] = sample_backward(bindings[Role::dy].to(at::kDouble), x, grid, mode, padding,
                                       p.align_corners, {p.input_gradient, true});
    if (p.input_gradient) out[Role::dx] = dx;
    out[Role::dgrid] = dgrid;
    return out;
  }

  // PyTorch computes a coordinate in pixels in the data's type. Its rounding error, times the
  // difference of neighbours, is that of a result.
  double tolerance(const GridSampleProblem& p, const Notes&) const override {
    auto longest = static_cast<double>(*std::max_element(p.x.sizes.begin() + 2, p.x.sizes.end()));
    double terms = std::sqrt(cost(p).reduction_length);
    return epsilon_of(p.x.dtype) * (8 + 2 * longest) +
           4 * epsilon_of(compute_dtype(p.x.dtype)) * terms;
  }

  // PyTorch calls cuDNN for every problem that cuDNN supports. Its own kernel has a thread a point
  // of the grid: on an H100 it took 60 times as long for 50 points of 1024 channels, and a quarter
  // of the time for 162000 of 192. Over 1103 problems the first of this order took 1.03 times what
  // the faster one took (geometric mean).
  std::vector<std::string> heuristic_order(const GridSampleProblem& p) const override {
    constexpr int64_t kManyPoints = 1 << 15;
    bool many = p.grid.numel() / p.spatial_dims() >= kManyPoints;
    if (many) return {"aten", "legacy:bilinear"};
    return {"legacy:bilinear", "aten"};
  }

 private:
  static TensorSpec contiguous_x(const GridSampleProblem& p) {
    return {p.x.dtype, p.x.sizes, contiguous_strides(p.x.sizes)};
  }
};

const RegisterOperator<GridSampleOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::grid_sample
