// Executes problems: decides, runs the plan, and takes another algorithm if that one turns out not
// to run. Operators call it.
#pragma once

#include "core/plan.h"
#include "core/policy/resolve.h"
#include "core/select/decision_record.h"

namespace torch_cudnn_ext {

// Runs on the current stream of the bindings' device.
void execute(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
             Bindings& bindings);

}  // namespace torch_cudnn_ext
