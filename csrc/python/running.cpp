#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <map>

#include "core/base/enum_text.h"
#include "core/operator.h"
#include "core/override_guard.h"
#include "core/select/plan_store.h"
#include "core/select/recording.h"
#include "core/tune/measure.h"
#include "python/bindings.h"
#include "python/conversions.h"
#include "torch/compiled_graphs.h"
#include "torch/overrides.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

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
      admissible_plan({problem, resolved(problem, policy), device_of(made.device)}, algorithm);
  if (auto* unsupported = std::get_if<Unsupported>(&result)) {
    TORCH_CHECK(false, algorithm.text(), " cannot run: ", unsupported->reason,
                "\n  problem: ", problem_text(problem));
  }
  made.plan = std::get<AdmissiblePlan>(result).plan;
  return made;
}

constexpr EnumName<Replay> kReplays[] = {{Replay::never, "never"},
                                         {Replay::graphs, "graphs"},
                                         {Replay::kernels, "kernels"},
                                         {Replay::graphs_at_once, "graphs_at_once"},
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

TensorsByRole tensors_of(const Bindings& bindings) {
  TensorsByRole out;
  for (int i = 0; i < static_cast<int>(Role::kCount); ++i) {
    auto role = static_cast<Role>(i);
    if (bindings[role].defined()) out[role_text(role)] = bindings[role];
  }
  return out;
}

py::list recorded_py(size_t begin) {
  py::list out;
  for (const RecordedCall& call : recorded_calls(begin)) {
    out.append(call.decision != nullptr ? py::object(decision_dict(*call.decision))
                                        : py::object(py::str(call.declined)));
  }
  return out;
}

py::object last_decision_py(const std::optional<std::string>& op) {
  const DecisionRecord* record = last_decision(op);
  return record == nullptr ? py::none() : py::object(decision_dict(*record));
}

// With the number of calls.
py::list executed_decisions() {
  py::list out;
  for (const DecisionRecord* record : records_executed()) {
    py::dict d = decision_dict(*record);
    d["calls"] = record->calls.load(std::memory_order_relaxed);
    out.append(d);
  }
  return out;
}

std::vector<std::string> problems_posed_by(const py::function& call) {
  DryRun dry_run;
  call();
  return std::move(dry_run.problems);
}

}  // namespace

void bind_running(py::module_& m) {
  m.def("run", run, NoGil(), py::arg("problem"), py::arg("algorithm"), py::arg("tensors"),
        py::arg("policy") = "", py::arg("replay") = "never");
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
  m.def("executed_decisions", executed_decisions);
  m.def(
      "enable_overrides",
      [](const std::string& compiled) { enable_overrides(compiled_use(compiled)); },
      py::arg("compiled") = "conv");
  m.def("disable_overrides", disable_overrides);
  m.def("overrides_enabled", overrides_enabled);
  m.def("overridden_ops", overridden_ops);
  m.def("set_running_compiled_graph", CompiledGraphs::set_running, py::arg("running"));
  m.def("declined", declined);
  m.def("reset_declined", reset_declined);
  m.def("set_recording", set_recording, py::arg("on"));
  m.def("set_model_tracing", set_model_tracing, py::arg("on"));
  m.def("is_model_tracing", is_model_tracing);
  m.def("recorded", recorded_py, py::arg("begin") = 0);
}

}  // namespace torch_cudnn_ext
