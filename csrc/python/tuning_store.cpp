// The tuning store: the functions of Python that keep rankings on disk, and what was measured.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/select/search.h"
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

// Of None, of the reason why the heuristic's algorithm is to run, or of the rows and what they were
// measured for if it is not what was asked for.
std::optional<KnownRanking> known_from(const py::object& found) {
  if (found.is_none()) return std::nullopt;
  if (py::isinstance<py::str>(found)) return KnownRanking{{}, "", "", found.cast<std::string>()};
  auto [rows, device, constraints] =
      found.cast<std::tuple<std::vector<py::dict>, std::string, std::string>>();
  KnownRanking known{{}, std::move(device), std::move(constraints), ""};
  for (const py::dict& row : rows) known.measurements.push_back(measurement_from(row));
  return known;
}

void set_tuning_store_py(const py::object& find, const py::object& add, const py::object& problems,
                         const py::object& record) {
  TuningStore store;
  if (!find.is_none()) {
    // Never freed, since they may outlive the interpreter.
    auto kept = [](const py::object& function) { return new py::object(function); };
    store.find = [f = kept(find)](const TableKey& key) -> std::optional<KnownRanking> {
      if (!may_ask_store()) return std::nullopt;
      py::gil_scoped_acquire acquire;
      return known_from((*f)(key.problem, key.device, key.constraints));
    };
    store.add = [f = kept(add)](const TableEntry& entry) -> std::optional<KnownRanking> {
      if (!may_ask_store()) return std::nullopt;
      py::gil_scoped_acquire acquire;
      return known_from((*f)(entry_dict(entry)));
    };
    store.problems = [f = kept(problems)](const std::string& device,
                                          const std::string& constraints) {
      if (!may_ask_store()) return std::vector<std::string>();
      py::gil_scoped_acquire acquire;
      return (*f)(device, constraints).cast<std::vector<std::string>>();
    };
    store.record = [f = kept(record)](const TableKey& key) {
      if (!may_ask_store()) return;
      py::gil_scoped_acquire acquire;
      (*f)(key.problem, key.device, key.constraints);
    };
  }
  tuning_table::set_store(std::move(store));
}

}  // namespace

void bind_tuning_store(py::module_& m) {
  m.def("set_tuning_store", set_tuning_store_py, py::arg("find"), py::arg("add"),
        py::arg("problems"), py::arg("record"));
  m.def("measure_counts", [] {
    MeasureCounts counts = measure_counts();
    SearchCounts searches = search_counts();
    py::dict d;
    d["problems"] = counts.problems;
    d["timed_runs"] = counts.timed_runs;
    d["searches"] = searches.problems;
    d["search_seconds"] = searches.seconds;
    return d;
  });
}

}  // namespace torch_cudnn_ext
