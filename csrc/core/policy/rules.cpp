#include "core/policy/rules.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/policy/policy_text.h"
#include "problems/field_forms.h"

namespace torch_cudnn_ext {

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;  // name, text

struct Rule {
  int64_t id;
  std::string op;
  Fields globs;
  Policy use;
  std::string text;
  std::set<std::string> problems;  // that it matched
};

std::atomic<size_t> rule_count{0};  // read without the lock, so that no call waits if there is none
std::mutex mutex;                   // guards what follows
auto& rules() {
  static auto* list = new std::vector<Rule>();
  return *list;
}
Policy& pins_of_cudnn() {
  static auto* pins = new Policy();
  return *pins;
}

bool matches(const Rule& rule, const std::string& op, const Fields& fields) {
  if (rule.op != op) return false;
  return std::all_of(rule.globs.begin(), rule.globs.end(), [&](const auto& glob) {
    return std::any_of(fields.begin(), fields.end(), [&](const auto& field) {
      return field.first == glob.first && glob_matches(glob.second, field.second);
    });
  });
}

// The numbers of a list such as "1,2"; empty if the text is none.
std::vector<double> numbers_of(std::string_view text) {
  std::vector<double> numbers;
  while (true) {
    std::string_view word = text.substr(0, text.find(','));
    double value = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return {};
    numbers.push_back(value);
    if (word.size() == text.size()) return numbers;
    text.remove_prefix(word.size() + 1);
  }
}

// Whether two texts say the same numbers: "1,1" and "1", or "0.0001" and "1e-04".
bool same_numbers(std::string_view a, std::string_view b) {
  std::vector<double> first = numbers_of(a), second = numbers_of(b);
  if (first.empty() || second.empty()) return false;
  if (second.size() == 1) second.resize(first.size(), second[0]);
  return first == second;
}

// The spelling that problems give to a field's numbers, found by way of the operator's examples.
std::string canonical_value(const std::string& op, const std::string& key, std::string value) {
  if (numbers_of(value).empty()) return value;
  for (const std::string& example : find_pass(op).first->description().examples) {
    std::map<std::string, std::string> fields;
    std::istringstream words(example.substr(example.find(' ')));
    for (std::string word; words >> word;) {
      size_t equals = word.find('=');
      fields[word.substr(0, equals)] = word.substr(equals + 1);
    }
    fields[key] = value;
    std::string line = op;
    for (const std::string& name : field_names(op)) {
      if (fields.count(name) != 0) line += c10::str(" ", name, "=", fields[name]);
    }
    try {
      for (auto& [name, text] : problem_fields(parse_problem(line))) {
        if (name == key && same_numbers(value, text)) return text;
      }
    } catch (const c10::Error&) {
      continue;  // the example does not take this value
    }
  }
  return value;
}

// Throws for a glob that no problem's field matches: its rule would have no effect.
void check_glob(const std::string& glob, const std::string& key,
                const std::vector<std::string>& forms) {
  bool can = std::any_of(forms.begin(), forms.end(),
                         [&](const std::string& form) { return glob_can_match(glob, form); });
  if (can) return;
  bool of_words = std::all_of(forms.begin(), forms.end(), [](const std::string& form) {
    return form.find(kNumbers) == std::string::npos && form.find(':') == std::string::npos;
  });
  std::string wanted;
  if (of_words) {
    std::vector<std::string> words;
    for (const std::string& form : forms) {
      if (!form.empty()) words.push_back(form);
    }
    wanted = wanted_words(glob, words, kInTexts);
  } else if (forms.front().front() == kNumbers) {
    wanted = "wanted a number, or a list of numbers such as 1,2, in which * and ? may stand";
  } else if (forms.front().front() == ':') {
    wanted = "wanted a layout: :nchw, :nhwc or :s(strides), in which * and ? may stand";
  } else {
    wanted = c10::str("wanted dtype[sizes]:layout, in which * and ? may stand, e.g. ", key,
                      "=*[64,64,3,3]*");
  }
  TORCH_CHECK_VALUE(false, "when: '", key, "=", glob, "' can match no problem, ", wanted);
}

// Throws unless a rule for an operator and pass may use this policy.
void check_use(const Policy& policy, const std::string& op, std::string_view use) {
  TORCH_CHECK_VALUE(!policy.compute.is_set(), "when: use='", use,
                    "' sets compute, which is part of the problem that a rule matches, wanted an "
                    "algorithm, autotune, heuristic, or constraints");
  for (const auto& [other, selection] : policy.selections) {
    TORCH_CHECK_VALUE(other == op, "when: use='", use, "' selects for ", other,
                      ", but the rule is for ", op);
    TORCH_CHECK_VALUE(!selection.is_once(), "when: use='", use,
                      "' is state of a module, wanted heuristic or autotune");
  }
}

Rule parse_rule(std::string_view matcher, std::string_view use) {
  check_length("when: matcher", matcher);
  std::vector<std::string> words;
  std::istringstream text{std::string(matcher)};
  for (std::string word; std::getline(text, word, ' ');) {
    if (!word.empty()) words.push_back(word);
  }
  TORCH_CHECK_VALUE(!words.empty(),
                    "when: the matcher is empty, wanted an operator and pass, then "
                    "key=glob pairs: 'conv_fwd w=*[64,64,3,3]* pad=1'");
  Rule rule{0, words[0], {}, {}, "", {}};
  auto fields = field_forms(rule.op);
  std::vector<std::string> names;
  for (const auto& field : fields) names.push_back(field.first);
  for (size_t i = 1; i < words.size(); ++i) {
    size_t equals = words[i].find('=');
    TORCH_CHECK_VALUE(equals != std::string::npos, "when: '", words[i],
                      "' is not of the form key=glob");
    std::string key = words[i].substr(0, equals);
    auto field = std::find_if(fields.begin(), fields.end(),
                              [&](const auto& one) { return one.first == key; });
    TORCH_CHECK_VALUE(field != fields.end(), "when: ", rule.op, " has no field '", key, "', ",
                      wanted_words(key, names, kInTexts));
    for (const auto& glob : rule.globs) {
      TORCH_CHECK_VALUE(glob.first != key, "when: '", matcher, "' has the field '", key,
                        "' twice, wanted it once");
    }
    std::string glob = canonical_value(rule.op, key, words[i].substr(equals + 1));
    check_glob(glob, key, field->second);
    rule.globs.emplace_back(key, std::move(glob));
  }
  rule.use = parse_policy_of(rule.op, use);
  check_use(rule.use, rule.op, use);
  rule.text = c10::Join(" ", words);
  return rule;
}

std::vector<Rule>::iterator find_rule(int64_t id) {
  auto found =
      std::find_if(rules().begin(), rules().end(), [&](const Rule& rule) { return rule.id == id; });
  TORCH_CHECK_VALUE(found != rules().end(), "when: this rule was removed before");
  return found;
}

// `is_own`: it is the problem that is decided, not one that shares its algorithm.
RuledPolicy rules_for_one(const Problem& problem, bool is_own) {
  RuledPolicy out;
  std::lock_guard<std::mutex> lock(mutex);
  std::string op = op_of(problem);
  Fields fields = problem_fields(problem);
  for (auto rule = rules().rbegin(); rule != rules().rend(); ++rule) {
    if (!matches(*rule, op, fields)) continue;
    bool open = out.source.empty() && !out.policy.fastest.value_or(false);
    if (open && !rule->use.selections.empty()) out.source = rule->text;
    out.policy = apply_level(out.policy, rule->use);
    out.any = true;
    if (is_own) rule->problems.insert(problem_text(problem));
  }
  return out;
}

}  // namespace

