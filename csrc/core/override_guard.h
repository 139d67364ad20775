// Keeps plans and references, which are made of PyTorch's operators, on PyTorch's own kernels while
// those operators are overridden by ours (overrides.h). Otherwise they would call themselves.
#pragma once

#include <utility>

namespace torch_cudnn_ext {

class OverrideGuard {
 public:
  OverrideGuard() : before_(std::exchange(on_, true)) {}
  ~OverrideGuard() { on_ = before_; }
  OverrideGuard(const OverrideGuard&) = delete;
  OverrideGuard& operator=(const OverrideGuard&) = delete;

  static bool is_on() { return on_; }

 private:
  static inline thread_local bool on_ = false;
  const bool before_;
};

}  // namespace torch_cudnn_ext
