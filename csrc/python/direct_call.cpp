#include "python/direct_call.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/arguments.h"
#include "ops/typed_call.h"
#include "python/results.h"
#include "torch/internals.h"
#include "torch/python_internals.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

constexpr int kMaxSlots = 32;
// Instead of the length of a list: any, where one integer is a list of one, or is not taken.
constexpr Py_ssize_t kAny = 0, kAnyButInteger = -1;

// What an argument of a schema is read from. The texts of policies are a kind of their own.
enum class Kind : uint8_t {
  tensor,
  tensors,
  integer,
  integers,
  number,
  positive,
  flag,
  text,
  dtype,
  policy
};

Kind kind_of(const std::string& schema_type) {
  static const std::map<std::string, Kind> kinds = {
      {"Tensor", Kind::tensor},    {"Tensor[]", Kind::tensors},  {"SymInt", Kind::integer},
      {"int", Kind::integer},      {"SymInt[]", Kind::integers}, {"int[]", Kind::integers},
      {"float", Kind::number},     {"bool", Kind::flag},         {"str", Kind::text},
      {"ScalarType", Kind::dtype},
  };
  auto known = kinds.find(schema_type);
  TORCH_CHECK(known != kinds.end(), "direct_call: no direct call reads a ", schema_type);
  return known->second;
}

// One argument of the schema.
struct Argument {
  Kind kind;
  bool is_optional;
  int slot;                                // where its value is
  int instead = -1;                        // the slot that counts if the value is None; -1: none
  Py_ssize_t length = kAny;                // of a list; one integer stands for all of them
  int64_t fewest_dims = 0, most_dims = 0;  // of a tensor
};

// A function of Python's over one operator. Its slots are the parameters of its signature, then
// constants. Immortal, as the functions are.
struct DirectCall {
  DirectCall(c10::OperatorHandle op, TypedCall call) : op(std::move(op)), call(call) {}

  const c10::OperatorHandle op;
  const TypedCall call;
  PyObject* general = nullptr;      // the function that takes what this one does not
  PyObject* admit = nullptr;        // (policy text) -> whether the operator takes it
  PyObject* admitted = nullptr;     // a dict of the texts that it has taken
  std::vector<PyObject*> names;     // of the parameters, interned
  Py_ssize_t positional = 0;        // how many of them may be given by position
  std::vector<PyObject*> defaults;  // of all slots; nullptr if the caller must give a value
  std::vector<Argument> arguments;  // of the schema
  // The arguments in the order of their check. A policy is the first: Python parses a new text, and
  // meanwhile other threads may change a list that was checked.
  std::vector<int> checked;
  // Slots that no argument reads, and the only value that each may have.
  std::vector<std::pair<int, PyObject*>> fixed;
  bool is_mutable = false;  // whether the operator writes to a tensor
  int written = -1;  // the slot of the result, if the operator writes to a tensor and gives none
  PyMethodDef method{};
};

using Slots = std::array<PyObject*, kMaxSlots>;

// Whether two values of a plain type are the same; numbers are compared.
bool is_same(PyObject* a, PyObject* b) {
  return a == b || (PyFloat_CheckExact(a) && PyFloat_CheckExact(b) &&
                    PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(b));
}

// Puts the values of a call into the slots. False for a call that does not fit the signature.
bool bind_arguments(const DirectCall& direct, PyObject* args, PyObject* keywords, Slots& slots) {
  Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (count > direct.positional) return false;
  PyObject** given = PySequence_Fast_ITEMS(args);
  std::copy(given, given + count, slots.begin());
  std::copy(direct.defaults.begin() + count, direct.defaults.end(), slots.begin() + count);
  Py_ssize_t place = 0;
  PyObject *name = nullptr, *value = nullptr;
  while (keywords != nullptr && PyDict_Next(keywords, &place, &name, &value) != 0) {
    // Names are interned.
    auto found = std::find(direct.names.begin() + count, direct.names.end(), name);
    if (found == direct.names.end()) return false;
    slots[found - direct.names.begin()] = value;
  }
  auto used = slots.begin() + static_cast<std::ptrdiff_t>(direct.defaults.size());
  return std::find(slots.begin(), used, nullptr) == used &&
         std::all_of(direct.fixed.begin(), direct.fixed.end(),
                     [&](const auto& one) { return is_same(slots[one.first], one.second); });
}

