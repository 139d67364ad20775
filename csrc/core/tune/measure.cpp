#include "core/tune/measure.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "core/backend.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/select/admit.h"
#include "core/tune/knob_search.h"
#include "core/tune/measurement_lock.h"
#include "core/tune/problem_sequence.h"
#include "core/tune/rounds.h"
#include "core/tune/scratch.h"

namespace torch_cudnn_ext {

namespace {

using Status = Measurement::Status;

std::atomic<int64_t> measured_problems{0}, timed_runs{0};  // of this process

Measurement row_of(const Candidate& candidate) {
  Measurement m;
  m.algorithm = candidate.algorithm;
  m.source = candidate.source;
  return m;
}

// Of all backends, in their order.
std::vector<Candidate> candidates_of(const Problem& problem, const Device& device) {
  std::vector<Candidate> list;
  for (const std::string& name : backend_names()) {
    const BackendOperator* op = find_backend(name)->find(family_of(problem));
    if (op == nullptr) continue;
    for (Candidate& c : op->candidates(problem, device)) list.push_back(std::move(c));
  }
  return list;
}

std::string engine_text(const Algorithm& algorithm) {
  return c10::str(algorithm.backend, ":", algorithm.name);
}

void print(std::vector<Measurement> list, const Problem& problem, const Device& device) {
  list.erase(std::remove_if(list.begin(), list.end(),
                            [](const Measurement& m) { return m.reason == kGpuOnly; }),
             list.end());
  std::fprintf(stderr, "torch_cudnn_ext: %s on %s, %zu candidates:\n",
               problem_text(problem).c_str(), device.text().c_str(), list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Measurement& m = list[i];
    std::string time = m.median_ms ? c10::str(*m.median_ms, " ms") : std::string("no time");
    std::string reason = m.reason.empty() ? "" : c10::str(": ", m.reason);
    std::fprintf(stderr, "torch_cudnn_ext:   %zu. %s: %s, workspace %s, %s%s\n", i + 1,
                 m.algorithm.text().c_str(), time.c_str(), memory_text(m.workspace_bytes).c_str(),
                 status_text(m.status), reason.c_str());
  }
}

// One call of measure(): builds candidates, checks them, and has them timed.
class Session {
 public:
  Session(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
          const MeasureOptions& options)
      : budget_(options.time_budget_s),
        problem_(problem),
        policy_(policy),
        device_(device),
        options_(options),
        sequence_(problem, device, policy.policy.replay_of_calls()),
        rounds_(sequence_, budget_, options, policy.policy.prefer.value_or(Prefer::time)) {}

  // Building comes before taking memory: of several processes only the one that holds the lock has
  // memory, except for the scratch tensors of processes that search knobs or build what was put
  // off.
  std::vector<Measurement> run() {
    constexpr double kShareOfBuilding = 0.5;  // of the time: what is built has to be run too
    constexpr double kShareOfBuildingMore = 0.7;
    const bool with_energy = measures_energy();
    std::vector<Candidate> put_off;
    std::vector<Contender> built =
        build_all(collect(), kShareOfBuilding, options_.prunes ? &put_off : nullptr);
    take_lock();
    bool fits = make_data(built);
    if (fits) try_all(built);
    if (fits && !put_off.empty()) {
      leave_out_hopeless(put_off);
      release_lock();
      built = build_all(put_off, kShareOfBuildingMore, nullptr);
      take_lock();
      try_all(built);
    }
    rounds_.time(options_.min_samples);
    if (options_.knob_search) {
      search_knobs(
          problem_, device_, [&] { return best_first(); },
          [&](const std::vector<Algorithm>& list) { return try_neighbours(list); });
    }
    rounds_.time_finalists();
    if (with_energy) rounds_.measure_energy();
    rounds_.time_undecided();
    options_.announce_other_work();
    std::vector<Measurement> list = ranked();
    sequence_.free_data();
    rounds_.free_buffers();
    release_lock();
    if (verbose()) print(list, problem_, device_);
    return list;
  }

 private:
  void take_lock() {
    options_.announce_other_work();
    budget_.exclude(lock_.take());
  }
  void release_lock() {
    if (!lock_.is_held()) return;
    runtime_of(device_).release_cached_memory(device_);
    lock_.release();
  }

