// Gradients of local response and divisive normalisation.
#include "ops/autograd.h"

#include <torch/library.h>

#include "ops/call.h"
#include "ops/lrn/lrn.h"

namespace torch_cudnn_ext::lrn {
namespace {

// A copy that outlives the call.
struct SavedForm : Form<std::string> {
  SavedForm() = default;
  SavedForm(const FormArgs& f)
      : Form{std::string(f.kind), f.size, f.alpha, f.beta, f.k, std::string(f.window)} {}

  FormArgs args() const { return {kind, size, alpha, beta, k, window}; }
  auto attributes() { return std::tie(kind, size, alpha, beta, k, window); }
};

struct LrnGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackward";
  static constexpr size_t kInputs = 2;  // input, means
  SavedForm form;
  std::optional<std::string> policy;

  auto attributes() { return std::tuple_cat(form.attributes(), std::tie(policy)); }
  // Saved: input, means, output.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto [dx, dmeans] = call_op(
        BackwardArgs{grads[0], saved[0], saved[2], optional_of(saved[1]), form.args(), policy});
    // It has the layout of dy, as in PyTorch.
    if (needed[0] && !is_transformed(dx)) dx = dx.contiguous(grads[0].suggest_memory_format());
    return {needed[0] ? dx : Tensor(), needed[1] ? dmeans : Tensor()};
  }
  // The output, which PyTorch's own gradient does not read.
  Tensor remade(TensorList before) const {
    return call_op(LrnArgs{before[0].detach(), optional_of(before[1]), form.args(), policy});
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const LrnArgs& a) {
  const Tensor& m = or_undefined(a.means);
  return run_with_gradient<LrnGradient>(
      {a.input, m}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient = {a.form, policy_to_save(LrnProblem::kFamily, a.policy)};
        save_input(node, a.input, m);
        save_result(node, results[0]);
      });
}

// The formula computes the output from the input, so the output is no input of its own.
struct LrnBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, means
  SavedForm form;

  auto attributes() { return form.attributes(); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto of = [&](const std::vector<Tensor>& in) {
      auto p = make_problem(Pass::bwd, form.args(), in[1].scalar_type(), in[2].defined());
      p.canonicalise();
      variable_list results = gradients(in[0], in[1], in[2], p);
      if (!in[2].defined()) results.pop_back();  // the result for means is empty
      return results;
    };
    return gradients_of_formula(of, saved, grads, needed);
  }
};

BackwardArgs::Result backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& a) {
  const Tensor& m = or_undefined(a.means);
  return run_with_gradient<LrnBackwardGradient>(
      {a.grad_output, a.input, m}, m.defined() ? 2 : 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient.form = a.form;
        save_input(node, a.grad_output, a.input, m);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, backward_autograd>(m);
}

}  // namespace torch_cudnn_ext::lrn
