// Gradients of local response and divisive normalisation.
#include "ops/autograd.h"

#include <torch/library.h>

#include "ops/lrn/lrn.h"

namespace torch_cudnn_ext::lrn {
namespace {

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::_lrn"); }
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::_lrn_backward"); }

template <class F>
void visit_form(Form& form, F&& visit) {
  visit(form.kind, form.size, form.alpha, form.beta, form.k, form.window);
}

struct LrnGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackward";
  static constexpr size_t kInputs = 2;  // input, means
  Form form;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit_form(form, visit);
    visit(policy);
  }
  // Saved: input, means, output.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto [dx, dmeans] =
        backward_op().call(grads[0], saved[0], saved[2], optional_of(saved[1]), form.kind,
                           form.size, form.alpha, form.beta, form.k, form.window, policy);
    // It has the layout of dy, as in PyTorch.
    if (needed[0] && !is_transformed(dx)) dx = dx.contiguous(grads[0].suggest_memory_format());
    return {needed[0] ? dx : Tensor(), needed[1] ? dmeans : Tensor()};
  }
  // The output, which PyTorch's own gradient does not read.
  Tensor remade(TensorList before) const {
    return forward_op().call(before[0].detach(), optional_of(before[1]), form.kind, form.size,
                             form.alpha, form.beta, form.k, form.window, policy);
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, const OptionalTensor& means,
                        std::string_view kind, int64_t size, double alpha, double beta, double k,
                        std::string_view window, OptionalPolicy policy) {
  const Tensor& m = or_undefined(means);
  return run_with_gradient<LrnGradient>(
      {input, m}, 1,
      below_autograd(forward_op(), keys, input, means, kind, size, alpha, beta, k, window, policy),
      [&](auto& node, const auto& results) {
        node.gradient.form = {std::string(kind), size, alpha, beta, k, std::string(window)};
        node.gradient.policy = policy_to_save(LrnProblem::kFamily, policy);
        save_input(node, input);
        save_input(node, m);
        save_result(node, results[0]);
      });
}

// The formula computes the output from the input, so the output is no input of its own.
struct LrnBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, means
  Form form;

  template <class F>
  void attributes(F&& visit) {
    visit_form(form, visit);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto of = [&](const std::vector<Tensor>& in) {
      auto p = make_problem(Pass::bwd, form, in[1].scalar_type(), in[2].defined());
      p.canonicalise();
      variable_list results = gradients(in[0], in[1], in[2], p);
      if (!in[2].defined()) results.pop_back();  // the result for means is empty
      return results;
    };
    return gradients_of_formula(of, saved, grads, needed);
  }
};

Tensors2 backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& input,
                           const Tensor& output, const OptionalTensor& means, std::string_view kind,
                           int64_t size, double alpha, double beta, double k,
                           std::string_view window, OptionalPolicy policy) {
  const Tensor& m = or_undefined(means);
  return run_with_gradient<LrnBackwardGradient>(
      {grad_output, input, m}, m.defined() ? 2 : 1,
      below_autograd(backward_op(), keys, grad_output, input, output, means, kind, size, alpha,
                     beta, k, window, policy),
      [&](auto& node, const auto&) {
        node.gradient.form = {std::string(kind), size, alpha, beta, k, std::string(window)};
        save_input(node, grad_output);
        save_input(node, input);
        save_input(node, m);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("_lrn", TORCH_FN(forward_autograd));
  m.impl("_lrn_backward", TORCH_FN(backward_autograd));
}

}  // namespace torch_cudnn_ext::lrn
