#include "core/select/plan_store.h"

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/backend.h"
#include "core/base/lru_cache.h"
#include "core/caution.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/select/admit.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

constexpr size_t kCallsPerThread = 1024;
constexpr size_t kPlansPerThread = 1024;
constexpr size_t kSharedDecisions = 65536;

struct KeyHash {
  size_t operator()(const Key& key) const { return key.hash(); }
};

// What one thread remembers.
struct ThreadStore {
  LruCache<Key, Call, KeyHash> calls{kCallsPerThread};
  // Plans outlive a change of knobs, so that going back to a pin builds nothing.
  LruCache<std::string, std::shared_ptr<Plan>, std::hash<std::string>> plans{kPlansPerThread};
  uint64_t generation = 0, plans_generation = 0;
};
std::atomic<uint64_t> plans_generation{0};  // grows when all threads' plans are to be forgotten
std::atomic<bool> leaks_plans{false};

ThreadStore& thread_store() {
  struct Owner {
    ThreadStore* const store = new ThreadStore();
    ~Owner() {
      if (!leaks_plans) delete store;
    }
  };
  static thread_local Owner owner;
  return *owner.store;
}

// A decision that threads share.
struct SharedSlot {
  std::timed_mutex mutex;  // held by the thread that decides
  std::atomic<std::thread::id> builder;
  uint64_t generation = 0;
  std::shared_ptr<const Decision> decision;
};
// What all threads remember together.
struct SharedStore {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<SharedSlot>> decisions;
  std::unordered_map<std::string, std::string> unsupported_at_run;  // reasons by plan key
};
SharedStore& shared_store() {
  static auto* store = new SharedStore();
  return *store;
}

// PyTorch's switches are part of a plan's key because `aten` plans read them.
std::string plan_key(const Request& request, const Algorithm& algorithm) {
  return c10::str(problem_text(request.problem), "|", algorithm.text(), "|", request.device.code(),
                  "|", static_cast<int>(request.policy.switches.bits));
}

// A plan that this thread remembers, if the constraints admit it.
std::shared_ptr<Plan> known_admissible_plan(const Request& request, const Algorithm& algorithm) {
  const auto& [problem, policy, device] = request;
  auto* known = thread_store().plans.find(plan_key(request, algorithm));
  if (known == nullptr || !(*known)->workspace_bytes) return nullptr;
  bool admitted = exclusion_by_backend(algorithm.backend, policy, device).empty() &&
                  exclusion_by_plan(**known, *(*known)->workspace_bytes, policy, device).empty();
  return admitted ? *known : nullptr;
}

// The plan of a decision's algorithm, remembered by this thread or built.
std::shared_ptr<Plan> plan_of(const Request& request, const Algorithm& algorithm) {
  auto& plans = thread_store().plans;
  std::string key = plan_key(request, algorithm);
  if (auto* known = plans.find(key)) return *known;
  BuildResult built = build(request.problem, algorithm, request.device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) {
    TORCH_CHECK(false, op_of(request.problem), ": ", algorithm.text(),
                " was chosen but cannot be built: ", unsupported->reason,
                "\n  problem: ", problem_text(request.problem));
  }
  return *plans.insert(std::move(key), std::get<std::shared_ptr<Plan>>(built));
}

// The device that a decision is for. On the CPU it includes the number of threads, for which the
// decision was tuned. A backward that reads its forward's reserve runs the forward's algorithm, so
// coupled passes leave the number out.
int64_t device_code(const Request& request) {
  const Device& device = request.device;
  bool for_all =
      device.has_gpu_backends() || !operator_of(request.problem).coupled(request.problem).empty();
  return for_all ? device.code() : Device{device.kind, at::get_num_threads()}.code();
}

thread_local int slots_held = 0;  // by this thread
thread_local std::vector<std::string> warnings;

// Another thread may tune for seconds, so the user can interrupt the wait.
void wait_for_builder(std::unique_lock<std::timed_mutex>& one_builder) {
  constexpr std::chrono::milliseconds kBetweenChecks(50);
  bool locked = false;
  while (!locked) {
    wait_for_others([&] { locked = one_builder.try_lock_for(kBetweenChecks); });
    if (!locked) check_interrupt();
  }
}

// Decides, unless a valid decision is in the slot.
Call find_in_slot(SharedSlot& slot, const Device& device, MakeDecision make) {
  std::unique_lock<std::timed_mutex> one_builder(slot.mutex, std::defer_lock);
  // A thread that tunes may wait for autograd's thread of the device, which runs its reference's
  // gradients.
  bool may_be_awaited = device.is_cuda() && is_in_autograd_node();
  bool must_not_wait =
      slot.builder == std::this_thread::get_id() || (may_be_awaited && !one_builder.try_lock());
  if (must_not_wait) return make(true);
  if (!one_builder.owns_lock()) wait_for_builder(one_builder);
  ++slots_held;
  auto released = c10::make_scope_exit([] { --slots_held; });
  uint64_t now = decision_generation();
  if (slot.decision != nullptr && slot.generation == now && slot.decision->is_valid()) {
    return {slot.decision, nullptr};
  }
  slot.builder = std::this_thread::get_id();
  auto done = c10::make_scope_exit([&] { slot.builder = std::thread::id(); });
  Call call = make(false);
  if (call.decision->is_kept) {
    slot.decision = call.decision;
    slot.generation = now;
  }
  return call;
}

