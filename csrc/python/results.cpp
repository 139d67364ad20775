#include "python/results.h"

#include <pybind11/pybind11.h>

#include <utility>

namespace py = pybind11;

namespace torch_cudnn_ext {

PyObject* to_python(Results results, const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) Py_RETURN_NONE;
  if (results.size() == 1) return tensor_object(std::move(results[0]));
  py::tuple tuple(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    tuple[i] = py::reinterpret_steal<py::object>(tensor_object(std::move(results[i])));
  }
  return tuple.release().ptr();
}

}  // namespace torch_cudnn_ext
