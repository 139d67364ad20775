// Bilinear (trilinear) sampling on the CPU in two ways, in float32 at least.
//   gather  reads the corners of each point's cell by index, and scatters dx
//   dense   multiplies by a matrix of weights [points, pixels], which are products of hat functions
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

constexpr double kMaxDenseBytes = 1 << 30;

// The points' coordinate along a dimension, in pixels, and its derivative by the grid's number.
// Both are [N, P].
struct Coordinate {
  Tensor pixel, slope;
};

Coordinate grid_sample_coordinate(const GridSampleProblem& p, const Tensor& grid, int i) {
  int64_t n = p.x.sizes[p.x.sizes.size() - 1 - i];
  Tensor g = grid.select(-1, i).flatten(1);
  double scale = static_cast<double>(p.align_corners ? n - 1 : n) / 2;
  Tensor pixel = (g + 1) * scale - (p.align_corners ? 0.0 : 0.5);
  Tensor slope = at::full_like(pixel, scale);
  if (p.padding == SamplePadding::zeros) return {pixel, slope};
  if (p.padding == SamplePadding::reflection) {
    // The mirrors are the centres of the outermost pixels, or their outer edges.
    double low = p.align_corners ? 0 : -0.5;
    auto span = static_cast<double>(p.align_corners ? n - 1 : n);
    if (span == 0) return {at::zeros_like(pixel), at::zeros_like(pixel)};
    Tensor from_low = pixel - low, distance = from_low.abs();
    Tensor flips = (distance / span).floor();
    Tensor rest = distance - flips * span;
    Tensor odd = flips.remainder(2) == 1;
    pixel = at::where(odd, span - rest, rest) + low;
    slope = slope * at::where(odd.logical_xor(from_low < 0), -1, 1);
  }
  auto last = static_cast<double>(n - 1);
  pixel = pixel.nan_to_num(0);  // as in PyTorch
  slope = slope.masked_fill((pixel <= 0).logical_or_(pixel >= last), 0);
  return {pixel.clamp(0, last), slope};
}

std::vector<Coordinate> coordinates(const GridSampleProblem& p, const Tensor& grid) {
  std::vector<Coordinate> list;
  for (int i = 0; i < p.spatial_dims(); ++i) list.push_back(grid_sample_coordinate(p, grid, i));
  return list;
}

// One corner of every point's cell. All tensors are [N, P].
struct Corner {
  Tensor index;    // the pixel in flattened space; any pixel if the corner is outside
  Tensor weight;   // zero if the corner is outside
  Tensor outside;  // whether the corner is outside of the tensor
  std::vector<Tensor> derivatives;  // of the weight by each grid_sample_coordinate
};

Corner corner(const GridSampleProblem& p, const std::vector<Coordinate>& at_pixels, int bits) {
  auto dims = static_cast<int>(at_pixels.size());
  Corner c;
  Tensor inside;
  std::vector<Tensor> weights;
  int64_t step = 1;
  for (int i = 0; i < dims; ++i) {
    bool upper = bits >> i & 1;
    int64_t n = p.x.sizes[p.x.sizes.size() - 1 - i];
    Tensor cell = at_pixels[i].pixel.floor(), part = at_pixels[i].pixel - cell;
    weights.push_back(upper ? part : 1 - part);
    Tensor pixel = upper ? cell + 1 : cell;
    Tensor here = (pixel >= 0).logical_and_(pixel < n);
    inside = i == 0 ? here : inside.logical_and(here);
    // NaN lies in no cell. It reads any pixel, and its weight is NaN.
    Tensor known = pixel.nan_to_num(0).clamp(0, static_cast<double>(n - 1));
    Tensor index = known.to(at::kLong) * step;
    c.index = i == 0 ? index : c.index + index;
    step *= n;
  }
  c.weight = inside.to(weights[0].scalar_type());
  c.outside = inside.logical_not();
  for (int i = 0; i < dims; ++i) {
    Tensor derivative = (bits >> i & 1) != 0 ? c.weight : -c.weight;
    c.derivatives.push_back(derivative);
  }
  for (int i = 0; i < dims; ++i) {
    c.weight = c.weight * weights[i];
    for (int j = 0; j < dims; ++j) {
      if (j != i) c.derivatives[j] = c.derivatives[j] * weights[i];
    }
  }
  return c;
}

// [N, C, P], with zeros outside. A weight of 0 would not do: 0 times an infinity is NaN.
Tensor values_at(const Tensor& x, const Corner& c, const Tensor& index) {
  return x.gather(2, index).masked_fill_(c.outside.unsqueeze(1), 0);
}

struct Gradients {
  Tensor dx, dgrid;  // [N, C, pixels] (undefined if not wanted), [N, P, d]
};

Tensor gather_forward(const GridSampleProblem& p, const Tensor& x,
                      const std::vector<Coordinate>& at_pixels) {
  Tensor y;
  for (int bits = 0; bits < 1 << at_pixels.size(); ++bits) {
    Corner c = corner(p, at_pixels, bits);
    Tensor index = c.index.unsqueeze(1).expand({-1, x.size(1), -1});
    Tensor part = values_at(x, c, index) * c.weight.unsqueeze(1);
    y = bits == 0 ? part : y.add_(part);
  }
  return y;
}

