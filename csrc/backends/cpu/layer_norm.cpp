// Norms by the statistics of one sample on the CPU in two ways, in float32 at least.
//
// two_pass takes the mean, then centres, squares and sums; gradients go through the
// normalised x.
//
// one_pass takes both sums in one pass over x, shifted by its first element so that little cancels;
// gradients are a*dy*w + b*x + c, with coefficients from two sums of dot products.
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// [batch, groups, channels / groups * space]: the rows that are normalised.
Tensor as_rows(const Tensor& t, const LayerNormProblem& p) {
  auto v = p.view();
  return t.to(compute_dtype(p.x.dtype)).reshape({v.batch, v.groups, v.length()});
}

// A parameter, repeated along a row.
Tensor along_rows(const Tensor& t, const LayerNormProblem& p) {
  auto v = p.view();
  return t.to(compute_dtype(p.x.dtype))
      .view({1, v.groups, v.channels / v.groups, 1})
      .expand({1, v.groups, v.channels / v.groups, v.space})
      .reshape({1, v.groups, v.length()});
}

// Sums of products along rows, without the products in memory.
Tensor row_dot(const Tensor& a, const Tensor& b) {
  return at::matmul(a.unsqueeze(2), b.unsqueeze(3)).squeeze(3);
}

struct Statistics {
  Tensor mean, invstd;  // [batch, groups, 1]; mean is 0 for an RMS norm
};

Statistics statistics_of(const Tensor& x, const LayerNormProblem& p, double epsilon,
                         bool one_pass) {
  auto n = static_cast<double>(x.size(2));
  Tensor mean = at::zeros({x.size(0), x.size(1), 1}, x.options()), variance;
  if (!p.has_mean()) {
    variance = one_pass ? row_dot(x, x) / n : x.square().mean(2, true);
  } else if (one_pass) {
    Tensor shift = x.narrow(2, 0, 1);
    Tensor shifted = x - shift;
    Tensor off = shifted.sum(2, true) / n;
    variance = (row_dot(shifted, shifted) / n - off.square()).clamp_min_(0);
    mean = shift + off;
  } else {
    mean = x.mean(2, true);
    variance = (x - mean).square_().mean(2, true);
  }
  return {mean, (variance + epsilon).rsqrt_()};
}

void layer_norm_forward(const LayerNormProblem& p, Bindings& b, bool one_pass) {
  Tensor x = as_rows(b[Role::x], p);
  Statistics s = statistics_of(x, p, b.epsilon, one_pass);
  Tensor y = (x - s.mean).mul_(s.invstd);
  if (p.w) y.mul_(along_rows(b[Role::w], p));
  if (p.bias) y.add_(along_rows(b[Role::bias], p));
  give(b, Role::y, p.x, y.view(p.x.sizes).to(p.x.dtype));
  if (p.stats && p.has_mean()) give(b, Role::mean, p.statistics(), s.mean.flatten());
  if (p.stats) give(b, Role::invstd, p.statistics(), s.invstd.flatten());
}

// Sums of a per-row tensor over all that shares a parameter.
Tensor per_channel(const Tensor& rows, const LayerNormProblem& p) {
  auto v = p.view();
  return sum_of_channels(rows.view({v.batch, v.channels, v.space}));
}

void layer_norm_backward(const LayerNormProblem& p, Bindings& b, bool one_pass) {
  auto v = p.view();
  Tensor x = as_rows(b[Role::x], p), dy = as_rows(b[Role::dy], p);
  Dims each{v.batch, v.groups, 1};
  Tensor invstd = b[Role::invstd].to(x.dtype()).view(each);
  Tensor mean = p.has_mean() ? b[Role::mean].to(x.dtype()).view(each) : at::zeros_like(invstd);
  Tensor g = p.w ? dy * along_rows(b[Role::w], p) : dy;
  auto n = static_cast<double>(v.length());
  Tensor dx;
  if (one_pass) {
    Tensor sum = g.sum(2, true);
    Tensor of_x = invstd.pow(3) * (mean * sum - row_dot(g, x)) / n;
    Tensor constant = p.has_mean() ? -of_x * mean - invstd * sum / n : at::zeros_like(mean);
    dx = g * invstd + x * of_x + constant;
  } else {
    Tensor normalised = (x - mean) * invstd;
    dx = g - normalised * (g * normalised).mean(2, true);
    if (p.has_mean()) dx.sub_(g.mean(2, true));
    dx.mul_(invstd);
  }
  give(b, Role::dx, p.x, dx.view(p.x.sizes).to(p.x.dtype));
  if (p.w) {
    Tensor dw = per_channel(dy * (x - mean).mul_(invstd), p);
    give(b, Role::dw, p.parameters(*p.w), dw.to(*p.w));
  }
  if (p.bias) give(b, Role::dbias, p.parameters(*p.bias), per_channel(dy, p).to(*p.bias));
}

constexpr const char* kLayerNormNames[] = {"two_pass", "one_pass"};

BuildResult build_layer_norm_plan(const LayerNormProblem& p, const Algorithm& algorithm) {
  bool one_pass = algorithm.name == "one_pass";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    p.pass == Pass::fwd ? layer_norm_forward(p, b, one_pass) : layer_norm_backward(p, b, one_pass);
  });
}

const auto layer_norm_registered =
    cpu::register_named<LayerNormProblem, kLayerNormNames, build_layer_norm_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
