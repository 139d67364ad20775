#include "core/select/selector.h"

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>

#include "core/backend.h"
#include "core/base/lru_cache.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/policy/rules.h"
#include "core/select/recording.h"
#include "core/tensors.h"
#include "core/tune/measure.h"
#include "core/tune/tuning_table.h"
#include "core/writer.h"

namespace torch_cudnn_ext {

namespace {

using Clock = std::chrono::steady_clock;

struct Ranked {
  Algorithm algorithm;
  std::optional<int64_t> workspace_bytes;
};

struct Decision {
  std::optional<Algorithm> algorithm;
  bool pinned = false;
  bool keep = true;             // false: a makeshift, decided again next time
  std::vector<Ranked> ranking;  // tuned: all that ran, best first
  std::string error;            // why there is none: thrown at every call
  std::string warning;          // said once, when the decision was made
  const DecisionRecord* record = nullptr;
  const ResolvedPolicy* policy = nullptr;   // with the rules that match the problem
  std::shared_ptr<const Decision> forward;  // whose algorithm a backward alone runs
  // By its algorithm, at its run: decided again next time.
  mutable std::atomic<bool> refused{false};

  bool stands() const { return !refused && (forward == nullptr || forward->stands()); }
};

// An algorithm with its plan, as found while deciding.
struct Found {
  std::shared_ptr<Plan> plan;
  std::optional<int64_t> workspace_bytes;
  std::string why;
};

struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash(); }
};

struct Call {
  std::shared_ptr<const Decision> decision;
  std::shared_ptr<Plan> plan;
};

// Stated bounds: calls and plans that one thread remembers, and decisions that all share.
constexpr size_t kCallsPerThread = 1024;
constexpr size_t kPlansPerThread = 1024;
constexpr size_t kSharedDecisions = 65536;

struct ThreadCache {
  LruCache<Key, Call, KeyHash> calls{kCallsPerThread};
  // Plans outlive a change of knobs: going back to a pin costs no rebuilding.
  LruCache<std::string, std::shared_ptr<Plan>, std::hash<std::string>> plans{kPlansPerThread};
  uint64_t generation = 0, plans_generation = 0;
};
std::atomic<uint64_t> plans_generation{0};  // grows as all threads' plans are to go

std::atomic<bool> plans_are_left{false};

ThreadCache& thread_cache() {
  struct Owner {
    ThreadCache* const cache = new ThreadCache();
    ~Owner() {
      if (!plans_are_left) delete cache;
    }
  };
  static thread_local Owner owner;
  return *owner.cache;
}

// --- what ran last

constexpr size_t kMaxOps = 256;
std::atomic<const DecisionRecord*> last_by_op[kMaxOps];
std::atomic<const DecisionRecord*> last_of_all;

size_t op_index(const Problem& problem) {
  return (problem.index() * 8 +
          std::visit([](const auto& p) { return static_cast<size_t>(p.pass); }, problem)) %
         kMaxOps;
}

thread_local const DecisionRecord* last_here = nullptr;

void note_last(const Problem& problem, const DecisionRecord* record) {
  last_here = record;
  last_by_op[op_index(problem)].store(record, std::memory_order_release);
  last_of_all.store(record, std::memory_order_release);
}

// The policy for passes that must run the algorithm of this one, as nodes of autograd save it.
std::string policy_of_coupled(const Problem& problem, const Algorithm& algorithm,
                              const ResolvedPolicy& policy) {
  Policy pins;
  std::vector<Problem> together = operator_of(problem).coupled(problem);
  if (!together.empty()) together.push_back(problem);
  for (const Problem& member : together) {
    pins.choices[op_of(member)] = Selection{Selection::Kind::pinned, algorithm};
  }
  return saved_with(policy, pins, family_of(problem));
}

const DecisionRecord* intern_record(const Problem& problem, const Algorithm& algorithm,
                                    const std::string& why, const Device& device,
                                    const ResolvedPolicy& policy,
                                    const std::optional<int64_t>& workspace_bytes,
                                    double decision_ms) {
  DecisionRecord record{op_of(problem),
                        problem_text(problem),
                        algorithm.text(),
                        why,
                        device.text(),
                        policy.text,
                        policy_of_coupled(problem, algorithm, policy),
                        workspace_bytes,
                        decision_ms,
                        0};
  record.writer = writer_number(record.coupled_policy);
  static std::mutex mutex;
  static auto* records = new std::map<std::string, std::unique_ptr<DecisionRecord>>();
  std::string key =
      c10::str(record.problem, "|", record.algorithm, "|", record.why, "|", record.device, "|",
               record.policy, "|", record.coupled_policy, "|", memory_text(workspace_bytes));
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*records)[key];
  if (entry == nullptr) entry = std::make_unique<DecisionRecord>(std::move(record));
  return entry.get();
}

void print_decision(const DecisionRecord& record) {
  std::fprintf(stderr, "torch_cudnn_ext: %s on %s -> %s (%s; workspace %s; chosen in %.1f ms)\n",
               record.problem.c_str(), record.device.c_str(), record.algorithm.c_str(),
               record.why.c_str(), memory_text(record.workspace_bytes).c_str(), record.decision_ms);
}

std::string plan_key(const Problem& problem, const Algorithm& algorithm,
                     const ResolvedPolicy& policy, const Device& device) {
  // The switches are part of it because `aten` plans read them.
  return c10::str(problem_text(problem), "|", algorithm.text(), "|", device.code(), "|",
                  static_cast<int>(policy.switches.bits));
}

// What could be built and was refused at its run: by plan key, with the reason.
std::mutex unsupported_at_run_mutex;
auto& unsupported_at_run() {
  static auto* map = new std::unordered_map<std::string, std::string>();
  return *map;
}
// While this thread chooses anew, since what it had chosen just refused.
thread_local bool follows_unsupported = false;

