// A backend whose algorithms take the time, the memory and the mistakes that a test scripts. It
// knows no algorithm until the first is scripted, so that it does not show where nobody asked for
// it.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "core/backend.h"
#include "core/errors.h"
#include "cuda/nvml.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

struct Script {
  double milliseconds = 0;        // of a run, by the clock
  std::vector<double> times;      // the same for one timed run after the other, again and again
  bool disturbed = false;         // whether other work takes a part of each run
  std::optional<double> host_ms;  // of a run, as a device's host would have it
  std::optional<double> first_host_ms;  // the same for the first timed run
  double first_stall_ms = 0;            // what the device waits for the host in that run
  double swing_ms = 0;                  // what every third run takes more, by the clock
  double elsewhere_ms = 0;              // the same where its input lies elsewhere than at first
  double sleep_ms = 0;                  // of a run, in truth
  double watts = 0;                     // that a run takes
  int64_t workspace_bytes = 0;
  int64_t first_bytes = 0;       // that the first run allocates beyond it
  bool states_workspace = true;  // false: it shows in a run only
  std::vector<std::string> notes;
  std::string unsupported;   // the reason; empty when it can be built
  std::string build_raises;  // "", "error", "out_of_memory", or a way to end of `raise`
  std::string run_raises;    // the same, or "refusal"
  int64_t raises_at = 0;     // the one run that raises, from 1; 0: every run
  double relative_error = 0;
  double written = 1;        // share of the result that is written
  std::string neighbour_of;  // not a candidate, but one step of the knob search from this one
  int64_t builds = 0, runs = 0;
};

class Scripts {
 public:
  void set(const std::string& algorithm, Script script) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Script& before = by_algorithm_[algorithm];
    script.builds = before.builds;
    script.runs = before.runs;
    by_algorithm_[algorithm] = std::move(script);
  }

  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    by_algorithm_.clear();
  }

  // The script as it stands after `count` was raised by one.
  Script next(const std::string& algorithm, int64_t Script::* count) {
    std::lock_guard<std::mutex> lock(mutex_);
    Script& script = find(algorithm);
    script.*count += 1;
    return script;
  }

  std::vector<Algorithm> around(const std::string& start) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Algorithm> list;
    for (const auto& [algorithm, script] : by_algorithm_) {
      if (script.neighbour_of == start) list.push_back(parse_algorithm(algorithm));
    }
    return list;
  }

  std::vector<std::string> notes(const std::string& algorithm) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(algorithm).notes;
  }

  std::pair<int64_t, int64_t> counts(const std::string& algorithm) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Script& script = find(algorithm);
    return {script.builds, script.runs};
  }

 private:
  // Throws when there is none. The mutex is held.
  Script& find(const std::string& algorithm) {
    auto found = by_algorithm_.find(algorithm);
    TORCH_CHECK(found != by_algorithm_.end(), algorithm, " is not scripted");
    return found->second;
  }

  std::mutex mutex_;
  std::map<std::string, Script> by_algorithm_;
};

Scripts& scripts() {
  static auto* made = new Scripts();
  return *made;
}

// What the clocks of the device and of the host would show, of this thread's scripted runs.
struct Elapsed {
  double ms = 0, host_ms = 0, stalled_ms = 0;  // `ms` holds the stalls
  double energy_mj = 0;
  int64_t runs = 0, host_runs = 0;  // how many, and of how many the host's time is known

  void add(double more_ms, std::optional<double> more_host_ms, double more_stalled_ms = 0) {
    ms += more_ms + more_stalled_ms;
    stalled_ms += more_stalled_ms;
    runs += 1;
    host_ms += more_host_ms.value_or(0);
    host_runs += more_host_ms ? 1 : 0;
  }
};
thread_local Elapsed elapsed;
// What they show of what is not scripted, where a test says so: the host's time, and one time of
// the device after the other, again and again.
struct OtherTimes {
  std::vector<double> ms;
  double host_ms;
  size_t next = 0;
};
std::optional<OtherTimes> time_of_others;

// What the driver would tell, where a test says so.
struct ScriptedDriver {
  std::vector<Clocks> clocks;  // one reading after the other, again and again
  double watts_of_others;      // what is not scripted takes this for 10 ms between two questions
  double step_mj;              // the counter of the energy moves by this
  size_t next = 0;
  int64_t runs = 0;
  double others_mj = 0;
};
std::optional<ScriptedDriver> driver;

