// Kernels, schemas and gradients of grids under affine maps. Each pass is linear, and is the
// gradient of the other.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "ops/autograd.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::affine_grid {
namespace {

void check_size(const char* op, SymIntArrayRef size) {
  TORCH_CHECK_VALUE(size.size() == 4 || size.size() == 5, "torch_cudnn_ext::", op, ": size is ",
                    size, ", wanted [N, C, H, W] or [N, C, D, H, W]");
  for (const SymInt& n : size) {
    TORCH_CHECK_VALUE(n >= 1, "torch_cudnn_ext::", op, ": size is ", size,
                      ", wanted at least 1 in all dimensions");
  }
}

std::vector<SymInt> theta_sizes(SymIntArrayRef size) {
  auto dims = static_cast<int64_t>(size.size()) - 2;
  return {size[0], dims, dims + 1};
}

std::vector<SymInt> grid_sizes(SymIntArrayRef size) {
  std::vector<SymInt> sizes{size[0]};
  sizes.insert(sizes.end(), size.begin() + 2, size.end());
  sizes.emplace_back(static_cast<int64_t>(size.size()) - 2);
  return sizes;
}

void check_tensor(const char* op, const char* name, const Tensor& t,
                  const std::vector<SymInt>& wanted, SymIntArrayRef size) {
  check_dtype(op, name, t);
  TORCH_CHECK_VALUE(t.sym_sizes() == SymIntArrayRef(wanted), "torch_cudnn_ext::", op, ": ", name,
                    " has sizes ", t.sym_sizes(), ", wanted ", SymIntArrayRef(wanted), " for size ",
                    size);
}

Tensor run(Pass pass, const Tensor& theta, const Tensor& grid, bool align_corners,
           OptionalPolicy policy) {
  AffineGridProblem p;
  p.pass = pass;
  p.theta = spec_of(theta);
  p.grid = spec_of(grid);
  p.grid.strides = contiguous_strides(p.grid.sizes);
  p.align_corners = align_corners;
  p.canonicalise();
  p.alignment = alignment_of({&theta, &grid});
  Bindings bindings;
  bool forward = pass == Pass::fwd;
  bindings[forward ? Role::x : Role::dx] = theta;
  bindings[forward ? Role::grid : Role::dgrid] = grid;
  run_problem(p, policy, theta, bindings);
  return forward ? grid : theta;
}

Tensor forward_meta(const Tensor& theta, SymIntArrayRef size, bool, OptionalPolicy) {
  check_size("affine_grid", size);
  check_tensor("affine_grid", "theta", theta, theta_sizes(size), size);
  return at::empty_symint(grid_sizes(size), theta.options());
}

Tensor forward(const Tensor& theta, SymIntArrayRef size, bool align_corners,
               OptionalPolicy policy) {
  Tensor grid = forward_meta(theta, size, align_corners, policy);
  c10::OptionalDeviceGuard guard(theta.device());
  return run(Pass::fwd, theta.contiguous(), grid, align_corners, policy);
}

Tensor backward_meta(const Tensor& grad_grid, SymIntArrayRef size, bool, OptionalPolicy) {
  check_size("affine_grid_backward", size);
  check_tensor("affine_grid_backward", "grad_grid", grad_grid, grid_sizes(size), size);
  return at::empty_symint(theta_sizes(size), grad_grid.options());
}

Tensor backward(const Tensor& grad_grid, SymIntArrayRef size, bool align_corners,
                OptionalPolicy policy) {
  Tensor grad_theta = backward_meta(grad_grid, size, align_corners, policy);
  c10::OptionalDeviceGuard guard(grad_grid.device());
  return run(Pass::bwd, grad_theta, grad_grid.contiguous(), align_corners, policy);
}

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::affine_grid"); }
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::affine_grid_backward"); }

template <bool is_forward>
struct AffineGridGradient {
  static constexpr const char* kName =
      is_forward ? "TorchCudnnExtAffineGridBackward" : "TorchCudnnExtAffineGridBackwardBackward";
  static constexpr size_t kInputs = 1;
  std::vector<SymInt> size;
  bool align_corners = false;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(size, align_corners, policy);
  }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {
        (is_forward ? backward_op() : forward_op()).call(grads[0], size, align_corners, policy)};
  }
};

template <bool is_forward>
Tensor autograd(c10::DispatchKeySet keys, const Tensor& input, SymIntArrayRef size,
                bool align_corners, OptionalPolicy policy) {
  return run_with_gradient<AffineGridGradient<is_forward>>(
      {input}, 1,
      below_autograd(is_forward ? forward_op() : backward_op(), keys, input, size, align_corners,
                     policy),
      [&](auto& node, const auto&) {
        node.gradient.size = size.vec();
        node.gradient.align_corners = align_corners;
        node.gradient.policy = policy_to_save(AffineGridProblem::kFamily, policy);
      });
}

// PyTorch's implementation is a matrix product, which autocast lowers.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& theta, SymIntArrayRef size, bool align_corners,
                        OptionalPolicy policy) {
  BelowAutocast guard(device);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  return forward_op().call(at::autocast::cached_cast(dtype, theta, device), size, align_corners,
                           policy);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward, forward_meta>(
      m,
      "affine_grid(Tensor theta, SymInt[] size, bool align_corners, *, str? policy=None) -> Tensor",
      tags());
  define_operator<backward, backward_meta>(
      m,
      "affine_grid_backward(Tensor grad_grid, SymInt[] size, bool align_corners, *, str? "
      "policy=None) -> Tensor",
      tags());
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("affine_grid", TORCH_FN(autograd<true>));
  m.impl("affine_grid_backward", TORCH_FN(autograd<false>));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("affine_grid", TORCH_FN(forward_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("affine_grid", TORCH_FN(forward_autocast<c10::kCUDA>));
}

}  // namespace torch_cudnn_ext::affine_grid
