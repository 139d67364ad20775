// Decides which algorithm runs a problem: Problem + Policy + Device -> Decision. The only place
// that does: operators, the profiler and listings all come here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/select/decision_record.h"
#include "core/select/plan_store.h"

namespace torch_cudnn_ext {

// The decision for a call, remembered or made now. `after_unsupported` is set if the algorithm that
// was decided on before has just not supported the problem.
Call find_call(const Request& request, bool after_unsupported = false);

// Decides without running anything but what the decision itself needs. Throws if nothing can run.
const DecisionRecord& decide(const Problem& problem, std::optional<std::string_view> policy,
                             const Device& device);

// The error of a pin that cannot run: the reason, and what would work.
std::string error_of_pin(const Request& request, const Algorithm& algorithm,
                         const std::string& reason);
// The lines of an error that say what was to be decided.
std::string context_lines(const Request& request);

}  // namespace torch_cudnn_ext
