// Enumerations and the words that texts spell them with: one table each, read in both directions.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.h"

namespace torch_cudnn_ext {

template <class T>
struct EnumName {
  T value;
  const char* text;
};

// The first of several words for one value is the canonical one.
template <class T, size_t Count>
const char* enum_text(const EnumName<T> (&words)[Count], T value) {
  for (const auto& word : words) {
    if (word.value == value) return word.text;
  }
  return "?";
}

// Throws ValueError; `what` says what is being read: "policy text: prefer".
template <class T, size_t Count>
T enum_value(const EnumName<T> (&words)[Count], std::string_view what, std::string_view text) {
  std::vector<std::string> known;
  for (const auto& word : words) {
    if (text == word.text) return word.value;
    known.emplace_back(word.text);
  }
  TORCH_CHECK_VALUE(false, what, " is '", text, "', ", wanted_words(text, known, kInTexts));
}

}  // namespace torch_cudnn_ext