  // Not of a backward that needs its own forward run: the two cannot be told apart.
  bool measures_energy() const {
    if (!options_.energy && policy_.policy.prefer != Prefer::energy) return false;
    bool is_known = runtime_of(device_).energy_mj(device_).has_value();
    TORCH_CHECK(is_known || !device_.is_cuda(), "energy: the driver of ", device_.text(),
                " does not tell it, wanted one that does; prefer=energy and --energy ask for it");
    const std::vector<Step>& steps = sequence_.steps();
    return is_known &&
           std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.timed; });
  }

  // PyTorch's own come first: the baseline is there however short the time is.
  std::vector<Candidate> collect() const {
    std::vector<Candidate> list;
    for (const Algorithm& algorithm : options_.algorithms) list.push_back({algorithm, "asked for"});
    if (!list.empty()) return list;
    list = candidates_of(problem_, device_);
    std::stable_partition(list.begin(), list.end(),
                          [](const Candidate& c) { return c.algorithm.backend == "aten"; });
    return list;
  }

  // A row for a candidate; null if there is one already.
  Measurement* add_row(const Candidate& candidate) {
    if (!seen_.insert(candidate.algorithm.text()).second) return nullptr;
    return &measurements_.emplace_back(row_of(candidate));
  }

  bool is_too_late(Measurement& m, double share = 1) const {
    if (m.algorithm.is_baseline() || !budget_.is_spent(share)) return false;
    return m.exclude_if(c10::str(kOutOfTime, options_.time_budget_s, " s was used up"));
  }

  // If `put_off` is given, it gets the configurations of each run-time compiled engine except the
  // first.
  std::vector<Contender> build_all(const std::vector<Candidate>& candidates, double share,
                                   std::vector<Candidate>* put_off) {
    std::vector<Contender> built;
    std::set<std::string> compiled;
    int total = static_cast<int>(candidates.size());
    for (int i = 0; i < total; ++i) {
      const Algorithm& algorithm = candidates[i].algorithm;
      options_.report(i, total, algorithm);
      bool has_knobs = !algorithm.options.empty();
      if (put_off != nullptr && has_knobs && compiled.count(engine_text(algorithm)) != 0) {
        put_off->push_back(candidates[i]);
        continue;
      }
      auto one = build_candidate(candidates[i], share);
      if (!one) continue;
      bool at_run_time = one->measurement->notes.has(Note::runtime_compilation);
      if (at_run_time && has_knobs) compiled.insert(engine_text(algorithm));
      built.push_back(std::move(*one));
    }
    return built;
  }

  // nullopt if the algorithm has a row already, is excluded, cannot be built, or comes after this
  // share of the time. Its row then holds the reason.
  std::optional<Contender> build_candidate(const Candidate& candidate, double share) {
    Measurement* m = add_row(candidate);
    if (m == nullptr) return std::nullopt;
    std::string reason = exclusion_by_backend(candidate.algorithm.backend, policy_, device_);
    if (m->exclude_if(reason) || is_too_late(*m, share)) return std::nullopt;
    auto failed = options_.failed.find(candidate.algorithm.text());
    if (failed != options_.failed.end()) {
      m->set_failed(failed->second);
      return std::nullopt;
    }
    options_.announce(candidate.algorithm);
    Contender built{m, {}};
    auto start = SteadyClock::now();
    for (const Step& step : sequence_.steps()) {
      if (auto notes = notes_before_building(step.problem, candidate.algorithm, device_)) {
        m->notes.add(*notes);
        reason = sequence_.reason_of(step, exclusion_by_notes(*notes, policy_));
      }
      if (m->exclude_if(reason)) return std::nullopt;
      BuildResult result = build(step.problem, candidate.algorithm, device_);
      m->build_ms = seconds_since(start) * 1e3;
      if (auto* unsupported = std::get_if<Unsupported>(&result)) {
        m->set_unsupported(*unsupported);
        m->reason = sequence_.reason_of(step, m->reason);
        return std::nullopt;
      }
      built.plans.push_back(std::get<std::shared_ptr<Plan>>(result));
      m->notes.add(built.plans.back()->notes);
    }
    return built;
  }

