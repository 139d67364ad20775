// Where candidates are measured: in this process, or in another one, which a bad algorithm may
// cost. Knows neither processes nor Python: a function that is set from outside measures there.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/enum_text.h"
#include "core/tune/measure.h"

namespace torch_cudnn_ext {

// automatic: in another process if the device is a GPU that was not verified.
enum class Isolation : uint8_t { automatic, always, never };
inline constexpr EnumName<Isolation> kIsolations[] = {
    {Isolation::automatic, "auto"}, {Isolation::always, "always"}, {Isolation::never, "never"}};

// The setting for calls that tune.
void set_isolation(Isolation isolation);
bool is_isolated(Isolation isolation, const Device& device);

// Thrown if the other process cannot measure: it does not start, or too many algorithms cost it.
struct IsolationFailure : c10::Error {
  using Error::Error;
};

using IsolatedMeasure = std::function<std::vector<Measurement>(
    const Problem&, const ResolvedPolicy&, const Device&, const MeasureOptions&)>;
void set_isolated_measure(IsolatedMeasure function);

// measure(), in the process that the setting says.
std::vector<Measurement> measure_where_set(const Problem& problem, const ResolvedPolicy& policy,
                                           const Device& device, const MeasureOptions& options);

}  // namespace torch_cudnn_ext
