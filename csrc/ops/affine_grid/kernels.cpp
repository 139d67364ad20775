// Kernels, schemas, gradients and autocast of grids under affine maps. Each pass is linear, and is
// the gradient of the other.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "ops/autocast.h"
#include "ops/autograd.h"
#include "ops/call.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::affine_grid {
namespace {

// `input` is theta, or the gradient of the grid.
template <bool is_forward>
struct GridArgs {
  static constexpr const char* kName = is_forward ? "affine_grid" : "affine_grid_backward";
  using Result = Tensor;
  const Tensor& input;
  SymIntArrayRef size;
  bool align_corners;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, size, align_corners, policy); }
};

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

template <bool is_forward>
void check_arguments(const GridArgs<is_forward>& a) {
  SymIntArrayRef size = a.size;
  TORCH_CHECK_VALUE(size.size() == 4 || size.size() == 5, "torch_cudnn_ext::", a.kName,
                    ": size is ", size, ", wanted [N, C, H, W] or [N, C, D, H, W]");
  for (const SymInt& n : size) {
    TORCH_CHECK_VALUE(n >= 1, "torch_cudnn_ext::", a.kName, ": size is ", size,
                      ", wanted at least 1 in all dimensions");
  }
  const char* name = is_forward ? "theta" : "grad_grid";
  check_dtype(a.kName, name, a.input);
  std::vector<SymInt> wanted = is_forward ? theta_sizes(size) : grid_sizes(size);
  TORCH_CHECK_VALUE(a.input.sym_sizes() == SymIntArrayRef(wanted), "torch_cudnn_ext::", a.kName,
                    ": ", name, " has sizes ", a.input.sym_sizes(), ", wanted ",
                    SymIntArrayRef(wanted), " for size ", size);
}

// An empty result.
template <bool is_forward>
Tensor meta(const GridArgs<is_forward>& a) {
  check_arguments(a);
  auto sizes = is_forward ? grid_sizes(a.size) : theta_sizes(a.size);
  return at::empty_symint(sizes, a.input.options());
}

template <bool is_forward>
Tensor run(const GridArgs<is_forward>& a) {
  Tensor result = meta(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  Tensor input = a.input.contiguous();
  const Tensor &theta = is_forward ? input : result, &grid = is_forward ? result : input;
  AffineGridProblem p;
  p.pass = is_forward ? Pass::fwd : Pass::bwd;
  p.theta = spec_of(theta);
  p.grid = spec_of(grid);
  p.grid.strides = contiguous_strides(p.grid.sizes);
  p.align_corners = a.align_corners;
  p.canonicalise();
  p.alignment = alignment_of({&theta, &grid});
  Bindings bindings;
  bindings[is_forward ? Role::x : Role::dx] = theta;
  bindings[is_forward ? Role::grid : Role::dgrid] = grid;
  run_problem(p, a.policy, theta, bindings);
  return result;
}

template <bool is_forward>
struct AffineGridGradient {
  static constexpr const char* kName =
      is_forward ? "TorchCudnnExtAffineGridBackward" : "TorchCudnnExtAffineGridBackwardBackward";
  static constexpr size_t kInputs = 1;
  std::vector<SymInt> size;
  bool align_corners = false;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(size, align_corners, policy); }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_op(GridArgs<!is_forward>{grads[0], size, align_corners, policy})};
  }
};

template <bool is_forward>
Tensor autograd(c10::DispatchKeySet keys, const GridArgs<is_forward>& a) {
  return run_with_gradient<AffineGridGradient<is_forward>>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {a.size.vec(), a.align_corners,
                         policy_to_save(AffineGridProblem::kFamily, a.policy)};
      });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m, {"affine_grid(Tensor theta, SymInt[] size, bool align_corners, *, str? policy=None) -> "
             "Tensor",
             "affine_grid_backward(Tensor grad_grid, SymInt[] size, bool align_corners, *, str? "
             "policy=None) -> Tensor"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<run<true>, run<false>>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<run<true>, run<false>>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<meta<true>, meta<false>>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<autograd<true>, autograd<false>>(m);
}
// PyTorch's implementation is a matrix product, which autocast lowers.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<autocast<c10::kCPU, GridArgs<true>>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<autocast<c10::kCUDA, GridArgs<true>>>(m);
}

}  // namespace torch_cudnn_ext::affine_grid
