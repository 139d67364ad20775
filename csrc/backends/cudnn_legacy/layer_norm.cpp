// Instance norm through cuDNN's classic API: a batch norm of one sample whose channels are those of
// all instances, with the parameters repeated. Group norm likewise, followed by its scale and
// shift.
#include "backends/cudnn_legacy/descriptor.h"
#include "backends/group_norm.h"
#include "core/backend.h"
#include "core/errata.h"

namespace torch_cudnn_ext::legacy {
namespace {

// The parameters of every channel, repeated for all instances, and their gradients.
int64_t repeated_bytes(const LayerNormProblem& p) {
  auto element = static_cast<int64_t>(c10::elementSize(p.statistics().dtype));
  return (p.pass == Pass::fwd ? 2 : 3) * p.view().count() * element;
}

class InstanceNormPlan : public Plan {
 public:
  InstanceNormPlan(const LayerNormProblem& p, const Algorithm& algorithm, Notes notes,
                   cudnnBatchNormMode_t mode)
      : Plan(algorithm, notes, repeated_bytes(p)), p_(p), mode_(mode) {
    auto v = p.view();
    int64_t channels = v.count();
    set(x_, {p.x.dtype, {1, channels, v.space, 1}, {channels * v.space, v.space, 1, 1}});
    set(parameters_, {p.statistics().dtype, {1, channels, 1, 1}, {channels, 1, 1, 1}});
  }

  void run(Bindings& b) override { p_.pass == Pass::fwd ? forward(b) : backward(b); }

 private:
  // In the statistics' dtype, in which cuDNN takes parameters.
  at::Tensor repeated(const at::Tensor& t, double otherwise, const at::Tensor& x) const {
    auto options = x.options().dtype(p_.statistics().dtype);
    if (!t.defined()) return at::full({p_.view().count()}, otherwise, options);
    return t.to(options.dtype()).repeat({p_.view().batch});
  }

  void forward(Bindings& b) const {
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    const at::Tensor& x = b[Role::x];
    at::Tensor scale = repeated(b[Role::w], 1, x), shift = repeated(b[Role::bias], 0, x);
    void* y = output(b, Role::y, p_.x, x);
    void* mean = p_.stats ? output(b, Role::mean, p_.statistics(), x) : nullptr;
    void* invstd = p_.stats ? output(b, Role::invstd, p_.statistics(), x) : nullptr;
    check_cudnn(cudnnBatchNormalizationForwardTraining(
                    cudnn_handle(), mode_, one.get(), zero.get(), x_.get(), x.const_data_ptr(),
                    x_.get(), y, parameters_.get(), scale.const_data_ptr(), shift.const_data_ptr(),
                    1, nullptr, nullptr, b.epsilon, mean, invstd),
                "cudnnBatchNormalizationForwardTraining");
  }

  void backward(Bindings& b) const {
    auto v = p_.view();
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    const at::Tensor& x = b[Role::x];
    at::Tensor scale = repeated(b[Role::w], 1, x);
    at::Tensor dscale = at::empty_like(scale), dshift = at::empty_like(scale);
    void* dx = output(b, Role::dx, p_.x, x);
    check_cudnn(cudnnBatchNormalizationBackward(
                    cudnn_handle(), mode_, one.get(), zero.get(), one.get(), zero.get(), x_.get(),
                    x.const_data_ptr(), x_.get(), b[Role::dy].const_data_ptr(), x_.get(), dx,
                    parameters_.get(), scale.const_data_ptr(), dscale.data_ptr(), dshift.data_ptr(),
                    b.epsilon, b[Role::mean].const_data_ptr(), b[Role::invstd].const_data_ptr()),
                "cudnnBatchNormalizationBackward");
    Dims instances{v.batch, v.channels};
    if (p_.w) give(b, Role::dw, p_.parameters(*p_.w), dscale.view(instances).sum(0).to(*p_.w));
    if (p_.bias) {
      give(b, Role::dbias, p_.parameters(*p_.bias), dshift.view(instances).sum(0).to(*p_.bias));
    }
  }

  const LayerNormProblem p_;
  const cudnnBatchNormMode_t mode_;
  TensorDescriptor x_, parameters_;
};

std::vector<Candidate> layer_norm_candidates(const LayerNormProblem&, const Device&) {
  return {{{"legacy", "spatial_persistent", {}}, "enumeration"},
          {{"legacy", "spatial", {}}, "enumeration"}};
}

BuildResult build_layer_norm_plan(const LayerNormProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (!algorithm.options.empty()) return Unsupported{"norms have no options"};
  if (p.kind == LayerNormKind::layer || p.kind == LayerNormKind::rms) {
    return Unsupported{"the classic API has no layer norm and no RMS norm"};
  }
  if (p.x.strides != contiguous_strides(p.x.sizes)) {
    return Unsupported{
        "the classic API knows instance norm as a batch norm of channels side by side, which those "
        "of several nhwc tensors are not"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  if (p.kind == LayerNormKind::group) {
    BuildResult built = build_layer_norm_plan(instances_of_groups(p), algorithm, device);
    if (auto* unsupported = std::get_if<Unsupported>(&built)) return *unsupported;
    return std::make_shared<GroupNormPlan>(p, std::get<std::shared_ptr<Plan>>(built));
  }
  std::string reason = too_many_channels(p.view().count());
  if (!reason.empty()) return Unsupported{reason};
  bool persistent = algorithm.name == "spatial_persistent";
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  Notes notes;
  add_notes_of_errata(notes, p, algorithm, device);
  return std::make_shared<InstanceNormPlan>(
      p, algorithm, notes,
      persistent ? CUDNN_BATCHNORM_SPATIAL_PERSISTENT : CUDNN_BATCHNORM_SPATIAL);
}

const RegisterBackendOperator<LayerNormProblem> layer_norm_registered("legacy",
                                                                      layer_norm_candidates,
                                                                      build_layer_norm_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
