// _C: what the Python tools need. Texts, numbers, tensors and plain dicts; see _C.pyi for the
// contract.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pythoncapi_compat.h>
#include <torch/extension.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/backend.h"
#include "core/base/enum_text.h"
#include "core/base/text.h"
#include "core/errors.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/policy/policy.h"
#include "core/policy/rules.h"
#include "core/select/recording.h"
#include "core/select/selector.h"
#include "core/tune/measure.h"
#include "core/tune/tuning_table.h"
#include "cuda/workspace.h"
#include "cudnn/cudnn.h"
#include "library.h"
#include "ops/convolution/convolution.h"
#include "problems/rnn_layout.h"
#include "python/fast_call.h"
#include "replay/replay.h"
#include "torch/overrides.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

// C++ errors as the Python errors that they mean, without a C++ backtrace in the message.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    PyErr_SetString(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
                    error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

template <class T>
py::object object_of(const std::optional<T>& value) {
  return value ? py::cast(*value) : py::none();
}

std::optional<bool> deterministic_of(const Measurement& m) {
  if (m.status == Measurement::Status::unsupported ||
      m.status == Measurement::Status::needs_driver) {
    return std::nullopt;
  }
  return !m.notes.has(Note::nondeterministic);
}

py::dict candidate_dict(const Measurement& m) {
  py::dict d;
  d["algorithm"] = m.algorithm.text();
  d["backend"] = m.algorithm.backend;
  d["status"] = status_text(m.status);
  d["reason"] = m.reason;
  d["workspace_bytes"] = object_of(m.workspace_bytes);
  d["notes"] = m.notes.texts();
  d["deterministic"] = object_of(deterministic_of(m));
  d["source"] = m.source;
  return d;
}

py::dict measurement_dict(const Measurement& m) {
  py::dict d = candidate_dict(m);
  d["median_ms"] = object_of(m.median_ms);
  d["spread_ms"] = object_of(m.spread_ms);
  d["host_ms"] = object_of(m.host_ms);
  d["samples"] = m.samples;
  d["error"] = object_of(m.error);
  d["build_ms"] = m.build_ms;
  return d;
}

py::list ranking(const std::vector<Measurement>& measurements) {
  py::list out;
  for (const Measurement& m : measurements) out.append(measurement_dict(m));
  return out;
}

template <class T>
T field(const py::dict& d, const char* name) {
  TORCH_CHECK_VALUE(d.contains(name), "measurement: the field '", name, "' is missing");
  try {
    return d[name].cast<T>();
  } catch (const py::cast_error&) {
    TORCH_CHECK_VALUE(false, "measurement: the field '", name, "' is ",
                      py::repr(d[name]).cast<std::string>(), ", which is of the wrong type");
  }
}

Measurement measurement_from(const py::dict& d) {
  Measurement m;
  m.algorithm = parse_algorithm(field<std::string>(d, "algorithm"));
  m.status = status_from_text(field<std::string>(d, "status"));
  m.reason = field<std::string>(d, "reason");
  m.workspace_bytes = field<std::optional<int64_t>>(d, "workspace_bytes");
  m.notes = notes_from_texts(field<std::vector<std::string>>(d, "notes"));
  m.source = field<std::string>(d, "source");
  m.median_ms = field<std::optional<double>>(d, "median_ms");
  m.spread_ms = field<std::optional<double>>(d, "spread_ms");
  // Files of earlier versions have none.
  if (d.contains("host_ms")) m.host_ms = field<std::optional<double>>(d, "host_ms");
  m.samples = field<int64_t>(d, "samples");
  m.error = field<std::optional<double>>(d, "error");
  m.build_ms = field<double>(d, "build_ms");
  bool timed = m.status != Measurement::Status::ok || m.median_ms.has_value();
  TORCH_CHECK_VALUE(timed, "median_ms of ", m.algorithm.text(),
                    " is null, wanted a time: it is ok");
  return m;
}

py::dict choice_dict(const DecisionRecord& r) {
  py::dict d;
  d["op"] = r.op;
  d["problem"] = r.problem;
  d["algorithm"] = r.algorithm;
  d["why"] = r.why;
  d["workspace_bytes"] = object_of(r.workspace_bytes);
  d["decision_ms"] = r.decision_ms;
  d["device"] = r.device;
  d["policy"] = r.policy;
  return d;
}

