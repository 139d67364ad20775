// The tuning store: the functions of Python that keep rankings on disk, and what was measured.
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/tune/measure.h"
#include "core/tune/tuning_table.h"
#include "python/bindings.h"
#include "python/conversions.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

// Whoever holds Python's lock may join a thread that Python does not know. Such a thread does
// without the store.
bool may_ask_store() {
  return Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr &&
         Py_IsFinalizing() == 0;
}

std::optional<KnownRanking> ranking_by(const py::object& find, const std::string& problem,
                                       const std::string& device, const std::string& constraints) {
  if (!may_ask_store()) return std::nullopt;
  py::gil_scoped_acquire acquire;
  py::object found = find(problem, device, constraints);
  if (found.is_none()) return std::nullopt;
  auto [rows, origin] = found.cast<std::tuple<std::vector<py::dict>, std::string>>();
  KnownRanking known{{}, std::move(origin)};
  for (const py::dict& row : rows) known.measurements.push_back(measurement_from(row));
  return known;
}

void set_tuning_store_py(py::object find, py::object add) {
  TuningStore store;
  if (!find.is_none()) {
    // Never freed, since they may outlive the interpreter.
    auto* finder = new py::object(std::move(find));
    auto* adder = new py::object(std::move(add));
    store.find = [finder](const std::string& problem, const std::string& device,
                          const std::string& constraints) {
      return ranking_by(*finder, problem, device, constraints);
    };
    store.add = [adder](const TableEntry& entry) {
      if (!may_ask_store()) return;
      py::gil_scoped_acquire acquire;
      (*adder)(entry_dict(entry));
    };
  }
  tuning_table::set_store(std::move(store));
}

}  // namespace

void bind_tuning_store(py::module_& m) {
  m.def("set_tuning_store", set_tuning_store_py, py::arg("find"), py::arg("add"));
  m.def("measure_counts", [] {
    MeasureCounts counts = measure_counts();
    py::dict d;
    d["problems"] = counts.problems;
    d["timed_runs"] = counts.timed_runs;
    return d;
  });
}

}  // namespace torch_cudnn_ext
