#pragma once

#include <cuda_runtime_api.h>

namespace torch_cudnn_ext {

// What this thread may call while streams are captured, on this thread or another. Does not throw.
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
