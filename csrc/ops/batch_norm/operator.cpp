// What the core must know of batch normalisation.
#include "core/operator.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/tensors.h"
#include "ops/arguments.h"

namespace torch_cudnn_ext::batch_norm {
namespace {

Tensor broadcast(const Tensor& statistic) { return statistic.to(at::kDouble).view({1, -1, 1}); }

class BatchNormOperator : public OperatorOf<BatchNormProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnBatchNormalizationForwardTraining, "
        "cudnnBatchNormalizationForwardInference, cudnnBatchNormalizationBackward",
        "nchw, nhwc; any dimensions of space",
        "graph: no f64; spatial_persistent: training of f32 and narrower; per_activation: without "
        "space; backward of inference: aten and cpu alone; legacy adds z and relu separately",
        {"batch_norm_fwd x=f16[32,64,3136]:nhwc", "batch_norm_fwd x=f16[32,1000,1]:nchw"}};
  }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_BATCHNORM_PER_ACTIVATION", "per_activation", nullptr},
            {1, "CUDNN_BATCHNORM_SPATIAL", "spatial", nullptr},
            {2, "CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "spatial_persistent", nullptr}};
  }

  std::vector<SlotSpec> slots(const BatchNormProblem& p) const override {
    TensorSpec statistic = p.statistic();
    if (p.pass == BatchNormPass::bwd) {
      return {{Role::x, p.x, false},
              {Role::dy, p.x, false},
              {Role::w, statistic, false},
              {p.train ? Role::mean : Role::running_mean, statistic, false},
              {p.train ? Role::invstd : Role::running_var, statistic, false},
              {Role::dx, p.x, true},
              {Role::dw, statistic, true},
              {Role::dbias, statistic, true}};
    }
    bool training = p.pass == BatchNormPass::fwd;
    std::vector<SlotSpec> list{
        {Role::x, p.x, false}, {Role::w, statistic, false}, {Role::bias, statistic, false}};
    if (p.running || !training) {
      list.push_back({Role::running_mean, statistic, false, training});
      list.push_back({Role::running_var, statistic, false, training});
    }
    if (p.z) list.push_back({Role::z, p.x, false});
    list.push_back({Role::y, p.x, true});
    if (training) {
      list.push_back({Role::mean, statistic, true});
      list.push_back({Role::invstd, statistic, true});
    }
    return list;
  }

  Cost cost(const BatchNormProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double bytes = bytes_of(slots(p));
    // Sum, difference, square, sum; difference, two products, sum. Backward: two sums of products,
    // and as much again to put the gradient together.
    double flops = p.pass == BatchNormPass::infer ? 4 : p.pass == BatchNormPass::fwd ? 8 : 10;
    return {flops * elements, bytes, static_cast<double>(values_per_channel(p))};
  }

  // Data that is not centred, positive variances, and statistics as a forward leaves them.
  void prepare_scratch(const BatchNormProblem& p, Bindings& bindings) const override {
    Tensor& x = bindings[Role::x];
    x.add_(0.5);
    if (bindings[Role::running_var].defined()) bindings[Role::running_var].abs_().add_(0.5);
    if (p.pass != BatchNormPass::bwd || !p.train) return;
    Tensor values = x.to(at::kDouble), mean = mean_of_channels(values);
    bindings[Role::mean].copy_(mean);
    bindings[Role::invstd].copy_(
        (mean_of_channels((values - broadcast(mean)).square()) + bindings.epsilon).rsqrt());
  }

  Bindings reference(const BatchNormProblem& p, const Bindings& bindings) const override {
    return p.pass == BatchNormPass::bwd ? reference_backward(p, bindings)
                                        : reference_forward(p, bindings);
  }

  // Rounding of results, and of sums in float32 at least.
  double tolerance(const BatchNormProblem& p, const Notes&) const override {
    double rounded = 4 * epsilon_of(p.x.dtype) +
                     4 * epsilon_of(p.statistic_dtype()) * std::sqrt(cost(p).reduction_length);
    if (p.pass != BatchNormPass::bwd || !p.train) return rounded;
    return rounded * conditioning_of_norm(values_per_channel(p), 2);
  }

  // On an H200, ms for the forward and backward of 64x64x112x112: float32 nchw 0.197 and 0.349 with
  // the persistent kernels, 0.467 and 1.180 with PyTorch; nhwc 3 to 10 with the classic API, 0.165
  // and 0.258 with PyTorch. In bfloat16 nhwc the graph's first engine took 0.29 to 0.86 of
  // PyTorch's time for all 29 forwards of ResNet-50 and MobileNet-V3 in training, but 0.44 to 1.45
  // for their backwards. For float32 nchw both take the same time, but the classic API takes 5 to
  // 10 us of the host, PyTorch 11 to 26. For large inferences a single engine leads
  // (cudnn/engine_hints.cpp).
  std::vector<std::string> heuristic_order(const BatchNormProblem& p) const override {
    bool persistent =
        p.has_training_statistics() && !p.is_channels_last() && p.x.dtype != at::kDouble;
    bool half = c10::isReducedFloatingType(p.x.dtype);
    // For bfloat16 in rows of 49, which are not aligned, PyTorch's kernel took 0.74 to 0.96 of the
    // time with 512 to 2048 channels, 1.26 and more with fewer.
    bool odd = p.pass == BatchNormPass::bwd && p.x.dtype == at::kBFloat16 && p.x.sizes[1] >= 512 &&
               p.x.sizes[2] % 2 == 1 && p.x.sizes[2] < 64;
    if (persistent && p.x.sizes[2] > 1 && !odd) {
      return {"legacy:spatial_persistent", "aten", "legacy"};
    }
    if (p.pass == BatchNormPass::infer && p.x.sizes[2] > 1 && p.x.dtype != at::kDouble) {
      constexpr int64_t kSmall = 1 << 22;
      bool small = p.x.numel() <= kSmall;
      if (small || !p.is_channels_last()) return {"legacy:spatial", "aten", "graph"};
    }
    if (p.is_channels_last() && half && p.pass == BatchNormPass::fwd) {
      return {"graph", "aten", "legacy"};
    }
    if (p.is_channels_last()) return {"aten", "graph", "legacy"};
    return {"aten", "legacy", "graph"};
  }

 private:
  static int64_t values_per_channel(const BatchNormProblem& p) {
    return p.pass == BatchNormPass::infer ? 1 : p.x.sizes[0] * p.x.sizes[2];
  }

  static Bindings reference_forward(const BatchNormProblem& p, const Bindings& b) {
    Bindings out;
    Tensor x = b[Role::x].to(at::kDouble), mean, var;
    if (p.pass == BatchNormPass::infer) {
      mean = b[Role::running_mean].to(at::kDouble);
      var = b[Role::running_var].to(at::kDouble);
    } else {
      mean = mean_of_channels(x);
      var = mean_of_channels((x - broadcast(mean)).square());
      out[Role::mean] = mean;
      out[Role::invstd] = (var + b.epsilon).rsqrt();
    }
    if (p.running) {
      auto n = static_cast<double>(values_per_channel(p));
      Tensor unbiased = var * (n / (n - 1));
      double kept = 1 - b.momentum;
      out[Role::running_mean] = b[Role::running_mean].to(at::kDouble) * kept + mean * b.momentum;
      out[Role::running_var] = b[Role::running_var].to(at::kDouble) * kept + unbiased * b.momentum;
    }
    Tensor scale = (var + b.epsilon).rsqrt() * b[Role::w].to(at::kDouble);
    Tensor y = (x - broadcast(mean)) * broadcast(scale) + broadcast(b[Role::bias]);
    if (p.z) y = y + b[Role::z].to(at::kDouble);
    out[Role::y] = p.activation == Activation::relu ? y.relu() : y;
    return out;
  }

  static Bindings reference_backward(const BatchNormProblem& p, const Bindings& b) {
    Tensor dy = b[Role::dy].to(at::kDouble);
    Tensor mean = broadcast(b[p.train ? Role::mean : Role::running_mean]);
    Tensor invstd = p.train ? broadcast(b[Role::invstd])
                            : (broadcast(b[Role::running_var]) + b.epsilon).rsqrt();
    Tensor normal = (b[Role::x].to(at::kDouble) - mean) * invstd;
    Bindings out;
    out[Role::dbias] = sum_of_channels(dy);
    out[Role::dw] = sum_of_channels(dy * normal);
    Tensor dx = dy;
    if (p.train) {
      auto n = static_cast<double>(values_per_channel(p));
      dx = dy - broadcast(out[Role::dbias]) / n - normal * broadcast(out[Role::dw]) / n;
    }
    out[Role::dx] = dx * invstd * broadcast(b[Role::w]);
    return out;
  }
};

const RegisterOperator<BatchNormOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::batch_norm
