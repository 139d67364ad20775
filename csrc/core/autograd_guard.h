// How much of the user's autograd applies to work of our own.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace torch_cudnn_ext {

// Hides tensors that are saved from the user's hooks, for graphs that do not outlive the guard.
class NoSavedTensorHooks {
 public:
  NoSavedTensorHooks() {
    if (Hooks::get_tls_state().stack.empty()) return;
    before_ = Hooks::get_tls_state();
    Hooks::set_tls_state({});
  }
  ~NoSavedTensorHooks() {
    if (before_) Hooks::set_tls_state(*before_);
  }
  NoSavedTensorHooks(const NoSavedTensorHooks&) = delete;
  NoSavedTensorHooks& operator=(const NoSavedTensorHooks&) = delete;

 private:
  using Hooks = at::SavedTensorDefaultHooks;
  std::optional<at::impl::SavedTensorDefaultHooksTLS> before_;
};

// Turns autograd on as a user has it, for work that itself runs below autograd.
class AutogradGuard {
 public:
  AutogradGuard() : keys_(with_autograd()) {}

 private:
  static c10::impl::LocalDispatchKeySet with_autograd() {
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }

  c10::impl::ForceDispatchKeyGuard keys_;
  at::AutoGradMode on_{true};
};

}  // namespace torch_cudnn_ext
