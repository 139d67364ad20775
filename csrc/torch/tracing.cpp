#include "torch/tracing.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace torch_cudnn_ext {

bool is_tracing() {
  using c10::impl::TorchDispatchModeKey;
  for (auto key : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY,
                   TorchDispatchModeKey::FUNCTIONAL}) {
    if (c10::impl::TorchDispatchModeTLS::get_mode(key)) return true;
  }
  return false;
}

}  // namespace torch_cudnn_ext
