#include "core/tune/measure.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/error.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/autograd_guard.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/policy/levels.h"

namespace torch_cudnn_ext {

namespace {

using Status = Measurement::Status;
using Clock = std::chrono::steady_clock;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A tensor of exactly the alignment that the problem speaks of.
at::Tensor empty_of_slot(const SlotSpec& slot, const Device& device, int64_t alignment) {
  const TensorSpec& spec = slot.spec;
  int64_t extent = 1;
  for (int i = 0; i < spec.sizes.size(); ++i) extent += (spec.sizes[i] - 1) * spec.strides[i];
  auto options =
      at::TensorOptions(spec.dtype).device(slot.on_host ? at::kCPU : device.torch_device());
  auto element = static_cast<int64_t>(c10::elementSize(spec.dtype));
  int64_t offset = alignment >= 16 ? 0 : alignment / element;
  at::Tensor storage = at::empty({extent + offset}, options);
  return storage.as_strided(spec.sizes, spec.strides, offset);
}

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
  // What the allocator took for a tensor, which may be more than it holds; 0 where it was not here.
  int64_t bytes_of(const at::Tensor& t) const {
    auto found = blocks_.find(t.storage().data());
    return found == blocks_.end() ? 0 : found->second;
  }

 private:
  const c10::DeviceType type_;
  int64_t current_ = 0, peak_ = 0;
  std::unordered_map<const void*, int64_t> blocks_;  // the newest at each address
};

struct Contender {
  size_t index;  // in the list of measurements
  Algorithm algorithm;
  std::vector<std::shared_ptr<Plan>> plans;        // one a step
  std::vector<double> samples, host_samples;       // ms; of the host where it runs ahead
  double best = kInfinity, best_host = kInfinity;  // the least of each
  bool running = true;
};

double percentile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  double position = q * static_cast<double>(values.size() - 1);
  auto low = static_cast<size_t>(position);
  size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (position - static_cast<double>(low));
}

// What random algorithms draw from the user's generator is put back. Of others it is left alone:
// other threads may draw meanwhile.
class GeneratorGuard {
 public:
  GeneratorGuard(const Problem& problem, const Device& device) {
    if (!operator_of(problem).is_random(problem)) return;
    // While a stream is captured its generator cannot be read.
    if (device.is_target() || runtime_of(device).is_capturing(device)) return;
    generator_ = at::globalContext().defaultGenerator(device.torch_device());
    std::lock_guard<std::mutex> lock(generator_.mutex());
    put_back_ = runtime_of(device).restorer_of(generator_);
  }
  ~GeneratorGuard() {
    if (put_back_ == nullptr) return;
    std::lock_guard<std::mutex> lock(generator_.mutex());
    try {
      put_back_();
    } catch (const c10::Error& error) {  // of a GPU that was lost meanwhile
      TORCH_WARN("the generator's state could not be put back: ", error.what_without_backtrace());
    }
  }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Generator generator_;
  std::function<void()> put_back_;
};

// Scratch work must not be recorded, cast or traced, and runs on the problem's device.
struct ScratchGuard {
  ScratchGuard(const Problem& problem, const Device& device)
      : device_guard(device.torch_device()), generator(problem, device) {}
  OverrideGuard plain;
  NoSavedTensorHooks no_hooks;
  c10::InferenceMode no_inference{false};  // what is made in it has no gradients
  c10::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  c10::impl::ExcludeDispatchKeyGuard no_vmap{
      c10::DispatchKeySet({c10::DispatchKey::VmapMode, c10::DispatchKey::FuncTorchVmapMode})};
  c10::DeviceGuard device_guard;
  GeneratorGuard generator;
};

std::mutex turn_mutex;
std::string turn_path;

// This process's turn to run among those that share a turn file; without one it is always its turn.
class MeasurementLock {
 public:
  MeasurementLock() = default;
  ~MeasurementLock() {
    // A process that was forked meanwhile has the file open, too, and is not to give it back.
    if (held_ && taken_by_ == ::getpid()) ::flock(file_, LOCK_UN);
    if (file_ >= 0) ::close(file_);
  }
  MeasurementLock(const MeasurementLock&) = delete;
  MeasurementLock& operator=(const MeasurementLock&) = delete;

  void take() {
    if (file_ < 0 && !open()) return;
    auto start = Clock::now();
    check_interrupt();  // what came before would not end the waiting
    while (::flock(file_, LOCK_EX) != 0) {
      TORCH_CHECK(errno == EINTR,
                  "measure: cannot lock the turn file: ", c10::utils::str_error(errno));
      check_interrupt();
    }
    held_ = true;
    taken_by_ = ::getpid();
    waited_s_ += seconds_since(start);
  }
  void give_back() {
    ::flock(file_, LOCK_UN);
    held_ = false;
  }
  bool is_held() const { return held_; }
  double waited_s() const { return waited_s_; }