py::dict problem_info(const std::string& text) {
  Problem problem = parse_problem(text);
  const Operator& op = operator_of(problem);
  Cost cost = op.cost(problem);
  py::dict d, slots;
  for (const SlotSpec& slot : op.slots(problem)) {
    py::dict s;
    s["dtype"] = dtype_text(slot.spec.dtype);
    s["sizes"] = c10::IntArrayRef(slot.spec.sizes).vec();
    s["strides"] = c10::IntArrayRef(slot.spec.strides).vec();
    s["output"] = slot.is_output;
    s["mutated"] = slot.is_mutated;
    slots[role_text(slot.role)] = s;
  }
  d["text"] = problem_text(problem);
  d["family"] = family_of(problem);
  d["pass_name"] = pass_of(problem);
  d["op"] = op_of(problem);
  d["dtype"] = dtype_text(op.slots(problem)[0].spec.dtype);
  std::vector<std::string> sequence;
  if (auto forward = op.forward_of(problem)) sequence.push_back(problem_text(*forward));
  for (const Problem& next : op.coupled(problem)) sequence.push_back(problem_text(next));
  d["coupled"] = sequence;
  d["flops"] = cost.flops;
  d["bytes"] = cost.bytes;
  d["slots"] = slots;
  return d;
}

py::list recorded_py(size_t begin) {
  py::list out;
  for (const RecordedCall& call : recorded_calls(begin)) {
    out.append(call.choice != nullptr ? py::object(choice_dict(*call.choice))
                                      : py::object(py::str(call.declined)));
  }
  return out;
}

std::string canonical_algorithm(const std::string& text, const std::optional<std::string>& op) {
  if (!op) return parse_algorithm(text).text();
  auto [family, pass] = find_pass(*op);
  return resolve_algorithm(text, *op, family->legacy_names(pass)).text();
}

template <class T>
void set_if(py::dict& d, const char* name, const std::optional<T>& value) {
  if (value) d[name] = *value;
}

// In a text `fastest` ignores the caps of all its levels. What else it says is spelled out.
std::string text_of_levels(Policy policy, const std::string& family) {
  bool capped = policy.max_workspace_bytes || policy.max_workspace_percent;
  if (capped && policy.fastest.value_or(false)) policy.fastest.reset();
  return policy.text(family);
}

template <auto Join>
std::string joined(const std::string& stronger, const std::string& weaker,
                   const std::string& family) {
  return text_of_levels(Join(parse_policy(stronger, family), parse_policy(weaker, family)), family);
}

py::dict policy_fields(const std::string& text, const std::string& family) {
  Policy policy = parse_policy(text, family);
  py::dict d;
  for (const auto& [op, choice] : policy.choices) {
    bool own = op.rfind(family + "_", 0) == 0;
    d[py::str(own ? op.substr(family.size() + 1) : op)] = choice.text();
  }
  set_if(d, "max_workspace", policy.max_workspace_bytes);
  if (policy.max_workspace_percent) {
    d["max_workspace"] = c10::str(*policy.max_workspace_percent, "%");
  }
  for (const BooleanField& field : kBooleanFields) set_if(d, field.name, policy.*field.value);
  set_if(d, "backends", policy.backends);
  // The enumerated ones by their words, as the text spells them.
  Policy words;
  words.prefer = policy.prefer;
  words.on_unsupported = policy.on_unsupported;
  words.compute = policy.compute;
  std::string rest = words.text(family);
  while (!rest.empty()) {
    std::string item = rest.substr(0, rest.find(';'));
    rest = item.size() < rest.size() ? rest.substr(item.size() + 1) : "";
    d[py::str(item.substr(0, item.find('=')))] = item.substr(item.find('=') + 1);
  }
  return d;
}

ConvolutionPass convolution_pass(const std::string& op) {
  auto [family, pass] = find_pass(op);
  TORCH_CHECK_VALUE(std::string_view(family->family()) == ConvolutionProblem::kFamily, "op is '",
                    op, "', wanted an operator of convolution");
  if (pass == "fwd") return ConvolutionPass::fwd;
  return pass == "bwd_data" ? ConvolutionPass::bwd_data : ConvolutionPass::bwd_filter;
}

