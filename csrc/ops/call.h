// An operator's arguments as one struct, so that its list of parameters is written once. Knows no
// operator. Such a struct `Args` is an aggregate with
//   static constexpr const char* kName    the operator's name, without the namespace
//   using Result = ...                    what the operator returns
//   (members in the order of the schema; tensors and optional tensors are references)
//   auto tied() const                     std::tie of all parameters, in the order of the schema
// A kernel is a function `Result kernel(const Args&)`. A kernel that calls the next kernel below it
// is a function `Result kernel(c10::DispatchKeySet, const Args&)`.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ops/arguments.h"
#include "ops/typed_call.h"

namespace torch_cudnn_ext {

// The type in which the dispatcher passes a member: tensors by reference, all else by value.
template <class T>
constexpr bool kIsTensor =
    std::is_same_v<std::decay_t<T>, Tensor> || std::is_same_v<std::decay_t<T>, OptionalTensor>;
template <class T>
using Parameter = std::conditional_t<kIsTensor<T>, T&, std::decay_t<T>>;

// Functions with the operator's parameters one by one, as the dispatcher calls them.
template <class Args, class Tuple = decltype(std::declval<const Args&>().tied())>
struct Flat;
template <class Args, class... T>
struct Flat<Args, std::tuple<T&...>> {
  using Result = typename Args::Result;
  using Signature = Result(Parameter<T>...);

  template <Result (*kernel)(const Args&)>
  static Result call(Parameter<T>... parameters) {
    return kernel(Args{parameters...});
  }
  template <Result (*kernel)(c10::DispatchKeySet, const Args&)>
  static Result call_with_keys(c10::DispatchKeySet keys, Parameter<T>... parameters) {
    return kernel(keys, Args{parameters...});
  }

  template <Result (*kernel)(const Args&)>
  static void add(torch::Library& m) {
    implement(m, Args::kName, TORCH_FN((call<kernel>)));
  }
  template <Result (*kernel)(c10::DispatchKeySet, const Args&)>
  static void add(torch::Library& m) {
    implement(m, Args::kName, TORCH_FN((call_with_keys<kernel>)));
  }
};

template <class Kernel>
struct FlatOf;
template <class R, class Args>
struct FlatOf<R (*)(const Args&)> : Flat<Args> {};
template <class R, class Args>
struct FlatOf<R (*)(c10::DispatchKeySet, const Args&)> : Flat<Args> {};

// Registers kernels, each under its operator's name.
template <auto... kernels>
void register_kernels(torch::Library& m) {
  (FlatOf<decltype(kernels)>::template add<kernels>(m), ...);
}

// The operator's handle in the dispatcher, and a call through it.
template <class Args>
const auto& op_of() {
  static auto op =
      find_op<typename Flat<Args>::Signature>(c10::str("torch_cudnn_ext::", Args::kName).c_str());
  return op;
}
template <class Args>
typename Args::Result call_op(const Args& args) {
  return std::apply([](auto&... a) { return op_of<Args>().call(a...); }, args.tied());
}

// Calls the operator's kernel below autograd, or below the keys that `after` leaves out.
template <class Args>
typename Args::Result redispatch(c10::DispatchKeySet keys, const Args& args,
                                 c10::DispatchKeySet after = c10::after_autograd_keyset) {
  return std::apply([&](auto&... a) { return op_of<Args>().redispatch(keys & after, a...); },
                    args.tied());
}

// Calls the operator's kernel, without the dispatcher if that makes no difference. `tensors` are
// all tensors among the arguments.
template <class Args>
typename Args::Result call_kernel(std::initializer_list<const Tensor*> tensors,
                                  typename Args::Result (&kernel)(const Args&), const Args& args) {
  if (!is_plain_call(tensors)) return call_op(args);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kernel(args);
}

}  // namespace torch_cudnn_ext