// An int, not a bool, that fits into 64 bits.
bool is_integer(PyObject* value) {
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow == 0;
}

// A tensor that a kernel computes with. The functions check some sizes on the meta device alone.
bool is_strided_tensor(PyObject* value) {
  if (!is_exact_tensor(value)) return false;
  const at::Tensor& t = tensor_of(value);
  return t.layout() == at::kStrided && !t.is_meta();
}

template <class Predicate>
bool all_items(PyObject* list, Predicate&& fits) {
  if (!PyTuple_Check(list) && !PyList_CheckExact(list)) return false;
  PyObject** items = PySequence_Fast_ITEMS(list);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(list), fits);
}

bool is_admitted(const DirectCall& direct, PyObject* policy) {
  if (!PyUnicode_CheckExact(policy)) return false;
  if (PyDict_GetItemWithError(direct.admitted, policy) != nullptr) return true;
  auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(direct.admit, policy));
  if (!answer) throw py::error_already_set();
  return answer.is(py::bool_(true));
}

// Whether a value is of the plain types that are read here. The general function takes all else.
bool is_plain(const DirectCall& direct, const Argument& argument, PyObject* value) {
  if (value == Py_None) return argument.is_optional;
  switch (argument.kind) {
    case Kind::tensor: {
      if (!is_strided_tensor(value)) return false;
      int64_t dims = tensor_of(value).dim();
      return dims >= argument.fewest_dims && dims <= argument.most_dims;
    }
    case Kind::tensors:
      return all_items(value, is_strided_tensor);
    case Kind::integer:
      return is_integer(value);
    case Kind::integers: {
      if (argument.length != kAnyButInteger && is_integer(value)) return true;
      if (!all_items(value, is_integer)) return false;
      Py_ssize_t length = PySequence_Fast_GET_SIZE(value);
      return argument.length <= kAny || length == 1 || length == argument.length;
    }
    case Kind::number:
      return PyFloat_CheckExact(value) || is_integer(value);
    case Kind::positive:
      return PyFloat_CheckExact(value) && PyFloat_AS_DOUBLE(value) > 0;
    case Kind::flag:
      return PyBool_Check(value);
    case Kind::text:
      return PyUnicode_CheckExact(value);
    case Kind::dtype:
      return is_dtype(value);
    case Kind::policy:
      return is_admitted(direct, value);
  }
  return false;
}

// Whether no tensor of the call concerns autograd, see is_plain_call.
bool concerns_no_autograd(const DirectCall& direct, const Slots& slots) {
  return std::all_of(
      direct.arguments.begin(), direct.arguments.end(), [&](const Argument& argument) {
        PyObject* value = slots[argument.slot];
        auto is_plain_tensor = [](PyObject* t) { return is_plain_call({&tensor_of(t)}); };
        if (value == Py_None) return true;
        if (argument.kind == Kind::tensors) return all_items(value, is_plain_tensor);
        return argument.kind != Kind::tensor || is_plain_tensor(value);
      });
}

class SlotReader : public ArgumentReader {
 public:
  SlotReader(const std::vector<Argument>& arguments, const Slots& slots)
      : arguments_(arguments), slots_(slots) {}

