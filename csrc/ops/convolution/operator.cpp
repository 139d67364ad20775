// Convolution: its kernels, the Problem of a call, and what the core must know of the family.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "core/errors.h"
#include "core/select/execute.h"
#include "ops/convolution/convolution.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::convolution {

namespace {

constexpr Names kForwardNames{"convolution", "input", "weight", "output"};
constexpr Names kReluNames{"convolution_relu", "input", "weight", "output"};
constexpr Names kTransposedNames{"convolution (transposed)", "output", "weight", "input"};
constexpr Names kBackwardInputNames{"convolution_backward_input", "input_size", "weight",
                                    "grad_output"};
constexpr Names kBackwardWeightNames{"convolution_backward_weight", "input", "weight_size",
                                     "grad_output"};

c10::ScalarType compute_type(c10::ScalarType data, std::optional<Compute> wanted) {
  c10::ScalarType otherwise = compute_dtype(data);
  if (!wanted) return otherwise;
  switch (*wanted) {
    case Compute::as_input:
      return data;
    case Compute::as_input_f32:
      return otherwise;
    case Compute::f16:
      return at::kHalf;
    case Compute::f32:
      return at::kFloat;
    case Compute::f64:
      return at::kDouble;
  }
  return otherwise;
}

Dims strides_of(const Dims& sizes, bool channels_last) {
  return channels_last ? channels_last_strides(sizes) : contiguous_strides(sizes);
}

// The tensor in one of the two layouts that a call uses; a copy only where it is in neither.
Tensor in_layout(const Tensor& t, bool channels_last) {
  if (!channels_last) return t.contiguous();
  if (t.dim() == 4) return t.contiguous(at::MemoryFormat::ChannelsLast);
  if (t.dim() == 5) return t.contiguous(at::MemoryFormat::ChannelsLast3d);
  return t.transpose(1, 2).contiguous().transpose(1, 2);
}

// Whether a layout of these sizes tells channels_last from contiguous.
bool tells_layouts_apart(const Dims& sizes) {
  int64_t positions = 1;
  for (int i = 2; i < sizes.size(); ++i) positions *= sizes[i];
  return sizes[1] > 1 && positions > 1;
}

// The sizes of a call on tensors that have data.
struct Shapes {
  explicit Shapes(const Sizes& sizes)
      : x(C10_AS_INTARRAYREF_SLOW(sizes.x)),
        w(C10_AS_INTARRAYREF_SLOW(sizes.w)),
        y(C10_AS_INTARRAYREF_SLOW(sizes.y)) {}
  Dims x, w, y;
};

// Canonical by construction: see canonicalise_strides.
ConvolutionProblem problem_of(const Request& r, bool channels_last, const Shapes& s, bool has_bias,
                              bool has_z, const Policy& policy) {
  ConvolutionProblem p;
  p.pass = r.pass;
  c10::ScalarType dtype = r.first.scalar_type();
  channels_last = channels_last && (tells_layouts_apart(s.x) || tells_layouts_apart(s.w) ||
                                    tells_layouts_apart(s.y));
  p.x = {dtype, s.x, strides_of(s.x, channels_last)};
  p.w = {dtype, s.w, strides_of(s.w, channels_last)};
  p.y = {dtype, s.y, strides_of(s.y, channels_last)};
  p.padding = C10_AS_INTARRAYREF_SLOW(r.padding);
  p.stride = C10_AS_INTARRAYREF_SLOW(r.stride);
  p.dilation = C10_AS_INTARRAYREF_SLOW(r.dilation);
  p.groups = r.groups.guard_int(__FILE__, __LINE__);
  p.mode = r.flip_kernel ? ConvolutionMode::conv : ConvolutionMode::cross;
  p.compute = compute_type(dtype, policy.compute.of(dtype));
  p.check_compute();
  if (has_bias) p.bias = dtype;
  if (has_z) p.z = dtype;
  p.activation = r.activation;
  if (r.beta != 0 || r.alpha != 1) {
    p.accumulate = r.alpha == 1 && r.beta == 1 ? Accumulate::add : Accumulate::general;
  }
  return p;
}

// Whether all tensors must be aligned.
bool wants_aligned(const Request& r) { return r.pass != ConvolutionPass::fwd && r.first.is_cuda(); }

// Runs the request. `out`, where defined, is accumulated into and returned; it is in the call's
// layout, and aligned where that is wanted. `bias` and `z`, which is in the call's layout, are part
// of the problem where they are defined.
Tensor run(const Request& r, const Sizes& sizes, bool channels_last, const Tensor& out,
           const Tensor& bias = {}, const Tensor& z = {}) {
  Tensor first = in_layout(r.first, channels_last);
  Tensor second = in_layout(r.second, channels_last);
  if (wants_aligned(r)) {
    first = aligned(first);
    second = aligned(second);
  }
  const ResolvedPolicy& policy = resolve_policy(ConvolutionProblem::kFamily, r.policy);
  ConvolutionProblem problem =
      problem_of(r, channels_last, Shapes(sizes), bias.defined(), z.defined(), policy.policy);
  if (problem.takes_any_alignment()) {
    problem.alignment = alignment_of({&first, &second, &out, &bias, &z});
  }
  Bindings bindings;
  bindings.alpha = r.alpha;
  bindings.beta = r.beta;
  Role result = result_role(r.pass);
  bindings[r.pass == ConvolutionPass::fwd ? Role::x : Role::y] = std::move(first);
  bindings[r.pass == ConvolutionPass::bwd_filter ? Role::x : Role::w] = std::move(second);
  if (out.defined()) bindings[result] = out;
  if (bias.defined()) bindings[Role::bias] = bias;
  if (z.defined()) bindings[Role::z] = z;
  execute(problem, policy, device_of(r.first.device()), bindings);
  return std::move(bindings[result]);
}

// Without a batch or channels there is nothing to sum.
bool is_empty(const Sizes& sizes) { return sizes.x[0] == 0 || sizes.x[1] == 0; }

// alpha * op + beta * z + bias, or relu(op + z + bias), as a new tensor; of meta tensors, its shape
// and layout.
Tensor run_functional(const Request& r, const OptionalTensor& bias, const OptionalTensor& z) {
  Sizes sizes = checked_sizes(r, bias);
  const SymSizes& result_sizes = sizes.of(result_role(r.pass));
  TORCH_CHECK_VALUE(z || r.beta == 0, "torch_cudnn_ext::", r.names.op, ": beta is ", r.beta,
                    " but z is None, wanted a tensor of sizes ", SymIntArrayRef(result_sizes));
  if (z) check_like(r, "z", *z, result_sizes);
  bool channels_last = prefers_channels_last(r, sizes);
  if (r.first.is_meta()) return empty_result(result_sizes, channels_last, r.first);
  c10::OptionalDeviceGuard guard(r.first.device());
  bool relu = r.activation == Activation::relu, adds = z && r.beta != 0;
  bool empty = is_empty(sizes);
  bool fused = has(bias) && r.pass == ConvolutionPass::fwd && r.alpha == 1 && !adds && !empty;
  Tensor result;
  if (adds || empty) {
    Dims shape = C10_AS_INTARRAYREF_SLOW(result_sizes);
    result = at::empty_strided(shape, strides_of(shape, channels_last), r.first.options());
    if (adds) result.copy_(*z);
  }
  if (empty) {
    adds ? result.mul_(r.beta) : result.zero_();
  } else {
    // Aligned, so that a few numbers do not take engines from the rest.
    Tensor addend = fused ? aligned(bias->contiguous()) : Tensor();
    Tensor summand = relu && z ? in_layout(*z, channels_last) : Tensor();
    result = run(r, sizes, channels_last, result, addend, summand);
    // Where its memory is that of both layouts, the problem may have had the other's strides.
    if (channels_last && !tells_layouts_apart(result.sizes())) {
      result = strided_view(result, result.sizes(), strides_of(result.sizes(), channels_last));
    }
  }
  if (has(bias) && !fused && result.numel() > 0) add_bias(result, *bias);
  return result;
}

// out = alpha * op + beta * out + bias.
void run_into(const Request& r, const OptionalTensor& bias, Tensor& out) {
  Sizes sizes = checked_sizes(r, bias);
  check_like(r, "out", out, sizes.of(result_role(r.pass)));
  if (r.first.is_meta()) return;
  bool channels_last = prefers_channels_last(r, sizes);
  c10::OptionalDeviceGuard guard(r.first.device());
  Tensor addend = has(bias) ? *bias : Tensor();
  if (addend.defined() && out.is_alias_of(addend)) addend = addend.clone();
  bool in_place = !out.is_alias_of(r.first) && !out.is_alias_of(r.second) &&
                  in_layout(out, channels_last).is_same(out) &&
                  (!wants_aligned(r) || alignment_of({&out}) == 16);
  if (is_empty(sizes)) {
    r.beta == 0 ? out.zero_() : out.mul_(r.beta);
  } else if (in_place) {
    run(r, sizes, channels_last, out);
  } else {
    Dims strides = strides_of(out.sizes(), channels_last);
    Tensor copy = at::empty_strided(out.sizes(), strides, out.options()).copy_(out);
    out.copy_(run(r, sizes, channels_last, copy));
  }
  if (addend.defined() && out.numel() > 0) add_bias(out, addend);
}

Request request_of_forward(const Tensor& input, const Tensor& weight, SymIntArrayRef stride,
                           SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed,
                           SymIntArrayRef output_padding, const SymInt& groups, double alpha,
                           double beta, bool flip_kernel, OptionalPolicy policy) {
  bool adds = std::any_of(output_padding.begin(), output_padding.end(),
                          [](const SymInt& added) { return added != 0; });
  TORCH_CHECK_VALUE(transposed || !adds, "torch_cudnn_ext::", kForwardNames.op,
                    ": output_padding is ", output_padding,
                    ", wanted zeros, as the convolution is not transposed");
  return {transposed ? ConvolutionPass::bwd_data : ConvolutionPass::fwd,
          transposed ? kTransposedNames : kForwardNames,
          input,
          weight,
          {},
          stride,
          padding,
          dilation,
          groups,
          flip_kernel,
          alpha,
          beta,
          policy,
          transposed ? std::optional(output_padding) : std::nullopt};
}

}  // namespace

Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
               bool transposed, SymIntArrayRef output_padding, SymInt groups,
               const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
               OptionalPolicy policy) {
  auto same = transposed ? without_surplus(input, stride, dilation, output_padding) : std::nullopt;
  if (same) {
    return forward(same->input, weight, bias, stride, padding, dilation, true, same->output_padding,
                   groups, z, alpha, beta, flip_kernel, policy);
  }
  return run_functional(
      request_of_forward(input, weight, stride, padding, dilation, transposed, output_padding,
                         groups, alpha, beta, flip_kernel, policy),
      bias, z);
}

