// What a thread may call while streams are captured.
#pragma once

#include <cuda_runtime_api.h>

namespace torch_cudnn_ext {

// Sets the mode of this thread, whichever thread captures. Does not throw.
class CaptureMode {
 public:
  explicit CaptureMode(cudaStreamCaptureMode mode) : mode_(mode) {
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~CaptureMode() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureMode(const CaptureMode&) = delete;
  CaptureMode& operator=(const CaptureMode&) = delete;

 private:
  cudaStreamCaptureMode mode_;
};

}  // namespace torch_cudnn_ext
