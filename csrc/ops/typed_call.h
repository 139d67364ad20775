// Calls of operators through their C++ signature, with arguments that come from a reader. The entry
// from Python parses by the schema and calls through this, so that nothing spells a signature
// again. Knows no Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch_cudnn_ext {

// The arguments of one call, by their position in the schema.
class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;
  virtual void read(int i, at::Tensor& value) = 0;
  virtual void read(int i, std::optional<at::Tensor>& value) = 0;
  virtual void read(int i, std::vector<at::Tensor>& value) = 0;
  virtual void read(int i, c10::SymInt& value) = 0;
  virtual void read(int i, std::vector<c10::SymInt>& value) = 0;
  virtual void read(int i, int64_t& value) = 0;
  virtual void read(int i, std::optional<int64_t>& value) = 0;
  virtual void read(int i, std::vector<int64_t>& value) = 0;
  virtual void read(int i, std::optional<std::vector<int64_t>>& value) = 0;
  virtual void read(int i, double& value) = 0;
  virtual void read(int i, std::optional<double>& value) = 0;
  virtual void read(int i, bool& value) = 0;
  virtual void read(int i, std::string_view& value) = 0;
  virtual void read(int i, std::optional<std::string_view>& value) = 0;
  virtual void read(int i, std::optional<c10::ScalarType>& value) = 0;
  virtual void read(int i, std::optional<c10::MemoryFormat>& value) = 0;
  virtual void end() = 0;  // all are read
};

// What holds an argument while the call runs: views need memory that they refer to.
template <class T>
struct Held {
  using type = std::decay_t<T>;
};
template <>
struct Held<c10::SymIntArrayRef> {
  using type = std::vector<c10::SymInt>;
};
template <>
struct Held<at::IntArrayRef> {
  using type = std::vector<int64_t>;
};
template <>
struct Held<at::OptionalIntArrayRef> {
  using type = std::optional<std::vector<int64_t>>;
};
template <>
struct Held<at::TensorList> {
  using type = std::vector<at::Tensor>;
};

// The results of an operator: one tensor, several, or none.
using Results = c10::SmallVector<at::Tensor, 2>;

template <class T>
T& argument(T& held) {
  return held;
}
inline at::OptionalIntArrayRef argument(std::optional<std::vector<int64_t>>& held) {
  return held ? at::OptionalIntArrayRef(*held) : std::nullopt;
}

template <class Signature>
struct TypedCallOf;

// Of a kernel that takes the dispatch keys in addition.
template <class R, class... Args>
struct TypedCallOf<R(c10::DispatchKeySet, Args...)> : TypedCallOf<R(Args...)> {};

template <class R, class... Args>
struct TypedCallOf<R(Args...)> {
  using Indices = std::index_sequence_for<Args...>;

  static Results run(const c10::OperatorHandle& op, ArgumentReader& reader) {
    return run(op, reader, Indices());
  }

 private:
  template <size_t... i>
  static Results run(const c10::OperatorHandle& op, ArgumentReader& reader,
                     std::index_sequence<i...>) {
    std::tuple<typename Held<Args>::type...> values;
    (reader.read(static_cast<int>(i), std::get<i>(values)), ...);
    reader.end();
    auto typed = op.typed<R(Args...)>();
    if constexpr (std::is_void_v<R>) {
      typed.call(argument(std::get<i>(values))...);
      return {};
    } else {
      return results_of(typed.call(argument(std::get<i>(values))...));
    }
  }
  static Results results_of(at::Tensor result) { return results_of(std::tuple(std::move(result))); }
  template <class... T>
  static Results results_of(std::tuple<T...> results) {
    Results list;
    std::apply([&](auto&... result) { (list.push_back(std::move(result)), ...); }, results);
    return list;
  }
};

using TypedCall = Results (*)(const c10::OperatorHandle& op, ArgumentReader& reader);

// By the operator's name without its namespace.
std::map<std::string, TypedCall>& typed_calls();

// Registers a kernel as m.impl() does, and the operator's typed call.
template <class Signature, Signature* kernel>
void implement(torch::Library& m, const char* name,
               c10::CompileTimeFunctionPointer<Signature, kernel> function) {
  m.impl(name, function);
  typed_calls()[name] = &TypedCallOf<Signature>::run;
}

}  // namespace torch_cudnn_ext