void remember_unsupported(const std::string& plan_key, const UnsupportedAtRun& error) {
  std::lock_guard<std::mutex> lock(unsupported_at_run_mutex);
  unsupported_at_run()[plan_key] =
      c10::str("it refused the problem at its run: ", error.what_without_backtrace());
}

std::optional<std::string> find_unsupported(const std::string& plan_key) {
  std::lock_guard<std::mutex> lock(unsupported_at_run_mutex);
  auto known = unsupported_at_run().find(plan_key);
  return known == unsupported_at_run().end() ? std::nullopt : std::optional(known->second);
}

// A plan that this thread built before, where the constraints admit it.
std::shared_ptr<Plan> admitted_known_plan(const Problem& problem, const Algorithm& algorithm,
                                          const ResolvedPolicy& policy, const Device& device) {
  auto* known = thread_cache().plans.find(plan_key(problem, algorithm, policy, device));
  if (known == nullptr || !(*known)->workspace_bytes) return nullptr;
  bool admitted = exclusion_by_backend(algorithm.backend, policy, device).empty() &&
                  refusal(**known, *(*known)->workspace_bytes, policy, device).empty();
  return admitted ? *known : nullptr;
}

// --- deciding

// The algorithms that an entry of a heuristic order stands for: one, or all of a backend.
std::vector<Algorithm> algorithms_named(const Problem& problem, const std::string& name,
                                        const Device& device) {
  if (name.find(':') != std::string::npos) return {parse_algorithm(name)};
  const Backend* backend = find_backend(name);
  const BackendOperator* op = backend == nullptr ? nullptr : backend->find(family_of(problem));
  std::vector<Algorithm> list;
  if (op == nullptr) return list;
  for (Candidate& c : op->candidates(problem, device)) list.push_back(std::move(c.algorithm));
  return list;
}

// The family's order, on the CPU PyTorch's own first, then all that it leaves out: constraints may
// admit nothing else.
std::vector<std::string> whole_order(const Problem& problem, const Device& device) {
  std::vector<std::string> order{"aten", "cpu"};
  if (device.has_gpu_backends()) order = operator_of(problem).heuristic_order(problem);
  for (const std::string& name : backend_names()) {
    bool known = std::find(order.begin(), order.end(), name) != order.end();
    bool has_family = find_backend(name)->find(family_of(problem)) != nullptr;
    if (!known && has_family) order.push_back(name);
  }
  return order;
}

// What rules say of a problem, and of those that share its algorithm.
RuledPolicy rules_for_all(const Problem& problem) {
  RuledPolicy out = rules_for(problem);
  for (const Problem& next : operator_of(problem).coupled(problem)) {
    RuledPolicy more = rules_for(next);
    out.any |= more.any;
    out.policy = merge(out.policy, more.policy);
    if (out.source.empty()) out.source = more.source;
  }
  return out;
}

constexpr const char* kCoupled = "coupled with its forward";
constexpr const char* kNotDeterministic =
    "fallback: PyTorch's own, as no algorithm is deterministic";
constexpr const char* kBeyondBackends = "fallback: no admitted backend has an algorithm";

std::string where_it_failed(const Problem& problem, const Device& device,
                            const ResolvedPolicy& policy) {
  return c10::str("\n  problem: ", problem_text(problem), "\n  device: ", device.text(),
                  "\n  policy: ", policy.text);
}

class Decider {
 public:
  // `must_not_wait`: this thread is deciding the same already, and was interrupted by a handler of
  // signals that calls the operator too; or another thread is, which may wait for this one.
  Decider(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
          bool must_not_wait = false)
      : problem_(problem),
        rules_(rules_for_all(problem)),
        asked_(policy),
        policy_(add_level(policy, rules_.policy, family_of(problem))),
        device_(device),
        op_(operator_of(problem)),
        must_not_wait_(must_not_wait) {
    decision_->policy = &policy_;
    if (device.has_gpu_backends()) cudnn_pins_ = cudnn_pins();
  }

  std::pair<std::shared_ptr<Decision>, std::shared_ptr<Plan>> decide() {
    auto start = Clock::now();
    Found found = find();
    warn_of_share();
    if (found.plan != nullptr) {
      decision_->algorithm = found.plan->algorithm;
      double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      decision_->record = intern_record(problem_, found.plan->algorithm, found.why, device_,
                                        policy_, found.workspace_bytes, ms);
      if (verbose()) print_decision(*decision_->record);
    }
    return {decision_, found.plan};
  }

  std::string error_of_pin(const Algorithm& algorithm, const std::string& reason) {
    std::string error = c10::str(op_of(problem_), ": the pinned algorithm ", algorithm.text(),
                                 " cannot run: ", reason, of_others(algorithm),
                                 where_it_failed(problem_, device_, policy_));
    if (op_.forward_of(problem_)) return error;  // what it reads is its forward's alone
    std::string others = alternatives(algorithm);
    bool can_fall_back = !others.empty();
    if (!can_fall_back && policy_.policy.backends) {
      can_fall_back = first_in_order(of_all_backends(), kBeyondBackends).plan != nullptr;
    }
    error += "\n  would work: " + (others.empty() ? "none under these constraints" : others);
    if (can_fall_back) {
      error += "\n  (on_unsupported=warn or fallback takes the heuristic's choice instead)";
    }
    return error;
  }

 private:
  // The same text for all problems, so that Python says it once a line.
  void warn_of_share() {
    Policy share;
    share.max_workspace_percent = policy_.policy.max_workspace_percent;
    if (!share.max_workspace_percent || device_.kind != Device::Kind::cpu) return;
    add_warning(c10::str(share.text(""), " is of the machine's memory on the CPU (",
                         *share.workspace_cap(device_) >> 20,
                         " MiB), and of a GPU's there; wanted a size, e.g. 64MiB, or none"));
  }

