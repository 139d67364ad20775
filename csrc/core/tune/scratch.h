// Scratch tensors to measure on, and how plans run on them without a trace in the user's thread.
// Knows nothing of candidates and of time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "core/operator.h"
#include "core/plan.h"

namespace torch_cudnn_ext {

// Whether a run reads what is bound to the slot. An output is read if it is accumulated into.
bool holds_input(const Operator& op, const Problem& problem, const SlotSpec& slot);

// A tensor for one slot, with exactly the alignment that the problem states.
at::Tensor empty_for_slot(const SlotSpec& slot, const Problem& problem, const Device& device);

// Random inputs by role. An output is there only if it is accumulated into.
Bindings make_scratch(const Problem& problem, const Device& device, uint64_t seed);

// Calls `work` on the problem's device. What it does is not recorded, cast or traced, and if the
// problem is random, the user's generator is restored.
void on_scratch(const Problem& problem, const Device& device, c10::function_ref<void()> work);

// The allocator's peak during a run on these inputs, without the outputs. This is the workspace of
// a plan that does not state it. Called by on_scratch().
int64_t measured_workspace(const Problem& problem, Plan& plan, Bindings bindings,
                           const Device& device);

}  // namespace torch_cudnn_ext
