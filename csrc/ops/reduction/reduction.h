// What the files of reductions share: arguments and their meaning.
#pragma once

#include <tuple>
#include <vector>

#include "ops/arguments.h"

namespace torch_cudnn_ext::reduction {

struct ReduceArgs {
  static constexpr const char* kName = "reduce";
  using Result = Tensor;
  const Tensor& input;
  std::string_view kind;
  at::OptionalIntArrayRef dim;
  bool keepdim;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, kind, dim, keepdim, policy); }
};

// Values and indices.
struct IndexedArgs : ReduceArgs {
  static constexpr const char* kName = "reduce_with_indices";
  using Result = std::tuple<Tensor, Tensor>;
};

// Raises if there is no such kind. `op` is the operator's name.
ReduceKind kind_of(const char* op, std::string_view kind);
// The dimensions to reduce, counted from 0 and in order; all if none are given. Raises if one is
// wrong.
std::vector<int64_t> check_dims(const char* op, const Tensor& t, at::OptionalIntArrayRef dims);
bool contains(const std::vector<int64_t>& dims, int64_t dim);
// The place of each dimension in an order of them.
std::vector<int64_t> inverse(const std::vector<int64_t>& order);

}  // namespace torch_cudnn_ext::reduction
