// Batch normalisation through cuDNN's classic API. spatial_persistent is faster in nchw; its sums
// of scaled integers limit the range of values, but PyTorch takes it for channels_last training, so
// no policy has to allow it. per_activation computes the same as spatial if there is no space.
#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/operator.h"

namespace torch_cudnn_ext::legacy {
namespace {

class BatchNormPlan : public ReplayedPlan {
 public:
  BatchNormPlan(const BatchNormProblem& p, const Algorithm& algorithm, cudnnBatchNormMode_t mode)
      : ReplayedPlan(algorithm, {}, 0), p_(p), mode_(mode) {
    set(x_, p.image(p.x.dtype));
    check_cudnn(cudnnDeriveBNTensorDescriptor(statistic_.get(), x_.get(), mode),
                "cudnnDeriveBNTensorDescriptor");
  }

  void run(Bindings& b) override {
    switch (p_.pass) {
      case BatchNormPass::fwd:
        train(b);
        return finish(b);
      case BatchNormPass::infer:
        infer(b);
        return finish(b);
      case BatchNormPass::bwd:
        return backward(b);
    }
  }

 private:
  void train(Bindings& b) {
    const at::Tensor& x = b[Role::x];
    TensorSpec statistic = p_.statistic();
    void* y = output(b, Role::y, p_.x, x);
    void* mean = output(b, Role::mean, statistic, x);
    void* invstd = output(b, Role::invstd, statistic, x);
    void* running_mean = p_.running ? b[Role::running_mean].data_ptr() : nullptr;
    void* running_var = p_.running ? b[Role::running_var].data_ptr() : nullptr;
    const void *image = x.const_data_ptr(), *w = b[Role::w].const_data_ptr();
    const void* bias = b[Role::bias].const_data_ptr();
    ReplayKey key{image, y, w, bias, running_mean, running_var, mean, invstd};
    key.push(b.momentum);
    key.push(b.epsilon);
    replays_.run(key, b.replay, [&](const ReplayKey& at) {
      auto [image, y, w, bias, running_mean, running_var, mean, invstd] = at.addresses<8>();
      check_cudnn(cudnnBatchNormalizationForwardTraining(
                      cudnn_handle(), mode_, one_.get(), zero_.get(), x_.get(), image, x_.get(), y,
                      statistic_.get(), w, bias, b.momentum, running_mean, running_var, b.epsilon,
                      mean, invstd),
                  "cudnnBatchNormalizationForwardTraining");
    });
  }

  void infer(Bindings& b) {
    const at::Tensor& x = b[Role::x];
    void* y = output(b, Role::y, p_.x, x);
    const void *image = x.const_data_ptr(), *w = b[Role::w].const_data_ptr();
    const void* bias = b[Role::bias].const_data_ptr();
    const void* mean = b[Role::running_mean].const_data_ptr();
    const void* var = b[Role::running_var].const_data_ptr();
    ReplayKey key{image, y, w, bias, mean, var};
    key.push(b.epsilon);
    replays_.run(key, b.replay, [&](const ReplayKey& at) {
      auto [image, y, w, bias, mean, var] = at.addresses<6>();
      check_cudnn(cudnnBatchNormalizationForwardInference(
                      cudnn_handle(), mode_, one_.get(), zero_.get(), x_.get(), image, x_.get(), y,
                      statistic_.get(), w, bias, mean, var, b.epsilon),
                  "cudnnBatchNormalizationForwardInference");
    });
  }

  // cuDNN fuses these for channels_last only, with a reserve that would tie backward to it.
  void finish(Bindings& b) {
    if (p_.z) b[Role::y].add_(b[Role::z]);
    if (p_.activation == Activation::relu) b[Role::y].relu_();
  }

  void backward(Bindings& b) {
    const at::Tensor& x = b[Role::x];
    TensorSpec statistic = p_.statistic();
    void* dx = output(b, Role::dx, p_.x, x);
    void* dw = output(b, Role::dw, statistic, x);
    void* dbias = output(b, Role::dbias, statistic, x);
    const void *image = x.const_data_ptr(), *dy = b[Role::dy].const_data_ptr();
    const void *w = b[Role::w].const_data_ptr(), *mean = b[Role::mean].const_data_ptr();
    const void* invstd = b[Role::invstd].const_data_ptr();
    ReplayKey key{image, dy, dx, w, dw, dbias, mean, invstd};
    key.push(b.epsilon);
    replays_.run(key, b.replay, [&](const ReplayKey& at) {
      auto [image, dy, dx, w, dw, dbias, mean, invstd] = at.addresses<8>();
      check_cudnn(cudnnBatchNormalizationBackward(cudnn_handle(), mode_, one_.get(), zero_.get(),
                                                  one_.get(), zero_.get(), x_.get(), image,
                                                  x_.get(), dy, x_.get(), dx, statistic_.get(), w,
                                                  dw, dbias, b.epsilon, mean, invstd),
                  "cudnnBatchNormalizationBackward");
    });
  }

  const BatchNormProblem p_;
  const cudnnBatchNormMode_t mode_;
  const Scale one_{1, p_.x.dtype}, zero_{0, p_.x.dtype};
  TensorDescriptor x_, statistic_;
};

// Grids of larger launches would not fit; PyTorch found these bounds.
std::string over_the_limit(const BatchNormProblem& p, bool per_activation) {
  bool infer = p.pass == BatchNormPass::infer;
  int64_t most = infer ? 65535 : 880801;
  if (per_activation) most = infer ? 262136 : 131070;
  if (p.x.sizes[0] > most) return c10::str("cuDNN takes at most ", most, " samples in this mode");
  return per_activation || infer ? "" : too_many_channels(p.x.sizes[1]);
}

BuildResult build_batch_norm_plan(const BatchNormProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (!algorithm.options.empty()) return Unsupported{"batch_norm has no options"};
  if (p.pass == BatchNormPass::bwd && !p.train) {
    return Unsupported{
        "cuDNN's backward is that of training; no entry takes statistics that were kept"};
  }
  std::optional<int> value = find_value(p, algorithm);
  if (!value) return Unsupported{c10::str("batch_norm has no ", algorithm.text())};
  auto mode = static_cast<cudnnBatchNormMode_t>(*value);
  bool persistent = mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT;
  bool per_activation = mode == CUDNN_BATCHNORM_PER_ACTIVATION;
  if (per_activation && p.x.sizes[2] > 1) {
    return Unsupported{"the statistics of this problem are over space too"};
  }
  if (persistent && p.pass == BatchNormPass::infer) {
    return Unsupported{"inference computes no statistics, there it is legacy:spatial"};
  }
  if (persistent && p.x.dtype == at::kDouble) {
    return Unsupported{"cuDNN has it for float32 and smaller; for float64 it is legacy:spatial"};
  }
  if (std::string reason = over_the_limit(p, per_activation); !reason.empty()) {
    return Unsupported{reason};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  return std::make_shared<BatchNormPlan>(p, algorithm, mode);
}

const RegisterBackendOperator<BatchNormProblem> batch_norm_registered("legacy",
                                                                      every_name<BatchNormProblem>,
                                                                      build_batch_norm_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
