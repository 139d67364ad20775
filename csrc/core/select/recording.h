// Watching what operators execute: recordings of what ran, and dry runs, in which a call poses its
// problem and computes nothing. Knows nothing of how algorithms are chosen.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "core/plan.h"

namespace torch_cudnn_ext {

struct DecisionRecord;

// What this thread ran, and autograd's threads for it, in order while recording: a choice, or the
// reason why PyTorch's own kernel ran instead of an operator of ours.
struct RecordedCall {
  const DecisionRecord* choice;  // nullptr: declined
  std::string declined;
};
void set_recording(bool on);  // starts one, which takes over meanwhile; off forgets it
std::vector<RecordedCall> recorded_calls(size_t begin);
void record_call(const RecordedCall& call);  // nothing without a recording

// While this thread, and autograd's for it, looks at what problems there are, nothing is tuned.
void set_model_tracing(bool on);  // they nest
bool is_model_tracing();

// Of this thread. Results of a dry run have the sizes and strides of the problem, and no values.
class DryRun {
 public:
  DryRun();
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  std::vector<std::string> problems;  // as texts, in the order of execution

 private:
  DryRun* const outer_;
};
bool is_dry_run();
void execute_dry(const Problem& problem, const Device& device, Bindings& bindings);

}  // namespace torch_cudnn_ext