Gradients gather_backward(const GridSampleProblem& p, const Tensor& x, const Tensor& dy,
                          const std::vector<Coordinate>& at_pixels) {
  std::vector<Tensor> sums(at_pixels.size());
  Tensor dx = p.input_gradient ? at::zeros_like(x) : Tensor();
  for (int bits = 0; bits < 1 << at_pixels.size(); ++bits) {
    Corner c = corner(p, at_pixels, bits);
    Tensor index = c.index.unsqueeze(1).expand({-1, x.size(1), -1});
    if (p.input_gradient) dx.scatter_add_(2, index, dy * c.weight.unsqueeze(1));
    Tensor dot = (values_at(x, c, index) * dy).sum(1);
    for (size_t i = 0; i < sums.size(); ++i) {
      Tensor part = dot * c.derivatives[i];
      sums[i] = bits == 0 ? part : sums[i].add_(part);
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) sums[i].mul_(at_pixels[i].slope);
  return {dx, at::stack(sums, -1)};
}

// [N, P, n]: the hat function of each pixel at each point, or its derivative (from the right).
Tensor hats(const Coordinate& c, int64_t n, bool derivative) {
  Tensor pixels = at::arange(n, c.pixel.options());
  Tensor distance = c.pixel.unsqueeze(2) - pixels;
  if (!derivative) return (1 - distance.abs()).clamp_min_(0);
  Tensor left = (distance >= 0).logical_and_(distance < 1);
  Tensor right = (distance >= -1).logical_and_(distance < 0);
  return right.to(c.pixel.scalar_type()) - left.to(c.pixel.scalar_type());
}

// [N, P, pixels]: the weights, or their derivatives by coordinate `by` unless that is -1.
Tensor weights(const GridSampleProblem& p, const std::vector<Coordinate>& at_pixels, int by) {
  Tensor product;
  for (int i = 0; i < static_cast<int>(at_pixels.size()); ++i) {
    int64_t n = p.x.sizes[p.x.sizes.size() - 1 - i];
    Tensor hat = hats(at_pixels[i], n, i == by);
    product = i == 0 ? hat : (hat.unsqueeze(3) * product.unsqueeze(2)).flatten(2);
  }
  return product;
}

Tensor dense_forward(const GridSampleProblem& p, const Tensor& x,
                     const std::vector<Coordinate>& at_pixels) {
  return at::matmul(x, weights(p, at_pixels, -1).transpose(1, 2));
}

Gradients dense_backward(const GridSampleProblem& p, const Tensor& x, const Tensor& dy,
                         const std::vector<Coordinate>& at_pixels) {
  Tensor dx = p.input_gradient ? at::matmul(dy, weights(p, at_pixels, -1)) : Tensor();
  Tensor by_weights = at::matmul(dy.transpose(1, 2), x);
  std::vector<Tensor> sums;
  for (int i = 0; i < static_cast<int>(at_pixels.size()); ++i) {
    sums.push_back((by_weights * weights(p, at_pixels, i)).sum(2) * at_pixels[i].slope);
  }
  return {dx, at::stack(sums, -1)};
}

constexpr const char* kGridSampleNames[] = {"gather", "dense"};

BuildResult build_grid_sample_plan(const GridSampleProblem& p, const Algorithm& algorithm) {
  if (p.mode != SampleMode::bilinear) return Unsupported{"cpu samples bilinearly"};
  auto compute = compute_dtype(p.x.dtype);
  bool dense = algorithm.name == "dense";
  double pixels = static_cast<double>(p.x.numel()) / static_cast<double>(p.x.sizes[1]);
  double points = static_cast<double>(p.grid.numel()) / p.spatial_dims();
  double dense_bytes = pixels / static_cast<double>(p.x.sizes[0]) * points *
                       static_cast<double>(c10::elementSize(compute));
  if (dense && dense_bytes > kMaxDenseBytes) {
    return Unsupported{c10::str("its matrix of weights would take ", dense_bytes, " bytes, above ",
                                kMaxDenseBytes)};
  }
  TensorSpec y = p.output(), dx{p.x.dtype, p.x.sizes, contiguous_strides(p.x.sizes)};
  // One infinity or NaN times a weight of zero makes every point NaN.
  Notes notes;
  if (dense) notes.add(Note::reduced_range);
  return make_plan(algorithm, notes, [=](Bindings& b) {
    Tensor x = b[Role::x].to(compute).flatten(2);
    std::vector<Coordinate> at_pixels = coordinates(p, b[Role::grid].to(compute));
    if (p.pass == Pass::fwd) {
      Tensor result = dense ? dense_forward(p, x, at_pixels) : gather_forward(p, x, at_pixels);
      give(b, Role::y, y, result.view(y.sizes).to(p.x.dtype));
      return;
    }
    Tensor dy = b[Role::dy].to(compute).flatten(2);
    Gradients g =
        dense ? dense_backward(p, x, dy, at_pixels) : gather_backward(p, x, dy, at_pixels);
    if (p.input_gradient) give(b, Role::dx, dx, g.dx.reshape(dx.sizes).to(p.x.dtype));
    give(b, Role::dgrid, p.grid, g.dgrid.view(p.grid.sizes).to(p.grid.dtype));
  });
}

const auto grid_sample_registered =
    cpu::register_named<GridSampleProblem, kGridSampleNames, build_grid_sample_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
