// Scratch tensors to measure on, and the guard under which plans run on them and the user's thread
// notices nothing. Knows nothing of candidates and of time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/operator.h"
#include "core/plan.h"

namespace torch_cudnn_ext {

// Whether a run reads what is bound to the slot. An output is read if it is accumulated into.
bool holds_input(const Operator& op, const Problem& problem, const SlotSpec& slot);

// A tensor for one slot, with exactly the alignment that the problem states.
at::Tensor empty_for_slot(const SlotSpec& slot, const Problem& problem, const Device& device);

// Random inputs by role. An output is there only if it is accumulated into.
Bindings make_scratch(const Problem& problem, const Device& device, uint64_t seed);

// Scratch work is not recorded, cast or traced, and runs on the problem's device. Restores the
// user's generator if the problem is random.
class ScratchGuard {
 public:
  ScratchGuard(const Problem& problem, const Device& device);
  ~ScratchGuard();
  ScratchGuard(const ScratchGuard&) = delete;
  ScratchGuard& operator=(const ScratchGuard&) = delete;

 private:
  struct Guards;
  const std::unique_ptr<Guards> guards_;
};

// The allocator's peak during a run on these inputs, without the outputs. This is the workspace of
// a plan that does not state it. The caller holds a ScratchGuard.
int64_t measured_workspace(const Problem& problem, Plan& plan, Bindings bindings,
                           const Device& device);

}  // namespace torch_cudnn_ext
