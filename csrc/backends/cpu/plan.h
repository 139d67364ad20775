// What every family of the cpu backend shares: algorithms by name, without options. Knows no
// family.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"

namespace torch_cudnn_ext::cpu {

using Names = c10::ArrayRef<const char*>;  // in the order to try them

// nullopt if the algorithm is one of the names and the device is the CPU.
inline std::optional<Unsupported> why_unsupported(const Algorithm& algorithm, const Device& device,
                                                  Names names) {
  if (device.kind != Device::Kind::cpu) return Unsupported{"cpu runs on the CPU only"};
  std::string known;
  for (const char* name : names) {
    if (algorithm.options.empty() && algorithm.name == name) return std::nullopt;
    known += c10::str(known.empty() ? "" : " and ", "cpu:", name);
  }
  return Unsupported{c10::str("cpu has no ", algorithm.text(), ", only ", known)};
}

// Registers the cpu backend's algorithms of one family.
//   build  (p, algorithm) -> a plan, or why there is none; the algorithm is one of the names
template <class P, const auto& names, auto build>
RegisterBackendOperator<P> register_named() {
  auto candidates = [](const P&, const Device&) {
    std::vector<Candidate> list;
    for (const char* name : names) list.push_back({{"cpu", name, {}}, "enumeration"});
    return list;
  };
  auto build_plan = [](const P& p, const Algorithm& algorithm,
                       const Device& device) -> BuildResult {
    if (auto reason = why_unsupported(algorithm, device, names)) return *reason;
    return build(p, algorithm);
  };
  return {"cpu", candidates, build_plan};
}

}  // namespace torch_cudnn_ext::cpu
