#include "core/tune/isolation.h"

#include <c10/util/StringUtil.h>

#include <atomic>
#include <utility>

#include "core/caution.h"

namespace torch_cudnn_ext {

namespace {

std::atomic<Isolation> isolation_setting{Isolation::automatic};

IsolatedMeasure& isolated_measure_function() {
  static auto* function = new IsolatedMeasure();
  return *function;
}

}  // namespace

void set_isolation(Isolation isolation) { isolation_setting = isolation; }

bool is_isolated(Isolation isolation, const Device& device) {
  if (isolation != Isolation::automatic) return isolation == Isolation::always;
  return !caution_for(device).empty();
}

void set_isolated_measure(IsolatedMeasure function) {
  isolated_measure_function() = std::move(function);
}

std::vector<Measurement> measure_where_set(const Problem& problem, const ResolvedPolicy& policy,
                                           const Device& device, const MeasureOptions& options) {
  if (!isolated_measure_function() || !is_isolated(isolation_setting, device)) {
    return measure(problem, policy, device, options);
  }
  // What this process has left to do on the device would be timed too, and the memory that it does
  // not use would lack.
  const DeviceRuntime& runtime = runtime_of(device);
  runtime.call_freely([&] {
    runtime.synchronize(device, c10::str("work before tuning ", problem_text(problem)));
    runtime.release_cached_memory(device);
  });
  return isolated_measure_function()(problem, policy, device, options);
}

}  // namespace torch_cudnn_ext
