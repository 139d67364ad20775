#include "python/fast_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ops/typed_call.h"
#include "python/results.h"
#include "torch/python_internals.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

constexpr int kMaxArguments = 32;

// The parser's word for an element type of a schema.
std::string parser_type(const std::string& schema_type) {
  static const std::map<std::string, std::string> words = {{"Tensor", "Tensor"},
                                                           {"Tensor[]", "TensorList"},
                                                           {"SymInt", "SymInt"},
                                                           {"SymInt[]", "SymIntArrayRef"},
                                                           {"int", "int64_t"},
                                                           {"int[]", "IntArrayRef"},
                                                           {"float", "double"},
                                                           {"bool", "bool"},
                                                           {"str", "c10::string_view"},
                                                           {"ScalarType", "ScalarType"},
                                                           {"MemoryFormat", "MemoryFormat"}};
  auto known = words.find(schema_type);
  TORCH_INTERNAL_ASSERT(known != words.end(), "no argument parser for ", schema_type);
  return known->second;
}

std::string default_text(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isString()) return c10::str('"', value.toStringRef(), '"');
  if (value.isIntList()) return std::to_string(value.toIntVector().at(0));  // one for all
  return c10::str(value);
}

// A schema as PythonArgParser reads it: "conv2d(Tensor input, ..., *, c10::string_view? policy)".
std::string parser_signature(const c10::FunctionSchema& schema) {
  std::vector<std::string> parts;
  bool is_keyword = false;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.kwarg_only() && !std::exchange(is_keyword, true)) parts.emplace_back("*");
    c10::TypePtr type = argument.real_type();
    auto optional = type->cast<c10::OptionalType>();
    if (optional) type = optional->getElementType();
    std::string text = parser_type(type->str());
    if (argument.N()) text += c10::str('[', *argument.N(), ']');
    text += c10::str(optional ? "? " : " ", argument.name());
    if (argument.default_value()) text += '=' + default_text(*argument.default_value());
    parts.push_back(std::move(text));
  }
  return c10::str(schema.name().substr(schema.name().find(':') + 2), '(', c10::Join(", ", parts),
                  ')');
}

class ParsedReader : public ArgumentReader {
 public:
  ParsedReader(PythonArgs& parsed, bool& is_read) : parsed_(parsed), is_read_(is_read) {}

  void read(int i, at::Tensor& value) override { value = parsed_.tensor(i); }
  void read(int i, std::optional<at::Tensor>& value) override { value = parsed_.optionalTensor(i); }
  void read(int i, std::vector<at::Tensor>& value) override { value = parsed_.tensorlist(i); }
  void read(int i, c10::SymInt& value) override { value = parsed_.toSymInt(i); }
  void read(int i, std::vector<c10::SymInt>& value) override { value = parsed_.symintlist(i); }
  void read(int i, int64_t& value) override { value = parsed_.toInt64(i); }
  void read(int i, std::optional<int64_t>& value) override { value = parsed_.toInt64Optional(i); }
  void read(int i, std::vector<int64_t>& value) override { value = parsed_.intlist(i); }
  void read(int i, std::optional<std::vector<int64_t>>& value) override {
    if (parsed_.args[i] != nullptr) value = parsed_.intlist(i);
  }
  void read(int i, double& value) override { value = parsed_.toDouble(i); }
  void read(int i, std::optional<double>& value) override { value = parsed_.toDoubleOptional(i); }
  void read(int i, bool& value) override { value = parsed_.toBool(i); }
  void read(int i, std::string_view& value) override { value = parsed_.stringView(i); }
  void read(int i, std::optional<std::string_view>& value) override {
    value = parsed_.stringViewOptional(i);
  }
  void read(int i, std::optional<c10::ScalarType>& value) override {
    value = parsed_.scalartypeOptional(i);
  }
  void read(int i, std::optional<c10::MemoryFormat>& value) override {
    value = parsed_.memoryformatOptional(i);
  }
  void end() override {
    is_read_ = true;
    no_gil_.emplace();
  }

  void take_gil() { no_gil_.reset(); }