Tensor forward_relu(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                    SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                    SymInt groups, const OptionalTensor& z, bool flip_kernel,
                    OptionalPolicy policy) {
  Request r{ConvolutionPass::fwd, kReluNames, input, weight, {}, stride, padding, dilation, groups,
            flip_kernel,          1,          0,     policy};
  r.activation = Activation::relu;
  return run_functional(r, bias, z);
}

Tensor backward_input(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                      SymInt groups, const OptionalTensor& z, double alpha, double beta,
                      bool flip_kernel, OptionalPolicy policy) {
  return run_functional(
      {ConvolutionPass::bwd_data, kBackwardInputNames, grad_output, weight, input_size, stride,
       padding, dilation, groups, flip_kernel, alpha, beta, policy},
      {}, z);
}

Tensor backward_weight(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                       SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                       SymInt groups, const OptionalTensor& z, double alpha, double beta,
                       bool flip_kernel, OptionalPolicy policy) {
  return run_functional(
      {ConvolutionPass::bwd_filter, kBackwardWeightNames, grad_output, input, weight_size, stride,
       padding, dilation, groups, flip_kernel, alpha, beta, policy},
      {}, z);
}

void forward_out(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                 SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                 bool transposed, SymIntArrayRef output_padding, SymInt groups, Tensor& out,
                 double alpha, double beta, bool flip_kernel, OptionalPolicy policy) {
  auto same = transposed ? without_surplus(input, stride, dilation, output_padding) : std::nullopt;
  if (same) {
    return forward_out(same->input, weight, bias, stride, padding, dilation, true,
                       same->output_padding, groups, out, alpha, beta, flip_kernel, policy);
  }
  run_into(request_of_forward(input, weight, stride, padding, dilation, transposed, output_padding,
                              groups, alpha, beta, flip_kernel, policy),
           bias, out);
}

