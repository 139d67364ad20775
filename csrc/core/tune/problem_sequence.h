// The problems that run together when one of them is measured, the data that they run on, and what
// their results have to be. Knows nothing of candidates and of how times are compared.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/operator.h"
#include "core/tune/correctness.h"
#include "core/tune/scratch.h"
#include "core/tune/time_budget.h"

namespace torch_cudnn_ext {

// A problem of the sequence, and what is known about it before plans run.
struct Step {
  Problem problem;
  bool timed;  // false: a forward that only makes what the measured backward reads
  std::vector<SlotSpec> slots;
  Bindings reference{};
  Bindings before{};  // the values of accumulated and mutated tensors before a run
};

class ProblemSequence {
 public:
  // A problem and those that share its algorithm, in the order in which they run. `replay` is how
  // calls ask for replays; measured calls repeat at once what they recorded, at the same addresses,
  // as the later steps of a network do.
  ProblemSequence(const Problem& problem, const Device& device, Replay replay)
      : device(device),
        op_(operator_of(problem)),
        replay_(replay == Replay::never ? Replay::never : Replay::graphs_at_once) {
    auto add = [&](const Problem& p, bool timed) { steps_.push_back({p, timed, op_.slots(p)}); };
    auto forward = op_.forward_of(problem);
    if (forward) add(*forward, false);
    add(problem, true);
    if (forward) return;
    for (const Problem& next : op_.coupled(problem)) add(next, true);
  }

  const std::vector<Step>& steps() const { return steps_; }
  bool is_input(const Step& step, const SlotSpec& slot) const {
    return holds_input(op_, step.problem, slot);
  }
  at::Tensor empty_for(const Step& step, const SlotSpec& slot) const {
    return empty_for_slot(slot, step.problem, device);
  }
  // The reason, with the name of the step if there are several.
  std::string reason_of(const Step& step, const std::string& reason) const {
    if (steps_.size() == 1 || reason.empty()) return reason;
    return c10::str(op_of(step.problem), ": ", reason);
  }

  // Makes the tensors and the references. The references are computed once for all candidates, so
  // their time is excluded from the budget.
  void make_data(TimeBudget& budget) {
    for (size_t i = 0; i < steps_.size(); ++i) add_data(steps_[i], i + 1, budget);
  }
  void free_data() {
    steps_.clear();
    scratch = {};
  }

  // Gives bindings copies of the inputs.
  void copy_inputs(const Step& step, Bindings& bindings) const {
    for (const SlotSpec& slot : step.slots) {
      at::Tensor& tensor = bindings[slot.role];
      bool moves = tensor.defined() && !slot.on_host && is_input(step, slot) &&
                   tensor.sizes() == c10::IntArrayRef(slot.spec.sizes) &&
                   tensor.strides() == c10::IntArrayRef(slot.spec.strides);
      if (moves) tensor = empty_for(step, slot).copy_(tensor);
    }
  }

  // Runs all steps as an operator does: plans make their outputs, unless they accumulate. `start`
  // is called before the first timed step. There is one plan per step.
  void run(const std::vector<std::shared_ptr<Plan>>& plans, c10::function_ref<void()> start) {
    check_interrupt();
    Bindings bindings = scratch;
    bindings.replay = replay_;
    bool started = false;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      for (const SlotSpec& slot : step.slots) {
        if (!is_input(step, slot)) bindings[slot.role] = at::Tensor();
      }
      op_.set_scalars(step.problem, bindings);
      if (step.timed && !started) {
        start();
        started = true;
      }
      plans[i]->run(bindings);
    }
  }

