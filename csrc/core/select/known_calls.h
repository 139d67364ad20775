// Calls of kernels that ran before. A call whose arguments are of the same kind runs the plan of
// the earlier one, without the checks, the problem and the look-up between a kernel and its plan.
// In a network each layer's call finds the processor's caches full of other things, so that every
// line of memory which a call does not read counts. Knows no kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/dims.h"
#include "core/plan.h"
#include "core/select/decision_record.h"
#include "core/select/plan_store.h"

namespace torch_cudnn_ext {

// A tensor as a view of another one, from its first element on.
struct KnownView {
  bool is_whole = true;  // it is that tensor itself
  Dims sizes, strides;

  at::Tensor of(const at::Tensor& t) const;
};

// What a result looks like.
struct KnownForm {
  explicit KnownForm(const at::Tensor& t)
      : dtype(t.scalar_type()), sizes(t.sizes()), strides(t.strides()) {}
  bool is_of(const at::Tensor& t) const {
    return t.scalar_type() == dtype && t.sizes() == c10::IntArrayRef(sizes) &&
           t.strides() == c10::IntArrayRef(strides);
  }

  c10::ScalarType dtype;
  Dims sizes, strides;
};

// What was learnt of the calls that have a key. The key holds all that the checks, the problem and
// the decision depend on, so it holds for every call that has the key.
struct KnownCall {
  explicit KnownCall(const Key& key) : key(key) {}

  const Key key;
  std::shared_ptr<const Decision> decision;
  std::weak_ptr<Plan> plan;    // which this thread's store keeps
  bool leads_to_plan = false;  // the plan can be run from the arguments alone
  // PyTorch's operator on the arguments runs the same algorithm, and gives the same forms.
  mutable bool leads_to_default = false;
  c10::SmallVector<KnownForm, 4> forms;
  Device device;
  // What the plan reads, by the number of the tensor among the arguments.
  struct Input {
    Role role;
    int argument;
    KnownView view;
  };
  c10::SmallVector<Input, 4> inputs;
  // A result: a view of an output, or new if it holds no elements, or undefined.
  struct Result {
    enum class Kind : uint8_t { output, empty, undefined };
    Kind kind = Kind::undefined;
    Role role = Role::y;
    KnownView view;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  c10::SmallVector<Result, 4> results;
  double alpha = 1, beta = 0, epsilon = 0, momentum = 0;
};

// What a thread executes while this object lives and no newer one does.
class ExecutionWatch {
 public:
  ExecutionWatch();
  ~ExecutionWatch();
  ExecutionWatch(const ExecutionWatch&) = delete;
  ExecutionWatch& operator=(const ExecutionWatch&) = delete;

  // Called by execute(): before a plan's run and after it. No other run counts as one.
  static void before_run(const Call& call, const Device& device, const Bindings& bindings);
  static void after_run(const Bindings& bindings);

  // Learns the decision of the only plan that ran, and the way from the tensors among the arguments
  // to the results, if there is one: the plan read all of these that hold elements and no others,
  // and its outputs are the results. False if the next call may differ, so that nothing is to be
  // remembered.
  bool learn(KnownCall& known, c10::ArrayRef<const at::Tensor*> arguments,
             c10::ArrayRef<at::Tensor> results) const;

 private:
  bool learn_inputs(KnownCall& known, c10::ArrayRef<const at::Tensor*> arguments) const;
  bool learn_result(KnownCall& known, const at::Tensor& result) const;

  ExecutionWatch* const outer_;
  int runs_ = 0;
  Call call_;
  Device device_;
  Bindings before_, after_;
};

// What this thread learnt of a key; nullptr if nothing.
const KnownCall* find_known_call(const Key& key);
void remember_known_call(std::unique_ptr<KnownCall> known);

// Runs something in the place of the plan's run, with the same care as execute(). False if that did
// not run this time, so that execute() is to take care; `run` may say so too.
bool run_known(const KnownCall& known, c10::function_ref<bool()> run);
// Runs the plan, and sets its known.results.size() results. False if it did not run this time.
bool run_known_plan(const KnownCall& known, c10::ArrayRef<const at::Tensor*> arguments,
                    at::Tensor* results);

}  // namespace torch_cudnn_ext
