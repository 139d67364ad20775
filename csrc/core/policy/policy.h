// How to choose: per operator and pass a pin, autotune or heuristic, and the constraints that hold
// for all. Levels (argument, flags, knobs, PyTorch's switches) are merged here and nowhere else.
#pragma once

#include <ATen/Context.h>

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

struct Selection {
  // The two *_once are state of a module; an operator refuses them.
  enum class Kind : uint8_t { heuristic, autotune, pinned, guess_once, time_once };
  Kind kind = Kind::heuristic;
  Algorithm algorithm;  // when pinned
  std::string text() const;
};

// time: the device's or the host's, whichever is longer; gpu_time: the device's alone.
enum class Prefer : uint8_t { time, gpu_time, memory };
enum class OnUnsupported : uint8_t { error, warn, fallback };
enum class Compute : uint8_t { as_input, as_input_f32, f16, f32, f64 };

// The type of accumulation by the type of the data. One word in a policy text sets it for all
// types.
struct ComputeByType {
  static constexpr std::array<c10::ScalarType, 4> kTypes{
      c10::ScalarType::Half, c10::ScalarType::BFloat16, c10::ScalarType::Float,
      c10::ScalarType::Double};
  std::array<std::optional<Compute>, kTypes.size()> values;  // in the order of kTypes

  std::optional<Compute> of(c10::ScalarType data) const {
    for (size_t i = 0; i < kTypes.size(); ++i) {
      if (kTypes[i] == data) return values[i];
    }
    return std::nullopt;
  }
  bool is_set() const {
    for (const auto& value : values) {
      if (value) return true;
    }
    return false;
  }
};

struct Policy {
  std::map<std::string, Selection> choices;  // by operator and pass: "conv_fwd"
  std::optional<int64_t> max_workspace_bytes;
  std::string_view max_workspace_unit;          // in which it was given ("MiB"), if in one
  std::optional<double> max_workspace_percent;  // of the device's memory
  std::optional<bool> deterministic, allow_tf32, allow_down_convert, allow_reduced_range;
  std::optional<bool> benchmark, fastest;
  std::optional<Prefer> prefer;
  std::optional<OnUnsupported> on_unsupported;
  std::optional<std::vector<std::string>> backends;
  ComputeByType compute;

  // Canonical; passes of `family` are written without its name.
  std::string text(const std::string& family) const;
  // The fields that decide which candidates are admitted and how they are ranked, as text.
  std::string constraints_text(const Problem& problem) const;
  std::optional<int64_t> workspace_cap(const Device& device) const;
  bool admits_backend(const std::string& name) const;
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

Policy parse_policy(std::string_view text, const std::string& family);  // throws ValueError
// A word that stands for all passes otherwise is the choice of one operator and pass here.
Policy parse_policy_of(const std::string& op, std::string_view text);  // throws ValueError
// Field by field the stronger wins, but of `deterministic` and `max_workspace` the strictest.
Policy merge(const Policy& stronger, const Policy& weaker);
// One level over another, to whose choices its `fastest` leaves nothing; `fastest=false` takes back
// what that of the other says.
Policy apply_level(const Policy& stronger, Policy weaker);

// What PyTorch's own switches say at this moment, as bits.
struct Switches {
  static constexpr uint8_t kDeterministic = 1, kAllowTf32 = 2, kBenchmark = 4, kCudnnEnabled = 8;
  // Of products of matrices, which convolutions may be; PyTorch refuses what is not deterministic.
  static constexpr uint8_t kTf32Products = 16, kStrict = 32;
  uint8_t bits = 0;
  bool has(uint8_t bit) const { return (bits & bit) != 0; }
};
Switches read_switches(std::string_view family);
// Whether PyTorch's switch lets this kind of operation use TF32 on CUDA.
bool is_tf32(at::Float32Op op);

// All levels in one, interned: two equal ones are the same object, which is never freed.
struct ResolvedPolicy {
  Policy policy;
  Policy argument;  // what was asked for at the call; rules by problem are weaker than this alone
  Policy enabled;   // what enable() says: its autotune is no demand at this call
  std::string text;
  std::string saved;  // as an argument this gives the same policy at any later time, on any thread
  Switches switches;
  // Only switches of PyTorch's ask for determinism that let its own kernels be where there is none:
  // cudnn.deterministic, or use_deterministic_algorithms with warn_only.
  bool baseline_may_be_nondeterministic = false;
  int64_t id;
};
const ResolvedPolicy& resolve_policy(std::string_view family,
                                     std::optional<std::string_view> argument);
// The argument and PyTorch's switches, whatever threads, the process and enable() say.
const ResolvedPolicy& resolve_alone(const std::string& family, std::string_view argument);
// The same with rules for one problem, which are stronger than all but the argument.
const ResolvedPolicy& add_level(const ResolvedPolicy& resolved, const Policy& rules,
                                std::string_view family);

// `saved`, with more asked for at the call, such as an algorithm that another pass ran.
std::string saved_with(const ResolvedPolicy& resolved, const Policy& more, std::string_view family);

void set_enabled_policy(Policy policy);  // stronger than what threads and the process say
Policy enabled_policy();
void set_process_policy(Policy policy);
// A level of this thread, by an id of its own; levels may end in any order.
uint64_t push_thread_policy(const Policy& policy);
void pop_thread_policy(uint64_t id);

// Grows when rules or the choice table change, and when decisions begin to be printed; decisions
// made before are made again. A policy that changes is another one, with decisions of its own.
uint64_t decision_generation();
void next_decision_generation();

bool verbose();
void set_verbose(bool on);

}  // namespace torch_cudnn_ext
