// Reading a tensor at the points of a grid: argument checks, Problem, gradients, and what the core
// must know of it.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "core/select/execute.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

TensorSpec GridSampleProblem::output() const {
  TensorSpec y{x.dtype, {x.sizes[0], x.sizes[1]}, {}};
  for (int i = 1; i <= spatial_dims(); ++i) y.sizes.push_back(grid.sizes[i]);
  y.strides = contiguous_strides(y.sizes);
  return y;
}

void GridSampleProblem::canonicalise() {
  canonicalise_strides({&x});
  input_gradient = input_gradient || pass == Pass::fwd;
}

void GridSampleProblem::validate() const {
  check_sizes("grid_sample", "x", x, 4, 5);
  int rank = x.sizes.size();
  check_sizes("grid_sample", "grid", grid, rank, rank);
  TORCH_CHECK_VALUE(grid.sizes[0] == x.sizes[0] && grid.sizes[rank - 1] == rank - 2,
                    "grid_sample: x and grid do not belong together, wanted [N,C,*space] and "
                    "[N,*output space,",
                    rank - 2, "]");
  TORCH_CHECK_VALUE(grid.dtype == x.dtype, "grid_sample: grid is ", dtype_text(grid.dtype),
                    ", wanted x's dtype ", dtype_text(x.dtype));
  TORCH_CHECK_VALUE(grid.strides == contiguous_strides(grid.sizes),
                    "grid_sample: grid has strides of its own, wanted :nchw");
  TORCH_CHECK_VALUE(mode != SampleMode::bicubic || rank == 4,
                    "grid_sample: mode is bicubic, wanted bilinear or nearest in 3-D");
  check_alignment("grid_sample", alignment, x.dtype);
}

namespace grid_sample {
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
  execute(p, resolve_policy(GridSampleProblem::kFamily, policy),
          device_of(bindings[Role::x].device()), bindings);
}

Tensor forward(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
               bool align_corners, OptionalPolicy policy) {
  check_arguments("grid_sample", input, grid, mode, padding_mode);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor output = at::empty_symint(output_sizes(input, grid), input.options());
  if (output.numel() == 0) return output;
  Bindings bindings;
  Tensor x = can_be_read_as_is(input) ? input : input.contiguous(), points = grid.contiguous();
  bindings[Role::x] = x;
  bindings[Role::grid] = points;
  bindings[Role::y] = output;
  run(Pass::fwd, bindings, mode, padding_mode, align_corners, true, {&x, &points, &output}, policy);
  return output;
}

Tensor forward_meta(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
                    bool, OptionalPolicy) {
  check_arguments("grid_sample", input, grid, mode, padding_mode);
  return at::empty_symint(output_sizes(input, grid), input.options());
}

// The input's gradient is an empty tensor where it is not wanted.
Tensor empty_input_gradient(const Tensor& input, bool wanted) {
  if (!wanted) return at::empty({0}, input.options());
  return at::empty_symint(input.sym_sizes(), input.options());
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

std::tuple<Tensor, Tensor> backward(const Tensor& grad_output, const Tensor& input,
                                    const Tensor& grid, int64_t mode, int64_t padding_mode,
                                    bool align_corners, bool input_gradient,
                                    OptionalPolicy policy) {
  check_backward(grad_output, input, grid, mode, padding_mode);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor grad_input = empty_input_gradient(input, input_gradient);
  Tensor grad_grid = at::empty(grid.sizes(), grid.options());
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

std::tuple<Tensor, Tensor> backward_meta(const Tensor& grad_output, const Tensor& input,
                                         const Tensor& grid, int64_t mode, int64_t padding_mode,
                                         bool, bool input_gradient, OptionalPolicy) {
  check_backward(grad_output, input, grid, mode, padding_mode);
  return {empty_input_gradient(input, input_gradient),
          at::empty_symint(grid.sym_sizes(), grid.options())};
}

// --- gradients

const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::grid_sample_backward");
  return op;
}

struct GridSampleGradient {
  static constexpr const char* kName = "TorchCudnnExtGridSampleBackward";
  static constexpr size_t kInputs = 2;  // input, grid
  int64_t mode = 0, padding_mode = 0;
  bool align_corners = false;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(mode);
    visit(padding_mode);
    visit(align_corners);
    visit(policy);
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
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::grid_sample");
  return run_with_gradient<GridSampleGradient>(
      {input, grid}, 1,
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, input, grid, mode, padding_mode,
                             align_corners, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.mode = mode;
        node.gradient.padding_mode = padding_mode;
        node.gradient.align_corners = align_corners;
        node.gradient.policy = policy_to_save(GridSampleProblem::kFamily, policy);
        save_input(node, input);
        save_input(node, grid);
      });
}

// PyTorch's has none either.
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
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input, grid,
                                        mode, padding_mode, align_corners, input_gradient, policy);
      },
      [](auto&, const auto&) {});
}

// As PyTorch does: float32 on the CPU, on CUDA the wider dtype of the two.
template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& input, const Tensor& grid, int64_t mode, int64_t padding_mode,
                        bool align_corners, OptionalPolicy policy) {
  namespace autocast = at::autocast;
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::grid_sample");
  c10::impl::ExcludeDispatchKeyGuard below(
      autocast::get_autocast_dispatch_key_from_device_type(device));
  at::ScalarType dtype = at::kFloat;
  if (device == c10::kCUDA) {
    dtype = autocast::promote_type(autocast::get_lower_precision_fp_from_device_type(device),
                                   device, input, grid);
  }
  return op.call(autocast::cached_cast(dtype, input, device),
                 autocast::cached_cast(dtype, grid, device), mode, padding_mode, align_corners,
                 policy);
}

// --- what the core must know

