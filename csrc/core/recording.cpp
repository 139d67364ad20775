#include "core/recording.h"

#include <ATen/ATen.h>

#include <atomic>
#include <mutex>

#include "core/operator.h"

namespace torch_cudnn_ext {

namespace {

std::atomic<bool> recording{false};
std::mutex calls_mutex;
std::vector<RecordedCall>& calls() {
  static auto* list = new std::vector<RecordedCall>();
  return *list;
}

thread_local DryRun* dry_run = nullptr;

}  // namespace

void set_recording(bool on) {
  std::lock_guard<std::mutex> lock(calls_mutex);
  calls().clear();
  recording.store(on, std::memory_order_relaxed);
}

std::vector<RecordedCall> recorded_calls(size_t begin) {
  std::lock_guard<std::mutex> lock(calls_mutex);
  if (begin >= calls().size()) return {};
  return {calls().begin() + static_cast<int64_t>(begin), calls().end()};
}

void record_call(const RecordedCall& call) {
  if (!recording.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(calls_mutex);
  calls().push_back(call);
}

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