py::list operators() {
  py::list out;
  for (const Operator* op : all_operators()) {
    py::dict d, names;
    for (const std::string& pass : op->passes()) {
      py::list list;
      int last = -1;
      for (const LegacyName& name : op->legacy_names(pass)) {
        if (name.value != last) list.append(py::make_tuple(name.value, name.enumerator, name.name));
        last = name.value;
      }
      names[py::str(pass)] = list;
    }
    py::list backends;
    for (const std::string& name : backend_names()) {
      if (find_backend(name)->find(op->family()) != nullptr) backends.append(name);
    }
    d["family"] = op->family();
    d["passes"] = op->passes();
    d["backends"] = backends;
    d["legacy_names"] = names;
    d["has_one_choice"] = op->has_one_choice();
    OperatorDescription text = op->description();
    d["entry_points"] = text.entry_points;
    d["dtypes"] = text.dtypes;
    d["layouts"] = text.layouts;
    d["limits"] = text.limits;
    d["examples"] = text.examples;
    py::dict batch;
    for (const BatchSize& size : op->batch_sizes()) batch[py::str(size.field)] = size.dim;
    d["batch_sizes"] = batch;
    out.append(d);
  }
  return out;
}

py::dict versions() {
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  py::dict d;
  d["torch"] = py::module_::import("torch").attr("__version__").cast<std::string>();
  d["cudnn"] = std::to_string(cudnnGetVersion());
  d["cudnn_header"] = std::to_string(CUDNN_VERSION);
  d["cudart"] = std::to_string(runtime);
  return d;
}

const ResolvedPolicy& resolved(const Problem& problem, const std::string& policy) {
  return resolve_policy(family_of(problem), policy);
}
// The same with rules, as calls of this problem have it.
const ResolvedPolicy& ruled(const Problem& problem, const std::string& policy) {
  return with_rules(problem, resolved(problem, policy));
}

py::list candidates(const std::string& text, const std::string& device_text,
                    const std::string& policy, bool remember) {
  Problem problem = parse_problem(text);
  Device device = parse_device(device_text);
  std::vector<Measurement> list;
  {
    py::gil_scoped_release release;
    c10::OptionalDeviceGuard guard;
    if (device.is_cuda()) guard.reset_device(device.torch_device());
    const ResolvedPolicy& levels = ruled(problem, policy);
    PlanConsumer admitted;
    if (remember) {  // for runs that follow: some plans take seconds to build
      admitted = [&](const Problem& p, const Algorithm& a, const std::shared_ptr<Plan>& plan) {
        remember_plan(p, a, levels, device, plan);
      };
    }
    list = list_candidates(problem, levels, device, admitted);
  }
  py::list out;
  for (const Measurement& m : list) out.append(candidate_dict(m));
  return out;
}

py::list measure_py(const std::string& text, const std::string& device_text,
                    const std::string& policy_text,
                    const std::optional<std::vector<std::string>>& algorithms, double time_budget_s,
                    bool knob_search, bool record, int min_samples, bool flush_l2,
                    const py::object& progress, bool levels) {
  TORCH_CHECK_VALUE(min_samples >= 1, "measure: min_samples is ", min_samples,
                    ", wanted at least 1");
  TORCH_CHECK_VALUE(time_budget_s >= 0, "measure: time_budget_s is ", time_budget_s,
                    ", wanted at least 0 (0: no limit)");
  Problem problem = parse_problem(text);
  Device device = parse_device(device_text);
  device.torch_device();  // refuses a target
  // Rules say nothing of algorithms that are asked for by their names.
  bool all = !algorithms || algorithms->empty();
  const ResolvedPolicy& policy = !levels ? resolve_alone(family_of(problem), policy_text)
                                 : all   ? ruled(problem, policy_text)
                                         : resolved(problem, policy_text);
  MeasureOptions options;
  for (const std::string& algorithm : algorithms.value_or(std::vector<std::string>{})) {
    auto [family, pass] = find_pass(op_of(problem));
    options.algorithms.push_back(
        resolve_algorithm(algorithm, op_of(problem), family->legacy_names(pass)));
  }
  options.time_budget_s = time_budget_s;
  options.knob_search = knob_search;
  options.min_samples = min_samples;
  options.flush_cache = flush_l2;
  options.throws_out_of_memory = false;
  options.progress = [&](int done, int total, const std::string& algorithm) {
    py::gil_scoped_acquire acquire;
    if (!progress.is_none()) progress(done, total, algorithm);
  };
  std::vector<Measurement> list;
  {
    py::gil_scoped_release release;
    list = measure(problem, policy, device, options);
    bool any = !list.empty() && list[0].status == Measurement::Status::ok;
    bool kept = record && options.algorithms.empty() && are_rankings_kept(policy, device);
    if (kept && any) {
      tuning_table::insert({problem_text(problem), fingerprint_of(device),
                            policy.policy.constraints_text(problem), list});
      next_decision_generation();
    }
  }
  return ranking(list);
}

