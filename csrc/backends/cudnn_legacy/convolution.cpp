// Convolution through cuDNN's classic API: every algorithm of a pass with every math type.
#include <c10/util/StringUtil.h>

#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"
#include "core/operator.h"
#include "cuda/workspace.h"
#include "cudnn/problems.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {
namespace legacy {
namespace {

class ConvolutionPlan : public ReplayedPlan {
 public:
  struct Descriptors {
    TensorDescriptor x, y;
    FilterDescriptor w;
    ConvolutionDescriptor convolution;
  };

  ConvolutionPlan(const ConvolutionProblem& p, Algorithm algorithm, Notes notes, size_t workspace,
                  std::unique_ptr<Descriptors> descriptors, int value)
      : ReplayedPlan(std::move(algorithm), notes, static_cast<int64_t>(workspace)),
        p_(p),
        d_(std::move(descriptors)),
        value_(value),
        workspace_(workspace) {}

  void run(Bindings& b) override {
    c10::DataPtr workspace;
    Role role = result_role(p_.pass);
    const Tensor& like = b[role == Role::y ? Role::x : Role::y];
    output(b, role, p_.result(), like);
    if (workspace_ > 0) {
      workspace = allocate_workspace(workspace_);
    }
    Scale alpha_scale(b.alpha, p_.x.dtype), beta_scale(b.beta, p_.x.dtype);
    const void *alpha = alpha_scale.get(), *beta = beta_scale.get();
    auto address = [&](Role r) {
      const Tensor& t = b[r];
      return r == role ? t.data_ptr() : const_cast<void*>(t.const_data_ptr());
    };
    void *x = address(Role::x), *w = address(Role::w), *y = address(Role::y);
    ReplayKey key{x, w, y, workspace.get()};
    key.push(b.alpha);
    key.push(b.beta);
    replays_.run(key, b.replay, [&](const ReplayKey& at) {
      auto [x, w, y, space] = at.addresses<4>();
      cudnnHandle_t handle = cudnn_handle();
      switch (p_.pass) {
        case ConvolutionPass::fwd:
          check_cudnn(cudnnConvolutionForward(handle, alpha, d_->x.get(), x, d_->w.get(), w,
                                              d_->convolution.get(),
                                              static_cast<cudnnConvolutionFwdAlgo_t>(value_), space,
                                              workspace_, beta, d_->y.get(), y),
                      "cudnnConvolutionForward");
          break;
        case ConvolutionPass::bwd_data:
          check_cudnn(cudnnConvolutionBackwardData(
                          handle, alpha, d_->w.get(), w, d_->y.get(), y, d_->convolution.get(),
                          static_cast<cudnnConvolutionBwdDataAlgo_t>(value_), space, workspace_,
                          beta, d_->x.get(), x),
                      "cudnnConvolutionBackwardData");
          break;
        case ConvolutionPass::bwd_filter:
          check_cudnn(cudnnConvolutionBackwardFilter(
                          handle, alpha, d_->x.get(), x, d_->y.get(), y, d_->convolution.get(),
                          static_cast<cudnnConvolutionBwdFilterAlgo_t>(value_), space, workspace_,
                          beta, d_->w.get(), w),
                      "cudnnConvolutionBackwardFilter");
          break;
      }
    });
    add_epilogue(p_, b[Role::y], b);
  }

