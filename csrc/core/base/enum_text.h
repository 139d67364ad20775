// Enumerations and the words for their values in texts: one table each, for both directions.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
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

// `enum_names(T)` gives the table of a type, for code that handles values of any type.
inline constexpr EnumName<bool> kBooleans[] = {{false, "false"}, {true, "true"}};
inline const auto& enum_names(bool) { return kBooleans; }

// The first of several words for one value is the canonical one.
template <class T, size_t Count>
const char* enum_text(const EnumName<T> (&names)[Count], T value) {
  for (const auto& name : names) {
    if (name.value == value) return name.text;
  }
  return "?";
}

// nullopt for a word that the table does not have.
template <class T, size_t Count>
std::optional<T> known_enum_value(const EnumName<T> (&names)[Count], std::string_view text) {
  for (const auto& name : names) {
    if (text == name.text) return name.value;
  }
  return std::nullopt;
}

// Throws ValueError; `what` says what is being read: "policy text: prefer".
template <class T, size_t Count>
T enum_value(const EnumName<T> (&names)[Count], std::string_view what, std::string_view text) {
  if (std::optional<T> value = known_enum_value(names, text)) return *value;
  std::vector<std::string> known;
  for (const auto& name : names) known.emplace_back(name.text);
  TORCH_CHECK_VALUE(false, what, " is '", text, "', ", wanted_words(text, known, kInTexts));
}

}  // namespace torch_cudnn_ext
