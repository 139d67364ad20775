// Functions of Python's that call an operator directly: one call from Python into C++, which binds
// the arguments of the public signature, converts them, and runs the operator.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_cudnn_ext {

void bind_direct_calls(pybind11::module_& m);

}  // namespace torch_cudnn_ext
