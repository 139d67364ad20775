// The private interfaces of PyTorch that need Python's headers; see internals.h.
#pragma once

// The parser's header formats its errors with fmt, of which torch exports nothing.
#define FMT_HEADER_ONLY 1

// HANDLE_TH_ERRORS and END_HANDLE_TH_ERRORS turn C++ errors into Python's. On pythoncapi_compat.h
// rests Py_IsFinalizing() before Python 3.13.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_arg_parser.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <utility>

namespace torch_cudnn_ext {

// torch/csrc/utils/python_arg_parser.h: PyTorch's parser of Python's arguments.
using torch::is_symint;  // torch/csrc/utils/python_symnode.h
using torch::ParsedArgs;
using torch::PythonArgParser;
using torch::PythonArgs;

// torch/csrc/Exceptions.h: the error that the parser raises, and a Python error as a C++ exception.
using torch::PyTorchError;
using PythonError = ::python_error;

// torch/csrc/autograd/python_variable.h: tensors as Python objects.
inline bool is_tensor(PyObject* object) { return THPVariable_Check(object); }
inline PyObject* tensor_object(at::Tensor&& t) { return THPVariable_Wrap(std::move(t)); }

}  // namespace torch_cudnn_ext
