// What every family of the aten backend shares: the algorithm `aten:default`. Knows no family.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <vector>

#include "core/backend.h"
#include "core/policy/resolve.h"

namespace torch_cudnn_ext::aten {

using at::Tensor;

template <class P>
std::vector<Candidate> candidates(const P&, const Device&) {
  return {{kBaseline, "PyTorch"}};
}

inline Unsupported needs_device() { return {"aten runs only on a device that is present", true}; }

// nullopt if the algorithm is aten:default and the device is present.
inline std::optional<Unsupported> why_unsupported(const Algorithm& algorithm,
                                                  const Device& device) {
  if (algorithm != kBaseline) return Unsupported{c10::str("aten has no ", algorithm.text())};
  if (device.is_target()) return needs_device();
  return std::nullopt;
}

// Whether PyTorch's kernels for this kind of operation use TF32 on data of this type.
inline bool uses_tf32(at::Float32Op op, at::ScalarType data, const Device& device) {
  return device.is_cuda() && data == at::kFloat && is_tf32(op);
}

}  // namespace torch_cudnn_ext::aten
