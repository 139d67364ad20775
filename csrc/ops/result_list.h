// The results of an operator as a list. Knows no operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>
#include <utility>

namespace torch_cudnn_ext {

using at::Tensor;

// The results of an operator, a tensor or a tuple of tensors, as a list and back.
inline std::array<Tensor, 1> as_list(Tensor result) { return {std::move(result)}; }
template <class... T>
std::array<Tensor, sizeof...(T)> as_list(std::tuple<T...> results) {
  return std::apply(
      [](auto&... t)->std::array<Tensor, sizeof...(T)> { return {std::move(t)...}; }, results);
}
template <class Results>
constexpr size_t kResults = std::tuple_size_v<Results>;
template <>
inline constexpr size_t kResults<Tensor> = 1;
template <class Results, size_t count>
Results from_list(std::array<Tensor, count> list) {
  return std::apply([](auto&... t) { return Results(std::move(t)...); }, list);
}

}  // namespace torch_cudnn_ext