  void read(int i, at::Tensor& value) override { value = tensor_of(object(i)); }
  void read(int i, std::optional<at::Tensor>& value) override { read_optional(i, value); }
  void read(int i, std::vector<at::Tensor>& value) override {
    for_items(i, [&](PyObject* item) { value.push_back(tensor_of(item)); });
  }
  void read(int i, c10::SymInt& value) override { value = integer(object(i)); }
  void read(int i, std::vector<c10::SymInt>& value) override { read_integers(i, value); }
  void read(int i, int64_t& value) override { value = integer(object(i)); }
  void read(int i, std::optional<int64_t>& value) override { read_optional(i, value); }
  void read(int i, std::vector<int64_t>& value) override { read_integers(i, value); }
  void read(int i, std::optional<std::vector<int64_t>>& value) override { read_optional(i, value); }
  void read(int i, double& value) override {
    PyObject* o = object(i);
    value = PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : static_cast<double>(integer(o));
  }
  void read(int i, std::optional<double>& value) override { read_optional(i, value); }
  void read(int i, bool& value) override { value = object(i) == Py_True; }
  void read(int i, std::string_view& value) override {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(object(i), &length);
    if (text == nullptr) throw py::error_already_set();
    value = {text, static_cast<size_t>(length)};
  }
  void read(int i, std::optional<std::string_view>& value) override { read_optional(i, value); }
  void read(int i, std::optional<c10::ScalarType>& value) override {
    if (object(i) != Py_None) value = dtype_of(object(i));
  }
  void read(int, std::optional<c10::MemoryFormat>&) override {}  // kind_of() knows none
  void end() override { no_gil_.emplace(); }

  void take_gil() { no_gil_.reset(); }

 private:
  PyObject* object(int i) const { return slots_[arguments_[i].slot]; }
  static int64_t integer(PyObject* value) { return PyLong_AsLongLong(value); }
  template <class T>
  void read_optional(int i, std::optional<T>& value) {
    if (object(i) != Py_None) read(i, value.emplace());
  }
  template <class Work>
  void for_items(int i, Work&& work) {
    PyObject* list = object(i);
    PyObject** items = PySequence_Fast_ITEMS(list);
    std::for_each(items, items + PySequence_Fast_GET_SIZE(list), work);
  }
  template <class T>
  void read_integers(int i, std::vector<T>& value) {
    auto length = static_cast<size_t>(std::max<Py_ssize_t>(arguments_[i].length, 1));
    if (PyLong_CheckExact(object(i))) {
      value.assign(length, integer(object(i)));
      return;
    }
    value.reserve(std::max<size_t>(length, PySequence_Fast_GET_SIZE(object(i))));
    for_items(i, [&](PyObject* item) { value.emplace_back(integer(item)); });
    if (value.size() == 1 && length > 1) value.assign(length, T(value[0]));
  }

  const std::vector<Argument>& arguments_;
  const Slots& slots_;
  std::optional<py::gil_scoped_release> no_gil_;
};

// The result; nullptr without an error if the general function is to take the call. So it is if
// an argument is wrong: that function says so in its own words.
PyObject* try_directly(const DirectCall& direct, Slots& slots) {
  for (int i : direct.checked) {
    const Argument& argument = direct.arguments[i];
    PyObject*& value = slots[argument.slot];
    if (argument.instead >= 0 && value == Py_None) value = slots[argument.instead];
    if (!is_plain(direct, argument, value)) return nullptr;
  }
  try {
    // Autograd's kernels would only call the next ones. For an operator that writes to a tensor
    // they also count its version.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
    if (!direct.is_mutable && concerns_no_autograd(direct, slots)) below_autograd.emplace();
    SlotReader reader(direct.arguments, slots);
    Results results = direct.call(direct.op, reader);
    reader.take_gil();
    if (direct.written >= 0) return Py_NewRef(slots[direct.written]);
    return to_python(std::move(results), direct.op.schema());
  } catch (const c10::ValueError&) {
    return nullptr;
  } catch (const c10::TypeError&) {
    return nullptr;
  } catch (const c10::IndexError&) {
    return nullptr;
  }
}

// Whether an operator that raises does harm, or raises another kind of error: torch.jit.trace loses
// its state, and modes of Python hide the kind.
bool must_not_raise() { return has_dispatch_mode() || is_jit_tracing(); }