class GridSampleOperator : public OperatorOf<GridSampleProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnSpatialTfSamplerForward, cudnnSpatialTfSamplerBackward",
            "x: nchw, nhwc (cuDNN: nchw); result contiguous",
            "cuDNN: 2-D, bilinear, zeros, align_corners=True, at most 1024 channels, no bf16; cpu: "
            "bilinear; once differentiable",
            {"grid_sample_fwd x=f32[8,16,28,28]:nchw grid=f32[8,28,28,2]:nchw align_corners=true"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"x", 0}, {"grid", 0}}; }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_SAMPLER_BILINEAR", "bilinear", nullptr}};
  }

  std::vector<SlotSpec> slots(const GridSampleProblem& p) const override {
    std::vector<SlotSpec> list{{Role::x, p.x, false}, {Role::grid, p.grid, false}};
    if (p.pass == Pass::fwd) {
      list.push_back({Role::y, p.output(), true});
      return list;
    }
    list.push_back({Role::dy, p.output(), false});
    if (p.input_gradient) list.push_back({Role::dx, contiguous_x(p), true});
    list.push_back({Role::dgrid, p.grid, true});
    return list;
  }

  Cost cost(const GridSampleProblem& p) const override {
    double taps = 1;
    if (p.mode == SampleMode::bilinear) taps = 1 << p.spatial_dims();
    if (p.mode == SampleMode::bicubic) taps = 16;
    auto elements = static_cast<double>(p.output().numel());
    double bytes = static_cast<double>(p.x.nbytes() + p.grid.nbytes() + p.output().nbytes());
    if (p.pass == Pass::fwd) return {2 * taps * elements, bytes, taps};
    bytes += static_cast<double>(p.grid.nbytes() + (p.input_gradient ? p.x.nbytes() : 0));
    // As many points fall on an element of dx as there are points to one; dgrid sums channels.
    double points = static_cast<double>(p.output().numel()) / static_cast<double>(p.x.numel());
    return {(p.input_gradient ? 4 : 2) * taps * elements, bytes,
            taps * std::max(points + 1, static_cast<double>(p.x.sizes[1]))};
  }

  // Points within the tensor and a pixel around it, three tenths of a pixel beyond one's centre:
  // where nothing jumps when a coordinate is rounded.
  void prepare_scratch(const GridSampleProblem& p, Bindings& bindings) const override {
    int dims = p.spatial_dims();
    for (int i = 0; i < dims; ++i) {
      Tensor coordinate = bindings[Role::grid].select(dims + 1, i);
      auto n = static_cast<double>(p.x.sizes[dims + 1 - i]);
      Tensor uniform = at::special_ndtr(coordinate.to(at::kDouble));
      Tensor pixel = (uniform * (n + 1)).floor() - 0.7;
      double last = std::max(n - 1, 1.0);
      coordinate.copy_(p.align_corners ? pixel * (2 / last) - 1 : (pixel * 2 + 1) / n - 1);
    }
  }

  Bindings reference(const GridSampleProblem& p, const Bindings& bindings) const override {
    auto mode = static_cast<int64_t>(p.mode), padding = static_cast<int64_t>(p.padding);
    Tensor x = bindings[Role::x].to(at::kDouble), grid = bindings[Role::grid].to(at::kDouble);
    bool plane = p.spatial_dims() == 2;
    Bindings out;
    if (p.pass == Pass::fwd) {
      auto sample = plane ? at::grid_sampler_2d : at::grid_sampler_3d;
      out[Role::y] = sample(x, grid, mode, padding, p.align_corners);
      return out;
    }
    auto sample_backward = plane ? at::grid_sampler_2d_backward : at::grid_sampler_3d_backward;
    auto [dx, dgrid] = sample_backward(bindings[Role::dy].to(at::kDouble), x, grid, mode, padding,
                                       p.align_corners, {p.input_gradient, true});
    if (p.input_gradient) out[Role::dx] = dx;
    out[Role::dgrid] = dgrid;
    return out;
  }

  // A coordinate in pixels is off by its rounding in the data's own type, in which PyTorch computes
  // it, and what is read by that times the differences of neighbours.
  double tolerance(const GridSampleProblem& p, const Notes&) const override {
    int64_t longest = *std::max_element(p.x.sizes.begin() + 2, p.x.sizes.end());
    auto sum_dtype = compute_dtype(p.x.dtype);
    return epsilon_of(p.x.dtype) * (8 + 2 * static_cast<double>(longest)) +
           4 * epsilon_of(sum_dtype) * std::sqrt(cost(p).reduction_length);
  }

  // PyTorch calls cuDNN wherever that takes the problem. Its own kernel has a thread a place of the
  // grid, which are few at first: on an H100 it took 60 times as long for 50 places of 1024
  // channels, and a quarter of the time for 162000 of 192. Of 1103 problems the first of this order
  // took 1.03 times what the faster one took (geometric mean).
  std::vector<std::string> heuristic_order(const GridSampleProblem& p) const override {
    constexpr int64_t kManyPlaces = 1 << 15;
    bool many = p.grid.numel() / p.spatial_dims() >= kManyPlaces;
    if (many) return {"aten", "legacy:bilinear"};
    return {"legacy:bilinear", "aten"};
  }

 private:
  static TensorSpec contiguous_x(const GridSampleProblem& p) {
    return {p.x.dtype, p.x.sizes, contiguous_strides(p.x.sizes)};
  }
};

const RegisterOperator<GridSampleOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("grid_sample", TORCH_FN(forward));
  m.impl("grid_sample_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("grid_sample", TORCH_FN(forward_meta));
  m.impl("grid_sample_backward", TORCH_FN(backward_meta));
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

}  // namespace grid_sample
}  // namespace torch_cudnn_ext
