// Autocast of operators that compute in the lower type, as PyTorch's own convolutions and recurrent
// networks do. Knows no operator.
#pragma once

#include <ATen/autocast_mode.h>

#include <tuple>

#include "ops/call.h"

namespace torch_cudnn_ext {

// Calls the operator with all tensors cast.
template <c10::DeviceType device, class Args>
typename Args::Result autocast(const Args& args) {
  BelowAutocast below(device);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  return std::apply(
      [&](auto&... a) {
        return op_of<Args>().call(at::autocast::cached_cast(dtype, a, device)...);
      },
      args.tied());
}

}  // namespace torch_cudnn_ext