void backward_input_out(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                        SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                        OptionalPolicy policy) {
  run_into({ConvolutionPass::bwd_data, kBackwardInputNames, grad_output, weight, input_size, stride,
            padding, dilation, groups, flip_kernel, alpha, beta, policy},
           {}, out);
}

void backward_weight_out(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                         SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                         SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                         OptionalPolicy policy) {
  run_into({ConvolutionPass::bwd_filter, kBackwardWeightNames, grad_output, input, weight_size,
            stride, padding, dilation, groups, flip_kernel, alpha, beta, policy},
           {}, out);
}

ConvolutionProblem make_problem(ConvolutionPass pass, const Tensor& x, const Tensor& w,
                                c10::IntArrayRef stride, c10::IntArrayRef padding,
                                c10::IntArrayRef dilation, int64_t groups, bool has_bias,
                                OptionalPolicy policy) {
  SymInt group_count = groups;
  Request r{ConvolutionPass::fwd,
            kForwardNames,
            x,
            w,
            {},
            c10::fromIntArrayRefSlow(stride),
            c10::fromIntArrayRefSlow(padding),
            c10::fromIntArrayRefSlow(dilation),
            group_count};
  Sizes sizes = checked_sizes(r, {});
  bool channels_last = prefers_channels_last(r, sizes);
  r.pass = pass;
  const ResolvedPolicy& resolved = resolve_policy(ConvolutionProblem::kFamily, policy);
  has_bias = has_bias && pass == ConvolutionPass::fwd;
  return problem_of(r, channels_last, Shapes(sizes), has_bias, false, resolved.policy);
}

