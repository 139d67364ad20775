// Grids under affine maps: argument checks, Problem, gradients, and what the core must know of
// them.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "core/select/execute.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

void AffineGridProblem::validate() const {
  check_sizes("affine_grid", "theta", theta, 3, 3);
  check_sizes("affine_grid", "grid", grid, 4, 5);
  int64_t dims = grid.sizes.size() - 2;
  TORCH_CHECK_VALUE(
      theta.sizes[1] == dims && theta.sizes[2] == dims + 1 && theta.sizes[0] == grid.sizes[0] &&
          grid.sizes[grid.sizes.size() - 1] == dims,
      "affine_grid: theta and grid do not belong together, wanted [N,d,d+1] and [N,*space,d]");
  TORCH_CHECK_VALUE(theta.dtype == grid.dtype, "affine_grid: grid is ", dtype_text(grid.dtype),
                    ", wanted theta's dtype ", dtype_text(theta.dtype));
  for (const TensorSpec* t : {&theta, &grid}) {
    TORCH_CHECK_VALUE(t->strides == contiguous_strides(t->sizes),
                      "affine_grid: ", t == &theta ? "theta" : "grid",
                      " has strides of its own, wanted :nchw");
  }
  check_alignment("affine_grid", alignment, theta.dtype);
}

namespace affine_grid {
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
  execute(p, resolve_policy(AffineGridProblem::kFamily, policy), device_of(theta.device()),
          bindings);
  return forward ? grid : theta;
}

Tensor forward(const Tensor& theta, SymIntArrayRef size, bool align_corners,
               OptionalPolicy policy) {
  check_size("affine_grid", size);
  check_tensor("affine_grid", "theta", theta, theta_sizes(size), size);
  c10::OptionalDeviceGuard guard(theta.device());
  Tensor grid = at::empty_symint(grid_sizes(size), theta.options());
  return run(Pass::fwd, theta.contiguous(), grid, align_corners, policy);
}

Tensor forward_meta(const Tensor& theta, SymIntArrayRef size, bool, OptionalPolicy) {
  check_size("affine_grid", size);
  check_tensor("affine_grid", "theta", theta, theta_sizes(size), size);
  return at::empty_symint(grid_sizes(size), theta.options());
}

Tensor backward(const Tensor& grad_grid, SymIntArrayRef size, bool align_corners,
                OptionalPolicy policy) {
  check_size("affine_grid_backward", size);
  check_tensor("affine_grid_backward", "grad_grid", grad_grid, grid_sizes(size), size);
  c10::OptionalDeviceGuard guard(grad_grid.device());
  Tensor grad_theta = at::empty_symint(theta_sizes(size), grad_grid.options());
  return run(Pass::bwd, grad_theta, grad_grid.contiguous(), align_corners, policy);
}

Tensor backward_meta(const Tensor& grad_grid, SymIntArrayRef size, bool, OptionalPolicy) {
  check_size("affine_grid_backward", size);
  check_tensor("affine_grid_backward", "grad_grid", grad_grid, grid_sizes(size), size);
  return at::empty_symint(theta_sizes(size), grad_grid.options());
}

// --- gradients: each pass is linear, and the gradient of the other

using Signature = decltype(forward);
constexpr const char* kForward = "torch_cudnn_ext::affine_grid";
constexpr const char* kBackward = "torch_cudnn_ext::affine_grid_backward";

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
    visit(size);
    visit(align_corners);
    visit(policy);
  }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    static auto op = find_op<Signature>(is_forward ? kBackward : kForward);
    if (!needed[0]) return {Tensor()};
    return {op.call(grads[0], size, align_corners, policy)};
  }
};

template <bool is_forward>
Tensor autograd(c10::DispatchKeySet keys, const Tensor& input, SymIntArrayRef size,
                bool align_corners, OptionalPolicy policy) {
  static auto op = find_op<Signature>(is_forward ? kForward : kBackward);
  return run_with_gradient<AffineGridGradient<is_forward>>(
      {input}, 1,
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, input, size, align_corners, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.size = size.vec();
        node.gradient.align_corners = align_corners;
        node.gradient.policy = policy_to_save(AffineGridProblem::kFamily, policy);
      });
}

// PyTorch's is a product of matrices, which autocast lowers.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& theta, SymIntArrayRef size, bool align_corners,
                        OptionalPolicy policy) {
  static auto op = find_op<Signature>(kForward);
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return op.call(at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), theta, device),
                 size, align_corners, policy);
}

// --- what the core must know

class AffineGridOperator : public OperatorOf<AffineGridProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnSpatialTfGridGeneratorForward, cudnnSpatialTfGridGeneratorBackward",
        "contiguous",
        "cuDNN: 2-D, align_corners=True, two points a dimension at least; no bf16",
        {"affine_grid_fwd theta=f32[32,2,3]:nchw grid=f32[32,56,56,2]:nchw align_corners=true"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"theta", 0}, {"grid", 0}}; }

  // PyTorch's is a product of matrices.
  std::optional<at::Float32Op> float32_op() const override { return at::Float32Op::MATMUL; }

  std::vector<SlotSpec> slots(const AffineGridProblem& p) const override {
    if (p.pass == Pass::fwd) {
      return {{Role::x, p.theta, false}, {Role::grid, p.grid, true}};
    }
    return {{Role::dgrid, p.grid, false}, {Role::dx, p.theta, true}};
  }

  Cost cost(const AffineGridProblem& p) const override {
    auto terms = static_cast<double>(p.theta.sizes[2]);
    auto coordinates = static_cast<double>(p.grid.numel());
    double points = coordinates / static_cast<double>(p.theta.numel()) * terms;
    return {2 * terms * coordinates, static_cast<double>(p.theta.nbytes() + p.grid.nbytes()),
            p.pass == Pass::fwd ? terms : points};
  }

  Bindings reference(const AffineGridProblem& p, const Bindings& bindings) const override {
    Bindings out;
    bool forward = p.pass == Pass::fwd;
    Tensor given = bindings[forward ? Role::x : Role::dgrid].to(at::kDouble);
    Dims size{p.grid.sizes[0], 1};
    for (int i = 1; i + 1 < p.grid.sizes.size(); ++i) size.push_back(p.grid.sizes[i]);
    if (forward) {
      out[Role::grid] = at::affine_grid_generator(given, size, p.align_corners);
    } else {
      out[Role::dx] = at::affine_grid_generator_backward(given, size, p.align_corners);
    }
    return out;
  }

  // Rounding of the regular grid, which PyTorch makes in the data's own type, and of the sums.
  double tolerance(const AffineGridProblem& p, const Notes& notes) const override {
    auto sum_dtype = compute_dtype(p.theta.dtype);
    double tf32 = notes.has(Note::tf32) ? 2e-3 : 0;
    return tf32 + 4 * epsilon_of(p.theta.dtype) +
           4 * epsilon_of(sum_dtype) * std::sqrt(cost(p).reduction_length);
  }

  // PyTorch makes the regular grid and its product in half a dozen kernels, cuDNN in one.
  std::vector<std::string> heuristic_order(const AffineGridProblem&) const override {
    return {"legacy", "aten"};
  }
};

const RegisterOperator<AffineGridOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("affine_grid", TORCH_FN(forward));
  m.impl("affine_grid_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("affine_grid", TORCH_FN(forward_meta));
  m.impl("affine_grid_backward", TORCH_FN(backward_meta));
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

}  // namespace affine_grid
}  // namespace torch_cudnn_ext
