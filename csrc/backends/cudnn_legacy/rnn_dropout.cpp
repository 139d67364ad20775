#include "backends/cudnn_legacy/rnn_dropout.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <map>

#include "cuda/workspace.h"

namespace torch_cudnn_ext::legacy {

namespace {

bool is_capturing(c10::Device device) {
  return runtime_of(device_of(device)).is_capturing(device_of(device));
}

}  // namespace

// Some megabytes that cuDNN draws from.
struct RandomStates {
  RandomStates(int64_t bytes, c10::Device device)
      : buffer(at::empty({bytes}, at::TensorOptions(at::kByte).device(device))),
        stream(at::cuda::getCurrentCUDAStream(device.index())) {
    // After what used this memory before; a capture waits for nothing outside of it.
    if (!is_capturing(device)) last_use.record(stream);
  }

  at::Tensor buffer;
  const at::cuda::CUDAStream stream;  // that the buffer is freed on
  bool are_filled = false;
  at::cuda::CUDAEvent last_use;
};

namespace {

// All plans of this thread share the states, since each forward fills them anew.
std::shared_ptr<RandomStates> random_states(size_t bytes, c10::Device device) {
  static thread_local std::map<c10::DeviceIndex, std::weak_ptr<RandomStates>> by_device;
  std::weak_ptr<RandomStates>& known = by_device[device.index()];
  std::shared_ptr<RandomStates> states = known.lock();
  if (states == nullptr) {
    states = std::make_shared<RandomStates>(static_cast<int64_t>(bytes), device);
    known = states;
  }
  return states;
}

}  // namespace

cudnnStatus_t RnnDropout::set(double probability, c10::Device device) {
  probability_ = static_cast<float>(probability);
  if (probability == 0) {
    return cudnnSetDropoutDescriptor(descriptor_.get(), cudnn_handle(), 0, nullptr, 0, 0);
  }
  size_t bytes = 0;
  cudnnStatus_t status = cudnnDropoutGetStatesSize(cudnn_handle(), &bytes);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  states_ = random_states(bytes, device);
  return cudnnRestoreDropoutDescriptor(descriptor_.get(), cudnn_handle(), probability_,
                                       states_->buffer.data_ptr(), bytes, 0);
}

void RnnDropout::prepare() {
  if (states_ == nullptr) return;
  c10::Device device = states_->buffer.device();
  if (is_capturing(device)) {
    TORCH_CHECK(states_->are_filled,
                "rnn: dropout first runs while the stream is being captured into a CUDA graph; run "
                "it once before capturing");
    retain_until_exit(states_);  // a graph may be replayed when this plan is gone
    return;
  }
  // Another stream may still use the states, or what lay in their memory.
  states_->last_use.block(at::cuda::getCurrentCUDAStream(device.index()));
  check_cudnn(cudnnSetDropoutDescriptor(descriptor_.get(), cudnn_handle(), probability_,
                                        states_->buffer.data_ptr(), states_->buffer.nbytes(),
                                        draw_seed(states_->buffer)),
              "cudnnSetDropoutDescriptor");
  states_->are_filled = true;
}

void RnnDropout::used() {
  if (states_ == nullptr) return;
  c10::Device device = states_->buffer.device();
  if (is_capturing(device)) return;
  at::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream(device.index());
  states_->last_use.record(stream);
  if (stream != states_->stream) {
    c10::cuda::CUDACachingAllocator::recordStream(states_->buffer.storage().data_ptr(), stream);
  }
}

}  // namespace torch_cudnn_ext::legacy
