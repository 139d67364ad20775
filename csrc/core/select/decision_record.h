// What users are told of decisions: records, which one was executed last, printed lines.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/policy/resolve.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// What is to be run, how to decide, and where.
struct Request {
  const Problem& problem;
  const ResolvedPolicy& policy;
  const Device& device;
};

// What was decided for a problem under a policy, and why. Interned and never freed.
struct DecisionRecord {
  std::string op, problem, algorithm, why, device, policy;
  std::string coupled_policy;  // the policy for passes that must run the same algorithm
  std::optional<int64_t> workspace_bytes;
  double decision_ms;
  int64_t writer;                         // the number of `coupled_policy` (core/writer.h)
  size_t pass;                            // of all families' passes, as a number
  mutable std::atomic<int64_t> calls{0};  // that ran by it
};

// Makes a record, or finds the equal one. Prints it if decisions are to be printed.
const DecisionRecord* record_decision(const Request& request, const Algorithm& algorithm,
                                      const std::string& why,
                                      const std::optional<int64_t>& workspace_bytes,
                                      double decision_ms);

// The records by which calls ran so far.
std::vector<const DecisionRecord*> records_executed();

// Counts a call that ran.
inline void count_call(const DecisionRecord& record) {
  record.calls.fetch_add(1, std::memory_order_relaxed);
}
// Makes a record the last one that was executed, of its pass, of all, and on this thread.
void note_executed(const DecisionRecord* record);
// What a running profiler shows while this object lives: the pass and the algorithm. Costs a look
// at a flag if none runs.
class ProfiledRun {
 public:
  explicit ProfiledRun(const DecisionRecord& record);
  ProfiledRun(const ProfiledRun&) = delete;
  ProfiledRun& operator=(const ProfiledRun&) = delete;

 private:
  std::optional<at::RecordFunction> range_;
};

// Makes this thread forget what it executed last.
void forget_executed();
const DecisionRecord* last_of_thread();  // may be nullptr

// The last one over all threads, of one operator and pass or of any; may be nullptr.
const DecisionRecord* last_decision(const std::optional<std::string>& op);

// The writer of what this thread executed last. It says nothing if that ran no algorithm.
at::Tensor writer_of_last(const at::Tensor& like);

}  // namespace torch_cudnn_ext
