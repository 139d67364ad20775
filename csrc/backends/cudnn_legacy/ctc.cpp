// The CTC loss through cuDNN's classic API: deterministic, or not.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"
#include "cuda/workspace.h"

namespace torch_cudnn_ext::legacy {
namespace {

using at::Tensor;
using CtcDescriptor = Descriptor<cudnnCTCLossDescriptor_t, cudnnCreateCTCLossDescriptor,
                                 cudnnDestroyCTCLossDescriptor>;

// cuDNN takes targets one after another without padding. The lengths are in host memory, so the
// labels' positions are known without a wait for the device.
Tensor packed_labels(const Tensor& targets, const Tensor& lengths) {
  Tensor position = at::arange(targets.size(1), lengths.options());
  Tensor index = (position < lengths.unsqueeze(1)).flatten().nonzero().squeeze(1);
  return targets.flatten().index_select(0, index.to(targets.device())).to(at::kInt);
}

// [N]: whether a target holds the blank, class 0.
Tensor holds_blank(const Tensor& targets, const Tensor& lengths) {
  Tensor ends = lengths.to(targets.device()).unsqueeze(1);
  Tensor is_label = at::arange(targets.size(1), targets.options()) < ends;
  return targets.eq(0).logical_and_(is_label).any(1);
}

struct Workarounds {
  int64_t labels;  // what cuDNN is told of the longest target
  bool hides_blanks;
};

class CtcPlan : public Plan {
 public:
  CtcPlan(const CtcProblem& p, const Algorithm& algorithm, Notes notes, cudnnCTCLossAlgo_t value,
          const Workarounds& workarounds)
      : CtcPlan(p, algorithm, notes, value, workarounds.hides_blanks,
                std::make_unique<Descriptors>(p, workarounds.labels)) {}

  void run(Bindings& b) override {
    const Tensor &x = b[Role::x], &targets = b[Role::targets];
    Tensor labels = packed_labels(targets, b[Role::target_lengths]);
    if (hides_blanks_) labels.clamp_min_(1);
    Tensor lengths =
        at::stack({b[Role::target_lengths], b[Role::input_lengths]}).to(at::kInt).to(x.device());
    void* losses = output(b, Role::y, {p_.log_probs.dtype, {p_.log_probs.sizes[1]}, {1}}, x);
    void* gradient = p_.gradient ? output(b, Role::dx, p_.log_probs, x) : nullptr;
    // After the end of a shorter input cuDNN does not write the gradient.
    if (gradient != nullptr && p_.lengths != CtcLengths::full) b[Role::dx].zero_();
    auto size = static_cast<size_t>(*workspace_bytes);
    c10::DataPtr workspace = allocate_workspace(size);
    const int* target_lengths = lengths.const_data_ptr<int>();
    check_cudnn(cudnnCTCLoss_v8(cudnn_handle(), value_, d_->ctc.get(), d_->probs.get(),
                                x.const_data_ptr(), labels.const_data_ptr<int>(), target_lengths,
                                target_lengths + p_.log_probs.sizes[1], losses, gradients(p_, *d_),
                                gradient, size, workspace.get()),
                "cudnnCTCLoss_v8");
    if (!hides_blanks_) return;
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    Tensor wrong = holds_blank(targets, b[Role::target_lengths]);
    b[Role::y].masked_fill_(wrong, kNaN);
    if (gradient != nullptr) b[Role::dx].masked_fill_(wrong.view({1, wrong.numel(), 1}), kNaN);
  }

 private:
  struct Descriptors {
    Descriptors(const CtcProblem& p, int64_t labels) {
      set(probs, p.log_probs);
      // The softmax of logarithms of probabilities is the probabilities.
      check_cudnn(cudnnSetCTCLossDescriptor_v9(
                      ctc.get(), CUDNN_DATA_FLOAT, CUDNN_LOSS_NORMALIZATION_SOFTMAX,
                      CUDNN_CTC_ZERO_OOB_GRADIENTS, static_cast<int>(labels)),
                  "cudnnSetCTCLossDescriptor_v9");
    }
    TensorDescriptor probs;
    CtcDescriptor ctc;
  };

  CtcPlan(const CtcProblem& p, const Algorithm& algorithm, Notes notes, cudnnCTCLossAlgo_t value,
          bool hides_blanks, std::unique_ptr<Descriptors> d)
      : Plan(algorithm, notes, workspace_of(p, value, *d)),
        p_(p),
        value_(value),
        hides_blanks_(hides_blanks),
        d_(std::move(d)) {}

  static cudnnTensorDescriptor_t gradients(const CtcProblem& p, const Descriptors& d) {
    return p.gradient ? d.probs.get() : nullptr;
  }
  static int64_t workspace_of(const CtcProblem& p, cudnnCTCLossAlgo_t value, const Descriptors& d) {
    size_t bytes = 0;
    check_cudnn(cudnnGetCTCLossWorkspaceSize_v8(cudnn_handle(), value, d.ctc.get(), d.probs.get(),
                                                gradients(p, d), &bytes),
                "cudnnGetCTCLossWorkspaceSize_v8");
    return static_cast<int64_t>(bytes);
  }

  const CtcProblem p_;
  const cudnnCTCLossAlgo_t value_;
  const bool hides_blanks_;
  const std::unique_ptr<Descriptors> d_;
};

BuildResult build_ctc_plan(const CtcProblem& p, const Algorithm& algorithm, const Device& device) {
  if (!algorithm.options.empty()) return Unsupported{"ctc has no options"};
  if (p.log_probs.dtype != c10::ScalarType::Float) return Unsupported{"cuDNN's CTC loss is f32"};
  if (p.blank != 0) return Unsupported{"cuDNN's blank is class 0"};
  if (p.log_probs.sizes[2] < 2) return Unsupported{"cuDNN needs a class other than the blank"};
  // A target that does not fit has an infinite loss, which cuDNN does not give; PyTorch's
  // developers saw cuDNN read out of bounds then.
  if (p.lengths == CtcLengths::irregular) {
    return Unsupported{
        "cuDNN takes targets that are not empty and, with a blank between any two labels, no "
        "longer than their inputs"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  bool deterministic = algorithm.name == "deterministic";
  Notes notes;
  if (!deterministic) notes.add(Note::nondeterministic);
  add_notes_of_errata(notes, p, algorithm, device);
  constexpr int64_t kEnoughLabels = 5;
  bool few = erratum_applies("ctc-few-labels", p, algorithm, device);
  Workarounds workarounds{
      few ? std::max(p.target_length, kEnoughLabels) : p.target_length,
      erratum_applies("ctc-blank-labels", p, algorithm, device),
  };
  return std::make_shared<CtcPlan>(
      p, algorithm, notes,
      deterministic ? CUDNN_CTC_LOSS_ALGO_DETERMINISTIC : CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC,
      workarounds);
}

const RegisterBackendOperator<CtcProblem> ctc_registered("legacy", every_name<CtcProblem>,
                                                         build_ctc_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
