// Kernels, schemas, gradients and autocast of grid sampling.
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/grid_sampler_3d_backward.h>
#include <c10/core/DeviceGuard.h>

#include "ops/autograd.h"
#include "ops/call.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::grid_sample {
namespace {

// How the grid is read; the numbers are PyTorch's.
struct Options {
  int64_t mode = 0, padding_mode = 0;
  bool align_corners = false;
};

struct SampleArgs {
  static constexpr const char* kName = "grid_sample";
  using Result = Tensor;
  const Tensor &input, &grid;
  Options options;
  OptionalPolicy policy;

  auto tied() const {
    const Options& o = options;
    return std::tie(input, grid, o.mode, o.padding_mode, o.align_corners, policy);
  }
};

// The input's gradient is an empty tensor if it is not wanted.
struct BackwardArgs {
  static constexpr const char* kName = "grid_sample_backward";
  using Result = std::tuple<Tensor, Tensor>;
  const Tensor &grad_output, &input, &grid;
  Options options;
  bool input_gradient;
  OptionalPolicy policy;

  auto tied() const {
    const Options& o = options;
    return std::tie(grad_output, input, grid, o.mode, o.padding_mode, o.align_corners,
                    input_gradient, policy);
  }
};

template <class Args>
void check_inputs(const Args& a) {
  constexpr int64_t kModes = 3, kPaddings = 3;
  const char* op = a.kName;
  const Tensor &input = a.input, &grid = a.grid;
  auto [mode, padding_mode, align_corners] = a.options;
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

// The input, or a copy that kernels can read.
Tensor readable(const Tensor& input) {
  auto channels_last =
      input.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  return input.is_contiguous(channels_last) ? input : input.contiguous();
}

// Runs a pass. `b` holds the results and dy.
void run(Pass pass, Bindings& b, const Tensor& input, const Tensor& grid, const Options& options,
         bool input_gradient, OptionalPolicy policy) {
  b[Role::x] = readable(input);
  b[Role::grid] = grid.contiguous();
  GridSampleProblem p;
  p.pass = pass;
  p.x = spec_of(b[Role::x]);
  p.grid = spec_of(b[Role::grid]);
  p.grid.strides = contiguous_strides(p.grid.sizes);
  p.mode = static_cast<SampleMode>(options.mode);
  p.padding = static_cast<SamplePadding>(options.padding_mode);
  p.align_corners = options.align_corners;
  p.input_gradient = input_gradient;
  p.canonicalise();
  p.alignment = alignment_of(
      {&b[Role::x], &b[Role::grid], &b[Role::y], &b[Role::dy], &b[Role::dx], &b[Role::dgrid]});
  run_problem(p, policy, input, b);
}

Tensor forward_meta(const SampleArgs& a) {
  check_inputs(a);
  return at::empty_symint(output_sizes(a.input, a.grid), a.input.options());
}

Tensor forward(const SampleArgs& a) {
  Tensor output = forward_meta(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  if (output.numel() == 0) return output;
  Bindings b;
  b[Role::y] = output;
  run(Pass::fwd, b, a.input, a.grid, a.options, true, a.policy);
  return output;
}

BackwardArgs::Result backward_meta(const BackwardArgs& a) {
  check_inputs(a);
  std::vector<SymInt> wanted = output_sizes(a.input, a.grid);
  TORCH_CHECK_VALUE(a.grad_output.sym_sizes() == SymIntArrayRef(wanted),
                    "torch_cudnn_ext::grid_sample_backward: grad_output has sizes ",
                    a.grad_output.sym_sizes(), ", wanted ", SymIntArrayRef(wanted));
  check_alike(a.kName, "grad_output", a.grad_output, "input", a.input);
  Tensor dx = a.input_gradient ? at::empty_symint(a.input.sym_sizes(), a.input.options())
                               : at::empty({0}, a.input.options());
  return {dx, at::empty_symint(a.grid.sym_sizes(), a.grid.options())};
}

BackwardArgs::Result backward(const BackwardArgs& a) {
  auto [dx, dgrid] = backward_meta(a);
  c10::OptionalDeviceGuard guard(a.input.device());
  if (a.grad_output.numel() == 0) return {dx.zero_(), dgrid.zero_()};
  Bindings b;
  b[Role::dy] = a.grad_output.contiguous();
  b[Role::dgrid] = dgrid;
  if (a.input_gradient) b[Role::dx] = dx;
  run(Pass::bwd, b, a.input, a.grid, a.options, a.input_gradient, a.policy);
  return {dx, dgrid};
}

struct GridSampleGradient {
  static constexpr const char* kName = "TorchCudnnExtGridSampleBackward";
  static constexpr size_t kInputs = 2;  // input, grid
  Options options;
  std::optional<std::string> policy;

  auto attributes() {
    return std::tie(options.mode, options.padding_mode, options.align_corners, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0] && !needed[1]) return variable_list(kInputs);
    auto [dx, dgrid] =
        call_op(BackwardArgs{grads[0], saved[0], saved[1], options, needed[0], policy});
    return {needed[0] ? dx : Tensor(), needed[1] ? dgrid : Tensor()};
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const SampleArgs& a) {
  return run_with_gradient<GridSampleGradient>(
      {a.input, a.grid}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {a.options, policy_to_save(GridSampleProblem::kFamily, a.policy)};
        save_input(node, a.input, a.grid);
      });
}

// By differentiating PyTorch's backward, which says so if its version has no second derivatives.
struct GridSampleBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtGridSampleBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, grid
  Options options;
  bool input_gradient = true;

  auto attributes() {
    return std::tie(options.mode, options.padding_mode, options.align_corners, input_gradient);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    Formula formula = [this](const std::vector<Tensor>& t) {
      auto backward = t[1].dim() == 4 ? at::grid_sampler_2d_backward : at::grid_sampler_3d_backward;
      auto [dx, dgrid] = backward(t[0], t[1], t[2], options.mode, options.padding_mode,
                                  options.align_corners, {input_gradient, true});
      return input_gradient ? std::vector{dx, dgrid} : std::vector{Tensor(), dgrid};
    };
    return gradients_of_formula(formula, saved, grads, needed);
  }
};

BackwardArgs::Result backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& a) {
  return run_with_gradient<GridSampleBackwardGradient>(
      {a.grad_output, a.input, a.grid}, 2, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient = {a.options, a.input_gradient};
        save_input(node, a.grad_output, a.input, a.grid);
      });
}

