#include "core/capability.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <string>

namespace torch_cudnn_ext {

namespace {

int (*capability_of_cuda)(int index) = nullptr;

}  // namespace

int capability_of(const Device& device) {
  if (device.is_target()) {
    return static_cast<int>(number_in_properties(device, "deviceVer").value_or(0) / 10);
  }
  bool known = device.is_cuda() && capability_of_cuda != nullptr;
  return known ? capability_of_cuda(device.index) : 0;
}

bool register_capability(int (*of_cuda)(int index)) {
  capability_of_cuda = of_cuda;
  return true;
}

std::optional<int64_t> number_in_properties(const Device& target, const char* name) {
  const std::string json = target_properties(target);
  const std::string key = c10::str('"', name, "\":");
  size_t found = json.find(key);
  if (found == std::string::npos) return std::nullopt;
  return std::strtoll(json.c_str() + found + key.size(), nullptr, 10);
}

}  // namespace torch_cudnn_ext
