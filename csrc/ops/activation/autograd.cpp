// Gradients of activations, and autograd of the operators in place.
#include "ops/autograd.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include "ops/activation/activation.h"

namespace torch_cudnn_ext::activation {
namespace {

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::activation"); }
const auto& forward_inplace_op() { return op_of<forward_inplace>("torch_cudnn_ext::activation_"); }
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::activation_backward"); }
const auto& backward_inplace_op() {
  return op_of<backward_inplace>("torch_cudnn_ext::activation_backward_");
}

// Whether nobody else can see this gradient, so that its memory may be written.
bool is_unshared(const Tensor& grad) {
  return !at::GradMode::is_enabled() && !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
         grad.use_count() == 1 && grad.has_storage() && grad.storage().use_count() == 1 &&
         is_dense(grad);
}

struct ActivationGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackward";
  static constexpr size_t kInputs = 1;
  std::string kind;
  double coefficient = 1;
  bool inplace = false;  // the gradient may be computed in place too, if nobody notices
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(kind, coefficient, inplace, policy);
  }
  // `saved` is x, undefined if it is not read, and y.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    OptionalTensor x = optional_of(saved[0]);
    if (inplace && is_unshared(grads[0])) {
      Tensor grad = grads[0];
      backward_inplace_op().call(grad, x, saved[1], kind, coefficient, policy);
      return {grad};
    }
    return {backward_op().call(grads[0], x, saved[1], kind, coefficient, policy)};
  }
  // The output. If x is saved, PyTorch's own gradient reads x alone.
  Tensor remade(TensorList before) const {
    if (!before[0].defined()) return Tensor();
    return forward_op().call(before[0].detach(), kind, coefficient, policy);
  }
};

template <class Gradient>
void set_attributes(Gradient& gradient, std::string_view kind, double coefficient,
                    OptionalPolicy policy) {
  gradient.kind = kind;
  gradient.coefficient = coefficient;
  gradient.policy = policy_to_save(ActivationProblem::kFamily, policy);
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, std::string_view kind,
                        double coefficient, OptionalPolicy policy) {
  return run_with_gradient<ActivationGradient>(
      {input}, 1, below_autograd(forward_op(), keys, input, kind, coefficient, policy),
      [&](auto& node, const auto& results) {
        set_attributes(node.gradient, kind, coefficient, policy);
        auto p = problem_of("activation", input, kind, coefficient, Pass::bwd);
        save_input(node, p.from_output ? Tensor() : input);
        save_result(node, results[0]);
      });
}

// The tensor becomes the result of its own node. Only swish's gradient needs what was overwritten;
// it keeps a copy, as PyTorch's does.
void forward_inplace_autograd(c10::DispatchKeySet keys, Tensor& input, std::string_view kind,
                              double coefficient, OptionalPolicy policy) {
  using namespace torch::autograd;
  bool wanted = compute_requires_grad(input);
  check_inplace(input, wanted);
  TORCH_CHECK_NOT_IMPLEMENTED(!isFwGradDefined(input), ActivationGradient::kName,
                              ": forward-mode AD is not supported by this operator");
  std::shared_ptr<GradientNode<ActivationGradient>> node;
  Tensor before;
  if (wanted) {
    auto p = problem_of("activation_", input, kind, coefficient);
    TORCH_CHECK_VALUE(p.kind != ActivationKind::elu || coefficient >= 0,
                      "torch_cudnn_ext::activation_: coefficient is ", coefficient,
                      ", wanted an alpha of at least 0: elu's gradient in place is computed from "
                      "its output");
    if (p.kind == ActivationKind::swish) before = input.clone();  // with its own history
    node = std::shared_ptr<GradientNode<ActivationGradient>>(new GradientNode<ActivationGradient>(),
                                                             deleteNode);
    node->set_next_edges(collect_next_edges(input));
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    forward_inplace_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, kind,
                                    coefficient, policy);
  }
  increment_version(input);
  if (!node) return;
  rebase_history(input, node);
  set_attributes(node->gradient, kind, coefficient, policy);
  node->gradient.inplace = true;
  save_input(*node, before);
  save_result(*node, input);
}

struct ActivationBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, output
  std::string kind;
  double coefficient = 1;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(kind, coefficient, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &dy = saved[0], &y = saved[1];
    Tensor x = saved.size() > 2 ? saved[2] : Tensor();
    variable_list result(3);
    if (needed[0]) result[0] = backward_op().call(grads[0], x, y, kind, coefficient, policy);
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

Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                         const OptionalTensor& input, const Tensor& output, std::string_view kind,
                         double coefficient, OptionalPolicy policy) {
  return run_with_gradient<ActivationBackwardGradient>(
      {grad_output, or_undefined(input), output}, 1,
      below_autograd(backward_op(), keys, grad_output, input, output, kind, coefficient, policy),
      [&](auto& node, const auto&) {
        set_attributes(node.gradient, kind, coefficient, policy);
        save_input(node, grad_output);
        save_input(node, output);
        if (has(input)) save_input(node, *input);
      });
}

void backward_inplace_autograd(c10::DispatchKeySet keys, Tensor& grad_output,
                               const OptionalTensor& input, const Tensor& output,
                               std::string_view kind, double coefficient, OptionalPolicy policy) {
  using namespace torch::autograd;
  TORCH_CHECK(!compute_requires_grad(grad_output, input, output),
              "torch_cudnn_ext::activation_backward_: it is not differentiable, wanted tensors "
              "that require no gradient; use activation_backward");
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    backward_inplace_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, grad_output, input,
                                     output, kind, coefficient, policy);
  }
  increment_version(grad_output);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("activation", TORCH_FN(forward_autograd));
  m.impl("activation_", TORCH_FN(forward_inplace_autograd));
  m.impl("activation_backward", TORCH_FN(backward_autograd));
  m.impl("activation_backward_", TORCH_FN(backward_inplace_autograd));
}

}  // namespace torch_cudnn_ext::activation
