#include "core/select/attempts.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "core/backend.h"
#include "core/operator.h"
#include "core/select/hints.h"
#include "core/select/plan_store.h"
#include "core/tune/measure.h"

namespace torch_cudnn_ext {

namespace {

// The algorithms that an entry of an order names: one, or all of a backend.
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

// What was measured to lead, the family's order, and all backends that it leaves out: constraints
// may admit nothing else.
std::vector<std::string> whole_order(const Problem& problem, const Device& device) {
  std::vector<std::string> order{"aten", "cpu"};
  if (device.has_gpu_backends()) {
    order = hints_for(problem, device);
    for (std::string& name : operator_of(problem).heuristic_order(problem)) {
      order.push_back(std::move(name));
    }
  }
  for (const std::string& name : backend_names()) {
    bool known = std::find(order.begin(), order.end(), name) != order.end();
    bool has_family = find_backend(name)->find(family_of(problem)) != nullptr;
    if (!known && has_family) order.push_back(name);
  }
  return order;
}

}  // namespace

std::vector<Algorithm> algorithms_in_order(const Problem& problem, const Device& device) {
  std::vector<Algorithm> list;
  for (const std::string& name : whole_order(problem, device)) {
    for (Algorithm& a : algorithms_named(problem, name, device)) list.push_back(std::move(a));
  }
  return list;
}

Found Attempts::try_algorithm(const Request& request, const Algorithm& algorithm,
                              const std::string& why, bool retries) {
  if (auto reason = unsupported_at_run(request, algorithm); reason && !retries) {
    ruled_out.emplace_back(algorithm.text(), *reason);
    return {};
  }
  auto result = admissible_plan(request, algorithm);
  if (auto* unsupported = std::get_if<Unsupported>(&result)) {
    ruled_out.emplace_back(algorithm.text(), unsupported->reason);
    is_transient |= unsupported->transient;
    return {};
  }
  auto& admissible = std::get<AdmissiblePlan>(result);
  return {admissible.plan, admissible.workspace_bytes, why};
}

Found Attempts::try_in_order(const Request& request, const std::string& why) {
  const auto& [problem, policy, device] = request;
  bool least_memory = policy.policy.prefer == Prefer::memory;
  Found best;
  for (const std::string& name : whole_order(problem, device)) {
    std::string reason = exclusion_by_backend(name.substr(0, name.find(':')), policy, device);
    if (!reason.empty()) {
      ruled_out.emplace_back(name, reason);
      continue;
    }
    for (const Algorithm& algorithm : algorithms_named(problem, name, device)) {
      Found found = try_algorithm(request, algorithm, why);
      if (!found) continue;
      if (!least_memory || found.workspace_bytes == 0) return found;
      bool smaller = !best || (found.workspace_bytes &&
                               *found.workspace_bytes < best.workspace_bytes.value_or(INT64_MAX));
      if (smaller) best = found;
    }
  }
  return best;
}

std::string Attempts::others_that_run(const Request& request, const Algorithm& pinned) const {
  const auto& [problem, policy, device] = request;
  constexpr size_t kShown = 8;
  std::vector<std::string> shown;
  for (const std::string& name : backend_names()) {
    for (const Algorithm& algorithm : algorithms_named(problem, name, device)) {
      std::string text = algorithm.text();
      bool tried = std::any_of(ruled_out.begin(), ruled_out.end(),
                               [&](const auto& entry) { return entry.first == text; });
      if (tried || algorithm == pinned) continue;
      if (unsupported_at_run(request, algorithm)) continue;
      auto result = build_admissible(problem, algorithm, policy, device);
      if (std::holds_alternative<Unsupported>(result)) continue;
      if (shown.size() == kShown) return c10::Join(", ", shown) + " and others";
      shown.push_back(std::move(text));
    }
  }
  return c10::Join(", ", shown);
}

std::string Attempts::reasons() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> folded;  // names by reason
  for (const auto& [name, reason] : ruled_out) {
    auto same = std::find_if(folded.begin(), folded.end(), [&, &text = reason](const auto& entry) {
      return entry.first == text;
    });
    if (same == folded.end()) same = folded.insert(folded.end(), {reason, {}});
    auto& names = same->second;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string out = "\n  reasons:";
  for (const auto& [reason, names] : folded) {
    out += c10::str("\n    ", reason, ": ", names[0]);
    if (names.size() > 1) out += c10::str(" and ", names.size() - 1, " more");
  }
  return out;
}

}  // namespace torch_cudnn_ext
