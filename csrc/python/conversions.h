// Python dicts of measurements, candidates and decisions, and back. _C.pyi holds the contract.
#pragma once

#include <torch/extension.h>

#include <optional>
#include <string>
#include <vector>

#include "core/select/decision_record.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

template <class T>
pybind11::object object_of(const std::optional<T>& value) {
  return value ? pybind11::cast(*value) : pybind11::none();
}

// A field of a dict. Throws ValueError if it is missing or of another type.
template <class T>
T field(const pybind11::dict& d, const char* name) {
  TORCH_CHECK_VALUE(d.contains(name), "measurement: the field '", name, "' is missing");
  try {
    return d[name].cast<T>();
  } catch (const pybind11::cast_error&) {
    TORCH_CHECK_VALUE(false, "measurement: the field '", name, "' is ",
                      pybind11::repr(d[name]).cast<std::string>(), ", which is of the wrong type");
  }
}

pybind11::dict candidate_dict(const Measurement& m);
pybind11::list ranking(const std::vector<Measurement>& measurements);
Measurement measurement_from(const pybind11::dict& d);  // throws ValueError
pybind11::dict entry_dict(const TableEntry& entry);
pybind11::dict decision_dict(const DecisionRecord& record);

}  // namespace torch_cudnn_ext