 private:
  using Tensor = at::Tensor;
  const ConvolutionProblem p_;
  const std::unique_ptr<Descriptors> d_;
  const int value_;
  const size_t workspace_;
};

// The classic API does not report an algorithm's properties, so they are written down here. cuDNN's
// documentation of the two backward enumerations says which ones are not deterministic. A math type
// other than FMA may use TF32 for float32 data.
Notes convolution_notes_of(const ConvolutionProblem& p, int value, const Algorithm& algorithm,
                           const MathType& math, const Device& device) {
  const std::string& name = algorithm.name;
  Notes notes;
  bool adds_atomically =
      (p.pass == ConvolutionPass::bwd_data && value == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0) ||
      (p.pass == ConvolutionPass::bwd_filter && (value == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 ||
                                                 value == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3));
  if (adds_atomically) notes.add(Note::nondeterministic);
  if (name.rfind("winograd", 0) == 0) notes.add(Note::winograd);
  if (name.rfind("fft", 0) == 0) notes.add(Note::fft);
  if (p.x.dtype == at::kFloat && math.value != CUDNN_FMA_MATH) {
    notes.add(Note::tf32);
    if (math.value == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) notes.add(Note::down_convert);
  }
  add_notes_of_errata(notes, p, algorithm, device);
  return notes;
}

cudnnStatus_t workspace_of(const ConvolutionProblem& p, const ConvolutionPlan::Descriptors& d,
                           int value, size_t* bytes) {
  cudnnHandle_t handle = cudnn_handle();
  switch (p.pass) {
    case ConvolutionPass::fwd:
      return cudnnGetConvolutionForwardWorkspaceSize(
          handle, d.x.get(), d.w.get(), d.convolution.get(), d.y.get(),
          static_cast<cudnnConvolutionFwdAlgo_t>(value), bytes);
    case ConvolutionPass::bwd_data:
      return cudnnGetConvolutionBackwardDataWorkspaceSize(
          handle, d.w.get(), d.y.get(), d.convolution.get(), d.x.get(),
          static_cast<cudnnConvolutionBwdDataAlgo_t>(value), bytes);
    case ConvolutionPass::bwd_filter:
      return cudnnGetConvolutionBackwardFilterWorkspaceSize(
          handle, d.x.get(), d.y.get(), d.convolution.get(), d.w.get(),
          static_cast<cudnnConvolutionBwdFilterAlgo_t>(value), bytes);
  }
  return CUDNN_STATUS_BAD_PARAM;
}

std::vector<Candidate> convolution_candidates(const ConvolutionProblem& p, const Device&) {
  std::vector<Candidate> list;
  const LegacyName* last = nullptr;
  std::vector<LegacyName> names = operator_of(p).legacy_names(pass_of(p));
  for (const LegacyName& name : names) {
    if (last != nullptr && last->value == name.value) continue;
    last = &name;
    for (const MathType& math : kMathTypes) {
      // No tensor cores and nothing to convert: the math types of float64 are one.
      if (p.x.dtype == at::kDouble && math.value != CUDNN_DEFAULT_MATH) continue;
      list.push_back({{"legacy", name.name, {{"math", math.text}}}, "enumeration"});
    }
  }
  return list;
}

BuildResult build_convolution_plan(const ConvolutionProblem& problem, const Algorithm& algorithm,
                                   const Device& device) {
  const MathType* math = find_math(algorithm);
  if (math == nullptr) return Unsupported{algorithm.text() + " has no math type"};
  if (auto reason = why_unsupported(device)) return *reason;
  std::optional<int> value = find_value(problem, algorithm);
  if (!value) return Unsupported{c10::str("no algorithm ", algorithm.name, " in this pass")};
  ConvolutionProblem p = lift_to_plane(problem);
  if (!is_packed(p.w)) return Unsupported{"filters of the classic API are nchw or nhwc"};
  auto format = is_channels_last(p.w) ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  auto d = std::make_unique<ConvolutionPlan::Descriptors>();
  set(d->x, p.x);
  set(d->y, p.y);
  cudnnStatus_t status = cudnnSetFilterNdDescriptor(d->w.get(), cudnn_type(p.w.dtype), format,
                                                    p.w.sizes.size(), as_ints(p.w.sizes).data());
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnSetConvolutionNdDescriptor(
        d->convolution.get(), p.spatial_dims(), as_ints(p.padding).data(), as_ints(p.stride).data(),
        as_ints(p.dilation).data(),
        p.mode == ConvolutionMode::conv ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION,
        cudnn_type(p.compute));
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnSetConvolutionMathType(d->convolution.get(),
                                         static_cast<cudnnMathType_t>(math->value));
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnSetConvolutionGroupCount(d->convolution.get(), static_cast<int>(p.groups));
  }
  size_t workspace = 0;
  if (status == CUDNN_STATUS_SUCCESS) status = workspace_of(p, *d, *value, &workspace);
  check_cudnn_files_once();
  if (status != CUDNN_STATUS_SUCCESS) return unsupported(status, cudnn_status_text(status));
  return std::make_shared<ConvolutionPlan>(
      problem, algorithm, convolution_notes_of(p, *value, algorithm, *math, device), workspace,
      std::move(d), *value);
}

const RegisterBackendOperator<ConvolutionProblem> convolution_registered("legacy",
                                                                         convolution_candidates,
                                                                         build_convolution_plan);

}  // namespace
}  // namespace legacy
}  // namespace torch_cudnn_ext
