#include "core/policy/resolve.h"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/policy/policy_text.h"
#include "torch/compat.h"

namespace torch_cudnn_ext {

namespace {

Switches read_switches(std::string_view family) {
  const at::Context& context = at::globalContext();
  // The operator's own switch: reading the old allow_tf32 can raise once the new one is set.
  const Operator& its_operator = find_operator(family);
  std::optional<at::Float32Op> op = its_operator.float32_op();
  Switches switches;
  auto set = [&](uint8_t bit, bool on) {
    if (on) switches.bits |= bit;
  };
  set(Switches::kDeterministic, context.deterministicCuDNN() || context.deterministicAlgorithms());
  set(Switches::kAllowTf32, op && is_tf32(*op));
  set(Switches::kTf32Products, op && is_tf32(at::Float32Op::MATMUL));
  set(Switches::kStrict,
      context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly());
  set(Switches::kBenchmark, context.benchmarkCuDNN());
  set(Switches::kCudnnEnabled, context.userEnabledCuDNN());
  DepthwiseKernel depthwise =
      its_operator.obeys_depthwise_kernel() ? depthwise_kernel() : DepthwiseKernel::automatic;
  set(Switches::kDepthwiseCudnn, depthwise == DepthwiseKernel::cudnn);
  set(Switches::kDepthwiseNative, depthwise == DepthwiseKernel::native);
  return switches;
}

Policy policy_of(Switches switches) {
  Policy policy;
  if (switches.has(Switches::kDeterministic)) policy.deterministic = true;
  policy.allow_tf32 = switches.has(Switches::kAllowTf32);
  if (switches.has(Switches::kBenchmark)) policy.benchmark = true;
  return policy;
}

// The constraints of which the strictest of all levels holds.
Policy cumulative_constraints(const Policy& level) {
  Policy kept;
  kept.max_workspace_bytes = level.max_workspace_bytes;
  kept.max_workspace_unit = level.max_workspace_unit;
  kept.max_workspace_percent = level.max_workspace_percent;
  kept.deterministic = level.deterministic;
  return kept;
}

const ResolvedPolicy& intern(std::string_view family, ResolvedPolicy made) {
  check_no_once(made.policy, family);
  std::string name(family);
  made.text = made.policy.text(name);
  made.saved = saved_with(made, {}, family);
  std::string key = c10::str(family, "|", static_cast<int>(made.switches.bits), "|", made.saved,
                             "|", made.enabled.text(name));
  static std::mutex mutex;
  static auto* interned = new std::map<std::string, std::unique_ptr<ResolvedPolicy>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*interned)[key];
  if (entry == nullptr) {
    made.id = static_cast<int64_t>(interned->size());
    entry = std::make_unique<ResolvedPolicy>(std::move(made));
  }
  return *entry;
}

const ResolvedPolicy& resolve_anew(const std::string& family, std::string_view argument,
                                   Switches switches, const CurrentLevels& levels) {
  ResolvedPolicy made{};
  made.switches = switches;
  made.enabled = levels.enabled;
  // A saved policy holds all that was said at its time. What is said now can only be stricter.
  std::optional<SavedPolicy> saved = parse_saved_policy(argument, family);
  bool keeps_baseline = saved && saved->baseline_may_be_nondeterministic;
  if (saved) {
    made.argument = saved->call;
    if (keeps_baseline) saved->all.deterministic.reset();
    made.policy = merge(made.argument, saved->all);
  } else {
    made.policy = made.argument = parse_policy(argument, family);
  }
  auto add = [&](const Policy& level) {
    made.policy = apply_level(made.policy, saved ? cumulative_constraints(level) : level);
  };
  add(levels.enabled);
  add(levels.thread);
  add(levels.inherited);
  add(levels.process);
  bool demanded = made.policy.deterministic.value_or(false) || switches.has(Switches::kStrict);
  add(policy_of(switches));
  if (keeps_baseline) made.policy.deterministic = true;
  made.baseline_may_be_nondeterministic = made.policy.deterministic.value_or(false) && !demanded;
  return intern(family, std::move(made));
}

// The policies that this thread resolved: found again by a hash and a comparison, without a lock.
struct ResolveCache {
  struct Entry {
    std::string family, argument;
    uint8_t switches = 0;
    const ResolvedPolicy* resolved = nullptr;
  };
  static constexpr size_t kCapacity = 1024;  // then all is forgotten
  std::unordered_map<size_t, Entry> entries;
  LevelsVersion version;
};
thread_local ResolveCache resolve_cache;

}  // namespace

bool is_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

const ResolvedPolicy& resolve_policy(std::string_view family,
                                     std::optional<std::string_view> argument) {
  Switches switches = read_switches(family);
  ResolveCache& cache = resolve_cache;
  LevelsVersion now = levels_version();
  if (cache.version != now || cache.entries.size() >= ResolveCache::kCapacity) {
    cache.entries.clear();
    cache.version = now;
  }
  std::string_view text = argument.value_or("");
  ResolveCache::Entry& entry = cache.entries[c10::get_hash(family, text, switches.bits)];
  bool known = entry.resolved != nullptr && entry.family == family &&
               entry.switches == switches.bits && entry.argument == text;
  if (!known) {
    std::string name(family);
    const ResolvedPolicy& resolved = resolve_anew(name, text, switches, current_levels());
    entry = {std::move(name), std::string(text), switches.bits, &resolved};
  }
  return *entry.resolved;
}

const ResolvedPolicy& resolve_alone(const std::string& family, std::string_view argument) {
  return resolve_anew(family, argument, read_switches(family), {});
}

const ResolvedPolicy& add_rules(const ResolvedPolicy& resolved, const Policy& rules,
                                std::string_view family) {
  ResolvedPolicy made = resolved;
  made.policy = apply_level(apply_level(resolved.argument, rules), resolved.policy);
  if (rules.deterministic.value_or(false)) made.baseline_may_be_nondeterministic = false;
  return intern(family, std::move(made));
}

std::string saved_with(const ResolvedPolicy& resolved, const Policy& more,
                       std::string_view family) {
  SavedPolicy saved{merge(more, resolved.argument), resolved.policy,
                    resolved.baseline_may_be_nondeterministic};
  return saved.text(std::string(family));
}

}  // namespace torch_cudnn_ext