static void register_kernels(torch::Library& m) {
  m.impl("convolution", TORCH_FN(forward));
  m.impl("convolution_relu", TORCH_FN(forward_relu));
  m.impl("convolution_backward_input", TORCH_FN(backward_input));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight));
  m.impl("convolution_out", TORCH_FN(forward_out));
  m.impl("convolution_backward_input_out", TORCH_FN(backward_input_out));
  m.impl("convolution_backward_weight_out", TORCH_FN(backward_weight_out));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels(m); }

namespace {

constexpr LegacyName kForwardAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM", "implicit_gemm", "none"},
    {1, "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM", "implicit_precomp_gemm", "small"},
    {2, "CUDNN_CONVOLUTION_FWD_ALGO_GEMM", "gemm", "large"},
    {3, "CUDNN_CONVOLUTION_FWD_ALGO_DIRECT", "direct", nullptr},
    {4, "CUDNN_CONVOLUTION_FWD_ALGO_FFT", "fft", nullptr},
    {5, "CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING", "fft_tiling", nullptr},
    {6, "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD", "winograd", nullptr},
    {7, "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused", "winograd_non_fused"}};
// Theano's own table has no `small` here, its manual has: the deterministic one, which like the
// forward's `small` is the implicit GEMM with precomputed indices.
constexpr LegacyName kBackwardDataAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_0", "algo_0", "none"},
    {1, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "algo_1", "deterministic"},
    {1, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "algo_1", "small"},
    {2, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT", "fft", nullptr},
    {3, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING", "fft_tiling", nullptr},
    {4, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD", "winograd", nullptr},
    {5, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused",
     "winograd_non_fused"}};
constexpr LegacyName kBackwardFilterAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0", "algo_0", "none"},
    {1, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1", "algo_1", "deterministic"},
    {2, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT", "fft", nullptr},
    {3, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3", "algo_3", "small"},
    {4, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD", "winograd", nullptr},
    {5, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused",
     "winograd_non_fused"},
    {6, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING", "fft_tiling", nullptr}};

class ConvolutionOperator : public OperatorOf<ConvolutionProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnConvolutionForward, cudnnConvolutionBackwardData, "
        "cudnnConvolutionBackwardFilter",
        "nchw, nhwc; 1 to 3 dimensions of space",
        "of a forward bias, z and relu are fused; float64 contiguous",
        {"conv_fwd x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1",
         "conv_fwd x=f16[32,3,224,224]:nhwc w=f16[64,3,7,7]:nhwc pad=3 stride=2"}};
  }

  std::optional<at::Float32Op> float32_op() const override { return at::Float32Op::CONV; }
  bool has_math_types() const override { return true; }

  std::vector<LegacyName> legacy_names(const std::string& pass) const override {
    if (pass == "fwd") return {std::begin(kForwardAlgorithms), std::end(kForwardAlgorithms)};
    if (pass == "bwd_data") {
      return {std::begin(kBackwardDataAlgorithms), std::end(kBackwardDataAlgorithms)};
    }
    return {std::begin(kBackwardFilterAlgorithms), std::end(kBackwardFilterAlgorithms)};
  }

  std::vector<SlotSpec> slots(const ConvolutionProblem& p) const override {
    Role output = result_role(p.pass);
    std::vector<SlotSpec> slots{{Role::x, p.x, output == Role::x},
                                {Role::w, p.w, output == Role::w},
                                {Role::y, p.y, output == Role::y}};
    if (p.bias) slots.push_back({Role::bias, {*p.bias, {p.w.sizes[0]}, {1}}, false});
    if (p.z) slots.push_back({Role::z, p.y, false});
    return slots;
  }

  Cost cost(const ConvolutionProblem& p) const override {
    double taps = 1;
    for (int i = 1; i < p.w.sizes.size(); ++i) taps *= static_cast<double>(p.w.sizes[i]);
    auto outputs = static_cast<double>(p.y.numel());
    double terms = taps;
    if (p.pass == ConvolutionPass::bwd_data) {
      terms =
          taps / static_cast<double>(p.w.sizes[1]) * static_cast<double>(p.w.sizes[0] / p.groups);
    } else if (p.pass == ConvolutionPass::bwd_filter) {
      terms = outputs / static_cast<double>(p.w.sizes[0]);
    }
    double bytes = bytes_of(slots(p));
    return {2 * outputs * taps, bytes, terms};
  }

  bool accumulates(const ConvolutionProblem& p) const override {
    return p.accumulate != Accumulate::none;
  }
  void set_scalars(const ConvolutionProblem& p, Bindings& bindings) const override {
    Accumulate accumulate = p.accumulate;
    if (accumulate == Accumulate::none) return;
    bindings.alpha = accumulate == Accumulate::add ? 1 : 0.75;
    bindings.beta = accumulate == Accumulate::add ? 1 : 1.5;
  }
  Bindings reference(const ConvolutionProblem& p, const Bindings& bindings) const override;

  // Rounding of the output, once more before a bias or z is added, plus the error of a sum of that
  // many terms in the compute type. Filter gradients are long sums, split over blocks that may meet
  // in the data's type. Winograd and FFT transform their operands, which costs some more digits;
  // TF32 keeps 10 bits of each factor.
  double tolerance(const ConvolutionProblem& p, const Notes& notes) const override {
    double sum = epsilon_of(p.compute) * std::sqrt(cost(p).reduction_length);
    double roundings =
        p.pass == ConvolutionPass::bwd_filter ? 6 : 2 + p.bias.has_value() + p.z.has_value();
    double tolerance = roundings * epsilon_of(p.x.dtype) + 4 * sum;
    if (notes.has(Note::tf32)) tolerance += 2e-3;
    if (notes.has(Note::down_convert)) {
      tolerance += 8e-3 + epsilon_of(at::kHalf) * std::sqrt(cost(p).reduction_length);
    }
    if (notes.has(Note::low_accuracy)) tolerance += 1e-2;
    bool transforms = notes.has(Note::winograd) || notes.has(Note::fft);
    return transforms ? tolerance * 10 : tolerance;
  }

  std::vector<std::string> heuristic_order(const ConvolutionProblem& p) const override {
    if (p.groups > 1 && p.w.sizes[1] == 1) return depthwise_order(p);
    // cuDNN pads the few channels of an image; where windows do not overlap, as of a vision
    // transformer's patches, the product of matrices took an eighth to a half of its time. Of
    // contiguous ones its first choice converts to a smaller type, as PyTorch's call may; the next
    // took 1.09 to 2.8 times as long.
    bool of_images = p.w.sizes[1] < 8 && c10::isReducedFloatingType(p.x.dtype) &&
                     p.w.numel() > p.w.sizes[0] * p.w.sizes[1];
    bool plain = p.groups == 1 && !p.has_epilogue();
    if (of_images && is_channels_last(p.x)) {
      // In float16 PyTorch's call took half the time of its first choice (7x7, stride 2).
      if (plain && p.x.dtype == at::kHalf) return {"aten:matmul", "aten", "graph", "legacy"};
      return {"aten:matmul", "graph", "legacy", "aten"};
    }
    if (of_images && plain) return {"aten", "graph", "legacy"};
    return {"graph", "legacy", "aten"};
  }

 private:
  // Of one filter a channel. PyTorch's own kernel leads, but for what took less time in the twelve
  // such layers of MobileNet-V3 on an H200 (64 images; windows of 3x3 and 5x5, stride 1 and 2).
  static std::vector<std::string> depthwise_order(const ConvolutionProblem& p) {
    const auto& window = p.w.sizes;
    // With an epilogue the engines of these numbers are the fused graph's, which are others.
    bool plain = p.spatial_dims() == 2 && p.groups == window[0] && p.dilation == Dims(2, 1) &&
                 window[2] <= 5 && window[3] <= 5 && window[2] * window[3] > 1 && !p.has_epilogue();
    bool forward = p.pass == ConvolutionPass::fwd, filter = p.pass == ConvolutionPass::bwd_filter;
    if (plain && c10::isReducedFloatingType(p.x.dtype) && is_channels_last(p.x)) {
      // The engines that PyTorch's heuristic finds too, all but once: 9 times the time then.
      const char* engine = forward ? "graph:eng5" : filter ? "graph:eng16" : "graph:eng6";
      return {engine, "aten", "graph", "legacy"};
    }
    if (plain && p.x.dtype == at::kFloat && p.x.strides == contiguous_strides(p.x.sizes)) {
      // 0.77 to 0.98 of PyTorch's time; gradients of filters 0.29 to 0.76, once 1.13.
      bool three = window[2] == 3 && window[3] == 3;
      if (filter && p.stride == Dims(2, 1)) return {"graph", "aten", "legacy"};
      if (!filter && three) return {"graph:eng0", "aten", "graph", "legacy"};
    }
    return {"aten", "graph", "legacy"};
  }
};

// The float64 result of a pass, computed over a part of the images at a time on the CPU: there one
// call may take many seconds, in which the user cannot stop it.
template <class Part>
Tensor by_images(const ConvolutionProblem& p, double flops, bool on_cpu, Part&& part) {
  constexpr double kFlopsAtOnce = 1e9;
  int64_t images = p.x.sizes[0];
  double parts = on_cpu ? std::ceil(flops / kFlopsAtOnce) : 1;
  int64_t step = std::max<int64_t>(1, images / static_cast<int64_t>(parts));
  if (step >= images) return part(0, images);
  std::vector<Tensor> results;
  for (int64_t first = 0; first < images; first += step) {
    check_interrupt_if_due();
    Tensor result = part(first, std::min(step, images - first));
    if (p.pass != ConvolutionPass::bwd_filter || results.empty()) {
      results.push_back(std::move(result));
    } else {
      results[0].add_(result);
    }
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

// In float64 whatever the data; the sizes of x decide what stride leaves over.
Bindings ConvolutionOperator::reference(const ConvolutionProblem& p,
                                        const Bindings& bindings) const {
  auto in_double = [&](Role role) { return bindings[role].to(at::kDouble).contiguous(); };
  Tensor w = p.pass == ConvolutionPass::bwd_filter
                 ? at::empty(p.w.sizes, bindings[Role::x].options().dtype(at::kDouble))
                 : flip_for_mode(p, in_double(Role::w));
  Dims none(p.spatial_dims(), 0);
  bool on_cpu = bindings[p.pass == ConvolutionPass::fwd ? Role::x : Role::y].is_cpu();
  Tensor result;
  if (p.pass == ConvolutionPass::fwd) {
    Tensor x = in_double(Role::x);
    result = by_images(p, cost(p).flops, on_cpu, [&](int64_t first, int64_t count) {
      return at::convolution(x.narrow(0, first, count), w, {}, p.stride, p.padding, p.dilation,
                             false, none, p.groups);
    });
  } else {
    bool data = p.pass == ConvolutionPass::bwd_data;
    Tensor dy = in_double(Role::y);
    Tensor x = data ? at::empty(p.x.sizes, dy.options()) : in_double(Role::x);
    result = by_images(p, cost(p).flops, on_cpu, [&](int64_t first, int64_t count) {
      auto gradients = at::convolution_backward(
          dy.narrow(0, first, count), x.narrow(0, first, count), w, c10::nullopt, p.stride,
          p.padding, p.dilation, false, none, p.groups, {data, !data, false});
      return data ? std::get<0>(gradients) : std::get<1>(gradients);
    });
    if (!data) result = flip_for_mode(p, result);
  }
  const Tensor& before = bindings[result_role(p.pass)];
  if (accumulates(p)) {
    result = result.mul(bindings.alpha).add_(before.to(at::kDouble), bindings.beta);
  }
  add_epilogue(p, result, bindings);
  Bindings out;
  out[result_role(p.pass)] = std::move(result);
  return out;
}

const RegisterOperator<ConvolutionOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::convolution
