// Checks that validate() of several families makes. `op` begins the message, `name` is the field.
#pragma once

#include "problems/problem.h"

namespace torch_cudnn_ext {

inline void check_contiguous(const char* op, const char* name, const TensorSpec& spec) {
  TORCH_CHECK_VALUE(spec.strides == contiguous_strides(spec.sizes), op, ": ", name,
                    " has the strides ", c10::IntArrayRef(spec.strides),
                    ", wanted those of a contiguous tensor, :nchw");
}

inline void check_same_dtype(const char* op, const char* name, const TensorSpec& spec,
                             const char* like_name, const TensorSpec& like) {
  TORCH_CHECK_VALUE(spec.dtype == like.dtype, op, ": ", name, " is ", dtype_text(spec.dtype),
                    ", wanted ", like_name, "'s dtype ", dtype_text(like.dtype));
}

}  // namespace torch_cudnn_ext
