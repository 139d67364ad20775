// The private interfaces of PyTorch that need Python's headers; see internals.h.
#pragma once

// The parser's header formats its errors with fmt, of which torch exports nothing.
#define FMT_HEADER_ONLY 1

// HANDLE_TH_ERRORS and END_HANDLE_TH_ERRORS turn C++ errors into Python's. On pythoncapi_compat.h
// rests Py_IsFinalizing() before Python 3.13.
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Dtype.h>
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
// Of the class Tensor or Parameter itself, so that it has no __torch_function__ of its own.
inline bool is_exact_tensor(PyObject* object) { return THPVariable_CheckExact(object); }
inline const at::Tensor& tensor_of(PyObject* object) { return THPVariable_Unpack(object); }
inline PyObject* tensor_object(at::Tensor&& t) { return THPVariable_Wrap(std::move(t)); }

// torch/csrc/Dtype.h: dtypes as Python objects.
inline bool is_dtype(PyObject* object) { return THPDtype_Check(object); }
inline at::ScalarType dtype_of(PyObject* object) {
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
}

// ATen/PythonTorchFunctionTLS.h: whether a mode sees the calls of PyTorch's functions.
inline bool has_function_mode() { return at::impl::torch_function_mode_enabled(); }

}  // namespace torch_cudnn_ext
