#include "core/select/decide.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/policy/policy_words.h"
#include "core/policy/rules.h"
#include "core/select/attempts.h"
#include "core/select/known_ranking.h"
#include "core/select/recording.h"
#include "core/select/search.h"
#include "core/select/selection.h"
#include "core/tune/isolation.h"
#include "core/tune/measure.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

namespace {

using Clock = std::chrono::steady_clock;
using FindForward = c10::function_ref<Call(const Request&)>;

constexpr const char* kCoupled = "coupled with its forward";
constexpr const char* kNotDeterministic =
    "fallback: PyTorch's own, as no algorithm is deterministic";
constexpr const char* kBeyondBackends = "fallback: no admitted backend has an algorithm";
constexpr const char* kFirstUnsupported =
    "heuristic: the first algorithm did not support the problem";
constexpr const char* kTracing = "heuristic: nothing is tuned while a model is traced";
constexpr const char* kBeyondBudget = "the search budget is spent";
constexpr const char* kUntuned = "heuristic: nothing was tuned for it";

// Makes one decision.
class Decider {
 public:
  // `find_forward` finds the decision of a backward's forward.
  Decider(const Request& asked, FindForward find_forward = nullptr, bool must_not_wait = false,
          bool after_unsupported = false)
      : problem_(asked.problem),
        asked_(asked.policy),
        rules_(rules_for(problem_)),
        request_{problem_, add_rules(asked_, rules_.policy, family_of(problem_)), asked.device},
        find_forward_(find_forward),
        must_not_wait_(must_not_wait),
        after_unsupported_(after_unsupported) {
    decision_->policy = &request_.policy;
    if (device_.has_gpu_backends()) cudnn_pins_ = cudnn_pins();
  }

  Call decide() {
    auto start = Clock::now();
    Found found = find();
    warn_of_share();
    if (attempts_.is_transient) decision_->is_kept = false;
    if (found) {
      decision_->algorithm = found.plan->algorithm;
      double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      decision_->record =
          record_decision(request_, found.plan->algorithm, found.why, found.workspace_bytes, ms);
    }
    return {decision_, found.plan};
  }

  std::string error_of_pin(const Algorithm& algorithm, const std::string& reason) {
    std::string error = c10::str(op_of(problem_), ": the pinned algorithm ", algorithm.text(),
                                 " cannot run: ", reason, other_families_with(algorithm, op_),
                                 context_lines(request_));
    if (op_.forward_of(problem_)) return error;  // only its forward's algorithm can read its input
    std::string others = attempts_.others_that_run(request_, algorithm);
    bool can_fall_back = !others.empty();
    if (!can_fall_back && policy_.backends) {
      can_fall_back = !!try_all_backends();
    }
    error += "\n  would work: " + (others.empty() ? "none under these constraints" : others);
    if (can_fall_back) {
      error += "\n  (on_unsupported=warn or fallback takes the heuristic's algorithm instead)";
    }
    return error;
  }

 private:
  // --- what the policy selects

  Found find() {
    const Policy* const levels[] = {&asked_.argument, &rules_.policy, &policy_, &cudnn_pins_};
    auto [selected, level, error] = selection_of(problem_, levels);
    selecting_level_ = level;
    if (!error.empty()) {
      decision_->error = error + context_lines(request_);
      return {};
    }
    using Kind = Selection::Kind;
    std::optional<Kind> kind = selected == nullptr ? std::nullopt : std::optional(selected->kind);
    if (kind == Kind::pinned) return find_pinned(selected->algorithm);
    if (auto forward = op_.forward_of(problem_)) return find_as_forward(*forward);
    bool autotune = kind == Kind::autotune, tuned = kind == Kind::tuned;
    bool benchmark = !kind && policy_.benchmark.value_or(false);
    if (!autotune && !tuned && !benchmark) return find_heuristic("heuristic");
    int64_t table_version = tuning_table::version();
    if (Found found = find_known(); found || !decision_->error.empty()) return found;
    OnMiss on_miss = policy_.on_miss.value_or(tuned ? OnMiss::heuristic : OnMiss::autotune);
    if (on_miss == OnMiss::autotune) return find_tuned(autotune && is_demanded());
    if (is_model_tracing()) return find_temporary(kTracing);
    decision_->missed_at = table_version;
    if (on_miss == OnMiss::nearest) return find_nearest();
    if (on_miss == OnMiss::record) tuning_table::record_untuned(key_of(request_));
    if (on_miss != OnMiss::error) return find_heuristic(kUntuned);
    decision_->error =
        c10::str(op_of(problem_), ": nothing was tuned for this problem, and the policy says ",
                 "on_miss=error; tune it first", context_lines(request_));
    return {};
  }

