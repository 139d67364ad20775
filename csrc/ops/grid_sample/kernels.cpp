// Kernels, schemas, gradients and autocast of grid sampling.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "ops/autograd.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::grid_sample {
namespace {

constexpr int64_t kModes = 3, kPaddings = 3;

void check_arguments(const char* op, const Tensor& input, const Tensor& grid, int64_t mode,
                     int64_t padding_mode) {
  check_dtype(op, "input", input);
  TORCH_CHECK_VALUE(input.dim() == 4 || input.dim() == 5, "torch_cudnn_ext::", op,
                    ": input has sizes ", input.sym_sizes(), ", wanted 4 or 5 dimensions");
  TORCH_CHECK_VALUE(grid.dim() == input.dim() && grid.sym_size(0) == input.sym_size(0) &&
                        grid.sym_size(-1) == input.dim() - 2,
                    "torch_cudnn_ext::", op, ": grid has sizes ", grid.sym_sizes(),
                    ", wanted as many dimensions as input, the batch size ", input.sym_size(0),
                    " and a last dimension of ", input.dim() - 2);
  for (int64_t i = 2; i < input.dim(); ++i) {
    TORCH_CHECK_VALUE(input.sym_size(i) > 0, "torch_cudnn_ext::", op, ": input has sizes ",
                      input.sym_sizes(), ", wanted non-empty spatial dimensions");
  }
  check_alike(op, "grid", grid, "input", input);
  TORCH_CHECK_VALUE(mode >= 0 && mode < kModes, "torch_cudnn_ext::", op, ": mode is ", mode,
                    ", wanted 0 (bilinear), 1 (nearest) or 2 (bicubic)");
  TORCH_CHECK_VALUE(mode != static_cast<int64_t>(SampleMode::bicubic) || input.dim() == 4,
                    "torch_cudnn_ext::", op,
                    ": mode is 2 (bicubic), wanted 0 or 1 for input of 5 dimensions");
  TORCH_CHECK_VALUE(padding_mode >= 0 && padding_mode < kPaddings, "torch_cudnn_ext::", op,
                    ": padding_mode is ", padding_mode,
                    ", wanted 0 (zeros), 1 (border) or 2 (reflection)");
}

std::vector<SymInt> output_sizes(const Tensor& input, const Tensor& grid) {
  std::vector<SymInt> sizes{input.sym_size(0), input.sym_size(1)};
  for (int64_t i = 1; i + 1 < grid.dim(); ++i) sizes.push_back(grid.sym_size(i));
  return sizes;
}

bool can_be_read_as_is(const Tensor& input) {
  auto channels_last =
      input.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return input.is_contiguous() || input.is_contiguous(channels_last);
}

void run(Pass pass, Bindings& bindings, int64_t mode, int64_t padding_mode, bool align_corners,
         bool input_gradient, std::initializer_list<const Tensor*> tensors, OptionalPolicy policy) {
  GridSampleProblem p;
  p.pass = pass;
  p.x = spec_of(bindings[Role::x]);
  p.grid = spec_of(bindings[Role::grid]);
  p.grid.strides = contiguous_strides(p.grid.sizes);
  p.mode = static_cast<SampleMode>(mode);
  p.padding = static_cast<SamplePadding>(padding_mode);
  p.align_corners = align_corners;
  p.input_gradient = input_gradient;
  p.canonicalise();
  p.alignment = alignment_of(tensors);
  run_problem(p, policy, bindings[Role::x], bindings);
}

Tensor forward_meta(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
                    bool, OptionalPolicy) {
  check_arguments("grid_sample", input, grid, mode, padding_mode);
  return at::empty_symint(output_sizes(input, grid), input.options());
}

Tensor forward(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
               bool align_corners, OptionalPolicy policy) {
  Tensor output = forward_meta(input, grid, mode, padding_mode, align_corners, policy);
  c10::OptionalDeviceGuard guard(input.device());
  if (output.numel() == 0) return output;
  Bindings bindings;
  Tensor x = can_be_read_as_is(input) ? input : input.contiguous(), points = grid.contiguous();
  bindings[Role::x] = x;
  bindings[Role::grid] = points;
  bindings[Role::y] = output;
  run(Pass::fwd, bindings, mode, padding_mode, align_corners, true, {&x, &points, &output}, policy);
  return output;
}

void check_backward(const Tensor& grad_output, const Tensor& input, const Tensor& grid,
                    int64_t mode, int64_t padding_mode) {
  check_arguments("grid_sample_backward", input, grid, mode, padding_mode);
  std::vector<SymInt> wanted = output_sizes(input, grid);
  TORCH_CHECK_VALUE(grad_output.sym_sizes() == SymIntArrayRef(wanted),
                    "torch_cudnn_ext::grid_sample_backward: grad_output has sizes ",
                    grad_output.sym_sizes(), ", wanted ", SymIntArrayRef(wanted));
  check_alike("grid_sample_backward", "grad_output", grad_output, "input", input);
}

std::tuple<Tensor, Tensor> backward_meta(const Tensor& grad_output, const Tensor& input,
                                         const Tensor& grid, int64_t mode, int64_t padding_mode,
                                         bool, bool input_gradient, OptionalPolicy) {
  check_backward(grad_output, input, grid, mode, padding_mode);
  Tensor dx = input_gradient ? at::empty_symint(input.sym_sizes(), input.options())
                             : at::empty({0}, input.options());
  return {dx, at::empty_symint(grid.sym_sizes(), grid.options())};
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad_output, const Tensor& input,
                                    const Tensor& grid, int64_t mode, int64_t padding_mode,
                                    bool align_corners, bool input_gradient,
                                    OptionalPolicy policy) {
  auto [grad_input, grad_grid] = backward_meta(grad_output, input, grid, mode, padding_mode,
                                               align_corners, input_gradient, policy);
  c10::OptionalDeviceGuard guard(input.device());
  if (grad_output.numel() == 0) return {grad_input.zero_(), grad_grid.zero_()};
  Bindings bindings;
  Tensor x = can_be_read_as_is(input) ? input : input.contiguous(), points = grid.contiguous(),
         dy = grad_output.contiguous(), none;
  bindings[Role::x] = x;
  bindings[Role::grid] = points;
  bindings[Role::dy] = dy;
  bindings[Role::dgrid] = grad_grid;
  if (input_gradient) bindings[Role::dx] = grad_input;
  run(Pass::bwd, bindings, mode, padding_mode, align_corners, input_gradient,
      {&x, &points, &dy, &grad_grid, input_gradient ? &grad_input : &none}, policy);
  return {grad_input, grad_grid};
}

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::grid_sample"); }
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::grid_sample_backward"); }

struct GridSampleGradient {
  static constexpr const char* kName = "TorchCudnnExtGridSampleBackward";
  static constexpr size_t kInputs = 2;  // input, grid
  int64_t mode = 0, padding_mode = 0;
  bool align_corners = false;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(mode, padding_mode, align_corners, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0] && !needed[1]) return variable_list(kInputs);
    auto [dx, dgrid] = backward_op().call(grads[0], saved[0], saved[1], mode, padding_mode,
                                          align_corners, needed[0], policy);
    return {needed[0] ? dx : Tensor(), needed[1] ? dgrid : Tensor()};
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& grid,
                        int64_t mode, int64_t padding_mode, bool align_corners,
                        OptionalPolicy policy) {
  return run_with_gradient<GridSampleGradient>(
      {input, grid}, 1,
      below_autograd(forward_op(), keys, input, grid, mode, padding_mode, align_corners, policy),
      [&](auto& node, const auto&) {
        node.gradient.mode = mode;
        node.gradient.padding_mode = padding_mode;
        node.gradient.align_corners = align_corners;
        node.gradient.policy = policy_to_save(GridSampleProblem::kFamily, policy);
        save_input(node, input);
        save_input(node, grid);
      });
}