 private:
  // False where there is no turn file.
  bool open() {
    std::lock_guard<std::mutex> lock(turn_mutex);
    if (turn_path.empty()) return false;
    file_ = ::open(turn_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    TORCH_CHECK(file_ >= 0, "measure: cannot open the turn file ", turn_path, ": ",
                c10::utils::str_error(errno));
    return true;
  }
  int file_ = -1;
  bool held_ = false;
  pid_t taken_by_ = 0;
  double waited_s_ = 0;
};

// Where the inputs lie, and what keeps other outputs from where the timed ones are to lie.
struct Place {
  Bindings scratch;
  std::vector<at::Tensor> held;
};

// One problem of a measured sequence, and what is known about it beforehand.
struct Step {
  Problem problem;
  bool timed;  // false: a forward that only makes what the measured backward reads
  std::vector<SlotSpec> slots;
  Bindings reference, before;  // `before`: what accumulated and mutated tensors hold at the start
};

// A problem, and the ones that share its algorithm, in the order in which they run.
std::vector<Problem> sequence_of(const Problem& problem) {
  const Operator& op = operator_of(problem);
  if (auto forward = op.forward_of(problem)) return {*forward, problem};
  std::vector<Problem> list{problem};
  for (Problem& next : op.coupled(problem)) list.push_back(std::move(next));
  return list;
}

bool holds_input(const Operator& op, const Problem& problem, const SlotSpec& slot) {
  return !slot.is_output || op.accumulates(problem);
}

class Session {
 public:
  Session(const Problem& problem, const ResolvedPolicy& policy, const Device& device,
          const MeasureOptions& options)
      : problem_(problem),
        policy_(policy),
        device_(device),
        options_(options),
        op_(operator_of(problem)),
        runtime_(runtime_of(device)),
        timer_(runtime_.make_timer(device)) {
    bool has_forward = op_.forward_of(problem).has_value();
    for (const Problem& member : sequence_of(problem)) {
      bool timed = !has_forward || !steps_.empty();
      steps_.push_back({member, timed, op_.slots(member), {}, {}});
    }
  }

  // All is built before memory is taken: of several processes only the one whose turn it is has
  // any, but for the scratch tensors of those that search knobs, or build what was put off.
  std::vector<Measurement> run() {
    constexpr double kShareOfBuilding = 0.5;  // of the time: what is built wants to be run too
    constexpr double kShareOfBuildingMore = 0.7;
    std::vector<Candidate> put_off;
    std::vector<Built> built =
        build_all(collect(), kShareOfBuilding, options_.prunes ? &put_off : nullptr);
    lock_.take();
    bool fits = make_scratch_of_steps(built);
    if (fits) try_all(built);
    if (fits && !put_off.empty()) {
      leave_out_hopeless(put_off);
      give_back_turn();
      built = build_all(put_off, kShareOfBuildingMore, nullptr);
      lock_.take();
      try_all(built);
    }
    time_rounds(options_.min_samples);
    if (options_.knob_search) search_knobs();
    time_finals();
    std::vector<Measurement> list = ranked();
    steps_.clear();
    scratch_ = {};
    places_.clear();
    give_back_turn();
    if (verbose()) print(list);
    return list;
  }

 private:
  struct Built {
    size_t index;                              // of the measurement
    std::vector<std::shared_ptr<Plan>> plans;  // one a step
  };

  void print(const std::vector<Measurement>& list) const {
    std::fprintf(stderr, "torch_cudnn_ext: %s on %s, %zu candidates:\n",
                 problem_text(problem_).c_str(), device_.text().c_str(), list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const Measurement& m = list[i];
      std::string time = m.median_ms ? c10::str(*m.median_ms, " ms") : std::string("no time");
      std::string reason = m.reason.empty() ? "" : c10::str(": ", m.reason);
      std::fprintf(stderr, "torch_cudnn_ext:   %zu. %s: %s, workspace %s, %s%s\n", i + 1,
                   m.algorithm.text().c_str(), time.c_str(), memory_text(m.workspace_bytes).c_str(),
                   status_text(m.status), reason.c_str());
    }
  }

  // Where some may be put off, those are of a run-time compiled engine with chosen knobs, all but
  // the first.
  std::vector<Built> build_all(const std::vector<Candidate>& candidates, double share,
                               std::vector<Candidate>* put_off) {
    std::vector<Built> built;
    std::set<std::string> compiled;
    int total = static_cast<int>(candidates.size());
    for (int i = 0; i < total; ++i) {
      const Algorithm& algorithm = candidates[i].algorithm;
      report(i, total, algorithm);
      bool has_knobs = !algorithm.options.empty();
      if (put_off != nullptr && has_knobs && compiled.count(engine_text(algorithm)) != 0) {
        put_off->push_back(candidates[i]);
        continue;
      }
      auto one = build_candidate(candidates[i], share);
      if (!one) continue;
      bool at_run_time = measurements_[one->index].notes.has(Note::runtime_compilation);
      if (at_run_time && has_knobs) compiled.insert(engine_text(algorithm));
      built.push_back(std::move(*one));
    }
    return built;
  }

  void try_all(const std::vector<Built>& built) {
    int total = static_cast<int>(built.size());
    for (int i = 0; i < total; ++i) {
      report(i, total, measurements_[built[i].index].algorithm);
      try_built(built[i]);
    }
  }

  static std::string engine_text(const Algorithm& algorithm) {
    return c10::str(algorithm.backend, ":", algorithm.name);
  }

