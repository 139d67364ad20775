#include "core/select/execute.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/select/attempts.h"
#include "core/select/decide.h"
#include "core/select/known_calls.h"
#include "core/select/plan_store.h"
#include "core/select/recording.h"
#include "core/tensors.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

// Whether no other algorithm may replace this one. That holds for a pin that may not fall back, and
// for a backward that must run its forward's algorithm.
bool is_final(const Problem& problem, const Decision& decision) {
  if (!decision.is_pinned) return false;
  return !decision.policy->policy.may_fall_back() ||
         operator_of(problem).forward_of(problem).has_value();
}

// The error of an algorithm that is final. If memory was short, others are not built to be named.
std::string error_of_final(const Request& request, const Call& call, std::string reason,
                           bool no_memory) {
  const Problem& problem = request.problem;
  const std::string algorithm = call.plan->algorithm.text();
  if (no_memory) {
    reason =
        c10::str("no memory (workspace: ", memory_text(call.plan->workspace_bytes), "): ", reason);
  }
  if (operator_of(problem).forward_of(problem)) {
    return c10::str(op_of(problem), ": ", algorithm,
                    ", which its forward ran, cannot run: ", reason, context_lines(request));
  }
  if (!no_memory) return error_of_pin(request, call.plan->algorithm, reason);
  return c10::str(
      op_of(problem), ": the pinned algorithm ", algorithm, " cannot run: ", reason,
      context_lines(request),
      "\n  (on_unsupported=warn or fallback takes one with a smaller workspace instead)");
}

// Withdraws a decision, since its algorithm did not support the problem. Another algorithm runs
// from now on.
void withdraw(const Request& request, const Call& call, const std::string& error) {
  const Algorithm& algorithm = call.plan->algorithm;
  remember_unsupported(request, algorithm, error);
  call.decision->is_withdrawn = true;
  warn(c10::str(
      op_of(request.problem), ": ", algorithm.text(), " was chosen (", call.decision->record->why,
      ") and did not support the problem when it ran, so another runs from now on: ", error,
      ". Problem: ", problem_text(request.problem)));
}

// Whether a plan may have changed its inputs before it ran out of memory. Another plan would change
// them a second time. Plans that know their workspace allocate everything first.
bool may_have_changed_inputs(const Problem& problem, const Plan& plan) {
  if (plan.workspace_bytes) return false;
  std::vector<SlotSpec> slots = operator_of(problem).slots(problem);
  return std::any_of(slots.begin(), slots.end(),
                     [](const SlotSpec& slot) { return slot.is_mutated; });
}

// Records that a plan ran because another one ran out of memory, and warns the first time.
void note_smaller(const Request& request, const Call& failed, const AdmissiblePlan& ran) {
  std::string why =
      c10::str("fallback: no memory for the workspace of ", failed.plan->algorithm.text(), " (",
               memory_text(failed.plan->workspace_bytes), ")");
  const DecisionRecord* record =
      record_decision(request, ran.plan->algorithm, why, ran.workspace_bytes, 0);
  note_executed(record);
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) {
    warn(c10::str(record->problem, ": ", why, ", ", record->algorithm,
                  " ran instead (said once; verbose says it every time)"));
  }
}

// Runs the next algorithm in rank order that has a smaller workspace and enough memory for it.
void run_smaller(const Request& request, const Call& failed, Bindings& bindings,
                 const std::string& failure) {
  const Problem& problem = request.problem;
  std::vector<RankedAlgorithm> order = failed.decision->ranking;
  if (order.empty()) {
    for (Algorithm& a : algorithms_in_order(problem, request.device)) order.push_back({a, {}});
  }
  int64_t limit = failed.plan->workspace_bytes.value_or(INT64_MAX);
  for (const auto& [algorithm, measured_bytes] : order) {
    if (limit == 0) break;
    bool is_smaller = !measured_bytes || *measured_bytes < limit;
    if (algorithm == failed.plan->algorithm || !is_smaller) continue;
    if (unsupported_at_run(request, algorithm)) continue;
    auto result = admissible_plan(request, algorithm);
    auto* admissible = std::get_if<AdmissiblePlan>(&result);
    if (admissible == nullptr) continue;
    // If a plan does not know its workspace, only its run shows whether it fits.
    std::optional<int64_t> bytes = admissible->plan->workspace_bytes;
    if (bytes && *bytes >= limit) continue;
    try {
      admissible->plan->run(bindings);
    } catch (const c10::OutOfMemoryError&) {
      if (may_have_changed_inputs(problem, *admissible->plan)) throw;
      limit = bytes.value_or(limit);
      continue;
    } catch (const UnsupportedAtRun& error) {
      remember_unsupported(request, algorithm, error.what_without_backtrace());
      continue;
    }
    retain_for_graph(admissible->plan, request.device);
    return note_smaller(request, failed, *admissible);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, op_of(problem), ": no memory to run ",
                   failed.plan->algorithm.text(),
                   " (workspace: ", memory_text(failed.plan->workspace_bytes),
                   "), and no algorithm with a smaller workspace could run",
                   "\n  problem: ", problem_text(problem), "\n  ", failure);
}