  // Whether the caller or a knob asks to tune this problem. enable() and rules do not: they apply
  // to any problem that comes.
  bool is_demanded() const {
    if (selecting_level_ == &rules_.policy) return false;
    return selecting_level_ == &asked_.argument ||
           asked_.enabled.selections.count(op_of(problem_)) == 0;
  }

  // --- pins and coupled passes

  std::string pinned_by() const {
    if (selecting_level_ == &cudnn_pins_) return "pinned by torch.backends.cudnn";
    // The saved policy of a forward tells its backward what the forward ran.
    if (selecting_level_ == &asked_.argument && op_.forward_of(problem_)) return kCoupled;
    bool by_rule = selecting_level_ == &rules_.policy;
    return by_rule ? c10::str("pinned by when(\"", rules_.source, "\")") : "pinned";
  }

  // A classic algorithm without a math type stands for every math type that the constraints admit.
  std::vector<Algorithm> spellings(const Algorithm& algorithm) const {
    bool complete = algorithm.backend != "legacy" || !op_.has_math_types() ||
                    algorithm.option("math") != nullptr;
    if (complete) return {algorithm};
    std::vector<Algorithm> list;
    for (const char* math : {"default", "fma", "tensor_op", "tensor_op_allow_conversion"}) {
      list.push_back(algorithm.with("math", math));
    }
    return list;
  }

  Found find_pinned(const Algorithm& algorithm) {
    decision_->is_pinned = true;
    std::string reason;
    for (const Algorithm& spelling : spellings(algorithm)) {
      Found found = try_algorithm(spelling, pinned_by());
      if (found) return found;
      const std::string& this_reason = attempts_.ruled_out.back().second;
      if (reason.find(this_reason) == std::string::npos) {
        reason += (reason.empty() ? "" : "; ") + this_reason;
      }
    }
    if (Found found = try_nondeterministic_baseline(algorithm, pinned_by())) return found;
    bool is_coupled = op_.forward_of(problem_).has_value();
    if (is_coupled) {
      if (Found found = try_beyond_backends(algorithm)) return found;
    }
    if (is_coupled || !policy_.may_fall_back()) {
      decision_->error = error_of_pin(algorithm, reason);
      return {};
    }
    if (warns()) {
      add_warning(c10::str(
          op_of(problem_), ": the pinned algorithm ", algorithm.text(), " cannot run: ", reason,
          "; the heuristic's algorithm runs instead. Problem: ", problem_text(problem_)));
    }
    decision_->is_pinned = false;
    return find_heuristic(c10::str("fallback: ", algorithm.text(), " cannot run: ", reason));
  }

  // A backward on its own, as in a compiled graph, runs the algorithm of its forward's decision.
  // That decision is made now if it does not exist yet.
  Found find_as_forward(const Problem& forward) {
    Call call = find_forward_({forward, asked_, device_});
    if (call.plan == nullptr) {
      decision_->error = call.decision->error;
      return {};
    }
    const Algorithm& algorithm = *call.decision->algorithm;
    decision_->is_kept = call.decision->is_kept;
    decision_->forward = call.decision;
    decision_->is_pinned = true;  // only this algorithm can read what the forward saved
    Found found = try_algorithm(algorithm, kCoupled);
    if (!found) found = try_nondeterministic_baseline(algorithm, kCoupled);
    if (!found) found = try_beyond_backends(algorithm);
    if (!found) {
      const auto& [name, reason] = attempts_.ruled_out.back();
      decision_->error =
          c10::str(op_of(problem_), ": ", name, ", which its forward runs, cannot run: ", reason,
                   context_lines(request_));
    }
    return found;
  }

