#include "core/select/admit.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/tune/scratch.h"

namespace torch_cudnn_ext {

std::string exclusion_by_backend(const std::string& backend, const ResolvedPolicy& policy,
                                 const Device& device) {
  if (!policy.policy.admits_backend(backend)) {
    return c10::str("excluded by backends=", c10::Join(",", *policy.policy.backends));
  }
  bool cudnn = backend == "graph" || backend == "legacy";
  if (cudnn && !policy.switches.has(Switches::kCudnnEnabled)) {
    return "excluded: torch.backends.cudnn.enabled is False";
  }
  if (cudnn && !device.has_gpu_backends()) return kGpuOnly;
  return "";
}

std::string exclusion_by_notes(const Notes& notes, const ResolvedPolicy& policy) {
  const Policy& p = policy.policy;
  if (notes.has(Note::tf32) && !p.allow_tf32.value_or(false)) {
    return "excluded: may use TF32 for float32 data (allow it with allow_tf32)";
  }
  if (notes.has(Note::down_convert) && !p.allow_down_convert.value_or(false)) {
    return "excluded: converts to or accumulates in a smaller type (allow it with "
           "allow_down_convert)";
  }
  if (notes.has(Note::low_accuracy) && !p.allow_down_convert.value_or(false)) {
    return "excluded: may be less accurate than float32 products, as Winograd with large tiles is "
           "(allow it with allow_down_convert)";
  }
  if (notes.has(Note::reduced_range) && !p.allow_reduced_range.value_or(false)) {
    return "excluded: has a reduced range (allow it with allow_reduced_range)";
  }
  if (notes.has(Note::nondeterministic) && p.deterministic.value_or(false)) {
    return "excluded by deterministic: its results can differ from run to run";
  }
  return "";
}

std::string exclusion_by_workspace(int64_t bytes, const ResolvedPolicy& policy,
                                   const Device& device) {
  std::optional<int64_t> cap = policy.policy.workspace_cap(device);
  if (!cap || bytes <= *cap) return "";
  return c10::str("excluded by max_workspace=", *cap, ": it needs ", bytes, " bytes");
}

std::string exclusion_by_plan(const Plan& plan, int64_t workspace_bytes,
                              const ResolvedPolicy& policy, const Device& device) {
  std::string reason = exclusion_by_notes(plan.notes, policy);
  return reason.empty() ? exclusion_by_workspace(workspace_bytes, policy, device) : reason;
}

namespace {

// A backward runs on the reserve that its forward leaves.
int64_t workspace_on_scratch(const Problem& problem, Plan& plan, const Device& device) {
  Bindings bindings = make_scratch(problem, device, 0);
  const Operator& op = operator_of(problem);
  if (auto forward = op.forward_of(problem)) {
    BuildResult built = build(*forward, plan.algorithm, device);
    if (auto* unsupported = std::get_if<Unsupported>(&built)) {
      TORCH_CHECK(false, "its forward cannot be built: ", unsupported->reason);
    }
    Bindings made = make_scratch(*forward, device, 0);
    std::get<std::shared_ptr<Plan>>(built)->run(made);
    for (const SlotSpec& slot : op.slots(problem)) {
      if (!slot.is_output && made[slot.role].defined()) bindings[slot.role] = made[slot.role];
    }
  }
  return measured_workspace(problem, plan, std::move(bindings), device);
}

}  // namespace

std::variant<std::optional<int64_t>, Unsupported> workspace_for_cap(const Problem& problem,
                                                                    Plan& plan,
                                                                    const ResolvedPolicy& policy,
                                                                    const Device& device) {
  bool wanted = policy.policy.workspace_cap(device).has_value() && !device.is_target();
  if (plan.workspace_bytes || !wanted) return plan.workspace_bytes;
  constexpr bool kDriver = false;
  if (runtime_of(device).is_capturing(device)) {
    return Unsupported{
        "its memory cannot be measured while the stream is being captured into a "
        "CUDA graph; run it once before capturing",
        kDriver, /*transient=*/true};
  }
  try {
    int64_t bytes = 0;
    for (int run = 0; run < 2; ++run) {  // the first may allocate what stays
      on_scratch(problem, device, [&] { bytes = workspace_on_scratch(problem, plan, device); });
    }
    return bytes;
  } catch (const c10::Error& error) {
    bool memory = is_out_of_memory(error);
    return Unsupported{c10::str("its memory could not be measured, since it failed to run: ",
                                memory ? "out of memory" : error.what_without_backtrace()),
                       kDriver, memory};
  }
}

std::variant<AdmissiblePlan, Unsupported> build_admissible(const Problem& problem,
                                                           const Algorithm& algorithm,
                                                           const ResolvedPolicy& policy,
                                                           const Device& device) {
  std::string reason = exclusion_by_backend(algorithm.backend, policy, device);
  if (!reason.empty()) return Unsupported{reason};
  if (auto notes = notes_before_building(problem, algorithm, device)) {
    reason = exclusion_by_notes(*notes, policy);
    if (!reason.empty()) return Unsupported{reason};
  }
  BuildResult built = build(problem, algorithm, device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) return *unsupported;
  std::vector<std::shared_ptr<Plan>> coupled;
  for (const Problem& next : operator_of(problem).coupled(problem)) {
    auto admissible = build_admissible(next, algorithm, policy, device);
    if (auto* unsupported = std::get_if<Unsupported>(&admissible)) {
      unsupported->reason = c10::str(op_of(next), ": ", unsupported->reason);
      return *unsupported;
    }
    coupled.push_back(std::get<AdmissiblePlan>(admissible).plan);
  }
  auto plan = std::get<std::shared_ptr<Plan>>(built);
  auto workspace = workspace_for_cap(problem, *plan, policy, device);
  if (auto* unsupported = std::get_if<Unsupported>(&workspace)) return *unsupported;
  auto bytes = std::get<std::optional<int64_t>>(workspace);
  reason = exclusion_by_plan(*plan, bytes.value_or(0), policy, device);
  if (!reason.empty()) return Unsupported{reason};
  return AdmissiblePlan{plan, bytes, std::move(coupled)};
}

}  // namespace torch_cudnn_ext