  // Takes from the candidates those whose engine is known to be slow on this problem.
  void leave_out_hopeless(std::vector<Candidate>& candidates) {
    constexpr int kRounds = 4;
    constexpr double kHopeless = 1.5;  // times the best
    time_rounds(kRounds);
    double best = kInfinity;
    std::map<std::string, double> by_engine;
    for (const Contender& c : contenders_) {
      double own = cost(c.best, c.best_host);
      best = std::min(best, own);
      double& least = by_engine.emplace(engine_text(c.algorithm), own).first->second;
      least = std::min(least, own);
    }
    auto is_hopeless = [&](const Candidate& candidate) {
      auto found = by_engine.find(engine_text(candidate.algorithm));
      if (found == by_engine.end() || found->second <= kHopeless * best) return false;
      if (!seen_.insert(candidate.algorithm.text()).second) return true;
      Measurement& m = measurements_.emplace_back();
      m.algorithm = candidate.algorithm;
      m.source = candidate.source;
      m.status = Status::excluded;
      m.reason = c10::str(kLeftOut, found->second / best, " times as long as the best");
      return true;
    };
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_hopeless),
                     candidates.end());
  }

  // False where they do not fit and that is data: what was built has failed then.
  bool make_scratch_of_steps(const std::vector<Built>& built) {
    try {
      for (size_t i = 0; i < steps_.size(); ++i) add_scratch(steps_[i], i + 1);
      if (options_.flush_cache) runtime_.flush_cache(device_);  // it takes memory as well
    } catch (const c10::Error& error) {
      if (options_.throws_out_of_memory || !is_out_of_memory(error)) throw;
      for (const Built& one : built) set_failed(measurements_[one.index], error);
      return false;
    }
    return true;
  }

  // Inputs of a later step that an earlier one computes stay what they are in the reference: every
  // algorithm is given its own.
  void add_scratch(Step& step, uint64_t seed) {
    check_interrupt();
    Bindings made = make_scratch(step.problem, device_, seed);
    for (const SlotSpec& slot : step.slots) {
      at::Tensor& tensor = scratch_[slot.role];
      bool input = holds_input(op_, step.problem, slot);
      if (!tensor.defined() && input) tensor = made[slot.role];
      if (input && (slot.is_output || slot.is_mutated)) step.before[slot.role] = tensor.clone();
    }
    op_.set_scalars(step.problem, scratch_);
    std::string what = c10::str("the reference of ", problem_text(step.problem));
    runtime_.synchronize(device_, what);
    auto start = Clock::now();
    step.reference = reference_of(step);
    runtime_.synchronize(device_, what);
    reference_s_ += seconds_since(start);
    for (const SlotSpec& slot : step.slots) {
      if (!slot.is_output || scratch_[slot.role].defined()) continue;
      scratch_[slot.role] = empty_of_slot(slot, device_, alignment_of_tensors(step.problem));
      const at::Tensor& result = step.reference[slot.role];
      // What the reference of the next step reads.
      if (result.defined()) scratch_[slot.role].copy_(result);
    }
  }

  // Some of PyTorch's CUDA kernels refuse to run where it is told to be deterministic.
  Bindings reference_of(const Step& step) const {
    try {
      return op_.reference(step.problem, scratch_);
    } catch (const c10::Error& error) {
      bool refused = device_.is_cuda() && at::globalContext().deterministicAlgorithms();
      if (!refused || is_out_of_memory(error)) throw;
    }
    auto moved = [](Bindings bindings, c10::Device device) {
      for (at::Tensor& t : bindings.tensors) {
        if (t.defined()) t = t.to(device);
      }
      return bindings;
    };
    return moved(op_.reference(step.problem, moved(scratch_, at::kCPU)), device_.torch_device());
  }

  void give_back_turn() {
    if (!lock_.is_held()) return;
    runtime_.release_cached_memory(device_);
    lock_.give_back();
  }

  // The reference is computed once, however many are tried, and leaves them the time.
  bool out_of_time(double share = 1) const {
    double spent_s = seconds_since(start_) - lock_.waited_s() - reference_s_;
    return options_.time_budget_s > 0 && spent_s > options_.time_budget_s * share;
  }

  void report(int done, int total, const Algorithm& algorithm) {
    check_interrupt();
    if (options_.progress) options_.progress(done, total, algorithm.text());
  }

  // The baseline first: it must be there however short the time.
  std::vector<Candidate> collect() {
    std::vector<Candidate> list;
    for (const Algorithm& algorithm : options_.algorithms) list.push_back({algorithm, "asked for"});
    if (!list.empty()) return list;
    for (bool baseline : {true, false}) {
      for (const std::string& name : backend_names()) {
        if ((name == "aten") != baseline) continue;
        const BackendOperator* op = find_backend(name)->find(op_.family());
        if (op == nullptr) continue;
        for (Candidate& c : op->candidates(problem_, device_)) list.push_back(std::move(c));
      }
    }
    return list;
  }

  // What a step adds to or changes, as it was at first.
  void restore(const Step& step) {
    for (const SlotSpec& slot : step.slots) {
      if (step.before[slot.role].defined()) scratch_[slot.role].copy_(step.before[slot.role]);
    }
  }

  // None where the algorithm was met before, cannot be built, or this share of the time is used up;
  // the latter two are measurements.
  std::optional<Built> build_candidate(const Candidate& candidate, double share) {
    if (!seen_.insert(candidate.algorithm.text()).second) return std::nullopt;
    Built built{measurements_.size(), {}};
    Measurement& m = measurements_.emplace_back();
    m.algorithm = candidate.algorithm;
    m.source = candidate.source;
    m.reason = exclusion_by_backend(candidate.algorithm.backend, policy_, device_);
    if (!m.reason.empty()) {
      m.status = Status::excluded;
      return std::nullopt;
    }
    if (is_too_late(m, share)) return std::nullopt;
    auto start = Clock::now();
    for (const Step& step : steps_) {
      if (auto notes = notes_before_building(step.problem, candidate.algorithm, device_)) {
        m.notes.add(*notes);
        m.reason = reason_of(step, exclusion_by_notes(*notes, policy_));
      }
      if (!m.reason.empty()) {
        m.status = Status::excluded;
        return std::nullopt;
      }
      BuildResult result = build(step.problem, candidate.algorithm, device_);
      m.build_ms = seconds_since(start) * 1e3;
      if (auto* unsupported = std::get_if<Unsupported>(&result)) {
        m.status = unsupported->needs_driver ? Status::needs_driver : Status::unsupported;
        m.reason = reason_of(step, unsupported->reason);
        return std::nullopt;
      }
      built.plans.push_back(std::get<std::shared_ptr<Plan>>(result));
      m.notes.add(built.plans.back()->notes);
    }
    return built;
  }

  // Checks and times once. What fails is data.
  void try_built(const Built& built) {
    Measurement& m = measurements_[built.index];
    if (is_too_late(m)) return;
    attempt(m, [&] { check_and_time(built); });
    drop_failed();
  }

  bool is_too_late(Measurement& m, double share = 1) const {
    if (m.algorithm.is_baseline() || !out_of_time(share)) return false;
    m.status = Status::excluded;
    m.reason = c10::str(kOutOfTime, options_.time_budget_s, " s was used up");
    return true;
  }

  // Says which of several steps it is about.
  std::string reason_of(const Step& step, const std::string& reason) const {
    if (steps_.size() == 1 || reason.empty()) return reason;
    return c10::str(op_of(step.problem), ": ", reason);
  }

  template <class Body>
  void attempt(Measurement& m, Body&& body) {
    try {
      body();
    } catch (const c10::Error& error) {
      set_failed(m, error);
    }
  }

  static void set_failed(Measurement& m, const c10::Error& error) {
    m.status = Status::failed;
    m.reason = error.what_without_backtrace();
    if (!is_out_of_memory(error)) return;
    // PyTorch goes on with how much of the GPU's each process has at that moment.
    m.reason = c10::str(kOutOfMemory, ": ", m.reason.substr(0, m.reason.find(" GPU ")));
  }

  void drop_failed() {
    auto failed = [&](const Contender& c) {
      return measurements_[c.index].status == Status::failed;
    };
    contenders_.erase(std::remove_if(contenders_.begin(), contenders_.end(), failed),
                      contenders_.end());
  }

  void check_and_time(const Built& built) {
    Measurement& m = measurements_[built.index];
    Bindings bindings = scratch_;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (!check(m, steps_[i], *built.plans[i], bindings)) return;
    }
    m.status = Status::ok;
    m.reason.clear();
    contenders_.push_back({built.index, m.algorithm, built.plans, {}});
    sample(contenders_.back());
  }

  // Runs a step once and compares what it computes. False when the algorithm is out.
  bool check(Measurement& m, const Step& step, Plan& plan, Bindings& bindings) {
    std::optional<int64_t> workspace = plan.workspace_bytes;
    if (!workspace) workspace = measured_workspace(step, plan, bindings);
    m.workspace_bytes = std::max(m.workspace_bytes.value_or(0), *workspace);
    m.reason = refusal(plan, *workspace, policy_, device_);
    if (!m.reason.empty()) {
      m.status = Status::excluded;
      m.reason = reason_of(step, m.reason);
      return false;
    }
    check_interrupt();
    restore(step);
    for (const SlotSpec& slot : step.slots) {
      if (!slot.is_output || op_.accumulates(step.problem)) continue;
      if (!step.reference[slot.role].defined()) {
        bindings[slot.role] = at::Tensor();  // in a format of the algorithm's own: its to make
      } else if (c10::isFloatingType(slot.spec.dtype)) {
        // Poisoned first: an element that is not written shows.
        bindings[slot.role].fill_(std::numeric_limits<double>::quiet_NaN());
      }
    }
    op_.set_scalars(step.problem, bindings);
    plan.run(bindings);
    runtime_.synchronize(device_, c10::str(m.algorithm.text(), " of ", problem_text(step.problem)));
    for (const SlotSpec& slot : step.slots) {
      const at::Tensor& reference = step.reference[slot.role];
      if (!reference.defined()) continue;
      double error = relative_error(bindings[slot.role], reference);
      double tolerance =
          op_.tolerance(step.problem, plan.notes) * small_sample_tolerance(reference.numel());
      if (!m.error || !(error <= *m.error)) m.error = error;
      if (error <= tolerance) continue;
      m.status = Status::rejected;
      m.reason = reason_of(
          step, std::isnan(error)
                    ? c10::str("its ", role_text(slot.role), " is not finite or not wholly written")
                    : c10::str("relative error ", error, " of ", role_text(slot.role),
                               " is above the tolerance ", tolerance));
      return false;
    }
    std::string fault = op_.fault(step.problem, bindings);
    if (fault.empty()) return true;
    m.status = Status::rejected;
    m.reason = reason_of(step, fault);
    return false;
  }

  // The allocator's peak over a run beyond its outputs, for plans that cannot tell their workspace.
  int64_t measured_workspace(const Step& step, Plan& plan, const Bindings& bindings) {
    auto measured = [&] {
      check_interrupt();
      Bindings own = bindings;
      restore(step);
      op_.set_scalars(step.problem, own);
      // A backward may use up what its forward left.
      at::Tensor& reserve = own[Role::reserve];
      if (reserve.defined()) reserve = reserve.clone();
      return torch_cudnn_ext::measured_workspace(step.problem, plan, own, device_);
    };
    measured();  // a first run may allocate what stays, such as this thread's workspace of cuBLAS
    return measured();
  }

  // Once more, with longer head starts, where the device may have waited for the host: its first
  // call of an algorithm may take many times as long as later ones.
  void sample(Contender& contender) {
    constexpr int kLongestHeadStart = 64;
    constexpr double kShortMs = 1;
    // The data are to be cold, the code is not: fetching that of a large tile takes 5 us.
    if (device_.is_cuda() && contender.best < kShortMs) run(contender, [] {});
    for (int head_starts = 1; head_starts <= kLongestHeadStart; head_starts *= 4) {
      run(contender, [&] {
        if (options_.flush_cache) runtime_.flush_cache(device_);
        timer_->start(head_starts);
      });
      timer_->stop();
      if (timer_->host_was_ahead()) break;
    }
    double ms = timer_->milliseconds();
    contender.samples.push_back(ms);
    contender.best = std::min(contender.best, ms);
    std::optional<double> host_ms = timer_->host_milliseconds();
    if (host_ms) contender.host_samples.push_back(*host_ms);
    contender.best_host = std::min(contender.best_host, host_ms.value_or(0));
  }

  // As an operator calls it: the outputs are the plan's to make, unless it accumulates. `start` is
  // called where the timed steps begin.
  template <class Start>
  void run(Contender& contender, Start&& start) {
    check_interrupt();
    Bindings bindings = scratch_;
    bindings.replay = Replay::at_once;
    bool started = false;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      for (const SlotSpec& slot : step.slots) {
        if (slot.is_output && !op_.accumulates(step.problem)) bindings[slot.role] = at::Tensor();
      }
      op_.set_scalars(step.problem, bindings);
      if (step.timed && !started) {
        start();
        started = true;
      }
      contender.plans[i]->run(bindings);
    }
  }

  // The time of a kernel may swing by a tenth with where its tensors lie: cuDNN's split sums do.
  // Rounds take turns in several places, unless the tensors are large, which lie everywhere, or
  // there is no room.
  void advance() {
    if (places_.size() == 1) return;
    try {
      if (places_.empty()) make_places();
      hold_outputs(places_[place_]);
      place_ = (place_ + 1) % places_.size();
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      places_ = {{scratch_, {}}};
      place_ = 0;
    }
    scratch_ = places_[place_].scratch;
    places_[place_].held.clear();
  }

  void make_places() {
    constexpr size_t kPlaces = 4;
    constexpr int64_t kLargeBytes = 64 << 20;
    int64_t bytes = 0;
    for (const at::Tensor& t : scratch_.tensors) {
      if (t.defined() && t.has_storage()) bytes += static_cast<int64_t>(t.storage().nbytes());
    }
    places_.push_back({scratch_, {}});
    while (bytes <= kLargeBytes && places_.size() < kPlaces) {
      Place& place = places_.emplace_back(places_[0]);
      for (const Step& step : steps_) move_inputs(step, place.scratch);
      hold_outputs(place);
    }
  }

  void move_inputs(const Step& step, Bindings& bindings) const {
    for (const SlotSpec& slot : step.slots) {
      at::Tensor& tensor = bindings[slot.role];
      bool moves = tensor.defined() && !slot.on_host && holds_input(op_, step.problem, slot) &&
                   tensor.sizes() == slot.spec.sizes && tensor.strides() == slot.spec.strides;
      if (!moves) continue;
      at::Tensor moved = empty_of_slot(slot, device_, alignment_of_tensors(step.problem));
      tensor = moved.copy_(tensor);
    }
  }

  void hold_outputs(Place& place) const {
    const Step& last = steps_.back();
    for (const SlotSpec& slot : last.slots) {
      if (holds_input(op_, last.problem, slot)) continue;
      place.held.push_back(empty_of_slot(slot, device_, alignment_of_tensors(last.problem)));
    }
  }

  // Interleaved rounds. After each, what is clearly slower than the best is dropped: by a factor 2
  // at first, by 1.25 later. PyTorch's own row stays, since every other is compared with it.
  // Three rounds in any case, but for those that would take more than twice the time.
  void time_rounds(int rounds) {
    constexpr double kLongest = 2;
    for (int round = 1; round < rounds && !out_of_time(kLongest); ++round) {
      advance();
      double baseline = baseline_of(&Contender::best);
      double best = kInfinity;  // of those that may win
      for (const Contender& c : contenders_) {
        if (c.best <= limit_of_baseline(baseline)) best = std::min(best, cost(c.best, c.best_host));
      }
      bool early = round < 3;
      // A launch-bound time has an absolute noise of a few microseconds.
      auto limit = [&](double ms) { return ms * (early ? 2.0 : 1.25) + 0.002; };
      for (Contender& c : contenders_) {
        // The host's first calls may take many times as long as later ones, so they drop nobody.
        double own = early ? c.best : cost(c.best, c.best_host);
        // A single short time may hold a slice that the scheduler gave to others.
        constexpr double kSliceMs = 50;
        bool is_sure = c.samples.size() > 1 || c.best > kSliceMs;
        bool hopeless = is_sure && (own > limit(best) || c.best > limit(baseline));
        c.running = c.running && (c.algorithm.is_baseline() || !hopeless);
        if (!c.running || out_of_time(kLongest)) continue;
        attempt(measurements_[c.index], [&] { sample(c); });
      }
      drop_failed();
      report(round, rounds, Algorithm{"timing", "round", {}});
      if (out_of_time() && round >= 3) break;
    }
  }

  // The few that may yet be the best, once more and longer.
  void time_finals() {
    constexpr size_t kFinalists = 6;
    std::vector<size_t> order = rank_contenders();
    for (Contender& c : contenders_) c.running = c.algorithm.is_baseline();
    for (size_t i = 0; i < std::min(order.size(), kFinalists); ++i) {
      contenders_[order[i]].running = true;
    }
    if (!out_of_time()) time_rounds(2 * options_.min_samples);
  }

  // Hill climbing over the knobs of the best engines, while it helps and time is left.
  void search_knobs() {
    constexpr size_t kEngines = 3;
    std::vector<Algorithm> starts;
    for (size_t i : rank_contenders()) {
      const Algorithm& algorithm = contenders_[i].algorithm;
      bool known = std::any_of(starts.begin(), starts.end(), [&](const Algorithm& start) {
        return start.backend == algorithm.backend && start.name == algorithm.name;
      });
      if (!known && starts.size() < kEngines) starts.push_back(algorithm);
    }
    for (const Algorithm& start : starts) {
      const BackendOperator* op = find_backend(start.backend)->find(op_.family());
      if (op == nullptr || !op->neighbours) continue;
      std::optional<Algorithm> from = start;
      while (from && !out_of_time()) from = step_from(*from, *op);
    }
  }

  // Tries the neighbours; gives the best of this engine when it is a new one.
  std::optional<Algorithm> step_from(const Algorithm& from, const BackendOperator& op) {
    constexpr int kRounds = 5;
    size_t before = contenders_.size();
    std::vector<Algorithm> around = op.neighbours(problem_, from, device_);
    for (size_t i = 0; i < around.size() && !out_of_time(); ++i) {
      report(static_cast<int>(i), static_cast<int>(around.size()), around[i]);
      give_back_turn();
      auto built = build_candidate({around[i], "knob search"}, 1);
      lock_.take();
      if (built) try_built(*built);
    }
    if (contenders_.size() <= before) return std::nullopt;
    time_rounds(kRounds);
    for (size_t i : rank_contenders()) {
      const Algorithm& best = contenders_[i].algorithm;
      if (best.name != from.name) continue;
      return best == from ? std::nullopt : std::optional<Algorithm>(best);
    }
    return std::nullopt;
  }

  bool prefers(Prefer what) const { return policy_.policy.prefer == what; }

  // What is ranked. A network waits for its host where that takes longer than the device.
  double cost(double device_ms, double host_ms) const {
    return prefers(Prefer::gpu_time) ? device_ms : std::max(device_ms, host_ms);
  }

  // Up to here a time is equal: 1 % more, or 5 % when memory is preferred, half a percent when only
  // the device's time counts; of short ones what events resolve, or half a microsecond where the
  // host's call, which takes many, counts as well.
  double limit_of_equal(double ms) const {
    if (prefers(Prefer::gpu_time)) return std::max(ms * 1.005, ms + 0.0001);
    return std::max(ms * (prefers(Prefer::memory) ? 1.05 : 1.01), ms + 0.0005);
  }

  // Up to here the device takes no longer than for PyTorch's own row: half a microsecond is no tie
  // where it is more than 3 %.
  double limit_of_baseline(double ms) const {
    double equal = limit_of_equal(ms);
    if (prefers(Prefer::gpu_time) || prefers(Prefer::memory)) return equal;
    return std::min(equal, std::max(ms * 1.03, ms + 0.0001));
  }

  // A time of PyTorch's own row; infinite where it did not run.
  template <class Time>
  double baseline_of(Time&& time) const {
    for (const Contender& c : contenders_) {
      if (c.algorithm.is_baseline()) return std::invoke(time, c);
    }
    return kInfinity;
  }

  struct Rank {
    size_t index;                               // of the contender
    double device_ms, upper_ms, host_ms, cost;  // medians, and the device's upper quartile
    bool above_baseline;
  };

  // By cost, but what takes the device longer than PyTorch's own row comes after all others.
  std::vector<size_t> rank_contenders() const {
    auto device_ms = [](const Contender& c) { return percentile(c.samples, 0.5); };
    double baseline = baseline_of(device_ms);
    std::vector<Rank> ranks;
    for (size_t i = 0; i < contenders_.size(); ++i) {
      const Contender& c = contenders_[i];
      double device = device_ms(c);
      double host = c.host_samples.empty() ? 0 : percentile(c.host_samples, 0.5);
      ranks.push_back({i, device, percentile(c.samples, 0.75), host, cost(device, host),
                       device > limit_of_baseline(baseline)});
    }
    std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) {
      return std::tie(a.above_baseline, a.cost) < std::tie(b.above_baseline, b.cost);
    });
    break_ties(ranks);
    std::vector<size_t> order;
    for (const Rank& r : ranks) order.push_back(r.index);
    return order;
  }

  // Of those whose cost equals the first one's: the smaller workspace, where it is worth speaking
  // of, then the call that takes the host less, then the kernel that is fast in its slower runs
  // too, then the smaller workspace after all and the simpler algorithm.
  void break_ties(std::vector<Rank>& ranks) const {
    constexpr double kHostStepMs = 0.01, kUnsteady = 1.03;
    const int64_t small_bytes = prefers(Prefer::memory) ? 0 : 1 << 20;
    double steadiest = kInfinity;
    auto end = ranks.begin();
    while (end != ranks.end() && end->above_baseline == ranks[0].above_baseline &&
           end->cost <= limit_of_equal(ranks[0].cost)) {
      steadiest = std::min(steadiest, end++->upper_ms);
    }
    auto key = [&](const Rank& r) {
      const Contender& c = contenders_[r.index];
      int64_t bytes =
          measurements_[c.index].workspace_bytes.value_or(std::numeric_limits<int64_t>::max());
      int64_t host_steps = prefers(Prefer::gpu_time) ? 0 : std::llround(r.host_ms / kHostStepMs);
      return std::tuple(bytes < small_bytes ? 0 : bytes, host_steps,
                        r.upper_ms > kUnsteady * steadiest, bytes, c.algorithm.options.size());
    };
    std::stable_sort(ranks.begin(), end,
                     [&](const Rank& a, const Rank& b) { return key(a) < key(b); });
  }

  std::vector<Measurement> ranked() {
    std::vector<Measurement> out;
    for (size_t i : rank_contenders()) {
      const Contender& c = contenders_[i];
      Measurement& m = measurements_[c.index];
      m.median_ms = percentile(c.samples, 0.5);
      m.spread_ms = (percentile(c.samples, 0.75) - percentile(c.samples, 0.25)) / 2;
      if (!c.host_samples.empty()) m.host_ms = percentile(c.host_samples, 0.5);
      m.samples = static_cast<int64_t>(c.samples.size());
      out.push_back(m);
    }
    for (Status status : {Status::rejected, Status::failed, Status::excluded, Status::needs_driver,
                          Status::unsupported}) {
      for (const Measurement& m : measurements_) {
        if (m.status == status) out.push_back(m);
      }
    }
    return out;
  }

  const Clock::time_point start_ = Clock::now();
  double reference_s_ = 0;
  MeasurementLock lock_;
  const Problem& problem_;
  const ResolvedPolicy& policy_;
  const Device device_;
  const MeasureOptions& options_;
  const Operator& op_;
  const DeviceRuntime& runtime_;
  std::unique_ptr<Timer> timer_;
  std::vector<Step> steps_;
  Bindings scratch_;
  std::vector<Place> places_;
  size_t place_ = 0;  // of `scratch_`
  std::vector<Measurement> measurements_;
  std::vector<Contender> contenders_;
  std::set<std::string> seen_;
};

}  // namespace

