#include "core/policy/policy_words.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "core/backend.h"
#include "core/base/text.h"

namespace torch_cudnn_ext {

namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '_';
  });
}

// "cpu:im2col" of "im2col".
std::vector<std::string> with_backends(std::string_view name, const std::string& family) {
  std::vector<std::string> found;
  for (const char* backend : {"aten", "cpu"}) {
    std::string algorithm = c10::str(backend, ":", name);
    std::vector<std::string> families = families_with(algorithm);
    bool has = std::find(families.begin(), families.end(), family) != families.end();
    if (has) found.push_back(std::move(algorithm));
  }
  return found;
}

}  // namespace

std::vector<NamedPass> all_passes() {
  std::vector<NamedPass> list;
  for (const Operator* op : all_operators()) {
    for (const std::string& pass : op->passes()) {
      list.push_back({op, pass, c10::str(op->family(), "_", pass)});
    }
  }
  return list;
}

std::vector<std::string> selections_of(std::string_view text, const Operator& op,
                                       const std::string& pass) {
  std::vector<std::string> known;
  bool has_backend = text.find(':') != std::string_view::npos;
  if (!has_backend) {
    for (const auto& word : kSelections) known.emplace_back(word.text);
    for (const BooleanField& field : kBooleanFields) known.emplace_back(field.name);
    if (is_name(text)) {
      for (std::string& each : with_backends(text, op.family())) known.push_back(std::move(each));
    }
  }
  std::string prefix = has_backend ? "legacy:" : "";
  for (const LegacyName& name : op.legacy_names(pass)) {
    known.push_back(prefix + name.name);
    if (name.theano_name != nullptr) known.push_back(prefix + name.theano_name);
    known.push_back(prefix + name.enumerator);
  }
  return known;
}

std::string other_families_with(const Algorithm& algorithm, const Operator& op) {
  std::string name = c10::str(algorithm.backend, ":", algorithm.name);
  std::vector<std::string> families = families_with(name);
  bool is_own = std::find(families.begin(), families.end(), op.family()) != families.end();
  if (is_own || families.empty()) return "";
  for (std::string& family : families) family += c10::str(" (", family, "=", name, ")");
  return "; it is an algorithm of " + c10::Join(", ", families);
}

std::string suggestion(std::string_view text, const std::vector<std::string>& known) {
  std::vector<std::string> fitting;
  for (const NamedPass& each : all_passes()) {
    try {
      resolve_algorithm(text, each.name, each.op->legacy_names(each.pass));
      fitting.push_back(each.name);
    } catch (const c10::ValueError&) {
      continue;  // it is none of this pass
    }
  }
  if (!fitting.empty()) return "; it is one of " + c10::Join(", ", fitting);
  std::vector<std::string> near = nearest_words(text.substr(0, text.find('/')), known);
  return near.empty() ? "" : "; the nearest: " + c10::Join(", ", near);
}

std::vector<std::string> known_keys(const std::string& family) {
  std::vector<std::string> known(std::begin(kValueKeys), std::end(kValueKeys));
  for (const BooleanField& field : kBooleanFields) known.emplace_back(field.name);
  for (const std::string& pass : find_operator(family).passes()) known.push_back(pass);
  for (const Operator* op : all_operators()) {
    known.emplace_back(op->family());
    for (const std::string& pass : op->passes()) known.push_back(c10::str(op->family(), "_", pass));
  }
  return known;
}

}  // namespace torch_cudnn_ext
