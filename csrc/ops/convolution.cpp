// Convolution: argument checks, output, Problem, and what the core must know of the family.
#include "ops/convolution.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "core/selector.h"

namespace torch_cudnn_ext::convolution {

namespace {

// What the arguments of an operator are called, for its error messages.
struct Names {
  const char* op;
  const char* x;
  const char* w;
  const char* y;
};
constexpr Names kForwardNames{"convolution", "input", "weight", "output"};
constexpr Names kTransposedNames{"convolution (transposed)", "output", "weight", "input"};
constexpr Names kBackwardInputNames{"convolution_backward_input", "input_size", "weight",
                                    "grad_output"};
constexpr Names kBackwardWeightNames{"convolution_backward_weight", "input", "weight_size",
                                     "grad_output"};

// One call of a primitive in the words of the forward convolution. Of the tensor that is computed,
// only the sizes are given.
struct Request {
  ConvolutionPass pass;
  const Names& names;
  const Tensor& first;   // x, or grad_output of the two backward passes
  const Tensor& second;  // w, or x for bwd_filter
  c10::IntArrayRef x_sizes, w_sizes;
  c10::IntArrayRef stride, padding, dilation;
  int64_t groups;
  bool flip_kernel;
  double alpha, beta;
  OptionalPolicy policy;
};

void check_tensors(const Request& r) {
  const Tensor& a = r.first;
  const Tensor& b = r.second;
  const char* a_name = r.pass == ConvolutionPass::fwd ? r.names.x : r.names.y;
  const char* b_name = r.pass == ConvolutionPass::bwd_filter ? r.names.x : r.names.w;
  TORCH_CHECK_VALUE(a.dim() >= 3 && a.dim() <= 5, "torch_cudnn_ext::", r.names.op, ": ", a_name,
                    " has sizes ", a.sizes(), ", wanted 3, 4 or 5 dimensions");
  TORCH_CHECK_VALUE(b.dim() == a.dim(), "torch_cudnn_ext::", r.names.op, ": ", b_name,
                    " has sizes ", b.sizes(), ", wanted as many dimensions as ", a_name,
                    ", which has sizes ", a.sizes());
  check_dtype(r.names.op, a_name, a);
  TORCH_CHECK_VALUE(b.scalar_type() == a.scalar_type(), "torch_cudnn_ext::", r.names.op, ": ",
                    b_name, " is ", b.scalar_type(), ", wanted ", a_name, "'s dtype ",
                    a.scalar_type());
  TORCH_CHECK_VALUE(b.device() == a.device(), "torch_cudnn_ext::", r.names.op, ": ", b_name,
                    " is on ", b.device(), ", wanted ", a_name, "'s device ", a.device());
}

void check_geometry(const Request& r, const Dims& output) {
  const Names& n = r.names;
  size_t rank = r.x_sizes.size();
  auto check_list = [&](const char* name, c10::IntArrayRef values, int64_t least) {
    TORCH_CHECK_VALUE(values.size() == rank - 2, "torch_cudnn_ext::", n.op, ": ", name, " is ",
                      values, ", wanted ", rank - 2, " values");
    for (int64_t value : values) {
      TORCH_CHECK_VALUE(value >= least, "torch_cudnn_ext::", n.op, ": ", name, " is ", values,
                        ", wanted at least ", least);
    }
  };
  TORCH_CHECK_VALUE(rank == static_cast<size_t>(r.first.dim()), "torch_cudnn_ext::", n.op, ": ",
                    n.x, " is ", r.x_sizes, ", wanted ", r.first.dim(), " sizes");
  TORCH_CHECK_VALUE(r.w_sizes.size() == rank, "torch_cudnn_ext::", n.op, ": ", n.w, " is ",
                    r.w_sizes, ", wanted ", rank, " sizes");
  check_list("stride", r.stride, 1);
  check_list("padding", r.padding, 0);
  check_list("dilation", r.dilation, 1);
  TORCH_CHECK_VALUE(r.groups >= 1, "torch_cudnn_ext::", n.op, ": groups is ", r.groups,
                    ", wanted at least 1");
  TORCH_CHECK_VALUE(r.w_sizes[1] * r.groups == r.x_sizes[1], "torch_cudnn_ext::", n.op, ": ", n.w,
                    " has sizes ", r.w_sizes, " and groups is ", r.groups, ", so ", n.x,
                    " must have ", r.w_sizes[1] * r.groups, " channels, but has sizes ", r.x_sizes);
  TORCH_CHECK_VALUE(r.w_sizes[0] % r.groups == 0, "torch_cudnn_ext::", n.op, ": ", n.w,
                    " has sizes ", r.w_sizes, ", wanted a first size that groups=", r.groups,
                    " divides");
  for (int i = 2; i < output.size(); ++i) {
    TORCH_CHECK_VALUE(output[i] >= 1, "torch_cudnn_ext::", n.op, ": ", n.w, " has sizes ",
                      r.w_sizes, " and dilation is ", r.dilation,
                      ", which is larger than the padded ", n.x, " of sizes ", r.x_sizes,
                      " with padding ", r.padding);
  }
  if (r.pass != ConvolutionPass::fwd) {
    TORCH_CHECK_VALUE(r.first.sizes() == c10::IntArrayRef(output), "torch_cudnn_ext::", n.op, ": ",
                      n.y, " has sizes ", r.first.sizes(), ", wanted ", c10::IntArrayRef(output),
                      ", the output sizes for ", n.x, " ", r.x_sizes, " and ", n.w, " ", r.w_sizes);
  }
}

bool has_zero(c10::IntArrayRef sizes) {
  for (int64_t size : sizes) {
    if (size == 0) return true;
  }
  return false;
}

Dims output_sizes(const Request& r) {
  Dims sizes{r.x_sizes[0], r.w_sizes[0]};
  for (size_t i = 0; i + 2 < r.x_sizes.size() && i < r.stride.size(); ++i) {
    int64_t reach = r.dilation[i] * (r.w_sizes[i + 2] - 1) + 1;
    int64_t room = r.x_sizes[i + 2] + 2 * r.padding[i] - reach;
    sizes.push_back(room < 0 || r.stride[i] < 1 ? 0 : room / r.stride[i] + 1);
  }
  return sizes;
}

c10::ScalarType compute_type(c10::ScalarType data, std::optional<Compute> wanted) {
  c10::ScalarType otherwise = data == at::kDouble ? at::kDouble : at::kFloat;
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

// Canonical by construction: see canonicalise_strides.
ConvolutionProblem problem_of(const Request& r, bool channels_last, const Dims& output,
                              const Policy& policy) {
  ConvolutionProblem p;
  p.pass = r.pass;
  c10::ScalarType dtype = r.first.scalar_type();
  channels_last = channels_last && (tells_layouts_apart(r.x_sizes) ||
                                    tells_layouts_apart(r.w_sizes) || tells_layouts_apart(output));
  p.x = {dtype, r.x_sizes, strides_of(r.x_sizes, channels_last)};
  p.w = {dtype, r.w_sizes, strides_of(r.w_sizes, channels_last)};
  p.y = {dtype, output, strides_of(output, channels_last)};
  p.padding = r.padding;
  p.stride = r.stride;
  p.dilation = r.dilation;
  p.groups = r.groups;
  p.mode = r.flip_kernel ? ConvolutionMode::conv : ConvolutionMode::cross;
  p.compute = compute_type(dtype, policy.compute);
  if (r.beta != 0 || r.alpha != 1) {
    p.accumulate = r.alpha == 1 && r.beta == 1 ? Accumulate::add : Accumulate::general;
  }
  return p;
}

c10::IntArrayRef result_sizes(const Request& r, const Dims& output) {
  if (r.pass == ConvolutionPass::fwd) return output;
  return r.pass == ConvolutionPass::bwd_data ? r.x_sizes : r.w_sizes;
}

// Runs the request. `out`, where defined, is accumulated into and returned; it is in the call's
// layout.
Tensor run(const Request& r, const Dims& output, bool channels_last, const Tensor& out) {
  Tensor first = in_layout(r.first, channels_last);
  Tensor second = in_layout(r.second, channels_last);
  const ResolvedPolicy& policy = resolve_policy(ConvolutionProblem::kFamily, r.policy);
  Problem problem = problem_of(r, channels_last, output, policy.policy);
  std::get<ConvolutionProblem>(problem).alignment = alignment_of({&first, &second, &out});
  Bindings bindings;
  bindings.alpha = r.alpha;
  bindings.beta = r.beta;
  Role result = result_role(r.pass);
  bindings[r.pass == ConvolutionPass::fwd ? Role::x : Role::y] = std::move(first);
  bindings[r.pass == ConvolutionPass::bwd_filter ? Role::x : Role::w] = std::move(second);
  if (out.defined()) bindings[result] = out;
  execute(problem, policy, device_of(r.first.device()), bindings);
  return std::move(bindings[result]);
}

// An operand without elements: there is nothing to sum.
Tensor run_empty(const Request& r, c10::IntArrayRef sizes, bool channels_last, const Tensor& z) {
  Tensor result = at::empty_strided(sizes, strides_of(sizes, channels_last), r.first.options());
  if (z.defined() && r.beta != 0) return result.copy_(z).mul_(r.beta);
  return result.zero_();
}

void check_like(const Request& r, const char* name, const Tensor& t, c10::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(t.sizes() == sizes, "torch_cudnn_ext::", r.names.op, ": ", name, " has sizes ",
                    t.sizes(), ", wanted ", sizes);
  TORCH_CHECK_VALUE(t.scalar_type() == r.first.scalar_type(), "torch_cudnn_ext::", r.names.op, ": ",
                    name, " is ", t.scalar_type(), ", wanted ", r.first.scalar_type());
  TORCH_CHECK_VALUE(t.device() == r.first.device(), "torch_cudnn_ext::", r.names.op, ": ", name,
                    " is on ", t.device(), ", wanted ", r.first.device());
}

// alpha * op + beta * z, as a new tensor.
Tensor run_functional(const Request& r, const OptionalTensor& z) {
  check_tensors(r);
  Dims output = output_sizes(r);
  bool empty = has_zero(r.x_sizes) || has_zero(r.w_sizes);
  if (!empty) check_geometry(r, output);
  c10::IntArrayRef sizes = result_sizes(r, output);
  bool channels_last = prefers_channels_last(r.first, r.second);
  c10::OptionalDeviceGuard guard(r.first.device());
  TORCH_CHECK_VALUE(z || r.beta == 0, "torch_cudnn_ext::", r.names.op, ": beta is ", r.beta,
                    " but z is None, wanted a tensor of sizes ", sizes);
  if (z) check_like(r, "z", *z, sizes);
  if (empty) return run_empty(r, sizes, channels_last, z.value_or(Tensor()));
  Tensor out;
  if (z && r.beta != 0) {
    out = at::empty_strided(sizes, strides_of(sizes, channels_last), r.first.options()).copy_(*z);
  }
  return run(r, output, channels_last, out);
}

// out = alpha * op + beta * out.
void run_into(const Request& r, Tensor& out) {
  check_tensors(r);
  Dims output = output_sizes(r);
  bool empty = has_zero(r.x_sizes) || has_zero(r.w_sizes);
  if (!empty) check_geometry(r, output);
  c10::IntArrayRef sizes = result_sizes(r, output);
  check_like(r, "out", out, sizes);
  bool channels_last = prefers_channels_last(r.first, r.second);
  c10::OptionalDeviceGuard guard(r.first.device());
  if (empty) {
    r.beta == 0 ? out.zero_() : out.mul_(r.beta);
    return;
  }
  bool in_place = !out.is_alias_of(r.first) && !out.is_alias_of(r.second) &&
                  in_layout(out, channels_last).is_same(out);
  if (in_place) {
    run(r, output, channels_last, out);
  } else {
    Dims strides = strides_of(sizes, channels_last);
    Tensor copy = at::empty_strided(sizes, strides, out.options()).copy_(out);
    out.copy_(run(r, output, channels_last, copy));
  }
}

void add_bias(Tensor& result, const OptionalTensor& bias, const char* op) {
  if (!bias || !bias->defined()) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == result.size(1), "torch_cudnn_ext::", op,
                    ": bias has sizes ", bias->sizes(), ", wanted [", result.size(1), "]");
  TORCH_CHECK_VALUE(bias->scalar_type() == result.scalar_type(), "torch_cudnn_ext::", op,
                    ": bias is ", bias->scalar_type(), ", wanted input's dtype ",
                    result.scalar_type());
  TORCH_CHECK_VALUE(bias->device() == result.device(), "torch_cudnn_ext::", op, ": bias is on ",
                    bias->device(), ", wanted ", result.device());
  Dims shape(static_cast<int>(result.dim()), 1);
  shape[1] = bias->size(0);
  result.add_(bias->view(shape));
}

// The x of the convolution whose backward-data pass a transposed convolution is.
Dims transposed_sizes(const Tensor& input, const Tensor& weight, c10::IntArrayRef stride,
                      c10::IntArrayRef padding, c10::IntArrayRef dilation,
                      c10::IntArrayRef output_padding, int64_t groups) {
  const char* op = kTransposedNames.op;
  TORCH_CHECK_VALUE(input.dim() >= 3 && input.dim() <= 5 && weight.dim() == input.dim(),
                    "torch_cudnn_ext::", op, ": input has sizes ", input.sizes(),
                    " and weight has sizes ", weight.sizes(),
                    ", wanted 3, 4 or 5 dimensions, the same number in both");
  size_t spatial = input.dim() - 2;
  TORCH_CHECK_VALUE(stride.size() == spatial && padding.size() == spatial &&
                        dilation.size() == spatial && output_padding.size() == spatial,
                    "torch_cudnn_ext::", op, ": stride is ", stride, ", padding is ", padding,
                    ", dilation is ", dilation, ", output_padding is ", output_padding, ", wanted ",
                    spatial, " values in each");
  Dims sizes{input.size(0), weight.size(1) * groups};
  for (size_t i = 0; i < spatial; ++i) {
    int64_t limit = std::max(stride[i], dilation[i]);
    TORCH_CHECK_VALUE(output_padding[i] >= 0 && output_padding[i] < limit, "torch_cudnn_ext::", op,
                      ": output_padding is ", output_padding,
                      ", wanted at least 0 and less than stride ", stride, " or dilation ",
                      dilation);
    sizes.push_back((input.size(static_cast<int64_t>(i) + 2) - 1) * stride[i] - 2 * padding[i] +
                    dilation[i] * (weight.size(static_cast<int64_t>(i) + 2) - 1) +
                    output_padding[i] + 1);
    TORCH_CHECK_VALUE(sizes[static_cast<int>(i) + 2] >= 1 || input.numel() == 0,
                      "torch_cudnn_ext::", op, ": the output would have the size ",
                      sizes[static_cast<int>(i) + 2], " for input ", input.sizes(), ", weight ",
                      weight.sizes(), " and padding ", padding);
  }
  return sizes;
}

}  // namespace

// Of a tensor over one dimension of space, what PyTorch finds for the same tensor as a plane of
// height 1.
static bool is_channels_last(const Tensor& t) {
  if (t.dim() == 4) return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  if (t.dim() == 5) return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast3d;
  if (t.is_contiguous()) return false;
  return t.unsqueeze(2).suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

bool prefers_channels_last(const Tensor& a, const Tensor& b) {
  return a.scalar_type() != at::kDouble && (is_channels_last(a) || is_channels_last(b));
}

#define LISTS                                                     \
  c10::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(stride);     \
  c10::IntArrayRef pads = C10_AS_INTARRAYREF_SLOW(padding);       \
  c10::IntArrayRef dilations = C10_AS_INTARRAYREF_SLOW(dilation); \
  int64_t group_count = groups.guard_int(__FILE__, __LINE__)

Tensor forward(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
               SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
               bool transposed, SymIntArrayRef output_padding, SymInt groups,
               const OptionalTensor& z, double alpha, double beta, bool flip_kernel,
               OptionalPolicy policy) {
  LISTS;
  Tensor result;
  if (transposed) {
    Dims x_sizes = transposed_sizes(input, weight, strides, pads, dilations,
                                    C10_AS_INTARRAYREF_SLOW(output_padding), group_count);
    result = run_functional(
        {ConvolutionPass::bwd_data, kTransposedNames, input, weight, x_sizes, weight.sizes(),
         strides, pads, dilations, group_count, flip_kernel, alpha, beta, policy},
        z);
  } else {
    result = run_functional(
        {ConvolutionPass::fwd, kForwardNames, input, weight, input.sizes(), weight.sizes(), strides,
         pads, dilations, group_count, flip_kernel, alpha, beta, policy},
        z);
  }
  add_bias(result, bias, "convolution");
  return result;
}

Tensor backward_input(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                      SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                      SymInt groups, const OptionalTensor& z, double alpha, double beta,
                      bool flip_kernel, OptionalPolicy policy) {
  LISTS;
  return run_functional({ConvolutionPass::bwd_data, kBackwardInputNames, grad_output, weight,
                         C10_AS_INTARRAYREF_SLOW(input_size), weight.sizes(), strides, pads,
                         dilations, group_count, flip_kernel, alpha, beta, policy},
                        z);
}

Tensor backward_weight(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                       SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                       SymInt groups, const OptionalTensor& z, double alpha, double beta,
                       bool flip_kernel, OptionalPolicy policy) {
  LISTS;
  return run_functional({ConvolutionPass::bwd_filter, kBackwardWeightNames, grad_output, input,
                         input.sizes(), C10_AS_INTARRAYREF_SLOW(weight_size), strides, pads,
                         dilations, group_count, flip_kernel, alpha, beta, policy},
                        z);
}

void forward_out(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                 SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                 bool transposed, SymIntArrayRef output_padding, SymInt groups, Tensor& out,
                 double alpha, double beta, bool flip_kernel, OptionalPolicy policy) {
  LISTS;
  if (transposed) {
    Dims x_sizes = transposed_sizes(input, weight, strides, pads, dilations,
                                    C10_AS_INTARRAYREF_SLOW(output_padding), group_count);
    run_into({ConvolutionPass::bwd_data, kTransposedNames, input, weight, x_sizes, weight.sizes(),
              strides, pads, dilations, group_count, flip_kernel, alpha, beta, policy},
             out);
  } else {
    run_into({ConvolutionPass::fwd, kForwardNames, input, weight, input.sizes(), weight.sizes(),
              strides, pads, dilations, group_count, flip_kernel, alpha, beta, policy},
             out);
  }
  add_bias(out, bias, "convolution_out");
}

void backward_input_out(const Tensor& grad_output, const Tensor& weight, SymIntArrayRef input_size,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                        SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                        OptionalPolicy policy) {
  LISTS;
  run_into({ConvolutionPass::bwd_data, kBackwardInputNames, grad_output, weight,
            C10_AS_INTARRAYREF_SLOW(input_size), weight.sizes(), strides, pads, dilations,
            group_count, flip_kernel, alpha, beta, policy},
           out);
}

void backward_weight_out(const Tensor& grad_output, const Tensor& input, SymIntArrayRef weight_size,
                         SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                         SymInt groups, Tensor& out, double alpha, double beta, bool flip_kernel,
                         OptionalPolicy policy) {
  LISTS;
  run_into({ConvolutionPass::bwd_filter, kBackwardWeightNames, grad_output, input, input.sizes(),
            C10_AS_INTARRAYREF_SLOW(weight_size), strides, pads, dilations, group_count,
            flip_kernel, alpha, beta, policy},
           out);
}
#undef LISTS

ConvolutionProblem make_problem(ConvolutionPass pass, const Tensor& x, const Tensor& w,
                                c10::IntArrayRef stride, c10::IntArrayRef padding,
                                c10::IntArrayRef dilation, int64_t groups, OptionalPolicy policy) {
  Request r{pass,    kForwardNames, x,      w,     x.sizes(), w.sizes(), stride,
            padding, dilation,      groups, false, 1,         0,         policy};
  check_tensors(r);
  Dims output = output_sizes(r);
  r.pass = ConvolutionPass::fwd;  // y is not at hand to be checked
  check_geometry(r, output);
  r.pass = pass;
  const ResolvedPolicy& resolved = resolve_policy(ConvolutionProblem::kFamily, policy);
  return problem_of(r, prefers_channels_last(x, w), output, resolved.policy);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) {
  m.impl("convolution", TORCH_FN(forward));
  m.impl("convolution_backward_input", TORCH_FN(backward_input));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight));
  m.impl("convolution_out", TORCH_FN(forward_out));
  m.impl("convolution_backward_input_out", TORCH_FN(backward_input_out));
  m.impl("convolution_backward_weight_out", TORCH_FN(backward_weight_out));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) {
  m.impl("convolution", TORCH_FN(forward));
  m.impl("convolution_backward_input", TORCH_FN(backward_input));
  m.impl("convolution_backward_weight", TORCH_FN(backward_weight));
  m.impl("convolution_out", TORCH_FN(forward_out));
  m.impl("convolution_backward_input_out", TORCH_FN(backward_input_out));
  m.impl("convolution_backward_weight_out", TORCH_FN(backward_weight_out));
}

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

