// What a policy says: which algorithm each pass of each operator runs, and the constraints.
// Knows nothing of the levels that policies come from (levels.h).
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithm.h"
#include "core/device.h"
#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// What a policy says for one pass of one operator.
struct Selection {
  // tuned: as autotune, but nothing is measured in a call unless on_miss says so. guess_once and
  // time_once are for modules, which keep their first decision. Operators raise.
  enum class Kind : uint8_t { heuristic, autotune, tuned, pinned, guess_once, time_once };
  Kind kind = Kind::heuristic;
  Algorithm algorithm;  // if pinned

  bool is_once() const { return kind == Kind::guess_once || kind == Kind::time_once; }
  std::string text() const;  // in policy_text.cpp
};

// How tuning ranks. `time` is the longer of the device's and the host's, `gpu_time` the device's.
enum class Prefer : uint8_t { time, gpu_time, memory, energy };
// Whether calls of cuDNN are recorded and repeated without it (core/plan.h).
enum class ReplayMode : uint8_t { off, graphs, kernels };
enum class OnUnsupported : uint8_t { error, warn, fallback };
// What runs if nothing was tuned for a problem that is to be tuned. record: the heuristic's
// algorithm, and the tuning store keeps the problem's line.
enum class OnMiss : uint8_t { autotune, heuristic, nearest, record, error };
enum class Compute : uint8_t { as_input, as_input_f32, f16, f32, f64 };

// The type of accumulation by the type of the data.
struct ComputeByType {
  static constexpr std::array<c10::ScalarType, 4> kTypes{
      c10::ScalarType::Half, c10::ScalarType::BFloat16, c10::ScalarType::Float,
      c10::ScalarType::Double};
  std::array<std::optional<Compute>, kTypes.size()> values;  // in the order of kTypes

  std::optional<Compute> of(c10::ScalarType data) const;
  bool is_set() const;
};

struct Policy {
  std::map<std::string, Selection> selections;  // by operator and pass: "conv_fwd"
  std::optional<int64_t> max_workspace_bytes;
  std::string_view max_workspace_unit;          // "MiB" if the text gave the bytes in it; may be ""
  std::optional<double> max_workspace_percent;  // of the device's memory
  std::optional<bool> deterministic, allow_tf32, allow_down_convert, allow_reduced_range;
  std::optional<bool> benchmark, fastest;
  std::optional<Prefer> prefer;
  std::optional<ReplayMode> replay;
  std::optional<OnUnsupported> on_unsupported;
  std::optional<OnMiss> on_miss;
  std::optional<std::vector<std::string>> backends;
  ComputeByType compute;

  // The canonical text, in policy_text.cpp. Passes of `family` are written without its name.
  std::string text(const std::string& family) const;
  // The text of the fields that decide which algorithms are admissible and how they are ranked.
  // Equal constraints have equal texts.
  std::string constraints_text(const Problem& problem) const;
  // Whether these constraints are equal to others, or admit more: a larger workspace, more backends
  // or algorithms that are not deterministic. A ranking under them holds for the others then, less
  // what the others exclude.
  bool admits_all_of(const Policy& others) const;
  // The smaller of the caps in bytes and in percent.
  std::optional<int64_t> workspace_cap(const Device& device) const;
  bool admits_backend(const std::string& name) const;
  Replay replay_of_calls() const;  // as calls ask for it; none if nothing is said
  // Whether a pin that cannot run may give way to another algorithm.
  bool may_fall_back() const {
    return on_unsupported.value_or(OnUnsupported::error) != OnUnsupported::error;
  }
};

// The fields that are true or false, in the order of a text.
struct BooleanField {
  const char* name;
  std::optional<bool> Policy::* value;
};
inline constexpr BooleanField kBooleanFields[] = {
    {"deterministic", &Policy::deterministic},
    {"allow_tf32", &Policy::allow_tf32},
    {"allow_down_convert", &Policy::allow_down_convert},
    {"allow_reduced_range", &Policy::allow_reduced_range},
    {"benchmark", &Policy::benchmark},
    {"fastest", &Policy::fastest}};

}  // namespace torch_cudnn_ext
