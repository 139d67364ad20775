#include "problems/problem.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>

#include "core/base/enum_text.h"
#include "core/base/text.h"
#include "problems/field_forms.h"
#include "problems/fields.h"

namespace torch_cudnn_ext {

namespace {

template <class Visitor>
void visit_fields(const Problem& problem, Visitor&& visitor) {
  std::visit([&](const auto& p) { std::decay_t<decltype(p)>::fields(p, visitor); }, problem);
}

// The first word of a text names one alternative of the variant, and its pass. `known` holds the
// words of the alternatives before this one.
template <size_t Index = 0>
Problem problem_from_word(std::string_view word, std::vector<std::string>&& known = {}) {
  if constexpr (Index < std::variant_size_v<Problem>) {
    using P = std::variant_alternative_t<Index, Problem>;
    P problem;
    for (const auto& pass : enum_names(problem.pass)) {
      std::string op = c10::str(P::kFamily, "_", pass.text);
      if (word == op) {
        problem.pass = pass.value;
        return problem;
      }
      known.push_back(std::move(op));
    }
    return problem_from_word<Index + 1>(word, std::move(known));
  }
  TORCH_CHECK_VALUE(false, "problem text: starts with '", word, "', ",
                    wanted_words(word, known, kInOperators));
}

[[noreturn]] void raise_unread_field(std::string_view name, std::string_view op) {
  std::vector<std::string> names = field_names(op), near;
  bool is_known = std::find(names.begin(), names.end(), name) != names.end();
  if (!is_known) near = nearest_words(name, names);
  TORCH_CHECK_VALUE(false, "problem text: the key '", name, "' is ",
                    is_known ? "out of order, or given before" : "unknown",
                    near.empty() ? "" : c10::str(" (the nearest: ", c10::Join(", ", near), ")"),
                    ", wanted in this order: ", c10::Join(", ", names));
}

uint64_t mix(uint64_t a, uint64_t b) {
  __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

const char* family_of(const Problem& problem) {
  return std::visit([](const auto& p) { return std::decay_t<decltype(p)>::kFamily; }, problem);
}

std::string pass_of(const Problem& problem) {
  return std::visit([](const auto& p) -> std::string { return name_text(p.pass); }, problem);
}

std::vector<std::string> passes_of(const Problem& problem) {
  std::vector<std::string> list;
  std::visit(
      [&](const auto& p) {
        for (const auto& name : enum_names(p.pass)) list.emplace_back(name.text);
      },
      problem);
  return list;
}

int64_t alignment_of_tensors(const Problem& problem) {
  return std::visit([](const auto& p) { return p.alignment; }, problem);
}

std::string op_of(const Problem& problem) {
  return c10::str(family_of(problem), "_", pass_of(problem));
}

std::string problem_text(const Problem& problem) {
  std::string out = op_of(problem);
  visit_fields(problem, TextWriter{out});
  return out;
}

std::vector<std::pair<std::string, std::string>> problem_fields(const Problem& problem) {
  std::vector<std::pair<std::string, std::string>> out;
  visit_fields(problem, EachField<FieldLister>{{out}});
  return out;
}

std::vector<std::string> field_names(std::string_view op) {
  std::vector<std::string> out;
  for (auto& field : field_forms(op)) out.push_back(std::move(field.first));
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> field_forms(std::string_view op) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  visit_fields(problem_from_word(op), EachField<FormLister>{{out}});
  return out;
}

Problem parse_problem(std::string_view text) {
  check_length("problem text", text);
  TextReader reader;
  std::string_view first;
  bool seen_first = false;
  while (!text.empty()) {
    size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    std::string_view token = text.substr(0, text.find_first_of(" \t\r\n"));
    if (token[0] == '#') break;  // a remark, such as which layers have this problem
    text.remove_prefix(token.size());
    if (!seen_first) {
      first = token;
      seen_first = true;
      continue;
    }
    size_t equals = token.find('=');
    TORCH_CHECK_VALUE(equals != std::string_view::npos, "problem text: '", token,
                      "' is not of the form key=value");
    reader.tokens.emplace_back(token.substr(0, equals), token.substr(equals + 1));
  }
  TORCH_CHECK_VALUE(seen_first, "problem text: it is empty");
  Problem problem = problem_from_word(first);
  std::visit(
      [&](auto& p) {
        std::decay_t<decltype(p)>::fields(p, reader);
        if (reader.next != reader.tokens.size()) {
          raise_unread_field(reader.tokens[reader.next].first, first);
        }
        p.validate();
        p.canonicalise();
      },
      problem);
  return problem;
}

void Key::finish() {
  // Two words a step, in the manner of wyhash.
  auto word = [&](int i) { return i < count_ ? static_cast<uint64_t>(words_[i]) : 0; };
  uint64_t h = 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(count_);
  for (int i = 0; i < count_; i += 2) {
    h = mix(h ^ word(i) ^ 0xA0761D6478BD642Full, word(i + 1) ^ 0xE7037ED1A0B428DBull);
  }
  hash_ = h;
}

bool Key::operator==(const Key& other) const {
  return hash_ == other.hash_ && count_ == other.count_ &&
         std::memcmp(words_.data(), other.words_.data(), sizeof(int64_t) * count_) == 0;
}

void append_key(Key& key, const Problem& problem) {
  key.push(static_cast<int64_t>(problem.index()));
  std::visit(
      [&](const auto& p) {
        key.push(static_cast<int64_t>(p.pass));
        std::decay_t<decltype(p)>::fields(p, EachField<KeyWriter<Key>>{{key}});
      },
      problem);
}

}  // namespace torch_cudnn_ext
