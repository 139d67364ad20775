// The energy of a call: what a device takes over many calls, one after the other.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/device.h"

namespace torch_cudnn_ext {

// In millijoules, once for each window of half a second at least. `call` takes the device `ms`.
// Empty if the device does not tell, or its counter does not move.
inline std::vector<double> energy_of_calls(const Device& device, double ms,
                                           c10::function_ref<void()> call) {
  constexpr size_t kWindows = 3;
  constexpr double kWindowMs = 500, kBatchMs = 10, kLongestStepMs = 2000;
  const DeviceRuntime& runtime = runtime_of(device);
  const auto batch = std::max<int64_t>(1, std::llround(kBatchMs / ms));
  std::vector<double> found;
  std::optional<double> last = runtime.energy_mj(device);
  if (!last) return {};
  std::optional<double> begin;  // of the window. It lies, like its end, on a step of the counter
  int64_t calls = 0;            // since the begin
  int64_t unchanged = 0;        // calls since the last step
  while (found.size() < kWindows) {
    for (int64_t i = 0; i < batch; ++i) call();
    runtime.synchronize(device, "a measurement of energy");
    calls += batch;
    unchanged += batch;
    std::optional<double> now = runtime.energy_mj(device);
    if (!now) return {};
    if (now == last) {
      if (static_cast<double>(unchanged) * ms > kLongestStepMs) return {};
      continue;
    }
    last = now;
    unchanged = 0;
    bool is_whole = begin && static_cast<double>(calls) * ms >= kWindowMs;
    if (is_whole) found.push_back((*now - *begin) / static_cast<double>(calls));
    if (is_whole || !begin) {
      begin = now;
      calls = 0;
    }
  }
  return found;
}

}  // namespace torch_cudnn_ext