  // False if the data do not fit and the options do not throw: what was built has failed then.
  bool make_data(const std::vector<Contender>& built) {
    try {
      sequence_.make_data(budget_);
      if (options_.flush_cache) runtime_of(device_).flush_cache(device_);  // takes memory as well
    } catch (const c10::Error& error) {
      if (options_.throws_out_of_memory || !is_out_of_memory(error)) throw;
      for (const Contender& one : built) one.measurement->set_failed(error);
      return false;
    }
    return true;
  }

  void try_all(const std::vector<Contender>& built) {
    int total = static_cast<int>(built.size());
    for (int i = 0; i < total; ++i) {
      options_.report(i, total, built[i].measurement->algorithm);
      try_built(built[i]);
    }
  }

  // Checks all steps and times them once. A failure is a result too.
  void try_built(const Contender& built) {
    Measurement& m = *built.measurement;
    if (is_too_late(m)) return;
    options_.announce(m.algorithm);
    try {
      Bindings bindings = sequence_.scratch;
      for (size_t i = 0; i < built.plans.size(); ++i) {
        if (!check(m, sequence_.steps()[i], *built.plans[i], bindings)) return;
      }
      m.status = Status::ok;
      rounds_.add(built);
    } catch (const c10::Error& error) {
      m.set_failed(error);
    }
  }

  // Runs a step once and compares its results. False if the algorithm is out.
  bool check(Measurement& m, const Step& step, Plan& plan, Bindings& bindings) {
    std::optional<int64_t> workspace = plan.workspace_bytes;
    if (!workspace) workspace = sequence_.measured_workspace(step, plan, bindings);
    m.workspace_bytes = std::max(m.workspace_bytes.value_or(0), *workspace);
    std::string reason = exclusion_by_plan(plan, *workspace, policy_, device_);
    if (m.exclude_if(sequence_.reason_of(step, reason))) return false;
    sequence_.run_step(step, plan, bindings);
    m.reason = sequence_.reason_of(step, sequence_.fault_of(step, plan.notes, bindings, m.error));
    if (m.reason.empty()) return true;
    m.status = Status::rejected;
    return false;
  }

  // Takes from the candidates those whose engine is known to be slow on this problem.
  void leave_out_hopeless(std::vector<Candidate>& candidates) {
    constexpr int kRounds = 4;
    constexpr double kHopeless = 1.5;  // times the best
    rounds_.time(kRounds);
    double best = kInfinity;
    std::map<std::string, double> by_engine;
    for (const Contender& c : rounds_.contenders()) {
      double own = rounds_.best_cost(c);
      best = std::min(best, own);
      double& least = by_engine.emplace(engine_text(c.algorithm()), own).first->second;
      least = std::min(least, own);
    }
    auto is_hopeless = [&](const Candidate& candidate) {
      auto found = by_engine.find(engine_text(candidate.algorithm));
      if (found == by_engine.end() || found->second <= kHopeless * best) return false;
      if (Measurement* m = add_row(candidate)) {
        m->exclude_if(c10::str(kLeftOut, found->second / best, " times as long as the best"));
      }
      return true;
    };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_hopeless),
                     candidates.end());
  }

  std::vector<Algorithm> best_first() {
    std::vector<Algorithm> list;
    for (const Contender* c : rounds_.best_first()) list.push_back(c->algorithm());
    return list;
  }

  // Measures algorithms that the knob search proposes. False if none of them ran.
  bool try_neighbours(const std::vector<Algorithm>& algorithms) {
    constexpr int kRounds = 5;
    size_t before = rounds_.contenders().size();
    int total = static_cast<int>(algorithms.size());
    for (int i = 0; i < total && !budget_.is_spent(); ++i) {
      options_.report(i, total, algorithms[i]);
      release_lock();
      auto built = build_candidate({algorithms[i], "knob search"}, 1);
      take_lock();
      if (built) try_built(*built);
    }
    if (rounds_.contenders().size() == before) return false;
    rounds_.time(kRounds);
    return true;
  }

  std::vector<Measurement> ranked() {
    std::vector<Measurement> out;
    Settled settled = rounds_.settled();
    for (const Contender* c : settled.unstable) {
      c->measurement->status = Status::unstable;
      c->measurement->reason = kTooNoisy;
    }
    for (const Contender* c : settled.order) {
      c->write_statistics();
      if (c->measurement->status == Status::ok) out.push_back(*c->measurement);
    }
    for (Status status : {Status::unstable, Status::rejected, Status::failed, Status::excluded,
                          Status::needs_driver, Status::unsupported}) {
      for (const Measurement& m : measurements_) {
        if (m.status == status) out.push_back(m);
      }
    }
    return out;
  }

  TimeBudget budget_;
  MeasurementLock lock_;
  const Problem& problem_;
  const ResolvedPolicy& policy_;
  const Device device_;
  const MeasureOptions& options_;
  ProblemSequence sequence_;
  Rounds rounds_;
  std::deque<Measurement> measurements_;  // contenders point to theirs
  std::set<std::string> seen_;
};