using TensorsByRole = std::map<std::string, at::Tensor>;

Bindings bindings_of(const Problem& problem, const TensorsByRole& tensors) {
  Bindings bindings;
  const Operator& op = operator_of(problem);
  op.set_scalars(problem, bindings);
  for (const auto& [name, tensor] : tensors) bindings[role_from_text(name)] = tensor;
  for (const SlotSpec& slot : op.slots(problem)) {
    const at::Tensor& t = bindings[slot.role];
    bool needed = !slot.is_output || op.accumulates(problem);
    TORCH_CHECK_VALUE(t.defined() || !needed, "tensors: '", role_text(slot.role),
                      "' is missing for ", problem_text(problem));
    if (!t.defined()) continue;
    // Of a reserve, only the algorithm knows the size.
    if (slot.role == Role::reserve) continue;
    bool fits =
        t.scalar_type() == slot.spec.dtype && t.sizes() == c10::IntArrayRef(slot.spec.sizes);
    for (int i = 0; fits && i < slot.spec.sizes.size(); ++i) {
      fits = slot.spec.sizes[i] <= 1 || t.stride(i) == slot.spec.strides[i];
    }
    TORCH_CHECK_VALUE(fits, "tensors: '", role_text(slot.role), "' is ", t.scalar_type(), " ",
                      t.sizes(), " with strides ", t.strides(),
                      ", wanted what the problem says: ", problem_text(problem));
    auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
    TORCH_CHECK_VALUE(address % alignment_of_tensors(problem) == 0, "tensors: '",
                      role_text(slot.role), "' is not aligned to ", alignment_of_tensors(problem),
                      " bytes, as the problem says: ", problem_text(problem));
  }
  return bindings;
}

struct Prepared {
  std::shared_ptr<Plan> plan;
  Bindings bindings;
  std::vector<SlotSpec> slots;
  c10::Device device = c10::kCPU;
};

Prepared prepare(const std::string& text, const std::string& algorithm_text,
                 const TensorsByRole& tensors, const std::string& policy) {
  Problem problem = parse_problem(text);
  auto [family, pass] = find_pass(op_of(problem));
  Algorithm algorithm =
      resolve_algorithm(algorithm_text, op_of(problem), family->legacy_names(pass));
  Prepared made;
  made.bindings = bindings_of(problem, tensors);
  made.slots = family->slots(problem);
  for (const SlotSpec& slot : made.slots) {
    // Lengths are on the host wherever the data are.
    const at::Tensor& t = made.bindings[slot.role];
    if (!slot.is_output && t.defined() && made.device.is_cpu()) made.device = t.device();
  }
  for (const SlotSpec& slot : made.slots) {
    const at::Tensor& t = made.bindings[slot.role];
    c10::Device wanted = slot.on_host ? c10::Device(c10::kCPU) : made.device;
    TORCH_CHECK_VALUE(!t.defined() || t.device() == wanted, "tensors: '", role_text(slot.role),
                      "' is on ", t.device(), ", wanted ", wanted, ": ", problem_text(problem));
  }
  c10::DeviceGuard guard(made.device);
  auto result =
      admissible_plan(problem, algorithm, resolved(problem, policy), device_of(made.device));
  if (auto* unsupported = std::get_if<Unsupported>(&result)) {
    TORCH_CHECK(false, algorithm.text(), " cannot run: ", unsupported->reason,
                "\n  problem: ", problem_text(problem));
  }
  made.plan = std::get<AdmissiblePlan>(result).plan;
  return made;
}

