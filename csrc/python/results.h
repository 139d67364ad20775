// What an operator gives, as a Python object.
#pragma once

#include <ATen/core/function_schema.h>

#include "ops/typed_call.h"
#include "torch/python_internals.h"

namespace torch_cudnn_ext {

// A tensor, a tuple of tensors, or None, as the schema says. A new reference.
PyObject* to_python(Results results, const c10::FunctionSchema& schema);

}  // namespace torch_cudnn_ext