// The decision that threads share, or one made now, with this thread's plan.
Call find_shared(const Request& request, MakeDecision make) {
  std::string key =
      c10::str(problem_text(request.problem), "|", request.policy.id, "|", device_code(request));
  std::shared_ptr<SharedSlot> slot;
  {
    std::lock_guard<std::mutex> lock(shared_store().mutex);
    auto& decisions = shared_store().decisions;
    if (decisions.size() >= kSharedDecisions) decisions.clear();
    auto& entry = decisions[key];
    if (entry == nullptr) entry = std::make_shared<SharedSlot>();
    slot = entry;
  }
  bool made_here = false;
  Call call = find_in_slot(*slot, request.device, [&](bool must_not_wait) {
    made_here = true;
    return make(must_not_wait);
  });
  // A warning may need Python's lock, so it is given while this thread holds no slot: neither this
  // one, nor that of a backward whose decision waits for this forward's.
  if (made_here && !call.decision->warning.empty()) warnings.push_back(call.decision->warning);
  if (slots_held == 0) {
    for (const std::string& text : std::exchange(warnings, {})) warn(text);
    give_caution_once(request.device);
  }
  if (call.plan == nullptr && call.decision->algorithm) {
    call.plan = plan_of(request, *call.decision->algorithm);
  }
  return call;
}

}  // namespace

Call find_or_make_call(const Request& request, MakeDecision make) {
  ThreadStore& store = thread_store();
  uint64_t now = decision_generation();
  if (store.generation != now) {
    store.calls.clear();
    store.generation = now;
    uint64_t of_plans = plans_generation;
    if (store.plans_generation != of_plans) store.plans.clear();
    store.plans_generation = of_plans;
  }
  Key key;
  append_key(key, request.problem);
  key.push(request.policy.id);
  key.push(device_code(request));
  key.finish();
  if (Call* call = store.calls.find(key); call && call->decision->is_valid()) return *call;
  Call call = find_shared(request, make);
  // Meanwhile rules or the tuning table may have changed, and a nested call cleared the store.
  if (call.decision->is_kept && store.generation == now) store.calls.insert(key, call);
  return call;
}

void count_remembered_call() { ++thread_store().calls.hits; }

std::variant<AdmissiblePlan, Unsupported> admissible_plan(const Request& request,
                                                          const Algorithm& algorithm) {
  const auto& [problem, policy, device] = request;
  std::vector<Problem> coupled = operator_of(problem).coupled(problem);
  bool all_known = std::all_of(coupled.begin(), coupled.end(), [&](const Problem& next) {
    return known_admissible_plan({next, request.policy, request.device}, algorithm) != nullptr;
  });
  if (all_known) {
    if (auto known = known_admissible_plan(request, algorithm)) {
      return AdmissiblePlan{known, known->workspace_bytes, {}};
    }
  }
  auto result = build_admissible(problem, algorithm, policy, device);
  if (auto* admissible = std::get_if<AdmissiblePlan>(&result);
      admissible != nullptr && !device.is_target()) {
    for (size_t i = 0; i < coupled.size(); ++i) {
      remember_plan({coupled[i], policy, device}, algorithm, admissible->coupled[i]);
    }
    remember_plan(request, algorithm, admissible->plan);
  }
  return result;
}

void remember_plan(const Request& request, const Algorithm& algorithm, std::shared_ptr<Plan> plan) {
  thread_store().plans.insert(plan_key(request, algorithm), std::move(plan));
}

std::optional<std::string> unsupported_at_run(const Request& request, const Algorithm& algorithm) {
  std::string key = plan_key(request, algorithm);
  std::lock_guard<std::mutex> lock(shared_store().mutex);
  auto& reasons = shared_store().unsupported_at_run;
  auto known = reasons.find(key);
  return known == reasons.end() ? std::nullopt : std::optional(known->second);
}

void remember_unsupported(const Request& request, const Algorithm& algorithm,
                          const std::string& error) {
  std::string key = plan_key(request, algorithm);
  std::lock_guard<std::mutex> lock(shared_store().mutex);
  shared_store().unsupported_at_run[key] = "it did not support the problem when it ran: " + error;
}

void leak_plans_at_exit() { leaks_plans = true; }

PlanCacheInfo plan_cache_info() {
  auto& calls = thread_store().calls;
  return {static_cast<int64_t>(calls.size()), static_cast<int64_t>(calls.capacity()), calls.hits,
          calls.misses};
}

void plan_cache_clear() {
  ThreadStore& store = thread_store();
  store.calls.clear();
  store.plans.clear();
  store.plans_generation = ++plans_generation;
  {
    std::lock_guard<std::mutex> lock(shared_store().mutex);
    shared_store().unsupported_at_run.clear();
    shared_store().decisions.clear();
  }
  next_decision_generation();  // other threads' next calls see it
}

}  // namespace torch_cudnn_ext