Bindings make_scratch(const Problem& problem, const Device& device, uint64_t seed) {
  OverrideGuard plain;
  const Operator& op = operator_of(problem);
  // A generator of our own: tuning must not move the user's random numbers. Drawn on the device's
  // own generator type, seeded; for CUDA that is a throw-away one as well.
  at::Generator generator = at::globalContext().defaultGenerator(device.torch_device()).clone();
  generator.set_current_seed(seed);
  Bindings bindings;
  for (const SlotSpec& slot : op.slots(problem)) {
    if (!holds_input(op, problem, slot)) continue;
    at::Tensor tensor = empty_of_slot(slot, device, alignment_of_tensors(problem));
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

double relative_error(const at::Tensor& result, const at::Tensor& reference) {
  at::Tensor difference = result.to(at::kDouble).sub(reference);
  if (reference.numel() == 0) return 0;
  double scale = reference.square().mean().sqrt().item<double>();
  if (scale == 0) scale = 1;  // nothing to be relative to
  double mean = difference.square().mean().sqrt().item<double>() / scale;
  double largest =
      difference.abs_().div_(reference.abs().clamp_min_(20 * scale)).max().item<double>();
  if (!std::isfinite(mean) || !std::isfinite(largest)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::max(mean, largest);
}

bool are_rankings_kept(const ResolvedPolicy& policy, const Device& device) {
  return !device.has_gpu_backends() || policy.switches.has(Switches::kCudnnEnabled);
}

std::string exclusion_by_backend(const std::string& backend, const ResolvedPolicy& policy,
                                 const Device& device) {
  if (!policy.policy.admits_backend(backend)) {
    return c10::str("excluded by backends=", c10::Join(",", *policy.policy.backends));
  }
  bool cudnn = backend == "graph" || backend == "legacy";
  if (cudnn && !policy.switches.has(Switches::kCudnnEnabled)) {
    return "excluded: torch.backends.cudnn.enabled is False";
  }
  if (cudnn && !device.has_gpu_backends()) return "cuDNN runs on CUDA devices only";
  return "";
}

std::string exclusion_by_notes(const Notes& notes, const ResolvedPolicy& policy) {
  const Policy& p = policy.policy;
  if (notes.has(Note::tf32) && !p.allow_tf32.value_or(false)) {
    return "excluded: may use TF32 for float32 data (allow it with allow_tf32)";
  }
  if (notes.has(Note::down_convert) && !p.allow_down_convert.value_or(false)) {
    return "excluded: converts to or accumulates in a smaller type (allow it with "
           "allow_down_convert)";
  }
  if (notes.has(Note::low_accuracy) && !p.allow_down_convert.value_or(false)) {
    return "excluded: Winograd with large tiles is less accurate than TF32 (allow it with "
           "allow_down_convert)";
  }
  if (notes.has(Note::reduced_range) && !p.allow_reduced_range.value_or(false)) {
    return "excluded: has a reduced range (allow it with allow_reduced_range)";
  }
  if (notes.has(Note::nondeterministic) && p.deterministic.value_or(false)) {
    return "excluded by deterministic: its results can differ from run to run";
  }
  return "";
}

std::string refusal(const Plan& plan, int64_t workspace_bytes, const ResolvedPolicy& policy,
                    const Device& device) {
  std::string reason = exclusion_by_notes(plan.notes, policy);
  if (!reason.empty()) return reason;
  std::optional<int64_t> cap = policy.policy.workspace_cap(device);
  if (!cap) return "";
  if (workspace_bytes > *cap) {
    return c10::str("excluded by max_workspace=", *cap, ": it needs ", workspace_bytes, " bytes");
  }
  return "";
}

namespace {

// On scratch tensors; a backward that reads what its forward left is given that.
int64_t workspace_on_scratch(const Problem& problem, Plan& plan, const Device& device) {
  ScratchGuard guard(problem, device);
  Bindings bindings = make_scratch(problem, device, 0);
  const Operator& op = operator_of(problem);
  if (auto forward = op.forward_of(problem)) {
    BuildResult built = build(*forward, plan.algorithm, device);
    if (auto* unsupported = std::get_if<Unsupported>(&built)) {
      TORCH_CHECK(false, "its forward cannot be built: ", unsupported->reason);
    }
    Bindings made = make_scratch(*forward, device, 0);
    std::get<std::shared_ptr<Plan>>(built)->run(made);
    for (const SlotSpec& slot : op.slots(problem)) {
      if (!slot.is_output && made[slot.role].defined()) bindings[slot.role] = made[slot.role];
    }
  }
  return measured_workspace(problem, plan, std::move(bindings), device);
}

// The workspace that a plan states, or where it states none and there is a cap, that of a run. Of a
// target, which runs nothing, it stays unknown.
std::variant<std::optional<int64_t>, Unsupported> workspace_for_cap(const Problem& problem,
                                                                    Plan& plan,
                                                                    const ResolvedPolicy& policy,
                                                                    const Device& device) {
  bool wanted = policy.policy.workspace_cap(device).has_value() && !device.is_target();
  if (plan.workspace_bytes || !wanted) return plan.workspace_bytes;
  constexpr bool kDriver = false;
  if (runtime_of(device).is_capturing(device)) {
    return Unsupported{
        "its memory cannot be measured while the stream is being captured into a "
        "CUDA graph; run it once before capturing",
        kDriver, /*transient=*/true};
  }
  try {
    workspace_on_scratch(problem, plan, device);  // as of tuning, the second run tells
    return workspace_on_scratch(problem, plan, device);
  } catch (const c10::Error& error) {
    bool memory = is_out_of_memory(error);
    return Unsupported{c10::str("its memory could not be measured, since it failed to run: ",
                                memory ? "out of memory" : error.what_without_backtrace()),
                       kDriver, memory};
  }
}

}  // namespace

std::variant<AdmissiblePlan, Unsupported> build_admissible(const Problem& problem,
                                                           const Algorithm& algorithm,
                                                           const ResolvedPolicy& policy,
                                                           const Device& device) {
  std::string reason = exclusion_by_backend(algorithm.backend, policy, device);
  if (!reason.empty()) return Unsupported{reason};
  if (auto notes = notes_before_building(problem, algorithm, device)) {
    reason = exclusion_by_notes(*notes, policy);
    if (!reason.empty()) return Unsupported{reason};
  }
  BuildResult built = build(problem, algorithm, device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) return *unsupported;
  std::vector<std::shared_ptr<Plan>> coupled;
  for (const Problem& next : operator_of(problem).coupled(problem)) {
    auto usable = build_admissible(next, algorithm, policy, device);
    if (auto* unsupported = std::get_if<Unsupported>(&usable)) {
      unsupported->reason = c10::str(op_of(next), ": ", unsupported->reason);
      return *unsupported;
    }
    coupled.push_back(std::get<AdmissiblePlan>(usable).plan);
  }
  auto plan = std::get<std::shared_ptr<Plan>>(built);
  auto workspace = workspace_for_cap(problem, *plan, policy, device);
  if (auto* unsupported = std::get_if<Unsupported>(&workspace)) return *unsupported;
  auto bytes = std::get<std::optional<int64_t>>(workspace);
  reason = refusal(*plan, bytes.value_or(0), policy, device);
  if (!reason.empty()) return Unsupported{reason};
  return AdmissiblePlan{plan, bytes, std::move(coupled)};
}

namespace {

// What building one problem of a sequence tells of an algorithm.
void list_step(Measurement& m, const Problem& problem, bool first, const ResolvedPolicy& policy,
               const Device& device, const PlanConsumer& admitted) {
  BuildResult built = build(problem, m.algorithm, device);
  if (auto* unsupported = std::get_if<Unsupported>(&built)) {
    m.status = unsupported->needs_driver ? Status::needs_driver : Status::unsupported;
    m.reason = unsupported->reason;
    return;
  }
  const auto& plan = std::get<std::shared_ptr<Plan>>(built);
  m.notes.add(plan->notes);
  auto workspace = workspace_for_cap(problem, *plan, policy, device);
  if (auto* unsupported = std::get_if<Unsupported>(&workspace)) {
    m.status = Status::unsupported;
    m.reason = unsupported->reason;
    return;
  }
  auto bytes = std::get<std::optional<int64_t>>(workspace);
  if (first) {
    m.workspace_bytes = bytes;
  } else if (m.workspace_bytes && bytes) {
    m.workspace_bytes = std::max(*m.workspace_bytes, *bytes);
  } else {
    m.workspace_bytes.reset();
  }
  m.reason = refusal(*plan, bytes.value_or(0), policy, device);
  if (!m.reason.empty()) {
    m.status = Status::excluded;
  } else if (admitted) {
    admitted(problem, m.algorithm, plan);
  }
}

}  // namespace

std::vector<Measurement> list_candidates(const Problem& problem, const ResolvedPolicy& policy,
                                         const Device& device, const PlanConsumer& admitted) {
  std::vector<Measurement> list;
  std::set<std::string> seen;
  std::vector<Problem> sequence = sequence_of(problem);
  for (const std::string& name : backend_names()) {
    const BackendOperator* op = find_backend(name)->find(family_of(problem));
    if (op == nullptr) continue;
    for (const Candidate& candidate : op->candidates(problem, device)) {
      if (!seen.insert(candidate.algorithm.text()).second) continue;
      Measurement m;
      m.algorithm = candidate.algorithm;
      m.source = candidate.source;
      m.reason = exclusion_by_backend(name, policy, device);
      if (!m.reason.empty()) {
        m.status = Status::excluded;
        list.push_back(std::move(m));
        continue;
      }
      auto start = Clock::now();
      m.status = Status::ok;
      for (size_t i = 0; i < sequence.size() && m.status == Status::ok; ++i) {
        list_step(m, sequence[i], i == 0, policy, device, admitted);
        if (!m.reason.empty() && sequence.size() > 1) {
          m.reason = c10::str(op_of(sequence[i]), ": ", m.reason);
        }
      }
      m.build_ms = seconds_since(start) * 1e3;
      list.push_back(std::move(m));
    }
  }
  return list;
}

std::vector<Measurement> measure(const Problem& problem, const ResolvedPolicy& policy,
                                 const Device& device, const MeasureOptions& options) {
  ScratchGuard guard(problem, device);
  TORCH_CHECK(!runtime_of(device).is_capturing(device), op_of(problem),
              ": cannot measure while the stream is being captured into a CUDA graph; tune before "
              "capturing. Problem: ",
              problem_text(problem));
  return Session(problem, policy, device, options).run();
}

void set_measurement_lock(const std::string& path) {
  std::lock_guard<std::mutex> lock(turn_mutex);
  turn_path = path;
}

int64_t measured_workspace(const Problem& problem, Plan& plan, Bindings bindings,
                           const Device& device) {
  ScratchGuard guard(problem, device);
  const Operator& op = operator_of(problem);
  std::vector<Role> outputs;
  for (const SlotSpec& slot : op.slots(problem)) {
    if (!slot.is_output || op.accumulates(problem)) continue;
    bindings[slot.role] = at::Tensor();
    outputs.push_back(slot.role);
  }
  auto observer = std::make_shared<AllocationObserver>(device.torch_device().type());
  {
    c10::DebugInfoGuard observing(c10::DebugInfoKind::PROFILER_STATE, observer);
    // A profiler that is at work takes the observer for a state of its own.
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
