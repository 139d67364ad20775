// The levels that a policy comes from, the strongest first: the call, rules by problem (rules.h),
// enable(), the thread, the process with its environment, PyTorch's switches (resolve.h).
// Keeps those between rules and switches, and says how two levels become one.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/policy/policy.h"

namespace torch_cudnn_ext {

// Field by field the stronger holds, except that of `deterministic` and `max_workspace` the
// stricter holds.
Policy merge(const Policy& stronger, const Policy& weaker);
// The same for two levels: a stronger `fastest` drops what the weaker selects, and a stronger
// `fastest=false` undoes a weaker `fastest`.
Policy apply_level(const Policy& stronger, Policy weaker);

void set_enabled_policy(Policy policy);
Policy enabled_policy();
void set_process_policy(Policy policy);
// Opens a level of this thread and gives its id. Levels may end in any order.
uint64_t push_thread_policy(const Policy& policy);
void pop_thread_policy(uint64_t id);

// What these levels say on this thread.
struct CurrentLevels {
  Policy enabled;
  Policy thread;
  Policy inherited;  // from the thread that this one works for, such as autograd's
  Policy process;
};
CurrentLevels current_levels();

// Differs between any two states of the levels.
struct LevelsVersion {
  uint64_t process = 0, thread = 0, inherited = 0;
  bool operator!=(const LevelsVersion& other) const {
    return process != other.process || thread != other.thread || inherited != other.inherited;
  }
};
LevelsVersion levels_version();

// Throws ValueError if the policy selects guess_once or time_once for a pass of the family, or for
// any pass if the family is empty.
void check_no_once(const Policy& policy, std::string_view family = {});

// Grows when rules or the tuning table change, and when decisions begin to be printed. Decisions of
// an earlier generation are made again. A policy that changes is another policy, with decisions of
// its own.
uint64_t decision_generation();
void next_decision_generation();

// Whether decisions are printed.
bool verbose();
void set_verbose(bool on);

}  // namespace torch_cudnn_ext