  // Runs one step for its results, after the steps before it ran on the same bindings.
  void run_step(const Step& step, Plan& plan, Bindings& bindings) {
    check_interrupt();
    restore(step);
    for (const SlotSpec& slot : step.slots) {
      if (is_input(step, slot)) continue;
      if (!step.reference[slot.role].defined()) {
        bindings[slot.role] = at::Tensor();  // the plan makes it, in its own format
      } else if (c10::isFloatingType(slot.spec.dtype)) {
        // NaN shows which elements are not written.
        bindings[slot.role].fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
    op_.set_scalars(step.problem, bindings);
    plan.run(bindings);
    synchronize(plan.algorithm.text(), step);
  }

  // Why the results of a step are wrong; empty if they are right. `error` becomes the largest
  // relative error so far.
  std::string fault_of(const Step& step, const Notes& notes, const Bindings& bindings,
                       std::optional<double>& error) const {
    for (const SlotSpec& slot : step.slots) {
      const at::Tensor& reference = step.reference[slot.role];
      if (!reference.defined()) continue;
      double own = relative_error(bindings[slot.role], reference);
      double tolerance =
          op_.tolerance(step.problem, notes) * small_sample_tolerance(reference.numel());
      if (!error || !(own <= *error)) error = own;
      if (own <= tolerance) continue;
      return std::isnan(own)
                 ? c10::str("its ", role_text(slot.role), " is not finite or not wholly written")
                 : c10::str("relative error ", own, " of ", role_text(slot.role),
                            " is above the tolerance ", tolerance);
    }
    return op_.fault(step.problem, bindings);
  }

  // For a plan that does not state its workspace.
  int64_t measured_workspace(const Step& step, Plan& plan, const Bindings& bindings) {
    auto measured = [&] {
      check_interrupt();
      Bindings own = bindings;
      restore(step);
      op_.set_scalars(step.problem, own);
      // A backward may use up the reserve of its forward.
      at::Tensor& reserve = own[Role::reserve];
      if (reserve.defined()) reserve = reserve.clone();
      return torch_cudnn_ext::measured_workspace(step.problem, plan, own, device);
    };
    measured();  // a first run may allocate what stays, such as this thread's workspace of cuBLAS
    return measured();
  }

  const Device device;
  Bindings scratch;  // the tensors of all steps, wherever they lie

 private:
  void synchronize(const std::string& what, const Step& step) const {
    runtime_of(device).synchronize(device, c10::str(what, " of ", problem_text(step.problem)));
  }

  // An input that an earlier step computes keeps the value that it has in the reference, so that
  // every algorithm reads the same.
  void add_data(Step& step, uint64_t seed, TimeBudget& budget) {
    check_interrupt();
    Bindings made = make_scratch(step.problem, device, seed);
    for (const SlotSpec& slot : step.slots) {
      at::Tensor& tensor = scratch[slot.role];
      bool input = is_input(step, slot);
      if (!tensor.defined() && input) tensor = made[slot.role];
      if (input && (slot.is_output || slot.is_mutated)) step.before[slot.role] = tensor.clone();
    }
    op_.set_scalars(step.problem, scratch);
    synchronize("the reference", step);
    auto start = SteadyClock::now();
    step.reference = reference_of(step);
    synchronize("the reference", step);
    budget.exclude(seconds_since(start));
    for (const SlotSpec& slot : step.slots) {
      if (!slot.is_output || scratch[slot.role].defined()) continue;
      scratch[slot.role] = empty_for(step, slot);
      const at::Tensor& result = step.reference[slot.role];
      if (result.defined()) scratch[slot.role].copy_(result);  // for the next step's reference
    }
  }

  // Some of PyTorch's CUDA kernels raise under use_deterministic_algorithms. The reference is then
  // computed on the CPU.
  Bindings reference_of(const Step& step) const {
    try {
      return op_.reference(step.problem, scratch);
    } catch (const c10::Error& error) {
      bool may_be_switch = device.is_cuda() && at::globalContext().deterministicAlgorithms();
      if (!may_be_switch || is_out_of_memory(error)) throw;
    }
    auto moved = [](Bindings bindings, c10::Device device) {
      for (at::Tensor& t : bindings.tensors) {
        if (t.defined()) t = t.to(device);
      }
      return bindings;
    };
    return moved(op_.reference(step.problem, moved(scratch, at::kCPU)), device.torch_device());
  }

  // Resets what a step adds to or changes.
  void restore(const Step& step) {
    for (const SlotSpec& slot : step.slots) {
      if (step.before[slot.role].defined()) scratch[slot.role].copy_(step.before[slot.role]);
    }
  }

  const Operator& op_;
  const Replay replay_;
  std::vector<Step> steps_;
};

}  // namespace torch_cudnn_ext
