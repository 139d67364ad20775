#include "core/policy/policy.h"

#include <algorithm>

#include "core/backend.h"
#include "core/operator.h"

namespace torch_cudnn_ext {

std::optional<Compute> ComputeByType::of(c10::ScalarType data) const {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == data) return values[i];
  }
  return std::nullopt;
}

bool ComputeByType::is_set() const {
  return std::any_of(values.begin(), values.end(), [](const auto& value) { return !!value; });
}

Replay Policy::replay_of_calls() const {
  switch (replay.value_or(ReplayMode::off)) {
    case ReplayMode::off:
      return Replay::never;
    case ReplayMode::graphs:
      return Replay::graphs;
    case ReplayMode::kernels:
      return Replay::kernels;
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::string Policy::constraints_text(const Problem& problem) const {
  Policy kept = *this;
  kept.selections.clear();
  kept.benchmark.reset();
  kept.fastest.reset();
  kept.on_unsupported.reset();
  kept.on_miss.reset();
  kept.compute = {};  // the problem holds it
  kept.max_workspace_unit = {};
  for (const BooleanField& field : kBooleanFields) {
    if (kept.*field.value == false) (kept.*field.value).reset();  // the default
  }
  if (kept.prefer == Prefer::time) kept.prefer.reset();
  if (kept.replay == ReplayMode::off) kept.replay.reset();
  std::vector<std::string> all = backend_names();
  bool admits_all = std::all_of(all.begin(), all.end(),
                                [&](const auto& name) { return kept.admits_backend(name); });
  if (admits_all) kept.backends.reset();
  // Only products of float32 data can use TF32.
  const Operator& op = operator_of(problem);
  bool has_products = op.float32_op().has_value();
  if (!has_products || op.slots(problem)[0].spec.dtype != c10::ScalarType::Float) {
    kept.allow_tf32.reset();
  }
  return kept.text(family_of(problem));
}

bool Policy::admits_all_of(const Policy& others) const {
  auto has_room = [](const auto& cap, const auto& other) {
    return !cap || (other && *other <= *cap);
  };
  std::vector<std::string> all = backend_names();
  bool has_backends = std::all_of(all.begin(), all.end(), [&](const std::string& name) {
    return admits_backend(name) || !others.admits_backend(name);
  });
  auto rest = [](Policy policy) {
    policy.max_workspace_bytes.reset();
    policy.max_workspace_percent.reset();
    policy.deterministic.reset();
    policy.backends.reset();
    return policy.text("");
  };
  return has_room(max_workspace_bytes, others.max_workspace_bytes) &&
         has_room(max_workspace_percent, others.max_workspace_percent) && has_backends &&
         (!deterministic.value_or(false) || others.deterministic.value_or(false)) &&
         rest(*this) == rest(others);
}

std::optional<int64_t> Policy::workspace_cap(const Device& device) const {
  if (!max_workspace_percent) return max_workspace_bytes;
  auto total = static_cast<double>(runtime_of(device).total_memory_bytes(device));
  auto share = static_cast<int64_t>(total * *max_workspace_percent / 100);
  return std::min(share, max_workspace_bytes.value_or(share));
}

bool Policy::admits_backend(const std::string& name) const {
  return !backends || std::find(backends->begin(), backends->end(), name) != backends->end();
}

}  // namespace torch_cudnn_ext
