// Norms by the statistics of one sample, and their gradients, by definition: the reference of all
// algorithms, and the way to gradients of gradients.
#include <ATen/ATen.h>

#include "ops/layer_norm/layer_norm.h"

namespace torch_cudnn_ext::layer_norm {

SymView view_of(LayerNormKind kind, const Tensor& input, int64_t groups) {
  if (input.dim() == 2) return {input.sym_size(0), 1, input.sym_size(1), 1};
  const SymInt& channels = input.sym_size(1);
  TORCH_CHECK_VALUE(groups > 0, "torch_cudnn_ext::normalize: groups is ", groups,
                    ", wanted at least 1");
  if (kind == LayerNormKind::instance) return {input.sym_size(0), channels, 1, input.sym_size(2)};
  return {input.sym_size(0), groups, channels / groups, input.sym_size(2)};
}

Tensor viewed(const Tensor& t, const SymView& v) {
  return t.reshape_symint({v.batch, v.groups, v.channels, v.space});
}

Tensor parameter_viewed(const Tensor& t, const SymView& v) {
  return t.reshape_symint({1, v.groups, v.channels, 1});
}

namespace {

constexpr int64_t kTogether[] = {2, 3};    // dimensions of the view that are normalised over
constexpr int64_t kOfChannels[] = {0, 3};  // those that a parameter is shared over

}  // namespace

Normalised normalise(LayerNormKind kind, const Tensor& x, double epsilon) {
  Normalised n;
  Tensor centred = x;
  if (kind != LayerNormKind::rms) {
    n.mean = x.mean(kTogether, true);
    centred = x - n.mean;
  }
  n.invstd = (centred.square().mean(kTogether, true) + epsilon).rsqrt();
  n.x = centred * n.invstd;
  return n;
}

std::vector<Tensor> gradients(LayerNormKind kind, const Tensor& grad_output, const Tensor& input,
                              const Tensor& weight, int64_t groups, double epsilon,
                              at::ScalarType compute) {
  SymView v = view_of(kind, input, groups);
  Tensor dy = viewed(grad_output.to(compute), v);
  Normalised n = normalise(kind, viewed(input.to(compute), v), epsilon);
  Tensor g = weight.defined() ? dy * parameter_viewed(weight.to(compute), v) : dy;
  Tensor dx = g - n.x * (g * n.x).mean(kTogether, true);
  if (kind != LayerNormKind::rms) dx = dx - g.mean(kTogether, true);
  return {(dx * n.invstd).reshape_symint(input.sym_sizes()), (dy * n.x).sum(kOfChannels).flatten(),
          dy.sum(kOfChannels).flatten()};
}

}  // namespace torch_cudnn_ext::layer_norm
