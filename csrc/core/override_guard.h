// While PyTorch's operators are overridden (overrides.h), what our plans and references are made of
// are PyTorch's own kernels all the same: otherwise they would run themselves.
#pragma once

namespace torch_cudnn_ext {

class OverrideGuard {
 public:
  OverrideGuard() : before_(on_) { on_ = true; }
  ~OverrideGuard() { on_ = before_; }
  OverrideGuard(const OverrideGuard&) = delete;
  OverrideGuard& operator=(const OverrideGuard&) = delete;

  static bool is_on() { return on_; }

 private:
  static inline thread_local bool on_ = false;
  const bool before_;
};

}  // namespace torch_cudnn_ext