// Casts to float32 on the CPU, and on CUDA to the wider dtype of the two, as PyTorch does.
template <c10::DeviceType device>
Tensor forward_autocast(const SampleArgs& a) {
  namespace autocast = at::autocast;
  BelowAutocast guard(device);
  at::ScalarType dtype = at::kFloat;
  if (device == c10::kCUDA) {
    dtype = autocast::promote_type(autocast::get_lower_precision_fp_from_device_type(device),
                                   device, a.input, a.grid);
  }
  auto cast = [&](const Tensor& t) { return autocast::cached_cast(dtype, t, device); };
  return call_op(SampleArgs{cast(a.input), cast(a.grid), a.options, a.policy});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(
      m,
      {"grid_sample(Tensor input, Tensor grid, int mode, int padding_mode, bool align_corners, *, "
       "str? policy=None) -> Tensor",
       "grid_sample_backward(Tensor grad_output, Tensor input, Tensor grid, int mode, int "
       "padding_mode, bool align_corners, bool input_gradient, *, str? policy=None) -> (Tensor, "
       "Tensor)"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward, backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward, backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<forward_meta, backward_meta>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, backward_autograd>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<forward_autocast<c10::kCPU>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<forward_autocast<c10::kCUDA>>(m);
}

}  // namespace torch_cudnn_ext::grid_sample