  // --- tuning

  // By what was measured before; nothing if there is none, or if it is of another version and
  // nothing of it can be built.
  Found find_known() {
    auto known = known_ranking(request_);
    return known ? find_by(*known) : Found();
  }

  Found find_by(const KnownRanking& known) {
    if (!known.heuristic.empty()) return find_heuristic("heuristic: " + known.heuristic);
    if (find_failure_of_all(known.measurements)) return {};
    std::string why = "cached";
    if (!known.device.empty()) why += ": measured on " + known.device;
    if (!known.constraints.empty()) why += ": ranked under " + known.constraints;
    return first_of_ranking(known.measurements, why);
  }

  Found find_nearest() {
    for (const auto& [problem, known] : nearest_rankings(request_)) {
      if (Found found = first_of_ranking(known.measurements, "nearest: as tuned for " + problem)) {
        return found;
      }
    }
    return find_heuristic(kUntuned);
  }

  // The first of a ranking that builds. If none does, the ranking is forgotten.
  Found first_of_ranking(const std::vector<Measurement>& measurements, const std::string& why) {
    size_t before = attempts_.ruled_out.size();
    if (Found found = first_that_builds(measurements, why)) return found;
    if (decision_->ranking.empty()) return find_rejected_baseline(measurements);
    decision_->ranking.clear();
    attempts_.ruled_out.resize(before);
    return {};
  }

  Found find_tuned(bool is_demanded) {
    const DeviceRuntime& runtime = runtime_of(device_);
    if (runtime.is_capturing(device_)) return find_under_capture(is_demanded);
    if (must_not_wait_) return find_temporary("heuristic: met again while it is being tuned");
    if (after_unsupported_) return find_heuristic(kFirstUnsupported);
    if (is_model_tracing()) return find_temporary(kTracing);
    TableKey key = key_of(request_);
    bool is_kept = are_rankings_kept(request_.policy, device_);
    auto known = is_kept ? tuning_table::claim(key) : std::nullopt;
    if (known) return find_agreed(*known);
    SearchResult result{{}, kBeyondBudget, ""};
    try {
      if (!is_search_budget_spent()) result = search(request_);
    } catch (...) {  // others that agree with this process must not wait for it
      if (is_kept) tuning_table::give_up(key);
      throw;
    }
    auto& [measured, obstacle, detail] = result;
    bool unstable = obstacle.empty() && is_unstable(measured);
    if (!obstacle.empty() || unstable) {
      auto agreed = is_kept ? tuning_table::give_up(key) : std::nullopt;
      if (agreed) return find_agreed(*agreed);
      if (obstacle == kBeyondBudget) return find_beyond_budget();
      if (!unstable) return find_untuned(obstacle, detail);
      return first_that_builds(measured, "unstable: too noisy to compare, PyTorch's own runs");
    }
    if (is_kept) {
      auto agreed =
          tuning_table::insert_measured({key.problem, key.device, key.constraints, measured});
      if (agreed) return find_agreed(*agreed);
    }
    Found found = first_that_builds(measured, "tuned");
    return found ? found : find_rejected_baseline(measured);
  }

  // What the processes that tune together agreed on.
  Found find_agreed(const KnownRanking& agreed) {
    auto known = admitted_ranking(agreed, request_);
    Found found = known ? find_by(*known) : Found();
    if (found || !decision_->error.empty()) return found;
    return find_heuristic("heuristic: what was agreed on cannot run");
  }

  Found find_beyond_budget() {
    static std::atomic<bool> warned{false};
    warn_once(warned,
              "the search budget of this process is spent (knobs.search_budget_s): the heuristic's "
              "algorithm runs what is not tuned yet");
    return find_heuristic(c10::str("heuristic: ", kBeyondBudget));
  }

