// How much of the user's autograd applies to work of our own.
#pragma once

#include <ATen/core/grad_mode.h>

#include <optional>

#include "torch/internals.h"

namespace torch_cudnn_ext {

// Hides tensors that are saved from the user's hooks, for graphs that do not outlive the guard.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() {
    if (SavedTensorHooks::get_tls_state().stack.empty()) return;
    before_ = SavedTensorHooks::get_tls_state();
    SavedTensorHooks::set_tls_state({});
  }
  ~NoSavedTensorHooks() {
    if (before_) SavedTensorHooks::set_tls_state(*before_);
  }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  std::optional<SavedTensorHooksState> before_;
};

// Turns autograd on as a user has it, for work that itself runs below autograd.
class AutogradGuard {
 public:
  AutogradGuard() : keys_(with_autograd()) {}

 private:
  static ThreadKeys with_autograd() {
    ThreadKeys keys = thread_keys();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }

  SetKeysGuard keys_;
  at::AutoGradMode on_{true};
};

}  // namespace torch_cudnn_ext
