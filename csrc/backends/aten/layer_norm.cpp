// PyTorch's own layer, RMS, instance and group norm. Instance norm is its batch norm of one sample.
#include "backends/aten/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext::aten {
namespace {

// Most of PyTorch's kernels take tensors of one dtype: half data with float parameters is computed
// in float.
at::ScalarType common_dtype(const LayerNormProblem& p) {
  return p.w.value_or(p.bias.value_or(p.x.dtype));
}

using Pair = std::array<Tensor, 2>;

// Both statistics in another dtype, by one kernel on a GPU.
Pair cast(const Pair& statistics, at::ScalarType dtype) {
  if (statistics[0].scalar_type() == dtype) return statistics;
  auto options = statistics[0].options().dtype(dtype);
  Pair out{at::empty(statistics[0].sizes(), options), at::empty(statistics[1].sizes(), options)};
  at::_foreach_copy_(out, statistics);
  return out;
}

// Repeated for each instance; PyTorch's batch norm takes float parameters with any data.
std::optional<Tensor> repeated(const Tensor& t, int64_t times) {
  return t.defined() ? std::optional<Tensor>(t.repeat({times})) : std::nullopt;
}

void layer_norm_forward(const LayerNormProblem& p, Bindings& b) {
  auto v = p.view();
  Tensor x = b[Role::x], y, mean, invstd;
  auto w = optional_of(b[Role::w]), bias = optional_of(b[Role::bias]);
  if (p.kind != LayerNormKind::instance) x = in_dtype(x, common_dtype(p));
  switch (p.kind) {
    case LayerNormKind::layer:
      std::tie(y, mean, invstd) = at::native_layer_norm(x, {v.channels}, w, bias, b.epsilon);
      break;
    case LayerNormKind::rms:
      std::tie(y, invstd) = at::_fused_rms_norm(x, {v.channels}, w, b.epsilon);
      break;
    case LayerNormKind::group:
      std::tie(y, mean, invstd) =
          at::native_group_norm(x, w, bias, v.batch, v.channels, v.space, v.groups, b.epsilon);
      break;
    case LayerNormKind::instance:
      std::tie(y, mean, invstd) =
          at::native_batch_norm(x.reshape({1, v.count(), v.space}), repeated(b[Role::w], v.batch),
                                repeated(b[Role::bias], v.batch), {}, {}, true, 0, b.epsilon);
      y = y.view(p.x.sizes);
      break;
  }
  give(b, Role::y, p.x, y);
  if (!p.stats) return;
  TensorSpec spec = p.statistics();
  auto flat = [&](const Tensor& t) {
    return strided_view(t.contiguous(), spec.sizes, spec.strides);
  };
  if (!p.has_mean()) {
    give(b, Role::invstd, spec, flat(in_dtype(invstd, spec.dtype)));
    return;
  }
  auto [m, r] = cast({mean, invstd}, spec.dtype);
  give(b, Role::mean, spec, flat(m));
  give(b, Role::invstd, spec, flat(r));
}

// As autograd derives it on the CPU, where PyTorch has no kernel.
std::pair<Tensor, Tensor> rms_backward(const LayerNormProblem& p, const Tensor& dy, const Tensor& x,
                                       const Tensor& invstd, const Tensor& w) {
  if (x.is_cuda()) {
    auto [dx, dw] =
        at::_fused_rms_norm_backward(dy, x, {p.view().channels}, invstd, w, {true, w.defined()});
    return {dx, dw};
  }
  auto compute = compute_dtype(p.x.dtype);
  Tensor normalised = x.to(compute) * invstd, g = dy.to(compute);
  Tensor dw = w.defined() ? (g * normalised).sum(0) : Tensor();
  if (w.defined()) g = g * w;
  return {invstd * (g - normalised * (g * normalised).mean(1, true)), dw};
}

void layer_norm_backward(const LayerNormProblem& p, Bindings& b) {
  auto v = p.view();
  Tensor x = b[Role::x], dy = b[Role::dy], mean = b[Role::mean], invstd = b[Role::invstd];
  const Tensor& w = b[Role::w];
  std::array<bool, 3> mask{true, p.w.has_value(), p.bias.has_value()};
  Tensor dx, dw, dbias;
  if (p.kind != LayerNormKind::instance) {
    x = in_dtype(x, common_dtype(p));
    dy = in_dtype(dy, common_dtype(p));
  }
  // On the CPU the statistics are kept in the parameters' dtype.
  if (x.is_cpu() && p.has_mean()) {
    mean = in_dtype(mean, common_dtype(p));
    invstd = in_dtype(invstd, common_dtype(p));
  }
  switch (p.kind) {
    case LayerNormKind::layer: {
      // It reads only the bias's sizes, for its gradient and the weight's.
      Tensor bias = !p.bias ? Tensor() : w.defined() ? w : at::empty({v.channels}, x.options());
      std::tie(dx, dw, dbias) = at::native_layer_norm_backward(
          dy, x, {v.channels}, with_unit_dim(mean, 1), with_unit_dim(invstd, 1), optional_of(w),
          optional_of(bias), mask);
      break;
    }
    case LayerNormKind::rms:
      std::tie(dx, dw) = rms_backward(p, dy, x, invstd.unsqueeze(1), w);
      break;
    case LayerNormKind::group: {
      // PyTorch makes the bias's gradient with the weight's options, and fails without a weight.
      mask[2] = mask[2] && mask[1];
      Dims sizes{v.batch, v.groups};
      auto [m, r] = cast({mean, invstd}, x.scalar_type());
      std::tie(dx, dw, dbias) =
          at::native_group_norm_backward(dy, x, m.view(sizes), r.view(sizes), optional_of(w),
                                         v.batch, v.channels, v.space, v.groups, mask);
      if (p.bias && !p.w) dbias = sum_of_channels(dy);
      break;
    }
    case LayerNormKind::instance: {
      Dims one{1, v.count(), v.space};
      std::tie(dx, dw, dbias) =
          at::native_batch_norm_backward(dy.reshape(one), x.reshape(one), repeated(w, v.batch), {},
                                         {}, mean, invstd, true, b.epsilon, mask);
      dx = dx.view(p.x.sizes);
      if (p.w) dw = dw.view({v.batch, v.channels}).sum(0);
      if (p.bias) dbias = dbias.view({v.batch, v.channels}).sum(0);
      break;
    }
  }
  give(b, Role::dx, p.x, dx);
  if (p.w) give(b, Role::dw, p.parameters(*p.w), dw);
  if (p.bias) give(b, Role::dbias, p.parameters(*p.bias), dbias);
}

BuildResult build_layer_norm_plan(const LayerNormProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    p.pass == Pass::fwd ? layer_norm_forward(p, b) : layer_norm_backward(p, b);
  });
}

const RegisterBackendOperator<LayerNormProblem> layer_norm_registered("aten",
                                                                      candidates<LayerNormProblem>,
                                                                      build_layer_norm_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