// Adds to a row what building one problem of a sequence tells.
void list_step(Measurement& m, const Problem& problem, bool first, const ResolvedPolicy& policy,
               const Device& device, const PlanConsumer& admitted) {
  BuildResult built = build(problem, m.algorithm, device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) return m.set_unsupported(*unsupported);
  const auto& plan = std::get<std::shared_ptr<Plan>>(built);
  m.notes.add(plan->notes);
  auto workspace = workspace_for_cap(problem, *plan, policy, device);
  if (auto* unsupported = std::get_if<Unsupported>(&workspace)) {
    return m.set_unsupported(*unsupported);
  }
  auto bytes = std::get<std::optional<int64_t>>(workspace);
  bool known = bytes && (first || m.workspace_bytes);  // of all problems so far
  m.workspace_bytes =
      known ? std::optional(std::max(m.workspace_bytes.value_or(0), *bytes)) : std::nullopt;
  bool excluded = m.exclude_if(exclusion_by_plan(*plan, bytes.value_or(0), policy, device));
  if (!excluded && admitted) admitted(problem, m.algorithm, plan);
}

}  // namespace

MeasureCounts measure_counts() { return {measured_problems, timed_runs}; }
void count_timed_run() { ++timed_runs; }

void MeasureOptions::report(int done, int total, const Algorithm& algorithm) const {
  check_interrupt();
  if (progress) progress(done, total, algorithm.text());
}

void MeasureOptions::announce(const Algorithm& algorithm) const {
  if (before_run) before_run(algorithm.text());
}

void MeasureOptions::announce_other_work() const {
  if (before_run) before_run("");
}

std::vector<Measurement> measure(const Problem& problem, const ResolvedPolicy& policy,
                                 const Device& device, const MeasureOptions& options) {
  std::vector<Measurement> list;
  on_scratch(problem, device, [&] {
    TORCH_CHECK(
        !runtime_of(device).is_capturing(device), op_of(problem),
        ": cannot measure while the stream is being captured into a CUDA graph; tune before "
        "capturing. Problem: ",
        problem_text(problem));
    ++measured_problems;
    list = Session(problem, policy, device, options).run();
  });
  return list;
}

std::vector<Measurement> list_candidates(const Problem& problem, const ResolvedPolicy& policy,
                                         const Device& device, const PlanConsumer& admitted) {
  std::vector<Measurement> list;
  std::set<std::string> seen;
  ProblemSequence sequence(problem, device, Replay::never);
  for (const Candidate& candidate : candidates_of(problem, device)) {
    if (!seen.insert(candidate.algorithm.text()).second) continue;
    Measurement& m = list.emplace_back(row_of(candidate));
    if (m.exclude_if(exclusion_by_backend(candidate.algorithm.backend, policy, device))) continue;
    auto start = SteadyClock::now();
    m.status = Status::ok;
    for (const Step& step : sequence.steps()) {
      bool first = &step == &sequence.steps().front();
      list_step(m, step.problem, first, policy, device, admitted);
      m.reason = sequence.reason_of(step, m.reason);
      if (m.status != Status::ok) break;
    }
    m.build_ms = seconds_since(start) * 1e3;
  }
  return list;
}

bool are_rankings_kept(const ResolvedPolicy& policy, const Device& device) {
  Switches switches = policy.switches;
  return !device.has_gpu_backends() ||
         (switches.has(Switches::kCudnnEnabled) && !switches.has(Switches::kDepthwiseCudnn) &&
          !switches.has(Switches::kDepthwiseNative));
}

}  // namespace torch_cudnn_ext