  Found find() {
    const Selection* chosen = find_choice();
    if (!decision_->error.empty()) return {};
    if (chosen != nullptr && chosen->kind == Selection::Kind::pinned) {
      return find_pinned(chosen->algorithm);
    }
    if (auto forward = op_.forward_of(problem_)) return find_as_forward(*forward);
    bool autotune = chosen != nullptr && chosen->kind == Selection::Kind::autotune;
    bool benchmark = chosen == nullptr && policy_.policy.benchmark.value_or(false);
    if (autotune || benchmark) return find_tuned(autotune && asked_for_here());
    return find_heuristic("heuristic");
  }

  // Whether it is the caller, or a knob, that wants this problem tuned; enable() and rules speak of
  // whatever problems come.
  bool asked_for_here() const {
    if (chosen_by_ == &rules_.policy) return false;
    return chosen_by_ == &asked_.argument || asked_.enabled.choices.count(op_of(problem_)) == 0;
  }

  std::string pinned_by() const {
    if (chosen_by_ == &cudnn_pins_) return "pinned by torch.backends.cudnn";
    // Such a pass is told by its forward's saved policy what ran there.
    if (chosen_by_ == &asked_.argument && op_.forward_of(problem_)) return kCoupled;
    bool by_rule = chosen_by_ == &rules_.policy;
    return by_rule ? c10::str("pinned by when(\"", rules_.source, "\")") : "pinned";
  }

  // What the policy says of this problem, or of one that shares its algorithm; else what
  // torch.backends.cudnn says.
  const Selection* find_choice() {
    // What the call, or else a rule, says of one of them holds for all, whatever weaker levels say
    // of others.
    const Policy* levels[] = {&asked_.argument, &rules_.policy, &policy_.policy, &cudnn_pins_};
    for (const Policy* level : levels) {
      const Selection* chosen = find_choice(*level);
      if (!decision_->error.empty()) return nullptr;
      if (chosen == nullptr && level->fastest.value_or(false)) return nullptr;  // it is tuned
      if (chosen == nullptr) continue;
      chosen_by_ = level;
      return chosen;
    }
    return nullptr;
  }

  // Two problems that share an algorithm must not be pinned to different ones by one level.
  const Selection* find_choice(const Policy& policy) {
    const Selection* chosen = nullptr;
    std::vector<Problem> together = op_.coupled(problem_);
    together.insert(together.begin(), problem_);
    for (const Problem& member : together) {
      auto found = policy.choices.find(op_of(member));
      if (found == policy.choices.end()) continue;
      bool disagree = chosen != nullptr && chosen->text() != found->second.text();
      if (disagree) {
        decision_->error =
            c10::str(op_of(problem_), ": the policy says ", chosen->text(), ", but ", op_of(member),
                     ", which shares its algorithm, is to run ", found->second.text(),
                     "; these passes are coupled, wanted one choice for both\n  problem: ",
                     problem_text(problem_), "\n  policy: ", policy_.text);
        return nullptr;
      }
      chosen = &found->second;
    }
    return chosen;
  }

  // A backward alone, as in a compiled graph: what was, and so will be, decided for its forward.
  Found find_as_forward(const Problem& forward);

  Found try_algorithm(const Algorithm& algorithm, const std::string& why) {
    return try_algorithm(algorithm, why, policy_);
  }

  Found try_algorithm(const Algorithm& algorithm, const std::string& why,
                      const ResolvedPolicy& policy) {
    // What refused once is not asked again, but for a pin of it.
    bool asks = decision_->pinned && !follows_unsupported;
    if (auto refusal = find_unsupported(plan_key(problem_, algorithm, policy, device_));
        refusal && !asks) {
      refused_.emplace_back(algorithm.text(), *refusal);
      return {};
    }
    auto result = admissible_plan(problem_, algorithm, policy, device_);
    if (auto* unsupported = std::get_if<Unsupported>(&result)) {
      refused_.emplace_back(algorithm.text(), unsupported->reason);
      if (unsupported->transient) decision_->keep = false;
      return {};
    }
    auto& usable = std::get<AdmissiblePlan>(result);
    return {usable.plan, usable.workspace_bytes, why};
  }

  // PyTorch's own kernel, where only determinism refuses it and only such switches of PyTorch's
  // ask for that as leave it alone.
  Found try_spared(const Algorithm& algorithm, const std::string& why) {
    if (!policy_.baseline_may_be_nondeterministic || !algorithm.is_baseline()) return {};
    ResolvedPolicy lenient = policy_;
    lenient.policy.deterministic = false;
    return try_algorithm(algorithm, why, lenient);
  }

  OnUnsupported on_unsupported() const {
    return policy_.policy.on_unsupported.value_or(OnUnsupported::error);
  }

  void add_warning(const std::string& warning) {
    decision_->warning += (decision_->warning.empty() ? "" : "\n") + warning;
  }

  ResolvedPolicy of_all_backends() const {
    ResolvedPolicy lenient = policy_;
    lenient.policy.backends.reset();
    if (policy_.baseline_may_be_nondeterministic) lenient.policy.deterministic = false;
    return lenient;
  }

  // What a forward ran, where `backends` excludes it and others than these may run.
  Found try_beyond_backends(const Algorithm& algorithm) {
    bool may = policy_.policy.backends && on_unsupported() != OnUnsupported::error;
    return may ? try_algorithm(algorithm, kCoupled, of_all_backends()) : Found();
  }

