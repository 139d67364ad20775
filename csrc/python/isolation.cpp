// Measuring in another process: the function of Python that does it, and what such processes found.
#include "core/tune/isolation.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/local_errata.h"
#include "core/select/plan_store.h"
#include "python/bindings.h"
#include "python/conversions.h"
#include "torch/python_internals.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

[[noreturn]] void fail_isolation(const std::string& reason) {
  c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  throw IsolationFailure(here, reason);
}

// Calls the function with the problem, the device, the policy, the time budget, the least number of
// samples, and whether configurations are pruned. Only a RuntimeError means that it cannot measure.
std::vector<Measurement> measure_by(const py::object& function, const Problem& problem,
                                    const ResolvedPolicy& policy, const Device& device,
                                    const MeasureOptions& options) {
  py::gil_scoped_acquire acquire;
  std::vector<Measurement> list;
  try {
    py::object rows = function(problem_text(problem), device.text(), policy.saved,
                               options.time_budget_s, options.min_samples, options.prunes);
    for (const py::handle& row : rows) list.push_back(measurement_from(row.cast<py::dict>()));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    fail_isolation(py::str(error.value()).cast<std::string>());
  }
  return list;
}

void set_isolated_measure_py(py::object function) {
  // Never freed, since it may outlive the interpreter.
  auto* kept = new py::object(std::move(function));
  set_isolated_measure([kept](const Problem& problem, const ResolvedPolicy& policy,
                              const Device& device, const MeasureOptions& options) {
    // Whoever holds Python's lock may join a thread that Python does not know.
    bool known = Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr;
    if (!known) fail_isolation("this thread is not known to Python, which starts processes");
    if (Py_IsFinalizing() != 0) fail_isolation("Python ends and starts no more processes");
    return measure_by(*kept, problem, policy, device, options);
  });
}

}  // namespace

void bind_isolation(py::module_& m) {
  m.def("set_isolated_measure", set_isolated_measure_py, py::arg("function"));
  m.def(
      "is_isolated",
      [](const std::string& device, const std::string& isolate) {
        return is_isolated(enum_value(kIsolations, "isolate", isolate), parse_device(device));
      },
      py::arg("device"), py::arg("isolate"));
  m.def(
      "set_local_errata",
      [](const std::vector<std::array<std::string, 4>>& rows) {
        std::vector<LocalErratum> errata;
        for (const auto& [device, problem, algorithm, reason] : rows) {
          errata.push_back({device, problem, algorithm, reason});
        }
        set_local_errata(std::move(errata));
        plan_cache_clear();
      },
      py::arg("rows"));
}

}  // namespace torch_cudnn_ext