constexpr EnumName<Replay> kReplays[] = {{Replay::never, "never"},
                                         {Replay::where_it_pays, "where_it_pays"},
                                         {Replay::at_once, "at_once"},
                                         {Replay::kernels_at_once, "kernels_at_once"}};

TensorsByRole run(const std::string& text, const std::string& algorithm,
                  const TensorsByRole& tensors, const std::string& policy,
                  const std::string& replay) {
  OverrideGuard plain;
  Prepared made = prepare(text, algorithm, tensors, policy);
  c10::DeviceGuard guard(made.device);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  made.bindings.replay = enum_value(kReplays, "run: replay", replay);
  made.plan->run(made.bindings);
  TensorsByRole results;
  for (const SlotSpec& slot : made.slots) {
    const at::Tensor& tensor = made.bindings[slot.role];  // a reserve need not be left
    bool written = slot.is_output || slot.is_mutated;
    if (written && tensor.defined()) results[role_text(slot.role)] = tensor;
  }
  return results;
}

double execute_loop(const std::string& text, const std::string& algorithm,
                    const TensorsByRole& tensors, int64_t iterations) {
  TORCH_CHECK_VALUE(iterations >= 1, "execute_loop: iterations is ", iterations,
                    ", wanted at least 1");
  OverrideGuard plain;
  Prepared made = prepare(text, algorithm, tensors, "");
  c10::DeviceGuard guard(made.device);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  made.plan->run(made.bindings);
  auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < iterations; ++i) made.plan->run(made.bindings);
  std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return taken.count() / static_cast<double>(iterations);
}

TensorsByRole tensors_of(const Bindings& bindings) {
  TensorsByRole out;
  for (int i = 0; i < static_cast<int>(Role::kCount); ++i) {
    auto role = static_cast<Role>(i);
    if (bindings[role].defined()) out[role_text(role)] = bindings[role];
  }
  return out;
}

py::list table_export() {
  py::list out;
  for (const TableEntry& entry : tuning_table::entries()) {
    py::dict d;
    d["problem"] = entry.problem;
    d["device"] = entry.device;
    d["constraints"] = entry.constraints;
    d["measurements"] = ranking(entry.measurements);
    out.append(d);
  }
  return out;
}

// All or nothing: a mistake in one entry leaves the table as it was.
int64_t table_import(const std::vector<py::dict>& entries) {
  std::vector<TableEntry> read;
  for (const py::dict& d : entries) {
    Problem problem = parse_problem(field<std::string>(d, "problem"));
    TableEntry entry{problem_text(problem), field<std::string>(d, "device"), "", {}};
    Policy constraints = parse_policy(field<std::string>(d, "constraints"), family_of(problem));
    entry.constraints = constraints.constraints_text(problem);
    for (const py::dict& m : field<std::vector<py::dict>>(d, "measurements")) {
      entry.measurements.push_back(measurement_from(m));
    }
    read.push_back(std::move(entry));
  }
  for (TableEntry& entry : read) tuning_table::insert(std::move(entry));
  next_decision_generation();
  return static_cast<int64_t>(read.size());
}

void clear_table() {
  tuning_table::clear();
  next_decision_generation();
}

py::object last_decision_py(const std::optional<std::string>& op) {
  const DecisionRecord* record = last_decision(op);
  return record == nullptr ? py::none() : py::object(choice_dict(*record));
}

py::dict decide_py(const std::string& text, const std::string& device_text,
                   const std::string& policy) {
  Problem problem = parse_problem(text);
  Device device = parse_device(device_text);
  const DecisionRecord* record = nullptr;
  {
    py::gil_scoped_release release;
    c10::OptionalDeviceGuard guard;
    if (device.is_cuda()) guard.reset_device(device.torch_device());
    record = &decide(problem, policy, device);
  }
  return choice_dict(*record);
}

std::vector<std::string> problems_posed_by(const py::function& call) {
  DryRun dry_run;
  call();
  return std::move(dry_run.problems);
}

py::dict cache_info() {
  PlanCacheInfo info = plan_cache_info();
  py::dict d;
  d["size"] = info.size;
  d["capacity"] = info.capacity;
  d["hits"] = info.hits;
  d["misses"] = info.misses;
  return d;
}

}  // namespace

