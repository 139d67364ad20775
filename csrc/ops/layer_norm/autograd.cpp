// Gradients of layer, RMS, instance and group norm.
#include "ops/autograd.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "ops/layer_norm/layer_norm.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

struct NormGradient {
  static constexpr const char* kName = "TorchCudnnExtNormalizeBackward";
  static constexpr size_t kInputs = 3;  // input, weight, bias
  std::string kind;
  int64_t groups = 1;
  double epsilon = 0;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(kind, groups, epsilon, policy); }
  // Saved: input, weight, mean, invstd.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto [dx, dw, dbias] =
        call_kernel({&grads[0], &saved[0], &saved[1], &saved[2], &saved[3]}, normalize_backward,
                    {grads[0], saved[0], optional_of(saved[1]), saved[2], saved[3], kind, groups,
                     bool(needed[2]), epsilon, policy});
    return {needed[0] ? dx : Tensor(), needed[1] ? dw : Tensor(), needed[2] ? dbias : Tensor()};
  }
};
Tensors3 normalize_autograd(c10::DispatchKeySet keys, const NormalizeArgs& given) {
  NormalizeArgs args = given;
  const Tensor &input = args.input, &w = or_undefined(args.weight), &b = or_undefined(args.bias);
  if (at::GradMode::is_enabled()) {
    args.statistics |= input.requires_grad() || (w.defined() && w.requires_grad()) ||
                       (b.defined() && b.requires_grad());
  }
  return run_with_gradient<NormGradient>(
      {input, w, b}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& results) {
        node.gradient.kind = args.kind;
        node.gradient.groups = args.groups;
        node.gradient.epsilon = args.epsilon;
        node.gradient.policy = policy_to_save(LayerNormProblem::kFamily, args.policy);
        for (const Tensor* t : {&input, &w}) save_input(node, *t);
        for (int i : {1, 2}) save_input(node, results[i]);
      });
}

// Differentiates the statistics too, as functions of the input.
struct NormBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtNormalizeBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, weight
  std::string kind;
  int64_t groups = 1;
  double epsilon = 0;

  auto attributes() { return std::tie(kind, groups, epsilon); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto formula = [&](const std::vector<Tensor>& in) {
      return gradients(kind_of(kind), in[0], in[1], in[2], groups, epsilon,
                       compute_dtype(in[1].scalar_type()));
    };
    variable_list given = grads;  // of results that there are
    for (size_t i : {1, 2}) {
      if (given[i].defined() && given[i].sym_numel() == 0) given[i] = Tensor();
    }
    return gradients_of_formula(formula, saved, given, needed);
  }
};
Tensors3 normalize_backward_autograd(c10::DispatchKeySet keys, const NormalizeBackwardArgs& args) {
  const Tensor& w = or_undefined(args.weight);
  return run_with_gradient<NormBackwardGradient>(
      {args.grad_output, args.input, w}, 3, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) {
        node.gradient.kind = args.kind;
        node.gradient.groups = args.groups;
        node.gradient.epsilon = args.epsilon;
        for (const Tensor* t : {&args.grad_output, &args.input, &w}) save_input(node, *t);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<normalize_autograd, normalize_backward_autograd>(m);
}

}  // namespace torch_cudnn_ext::layer_norm
