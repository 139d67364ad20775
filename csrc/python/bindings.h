// The functions of _C, by subject. They take and return texts, numbers, tensors and plain dicts.
// _C.pyi holds the contract.
#pragma once

#include <torch/extension.h>

#include <string>

#include "core/policy/resolve.h"
#include "core/policy/rules.h"

namespace torch_cudnn_ext {

void bind_problems(pybind11::module_& m);
void bind_policies(pybind11::module_& m);
void bind_tuning(pybind11::module_& m);
void bind_running(pybind11::module_& m);
void bind_isolation(pybind11::module_& m);
void bind_tuning_store(pybind11::module_& m);
void bind_devices(pybind11::module_& m);
void bind_libraries(pybind11::module_& m);

// A policy text with the levels of this thread and process below it.
inline const ResolvedPolicy& resolved(const Problem& problem, const std::string& policy) {
  return resolve_policy(family_of(problem), policy);
}
// In addition, with the rules that match the problem.
inline const ResolvedPolicy& ruled(const Problem& problem, const std::string& policy) {
  return with_rules(problem, resolved(problem, policy));
}

}  // namespace torch_cudnn_ext