// Real time, but between points that scripted runs lie between: theirs.
class ScriptedTimer : public Timer {
 public:
  void start(int) override {
    begin_ = elapsed;
    real_begin_ = Clock::now();
  }
  void stop() override {
    std::chrono::duration<double, std::milli> real = Clock::now() - real_begin_;
    bool scripted = elapsed.runs != begin_.runs;
    if (!scripted && time_of_others) {
      auto& [ms, host_ms, next] = *time_of_others;
      elapsed.add(ms[next++ % ms.size()], host_ms);
    }
    ms_ = scripted || time_of_others ? elapsed.ms - begin_.ms : real.count();
    host_ms_.reset();
    if (elapsed.host_runs != begin_.host_runs) host_ms_ = elapsed.host_ms - begin_.host_ms;
  }
  bool host_was_ahead() const override { return elapsed.stalled_ms == begin_.stalled_ms; }
  float milliseconds() override { return static_cast<float>(ms_); }
  std::optional<double> host_milliseconds() const override { return host_ms_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point real_begin_;
  Elapsed begin_;
  double ms_ = 0;
  std::optional<double> host_ms_;
};

std::atomic<bool> capturing{false};

// The CPU as it is, but for the clock and captures.
class ScriptedRuntime : public DeviceRuntime {
 public:
  static void install() {
    auto made = std::make_unique<ScriptedRuntime>();
    ScriptedRuntime& scripted = *made;
    scripted.cpu_ = register_runtime(Device::Kind::cpu, std::move(made));
  }
  std::string fingerprint(const Device& device) const override { return cpu_->fingerprint(device); }
  int64_t total_memory_bytes(const Device& device) const override {
    return cpu_->total_memory_bytes(device);
  }
  bool is_capturing(const Device&) const override { return capturing; }
  void synchronize(const Device&, const std::string&) const override {}
  std::unique_ptr<Timer> make_timer(const Device&) const override {
    return std::make_unique<ScriptedTimer>();
  }
  void flush_cache(const Device&) const override {}
  std::optional<Clocks> clocks(const Device&) const override {
    if (!driver || driver->clocks.empty()) return std::nullopt;
    return driver->clocks[driver->next++ % driver->clocks.size()];
  }
  std::optional<double> energy_mj(const Device&) const override {
    if (!driver || driver->step_mj == 0) return std::nullopt;
    if (elapsed.runs == driver->runs) driver->others_mj += 10 * driver->watts_of_others;
    driver->runs = elapsed.runs;
    double total = elapsed.energy_mj + driver->others_mj;
    return std::floor(total / driver->step_mj) * driver->step_mj;
  }

 private:
  std::unique_ptr<DeviceRuntime> cpu_;
};

// To an address that belongs to nobody.
void write_out_of_bounds(c10::Device device) {
  if (device.is_cuda()) {
    auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 8);
    auto options = at::TensorOptions(at::kByte).device(device);
    at::for_blob(nowhere, {256}).target_device(device).options(options).make_tensor().fill_(1);
  } else {
    Tensor small = at::empty({1}, at::kByte);
    volatile uint8_t* element = small.mutable_data_ptr<uint8_t>();
    element[int64_t{1} << 42] = 1;
  }
}

// Raises an error, or never returns.
void raise(const std::string& kind, const std::string& algorithm,
           c10::Device device = c10::Device(c10::kCPU)) {
  if (kind.empty()) return;
  if (kind == "abort") std::abort();
  if (kind == "exit") std::_Exit(3);
  if (kind == "kill") ::raise(SIGKILL);
  if (kind == "hang") std::this_thread::sleep_for(std::chrono::hours(24));
  if (kind == "out_of_bounds") return write_out_of_bounds(device);
  TORCH_CHECK_WITH(OutOfMemoryError, kind != "out_of_memory", algorithm,
                   " was told to find no memory. GPU 0 has none left");
  if (kind == "refusal") {
    c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    throw UnsupportedAtRun(here, algorithm + " was told to refuse");
  }
  TORCH_CHECK(false, algorithm, " was told to fail");
}

std::atomic<int64_t> alive{0};  // plans

