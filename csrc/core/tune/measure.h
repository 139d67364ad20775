// Timing candidates, once and well: on scratch tensors, checked against a float64 reference,
// interleaved, the slow ones dropped early. The profiler and autotuning are this one loop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/policy/resolve.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

// How reasons begin: of what `prunes` leaves out, of what a time budget does, and of what had no
// memory.
constexpr const char* kLeftOut = "not tried: other knobs of its engine took ";
constexpr const char* kOutOfTime = "not tried: the time budget of ";
constexpr const char* kOutOfMemory = "out of memory";

struct MeasureOptions {
  std::vector<Algorithm> algorithms;  // empty: all candidates of the admitted backends
  double time_budget_s = 0;           // 0: no limit
  bool knob_search = false;
  // Leaves out configurations of run-time compiled engines that others of the engine show to be
  // slow: to compile them all may take most of the time.
  bool prunes = false;
  bool flush_cache = true;
  bool throws_out_of_memory = true;  // where the problem's tensors do not fit; else all have failed
  int min_samples = 11;
  // Called with (done, total, algorithm) as work goes on; what it throws ends the measuring.
  std::function<void(int, int, const std::string&)> progress;
};

// Random inputs by role; an output is there only if it is accumulated into.
Bindings make_scratch(const Problem& problem, const Device& device, uint64_t seed);

// How far a result is from the reference, in units of the reference's root mean square: the larger
// of the root mean square difference and a twentieth of the largest difference, which of numbers
// above 20 such units is relative to themselves. NaN when not finite.
double relative_error(const at::Tensor& result, const at::Tensor& reference);
// How much of the relative error of few numbers, which may be close to 0 by chance, is their
// number.
inline double small_sample_tolerance(int64_t numbers) {
  return 1 + 32 / static_cast<double>(numbers);
}

// Why the constraints keep a plan from being used; empty when they do not.
std::string refusal(const Plan& plan, int64_t workspace_bytes, const ResolvedPolicy& policy,
                    const Device& device);
// The same for what notes alone say, and for a whole backend, before anything is built.
std::string exclusion_by_notes(const Notes& notes, const ResolvedPolicy& policy);
std::string exclusion_by_backend(const std::string& backend, const ResolvedPolicy& policy,
                                 const Device& device);

// A plan that the constraints admit, or the reason why there is none.
std::variant<AdmissiblePlan, Unsupported> build_admissible(const Problem& problem,
                                                           const Algorithm& algorithm,
                                                           const ResolvedPolicy& policy,
                                                           const Device& device);

// Builds every candidate and times nothing. `admitted`, where it is one, is given the plans.
using PlanConsumer =
    std::function<void(const Problem&, const Algorithm&, const std::shared_ptr<Plan>&)>;
std::vector<Measurement> list_candidates(const Problem& problem, const ResolvedPolicy& policy,
                                         const Device& device, const PlanConsumer& admitted = {});

// Ranked: best first, then what was rejected, failed, excluded or cannot be built.
std::vector<Measurement> measure(const Problem& problem, const ResolvedPolicy& policy,
                                 const Device& device, const MeasureOptions& options);

// Whether the table of choices holds rankings under a policy: not where PyTorch's switch keeps off
// cuDNN, of which it knows nothing.
bool are_rankings_kept(const ResolvedPolicy& policy, const Device& device);

// Processes that measure on one device at the same time build plans side by side, and take turns to
// run and to time them, each holding a lock on this file meanwhile. Empty, as at first: there is no
// other.
void set_measurement_lock(const std::string& path);

// The allocator's peak over a run on these inputs beyond its outputs, for plans that cannot tell
// their workspace.
int64_t measured_workspace(const Problem& problem, Plan& plan, Bindings bindings,
                           const Device& device);

}  // namespace torch_cudnn_ext
