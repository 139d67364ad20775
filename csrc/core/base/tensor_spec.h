// The type, sizes and strides of a tensor, and the layouts that strides stand for. Knows nothing of
// problems.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/base/dims.h"
#include "core/base/enum_text.h"

namespace torch_cudnn_ext {

inline constexpr EnumName<c10::ScalarType> kDtypes[] = {{c10::ScalarType::Double, "f64"},
                                                        {c10::ScalarType::Float, "f32"},
                                                        {c10::ScalarType::Half, "f16"},
                                                        {c10::ScalarType::BFloat16, "bf16"}};
inline const auto& enum_names(c10::ScalarType) { return kDtypes; }
std::string dtype_text(c10::ScalarType dtype);  // PyTorch's name for types that are not in kDtypes

// The type of sums unless another is requested: float64 for float64 data, else float32.
inline c10::ScalarType compute_dtype(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? c10::ScalarType::Double : c10::ScalarType::Float;
}

struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Dims sizes;
  Dims strides;

  int64_t numel() const;
  int64_t nbytes() const;
  int64_t extent() const;  // elements from the first to the last, gaps included
  bool operator==(const TensorSpec& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides;
  }
};

Dims contiguous_strides(const Dims& sizes);
Dims channels_last_strides(const Dims& sizes);
bool is_channels_last(const TensorSpec& t);  // false for a tensor that is also contiguous
bool is_packed(const TensorSpec& t);         // contiguous or channels-last
bool is_one_pixel(const Dims& sizes);        // of images or filters

// Gives all tensors of a problem one layout as far as their values allow it. The strides of
// dimensions of size 1 do not matter for the values, but different ones would make several keys of
// one problem.
void canonicalise_strides(std::initializer_list<TensorSpec*> tensors);

// Checks for validate(), which raise a ValueError. Its message begins with `op` and says `name`.
void check_alignment(const char* op, int64_t alignment, c10::ScalarType dtype);
void check_sizes(const char* op, const char* name, const TensorSpec& spec, int min_dims,
                 int max_dims);

}  // namespace torch_cudnn_ext