PyObject* direct_call(PyObject* self, PyObject* args, PyObject* keywords) {
  HANDLE_TH_ERRORS
  auto& direct = *static_cast<DirectCall*>(PyCapsule_GetPointer(self, nullptr));
  Slots slots;
  if (!has_function_mode() && !must_not_raise() && bind_arguments(direct, args, keywords, slots)) {
    if (PyObject* result = try_directly(direct, slots)) return result;
  }
  return PyObject_Call(direct.general, args, keywords);
  END_HANDLE_TH_ERRORS
}

PyObject* interned(const py::handle& name) {
  PyObject* text = name.inc_ref().ptr();
  PyUnicode_InternInPlace(&text);
  return text;
}

PyObject* or_null(const py::handle& value) {
  return value.is(py::ellipsis()) ? nullptr : value.inc_ref().ptr();
}

// An argument of the schema: its slot, the slot that counts instead of None or -1, the length of
// its list, kAny or kAnyButInteger, whether it must be positive, and the fewest and the most
// dimensions of a tensor.
using Source = std::tuple<int, int, Py_ssize_t, bool, int64_t, int64_t>;

Argument argument_of(const c10::Argument& argument, const Source& source) {
  auto [slot, instead, length, is_positive, fewest, most] = source;
  c10::TypePtr type = argument.real_type();
  auto optional = type->cast<c10::OptionalType>();
  if (optional) type = optional->getElementType();
  Kind kind = argument.name() == "policy" ? Kind::policy
              : is_positive               ? Kind::positive
                                          : kind_of(type->str());
  return {kind, optional != nullptr, slot, instead, length, fewest, most};
}

// `slots`: the default of every parameter, `...` for none, then constants. `fixed`: slots that no
// argument reads, and the only value that each may have.
py::object make_direct_call(const std::string& name, const py::object& general,
                            const py::object& admit, const py::dict& admitted,
                            const py::list& names, Py_ssize_t positional, const py::list& slots,
                            const std::vector<Source>& sources,
                            const std::vector<std::pair<int, py::object>>& fixed) {
  auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(("torch_cudnn_ext::" + name).c_str(), "");
  const std::vector<c10::Argument>& schema = op.schema().arguments();
  TORCH_CHECK(slots.size() <= kMaxSlots && sources.size() == schema.size(), "direct_call: ", name,
              " has ", slots.size(), " slots and ", sources.size(), " sources, wanted at most ",
              kMaxSlots, " and ", schema.size());
  auto* direct = new DirectCall(op, typed_calls().at(name));
  direct->general = general.inc_ref().ptr();
  direct->admit = admit.inc_ref().ptr();
  direct->admitted = admitted.inc_ref().ptr();
  direct->positional = positional;
  for (const py::handle& one : names) direct->names.push_back(interned(one));
  for (const py::handle& value : slots) direct->defaults.push_back(or_null(value));
  for (size_t i = 0; i < schema.size(); ++i) {
    direct->arguments.push_back(argument_of(schema[i], sources[i]));
    const c10::AliasInfo* alias = schema[i].alias_info();
    if (op.schema().returns().empty() && alias != nullptr && alias->isWrite()) {
      direct->written = direct->arguments.back().slot;
    }
  }
  for (size_t i = 0; i < schema.size(); ++i) {
    bool is_policy = direct->arguments[i].kind == Kind::policy;
    auto place = is_policy ? direct->checked.begin() : direct->checked.end();
    direct->checked.insert(place, static_cast<int>(i));
  }
  direct->is_mutable = op.schema().is_mutable();
  for (const auto& [slot, value] : fixed) {
    direct->fixed.emplace_back(slot, value.inc_ref().ptr());
  }
  direct->method = {op.schema().name().c_str(),
                    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(direct_call)),
                    METH_VARARGS | METH_KEYWORDS, nullptr};
  py::capsule self(direct, static_cast<const char*>(nullptr));
  return py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&direct->method, self.ptr(), py::str("torch_cudnn_ext._C").ptr()));
}

}  // namespace

void bind_direct_calls(py::module_& m) { m.def("direct_call", &make_direct_call); }

}  // namespace torch_cudnn_ext
