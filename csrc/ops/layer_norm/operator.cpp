// What the core must know of layer, RMS, instance and group norm.
#include "core/operator.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>

#include "ops/layer_norm/layer_norm.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

class LayerNormOperator : public OperatorOf<LayerNormProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnBatchNormalizationForwardTraining, "
        "cudnnBatchNormalizationBackward",
        "layer, rms: contiguous rows; instance: nchw, nhwc; group: nchw",
        "graph: no f64; legacy: instance and group norms of nchw; group norm has no engine of its "
        "own: an instance norm of groups",
        {"layer_norm_fwd x=f16[4096,1024]:nchw kind=layer w=f16 bias=f16",
         "layer_norm_fwd x=f16[32,64,3136]:nchw kind=instance w=f16 bias=f16"}};
  }

  // Those of instance and group norm, as batch norms of one sample.
  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{1, "CUDNN_BATCHNORM_SPATIAL", "spatial", nullptr},
            {2, "CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "spatial_persistent", nullptr}};
  }

  std::vector<SlotSpec> slots(const LayerNormProblem& p) const override {
    bool forward = p.pass == Pass::fwd;
    std::vector<SlotSpec> slots{{Role::x, p.x, false}};
    if (!forward) slots.push_back({Role::dy, p.x, false});
    if (p.w) slots.push_back({Role::w, p.parameters(*p.w), false});
    if (forward && p.bias) slots.push_back({Role::bias, p.parameters(*p.bias), false});
    slots.push_back({forward ? Role::y : Role::dx, p.x, true});
    if (p.stats && p.has_mean()) slots.push_back({Role::mean, p.statistics(), forward});
    if (p.stats) slots.push_back({Role::invstd, p.statistics(), forward});
    if (!forward && p.w) slots.push_back({Role::dw, p.parameters(*p.w), true});
    if (!forward && p.bias) slots.push_back({Role::dbias, p.parameters(*p.bias), true});
    return slots;
  }

  Cost cost(const LayerNormProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double bytes = bytes_of(slots(p));
    bool forward = p.pass == Pass::fwd;
    // Sum, centred square, its sum, scale and shift; about twice that for a gradient.
    auto v = p.view();
    int64_t length = forward ? v.length() : std::max(v.length(), v.batch * v.space);
    return {(forward ? 6 : 12) * elements, bytes, static_cast<double>(length)};
  }

  // A gradient takes statistics as a forward leaves them.
  void prepare_scratch(const LayerNormProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    Normalised n = normalised_in_double(p, bindings);
    if (p.has_mean()) bindings[Role::mean].copy_(n.mean.flatten());
    bindings[Role::invstd].copy_(n.invstd.flatten());
  }

  Bindings reference(const LayerNormProblem& p, const Bindings& bindings) const override {
    const Tensor &x = bindings[Role::x], &w = bindings[Role::w], &bias = bindings[Role::bias];
    Bindings out;
    if (p.pass == Pass::bwd) {
      auto results =
          gradients(p.kind, bindings[Role::dy], x, w, p.groups, bindings.epsilon, at::kDouble);
      out[Role::dx] = results[0];
      if (p.w) out[Role::dw] = results[1];
      if (p.bias) out[Role::dbias] = results[2];
      return out;
    }
    SymView v = view_of(p.kind, x, p.groups);
    Normalised n = normalised_in_double(p, bindings);
    Tensor y = n.x;
    if (p.w) y = y * parameter_viewed(w.to(at::kDouble), v);
    if (p.bias) y = y + parameter_viewed(bias.to(at::kDouble), v);
    out[Role::y] = y.reshape(p.x.sizes);
    if (p.stats && p.has_mean()) out[Role::mean] = n.mean.flatten();
    if (p.stats) out[Role::invstd] = n.invstd.flatten();
    return out;
  }

  // Rounding of statistics, which PyTorch keeps in the data's type on the CPU, of a separate affine
  // step, and of sums in float32 at least.
  double tolerance(const LayerNormProblem& p, const Notes&) const override {
    double rounded = 8 * epsilon_of(p.x.dtype) +
                     4 * epsilon_of(compute_dtype(p.x.dtype)) * std::sqrt(cost(p).reduction_length);
    if (p.pass == Pass::fwd) return rounded;
    return rounded * conditioning_of_norm(p.view().length(), p.has_mean() ? 2 : 1);
  }

  // PyTorch's own kernels read each row once. Its instance norm is cuDNN's batch norm with copies,
  // or a kernel of its own for few instances. That kernel's gradients took 0.74 of the time on an
  // H100 for rows below 16384 (geometric mean of 539), and 1.1 times as long for longer ones (of
  // 70).
  std::vector<std::string> heuristic_order(const LayerNormProblem& p) const override {
    bool plain = p.kind == LayerNormKind::instance && p.x.strides == contiguous_strides(p.x.sizes);
    bool short_rows = c10::multiply_integers(p.x.sizes.begin() + 2, p.x.sizes.end()) < 16384;
    if (!plain || (p.pass == Pass::bwd && short_rows)) return {"aten", "graph", "legacy"};
    return {"legacy:spatial_persistent", "legacy:spatial", "aten"};
  }

 private:
  static Normalised normalised_in_double(const LayerNormProblem& p, const Bindings& bindings) {
    const Tensor& x = bindings[Role::x];
    SymView v = view_of(p.kind, x, p.groups);
    return normalise(p.kind, viewed(x.to(at::kDouble), v), bindings.epsilon);
  }
};

const RegisterOperator<LayerNormOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::layer_norm
