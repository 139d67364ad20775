// Which algorithms the constraints of a policy admit, and why they exclude the others. Knows
// nothing of how one of the admissible algorithms is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "core/plan.h"
#include "core/policy/resolve.h"

namespace torch_cudnn_ext {

// Why cuDNN's algorithms are excluded on a CPU.
inline constexpr const char* kGpuOnly = "cuDNN runs on CUDA devices only";

// Why the constraints exclude a backend, what has these notes, what needs this workspace, or a plan
// with this workspace. Empty if they do not. Only the last one needs a plan.
std::string exclusion_by_backend(const std::string& backend, const ResolvedPolicy& policy,
                                 const Device& device);
std::string exclusion_by_notes(const Notes& notes, const ResolvedPolicy& policy);
std::string exclusion_by_workspace(int64_t bytes, const ResolvedPolicy& policy,
                                   const Device& device);
std::string exclusion_by_plan(const Plan& plan, int64_t workspace_bytes,
                              const ResolvedPolicy& policy, const Device& device);

// The workspace that a plan states. If it states none and there is a cap, the workspace of a run.
// That of a target, which runs nothing, stays unknown.
std::variant<std::optional<int64_t>, Unsupported> workspace_for_cap(const Problem& problem,
                                                                    Plan& plan,
                                                                    const ResolvedPolicy& policy,
                                                                    const Device& device);

// A plan that the constraints admit, or the reason why there is none.
std::variant<AdmissiblePlan, Unsupported> build_admissible(const Problem& problem,
                                                           const Algorithm& algorithm,
                                                           const ResolvedPolicy& policy,
                                                           const Device& device);

}  // namespace torch_cudnn_ext
