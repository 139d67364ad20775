#include "problems/field_text.h"

#include <c10/util/Exception.h>

#include <array>
#include <charconv>
#include <cmath>
#include <system_error>

namespace torch_cudnn_ext {

std::string number_text(double value) {
  std::array<char, 32> buffer;
  auto end = std::to_chars(buffer.begin(), buffer.end(), value).ptr;
  return {buffer.begin(), end};
}

std::string layout_text(const TensorSpec& spec) {
  if (spec.strides == contiguous_strides(spec.sizes)) return ":nchw";
  if (spec.strides == channels_last_strides(spec.sizes)) return ":nhwc";
  return c10::str(":s(", spec.strides.text(), ")");
}

int64_t integer_from_text(std::string_view what, std::string_view text) {
  int64_t value = 0;
  bool valid = !text.empty() && text.size() <= 18;
  bool negative = valid && text.front() == '-';
  if (negative) text.remove_prefix(1);
  valid = valid && !text.empty();
  for (char c : text) {
    valid = valid && c >= '0' && c <= '9';
    value = value * 10 + (c - '0');
  }
  TORCH_CHECK_VALUE(valid, "problem text: ", what, " holds '", text,
                    "', wanted an integer of at most 18 digits");
  return negative ? -value : value;
}

double number_from_text(std::string_view what, std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(
      error == std::errc() && end == text.data() + text.size() && std::isfinite(value),
      "problem text: ", what, " holds '", text, "', wanted a number");
  return value;
}

Dims integers_from_text(std::string_view what, std::string_view text) {
  Dims values;
  while (true) {
    size_t comma = text.find(',');
    values.push_back(integer_from_text(what, text.substr(0, comma)));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

Dims layout_from_text(std::string_view what, std::string_view text, const Dims& sizes) {
  if (text == ":nchw") return contiguous_strides(sizes);
  if (text == ":nhwc") return channels_last_strides(sizes);
  bool is_list = text.size() > 4 && text.substr(0, 3) == ":s(" && text.back() == ')';
  TORCH_CHECK_VALUE(is_list, "problem text: layout of ", what, " is '", text,
                    "', wanted :nchw, :nhwc or :s(stride,stride,...)");
  Dims strides = integers_from_text(what, text.substr(3, text.size() - 4));
  TORCH_CHECK_VALUE(strides.size() == sizes.size(), "problem text: ", what, " has ", sizes.size(),
                    " sizes but ", strides.size(), " strides");
  for (int i = 0; i < strides.size(); ++i) {
    TORCH_CHECK_VALUE(strides[i] >= 0, "problem text: ", what, " has the negative stride ",
                      strides[i]);
    TORCH_CHECK_VALUE(strides[i] > 0 || sizes[i] <= 1, "problem text: ", what,
                      " has the stride 0 over the size ", sizes[i]);
  }
  return strides;
}

TensorSpec tensor_from_text(std::string_view what, std::string_view text) {
  size_t open = text.find('[');
  size_t close = text.find(']');
  TORCH_CHECK_VALUE(
      open != std::string_view::npos && close != std::string_view::npos && open < close,
      "problem text: ", what, " is '", text, "', wanted dtype[size,size,...]:layout");
  TensorSpec spec;
  spec.dtype = name_from_text<c10::ScalarType>(what, text.substr(0, open));
  spec.sizes = integers_from_text(what, text.substr(open + 1, close - open - 1));
  spec.strides = layout_from_text(what, text.substr(close + 1), spec.sizes);
  return spec;
}

}  // namespace torch_cudnn_ext
