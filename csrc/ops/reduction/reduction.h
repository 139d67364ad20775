// What the files of reductions share: kernels and the meaning of their arguments.
#pragma once

#include <tuple>
#include <vector>

#include "ops/arguments.h"

namespace torch_cudnn_ext::reduction {

using Indexed = std::tuple<Tensor, Tensor>;  // values and indices

Tensor forward(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
               bool keepdim, OptionalPolicy policy);
Indexed with_indices(const Tensor& input, std::string_view kind, at::OptionalIntArrayRef dim,
                     bool keepdim, OptionalPolicy policy);

// Raises if there is no such kind.
ReduceKind kind_of(const char* op, std::string_view kind);
// The dimensions to reduce, counted from 0 and in order; all if none are given. Raises if one is
// wrong.
std::vector<int64_t> check_dims(const char* op, const Tensor& t, at::OptionalIntArrayRef dims);
bool contains(const std::vector<int64_t>& dims, int64_t dim);
// The place of each dimension in an order of them.
std::vector<int64_t> inverse(const std::vector<int64_t>& order);

}  // namespace torch_cudnn_ext::reduction
