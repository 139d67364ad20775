// The only place that chooses: Problem + Policy + Device -> Plan. Operators, the profiler and
// listings all come here. Decisions are shared by all threads; plans belong to one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "core/plan.h"
#include "core/policy/policy.h"

namespace torch_cudnn_ext {

// What was decided for a problem under a policy, and why. Interned, never freed.
struct DecisionRecord {
  std::string op, problem, algorithm, why, device, policy;
  std::string coupled_policy;  // the policy for passes that must run the same algorithm
  std::optional<int64_t> workspace_bytes;
  double decision_ms;
  int64_t writer;  // number of `coupled_policy` (core/writer.h)
};

// A policy with what rules say of a problem, and of those that share its algorithm.
const ResolvedPolicy& with_rules(const Problem& problem, const ResolvedPolicy& policy);

// A plan that the constraints admit, which this thread remembers, or the reason why there is none.
std::variant<AdmissiblePlan, Unsupported> admissible_plan(const Problem& problem,
                                                          const Algorithm& algorithm,
                                                          const ResolvedPolicy& policy,
                                                          const Device& device);

// What `admissible_plan` is to find from now on, in this thread.
void remember_plan(const Problem& problem, const Algorithm& algorithm, const ResolvedPolicy& policy,
                   const Device& device, const std::shared_ptr<Plan>& plan);

// Whether it could be built, and refused the problem at its run.
bool was_unsupported_at_run(const Problem& problem, const Algorithm& algorithm,
                            const ResolvedPolicy& policy, const Device& device);

// Chooses (or remembers) and runs, on the current stream of the bindings' device.
void execute(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
             Bindings& bindings);

// The writer of what this thread has just executed; one that says nothing if that ran no algorithm.
at::Tensor writer_of_last(const at::Tensor& like);

// Chooses and runs nothing but what choosing itself needs.
const DecisionRecord& decide(const Problem& problem, std::optional<std::string_view> policy,
                             const Device& device);

// The newest over all threads, of one operator and pass or of any; nullptr when there is none.
const DecisionRecord* last_decision(const std::optional<std::string>& op);

// From now on threads that end leave their plans behind: the process ends, and autograd's threads
// end after the CUDA driver, which destroying a plan would call.
void leave_plans();

struct PlanCacheInfo {
  int64_t size, capacity, hits, misses;
};
PlanCacheInfo plan_cache_info();  // of this thread
// And the decisions of all threads. Other threads' plans go at their next call.
void plan_cache_clear();

}  // namespace torch_cudnn_ext
