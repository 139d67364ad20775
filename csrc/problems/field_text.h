// The texts of the values that fields hold, and their readers. Knows no family.
#pragma once

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/tensor_spec.h"

namespace torch_cudnn_ext {

std::string number_text(double value);  // the shortest text that reads back as the same number
std::string layout_text(const TensorSpec& spec);  // ":nhwc", ":nchw" or ":s(1,2,3,4)"
template <class T>
std::string name_text(T value) {
  return enum_text(enum_names(value), value);
}

// These throw ValueError; `what` is the field's name.
int64_t integer_from_text(std::string_view what, std::string_view text);
double number_from_text(std::string_view what, std::string_view text);
Dims integers_from_text(std::string_view what, std::string_view text);
Dims layout_from_text(std::string_view what, std::string_view text, const Dims& sizes);
TensorSpec tensor_from_text(std::string_view what, std::string_view text);
template <class T>
T name_from_text(std::string_view what, std::string_view text) {
  return enum_value(enum_names(T{}), c10::str("problem text: ", what), text);
}

}  // namespace torch_cudnn_ext
