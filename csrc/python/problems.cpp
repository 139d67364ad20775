#include "core/backend.h"
#include "core/base/text.h"
#include "core/operator.h"
#include "ops/convolution/convolution.h"
#include "problems/rnn_layout.h"
#include "python/bindings.h"
#include "python/conversions.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

py::dict problem_info(const std::string& text) {
  Problem problem = parse_problem(text);
  const Operator& op = operator_of(problem);
  Cost cost = op.cost(problem);
  py::dict d, slots;
  for (const SlotSpec& slot : op.slots(problem)) {
    py::dict s;
    s["dtype"] = dtype_text(slot.spec.dtype);
    s["sizes"] = c10::IntArrayRef(slot.spec.sizes).vec();
    s["strides"] = c10::IntArrayRef(slot.spec.strides).vec();
    s["output"] = slot.is_output;
    s["mutated"] = slot.is_mutated;
    slots[role_text(slot.role)] = s;
  }
  d["text"] = problem_text(problem);
  d["family"] = family_of(problem);
  d["pass_name"] = pass_of(problem);
  d["op"] = op_of(problem);
  d["dtype"] = dtype_text(op.slots(problem)[0].spec.dtype);
  std::vector<std::string> sequence;
  if (auto forward = op.forward_of(problem)) sequence.push_back(problem_text(*forward));
  for (const Problem& next : op.coupled(problem)) sequence.push_back(problem_text(next));
  d["coupled"] = sequence;
  d["flops"] = cost.flops;
  d["bytes"] = cost.bytes;
  d["slots"] = slots;
  return d;
}

std::string canonical_algorithm(const std::string& text, const std::optional<std::string>& op) {
  if (!op) return parse_algorithm(text).text();
  auto [family, pass] = find_pass(*op);
  return resolve_algorithm(text, *op, family->legacy_names(pass)).text();
}

ConvolutionPass convolution_pass(const std::string& op) {
  auto [family, pass] = find_pass(op);
  TORCH_CHECK_VALUE(std::string_view(family->family()) == ConvolutionProblem::kFamily, "op is '",
                    op, "', wanted an operator of convolution");
  if (pass == "fwd") return ConvolutionPass::fwd;
  return pass == "bwd_data" ? ConvolutionPass::bwd_data : ConvolutionPass::bwd_filter;
}

py::list operators() {
  py::list out;
  for (const Operator* op : all_operators()) {
    py::dict d, names;
    for (const std::string& pass : op->passes()) {
      py::list list;
      int last = -1;
      for (const LegacyName& name : op->legacy_names(pass)) {
        if (name.value != last) list.append(py::make_tuple(name.value, name.enumerator, name.name));
        last = name.value;
      }
      names[py::str(pass)] = list;
    }
    py::list backends;
    for (const std::string& name : backend_names()) {
      if (find_backend(name)->find(op->family()) != nullptr) backends.append(name);
    }
    d["family"] = op->family();
    d["passes"] = op->passes();
    d["backends"] = backends;
    d["legacy_names"] = names;
    d["is_always_coupled"] = op->is_always_coupled();
    OperatorDescription text = op->description();
    d["entry_points"] = text.entry_points;
    d["dtypes"] = text.dtypes;
    d["layouts"] = text.layouts;
    d["limits"] = text.limits;
    d["examples"] = text.examples;
    py::dict batch;
    for (const BatchSize& size : op->batch_sizes()) batch[py::str(size.field)] = size.dim;
    d["batch_sizes"] = batch;
    out.append(d);
  }
  return out;
}

}  // namespace

void bind_problems(py::module_& m) {
  m.def(
      "canonical_problem",
      [](const std::string& text) { return problem_text(parse_problem(text)); }, py::arg("text"));
  m.def("problem_info", problem_info, py::arg("text"));
  m.def(
      "rnn_parameter_sizes",
      [](const std::string& text) {
        py::list sizes;
        for (const RnnParameter& one : rnn_parameters(std::get<RnnProblem>(parse_problem(text)))) {
          py::tuple size = py::make_tuple(one.rows);
          if (one.columns > 0) size = py::make_tuple(one.rows, one.columns);
          sizes.append(size);
        }
        return sizes;
      },
      py::arg("text"));
  m.def("canonical_algorithm", canonical_algorithm, py::arg("text"), py::arg("op") = py::none());
  m.def(
      "convolution_problem",
      [](const std::string& op, const at::Tensor& x, const at::Tensor& w,
         const std::vector<int64_t>& padding, const std::vector<int64_t>& stride,
         const std::vector<int64_t>& dilation, int64_t groups,
         const std::optional<std::string>& policy, bool has_bias) {
        std::optional<std::string_view> view;
        if (policy) view = *policy;
        return problem_text(convolution::make_problem(convolution_pass(op), x, w, stride, padding,
                                                      dilation, groups, has_bias, view));
      },
      py::arg("op"), py::arg("x"), py::arg("w"), py::arg("padding"), py::arg("stride"),
      py::arg("dilation"), py::arg("groups"), py::arg("policy") = py::none(),
      py::arg("has_bias") = false);
  m.attr("MAX_TEXT") = kMaxText;
  m.attr("IN_POLICIES") = kInPolicies;
  m.attr("IN_TEXTS") = kInTexts;
  m.attr("IN_OPERATORS") = kInOperators;
  m.def(
      "check_length",
      [](const std::string& what, const std::string& text) { check_length(what, text); },
      py::arg("what"), py::arg("text"));
  m.def(
      "nearest_words",
      [](const std::string& word, const std::vector<std::string>& known) {
        return nearest_words(word, known);
      },
      py::arg("word"), py::arg("known"));
  m.def(
      "wanted_words",
      [](const std::string& word, const std::vector<std::string>& known, const std::string& all) {
        return wanted_words(word, known, all);
      },
      py::arg("word"), py::arg("known"), py::arg("all"));
  m.def("operators", operators);
  m.def("families_with", families_with, py::arg("algorithm"));
}

}  // namespace torch_cudnn_ext
