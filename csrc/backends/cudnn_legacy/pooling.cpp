// Pooling through cuDNN's classic API. Sums are averages times what they were divided by.
#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"

namespace torch_cudnn_ext::legacy {
namespace {

using PoolingDescriptor = Descriptor<cudnnPoolingDescriptor_t, cudnnCreatePoolingDescriptor,
                                     cudnnDestroyPoolingDescriptor>;

struct PoolingDescriptors {
  TensorDescriptor x, y;
  PoolingDescriptor pooling;
};

class PoolingPlan : public ReplayedPlan {
 public:
  PoolingPlan(const PoolingProblem& p, const Algorithm& algorithm, Notes notes,
              std::unique_ptr<PoolingDescriptors> descriptors)
      : ReplayedPlan(algorithm, notes, 0), p_(p), y_(p.y()), d_(std::move(descriptors)) {
    if (p.mode == PoolingMode::sum) {
      factor_ = static_cast<double>(p.window_volume()) / static_cast<double>(p.divisor);
    }
  }

  void run(Bindings& b) override {
    Scale alpha(factor_, p_.x.dtype), zero(0, p_.x.dtype);
    if (p_.pass == Pass::fwd) {
      const at::Tensor& x = b[Role::x];
      void* y = output(b, Role::y, y_, x);
      replays_.run({x.const_data_ptr(), y}, b.replay, [&](const ReplayKey& at) {
        auto [in, out] = at.addresses<2>();
        check_cudnn(cudnnPoolingForward(cudnn_handle(), d_->pooling.get(), alpha.get(), d_->x.get(),
                                        in, zero.get(), d_->y.get(), out),
                    "cudnnPoolingForward");
      });
      return;
    }
    void* dx = output(b, Role::dx, p_.x, b[Role::dy]);
    const void* dy = b[Role::dy].const_data_ptr();
    // An average does not read what was averaged: any memory of the right sizes will do.
    bool is_max = p_.mode == PoolingMode::max;
    const void* x = is_max ? b[Role::x].const_data_ptr() : dx;
    const void* y = is_max ? b[Role::y].const_data_ptr() : dy;
    replays_.run({x, y, dy, dx}, b.replay, [&](const ReplayKey& at) {
      auto [x, y, dy, dx] = at.addresses<4>();
      check_cudnn(
          cudnnPoolingBackward(cudnn_handle(), d_->pooling.get(), alpha.get(), d_->y.get(), y,
                               d_->y.get(), dy, d_->x.get(), x, zero.get(), d_->x.get(), dx),
          "cudnnPoolingBackward");
    });
  }

 private:
  const PoolingProblem p_;
  const TensorSpec y_;
  const std::unique_ptr<PoolingDescriptors> d_;
  double factor_ = 1;
};

// Empty if cuDNN's windows can be the problem's.
std::string why_not(const PoolingProblem& p, const Algorithm& algorithm) {
  bool is_max = p.mode == PoolingMode::max;
  bool known = algorithm.name == "max" || algorithm.name == "max_deterministic";
  if (!known && algorithm.name != "avg") {
    return c10::str("pooling has no ", algorithm.text(),
                    ", only legacy:max, legacy:max_deterministic and legacy:avg");
  }
  if (known != is_max) {
    return c10::str(algorithm.text(), is_max ? " averages, and mode is max"
                                             : " takes the maximum, and mode is an average or sum");
  }
  if (p.adaptive) return "the output's sizes do not divide the input's: windows differ in size";
  if (p.ceil) {
    return "the classic API pads symmetrically and rounds sizes down, but ceil mode adds a window "
           "here";
  }
  if (p.dilation != Dims(p.spatial_dims(), 1)) return "cuDNN's windows have no dilation";
  if (p.spatial_dims() == 3 && p.x.strides != contiguous_strides(p.x.sizes)) {
    return "the classic API pools volumes of contiguous tensors only";
  }
  return "";
}

cudnnPoolingMode_t pooling_mode_of(const PoolingProblem& p, const Algorithm& algorithm) {
  if (algorithm.name == "max") return CUDNN_POOLING_MAX;
  if (algorithm.name == "max_deterministic") return CUDNN_POOLING_MAX_DETERMINISTIC;
  return p.mode == PoolingMode::avg_exclude ? CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING
                                            : CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
}

std::vector<Candidate> pooling_candidates(const PoolingProblem& p, const Device&) {
  if (p.mode != PoolingMode::max) return {{{"legacy", "avg", {}}, "enumeration"}};
  return {{{"legacy", "max", {}}, "enumeration"},
          {{"legacy", "max_deterministic", {}}, "enumeration"}};
}

BuildResult build_pooling_plan(const PoolingProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  if (!algorithm.options.empty()) return Unsupported{"pooling has no options"};
  std::string reason = why_not(p, algorithm);
  if (!reason.empty()) return Unsupported{reason};
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  if (auto reason = why_unsupported(device)) return *reason;
  auto d = std::make_unique<PoolingDescriptors>();
  TensorSpec y = p.y();
  set(d->x, p.x);
  set(d->y, y);
  cudnnStatus_t status = cudnnSetPoolingNdDescriptor(
      d->pooling.get(), pooling_mode_of(p, algorithm), CUDNN_PROPAGATE_NAN, p.spatial_dims(),
      as_ints(p.window).data(), as_ints(p.padding).data(), as_ints(p.stride).data());
  std::vector<int> sizes(y.sizes.size());
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnGetPoolingNdForwardOutputDim(d->pooling.get(), d->x.get(), y.sizes.size(),
                                               sizes.data());
  }
  check_cudnn_files_once();
  if (status != CUDNN_STATUS_SUCCESS) return unsupported(status, cudnn_status_text(status));
  if (sizes != as_ints(y.sizes)) {
    return Unsupported{c10::str("cuDNN's result would have sizes ", c10::Join(",", sizes))};
  }
  Notes notes;
  if (p.pass == Pass::bwd && algorithm.name == "max") notes.add(Note::nondeterministic);
  add_notes_of_errata(notes, p, algorithm, device);
  return std::make_shared<PoolingPlan>(p, algorithm, notes, std::move(d));
}

const RegisterBackendOperator<PoolingProblem> pooling_registered("legacy", pooling_candidates,
                                                                 build_pooling_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