  // Where the heuristic finds nothing.
  Found find_last_resort() {
    Found found = try_spared(kBaseline, kNotDeterministic);
    if (found.plan != nullptr) return found;
    std::string reasons = reasons_of_refusals();
    if (policy_.policy.backends) found = first_in_order(of_all_backends(), kBeyondBackends);
    if (found.plan == nullptr) {
      set_nothing_works(reasons_of_refusals());
    } else if (on_unsupported() == OnUnsupported::error) {
      set_nothing_works(reasons + "\n  (on_unsupported=warn or fallback takes the heuristic's " +
                        "choice of all backends instead)");
      return {};
    } else if (on_unsupported() == OnUnsupported::warn && !follows_unsupported) {
      add_warning(c10::str(op_of(problem_), ": no admitted backend has an algorithm; ",
                           found.plan->algorithm.text(), " runs instead", reasons,
                           "\n  problem: ", problem_text(problem_)));
    }
    return found;
  }

  // A classic algorithm without a math type means any that the constraints admit.
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
    decision_->pinned = true;
    std::string reason;
    for (const Algorithm& spelling : spellings(algorithm)) {
      Found found = try_algorithm(spelling, pinned_by());
      if (found.plan != nullptr) return found;
      const std::string& this_reason = refused_.back().second;
      if (reason.find(this_reason) == std::string::npos) {
        reason += (reason.empty() ? "" : "; ") + this_reason;
      }
    }
    if (Found found = try_spared(algorithm, pinned_by()); found.plan != nullptr) return found;
    OnUnsupported action = on_unsupported();
    if (op_.forward_of(problem_)) {  // what it reads is its forward's
      Found found = try_beyond_backends(algorithm);
      if (found.plan != nullptr) return found;
      action = OnUnsupported::error;
    }
    if (action == OnUnsupported::error) {
      decision_->error = error_of_pin(algorithm, reason);
      return {};
    }
    if (action == OnUnsupported::warn && !follows_unsupported) {  // of which a warning told
      add_warning(c10::str(
          op_of(problem_), ": the pinned algorithm ", algorithm.text(), " cannot run: ", reason,
          "; the heuristic's choice runs instead. Problem: ", problem_text(problem_)));
    }
    decision_->pinned = false;
    return find_heuristic(c10::str("fallback: ", algorithm.text(), " cannot run: ", reason));
  }

  // Says of what other operators it is an algorithm, where it is none of this one.
  std::string of_others(const Algorithm& algorithm) const {
    std::string name = c10::str(algorithm.backend, ":", algorithm.name);
    std::vector<std::string> families = families_with(name);
    bool is_ours = std::find(families.begin(), families.end(), op_.family()) != families.end();
    if (is_ours || families.empty()) return "";
    for (std::string& family : families) family += c10::str(" (", family, "=", name, ")");
    return "; it is an algorithm of " + c10::Join(", ", families);
  }

  // Some others that can run; empty where none can. Not all: cuDNN may take seconds to build one.
  std::string alternatives(const Algorithm& pinned) {
    constexpr int kShown = 8;
    std::string out;
    int count = 0;
    for (const std::string& name : backend_names()) {
      for (const Algorithm& algorithm : algorithms_named(problem_, name, device_)) {
        bool tried = std::any_of(refused_.begin(), refused_.end(), [&](const auto& entry) {
          return entry.first == algorithm.text();
        });
        if (tried || algorithm == pinned) continue;
        if (find_unsupported(plan_key(problem_, algorithm, policy_, device_))) continue;
        auto result = build_admissible(problem_, algorithm, policy_, device_);
        if (std::holds_alternative<Unsupported>(result)) continue;
        if (count++ == kShown) return out + " and others";
        out += (out.empty() ? "" : ", ") + algorithm.text();
      }
    }
    return out;
  }

  Found find_tuned(bool asked_for) {
    const DeviceRuntime& runtime = runtime_of(device_);
    std::string problem = problem_text(problem_);
    std::string fingerprint = runtime.fingerprint(device_);
    std::string constraints = policy_.policy.constraints_text(problem_);
    std::optional<std::vector<Measurement>> known;
    bool kept = are_rankings_kept(policy_, device_);
    if (kept) known = tuning_table::find(problem, fingerprint, constraints);
    if (known && !find_failure_of_all(*known)) {
      size_t told = refused_.size();
      Found found = first_that_builds(*known, "cached");
      if (found.plan != nullptr) return found;
      if (decision_->ranking.empty()) return find_rejected_baseline(*known);
      // Of a file, of another version perhaps: what there is here is measured.
      decision_->ranking.clear();
      refused_.resize(told);
    }
    if (runtime.is_capturing(device_)) return under_capture(asked_for);
    if (must_not_wait_) return unkept("heuristic: met again while it is being tuned");
    if (follows_unsupported)
      return find_heuristic("heuristic: the first choice refused at its run");
    if (is_model_tracing()) return unkept("heuristic: nothing is tuned while a model is traced");
    MeasureOptions options;
    options.time_budget_s = autotune_budget_s();
    options.prunes = true;
    try {
      known = measure(problem_, policy_, device_, options);
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      return without_tuning(kOutOfMemory);
    }
    if (auto failure = find_failure_of_all(*known)) return without_tuning(*failure);
    if (kept) tuning_table::insert({problem, fingerprint, constraints, *known});
    Found found = first_that_builds(*known, "tuned");
    return found.plan == nullptr ? find_rejected_baseline(*known) : found;
  }

  Found first_that_builds(const std::vector<Measurement>& ranking, const std::string& why) {
    for (const Measurement& m : ranking) {
      if (m.status == Measurement::Status::ok) {
        decision_->ranking.push_back({m.algorithm, m.workspace_bytes});
      } else {
        refused_.emplace_back(m.algorithm.text(), m.reason);
      }
    }
    for (const Measurement& m : ranking) {
      if (m.status != Measurement::Status::ok) continue;
      Found found = try_algorithm(m.algorithm, why);
      if (found.plan == nullptr) continue;
      if (!found.workspace_bytes) found.workspace_bytes = m.workspace_bytes;
      return found;
    }
    return {};
  }

  // Why one failed, where nothing ran to its end: for want of memory, if that is among the reasons.
  // What the problem and the constraints alone exclude says nothing of the moment.
  static std::optional<std::string> find_failure_of_all(
      const std::vector<Measurement>& measurements) {
    std::optional<std::string> failure;
    for (const Measurement& m : measurements) {
      using Status = Measurement::Status;
      if (m.status == Status::ok || m.status == Status::rejected) return std::nullopt;
      if (m.reason.find(kOutOfMemory) != std::string::npos) {
        failure = kOutOfMemory;
      } else if (m.status == Status::failed && !failure) {
        failure = c10::str(m.algorithm.text(), ": ", m.reason);
      }
    }
    return failure;
  }

  // Such a ranking is not kept: the next process, or a later table, may have more luck.
  Found without_tuning(const std::string& failure) {
    bool no_memory = failure == kOutOfMemory;
    decision_->warning = c10::str(
        op_of(problem_), ": ",
        no_memory ? "there is no memory to tune in" : "every algorithm failed while tuning",
        ", so the heuristic's choice runs", no_memory ? "" : " (" + failure + ")",
        ". Problem: ", problem_text(problem_));
    return find_heuristic(no_memory ? "heuristic: no memory to tune in"
                                    : "heuristic: every algorithm failed while tuning");
  }

  // Where nothing keeps to the tolerance, PyTorch's own kernel runs as it would without us.
  Found find_rejected_baseline(const std::vector<Measurement>& measurements) {
    auto own = std::find_if(measurements.begin(), measurements.end(), [](const Measurement& m) {
      return m.algorithm.is_baseline() && m.status == Measurement::Status::rejected;
    });
    Found found;
    if (decision_->ranking.empty() && own != measurements.end()) {
      found = try_algorithm(own->algorithm, "fallback: tuning rejected every algorithm");
    }
    if (found.plan == nullptr) {
      return find_last_resort();
    }
    decision_->warning =
        c10::str(op_of(problem_), ": tuning rejected every algorithm, PyTorch's own runs all the ",
                 "same: ", own->reason, ". Problem: ", problem_text(problem_));
    return found;
  }

  // A GPU builds and times the lists of a problem in seconds; a CPU call may take long by itself.
  double autotune_budget_s() const { return device_.is_cuda() ? 30 : 10; }

  Found under_capture(bool asked_for) {
    TORCH_CHECK(!asked_for, op_of(problem_),
                ": policy says autotune, but this problem was not tuned before and the stream is "
                "being captured into a CUDA graph; run it once before capturing. Problem: ",
                problem_text(problem_));
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      decision_->warning = c10::str(
          "problems are to be tuned as they come (benchmark, fastest, enable or when says so), but "
          "this one was first met while a CUDA graph is captured: the heuristic's choice is taken "
          "and not kept (said once). Problem: ",
          problem_text(problem_));
    }
    return unkept("heuristic: first met under stream capture");
  }

  Found unkept(const std::string& why) {
    decision_->keep = false;
    return find_heuristic(why);
  }

  Found find_heuristic(const std::string& why) {
    Found found = first_in_order(policy_, why);
    return found.plan == nullptr ? find_last_resort() : found;
  }

  Found first_in_order(const ResolvedPolicy& policy, const std::string& why) {
    bool least_memory = policy_.policy.prefer == Prefer::memory;
    Found best;
    for (const std::string& name : whole_order(problem_, device_)) {
      std::string reason = exclusion_by_backend(name.substr(0, name.find(':')), policy, device_);
      if (!reason.empty()) {
        refused_.emplace_back(name, reason);
        continue;
      }
      for (const Algorithm& algorithm : algorithms_named(problem_, name, device_)) {
        Found found = try_algorithm(algorithm, why, policy);
        if (found.plan == nullptr) continue;
        if (!least_memory || found.workspace_bytes == 0) return found;
        bool smaller = best.plan == nullptr ||
                       (found.workspace_bytes &&
                        *found.workspace_bytes < best.workspace_bytes.value_or(INT64_MAX));
        if (smaller) best = found;
      }
    }
    return best;
  }

  // Reasons once each, with those that they refuse.
  std::string reasons_of_refusals() const {
    std::vector<std::pair<std::string, std::vector<std::string>>> folded;
    for (const auto& [algorithm, reason] : refused_) {
      auto same = std::find_if(folded.begin(), folded.end(),
                               [&](const auto& entry) { return entry.first == reason; });
      if (same == folded.end()) same = folded.insert(folded.end(), {reason, {}});
      bool told =
          std::find(same->second.begin(), same->second.end(), algorithm) != same->second.end();
      if (!told) same->second.push_back(algorithm);
    }
    std::string reasons;
    for (const auto& [reason, algorithms] : folded) {
      reasons += c10::str("\n    ", reason, ": ", algorithms[0]);
      if (algorithms.size() > 1) reasons += c10::str(" and ", algorithms.size() - 1, " more");
    }
    return "\n  reasons:" + reasons;
  }

  void set_nothing_works(const std::string& reasons) {
    decision_->error = c10::str(op_of(problem_), ": no algorithm can run under these constraints",
                                where_it_failed(problem_, device_, policy_), reasons);
  }

  const Problem& problem_;
  const RuledPolicy rules_;
  const ResolvedPolicy& asked_;   // without rules
  const ResolvedPolicy& policy_;  // with them
  const Device device_;
  const Operator& op_;
  Policy cudnn_pins_;
  const Policy* chosen_by_ = nullptr;  // the level
  const bool must_not_wait_;
  std::shared_ptr<Decision> decision_ = std::make_shared<Decision>();
  std::vector<std::pair<std::string, std::string>> refused_;  // algorithm or backend, and why
};

