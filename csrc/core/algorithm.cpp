#include "core/algorithm.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>

#include "core/base/text.h"

namespace torch_cudnn_ext {

namespace {

// Filled while libraries load, read-only afterwards.
std::vector<std::string>& names_of_backends() {
  static auto* list = new std::vector<std::string>{"graph", "legacy", "aten", "cpu"};
  return *list;
}

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

bool is_integer(std::string_view text) {
  if (!text.empty() && text.front() == '-') text.remove_prefix(1);
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::string names_text(const std::vector<LegacyName>& names) {
  std::string out;
  const LegacyName* before = nullptr;
  for (const LegacyName& name : names) {
    // An algorithm with several Theano names has several entries.
    if (before != nullptr && before->value == name.value) continue;
    out += c10::str(out.empty() ? "" : ", ", name.value, " (", name.name, ")");
    before = &name;
  }
  return out.empty() ? "none" : out;
}

std::string math_types_text() {
  std::string out;
  for (const MathType& math : kMathTypes) out += c10::str(out.empty() ? "" : "|", math.text);
  return out;
}

const LegacyName* find_legacy(std::string_view text, const std::vector<LegacyName>& names) {
  for (const LegacyName& name : names) {
    bool named = text == name.name || text == name.enumerator ||
                 (name.theano_name != nullptr && text == name.theano_name);
    if (named || (is_integer(text) && std::stoi(std::string(text)) == name.value)) return &name;
  }
  return nullptr;
}

// The number after a letter or word, without leading zeros; empty if there is none.
std::string number_after(std::string_view prefix, std::string_view text) {
  std::string_view digits = text.substr(std::min(prefix.size(), text.size()));
  bool valid = text.substr(0, prefix.size()) == prefix && is_integer(digits) && digits[0] != '-';
  return valid ? std::to_string(std::stoi(std::string(digits))) : "";
}

// Spells numbers and orders engine knobs in one way, so that each algorithm has one text.
void canonicalise_graph(Algorithm& algorithm) {
  std::string whole = algorithm.text(), engine = number_after("eng", algorithm.name);
  TORCH_CHECK_VALUE(!engine.empty(), "algorithm text: '", whole, "' names the engine '",
                    algorithm.name, "', wanted engNUMBER");
  algorithm.name = "eng" + engine;
  for (auto& [key, value] : algorithm.options) {
    std::string knob = number_after("k", key);
    TORCH_CHECK_VALUE(!knob.empty() && is_integer(value), "algorithm text: '", key, "=", value,
                      "' in '", whole, "' is not a knob, wanted kNUMBER=INTEGER");
    key = "k" + knob;
    value = std::to_string(std::stoi(value));
  }
  auto number = [](const auto& option) { return std::stoi(option.first.substr(1)); };
  auto& options = algorithm.options;
  std::sort(options.begin(), options.end(),
            [&](const auto& a, const auto& b) { return number(a) < number(b); });
  auto twice = std::adjacent_find(options.begin(), options.end(),
                                  [](const auto& a, const auto& b) { return a.first == b.first; });
  TORCH_CHECK_VALUE(twice == options.end(), "algorithm text: '", whole, "' sets '",
                    twice == options.end() ? "" : twice->first, "' twice");
}

}  // namespace

const std::vector<std::string>& backend_names() { return names_of_backends(); }

void add_backend_name(const std::string& name) { names_of_backends().push_back(name); }

const std::string* Algorithm::option(std::string_view key) const {
  for (const auto& item : options) {
    if (item.first == key) return &item.second;
  }
  return nullptr;
}

Algorithm Algorithm::with(std::string key, std::string value) const {
  Algorithm copy = *this;
  for (auto& item : copy.options) {
    if (item.first == key) {
      item.second = std::move(value);
      return copy;
    }
  }
  copy.options.emplace_back(std::move(key), std::move(value));
  if (copy.backend == "graph") canonicalise_graph(copy);
  return copy;
}

std::string Algorithm::text() const {
  std::string out = backend + ":" + name;
  for (const auto& [key, value] : options) out.append("/").append(key).append("=").append(value);
  return out;
}

Algorithm parse_algorithm(std::string_view text) {
  check_length("algorithm text", text, kMaxAlgorithm);
  std::string whole(text);
  size_t colon = text.find(':');
  TORCH_CHECK_VALUE(colon != std::string_view::npos, "algorithm text: '", whole,
                    "' has no backend, wanted backend:name/key=value, e.g. legacy:fft/math=fma");
  Algorithm algorithm;
  algorithm.backend = text.substr(0, colon);
  text.remove_prefix(colon + 1);
  const std::vector<std::string>& backends = backend_names();
  bool is_known = std::find(backends.begin(), backends.end(), algorithm.backend) != backends.end();
  TORCH_CHECK_VALUE(is_known, "algorithm text: '", whole, "' names the backend '",
                    algorithm.backend, "', wanted one of ", c10::Join(", ", backends));
  bool first = true;
  while (true) {
    size_t slash = text.find('/');
    std::string_view part = text.substr(0, slash);
    size_t equals = part.find('=');
    if (first) {
      TORCH_CHECK_VALUE(is_word(part), "algorithm text: '", whole, "' has the name '", part,
                        "', wanted a word");
      algorithm.name = part;
    } else {
      bool valid = equals != std::string_view::npos && is_word(part.substr(0, equals)) &&
                   is_word(part.substr(equals + 1));
      TORCH_CHECK_VALUE(valid, "algorithm text: '", part, "' in '", whole,
                        "' is not of the form key=value");
      std::string key(part.substr(0, equals));
      TORCH_CHECK_VALUE(algorithm.option(key) == nullptr, "algorithm text: '", whole, "' sets '",
                        key, "' twice");
      algorithm.options.emplace_back(key, std::string(part.substr(equals + 1)));
    }
    first = false;
    if (slash == std::string_view::npos) break;
    text.remove_prefix(slash + 1);
  }
  if (algorithm.backend == "graph") canonicalise_graph(algorithm);
  return algorithm;
}

const MathType* find_math_type(std::string_view text) {
  for (const MathType& math : kMathTypes) {
    if (text == math.text) return &math;
  }
  return nullptr;
}

Algorithm resolve_algorithm(std::string_view text, const std::string& op,
                            const std::vector<LegacyName>& legacy_names) {
  check_length("algorithm text", text, kMaxAlgorithm);
  if (text.find(':') == std::string_view::npos) {
    size_t slash = text.find('/');
    const LegacyName* found = find_legacy(text.substr(0, slash), legacy_names);
    std::string known = "; all of its are written backend:name";
    if (!legacy_names.empty()) {
      known = c10::str("; the classic API's are ", names_text(legacy_names),
                       ", others are written backend:name");
    }
    TORCH_CHECK_VALUE(found != nullptr, "algorithm '", text, "' is not one of ", op, known);
    std::string rest(slash == std::string_view::npos ? "" : text.substr(slash));
    return resolve_algorithm(c10::str("legacy:", found->name, rest), op, legacy_names);
  }
  Algorithm algorithm = parse_algorithm(text);
  if (algorithm.backend != "legacy") return algorithm;
  // A call for which the classic API has no enumerated algorithms.
  if (legacy_names.empty() && algorithm.name == "default") return algorithm;
  const LegacyName* found = find_legacy(algorithm.name, legacy_names);
  TORCH_CHECK_VALUE(found != nullptr, "algorithm '", text, "' is not one of ", op,
                    "; the classic API's are ",
                    legacy_names.empty() ? "legacy:default" : names_text(legacy_names));
  algorithm.name = found->name;
  for (const auto& [key, value] : algorithm.options) {
    bool is_math = key == "math" && find_math_type(value) != nullptr;
    TORCH_CHECK_VALUE(is_math, "algorithm text: '", key, "=", value, "' in '", text,
                      "', wanted math=", math_types_text());
  }
  return algorithm;
}

}  // namespace torch_cudnn_ext
