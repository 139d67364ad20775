#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "core/caution.h"
#include "core/device.h"
#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/policy/policy_text.h"
#include "core/select/decide.h"
#include "core/select/known_ranking.h"
#include "core/select/plan_store.h"
#include "core/tune/measure.h"
#include "core/tune/tuning_table.h"
#include "python/bindings.h"
#include "python/conversions.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

py::list candidates(const std::string& text, const std::string& device_text,
                    const std::string& policy, bool remember) {
  Problem problem = parse_problem(text);
  Device device = parse_device(device_text);
  std::vector<Measurement> list;
  {
    py::gil_scoped_release release;
    give_caution_once(device);
    c10::OptionalDeviceGuard guard;
    if (device.is_cuda()) guard.reset_device(device.torch_device());
    const ResolvedPolicy& levels = ruled(problem, policy);
    PlanConsumer admitted;
    if (remember) {  // for runs that follow: some plans take seconds to build
      admitted = [&](const Problem& p, const Algorithm& a, const std::shared_ptr<Plan>& plan) {
        remember_plan({p, levels, device}, a, plan);
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
                    bool knob_search, bool record, int min_samples, bool flush_l2, bool energy,
                    const py::object& progress, bool levels, bool prunes,
                    std::map<std::string, std::string> failed, const py::object& before_run) {
  TORCH_CHECK_VALUE(min_samples >= 1, "measure: min_samples is ", min_samples,
                    ", wanted at least 1");
  TORCH_CHECK_VALUE(time_budget_s >= 0, "measure: time_budget_s is ", time_budget_s,
                    ", wanted at least 0 (0: no limit)");
  Problem problem = parse_problem(text);
  Device device = parse_device(device_text);
  device.torch_device();  // throws for a target
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
  options.energy = energy;
  options.throws_out_of_memory = false;
  options.prunes = prunes;
  options.failed = std::move(failed);
  options.progress = [&](int done, int total, const std::string& algorithm) {
    py::gil_scoped_acquire acquire;
    if (!progress.is_none()) progress(done, total, algorithm);
  };
  if (!before_run.is_none()) {
    options.before_run = [&](const std::string& algorithm) {
      py::gil_scoped_acquire acquire;
      before_run(algorithm);
    };
  }
  std::vector<Measurement> list;
  {
    py::gil_scoped_release release;
    give_caution_once(device);
    list = measure(problem, policy, device, options);
    bool any = !list.empty() && list[0].status == Measurement::Status::ok;
    bool kept = record && options.algorithms.empty() && are_rankings_kept(policy, device) &&
                !is_unstable(list);
    if (kept && any) {
      tuning_table::insert_measured({problem_text(problem), fingerprint_of(device),
                                     policy.policy.constraints_text(problem), list});
      next_decision_generation();
    }
  }
  return ranking(list);
}

py::list table_export() {
  py::list out;
  for (const TableEntry& entry : tuning_table::entries()) out.append(entry_dict(entry));
  return out;
}

// All or nothing: a mistake in one entry leaves the table as it was. What was measured for this
// process goes to the store, too.
int64_t table_import(const std::vector<py::dict>& entries, bool measured) {
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
  for (const TableEntry& entry : read) {
    if (measured) {
      tuning_table::insert_measured(entry);
    } else {
      tuning_table::insert(entry);
    }
  }
  next_decision_generation();
  return static_cast<int64_t>(read.size());
}

void clear_table() {
  tuning_table::clear();
  next_decision_generation();
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
  return decision_dict(*record);
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

void bind_tuning(py::module_& m) {
  m.def("candidates", candidates, py::arg("problem"), py::arg("device"), py::arg("policy") = "",
        py::arg("remember") = false);
  m.attr("OUT_OF_MEMORY") = kOutOfMemory;  // in the reason of what found none
  m.attr("OUT_OF_TIME") = kOutOfTime;      // begins the reason of what was not tried
  m.def("ignore_other_work", ignore_other_work, py::arg("ignore"));
  m.def("ignores_other_work", ignores_other_work);
  m.def("set_measurement_lock", set_measurement_lock, py::arg("path"));
  m.def("measure", measure_py, py::arg("problem"), py::arg("device"), py::arg("policy") = "",
        py::arg("algorithms") = py::none(), py::arg("time_budget_s") = 0.0,
        py::arg("knob_search") = false, py::arg("record") = true, py::arg("min_samples") = 11,
        py::arg("flush_l2") = true, py::arg("energy") = false, py::arg("progress") = py::none(),
        py::arg("levels") = true, py::arg("prunes") = false,
        py::arg("failed") = std::map<std::string, std::string>(),
        py::arg("before_run") = py::none());
  m.def("decide", decide_py, py::arg("problem"), py::arg("device"), py::arg("policy") = "");
  m.def(
      "tuned",
      [](const std::string& text, const std::string& device, const std::string& policy_text,
         double time_budget_s) -> py::object {
        Problem problem = parse_problem(text);
        Device place = parse_device(device);
        const ResolvedPolicy& policy = ruled(problem, policy_text);
        auto known = known_ranking({problem, policy, place});
        if (!known || !known->device.empty()) return py::none();
        const std::vector<Measurement>& rows = known->measurements;
        bool any = !rows.empty() && rows.front().status == Measurement::Status::ok;
        auto was_left_out = [&](const Measurement& m) {
          if (m.reason.rfind(kLeftOut, 0) == 0) return true;
          if (m.reason.rfind(kOutOfTime, 0) != 0) return false;
          double spent_s = std::strtod(m.reason.c_str() + std::strlen(kOutOfTime), nullptr);
          return time_budget_s <= 0 || time_budget_s > spent_s;
        };
        if (!any || std::any_of(rows.begin(), rows.end(), was_left_out)) return py::none();
        return ranking(rows);
      },
      py::arg("problem"), py::arg("device"), py::arg("policy") = "", py::arg("time_budget_s") = 0);
  m.def("check_measurement", [](const py::dict& row) { measurement_from(row); }, py::arg("row"));
  m.def("table_export", table_export);
  m.def("table_import", table_import, py::arg("entries"), py::arg("measured") = false);
  m.def("table_clear", clear_table);
  m.def("plan_cache_info", cache_info);
  m.def("plan_cache_clear", plan_cache_clear);
}

}  // namespace torch_cudnn_ext