// One builder a key: whoever comes second waits for the first one's decision.
struct SharedSlot {
  std::timed_mutex mutex;
  std::atomic<std::thread::id> builder;
  uint64_t generation = 0;
  std::shared_ptr<const Decision> decision;
};

thread_local int slots_held = 0;  // by this thread, whose warnings wait for as long
thread_local std::vector<std::string> warnings;

std::mutex decisions_mutex;
auto& decisions() {
  static auto* map = new std::unordered_map<std::string, std::shared_ptr<SharedSlot>>();
  return *map;
}

// Another thread may tune for seconds: the user can stop the wait.
void wait_for_builder(std::unique_lock<std::timed_mutex>& one_builder) {
  constexpr std::chrono::milliseconds kBetweenChecks(50);
  bool locked = false;
  while (!locked) {
    wait_for_others([&] { locked = one_builder.try_lock_for(kBetweenChecks); });
    if (!locked) check_interrupt();
  }
}

std::shared_ptr<Plan> plan_of(const Problem& problem, const Algorithm& algorithm,
                              const ResolvedPolicy& policy, const Device& device) {
  ThreadCache& cache = thread_cache();
  std::string key = plan_key(problem, algorithm, policy, device);
  if (auto* known = cache.plans.find(key)) return *known;
  BuildResult built = build(problem, algorithm, device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) {
    TORCH_CHECK(false, op_of(problem), ": ", algorithm.text(),
                " was chosen but cannot be built: ", unsupported->reason,
                "\n  problem: ", problem_text(problem));
  }
  return *cache.plans.insert(std::move(key), std::get<std::shared_ptr<Plan>>(built));
}

