// Measuring candidates: on scratch tensors, checked against a float64 reference, and timed in
// interleaved rounds. The profiler and autotuning are this one loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/policy/resolve.h"
#include "core/select/admit.h"
#include "core/tune/correctness.h"
#include "core/tune/measurement_lock.h"
#include "core/tune/scratch.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

struct MeasureOptions {
  std::vector<Algorithm> algorithms;  // empty: all candidates of the admitted backends
  double time_budget_s = 0;           // 0: no limit
  bool knob_search = false;
  // Leaves out configurations of a run-time compiled engine if others of the engine are slow:
  // compiling all of them may take most of the time.
  bool prunes = false;
  bool flush_cache = true;
  bool energy = false;  // also measures the energy of the fastest; a policy may prefer it anyway
  // Throws if the problem's tensors do not fit. If false, all candidates have failed then.
  bool throws_out_of_memory = true;
  int min_samples = 11;
  // Algorithms that cost a process that measured this problem, by their texts, and what happened.
  // They have failed and are not tried.
  std::map<std::string, std::string> failed;
  // Called with (done, total, algorithm) as work goes on. An exception ends the measuring.
  std::function<void(int, int, const std::string&)> progress;
  // Called with an algorithm's text before it is built, first run and sampled, outside of what is
  // timed, and with an empty text before work that runs no algorithm.
  std::function<void(const std::string&)> before_run;

  // Lets the user stop, and calls `progress`.
  void report(int done, int total, const Algorithm& algorithm) const;
  // Call `before_run`.
  void announce(const Algorithm& algorithm) const;
  void announce_other_work() const;
};

// What this process has measured.
struct MeasureCounts {
  int64_t problems = 0;
  int64_t timed_runs = 0;  // of algorithms, on all problems
};
MeasureCounts measure_counts();
void count_timed_run();

// Ranked: best first, then what was rejected, failed, excluded or cannot be built.
std::vector<Measurement> measure(const Problem& problem, const ResolvedPolicy& policy,
                                 const Device& device, const MeasureOptions& options);

// Builds every candidate and times nothing. `admitted`, if set, gets the admissible plans.
using PlanConsumer =
    std::function<void(const Problem&, const Algorithm&, const std::shared_ptr<Plan>&)>;
std::vector<Measurement> list_candidates(const Problem& problem, const ResolvedPolicy& policy,
                                         const Device& device, const PlanConsumer& admitted = {});

// Whether the tuning table holds rankings under a policy. It holds none for a GPU while a switch of
// PyTorch that is no part of its keys turns cuDNN off or selects the kernel of depthwise
// convolutions.
bool are_rankings_kept(const ResolvedPolicy& policy, const Device& device);

}  // namespace torch_cudnn_ext