// The same problem with aligned tensors; nullopt if its tensors are aligned already.
std::optional<Problem> with_aligned_tensors(const Problem& problem) {
  return std::visit(
      [](auto p) -> std::optional<Problem> {
        constexpr int64_t kAligned = 16;
        if constexpr (std::is_assignable_v<decltype((p.alignment)), int64_t>) {
          if (std::exchange(p.alignment, kAligned) != kAligned) return p;
        }
        return std::nullopt;
      },
      problem);
}

// Runs the problem on aligned copies if no admissible algorithm takes tensors at these addresses.
// Hooks of autograd give a backward tensors at any address. Returns false if copies do not help, or
// if a tensor that is written is not aligned.
bool run_on_copies(const Request& request, Bindings& bindings, bool after_unsupported) {
  const auto& [problem, policy, device] = request;
  std::optional<Problem> aligned = with_aligned_tensors(problem);
  if (!aligned || !find_call({*aligned, policy, device}, after_unsupported).plan) return false;
  for (const SlotSpec& slot : operator_of(problem).slots(problem)) {
    at::Tensor& t = bindings[slot.role];
    if (!t.defined() || slot.on_host || is_aligned(t)) continue;
    if (slot.is_output || slot.is_mutated) return false;
    t = copy_in_layout(t);
  }
  execute(*aligned, policy, device, bindings);
  return true;
}

}  // namespace

void execute(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
             Bindings& bindings) {
  OverrideGuard plain;
  // Operators cast their arguments before this. Plans compute in those types.
  ExcludeKeysGuard no_autocast(c10::autocast_dispatch_keyset);
  if (is_dry_run()) {
    forget_executed();
    return execute_dry(problem, device, bindings);
  }
  Request asked{problem, policy, device};
  for (bool after_unsupported = false;; after_unsupported = true) {
    Call call = find_call(asked, after_unsupported);
    bool may_copy = call.plan == nullptr && !call.decision->missed_at;
    if (may_copy && run_on_copies(asked, bindings, after_unsupported)) return;
    TORCH_CHECK(call.plan != nullptr, call.decision->error);
    note_executed(call.decision->record);
    Request request{problem, *call.decision->policy, device};  // with rules
    bindings.replay = call.decision->policy->policy.replay_of_calls();
    ExecutionWatch::before_run(call, device, bindings);
    try {
      ProfiledRun range(*call.decision->record);
      call.plan->run(bindings);
      retain_for_graph(call.plan, device);
      ExecutionWatch::after_run(bindings);
      break;
    } catch (const c10::OutOfMemoryError& error) {
      std::string reason = error.what_without_backtrace();
      if (is_final(problem, *call.decision)) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, error_of_final(request, call, reason, true));
      }
      bool has_workspace = call.plan->workspace_bytes != 0;
      if (!has_workspace || may_have_changed_inputs(problem, *call.plan)) throw;
      run_smaller(request, call, bindings, reason);
      break;
    } catch (const UnsupportedAtRun& error) {
      std::string reason = error.what_without_backtrace();
      TORCH_CHECK(!is_final(problem, *call.decision), error_of_final(request, call, reason, false));
      withdraw(request, call, reason);
    }
  }
  count_call(*last_of_thread());
  record_call({last_of_thread(), {}});
}

}  // namespace torch_cudnn_ext
