#include "core/operator.h"
#include "core/policy/levels.h"
#include "core/policy/policy_text.h"
#include "core/policy/rules.h"
#include "core/select/search.h"
#include "core/tune/isolation.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

template <class T>
void set_if(py::dict& d, const char* name, const std::optional<T>& value) {
  if (value) d[name] = *value;
}

// In a text `fastest` ignores the caps of all its levels. What else it says is spelled out.
std::string text_of_levels(Policy policy, const std::string& family) {
  bool capped = policy.max_workspace_bytes || policy.max_workspace_percent;
  if (capped && policy.fastest.value_or(false)) policy.fastest.reset();
  return policy.text(family);
}

template <auto Join>
std::string joined(const std::string& stronger, const std::string& weaker,
                   const std::string& family) {
  return text_of_levels(Join(parse_policy(stronger, family), parse_policy(weaker, family)), family);
}

py::dict policy_fields(const std::string& text, const std::string& family) {
  Policy policy = parse_policy(text, family);
  py::dict d;
  for (const auto& [op, selection] : policy.selections) {
    bool own = op.rfind(family + "_", 0) == 0;
    d[py::str(own ? op.substr(family.size() + 1) : op)] = selection.text();
  }
  set_if(d, "max_workspace", policy.max_workspace_bytes);
  if (policy.max_workspace_percent) {
    d["max_workspace"] = c10::str(*policy.max_workspace_percent, "%");
  }
  for (const BooleanField& field : kBooleanFields) set_if(d, field.name, policy.*field.value);
  set_if(d, "backends", policy.backends);
  // The enumerated ones by their words, as the text spells them.
  Policy words;
  words.prefer = policy.prefer;
  words.replay = policy.replay;
  words.on_unsupported = policy.on_unsupported;
  words.on_miss = policy.on_miss;
  words.compute = policy.compute;
  std::string rest = words.text(family);
  while (!rest.empty()) {
    std::string item = rest.substr(0, rest.find(';'));
    rest = item.size() < rest.size() ? rest.substr(item.size() + 1) : "";
    d[py::str(item.substr(0, item.find('=')))] = item.substr(item.find('=') + 1);
  }
  return d;
}

void set_knobs(const std::string& policy, bool verbose, const std::string& isolate,
               std::optional<double> search_budget_s) {
  Isolation isolation = enum_value(kIsolations, "isolate", isolate);
  set_process_policy(parse_policy(policy, ConvolutionProblem::kFamily));
  set_verbose(verbose);
  set_isolation(isolation);
  if (set_search_budget(search_budget_s)) next_decision_generation();
}

bool admits_all_of(const std::string& constraints, const std::string& others,
                   const std::string& family) {
  return parse_policy(constraints, family).admits_all_of(parse_policy(others, family));
}

}  // namespace

void bind_policies(py::module_& m) {
  m.def(
      "canonical_policy",
      [](const std::string& text, const std::string& family,
         const std::optional<std::string>& written_for) {
        return parse_policy(text, family).text(written_for.value_or(family));
      },
      py::arg("text"), py::arg("family") = "conv", py::arg("written_for") = py::none());
  m.def("policy_fields", policy_fields, py::arg("text"), py::arg("family") = "conv");
  m.def("merged_policy", joined<merge>, py::arg("stronger"), py::arg("weaker"),
        py::arg("family") = "conv");
  m.def("policy_with_level", joined<apply_level>, py::arg("stronger"), py::arg("weaker"),
        py::arg("family") = "conv");
  m.def(
      "workspace_cap",
      [](const std::string& text, const std::string& device) {
        return parse_policy(text, "conv").workspace_cap(parse_device(device));
      },
      py::arg("text"), py::arg("device"));
  m.def("set_knobs", set_knobs, py::arg("policy_text"), py::arg("verbose"),
        py::arg("isolate") = "auto", py::arg("search_budget_s") = py::none());
  m.def("forget_decisions", next_decision_generation);
  m.def(
      "push_flags",
      [](const std::string& policy) {
        return push_thread_policy(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def("pop_flags", pop_thread_policy, py::arg("id"));
  m.def(
      "set_enabled_policy",
      [](const std::string& policy) {
        set_enabled_policy(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def(
      "enabled_policy", [](const std::string& family) { return enabled_policy().text(family); },
      py::arg("family") = ConvolutionProblem::kFamily);
  m.def(
      "set_cudnn_pins",
      [](const std::string& policy) {
        set_cudnn_pins(parse_policy(policy, ConvolutionProblem::kFamily));
      },
      py::arg("policy_text"));
  m.def("add_rule", add_rule, py::arg("matcher"), py::arg("use"));
  m.def("check_rule", check_rule, py::arg("matcher"), py::arg("use"));
  m.def("problems_of_rule", problems_of_rule, py::arg("id"));
  m.def("remove_rule", remove_rule, py::arg("id"));
  m.def(
      "resolved_policy",
      [](const std::optional<std::string>& policy, const std::string& family) {
        const Operator& op = find_operator(family);
        std::optional<std::string_view> view;
        if (policy) view = *policy;
        return resolve_policy(op.family(), view).text;
      },
      py::arg("policy"), py::arg("family") = "conv");
  m.def(
      "policy_for",
      [](const std::string& problem, const std::string& policy) {
        Problem parsed = parse_problem(problem);
        return text_of_levels(ruled(parsed, policy).policy, family_of(parsed));
      },
      py::arg("problem"), py::arg("policy"));
  m.def("admits_all_of", admits_all_of, py::arg("constraints"), py::arg("others"),
        py::arg("family"));
  m.def(
      "constraints_text",
      [](const std::string& text, const std::string& policy) {
        Problem problem = parse_problem(text);
        return parse_policy(policy, family_of(problem)).constraints_text(problem);
      },
      py::arg("problem"), py::arg("policy"));
}

}  // namespace torch_cudnn_ext
