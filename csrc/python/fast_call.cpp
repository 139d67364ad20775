// The parser's header formats its errors with fmt, of which torch exports nothing.
#define FMT_HEADER_ONLY 1
#include "python/fast_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/python_arg_parser.h>

#include <algorithm>
#include <iterator>

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalPolicy = std::optional<std::string_view>;
using Convolution = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                           SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, SymInt, OptionalPolicy);
using Transposed = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                          SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, SymInt, SymIntArrayRef,
                          OptionalPolicy);

constexpr const char* kNames[] = {"conv1d",           "conv2d",           "conv3d",
                                  "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"};

// What torch.ops called before: immortal, like the operators.
PyObject* generic_call[std::size(kNames)];

std::string signature(int which) {
  std::string n = std::to_string(which % 3 + 1);
  std::string list = "SymIntArrayRef[" + n + "] ";
  std::string head = std::string(kNames[which]) +
                     "(Tensor input, Tensor weight, Tensor? bias=None, " + list + "stride=1, " +
                     list + "padding=0, ";
  std::string rest = which < 3 ? list + "dilation=1, SymInt groups=1"
                               : list + "output_padding=0, SymInt groups=1, " + list + "dilation=1";
  return head + rest + ", *, c10::string_view? policy=None)";
}

// Whether PyTorch's parser, which takes more for a list of integers, can also unpack it.
bool can_unpack(PyObject* list) {
  return list == nullptr || PyTuple_Check(list) || PyList_Check(list) || PyLong_Check(list) ||
         THPVariable_Check(list) || torch::is_symint(py::handle(list));
}

template <int which>
PyObject* fast_call(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  constexpr bool transposed = which >= 3;
  static torch::PythonArgParser parser({signature(which)}, false);
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow(("torch_cudnn_ext::" + std::string(kNames[which])).c_str(), "")
          .template typed<std::conditional_t<transposed, Transposed, Convolution>>();
  torch::ParsedArgs<9> parsed;
  torch::PythonArgs r = parser.parse(args, kwargs, parsed);
  constexpr int lists[] = {3, 4, 5, transposed ? 7 : 5};
  bool plain =
      std::all_of(std::begin(lists), std::end(lists), [&](int i) { return can_unpack(r.args[i]); });
  if (!plain || r.has_torch_function()) return PyObject_Call(generic_call[which], args, kwargs);
  Tensor input = r.tensor(0), weight = r.tensor(1);
  std::optional<Tensor> bias = r.optionalTensor(2);
  std::vector<SymInt> stride = r.symintlist(3), padding = r.symintlist(4);
  Tensor result;
  if constexpr (transposed) {
    std::vector<SymInt> output_padding = r.symintlist(5), dilation = r.symintlist(7);
    SymInt groups = r.toSymInt(6);
    OptionalPolicy policy = r.stringViewOptional(8);
    py::gil_scoped_release no_gil;
    result =
        op.call(input, weight, bias, stride, padding, output_padding, groups, dilation, policy);
  } else {
    std::vector<SymInt> dilation = r.symintlist(5);
    SymInt groups = r.toSymInt(6);
    OptionalPolicy policy = r.stringViewOptional(7);
    py::gil_scoped_release no_gil;
    result = op.call(input, weight, bias, stride, padding, dilation, groups, policy);
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

template <int which>
PyCFunction function() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call<which>));
}

PyMethodDef methods[] = {{kNames[0], function<0>(), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {kNames[1], function<1>(), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {kNames[2], function<2>(), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {kNames[3], function<3>(), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {kNames[4], function<4>(), METH_VARARGS | METH_KEYWORDS, nullptr},
                         {kNames[5], function<5>(), METH_VARARGS | METH_KEYWORDS, nullptr}};

}  // namespace

void install_fast_calls(py::module_& module) {
  py::object ops = py::module_::import("torch").attr("ops").attr("torch_cudnn_ext");
  for (size_t i = 0; i < std::size(kNames); ++i) {
    py::object overload = ops.attr(kNames[i]).attr("default");
    generic_call[i] = py::object(overload.attr("_op")).release().ptr();
    PyObject* name = PyUnicode_FromString("torch_cudnn_ext._C");
    py::object fast =
        py::reinterpret_steal<py::object>(PyCFunction_NewEx(&methods[i], module.ptr(), name));
    Py_DECREF(name);
    overload.attr("_op") = fast;
  }
}

}  // namespace torch_cudnn_ext