  Found first_that_builds(const std::vector<Measurement>& measurements, const std::string& why) {
    for (const Measurement& m : measurements) {
      if (m.status == Measurement::Status::ok) {
        decision_->ranking.push_back({m.algorithm, m.workspace_bytes});
      } else {
        attempts_.ruled_out.emplace_back(m.algorithm.text(), m.reason);
      }
    }
    for (const auto& [algorithm, workspace_bytes] : decision_->ranking) {
      Found found = try_algorithm(algorithm, why);
      if (!found) continue;
      if (!found.workspace_bytes) found.workspace_bytes = workspace_bytes;
      return found;
    }
    return {};
  }

  // Such measurements are not kept: tuning may succeed in the next process, or for a later table.
  Found find_untuned(const std::string& obstacle, const std::string& detail = "") {
    decision_->warning = c10::str(op_of(problem_), ": ", obstacle == kNoMemory ? "there is " : "",
                                  obstacle, ", so the heuristic's algorithm runs",
                                  detail.empty() ? "" : c10::str(" (", detail, ")"),
                                  ". Problem: ", problem_text(problem_));
    return find_heuristic("heuristic: " + obstacle);
  }

  // If tuning rejected every algorithm, PyTorch's own kernel runs, as it would without this
  // package.
  Found find_rejected_baseline(const std::vector<Measurement>& measurements) {
    auto own = std::find_if(measurements.begin(), measurements.end(), [](const Measurement& m) {
      return m.algorithm.is_baseline() && m.status == Measurement::Status::rejected;
    });
    Found found;
    if (decision_->ranking.empty() && own != measurements.end()) {
      found = try_algorithm(own->algorithm, "fallback: tuning rejected every algorithm");
    }
    if (!found) return find_last_resort();
    decision_->warning =
        c10::str(op_of(problem_), ": tuning rejected every algorithm, PyTorch's own runs all the ",
                 "same: ", own->reason, ". Problem: ", problem_text(problem_));
    return found;
  }

  Found find_under_capture(bool is_demanded) {
    TORCH_CHECK(!is_demanded, op_of(problem_),
                ": policy says autotune, but this problem was not tuned before and the stream is "
                "being captured into a CUDA graph; run it once before capturing. Problem: ",
                problem_text(problem_));
    static std::atomic<bool> warned{false};
    warn_once(
        warned,
        "problems are to be tuned as they come (benchmark, fastest, enable or when says so), "
        "but this one was first met while a CUDA graph is captured: the heuristic's algorithm "
        "runs and is not kept");
    return find_temporary("heuristic: first met under stream capture");
  }

  Found find_temporary(const std::string& why) {
    decision_->is_kept = false;
    return find_heuristic(why);
  }

  Found find_heuristic(const std::string& why) {
    Found found = attempts_.try_in_order(request_, why);
    return found ? found : find_last_resort();
  }

  // Called if the heuristic finds nothing.
  Found find_last_resort() {
    Found found = try_nondeterministic_baseline(kBaseline, kNotDeterministic);
    if (found) return found;
    std::string reasons = attempts_.reasons();
    if (policy_.backends) found = try_all_backends();
    if (found && policy_.may_fall_back()) {
      if (warns()) {
        add_warning(c10::str(op_of(problem_), ": no admitted backend has an algorithm; ",
                             found.plan->algorithm.text(), " runs instead", reasons,
                             "\n  problem: ", problem_text(problem_)));
      }
      return found;
    }
    decision_->error =
        c10::str(op_of(problem_), ": no algorithm can run under these constraints",
                 context_lines(request_), found ? reasons : attempts_.reasons(),
                 found ? "\n  (on_unsupported=warn or fallback takes the heuristic's algorithm of "
                         "all backends instead)"
                       : "");
    return {};
  }

  Found try_algorithm(const Algorithm& algorithm, const std::string& why) {
    return try_algorithm(algorithm, why, request_.policy);
  }

  // A pin that did not support the problem at an earlier call is tried again, but not in that call.
  Found try_algorithm(const Algorithm& algorithm, const std::string& why,
                      const ResolvedPolicy& policy) {
    bool retries = decision_->is_pinned && !after_unsupported_;
    return attempts_.try_algorithm({problem_, policy, device_}, algorithm, why, retries);
  }

