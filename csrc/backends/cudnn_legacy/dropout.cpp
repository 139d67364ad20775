// Dropout through cuDNN's classic API, with cuDNN's own random numbers. Streams and threads share
// no state.
#include <c10/cuda/CUDACachingAllocator.h>

#include <utility>

#include "backends/cudnn_legacy/random.h"
#include "core/backend.h"
#include "core/tensors.h"

namespace torch_cudnn_ext::legacy {
namespace {

// cuDNN's tensors have at least four dimensions.
TensorSpec as_plane(const TensorSpec& x) {
  int64_t n = x.numel();
  return {x.dtype, {1, 1, 1, n}, {n, n, n, 1}};
}

class DropoutPlan : public Plan {
 public:
  DropoutPlan(const DropoutProblem& p, const Algorithm& algorithm, int64_t states_bytes,
              int64_t reserve_bytes)
      : Plan(algorithm, {}, states_bytes + (p.train ? 0 : reserve_bytes)),
        p_(p),
        states_bytes_(states_bytes),
        reserve_{at::kByte, {reserve_bytes}, {1}} {
    set(x_, as_plane(p.x));
  }

  void run(Bindings& b) override {
    c10::DataPtr states = c10::cuda::CUDACachingAllocator::get()->allocate(states_bytes_);
    if (p_.pass == Pass::bwd) {
      const at::Tensor &dy = b[Role::dy], &reserve = b[Role::reserve];
      check_reserve("dropout", algorithm, reserve, reserve_.nbytes());
      // Backward draws nothing: the states may hold anything.
      check_cudnn(
          cudnnRestoreDropoutDescriptor(dropout_.get(), cudnn_handle(), static_cast<float>(p_.p),
                                        states.get(), states_bytes_, 0),
          "cudnnRestoreDropoutDescriptor");
      void* dx = output(b, Role::dx, p_.x, dy);
      check_cudnn(
          cudnnDropoutBackward(cudnn_handle(), dropout_.get(), x_.get(), dy.const_data_ptr(),
                               x_.get(), dx, reserve.mutable_data_ptr(), reserve.nbytes()),
          "cudnnDropoutBackward");
      return;
    }
    const at::Tensor& x = b[Role::x];
    Device device = device_of(x.device());
    TORCH_CHECK(!runtime_of(device).is_capturing(device),
                "dropout: legacy:default sets its random states up from PyTorch's generator, which "
                "cannot be read while the stream is being captured into a CUDA graph; "
                "aten:default can be captured");
    check_cudnn(cudnnSetDropoutDescriptor(dropout_.get(), cudnn_handle(), static_cast<float>(p_.p),
                                          states.get(), states_bytes_, draw_seed(x)),
                "cudnnSetDropoutDescriptor");
    void* y = output(b, Role::y, p_.x, x);
    at::Tensor reserve = empty_on_cuda(reserve_, x);
    check_cudnn(cudnnDropoutForward(cudnn_handle(), dropout_.get(), x_.get(), x.const_data_ptr(),
                                    x_.get(), y, reserve.mutable_data_ptr(), reserve.nbytes()),
                "cudnnDropoutForward");
    if (p_.train) b[Role::reserve] = std::move(reserve);
  }

 private:
  const DropoutProblem p_;
  const size_t states_bytes_;
  const TensorSpec reserve_;
  TensorDescriptor x_;
  DropoutDescriptor dropout_;
};

BuildResult build_dropout_plan(const DropoutProblem& p, const Algorithm& algorithm,
                               const Device& device) {
  if (auto reason = why_not_default(algorithm)) return *reason;
  if (p.rng == RandomStream::philox) {
    return Unsupported{"the mask must come from PyTorch's generator (rng=philox)"};
  }
  if (p.x.dtype == c10::ScalarType::BFloat16) {
    return Unsupported{"cuDNN's dropout takes f32, f64 and f16, not bf16"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  TensorDescriptor x;
  set(x, as_plane(p.x));
  size_t states_bytes = 0, reserve_bytes = 0;
  check_cudnn(cudnnDropoutGetStatesSize(cudnn_handle(), &states_bytes),
              "cudnnDropoutGetStatesSize");
  check_cudnn(cudnnDropoutGetReserveSpaceSize(x.get(), &reserve_bytes),
              "cudnnDropoutGetReserveSpaceSize");
  return std::make_shared<DropoutPlan>(p, algorithm, static_cast<int64_t>(states_bytes),
                                       static_cast<int64_t>(reserve_bytes));
}

const RegisterBackendOperator<DropoutProblem> dropout_registered("legacy",
                                                                 only_default<DropoutProblem>,
                                                                 build_dropout_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
