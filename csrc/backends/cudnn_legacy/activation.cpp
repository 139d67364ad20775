// Activations through cuDNN's classic API: one algorithm each. They run in place if the output is
// the input.
#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"

namespace torch_cudnn_ext::legacy {
namespace {

using ActivationDescriptor =
    Descriptor<cudnnActivationDescriptor_t, cudnnCreateActivationDescriptor,
               cudnnDestroyActivationDescriptor>;

cudnnActivationMode_t activation_mode_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::relu:
      return CUDNN_ACTIVATION_RELU;
    case ActivationKind::clipped_relu:
      return CUDNN_ACTIVATION_CLIPPED_RELU;
    case ActivationKind::tanh:
      return CUDNN_ACTIVATION_TANH;
    case ActivationKind::sigmoid:
      return CUDNN_ACTIVATION_SIGMOID;
    case ActivationKind::elu:
      return CUDNN_ACTIVATION_ELU;
    case ActivationKind::swish:
      return CUDNN_ACTIVATION_SWISH;
  }
  TORCH_INTERNAL_ASSERT(false);
}

class ActivationPlan : public ReplayedPlan {
 public:
  ActivationPlan(const ActivationProblem& p, const Algorithm& algorithm)
      : ReplayedPlan(algorithm, {}, 0), p_(p) {
    set(x_, {p.x.dtype, {1, 1, 1, p.x.sizes[0]}, contiguous_strides({1, 1, 1, p.x.sizes[0]})});
    check_cudnn(cudnnSetActivationDescriptor(function_.get(), activation_mode_of(p.kind),
                                             CUDNN_PROPAGATE_NAN, p.coefficient),
                "cudnnSetActivationDescriptor");
    if (p.kind == ActivationKind::swish) {
      check_cudnn(cudnnSetActivationDescriptorSwishBeta(function_.get(), p.coefficient),
                  "cudnnSetActivationDescriptorSwishBeta");
    }
  }

  void run(Bindings& b) override {
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    if (p_.pass == Pass::fwd) {
      const at::Tensor& in = b[Role::x];
      void* y = output(b, Role::y, p_.x, in);
      replays_.run({in.const_data_ptr(), y}, b.replay, [&](const ReplayKey& at) {
        auto [x, y] = at.addresses<2>();
        check_cudnn(cudnnActivationForward(cudnn_handle(), function_.get(), one.get(), x_.get(), x,
                                           zero.get(), x_.get(), y),
                    "cudnnActivationForward");
      });
      return;
    }
    void* dx = output(b, Role::dx, p_.x, b[Role::y]);
    const void *y = b[Role::y].const_data_ptr(), *dy = b[Role::dy].const_data_ptr();
    // A gradient that y alone determines gets y in place of x, as after a forward in place.
    const void* x = p_.from_output ? y : b[Role::x].const_data_ptr();
    replays_.run({x, y, dy, dx}, b.replay, [&](const ReplayKey& at) {
      auto [x, y, dy, dx] = at.addresses<4>();
      check_cudnn(cudnnActivationBackward(cudnn_handle(), function_.get(), one.get(), x_.get(), y,
                                          x_.get(), dy, x_.get(), x, zero.get(), x_.get(), dx),
                  "cudnnActivationBackward");
    });
  }

 private:
  const ActivationProblem p_;
  TensorDescriptor x_;
  ActivationDescriptor function_;
};

BuildResult build_activation_plan(const ActivationProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (auto reason = why_not_default(algorithm)) return *reason;
  if (p.kind == ActivationKind::clipped_relu && p.pass == Pass::bwd && p.from_output) {
    return Unsupported{"cuDNN's gradient of a clipped ReLU reads its input"};
  }
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  if (auto reason = why_unsupported(device)) return *reason;
  return std::make_shared<ActivationPlan>(p, algorithm);
}

const RegisterBackendOperator<ActivationProblem> activation_registered(
    "legacy", only_default<ActivationProblem>, build_activation_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
