// Gradients of the matrix product, which are products themselves, and autocast.
#include "ops/autograd.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/library.h>

#include "ops/matmul/matmul.h"

namespace torch_cudnn_ext::matmul {
namespace {

const auto& op() { return op_of<forward>("torch_cudnn_ext::matmul"); }

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

  template <class F>
  void attributes(F&& visit) {
    visit(transpose_a, transpose_b, relu, alpha, beta, a_sizes, b_sizes, z_sizes, policy);
  }

  // alpha x y, summed to these sizes.
  Tensor product(const Tensor& x, bool transpose_x, const Tensor& y, bool transpose_y,
                 SymIntArrayRef sizes) const {
    Tensor result = op().call(x, y, {}, transpose_x, transpose_y, alpha, 0, {}, "none", policy);
    return at::sum_to(result, sizes);
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

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b,
                        const OptionalTensor& bias, bool transpose_a, bool transpose_b,
                        double alpha, double beta, const OptionalTensor& z,
                        std::string_view activation, OptionalPolicy policy) {
  const Tensor& added = or_undefined(z);
  return run_with_gradient<MatmulGradient>(
      {a, b, or_undefined(bias), added}, 1,
      below_autograd(op(), keys, a, b, bias, transpose_a, transpose_b, alpha, beta, z, activation,
                     policy),
      [&](auto& node, const auto& results) {
        MatmulGradient& g = node.gradient;
        g.transpose_a = transpose_a;
        g.transpose_b = transpose_b;
        g.alpha = alpha;
        g.beta = beta;
        g.relu = activation_of(activation) == Activation::relu;
        g.a_sizes = a.sym_sizes().vec();
        g.b_sizes = b.sym_sizes().vec();
        if (added.defined()) g.z_sizes = added.sym_sizes().vec();
        g.policy = policy_to_save(MatmulProblem::kFamily, policy);
        if (g.relu) save_result(node, results[0]);
      },
      [&](auto& node) {
        save_input(node, node.should_compute_output(1) ? a : Tensor());
        save_input(node, node.should_compute_output(0) ? b : Tensor());
      });
}

// Casts to the lower type, as PyTorch does for its own products.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& a, const Tensor& b, const OptionalTensor& bias,
                        bool transpose_a, bool transpose_b, double alpha, double beta,
                        const OptionalTensor& z, std::string_view activation,
                        OptionalPolicy policy) {
  BelowAutocast guard(device);
  auto dtype = at::autocast::get_lower_precision_fp_from_device_type(device);
  auto cast = [&](const auto& t) { return at::autocast::cached_cast(dtype, t, device); };
  return op().call(cast(a), cast(b), cast(bias), transpose_a, transpose_b, alpha, beta, cast(z),
                   activation, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) { m.impl("matmul", TORCH_FN(forward_autograd)); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("matmul", TORCH_FN(forward_autocast<at::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("matmul", TORCH_FN(forward_autocast<at::kCUDA>));
}

}  // namespace torch_cudnn_ext::matmul
