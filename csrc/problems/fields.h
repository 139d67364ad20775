// The visitors of a problem's `fields()`: writer and reader of texts, listers, and writer of keys.
// Knows no family.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/tensor_spec.h"
#include "core/base/text.h"
#include "problems/field_text.h"

namespace torch_cudnn_ext {

// Appends the fields to the first word of a text.
struct TextWriter {
  std::string& out;

  void field(const char* name, const std::string& value) {
    out += ' ';
    out += name;
    out += '=';
    out += value;
  }
  static std::string text(const TensorSpec& v) {
    return c10::str(dtype_text(v.dtype), "[", v.sizes.text(), "]", layout_text(v));
  }
  static std::string text(int64_t v) { return std::to_string(v); }
  static std::string text(double v) { return number_text(v); }
  // One number if all are equal.
  static std::string text(const Dims& values) {
    bool equal = true;
    for (int64_t value : values) equal = equal && value == values[0];
    return equal ? std::to_string(values[0]) : values.text();
  }
  template <class T>
  static std::string text(T v) {
    return name_text(v);
  }
  template <class T>
  static std::string text(const std::optional<T>& v) {
    return v ? name_text(*v) : "";
  }

  template <class T>
  void required(const char* name, const T& value) {
    field(name, text(value));
  }
  template <class T>
  void written(const char* name, const T& value, const T&) {
    field(name, text(value));
  }
  template <class T>
  void optional(const char* name, const T& value, const T& otherwise) {
    if (!(value == otherwise)) field(name, text(value));
  }
  template <class Default>
  void layout(const char* name, const TensorSpec& value, Default&& otherwise) {
    if (!(value == otherwise())) field(name, layout_text(value));
  }
};

// Reads the same fields, in the same order.
struct TextReader {
  std::vector<std::pair<std::string_view, std::string_view>> tokens;
  size_t next = 0;

  std::optional<std::string_view> take(std::string_view name) {
    if (next < tokens.size() && tokens[next].first == name) return tokens[next++].second;
    return std::nullopt;
  }
  std::string_view must_take(const char* name) {
    auto value = take(name);
    TORCH_CHECK_VALUE(value, "problem text: wanted '", name, "=' ",
                      next < tokens.size() ? c10::str("before '", tokens[next].first, "='")
                                           : std::string("at the end"));
    return *value;
  }
  static void read(std::string_view what, std::string_view text, TensorSpec& value) {
    value = tensor_from_text(what, text);
  }
  static void read(std::string_view what, std::string_view text, int64_t& value) {
    value = integer_from_text(what, text);
  }
  static void read(std::string_view what, std::string_view text, double& value) {
    value = number_from_text(what, text);
  }
  template <class T>
  static void read(std::string_view what, std::string_view text, T& value) {
    value = name_from_text<T>(what, text);
  }
  template <class T>
  static void read(std::string_view what, std::string_view text, std::optional<T>& value) {
    value = name_from_text<T>(what, text);
  }

  template <class T>
  void required(const char* name, T& value) {
    read(name, must_take(name), value);
  }
  template <class T>
  void written(const char* name, T& value, const T& otherwise) {
    optional(name, value, otherwise);
  }
  void written(const char* name, Dims& values, const Dims& otherwise) {
    values = otherwise;
    auto text = take(name);
    if (!text) return;
    values = integers_from_text(name, *text);
    if (values.size() == 1) values = Dims(otherwise.size(), values[0]);
    TORCH_CHECK_VALUE(values.size() == otherwise.size(), "problem text: ", name, " has ",
                      values.size(), " values, wanted one or ", otherwise.size());
  }
  template <class T>
  void optional(const char* name, T& value, const T& otherwise) {
    value = otherwise;
    if (auto text = take(name)) read(name, *text, value);
  }
  template <class Default>
  void layout(const char* name, TensorSpec& value, Default&& otherwise) {
    value = otherwise();
    if (auto text = take(name)) value.strides = layout_from_text(name, *text, value.sizes);
  }
};

// Passes every field to `Visitor`, whatever its kind: `field`, or `layout_field` for the layout of
// a derived tensor.
template <class Visitor>
struct EachField : Visitor {
  template <class T>
  void required(const char* name, const T& value) {
    this->field(name, value);
  }
  template <class T>
  void written(const char* name, const T& value, const T&) {
    this->field(name, value);
  }
  template <class T>
  void optional(const char* name, const T& value, const T&) {
    this->field(name, value);
  }
  template <class Default>
  void layout(const char* name, const TensorSpec& value, Default&&) {
    this->layout_field(name, value);
  }
};

// Lists all fields with their texts, also those that a text leaves out.
struct FieldLister {
  std::vector<std::pair<std::string, std::string>>& out;

  template <class T>
  void field(const char* name, const T& value) {
    out.emplace_back(name, TextWriter::text(value));
  }
  void layout_field(const char* name, const TensorSpec& value) {
    out.emplace_back(name, layout_text(value));
  }
};

// Lists the forms that the values may have (field_forms.h). The problem need not be valid.
struct FormLister {
  std::vector<std::pair<std::string, std::vector<std::string>>>& out;

  static std::vector<std::string> forms(const TensorSpec&) {
    std::vector<std::string> list;
    for (const auto& dtype : kDtypes) {
      for (const std::string& layout : layouts()) {
        list.push_back(c10::str(dtype.text, "[", kNumbers, "]", layout));
      }
    }
    return list;
  }
  static std::vector<std::string> forms(int64_t) { return {std::string(1, kNumbers)}; }
  static std::vector<std::string> forms(double) { return {std::string(1, kNumbers)}; }
  static std::vector<std::string> forms(const Dims&) { return {std::string(1, kNumbers)}; }
  template <class T>
  static std::vector<std::string> forms(T) {
    std::vector<std::string> list;
    for (const auto& name : enum_names(T{})) list.emplace_back(name.text);
    return list;
  }
  template <class T>
  static std::vector<std::string> forms(const std::optional<T>&) {
    std::vector<std::string> list = forms(T{});
    list.emplace_back("");
    return list;
  }
  static std::vector<std::string> layouts() {
    return {":nchw", ":nhwc", c10::str(":s(", kNumbers, ")")};
  }
  template <class T>
  void field(const char* name, const T& value) {
    out.emplace_back(name, forms(value));
  }
  void layout_field(const char* name, const TensorSpec&) { out.emplace_back(name, layouts()); }
};

// Appends the values to a key, which is anything with push(int64_t).
template <class Key>
struct KeyWriter {
  Key& key;

  void add(const Dims& v) {
    for (int64_t word : v) key.push(word);
  }
  void add(const TensorSpec& v) {
    key.push(static_cast<int64_t>(v.dtype) << 8 | v.sizes.size());
    add(v.sizes);
    add(v.strides);
  }
  void add(int64_t v) { key.push(v); }
  void add(double v) {
    int64_t word;
    std::memcpy(&word, &v, sizeof word);
    key.push(word);
  }
  template <class T>
  void add(T v) {
    key.push(static_cast<int64_t>(v));
  }
  template <class T>
  void add(const std::optional<T>& v) {
    key.push(v ? static_cast<int64_t>(*v) + 1 : 0);
  }
  template <class T>
  void field(const char*, const T& value) {
    add(value);
  }
  // The sizes of a derived tensor follow from the other fields.
  void layout_field(const char*, const TensorSpec& value) { add(value.strides); }
};

}  // namespace torch_cudnn_ext