  // PyTorch's own kernel, if only PyTorch's switches exclude it. PyTorch itself runs it under these
  // switches.
  Found try_nondeterministic_baseline(const Algorithm& algorithm, const std::string& why) {
    if (!request_.policy.baseline_may_be_nondeterministic || !algorithm.is_baseline()) return {};
    ResolvedPolicy lenient = request_.policy;
    lenient.policy.deterministic = false;
    return try_algorithm(algorithm, why, lenient);
  }

  // The algorithm that a forward ran although `backends` excludes it, if the policy may fall back.
  Found try_beyond_backends(const Algorithm& algorithm) {
    bool may = policy_.backends && policy_.may_fall_back();
    return may ? try_algorithm(algorithm, kCoupled, with_all_backends()) : Found();
  }

  Found try_all_backends() {
    return attempts_.try_in_order({problem_, with_all_backends(), device_}, kBeyondBackends);
  }

  ResolvedPolicy with_all_backends() const {
    ResolvedPolicy lenient = request_.policy;
    lenient.policy.backends.reset();
    if (lenient.baseline_may_be_nondeterministic) lenient.policy.deterministic = false;
    return lenient;
  }

  // Whether to warn of a fallback. There was a warning already if an algorithm did not support the
  // problem when it ran.
  bool warns() const {
    return policy_.on_unsupported == OnUnsupported::warn && !after_unsupported_;
  }

  void warn_once(std::atomic<bool>& warned, const char* warning) {
    if (warned.exchange(true)) return;
    add_warning(c10::str(warning, " (said once). Problem: ", problem_text(problem_)));
  }

  void add_warning(const std::string& warning) {
    decision_->warning += (decision_->warning.empty() ? "" : "\n") + warning;
  }

  // The text is the same for all problems, so that Python shows it once.
  void warn_of_share() {
    Policy share;
    share.max_workspace_percent = policy_.max_workspace_percent;
    if (!share.max_workspace_percent || device_.kind != Device::Kind::cpu) return;
    add_warning(c10::str(share.text(""), " is of the machine's memory on the CPU (",
                         *share.workspace_cap(device_) >> 20,
                         " MiB), and of a GPU's there; wanted a size, e.g. 64MiB, or none"));
  }

  const Problem& problem_;
  const ResolvedPolicy& asked_;  // without rules
  const RuledPolicy rules_;
  const Request request_;  // with rules
  const Policy& policy_ = request_.policy.policy;
  const Device& device_ = request_.device;
  const Operator& op_ = operator_of(problem_);
  const FindForward find_forward_;
  const bool must_not_wait_, after_unsupported_;
  Attempts attempts_;
  Policy cudnn_pins_;
  const Policy* selecting_level_ = nullptr;
  std::shared_ptr<Decision> decision_ = std::make_shared<Decision>();
};

Call make_call(const Request& request, bool must_not_wait, bool after_unsupported) {
  auto find_forward = [&](const Request& forward) { return find_call(forward, after_unsupported); };
  return Decider(request, find_forward, must_not_wait, after_unsupported).decide();
}

}  // namespace

Call find_call(const Request& request, bool after_unsupported) {
  return find_or_make_call(request, [&](bool must_not_wait) {
    return make_call(request, must_not_wait, after_unsupported);
  });
}

const DecisionRecord& decide(const Problem& problem, std::optional<std::string_view> policy,
                             const Device& device) {
  OverrideGuard plain;
  Request request{problem, resolve_policy(family_of(problem), policy), device};
  // Nothing runs on a target, and no decision for it is kept.
  Call call = device.is_target() ? make_call(request, false, false) : find_call(request);
  TORCH_CHECK(call.plan != nullptr, call.decision->error);
  return *call.decision->record;
}

std::string error_of_pin(const Request& request, const Algorithm& algorithm,
                         const std::string& reason) {
  return Decider(request).error_of_pin(algorithm, reason);
}

std::string context_lines(const Request& request) {
  return c10::str("\n  problem: ", problem_text(request.problem),
                  "\n  device: ", request.device.text(), "\n  policy: ", request.policy.text);
}

}  // namespace torch_cudnn_ext
