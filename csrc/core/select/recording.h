// Records what operators execute, and makes dry runs, in which a call poses its problem and
// computes nothing. Knows nothing of how algorithms are decided.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/plan.h"

namespace torch_cudnn_ext {

struct DecisionRecord;

// A decision that was executed, or the reason why PyTorch's own kernel ran instead of our operator.
struct RecordedCall {
  const DecisionRecord* decision;  // nullptr: declined
  std::string declined;
};
// Begins a recording of what this thread runs, and autograd's threads for it; or ends and forgets
// the newest one. Only the innermost of several records.
void set_recording(bool on);
// The calls recorded so far, in order, from an index on.
std::vector<RecordedCall> recorded_calls(size_t begin);
void record_call(const RecordedCall& call);  // does nothing without a recording
bool is_recording();

// While a model is traced on this thread, and on autograd's threads for it, nothing is tuned.
void set_model_tracing(bool on);  // tracings nest
bool is_model_tracing();

// Makes a dry run of what this thread executes. Results have the problem's sizes and strides, and
// no values.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  std::vector<std::string> problems;  // in the order of execution

 private:
  DryRun* const outer_;
};
bool is_dry_run();
void execute_dry(const Problem& problem, const Device& device, Bindings& bindings);

}  // namespace torch_cudnn_ext
