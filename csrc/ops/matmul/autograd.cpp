// Gradients of the matrix product, which are products themselves, and autocast.
#include "ops/autograd.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/library.h>

#include "ops/autocast.h"
#include "ops/call.h"
#include "ops/matmul/matmul.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::matmul {
namespace {

// The rows of all matrices as those of one. It does not call flatten, for which vmap has no rule
// here.
Tensor as_rows(const Tensor& t) {
  SymInt count = 1;
  for (int64_t i = 0; i < t.dim() - 1; ++i) count *= t.sym_size(i);
  return t.reshape_symint({count, t.sym_size(-1)});
}

struct MatmulGradient {
  static constexpr const char* kName = "TorchCudnnExtMatmulBackward";
  static constexpr size_t kInputs = 4;  // a, b, bias, z
  bool transpose_a = false, transpose_b = false, relu = false;
  double alpha = 1, beta = 0;
  std::vector<SymInt> a_sizes, b_sizes, z_sizes;
  std::optional<std::string> policy;

  auto attributes() {
    return std::tie(transpose_a, transpose_b, relu, alpha, beta, a_sizes, b_sizes, z_sizes, policy);
  }

  // alpha x y, summed to these sizes.
  Tensor product(const Tensor& x, bool transpose_x, const Tensor& y, bool transpose_y,
                 SymIntArrayRef sizes) const {
    MatmulArgs args{x, y, {}, transpose_x, transpose_y, alpha, 0, {}, "none", policy};
    return at::sum_to(call_op(args), sizes);
  }

  // `saved` is a and b, each if the other's gradient reads it, then y if relu comes last.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &a = saved[0], &b = saved[1];
    Tensor grad = relu ? at::threshold_backward(grads[0], saved[2], 0) : grads[0];
    variable_list result(kInputs);
    if (needed[0]) {
      result[0] = transpose_a ? product(b, transpose_b, grad, true, a_sizes)
                              : product(grad, false, b, !transpose_b, a_sizes);
    }
    if (needed[1]) {
      // If one matrix serves all rows of a, its gradient is one product over them.
      bool rows = b_sizes.size() == 2 && a.dim() > 2 && !transpose_a;
      Tensor x = rows ? as_rows(a) : a, dy = rows ? as_rows(grad) : grad;
      result[1] = transpose_b ? product(dy, true, x, transpose_a, b_sizes)
                              : product(x, !transpose_a, dy, false, b_sizes);
    }
    if (needed[2]) result[2] = at::sum_to(grad, grad.sym_sizes().slice(grad.dim() - 1));
    if (needed[3]) result[3] = at::sum_to(grad * beta, SymIntArrayRef(z_sizes));
    return result;
  }
};

// The gradient of relu is made of the result. If a gradient of another activation is wanted, the
// product and the activation are two steps.
Tensor forward_autograd(c10::DispatchKeySet keys, const MatmulArgs& args) {
  const Tensor &a = args.a, &b = args.b, &z = or_undefined(args.z);
  Activation activation = activation_of(args.activation);
  bool relu = activation == Activation::relu;
  if (!relu && activation != Activation::none &&
      compute_requires_grad(a, b, or_undefined(args.bias), z)) {
    MatmulArgs product{args.a,     args.b,    args.bias, args.transpose_a, args.transpose_b,
                       args.alpha, args.beta, args.z,    "none",           args.policy};
    Tensor result = forward_autograd(keys, product);
    activate(activation, result);
    return result;
  }
  return run_with_gradient<MatmulGradient>(
      {a, b, or_undefined(args.bias), z}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& results) {
        std::vector<SymInt> z_sizes;
        if (z.defined()) z_sizes = z.sym_sizes().vec();
        node.gradient = {args.transpose_a,
                         args.transpose_b,
                         relu,
                         args.alpha,
                         args.beta,
                         a.sym_sizes().vec(),
                         b.sym_sizes().vec(),
                         std::move(z_sizes),
                         policy_to_save(MatmulProblem::kFamily, args.policy)};
        if (relu) save_result(node, results[0]);
      },
      [&](auto& node) {
        save_input(node, node.should_compute_output(1) ? a : Tensor(),
                   node.should_compute_output(0) ? b : Tensor());
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) { register_kernels<forward_autograd>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<autocast<at::kCPU, MatmulArgs>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<autocast<at::kCUDA, MatmulArgs>>(m);
}

}  // namespace torch_cudnn_ext::matmul
