// Softmax through cuDNN's classic API: fast (no maximum is subtracted) and accurate.
#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"

namespace torch_cudnn_ext::legacy {
namespace {

class SoftmaxPlan : public ReplayedPlan {
 public:
  SoftmaxPlan(const SoftmaxProblem& p, const Algorithm& algorithm, Notes notes,
              cudnnSoftmaxAlgorithm_t value)
      : ReplayedPlan(algorithm, notes, 0), p_(p), value_(value) {
    // The sum runs over the channels of an image. If the image has one pixel, the instance mode
    // sums the same.
    const Dims& n = p.x.sizes;
    set(x_, {p.x.dtype, {n[0], n[1], n[2], 1}, {n[1] * n[2], n[2], 1, 1}});
    mode_ = n[2] == 1 ? CUDNN_SOFTMAX_MODE_INSTANCE : CUDNN_SOFTMAX_MODE_CHANNEL;
  }

  void run(Bindings& b) override {
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    if (p_.pass == Pass::fwd) {
      const at::Tensor& in = b[Role::x];
      void* y = output(b, Role::y, p_.x, in);
      replays_.run({in.const_data_ptr(), y}, b.replay, [&](const ReplayKey& at) {
        auto [x, y] = at.addresses<2>();
        check_cudnn(cudnnSoftmaxForward(cudnn_handle(), value_, mode_, one.get(), x_.get(), x,
                                        zero.get(), x_.get(), y),
                    "cudnnSoftmaxForward");
      });
      return;
    }
    void* dx = output(b, Role::dx, p_.x, b[Role::y]);
    const void *y = b[Role::y].const_data_ptr(), *dy = b[Role::dy].const_data_ptr();
    replays_.run({y, dy, dx}, b.replay, [&](const ReplayKey& at) {
      auto [y, dy, dx] = at.addresses<3>();
      check_cudnn(cudnnSoftmaxBackward(cudnn_handle(), value_, mode_, one.get(), x_.get(), y,
                                       x_.get(), dy, zero.get(), x_.get(), dx),
                  "cudnnSoftmaxBackward");
    });
  }

 private:
  const SoftmaxProblem p_;
  const cudnnSoftmaxAlgorithm_t value_;
  cudnnSoftmaxMode_t mode_;
  TensorDescriptor x_;
};

std::vector<Candidate> softmax_candidates(const SoftmaxProblem&, const Device&) {
  return {{{"legacy", "accurate", {}}, "enumeration"}, {{"legacy", "fast", {}}, "enumeration"}};
}

BuildResult build_softmax_plan(const SoftmaxProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  if (!algorithm.options.empty()) return Unsupported{"softmax has no options"};
  if (p.log && algorithm.name == "fast") {
    return Unsupported{"cuDNN has one algorithm for log-softmax, legacy:accurate"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  bool fast = algorithm.name == "fast";
  Notes notes;
  // The fast algorithm subtracts no maximum, so its exponentials overflow. Gradients compute no
  // exponentials.
  if (p.pass == Pass::fwd && fast) notes.add(Note::reduced_range);
  add_notes_of_errata(notes, p, algorithm, device);
  if (p.log) return std::make_shared<SoftmaxPlan>(p, algorithm, notes, CUDNN_SOFTMAX_LOG);
  return std::make_shared<SoftmaxPlan>(p, algorithm, notes,
                                       fast ? CUDNN_SOFTMAX_FAST : CUDNN_SOFTMAX_ACCURATE);
}

const RegisterBackendOperator<SoftmaxProblem> softmax_registered("legacy", softmax_candidates,
                                                                 build_softmax_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