class FakeConvolution : public Plan {
 public:
  FakeConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, const Script& script)
      : Plan(algorithm, notes_from_texts(script.notes),
             script.states_workspace ? std::optional(script.workspace_bytes) : std::nullopt),
        p_(p) {
    ++alive;
  }
  ~FakeConvolution() override { --alive; }

  void run(Bindings& b) override {
    Script script = scripts().next(algorithm.text(), &Script::runs);
    bool first_timed = script.runs == 2;  // the one before is checked
    const Tensor& input = b[p_.pass == ConvolutionPass::fwd ? Role::x : Role::y];
    const void* place = input.const_data_ptr();
    if (first_place_ == nullptr) first_place_ = place;
    if (script.disturbed) elapsed.stalled_ms += 1e-6;
    double ms = script.milliseconds;
    if (!script.times.empty() && script.runs > 1) {
      ms = script.times[static_cast<size_t>(script.runs - 2) % script.times.size()];
    }
    elapsed.add(ms + (script.runs % 3 == 0 ? script.swing_ms : 0) +
                    (place == first_place_ ? 0 : script.elsewhere_ms),
                first_timed && script.first_host_ms ? script.first_host_ms : script.host_ms,
                first_timed ? script.first_stall_ms : 0);
    elapsed.energy_mj += ms * script.watts;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(script.sleep_ms));
    if (script.raises_at == 0 || script.raises_at == script.runs) {
      raise(script.run_raises, algorithm.text(), input.device());
    }
    int64_t more_bytes = script.runs == 1 ? script.first_bytes : 0;
    Tensor workspace = at::empty({script.workspace_bytes + more_bytes}, at::kByte);
    store(b, script);
  }

 private:
  void store(Bindings& b, const Script& script) const {
    bool forward = p_.pass == ConvolutionPass::fwd;
    bool data = p_.pass == ConvolutionPass::bwd_data;
    const TensorSpec& spec = forward ? p_.y : data ? p_.x : p_.w;
    Tensor& out = b[forward ? Role::y : data ? Role::x : Role::w];
    Tensor result = compute(b).mul_(b.alpha * (1 + script.relative_error));
    if (!out.defined()) {
      auto options = at::TensorOptions(spec.dtype).device(result.device());
      out = at::empty_strided(spec.sizes, spec.strides, options);
    }
    if (b.beta != 0) result.add_(out, b.beta);
    auto rows = static_cast<int64_t>(script.written * static_cast<double>(out.size(1)));
    out.narrow(1, 0, rows).copy_(result.narrow(1, 0, rows));
  }

  Tensor compute(const Bindings& b) const {
    auto operand = [&](Role role, const TensorSpec& spec) {
      if (b[role].defined()) return b[role].to(p_.compute);
      return at::empty(spec.sizes, p_.compute);
    };
    Tensor x = operand(Role::x, p_.x), w = operand(Role::w, p_.w);
    Dims none(p_.spatial_dims(), 0);
    if (p_.pass == ConvolutionPass::fwd) {
      return at::convolution(x, w, {}, p_.stride, p_.padding, p_.dilation, false, none, p_.groups);
    }
    bool data = p_.pass == ConvolutionPass::bwd_data;
    auto gradients =
        at::convolution_backward(operand(Role::y, p_.y), x, w, c10::nullopt, p_.stride, p_.padding,
                                 p_.dilation, false, none, p_.groups, {data, !data, false});
    return data ? std::get<0>(gradients) : std::get<1>(gradients);
  }

  const ConvolutionProblem p_;
  const void* first_place_ = nullptr;  // of the input
};

std::vector<Candidate> candidates(const ConvolutionProblem&, const Device&) {
  std::vector<Candidate> list;
  for (const Algorithm& algorithm : scripts().around("")) list.push_back({algorithm, "script"});
  return list;
}

std::vector<Algorithm> neighbours(const ConvolutionProblem&, const Algorithm& algorithm,
                                  const Device&) {
  return scripts().around(algorithm.text());
}

BuildResult build_plan(const ConvolutionProblem& p, const Algorithm& algorithm, const Device&) {
  Script script = scripts().next(algorithm.text(), &Script::builds);
  raise(script.build_raises, algorithm.text());
  if (!script.unsupported.empty()) return Unsupported{script.unsupported};
  bool plain = p.mode == ConvolutionMode::cross && !p.bias && !p.z;
  if (!plain) return Unsupported{"fake takes plain cross-correlations only"};
  return std::make_shared<FakeConvolution>(p, algorithm, script);
}

std::optional<Notes> notes(const ConvolutionProblem&, const Algorithm& algorithm, const Device&) {
  return notes_from_texts(scripts().notes(algorithm.text()));
}

const RegisterBackendOperator<ConvolutionProblem> registered("fake", candidates, build_plan,
                                                             neighbours, notes);

// A dropout that drops nothing, for problems that share an algorithm: notes are of the backward.
std::vector<Candidate> dropout_candidates(const DropoutProblem&, const Device&) { return {}; }

BuildResult build_dropout(const DropoutProblem& p, const Algorithm& algorithm, const Device&) {
  Script script = scripts().next(algorithm.text(), &Script::builds);
  bool backward = p.pass == Pass::bwd;
  return std::make_shared<FunctionPlan>(
      algorithm, backward ? notes_from_texts(script.notes) : Notes{}, 0, [=](Bindings& b) {
        give(b, backward ? Role::dx : Role::y, p.x, b[backward ? Role::dy : Role::x].clone());
        if (!backward) b[Role::reserve] = at::empty({0}, at::kByte);
      });
}

