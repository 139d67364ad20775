// What every operator of the cpu backend has: algorithms by name, without options, on the CPU.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <string>
#include <vector>

#include "core/backend.h"

namespace torch_cudnn_ext::cpu {

using Names = c10::ArrayRef<const char*>;  // in the order in which they are to be tried

inline std::vector<Candidate> candidates_of(Names names) {
  std::vector<Candidate> list;
  for (const char* name : names) list.push_back({{"cpu", name, {}}, "enumeration"});
  return list;
}

// nullopt where the algorithm can be had.
inline std::optional<Unsupported> refuse(const Algorithm& algorithm, const Device& device,
                                         Names names) {
  if (device.kind != Device::Kind::cpu) return Unsupported{"cpu runs on the CPU only"};
  std::string known;
  for (const char* name : names) {
    if (algorithm.options.empty() && algorithm.name == name) return std::nullopt;
    known += c10::str(known.empty() ? "" : " and ", "cpu:", name);
  }
  return Unsupported{c10::str("cpu has no ", algorithm.text(), ", only ", known)};
}

}  // namespace torch_cudnn_ext::cpu
