#include "core/select/recording.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <memory>
#include <mutex>
#include <utility>

#include "core/base/thread_state.h"
#include "core/operator.h"

namespace torch_cudnn_ext {

namespace {

// A state of a thread of which the innermost of several holds.
template <class T>
struct Nested : ThreadState<T> {
  static void begin() {
    auto inner = std::make_shared<T>();
    inner->outer = T::here();
    T::set(inner);
  }
  static void end() {
    if (auto inner = T::here()) T::set(inner->outer);
  }

  std::shared_ptr<T> outer;
};

struct Recording : Nested<Recording> {
  static inline const std::string kKey = "torch_cudnn_ext.recording";
  std::mutex mutex;
  std::vector<RecordedCall> calls;
};

struct ModelTracing : Nested<ModelTracing> {
  static inline const std::string kKey = "torch_cudnn_ext.model_tracing";
};

thread_local DryRun* dry_run = nullptr;

}  // namespace

void set_recording(bool on) { on ? Recording::begin() : Recording::end(); }
void set_model_tracing(bool on) { on ? ModelTracing::begin() : ModelTracing::end(); }
bool is_model_tracing() { return ModelTracing::here() != nullptr; }

std::vector<RecordedCall> recorded_calls(size_t begin) {
  auto recording = Recording::here();
  if (recording == nullptr) return {};
  std::lock_guard<std::mutex> lock(recording->mutex);
  auto& calls = recording->calls;
  if (begin >= calls.size()) return {};
  return {calls.begin() + static_cast<int64_t>(begin), calls.end()};
}

void record_call(const RecordedCall& call) {
  auto recording = Recording::here();
  if (recording == nullptr) return;
  std::lock_guard<std::mutex> lock(recording->mutex);
  recording->calls.push_back(call);
}

bool is_recording() { return Recording::here() != nullptr; }

DryRun::DryRun() : outer_(std::exchange(dry_run, this)) {}
DryRun::~DryRun() { dry_run = outer_; }

bool is_dry_run() { return dry_run != nullptr; }

void execute_dry(const Problem& problem, const Device& device, Bindings& bindings) {
  dry_run->problems.push_back(problem_text(problem));
  for (const SlotSpec& slot : operator_of(problem).slots(problem)) {
    at::Tensor& t = bindings[slot.role];
    if (!slot.is_output || t.defined()) continue;
    t = at::empty_strided(slot.spec.sizes, slot.spec.strides,
                          at::TensorOptions(slot.spec.dtype).device(device.torch_device()));
  }
}

}  // namespace torch_cudnn_ext