class ConvolutionOperator : public Operator {
 public:
  const char* family() const override { return ConvolutionProblem::kFamily; }
  std::vector<std::string> passes() const override { return {"fwd", "bwd_data", "bwd_filter"}; }

  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnConvolutionForward, cudnnConvolutionBackwardData, "
        "cudnnConvolutionBackwardFilter",
        "nchw, nhwc; 1 to 3 dimensions of space",
        "no fused epilogue; float64 contiguous",
        {"conv_fwd x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1"}};
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

  std::vector<SlotSpec> slots(const Problem& problem) const override {
    const auto& p = std::get<ConvolutionProblem>(problem);
    Role output = result_role(p.pass);
    return {{Role::x, p.x, output == Role::x},
            {Role::w, p.w, output == Role::w},
            {Role::y, p.y, output == Role::y}};
  }

  Cost cost(const Problem& problem) const override {
    const auto& p = std::get<ConvolutionProblem>(problem);
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
    auto bytes = static_cast<double>(p.x.nbytes() + p.w.nbytes() + p.y.nbytes());
    return {2 * outputs * taps, bytes, terms};
  }

  bool accumulates(const Problem& problem) const override {
    return std::get<ConvolutionProblem>(problem).accumulate != Accumulate::none;
  }
  int64_t alignment(const Problem& problem) const override {
    return std::get<ConvolutionProblem>(problem).alignment;
  }

  Bindings reference(const Problem& problem, const Bindings& bindings) const override;

  // Rounding of the output, plus the error of a sum of that many terms in the compute type. Filter
  // gradients are long sums, split over blocks that may meet in the data's type. Winograd and FFT
  // transform their operands, which costs some more digits; TF32 keeps 10 bits of each factor.
  double tolerance(const Problem& problem, const Notes& notes) const override {
    const auto& p = std::get<ConvolutionProblem>(problem);
    double sum = epsilon_of(p.compute) * std::sqrt(cost(problem).reduction_length);
    double roundings = p.pass == ConvolutionPass::bwd_filter ? 6 : 2;
    double tolerance = roundings * epsilon_of(p.x.dtype) + 4 * sum;
    if (notes.has(Note::tf32)) tolerance += 2e-3;
    if (notes.has(Note::down_convert)) {
      tolerance += 8e-3 + epsilon_of(at::kHalf) * std::sqrt(cost(problem).reduction_length);
    }
    if (notes.has(Note::low_accuracy)) tolerance += 1e-2;
    bool transforms = notes.has(Note::winograd) || notes.has(Note::fft);
    return transforms ? tolerance * 10 : tolerance;
  }

  // PyTorch's own choice for a depthwise convolution is its own kernel, mostly the faster one.
  std::vector<std::string> heuristic_order(const Problem& problem,
                                           const Device& device) const override {
    const auto& p = std::get<ConvolutionProblem>(problem);
    if (!device.has_gpu_backends()) return {"aten", "cpu"};
    bool depthwise = p.groups > 1 && p.w.sizes[1] == 1;
    if (depthwise) return {"aten", "graph", "legacy"};
    return {"graph", "legacy", "aten"};
  }
};