std::optional<std::string> value_error_text(std::exception& error) {
  if (auto* native = dynamic_cast<c10::ValueError*>(&error)) {
    return native->what_without_backtrace();
  }
  auto* python = dynamic_cast<python_error*>(&error);
  if (python == nullptr) return std::nullopt;
  py::gil_scoped_acquire acquire;
  python->persist();  // out of the interpreter, if it is still there
  // Ours are of that very class and begin so; a user's, of a hook or a mode, is not taken for one.
  bool is_ours =
      python->type == PyExc_ValueError && python->message.rfind("torch_cudnn_ext::", 0) == 0;
  return is_ours ? std::optional<std::string>(python->message) : std::nullopt;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_kernels_of_writers();
  py::register_local_exception_translator(translate);
  set_warning_sink([](const std::string& message) {
    py::gil_scoped_acquire acquire;
    py::module_::import("torch_cudnn_ext.warning").attr("warn")(message);
  });

  set_interrupt_check([] {
    // Signals are for Python's main thread; one that Python does not know may be joined by who
    // holds the lock.
    if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return;
    py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
  set_wait_for_others([](c10::function_ref<void()> waiting) {
    bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
    std::optional<py::gil_scoped_release> released;
    if (known && PyGILState_Check() != 0) released.emplace();
    waiting();
  });
  // torch.cuda.synchronize() gives Python's lock up just before it waits, and has begun to after a
  // moment. Threads that Python does not know may be joined by who holds the lock, and without a
  // lock nothing is recorded.
  set_recording_alone([](c10::function_ref<void()> recording) {
#ifndef Py_GIL_DISABLED
    bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
    if (!known || Py_IsFinalizing() != 0) return;
    py::gil_scoped_acquire alone;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    recording();
#endif
  });
  install_fast_calls(m);
  py::module_::import("atexit").attr("register")(py::cpp_function(leave_plans));

  m.def(
      "canonical_problem",
      [](const std::string& text) { return problem_text(parse_problem(text)); }, py::arg("text"));
  m.def("problem_info", problem_info, py::arg("text"));
  m.def(
      "rnn_parameter_sizes",
      [](const std::string& text) {
        py::list sizes;
        for (const RnnParameter& one : rnn_parameters(std::get<RnnProblem>(parse_problem(text)))) {
          sizes.append(one.columns > 0 ? py::make_tuple(one.rows, one.columns)
                                       : py::make_tuple(one.rows));
        }
        return sizes;
      },
      py::arg("text"));
  m.def("canonical_algorithm", canonical_algorithm, py::arg("text"), py::arg("op") = py::none());
  m.def(
      "canonical_policy",
      [](const std::string& text, const std::string& family,
         const std::optional<std::string>& written_for) {
        return parse_policy(text, family).text(written_for.value_or(family));
      },
      py::arg("text"), py::arg("family") = "conv", py::arg("written_for") = py::none());
  m.def("policy_fields", policy_fields, py::arg("text"), py::arg("family") = "conv");
  m.def("merged_policy", joined<merge>, py::arg("stronger"), py::arg("weaker"),
        py::arg("family") = "conv");
  m.def("policy_with_level", joined<apply_level>, py::arg("stronger"), py::arg("weaker"),
        py::arg("family") = "conv");
  m.def(
      "workspace_cap",
      [](const std::string& text, const std::string& device) {
        return parse_policy(text, "conv").workspace_cap(parse_device(device));
      },
      py::arg("text"), py::arg("device"));
  m.def(
      "convolution_problem",
      [](const std::string& op, const at::Tensor& x, const at::Tensor& w,
         const std::vector<int64_t>& padding, const std::vector<int64_t>& stride,
         const std::vector<int64_t>& dilation, int64_t groups,
         const std::optional<std::string>& policy, bool has_bias) {
        std::optional<std::string_view> view;
        if (policy) view = *policy;
        return problem_text(convolution::make_problem(convolution_pass(op), x, w, stride, padding,
                                                      dilation, groups, has_bias, view));
      },
      py::arg("op"), py::arg("x"), py::arg("w"), py::arg("padding"), py::arg("stride"),
      py::arg("dilation"), py::arg("groups"), py::arg("policy") = py::none(),
      py::arg("has_bias") = false);
  m.attr("MAX_TEXT") = kMaxText;
  m.attr("IN_POLICIES") = kInPolicies;
  m.attr("IN_TEXTS") = kInTexts;
  m.attr("IN_OPERATORS") = kInOperators;
  m.def(
      "check_length",
      [](const std::string& what, const std::string& text) { check_length(what, text); },
      py::arg("what"), py::arg("text"));
  m.def(
      "nearest_words",
      [](const std::string& word, const std::vector<std::string>& known) {
        return nearest_words(word, known);
      },
      py::arg("word"), py::arg("known"));
  m.def(
      "wanted_words",
      [](const std::string& word, const std::vector<std::string>& known, const std::string& all) {
        return wanted_words(word, known, all);
      },
      py::arg("word"), py::arg("known"), py::arg("all"));
  m.def("operators", operators);
  m.def("families_with", families_with, py::arg("algorithm"));

  m.def("add_target", add_target, py::arg("name"), py::arg("device_properties_json"));
  m.def(
      "device_fingerprint",
      [](const std::string& device) { return fingerprint_of(parse_device(device)); },
      py::arg("device"));
  m.def("versions", versions);
  m.def("cudnn_files", cudnn_files);

  m.def("candidates", candidates, py::arg("problem"), py::arg("device"), py::arg("policy") = "",
        py::arg("remember") = false);
  m.attr("OUT_OF_MEMORY") = kOutOfMemory;  // in the reason of what found none
  m.attr("OUT_OF_TIME") = kOutOfTime;      // begins the reason of what was not tried
  m.def("set_measurement_lock", set_measurement_lock, py::arg("path"));
  m.def("measure", measure_py, py::arg("problem"), py::arg("device"), py::arg("policy") = "",
        py::arg("algorithms") = py::none(), py::arg("time_budget_s") = 0.0,
        py::arg("knob_search") = false, py::arg("record") = true, py::arg("min_samples") = 11,
        py::arg("flush_l2") = true, py::arg("progress") = py::none(), py::arg("levels") = true);
  m.def("decide", decide_py, py::arg("problem"), py::arg("device"), py::arg("policy") = "");
  m.def("run", run, NoGil(), py::arg("problem"), py::arg("algorithm"), py::arg("tensors"),
        py::arg("policy") = "", py::arg("replay") = "never");
  m.def("execute_loop", execute_loop, NoGil(), py::arg("problem"), py::arg("algorithm"),
        py::arg("tensors"), py::arg("iterations"));
  m.def(
      "scratch",
      [](const std::string& text, const std::string& device, uint64_t seed) {
        Device where = parse_device(device);
        c10::DeviceGuard guard(where.torch_device());
        return tensors_of(make_scratch(parse_problem(text), where, seed));
      },
      NoGil(), py::arg("problem"), py::arg("device"), py::arg("seed") = 0);
  m.def(
      "reference",
      [](const std::string& text, const TensorsByRole& tensors) {
        c10::NoGradGuard no_grad;
        OverrideGuard plain;
        Problem problem = parse_problem(text);
        return tensors_of(operator_of(problem).reference(problem, bindings_of(problem, tensors)));
      },
      NoGil(), py::arg("problem"), py::arg("tensors"));
  m.def("relative_error", relative_error, NoGil(), py::arg("result"), py::arg("reference"));
  m.def(
      "tolerance",
      [](const std::string& text, const std::vector<std::string>& notes) {
        Problem problem = parse_problem(text);
        return operator_of(problem).tolerance(problem, notes_from_texts(notes));
      },
      py::arg("problem"), py::arg("notes"));
  m.def("problems_posed_by", problems_posed_by, py::arg("call"));
  m.def("last_decision", last_decision_py, py::arg("op") = py::none());

  m.def(
      "set_knobs",
      [](const std::string& policy, bool verbose, bool replay) {
        set_process_policy(parse_policy(policy, ConvolutionProblem::kFamily));
        set_verbose(verbose);
        set_replay(replay);
      },
      py::arg("policy_text"), py::arg("verbose"), py::arg("replay") = true);
  m.def("set_workspace_reserve", set_workspace_reserve, NoGil(), py::arg("bytes_by_device"));
  m.def("workspace_reserve_info", [] {
    WorkspaceReserveInfo info = workspace_reserve_info();
    py::dict d;
    d["held_bytes"] = info.held_bytes;
    d["served"] = info.served;
    return d;
  });
  m.def("set_relaunch", set_relaunch, py::arg("on"));
  m.def("replay_info", [] {
    ReplayInfo info = replay_info();
    py::dict d;
    d["recorded"] = info.recorded;
    d["replayed"] = info.replayed;
    d["learnt"] = info.learnt;
    d["relaunched"] = info.relaunched;
    d["kernels"] = info.kernels;
    return d;
  });
  m.def(
      "push_flags",
      [](const std::string& policy) {
        return push_thread_policy(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def("pop_flags", pop_thread_policy, py::arg("id"));
  m.def(
      "set_enabled_policy",
      [](const std::string& policy) {
        set_enabled_policy(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def(
      "enabled_policy", [](const std::string& family) { return enabled_policy().text(family); },
      py::arg("family") = ConvolutionProblem::kFamily);
  m.def(
      "set_cudnn_pins",
      [](const std::string& policy) {
        set_cudnn_pins(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def("add_rule", add_rule, py::arg("matcher"), py::arg("use"));
  m.def("check_rule", check_rule, py::arg("matcher"), py::arg("use"));
  m.def("remove_rule", remove_rule, py::arg("id"));
  m.def("enable_overrides", enable_overrides);
  m.def("disable_overrides", disable_overrides);
  m.def("overrides_enabled", overrides_enabled);
  m.def("overridden_ops", overridden_ops);
  m.def("declined", declined);
  m.def("reset_declined", reset_declined);
  m.def("set_recording", set_recording, py::arg("on"));
  m.def("set_model_tracing", set_model_tracing, py::arg("on"));
  m.def("is_model_tracing", is_model_tracing);
  m.def("recorded", recorded_py, py::arg("begin") = 0);
  m.def(
      "resolved_policy",
      [](const std::optional<std::string>& policy, const std::string& family) {
        const Operator& op = find_operator(family);
        std::optional<std::string_view> view;
        if (policy) view = *policy;
        return resolve_policy(op.family(), view).text;
      },
      py::arg("policy"), py::arg("family") = "conv");
  m.def(
      "policy_for",
      [](const std::string& problem, const std::string& policy) {
        Problem parsed = parse_problem(problem);
        return text_of_levels(ruled(parsed, policy).policy, family_of(parsed));
      },
      py::arg("problem"), py::arg("policy"));
  m.def(
      "tuned",
      [](const std::string& text, const std::string& device, const std::string& policy_text,
         double time_budget_s) -> py::object {
        Problem problem = parse_problem(text);
        Device place = parse_device(device);
        const ResolvedPolicy& policy = ruled(problem, policy_text);
        if (!are_rankings_kept(policy, place)) return py::none();
        auto rows = tuning_table::find(problem_text(problem), fingerprint_of(place),
                                       policy.policy.constraints_text(problem));
        bool any = rows && !rows->empty() && rows->front().status == Measurement::Status::ok;
        auto was_left_out = [&](const Measurement& m) {
          if (m.reason.rfind(kLeftOut, 0) == 0) return true;
          if (m.reason.rfind(kOutOfTime, 0) != 0) return false;
          double spent_s = std::strtod(m.reason.c_str() + std::strlen(kOutOfTime), nullptr);
          return time_budget_s <= 0 || time_budget_s > spent_s;
        };
        if (!any || std::any_of(rows->begin(), rows->end(), was_left_out)) return py::none();
        return ranking(*rows);
      },
      py::arg("problem"), py::arg("device"), py::arg("policy") = "", py::arg("time_budget_s") = 0);
  m.def(
      "constraints_text",
      [](const std::string& text, const std::string& policy) {
        Problem problem = parse_problem(text);
        return parse_policy(policy, family_of(problem)).constraints_text(problem);
      },
      py::arg("problem"), py::arg("policy"));
  m.def("check_measurement", [](const py::dict& row) { measurement_from(row); }, py::arg("row"));
  m.def("table_export", table_export);
  m.def("table_import", table_import, py::arg("entries"));
  m.def("table_clear", clear_table);
  m.def("plan_cache_info", cache_info);
  m.def("plan_cache_clear", plan_cache_clear);
}

}  // namespace torch_cudnn_ext