// Where a decision holds: what was tuned on the CPU is so for one number of threads. A backward
// that reads what its forward left runs its algorithm, however many there are by then.
int64_t place_of(const Problem& problem, const Device& device) {
  bool for_all = device.has_gpu_backends() || !operator_of(problem).coupled(problem).empty();
  return for_all ? device.code() : Device{device.kind, at::get_num_threads()}.code();
}

Call make_call(const Problem& problem, const ResolvedPolicy& policy, const Device& device) {
  std::string key = c10::str(problem_text(problem), "|", policy.id, "|", place_of(problem, device));
  std::shared_ptr<SharedSlot> slot;
  {
    std::lock_guard<std::mutex> lock(decisions_mutex);
    if (decisions().size() >= kSharedDecisions) decisions().clear();
    auto& entry = decisions()[key];
    if (entry == nullptr) entry = std::make_shared<SharedSlot>();
    slot = entry;
  }
  Call call;
  bool made_here = false;
  std::unique_lock<std::timed_mutex> one_builder(slot->mutex, std::defer_lock);
  // Whoever tunes may wait for autograd's thread of the device, which runs its reference's
  // gradients.
  bool may_be_awaited = device.is_cuda() && torch::autograd::get_current_node() != nullptr;
  bool must_not_wait =
      slot->builder == std::this_thread::get_id() || (may_be_awaited && !one_builder.try_lock());
  if (must_not_wait) {
    made_here = true;
    std::tie(call.decision, call.plan) = Decider(problem, policy, device, true).decide();
  } else {
    if (!one_builder.owns_lock()) wait_for_builder(one_builder);
    ++slots_held;
    auto released = c10::make_scope_exit([] { --slots_held; });
    uint64_t now = decision_generation();
    if (slot->decision == nullptr || slot->generation != now || !slot->decision->stands()) {
      made_here = true;
      slot->builder = std::this_thread::get_id();
      auto done = c10::make_scope_exit([&] { slot->builder = std::thread::id(); });
      std::tie(call.decision, call.plan) = Decider(problem, policy, device).decide();
      if (call.decision->keep) {
        slot->decision = call.decision;
        slot->generation = now;
      }
    }
    if (!made_here) call.decision = slot->decision;
    one_builder.unlock();
  }
  // A warning may need Python's lock, so it is given with none of ours held, nor that of a backward
  // that is decided by this forward.
  if (made_here && !call.decision->warning.empty()) warnings.push_back(call.decision->warning);
  if (slots_held == 0) {
    for (const std::string& text : std::exchange(warnings, {})) warn(text);
  }
  if (call.plan == nullptr && call.decision->algorithm) {
    call.plan = plan_of(problem, *call.decision->algorithm, policy, device);
  }
  return call;
}

// The decision for a call: remembered by this thread, by any thread, or made now.
Call find_call(const Problem& problem, const ResolvedPolicy& policy, const Device& device) {
  ThreadCache& cache = thread_cache();
  uint64_t now = decision_generation();
  if (cache.generation != now) {
    cache.calls.clear();
    cache.generation = now;
    uint64_t of_plans = plans_generation;
    if (cache.plans_generation != of_plans) cache.plans.clear();
    cache.plans_generation = of_plans;
  }
  Key key;
  append_key(key, problem);
  key.push(policy.id);
  key.push(place_of(problem, device));
  key.finish();
  if (Call* call = cache.calls.find(key); call != nullptr && call->decision->stands()) return *call;
  Call call = make_call(problem, policy, device);
  // Rules or the table may have changed meanwhile, and the cache been emptied.
  if (call.decision->keep && cache.generation == now) cache.calls.insert(key, call);
  return call;
}

Found Decider::find_as_forward(const Problem& forward) {
  Call call = find_call(forward, asked_, device_);
  if (call.plan == nullptr) {
    decision_->error = call.decision->error;
    return {};
  }
  decision_->keep = call.decision->keep;
  decision_->forward = call.decision;
  decision_->pinned = true;  // nothing else can read what the forward left
  Found found = try_algorithm(*call.decision->algorithm, kCoupled);
  if (found.plan == nullptr) found = try_spared(*call.decision->algorithm, kCoupled);
  if (found.plan == nullptr) found = try_beyond_backends(*call.decision->algorithm);
  if (found.plan == nullptr) {
    decision_->error = c10::str(op_of(problem_), ": ", refused_.back().first,
                                ", which its forward runs, cannot run: ", refused_.back().second,
                                where_it_failed(problem_, device_, policy_));
  }
  return found;
}