// In float64 whatever the data; the sizes of x decide what stride leaves over.
Bindings ConvolutionOperator::reference(const Problem& problem, const Bindings& bindings) const {
  const auto& p = std::get<ConvolutionProblem>(problem);
  auto in_double = [&](Role role) { return bindings[role].to(at::kDouble).contiguous(); };
  Dims spatial;
  for (int i = 2; i < p.w.sizes.size(); ++i) spatial.push_back(i);
  bool flip = p.mode == ConvolutionMode::conv;
  Tensor w = p.pass == ConvolutionPass::bwd_filter
                 ? at::empty(p.w.sizes, bindings[Role::x].options().dtype(at::kDouble))
                 : in_double(Role::w);
  if (flip) w = w.flip(spatial);
  Tensor result;
  if (p.pass == ConvolutionPass::fwd) {
    Dims none(p.spatial_dims(), 0);
    result = at::convolution(in_double(Role::x), w, {}, p.stride, p.padding, p.dilation, false,
                             none, p.groups);
  } else {
    bool data = p.pass == ConvolutionPass::bwd_data;
    Tensor x = data ? at::empty(p.x.sizes, bindings[Role::y].options().dtype(at::kDouble))
                    : in_double(Role::x);
    Dims none(p.spatial_dims(), 0);
    auto gradients =
        at::convolution_backward(in_double(Role::y), x, w, c10::nullopt, p.stride, p.padding,
                                 p.dilation, false, none, p.groups, {data, !data, false});
    result = data ? std::get<0>(gradients) : std::get<1>(gradients);
    if (flip && !data) result = result.flip(spatial);
  }
  const Tensor& before = bindings[result_role(p.pass)];
  if (accumulates(problem)) {
    result = result.mul(bindings.alpha).add_(before.to(at::kDouble), bindings.beta);
  }
  Bindings out;
  out[result_role(p.pass)] = std::move(result);
  return out;
}

const bool registered = [] {
  register_operator(std::make_unique<ConvolutionOperator>());
  return true;
}();

}  // namespace
}  // namespace torch_cudnn_ext::convolution
