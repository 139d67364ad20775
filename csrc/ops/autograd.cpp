#include "ops/autograd.h"

#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/autograd.h>

namespace torch_cudnn_ext {

Tensor with_strides_of_parameter(Tensor gradient, SymIntArrayRef strides) {
  SymIntArrayRef sizes = gradient.sym_sizes(), own = gradient.sym_strides();
  if (own == strides || is_transformed(gradient)) return gradient;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && own[i] != strides[i]) return gradient;
  }
  if (!is_plain_call({&gradient})) return gradient.as_strided_symint(sizes, strides);
  return strided_view(gradient, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

// A tensor left over from a transform of torch.func claims to require a gradient, but has no
// history. An alias of it tells.
Tensor variable_of(const Tensor& t, bool create_graph) {
  if (create_graph && t.requires_grad()) {
    Tensor variable = at::alias(t);
    if (variable.requires_grad()) return variable;
  }
  return t.detach().requires_grad_();
}

namespace {

bool has_history(TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    return t.defined() && t.requires_grad() && at::alias(t).requires_grad();
  });
}

}  // namespace

variable_list gradients_of_formula(const Formula& formula, TensorList inputs,
                                   const variable_list& grads, const Needed& needed) {
  bool create_graph = c10::GradMode::is_enabled();
  AutogradGuard on;
  create_graph = create_graph && (has_history(inputs) || has_history(grads));
  std::optional<NoSavedTensorHooks> no_hooks;
  if (!create_graph) no_hooks.emplace();
  std::vector<Tensor> arguments = inputs.vec();
  variable_list wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!needed[i]) continue;
    arguments[i] = variable_of(inputs[i], create_graph);
    wanted.push_back(arguments[i]);
  }
  variable_list outputs, weights;
  std::vector<Tensor> results = formula(arguments);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i >= grads.size() || !grads[i].defined() || !results[i].requires_grad()) continue;
    outputs.push_back(results[i]);
    weights.push_back(grads[i]);
  }
  variable_list gradients(inputs.size());
  if (wanted.empty() || outputs.empty()) return gradients;
  variable_list found =
      torch::autograd::grad(outputs, wanted, weights, std::nullopt, create_graph, true);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needed[i]) gradients[i] = found[next++];
  }
  return gradients;
}

}  // namespace torch_cudnn_ext