const RegisterBackendOperator<DropoutProblem> dropout("fake", dropout_candidates, build_dropout);

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  ScriptedRuntime::install();
  m.def(
      "script",
      [](const std::string& algorithm, double milliseconds, std::vector<double> times,
         bool disturbed, std::optional<double> host_ms, std::optional<double> first_host_ms,
         double first_stall_ms, double swing_ms, double elsewhere_ms, double sleep_ms, double watts,
         int64_t workspace_bytes, int64_t first_bytes, bool states_workspace,
         std::vector<std::string> notes, std::string unsupported, std::string build_raises,
         std::string run_raises, int64_t raises_at, double relative_error, double written,
         std::string neighbour_of) {
        scripts().set(parse_algorithm(algorithm).text(), {milliseconds,
                                                          std::move(times),
                                                          disturbed,
                                                          host_ms,
                                                          first_host_ms,
                                                          first_stall_ms,
                                                          swing_ms,
                                                          elsewhere_ms,
                                                          sleep_ms,
                                                          watts,
                                                          workspace_bytes,
                                                          first_bytes,
                                                          states_workspace,
                                                          std::move(notes),
                                                          std::move(unsupported),
                                                          std::move(build_raises),
                                                          std::move(run_raises),
                                                          raises_at,
                                                          relative_error,
                                                          written,
                                                          std::move(neighbour_of)});
      },
      py::arg("algorithm"), py::kw_only(), py::arg("milliseconds") = 0.0,
      py::arg("times") = std::vector<double>(), py::arg("disturbed") = false,
      py::arg("host_ms") = py::none(), py::arg("first_host_ms") = py::none(),
      py::arg("first_stall_ms") = 0.0, py::arg("swing_ms") = 0.0, py::arg("elsewhere_ms") = 0.0,
      py::arg("sleep_ms") = 0.0, py::arg("watts") = 0.0, py::arg("workspace_bytes") = 0,
      py::arg("first_bytes") = 0, py::arg("states_workspace") = true,
      py::arg("notes") = std::vector<std::string>(), py::arg("unsupported") = "",
      py::arg("build_raises") = "", py::arg("run_raises") = "", py::arg("raises_at") = 0,
      py::arg("relative_error") = 0.0, py::arg("written") = 1.0, py::arg("neighbour_of") = "",
      "Sets how an algorithm behaves from now on, also in plans that are built; counts go on.");
  m.def(
      "counts", [](const std::string& algorithm) { return scripts().counts(algorithm); },
      py::arg("algorithm"), "How often an algorithm was built (or tried to be) and run.");
  m.def(
      "capture", [](bool on) { capturing = on; }, py::arg("on"),
      "From now on streams are captured, or are not.");
  m.def(
      "call_with_the_lock",
      [](const std::string& op, const Tensor& x, const Tensor& w, const std::string& policy) {
        auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), "");
        torch::jit::Stack stack{x, w};
        const auto& arguments = handle.schema().arguments();
        while (stack.size() + 1 < arguments.size()) {
          stack.push_back(arguments[stack.size()].default_value().value());
        }
        stack.push_back(policy);
        handle.callBoxed(stack);
        return stack[0].toTensor();
      },
      py::arg("op"), py::arg("x"), py::arg("w"), py::arg("policy"),
      "Calls an operator without giving Python's lock up, as some extensions do.");
  m.def("plans_alive", [] { return alive.load(); }, "How many plans were built and not destroyed.");
  m.def(
      "script_others",
      [](std::vector<double> milliseconds, double host_ms) {
        time_of_others = OtherTimes{std::move(milliseconds), host_ms};
      },
      py::kw_only(), py::arg("milliseconds"), py::arg("host_ms"),
      "Sets what the clocks show of algorithms of other backends, such as PyTorch's own.");
  m.def(
      "script_driver",
      [](const std::vector<std::pair<int64_t, std::vector<std::string>>>& clocks,
         double watts_of_others, double step_mj) {
        driver = ScriptedDriver{{}, watts_of_others, step_mj};
        for (const auto& [mhz, slowdowns] : clocks) driver->clocks.push_back({mhz, slowdowns});
      },
      py::kw_only(),
      py::arg("clocks") = std::vector<std::pair<int64_t, std::vector<std::string>>>(),
      py::arg("watts_of_others") = 0.0, py::arg("step_mj") = 0.0,
      "Sets what the driver tells of clocks and energy; no energy if the counter has no steps.");
  m.def(
      "nvml",
      [](const std::string& bus_id) {
        auto clocks = nvml_clocks(bus_id).value_or(Clocks{});
        return std::tuple(clocks.sm_mhz, clocks.slowdowns, nvml_power_limit_w(bus_id),
                          nvml_energy_mj(bus_id));
      },
      py::arg("bus_id"), "The clock, why it is held down, the power limit and the energy.");
  m.def(
      "reset",
      [] {
        scripts().clear();
        time_of_others.reset();
        driver.reset();
        capturing = false;
      },
      "Forgets what was scripted.");
}

}  // namespace torch_cudnn_ext
