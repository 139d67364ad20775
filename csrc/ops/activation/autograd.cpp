// Gradients of activations, and autograd of the operators in place.
#include "ops/autograd.h"

#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "ops/activation/activation.h"
#include "ops/call.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::activation {
namespace {

std::optional<std::string> saved_policy(OptionalPolicy policy) {
  return policy_to_save(ActivationProblem::kFamily, policy);
}

// Whether nobody else can see this gradient, so that its memory may be written.
bool is_unshared(const Tensor& grad) {
  return !at::GradMode::is_enabled() && !has_dispatch_mode() && grad.use_count() == 1 &&
         grad.has_storage() && grad.storage().use_count() == 1 && is_dense(grad);
}

struct ActivationGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackward";
  static constexpr size_t kInputs = 1;
  std::string kind;
  double coefficient = 1;
  bool inplace = false;  // the gradient may be computed in place too, if nobody notices
  std::optional<std::string> policy;

  auto attributes() { return std::tie(kind, coefficient, inplace, policy); }
  // `saved` is x, undefined if it is not read, and y.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    OptionalTensor x = optional_of(saved[0]);
    if (inplace && is_unshared(grads[0])) {
      Tensor grad = grads[0];
      call_op(BackwardArgs<true>{grad, x, saved[1], kind, coefficient, policy});
      return {grad};
    }
    return {call_op(BackwardArgs<false>{grads[0], x, saved[1], kind, coefficient, policy})};
  }
  // The output. If x is saved, PyTorch's own gradient reads x alone.
  Tensor remade(TensorList before) const {
    if (!before[0].defined()) return Tensor();
    return call_op(ForwardArgs<false>{before[0].detach(), kind, coefficient, policy});
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const ForwardArgs<false>& a) {
  return run_with_gradient<ActivationGradient>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient = {std::string(a.kind), a.coefficient, false, saved_policy(a.policy)};
        auto p = problem_of(a.kName, a.input, a.kind, a.coefficient, Pass::bwd);
        save_input(node, p.from_output ? Tensor() : a.input);
        save_result(node, results[0]);
      });
}

// Runs an operator that writes into an argument below autograd.
template <class Args>
void redispatch_inplace(c10::DispatchKeySet keys, const Args& args) {
  at::AutoDispatchBelowADInplaceOrView guard;
  redispatch(keys, args, c10::after_ADInplaceOrView_keyset);
  increment_version(std::get<0>(args.tied()));
}

// The tensor becomes the result of its own node. Only swish's gradient needs what was overwritten;
// it keeps a copy, as PyTorch's does.
void forward_inplace_autograd(c10::DispatchKeySet keys, const ForwardArgs<true>& a) {
  using Node = GradientNode<ActivationGradient>;
  bool wanted = compute_requires_grad(a.input);
  check_inplace(a.input, wanted);
  TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent(a.input), ActivationGradient::kName,
                              ": forward-mode AD is not supported by this operator");
  NodePtr<Node> node;
  Tensor before;
  if (wanted) {
    auto p = problem_of(a.kName, a.input, a.kind, a.coefficient);
    TORCH_CHECK_VALUE(p.kind != ActivationKind::elu || a.coefficient >= 0,
                      "torch_cudnn_ext::activation_: coefficient is ", a.coefficient,
                      ", wanted an alpha of at least 0: elu's gradient in place is computed from "
                      "its output");
    if (p.kind == ActivationKind::swish) before = a.input.clone();  // with its own history
    node = make_node<Node>();
    node->set_next_edges(collect_next_edges(a.input));
  }
  redispatch_inplace(keys, a);
  if (!node) return;
  rebase_history(a.input, node);
  node->gradient = {std::string(a.kind), a.coefficient, true, saved_policy(a.policy)};
  save_input(*node, before);
  save_result(*node, a.input);
}

struct ActivationBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, output
  std::string kind;
  double coefficient = 1;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(kind, coefficient, policy); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &dy = saved[0], &y = saved[1];
    Tensor x = saved.size() > 2 ? saved[2] : Tensor();
    variable_list result(3);
    if (needed[0]) {
      result[0] = call_op(BackwardArgs<false>{grads[0], x, y, kind, coefficient, policy});
    }
    auto p = problem_of("activation_backward", y, kind, coefficient, Pass::bwd, !x.defined());
    size_t read = p.from_output ? 2 : 1;  // the input that the gradient reads
    if (!needed[read]) return result;
    auto formula = [&](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
      return {p.from_output ? backward_formula(p, inputs[0], {}, inputs[1])
                            : backward_formula(p, inputs[0], inputs[1], y)};
    };
    const Tensor& at = p.from_output ? y : x;
    Tensor found = gradients_of_formula(formula, {dy, at}, grads, {false, true})[1];
    result[read] = found.defined() ? found : at::zeros_like(at);
    return result;
  }
};

Tensor backward_autograd(c10::DispatchKeySet keys, const BackwardArgs<false>& a) {
  return run_with_gradient<ActivationBackwardGradient>(
      {a.grad_output, or_undefined(a.input), a.output}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {std::string(a.kind), a.coefficient, saved_policy(a.policy)};
        save_input(node, a.grad_output, a.output);
        if (has(a.input)) save_input(node, *a.input);
      });
}

void backward_inplace_autograd(c10::DispatchKeySet keys, const BackwardArgs<true>& a) {
  TORCH_CHECK(!compute_requires_grad(a.grad_output, a.input, a.output),
              "torch_cudnn_ext::activation_backward_: it is not differentiable, wanted tensors "
              "that require no gradient; use activation_backward");
  redispatch_inplace(keys, a);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, forward_inplace_autograd, backward_autograd,
                   backward_inplace_autograd>(m);
}

}  // namespace torch_cudnn_ext::activation
