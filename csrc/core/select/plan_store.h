// What is remembered of decisions and plans. Threads share decisions; a plan belongs to one thread.
// Knows nothing of how a decision is made.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/plan.h"
#include "core/policy/resolve.h"
#include "core/select/decision_record.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

struct RankedAlgorithm {
  Algorithm algorithm;
  std::optional<int64_t> workspace_bytes;
};

// Which algorithm runs a problem under a policy, or why none does.
struct Decision {
  std::optional<Algorithm> algorithm;
  bool is_pinned = false;
  bool is_kept = true;                   // false: it is made again at the next call
  std::vector<RankedAlgorithm> ranking;  // after tuning: all that ran, best first
  std::string error;                     // if there is no algorithm: every call throws it
  std::string warning;                   // given once, after the decision was made
  const DecisionRecord* record = nullptr;
  const ResolvedPolicy* policy = nullptr;   // with the rules that match the problem
  std::shared_ptr<const Decision> forward;  // of a backward that runs its forward's algorithm
  // The version of the tuning table that lacked the problem, if that was all that could be used.
  // The decision is made again once the table has another.
  std::optional<int64_t> missed_at;
  // Set when the algorithm did not support the problem as it ran: the decision is made again.
  mutable std::atomic<bool> is_withdrawn{false};

  bool is_valid() const {
    bool is_missed = missed_at && *missed_at != tuning_table::version();
    return !is_withdrawn && !is_missed && (forward == nullptr || forward->is_valid());
  }
};

// A decision, and this thread's plan of its algorithm. There is no plan if there is no algorithm.
struct Call {
  std::shared_ptr<const Decision> decision;
  std::shared_ptr<Plan> plan;
};

// Makes a decision; the plan may be left open. `must_not_wait` is set if this thread is deciding
// the same already, which a signal handler that calls the operator interrupted; or if another
// thread is, which may wait for this one.
using MakeDecision = c10::function_ref<Call(bool must_not_wait)>;

// The decision for a call: remembered by this thread or by any thread, or made now by one thread
// while all others that need it wait.
Call find_or_make_call(const Request& request, MakeDecision make);

// Counts a call that was remembered elsewhere as one that this thread's store had.
void count_remembered_call();

// A plan that the constraints admit, remembered by this thread or built, or the reason why there is
// none.
std::variant<AdmissiblePlan, Unsupported> admissible_plan(const Request& request,
                                                          const Algorithm& algorithm);
// Makes a plan what `admissible_plan` finds on this thread.
void remember_plan(const Request& request, const Algorithm& algorithm, std::shared_ptr<Plan> plan);

// The reason why an algorithm that could be built did not support the problem when it ran.
std::optional<std::string> unsupported_at_run(const Request& request, const Algorithm& algorithm);
void remember_unsupported(const Request& request, const Algorithm& algorithm,
                          const std::string& error);

// From now on a thread that ends does not destroy its plans. Called when the process exits, since
// autograd's threads end after the CUDA driver, which destroying a plan calls.
void leak_plans_at_exit();

struct PlanCacheInfo {
  int64_t size, capacity, hits, misses;
};
PlanCacheInfo plan_cache_info();  // of this thread
// Forgets all decisions and this thread's plans; other threads' plans at their next call.
void plan_cache_clear();

}  // namespace torch_cudnn_ext
