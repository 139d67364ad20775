// Local response normalisation across channels and divisive normalisation through cuDNN's classic
// API, which has one algorithm for each.
#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"
#include "cuda/workspace.h"

namespace torch_cudnn_ext::legacy {
namespace {

using LrnDescriptor =
    Descriptor<cudnnLRNDescriptor_t, cudnnCreateLRNDescriptor, cudnnDestroyLRNDescriptor>;

// cuDNN documents both for float64, float32 and float16. bfloat16 is computed in float32.
LrnProblem as_computed(LrnProblem p) {
  if (p.x.dtype == at::kBFloat16) p.x.dtype = at::kFloat;
  return p;
}

bool reads_y(const LrnProblem& p) {
  return p.pass == Pass::bwd && p.kind == LrnKind::cross_channel;
}

class LrnPlan : public Plan {
 public:
  LrnPlan(const LrnProblem& p, const Algorithm& algorithm, Notes notes, int64_t own_bytes,
          int64_t copied_bytes)
      : Plan(algorithm, notes, own_bytes + copied_bytes),
        p_(as_computed(p)),
        given_(p.x),
        own_bytes_(own_bytes) {
    TensorSpec x = p_.x;
    if (p.kind == LrnKind::cross_channel) {
      x.sizes.push_back(1);  // cuDNN takes images
      x.strides.push_back(1);
    }
    set(x_, x);
    check_cudnn(
        cudnnSetLRNDescriptor(lrn_.get(), static_cast<unsigned>(p.size), p.alpha, p.beta, p.k),
        "cudnnSetLRNDescriptor");
  }

  void run(Bindings& b) override {
    if (p_.x.dtype == given_.dtype) return compute(b);
    Bindings wide;
    auto widen = [&](Role role) { wide[role] = b[role].to(p_.x.dtype); };
    widen(Role::x);
    if (p_.pass == Pass::bwd) widen(Role::dy);
    if (reads_y(p_)) widen(Role::y);
    compute(wide);
    Role result = p_.pass == Pass::fwd ? Role::y : Role::dx;
    output(b, result, given_, b[Role::x]);
    b[result].copy_(wide[result]);
  }

 private:
  void compute(Bindings& b) const {
    p_.kind == LrnKind::cross_channel ? run_cross_channel(b) : run_divisive(b);
  }

  void run_cross_channel(Bindings& b) const {
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    const at::Tensor& x = b[Role::x];
    if (p_.pass == Pass::fwd) {
      void* y = output(b, Role::y, p_.x, x);
      check_cudnn(cudnnLRNCrossChannelForward(cudnn_handle(), lrn_.get(),
                                              CUDNN_LRN_CROSS_CHANNEL_DIM1, one.get(), x_.get(),
                                              x.const_data_ptr(), zero.get(), x_.get(), y),
                  "cudnnLRNCrossChannelForward");
      return;
    }
    void* dx = output(b, Role::dx, p_.x, x);
    check_cudnn(cudnnLRNCrossChannelBackward(
                    cudnn_handle(), lrn_.get(), CUDNN_LRN_CROSS_CHANNEL_DIM1, one.get(), x_.get(),
                    b[Role::y].const_data_ptr(), x_.get(), b[Role::dy].const_data_ptr(), x_.get(),
                    x.const_data_ptr(), zero.get(), x_.get(), dx),
                "cudnnLRNCrossChannelBackward");
  }

  // build_plan() rejects means of the caller. The workspace is two tensors of x's size.
  void run_divisive(Bindings& b) const {
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    const at::Tensor& x = b[Role::x];
    auto workspace = allocate_workspace(own_bytes_);
    void* first = workspace.get();
    void* second = static_cast<char*>(first) + own_bytes_ / 2;
    if (p_.pass == Pass::fwd) {
      void* y = output(b, Role::y, p_.x, x);
      check_cudnn(cudnnDivisiveNormalizationForward(cudnn_handle(), lrn_.get(),
                                                    CUDNN_DIVNORM_PRECOMPUTED_MEANS, one.get(),
                                                    x_.get(), x.const_data_ptr(), nullptr, first,
                                                    second, zero.get(), x_.get(), y),
                  "cudnnDivisiveNormalizationForward");
      return;
    }
    void* dx = output(b, Role::dx, p_.x, x);
    check_cudnn(cudnnDivisiveNormalizationBackward(
                    cudnn_handle(), lrn_.get(), CUDNN_DIVNORM_PRECOMPUTED_MEANS, one.get(),
                    x_.get(), x.const_data_ptr(), nullptr, b[Role::dy].const_data_ptr(), first,
                    second, zero.get(), x_.get(), dx, nullptr),
                "cudnnDivisiveNormalizationBackward");
  }

  const LrnProblem p_;
  const TensorSpec given_;  // p_.x in the type of the data
  const int64_t own_bytes_;
  TensorDescriptor x_;
  LrnDescriptor lrn_;
};

const char* name_of(const LrnProblem& p) {
  return p.kind == LrnKind::divisive ? "precomputed_means" : "cross_channel";
}

std::vector<Candidate> lrn_candidates(const LrnProblem& p, const Device&) {
  return {{{"legacy", name_of(p), {}}, "enumeration"}};
}

BuildResult build_lrn_plan(const LrnProblem& p, const Algorithm& algorithm, const Device& device) {
  if (!algorithm.options.empty() || algorithm.name != name_of(p)) {
    return Unsupported{c10::str("legacy has no ", algorithm.text(),
                                " for this problem, only legacy:", name_of(p))};
  }
  if (p.size > CUDNN_LRN_MAX_N) {
    return Unsupported{
        c10::str("cuDNN's windows have 1 to ", CUDNN_LRN_MAX_N, " elements, not ", p.size)};
  }
  if (p.k < CUDNN_LRN_MIN_K || p.beta < CUDNN_LRN_MIN_BETA) {
    return Unsupported{c10::str("cuDNN takes k of at least ", CUDNN_LRN_MIN_K,
                                " and beta of at least ", CUDNN_LRN_MIN_BETA, ", not ", p.k,
                                " and ", p.beta)};
  }
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  bool even = p.size % 2 == 0;
  if (even && p.kind == LrnKind::cross_channel && p.window == LrnWindow::torch) {
    return Unsupported{c10::str(
        "before the middle of an even window, here ", p.size,
        ", cuDNN has the smaller half and PyTorch the larger one; window=cudnn asks for the "
        "former")};
  }
  if (p.means) {
    return Unsupported{
        "what cuDNN computes with means of its caller is different, and not documented"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  // Each of the two temporary tensors begins at a multiple of 256 bytes.
  int64_t bytes = as_computed(p).x.nbytes(), rounded = (bytes + 255) / 256 * 256;
  int64_t copies = p.x.dtype == at::kBFloat16 ? (p.pass == Pass::fwd ? 2 : 3 + reads_y(p)) : 0;
  Notes notes;
  add_notes_of_errata(notes, p, algorithm, device);
  return std::make_shared<LrnPlan>(p, algorithm, notes,
                                   p.kind == LrnKind::divisive ? 2 * rounded : 0, copies * bytes);
}

const RegisterBackendOperator<LrnProblem> lrn_registered("legacy", lrn_candidates, build_lrn_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