// A graph may be replayed when nothing here knows the plan any more, whose code it runs.
void keep_for_graph(const std::shared_ptr<Plan>& plan, const Device& device) {
  if (!plan->notes.has(Note::runtime_compilation)) return;
  if (runtime_of(device).is_capturing(device)) retain_until_exit(plan);
}

// Where no one insists on this algorithm, another runs from now on, and it is said so.
void mark_unsupported(const Problem& problem, const Call& call, const Device& device,
                      const UnsupportedAtRun& error) {
  const Algorithm& algorithm = call.plan->algorithm;
  remember_unsupported(plan_key(problem, algorithm, *call.decision->policy, device), error);
  call.decision->refused = true;
  warn(c10::str(op_of(problem), ": ", algorithm.text(), " was chosen (", call.decision->record->why,
                ") and refused the problem at its run, so another runs from now on: ",
                error.what_without_backtrace(), ". Problem: ", problem_text(problem)));
}

// A backward must run what its forward ran, and a pin says itself what follows.
bool insists(const Problem& problem, const Decision& decision) {
  if (!decision.pinned) return false;
  bool falls_back =
      decision.policy->policy.on_unsupported.value_or(OnUnsupported::error) != OnUnsupported::error;
  return !falls_back || operator_of(problem).forward_of(problem).has_value();
}

// Of what nothing may replace and refuses at its run: a pin, or what its forward ran.
std::string error_of_unsupported(const Problem& problem, const Call& call, const Device& device,
                                 const UnsupportedAtRun& error) {
  const Algorithm& algorithm = call.plan->algorithm;
  const ResolvedPolicy& policy = *call.decision->policy;
  std::string reason = error.what_without_backtrace();
  if (!operator_of(problem).forward_of(problem)) {
    return Decider(problem, policy, device).error_of_pin(algorithm, reason);
  }
  return c10::str(op_of(problem), ": ", algorithm.text(),
                  ", which its forward ran, cannot run: ", reason,
                  where_it_failed(problem, device, policy));
}

// The same for want of memory, where others are not even built.
std::string error_of_memory(const Problem& problem, const Call& call, const Device& device,
                            const c10::OutOfMemoryError& error) {
  bool coupled = operator_of(problem).forward_of(problem).has_value();
  const char* hint =
      "\n  (on_unsupported=warn or fallback takes one with a smaller workspace instead)";
  return c10::str(op_of(problem), coupled ? ": " : ": the pinned algorithm ",
                  call.plan->algorithm.text(), coupled ? ", which its forward ran," : "",
                  " cannot run: no memory (workspace: ", memory_text(call.plan->workspace_bytes),
                  "): ", error.what_without_backtrace(),
                  where_it_failed(problem, device, *call.decision->policy), coupled ? "" : hint);
}

// Whether a plan that ran out of memory may have changed its inputs before: the next one would once
// more. Plans that know their workspace take all memory first.
bool may_have_changed(const Problem& problem, const Plan& plan) {
  if (plan.workspace_bytes) return false;
  std::vector<SlotSpec> slots = operator_of(problem).slots(problem);
  return std::any_of(slots.begin(), slots.end(),
                     [](const SlotSpec& slot) { return slot.is_mutated; });
}

// A workspace could not be had: the next plan in rank order that fits, and it is said so.
void run_smaller(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
                 const Call& failed, Bindings& bindings, const std::string& failure) {
  std::vector<Ranked> order = failed.decision->ranking;
  if (order.empty()) {
    for (const std::string& name : whole_order(problem, device)) {
      for (Algorithm& a : algorithms_named(problem, name, device)) {
        order.push_back({std::move(a), std::nullopt});
      }
    }
  }
  int64_t limit = failed.plan->workspace_bytes.value_or(INT64_MAX);
  for (const auto& [algorithm, measured_bytes] : order) {
    if (limit == 0) break;
    bool no_smaller = measured_bytes && *measured_bytes >= limit;
    if (algorithm == failed.plan->algorithm || no_smaller) continue;
    if (find_unsupported(plan_key(problem, algorithm, policy, device))) continue;
    auto result = admissible_plan(problem, algorithm, policy, device);
    auto* usable = std::get_if<AdmissiblePlan>(&result);
    if (usable == nullptr) continue;
    // Of a plan that does not know its workspace the only proof is to run it.
    std::optional<int64_t> bytes = usable->plan->workspace_bytes;
    if (bytes && *bytes >= limit) continue;
    try {
      usable->plan->run(bindings);
    } catch (const c10::OutOfMemoryError&) {
      if (may_have_changed(problem, *usable->plan)) throw;
      limit = bytes.value_or(limit);
      continue;
    } catch (const UnsupportedAtRun& error) {
      remember_unsupported(plan_key(problem, algorithm, policy, device), error);
      continue;
    }
    keep_for_graph(usable->plan, device);
    std::string why =
        c10::str("fallback: no memory for the workspace of ", failed.plan->algorithm.text(), " (",
                 memory_text(failed.plan->workspace_bytes), ")");
    const DecisionRecord* record =
        intern_record(problem, algorithm, why, device, policy, usable->workspace_bytes, 0);
    note_last(problem, record);
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      warn(c10::str(record->problem, ": ", why, ", ", record->algorithm,
                    " ran instead (said once; verbose says it every time)"));
    }
    if (verbose()) print_decision(*record);
    return;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, op_of(problem), ": no memory to run ",
                   failed.plan->algorithm.text(),
                   " (workspace: ", memory_text(failed.plan->workspace_bytes),
                   "), and no algorithm with a smaller workspace could run",
                   "\n  problem: ", problem_text(problem), "\n  ", failure);
}

// The problem on tensors that are aligned; nullopt if it says so already.
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

