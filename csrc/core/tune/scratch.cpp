#include "core/tune/scratch.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_map>

#include "core/autograd_guard.h"
#include "core/override_guard.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

namespace {

// Follows what this thread allocates on a device through PyTorch's allocators.
class AllocationObserver : public c10::MemoryReportingInfoBase {
 public:
  explicit AllocationObserver(c10::DeviceType type) : type_(type) {}
  void reportMemoryUsage(void* ptr, int64_t alloc_size, size_t, size_t,
                         c10::Device device) override {
    if (device.type() != type_) return;
    current_ += alloc_size;
    peak_ = std::max(peak_, current_);
    if (alloc_size > 0) blocks_[ptr] = alloc_size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak_bytes() const { return peak_; }
  // What the allocator took for a tensor, which may be more than the tensor holds. 0 if the tensor
  // was allocated elsewhere.
  int64_t bytes_of(const at::Tensor& t) const {
    auto found = blocks_.find(t.storage().data());
    return found == blocks_.end() ? 0 : found->second;
  }

 private:
  const c10::DeviceType type_;
  int64_t current_ = 0, peak_ = 0;
  std::unordered_map<const void*, int64_t> blocks_;  // the newest at each address
};

// Restores the user's generator. Generators of problems that are not random are left alone, since
// other threads may draw from them meanwhile.
std::function<void()> generator_restorer(const Problem& problem, const Device& device) {
  // The generator of a stream cannot be read while the stream is captured.
  bool random = operator_of(problem).is_random(problem) && !runtime_of(device).is_capturing(device);
  if (!random) return [] {};
  at::Generator generator = at::globalContext().defaultGenerator(device.torch_device());
  std::lock_guard<std::mutex> lock(generator.mutex());
  return [generator, restore = runtime_of(device).restorer_of(generator)]() mutable {
    std::lock_guard<std::mutex> lock(generator.mutex());
    try {
      restore();
    } catch (const c10::Error& error) {  // the GPU was lost meanwhile
      TORCH_WARN("the generator's state could not be restored: ", error.what_without_backtrace());
    }
  };
}

}  // namespace

void on_scratch(const Problem& problem, const Device& device, c10::function_ref<void()> work) {
  OverrideGuard no_overrides;
  NoSavedTensorHooks no_hooks;
  c10::InferenceMode no_inference(false);  // its tensors have no gradients
  c10::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  ExcludeKeysGuard no_autocast(c10::autocast_dispatch_keyset), no_vmap(kVmapModeKeys);
  c10::DeviceGuard device_guard(device.torch_device());
  auto restore = c10::make_scope_exit(generator_restorer(problem, device));
  work();
}

bool holds_input(const Operator& op, const Problem& problem, const SlotSpec& slot) {
  return !slot.is_output || op.accumulates(problem);
}

at::Tensor empty_for_slot(const SlotSpec& slot, const Problem& problem, const Device& device) {
  const TensorSpec& spec = slot.spec;
  auto options =
      at::TensorOptions(spec.dtype).device(slot.on_host ? at::kCPU : device.torch_device());
  int64_t alignment = alignment_of_tensors(problem);
  auto element = static_cast<int64_t>(c10::elementSize(spec.dtype));
  int64_t offset = alignment >= 16 ? 0 : alignment / element;
  return at::empty({spec.extent() + offset}, options).as_strided(spec.sizes, spec.strides, offset);
}

Bindings make_scratch(const Problem& problem, const Device& device, uint64_t seed) {
  OverrideGuard no_overrides;
  const Operator& op = operator_of(problem);
  // A clone with a seed of its own: tuning does not move the user's random numbers.
  at::Generator generator = at::globalContext().defaultGenerator(device.torch_device()).clone();
  generator.set_current_seed(seed);
  Bindings bindings;
  for (const SlotSpec& slot : op.slots(problem)) {
    if (!holds_input(op, problem, slot)) continue;
    at::Tensor tensor = empty_for_slot(slot, problem, device);
    if (c10::isFloatingType(slot.spec.dtype)) {
      tensor.normal_(0, 1, generator);
    } else {
      tensor.zero_();
    }
    bindings[slot.role] = tensor;
  }
  op.prepare_scratch(problem, bindings);
  op.set_scalars(problem, bindings);
  return bindings;
}

int64_t measured_workspace(const Problem& problem, Plan& plan, Bindings bindings,
                           const Device& device) {
  const Operator& op = operator_of(problem);
  std::vector<Role> outputs;
  for (const SlotSpec& slot : op.slots(problem)) {
    if (holds_input(op, problem, slot)) continue;
    bindings[slot.role] = at::Tensor();
    outputs.push_back(slot.role);
  }
  auto observer = std::make_shared<AllocationObserver>(device.torch_device().type());
  {
    c10::DebugInfoGuard observing(c10::DebugInfoKind::PROFILER_STATE, observer);
    // PyTorch's profiler would take the observer for a state of its own.
    at::DisableRecordFunctionGuard unrecorded;
    plan.run(bindings);
  }
  int64_t workspace = observer->peak_bytes();
  std::set<const void*> counted;
  for (Role role : outputs) {
    const at::Tensor& t = bindings[role];
    if (t.defined() && t.has_storage() && counted.insert(t.storage().data()).second) {
      workspace -= observer->bytes_of(t);
    }
  }
  return std::max<int64_t>(workspace, 0);
}

}  // namespace torch_cudnn_ext