 private:
  PythonArgs& parsed_;
  bool& is_read_;
  std::optional<py::gil_scoped_release> no_gil_;
};

// One operator as a function of Python's. Immortal, as the operators are.
struct FastCall {
  FastCall(const c10::OperatorHandle& op, TypedCall call, py::object generic)
      : op(op),
        call(call),
        generic(generic.release().ptr()),
        parser({parser_signature(op.schema())}, false) {
    const auto& arguments = op.schema().arguments();
    TORCH_INTERNAL_ASSERT(arguments.size() <= kMaxArguments);
    for (size_t i = 0; i < arguments.size(); ++i) {
      bool is_list = arguments[i].real_type()->str().rfind("SymInt[]", 0) == 0;
      if (is_list) symint_lists.push_back(static_cast<int>(i));
    }
  }

  const c10::OperatorHandle op;
  const TypedCall call;
  PyObject* const generic;  // what torch.ops called before
  PythonArgParser parser;
  std::vector<int> symint_lists;
  PyMethodDef method{};
};

// Whether PyTorch's parser, which takes more for a list of integers, can also unpack it.
bool can_unpack(PyObject* list) {
  return list == nullptr || PyTuple_Check(list) || PyList_Check(list) || PyLong_Check(list) ||
         is_tensor(list) || is_symint(py::handle(list));
}

// The generic call takes more than the parser, such as NumPy's booleans. If it does not take an
// argument's type either, the error is a TypeError in one line.
PyObject* call_generic(const FastCall& fast, PyObject* args, PyObject* kwargs,
                       const std::string& parser_error) {
  PyObject* result = PyObject_Call(fast.generic, args, kwargs);
  if (result != nullptr || PyErr_ExceptionMatches(PyExc_RuntimeError) == 0) return result;
  py::error_already_set error;
  std::string text = py::str(error.value());
  std::string reason = text.substr(0, text.find('\n'));
  if (reason.find("Expected a value of type") == std::string::npos) {
    error.restore();
    return nullptr;
  }
  // The parser's names the argument, unless it speaks of an element of a list.
  bool names_argument = parser_error.find(": argument '") != std::string::npos;
  PyErr_SetString(PyExc_TypeError, names_argument ? parser_error.c_str() : reason.c_str());
  return nullptr;
}

PyObject* fast_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  auto& fast = *static_cast<FastCall*>(PyCapsule_GetPointer(self, nullptr));
  bool is_read = false;
  std::string parser_error;
  try {
    ParsedArgs<kMaxArguments> parsed;
    PythonArgs r = fast.parser.parse(args, kwargs, parsed);
    bool plain = std::all_of(fast.symint_lists.begin(), fast.symint_lists.end(),
                             [&](int i) { return can_unpack(r.args[i]); });
    if (!plain || r.has_torch_function()) return PyObject_Call(fast.generic, args, kwargs);
    ParsedReader reader(r, is_read);
    Results results = fast.call(fast.op, reader);
    reader.take_gil();
    return to_python(std::move(results), fast.op.schema());
  } catch (const c10::Error& error) {
    if (is_read) throw;
    parser_error = error.what_without_backtrace();
  } catch (const PyTorchError& error) {
    if (is_read) throw;
    parser_error = error.what();
  }
  return call_generic(fast, args, kwargs, parser_error);
  END_HANDLE_TH_ERRORS
}

}  // namespace

void install_fast_calls() {
  py::object ops = py::module_::import("torch").attr("ops").attr("torch_cudnn_ext");
  py::str module_name("torch_cudnn_ext._C");
  for (const auto& [name, call] : typed_calls()) {
    auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(("torch_cudnn_ext::" + name).c_str(), "");
    py::object overload = ops.attr(name.c_str()).attr("default");
    auto* fast = new FastCall(op, call, overload.attr("_op"));
    fast->method = {name.c_str(),
                    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast_call)),
                    METH_VARARGS | METH_KEYWORDS, nullptr};
    py::capsule self(fast, static_cast<const char*>(nullptr));
    overload.attr("_op") = py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&fast->method, self.ptr(), module_name.ptr()));
  }
}

}  // namespace torch_cudnn_ext