// If no admissible algorithm takes tensors at these addresses, one may take copies that are
// aligned: hooks of autograd give a backward tensors at any address. False if that does not help,
// as where what is written is not aligned.
bool run_on_copies(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
                   Bindings& bindings) {
  std::optional<Problem> aligned = with_aligned_tensors(problem);
  if (!aligned || find_call(*aligned, policy, device).plan == nullptr) return false;
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

const ResolvedPolicy& with_rules(const Problem& problem, const ResolvedPolicy& policy) {
  if (!has_rules()) return policy;
  RuledPolicy rules = rules_for_all(problem);
  return rules.any ? add_level(policy, rules.policy, family_of(problem)) : policy;
}

bool was_unsupported_at_run(const Problem& problem, const Algorithm& algorithm,
                            const ResolvedPolicy& policy, const Device& device) {
  return find_unsupported(plan_key(problem, algorithm, policy, device)).has_value();
}

void remember_plan(const Problem& problem, const Algorithm& algorithm, const ResolvedPolicy& policy,
                   const Device& device, const std::shared_ptr<Plan>& plan) {
  thread_cache().plans.insert(plan_key(problem, algorithm, policy, device), plan);
}

std::variant<AdmissiblePlan, Unsupported> admissible_plan(const Problem& problem,
                                                          const Algorithm& algorithm,
                                                          const ResolvedPolicy& policy,
                                                          const Device& device) {
  std::vector<Problem> coupled = operator_of(problem).coupled(problem);
  bool all_known = std::all_of(coupled.begin(), coupled.end(), [&](const Problem& next) {
    return admitted_known_plan(next, algorithm, policy, device) != nullptr;
  });
  if (all_known) {
    if (auto known = admitted_known_plan(problem, algorithm, policy, device)) {
      return AdmissiblePlan{known, known->workspace_bytes, {}};
    }
  }
  auto result = build_admissible(problem, algorithm, policy, device);
  if (auto* admissible = std::get_if<AdmissiblePlan>(&result);
      admissible != nullptr && !device.is_target()) {
    for (size_t i = 0; i < coupled.size(); ++i) {
      remember_plan(coupled[i], algorithm, policy, device, admissible->coupled[i]);
    }
    remember_plan(problem, algorithm, policy, device, admissible->plan);
  }
  return result;
}

void execute(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
             Bindings& bindings) {
  OverrideGuard plain;
  // Operators cast their arguments above this; what plans are made of computes in those types.
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (is_dry_run()) {
    last_here = nullptr;
    return execute_dry(problem, device, bindings);
  }
  bool outer = std::exchange(follows_unsupported, false);  // of a call around this one
  auto done = c10::make_scope_exit([outer] { follows_unsupported = outer; });
  bindings.replay = Replay::where_it_pays;
  while (true) {
    Call call = find_call(problem, policy, device);
    if (call.plan == nullptr && run_on_copies(problem, policy, device, bindings)) return;
    TORCH_CHECK(call.plan != nullptr, call.decision->error);
    note_last(problem, call.decision->record);
    try {
      call.plan->run(bindings);
      keep_for_graph(call.plan, device);
      break;
    } catch (const c10::OutOfMemoryError& error) {
      if (insists(problem, *call.decision)) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, error_of_memory(problem, call, device, error));
      }
      bool has_workspace = call.plan->workspace_bytes != 0;
      if (!has_workspace || may_have_changed(problem, *call.plan)) throw;
      run_smaller(problem, *call.decision->policy, device, call, bindings,
                  error.what_without_backtrace());
      break;
    } catch (const UnsupportedAtRun& error) {
      if (insists(problem, *call.decision)) {
        TORCH_CHECK(false, error_of_unsupported(problem, call, device, error));
      }
      mark_unsupported(problem, call, device, error);
      follows_unsupported = true;
    }
  }
  record_call({last_here, {}});
}

at::Tensor writer_of_last(const at::Tensor& like) {
  return make_writer(last_here == nullptr ? 0 : last_here->writer, like);
}

const DecisionRecord& decide(const Problem& problem, std::optional<std::string_view> policy,
                             const Device& device) {
  OverrideGuard plain;
  const ResolvedPolicy& resolved = resolve_policy(family_of(problem), policy);
  if (device.is_target()) {
    // Nothing is kept and nothing could be run: the heuristic's or the pin's answer alone.
    auto [decision, plan] = Decider(problem, resolved, device).decide();
    TORCH_CHECK(plan != nullptr, decision->error);
    return *decision->record;
  }
  Call call = find_call(problem, resolved, device);
  TORCH_CHECK(call.plan != nullptr, call.decision->error);
  return *call.decision->record;
}

const DecisionRecord* last_decision(const std::optional<std::string>& op) {
  if (!op) return last_of_all.load(std::memory_order_acquire);
  for (const auto& slot : last_by_op) {
    const DecisionRecord* record = slot.load(std::memory_order_acquire);
    if (record != nullptr && record->op == *op) return record;
  }
  find_pass(*op);
  return nullptr;
}

void leave_plans() { plans_are_left = true; }

PlanCacheInfo plan_cache_info() {
  ThreadCache& cache = thread_cache();
  return {static_cast<int64_t>(cache.calls.size()), static_cast<int64_t>(cache.calls.capacity()),
          cache.calls.hits, cache.calls.misses};
}

void plan_cache_clear() {
  ThreadCache& cache = thread_cache();
  cache.calls.clear();
  cache.plans.clear();
  cache.plans_generation = ++plans_generation;
  {
    std::lock_guard<std::mutex> lock(unsupported_at_run_mutex);
    unsupported_at_run().clear();
  }
  {
    std::lock_guard<std::mutex> lock(decisions_mutex);
    decisions().clear();
  }
  next_decision_generation();  // other threads' next calls look
}

}  // namespace torch_cudnn_ext