// There is no second derivative, as in PyTorch.
struct GridSampleBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtGridSampleBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, grid

  template <class F>
  void attributes(F&&) {}
  variable_list apply(const variable_list&, TensorList, const Needed&) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "derivative for torch_cudnn_ext::grid_sample_backward is not implemented");
  }
};

std::tuple<Tensor, Tensor> backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                             const Tensor& input, const Tensor& grid, int64_t mode,
                                             int64_t padding_mode, bool align_corners,
                                             bool input_gradient, OptionalPolicy policy) {
  return run_with_gradient<GridSampleBackwardGradient>(
      {grad_output, input, grid}, 2,
      below_autograd(backward_op(), keys, grad_output, input, grid, mode, padding_mode,
                     align_corners, input_gradient, policy),
      [](auto&, const auto&) {});
}

// Casts to float32 on the CPU, and on CUDA to the wider dtype of the two, as PyTorch does.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
                        bool align_corners, OptionalPolicy policy) {
  namespace autocast = at::autocast;
  BelowAutocast guard(device);
  at::ScalarType dtype = at::kFloat;
  if (device == c10::kCUDA) {
    dtype = autocast::promote_type(autocast::get_lower_precision_fp_from_device_type(device),
                                   device, input, grid);
  }
  return forward_op().call(autocast::cached_cast(dtype, input, device),
                           autocast::cached_cast(dtype, grid, device), mode, padding_mode,
                           align_corners, policy);
}

}  // namespace

// The input's gradient is an empty tensor if it is not wanted.
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward, forward_meta>(
      m,
      "grid_sample(Tensor input, Tensor grid, int mode, int padding_mode, bool align_corners, *, "
      "str? policy=None) -> Tensor",
      tags());
  define_operator<backward, backward_meta>(
      m,
      "grid_sample_backward(Tensor grad_output, Tensor input, Tensor grid, int mode, int "
      "padding_mode, bool align_corners, bool input_gradient, *, str? policy=None) -> (Tensor, "
      "Tensor)",
      tags());
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("grid_sample", TORCH_FN(forward_autograd));
  m.impl("grid_sample_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("grid_sample", TORCH_FN(forward_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("grid_sample", TORCH_FN(forward_autocast<c10::kCUDA>));
}

}  // namespace torch_cudnn_ext::grid_sample