int64_t add_rule(std::string_view matcher, std::string_view use) {
  Rule rule = parse_rule(matcher, use);
  static int64_t next_id = 0;
  std::lock_guard<std::mutex> lock(mutex);
  rule.id = next_id++;
  rules().push_back(std::move(rule));
  rule_count = rules().size();
  next_decision_generation();
  return rules().back().id;
}

std::string check_rule(std::string_view matcher, std::string_view use) {
  return parse_rule(matcher, use).use.text("");
}

int64_t problems_of_rule(int64_t id) {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(find_rule(id)->problems.size());
}

void remove_rule(int64_t id) {
  std::lock_guard<std::mutex> lock(mutex);
  rules().erase(find_rule(id));
  rule_count = rules().size();
  next_decision_generation();
}

RuledPolicy rules_for(const Problem& problem) {
  RuledPolicy out = rules_for_one(problem, true);
  for (const Problem& next : operator_of(problem).coupled(problem)) {
    RuledPolicy more = rules_for_one(next, false);
    out.any |= more.any;
    out.policy = merge(out.policy, more.policy);
    if (out.source.empty()) out.source = more.source;
  }
  return out;
}

const ResolvedPolicy& with_rules(const Problem& problem, const ResolvedPolicy& policy) {
  if (rule_count.load(std::memory_order_relaxed) == 0) return policy;
  RuledPolicy rules = rules_for(problem);
  return rules.any ? add_rules(policy, rules.policy, family_of(problem)) : policy;
}

void set_cudnn_pins(Policy pins) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    const char* family = ConvolutionProblem::kFamily;
    if (pins.text(family) == pins_of_cudnn().text(family)) return;  // decisions stay
    pins_of_cudnn() = std::move(pins);
  }
  next_decision_generation();
}

Policy cudnn_pins() {
  std::lock_guard<std::mutex> lock(mutex);
  return pins_of_cudnn();
}

}  // namespace torch_cudnn_ext
