#include "core/policy/levels.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/thread_state.h"

namespace torch_cudnn_ext {

namespace {

template <class T>
void take_if_unset(std::optional<T>& strong, const std::optional<T>& weak) {
  if (!strong) strong = weak;
}

template <class T>
bool is_stricter(const std::optional<T>& cap, const std::optional<T>& other) {
  return cap && (!other || *cap < *other);
}

// The levels that all threads share.
struct SharedLevels {
  std::mutex mutex;
  Policy enabled, process;
};
SharedLevels& shared_levels() {
  static auto* levels = new SharedLevels();
  return *levels;
}
std::atomic<uint64_t> shared_version{1};

void set_shared(Policy SharedLevels::* level, Policy policy) {
  check_no_once(policy);
  {
    std::lock_guard<std::mutex> lock(shared_levels().mutex);
    shared_levels().*level = std::move(policy);
  }
  shared_version.fetch_add(1, std::memory_order_relaxed);
}

// The levels that this thread opened, outermost first.
struct ThreadLevels {
  struct Level {
    uint64_t id;
    Policy policy;
  };
  std::vector<Level> levels;
  uint64_t version = 0;

  Policy merged() const {
    Policy all;
    for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
      all = apply_level(all, level->policy);
    }
    return all;
  }
};
thread_local ThreadLevels thread_levels;

// A thread's own and inherited levels, which the threads that work for it inherit.
struct InheritedLevels : ThreadState<InheritedLevels> {
  static inline const std::string kKey = "torch_cudnn_ext.flags";
  std::thread::id made_by = std::this_thread::get_id();
  Policy policy;
  uint64_t version = 0;
  std::shared_ptr<const InheritedLevels> inherited;  // what the thread `made_by` inherited
};
std::atomic<int64_t> levels_open{0};  // on all threads: while there are none, nothing is inherited

// What this thread inherited; may be nullptr.
std::shared_ptr<const InheritedLevels> inherited_levels() {
  if (levels_open.load(std::memory_order_relaxed) == 0) return nullptr;
  auto passed = InheritedLevels::here();
  if (passed == nullptr) return nullptr;
  return passed->made_by == std::this_thread::get_id() ? passed->inherited : passed;
}

// Called after every change of this thread's levels.
void pass_on() {
  static std::atomic<uint64_t> last_version{0};
  ++thread_levels.version;
  auto passed = std::make_shared<InheritedLevels>();
  passed->inherited = inherited_levels();
  passed->policy = thread_levels.merged();
  if (passed->inherited) passed->policy = apply_level(passed->policy, passed->inherited->policy);
  passed->version = ++last_version;
  InheritedLevels::set(std::move(passed));
}

std::atomic<uint64_t> generation{1};
std::atomic<bool> verbose_on{false};

}  // namespace

Policy merge(const Policy& stronger, const Policy& weaker) {
  Policy out = stronger;
  out.selections.insert(weaker.selections.begin(), weaker.selections.end());
  if (is_stricter(weaker.max_workspace_bytes, out.max_workspace_bytes)) {
    out.max_workspace_bytes = weaker.max_workspace_bytes;
    out.max_workspace_unit = weaker.max_workspace_unit;
  }
  if (is_stricter(weaker.max_workspace_percent, out.max_workspace_percent)) {
    out.max_workspace_percent = weaker.max_workspace_percent;
  }
  if (weaker.deterministic.value_or(false)) out.deterministic = true;
  for (const BooleanField& field : kBooleanFields) {
    take_if_unset(out.*field.value, weaker.*field.value);
  }
  take_if_unset(out.prefer, weaker.prefer);
  take_if_unset(out.replay, weaker.replay);
  take_if_unset(out.on_unsupported, weaker.on_unsupported);
  take_if_unset(out.on_miss, weaker.on_miss);
  take_if_unset(out.backends, weaker.backends);
  for (size_t i = 0; i < out.compute.values.size(); ++i) {
    take_if_unset(out.compute.values[i], weaker.compute.values[i]);
  }
  return out;
}

Policy apply_level(const Policy& stronger, Policy weaker) {
  if (stronger.fastest.value_or(false)) weaker.selections.clear();
  if (stronger.fastest == false && weaker.fastest.value_or(false)) {
    weaker.benchmark.reset();
    if (weaker.prefer == Prefer::time) weaker.prefer.reset();
  }
  return merge(stronger, weaker);
}

void set_enabled_policy(Policy policy) { set_shared(&SharedLevels::enabled, std::move(policy)); }
void set_process_policy(Policy policy) { set_shared(&SharedLevels::process, std::move(policy)); }

Policy enabled_policy() {
  std::lock_guard<std::mutex> lock(shared_levels().mutex);
  return shared_levels().enabled;
}

uint64_t push_thread_policy(const Policy& policy) {
  static std::atomic<uint64_t> last_id{0};
  check_no_once(policy);
  uint64_t id = ++last_id;
  thread_levels.levels.push_back({id, policy});
  ++levels_open;
  pass_on();
  return id;
}

void pop_thread_policy(uint64_t id) {
  auto& levels = thread_levels.levels;
  auto found = std::find_if(levels.begin(), levels.end(),
                            [id](const ThreadLevels::Level& level) { return level.id == id; });
  TORCH_CHECK(found != levels.end(),
              "flags: a block is closed that was opened on another thread, where its knobs hold "
              "until it is closed there");
  levels.erase(found);
  pass_on();
  --levels_open;
}

CurrentLevels current_levels() {
  CurrentLevels now;
  {
    std::lock_guard<std::mutex> lock(shared_levels().mutex);
    now.enabled = shared_levels().enabled;
    now.process = shared_levels().process;
  }
  now.thread = thread_levels.merged();
  if (auto inherited = inherited_levels()) now.inherited = inherited->policy;
  return now;
}

LevelsVersion levels_version() {
  auto inherited = inherited_levels();
  return {shared_version.load(std::memory_order_relaxed), thread_levels.version,
          inherited == nullptr ? 0 : inherited->version};
}

void check_no_once(const Policy& policy, std::string_view family) {
  std::string prefix = family.empty() ? "" : c10::str(family, "_");
  for (const auto& [op, selection] : policy.selections) {
    bool checked = op.compare(0, prefix.size(), prefix) == 0;
    TORCH_CHECK_VALUE(!checked || !selection.is_once(), "policy: ", op, " is ", selection.text(),
                      ", which keeps the first decision in a module's state; an operator has none. "
                      "Use it on a torch_cudnn_ext.nn module, or use heuristic or autotune");
  }
}

uint64_t decision_generation() { return generation.load(std::memory_order_relaxed); }
void next_decision_generation() { generation.fetch_add(1, std::memory_order_relaxed); }

bool verbose() { return verbose_on.load(std::memory_order_relaxed); }
void set_verbose(bool on) {
  bool was_on = verbose_on.exchange(on, std::memory_order_relaxed);
  if (on && !was_on) next_decision_generation();
}

}  // namespace torch_cudnn_ext
