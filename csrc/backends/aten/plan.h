// What every operator of the aten backend has: the algorithm `aten:default`, on a device that is
// there.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/policy.h"

namespace torch_cudnn_ext::aten {

using at::Tensor;

template <class P>
std::vector<Candidate> candidates(const P&, const Device&) {
  return {{kBaseline, "PyTorch"}};
}

inline Unsupported needs_device() { return {"aten runs on a device that is there", true}; }

// nullopt where aten:default can be had.
inline std::optional<Unsupported> refuse(const Algorithm& algorithm, const Device& device) {
  if (algorithm != kBaseline) {
    return Unsupported{c10::str("aten has no ", algorithm.text(), ", only aten:default")};
  }
  if (device.is_target()) return needs_device();
  return std::nullopt;
}

// nullopt where PyTorch lets products of matrices run. cuBLAS is deterministic only where its
// environment says so, and PyTorch raises elsewhere, when it was asked for deterministic
// algorithms.
inline std::optional<Unsupported> refuse_products(const Device& device) {
  const at::Context& context = at::globalContext();
  bool demands = device.is_cuda() && context.deterministicAlgorithms() &&
                 !context.deterministicAlgorithmsWarnOnly();
  if (!demands || cublas_repeats()) return std::nullopt;
  return Unsupported{
      "torch.use_deterministic_algorithms lets products run on CUDA where the environment has "
      "CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8"};
}

inline BuildResult make_plan(const Algorithm& algorithm, Notes notes, FunctionPlan::Body body) {
  return std::make_shared<FunctionPlan>(algorithm, notes, std::nullopt, std::move(body));
}

}  // namespace torch_cudnn_ext::aten
