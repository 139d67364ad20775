// The kernels of convolution: the Problem of a call, and running it.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "core/select/execute.h"
#include "core/tensors.h"
#include "ops/convolution/convolution.h"
#include "ops/known_kernel.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::convolution {
namespace {

constexpr Names kForwardNames{"convolution", "input", "weight", "output"};
constexpr Names kFusedNames{"convolution_fused", "input", "weight", "output"};
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

// The tensor in one of the two layouts that a call uses; a copy only if it is in neither.
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
  p.activation = r.activation.value_or(Activation::none);
  if (r.beta != 0 || r.alpha != 1) {
    p.accumulate = r.alpha == 1 && r.beta == 1 ? Accumulate::add : Accumulate::general;
  }
  return p;
}

// Whether all tensors must be aligned.
bool wants_aligned(const Request& r) { return r.pass != ConvolutionPass::fwd && r.first.is_cuda(); }

// Runs the request. `out`, if defined, is accumulated into and returned; it is in the call's
// layout, and aligned if that is wanted. `bias` and `z` are part of the problem if they are
// defined; z is in the call's layout.
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

// alpha * op + beta * z + bias, or activation(op + z + bias), as a new tensor; for meta tensors,
// its shape and layout.
Tensor run_functional(const Request& r, const OptionalTensor& bias, const OptionalTensor& z) {
  Sizes sizes = checked_sizes(r, bias);
  const SymSizes& result_sizes = sizes.of(result_role(r.pass));
  TORCH_CHECK_VALUE(z || r.beta == 0, "torch_cudnn_ext::", r.names.op, ": beta is ", r.beta,
                    " but z is None, wanted a tensor of sizes ", SymIntArrayRef(result_sizes));
  if (z) check_like(r, "z", *z, result_sizes);
  bool channels_last = prefers_channels_last(r, sizes);
  if (r.first.is_meta()) return empty_result(result_sizes, channels_last, r.first);
  c10::OptionalDeviceGuard guard(r.first.device());
  bool adds = z && r.beta != 0;
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
    // Aligned, so that the few numbers of a bias do not exclude engines.
    Tensor addend = fused ? aligned(bias->contiguous()) : Tensor();
    Tensor summand = r.activation && z ? in_layout(*z, channels_last) : Tensor();
    result = run(r, sizes, channels_last, result, addend, summand);
    // If its memory is that of both layouts, the problem may have had the other's strides.
    if (channels_last && !tells_layouts_apart(result.sizes())) {
      result = strided_view(result, result.sizes(), strides_of(result.sizes(), channels_last));
    }
  }
  if (has(bias) && !fused && result.numel() > 0) add_bias(result, *bias);
  if (empty && r.activation) {
    if (z) result.add_(*z);
    activate(*r.activation, result);
  }
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

template <class Last>
Request request_of(const ForwardArgsWith<Last>& a) {
  bool adds = std::any_of(a.output_padding.begin(), a.output_padding.end(),
                          [](const SymInt& added) { return added != 0; });
  TORCH_CHECK_VALUE(a.transposed || !adds, "torch_cudnn_ext::", kForwardNames.op,
                    ": output_padding is ", a.output_padding,
                    ", wanted zeros, as the convolution is not transposed");
  return {a.transposed ? ConvolutionPass::bwd_data : ConvolutionPass::fwd,
          a.transposed ? kTransposedNames : kForwardNames,
          a.input,
          a.weight,
          {},
          a.stride,
          a.padding,
          a.dilation,
          a.groups,
          a.flip_kernel,
          a.alpha,
          a.beta,
          a.policy,
          a.transposed ? std::optional(a.output_padding) : std::nullopt};
}

template <class Last>
Request request_of(ConvolutionPass pass, const BackwardArgsWith<Last>& a) {
  bool data = pass == ConvolutionPass::bwd_data;
  return {pass,          data ? kBackwardInputNames : kBackwardWeightNames,
          a.grad_output, a.other,
          a.result,      a.stride,
          a.padding,     a.dilation,
          a.groups,      a.flip_kernel,
          a.alpha,       a.beta,
          a.policy};
}

Tensor run_forward_fused(const ForwardFusedArgs& a) {
  Request r{ConvolutionPass::fwd, kFusedNames, a.input,       a.weight, {}, a.stride, a.padding,
            a.dilation,           a.groups,    a.flip_kernel, 1,        0,  a.policy};
  r.activation = activation_from_text("convolution_fused: activation", a.activation);
  return run_functional(r, a.bias, a.z);
}

Tensor forward_fused(const ForwardFusedArgs& args) {
  return KnownKernel<ConvolutionProblem, run_forward_fused>::call(args);
}

Tensor run_backward_input(const BackwardInputArgs& args) {
  return run_functional(request_of(ConvolutionPass::bwd_data, args), {}, args.last);
}

Tensor run_backward_weight(const BackwardWeightArgs& args) {
  return run_functional(request_of(ConvolutionPass::bwd_filter, args), {}, args.last);
}

void forward_out(const ForwardOutArgs& args) {
  call_without_surplus(args,
                       [](const ForwardOutArgs& a) { run_into(request_of(a), a.bias, a.last); });
}

void backward_input_out(const BackwardInputOutArgs& args) {
  run_into(request_of(ConvolutionPass::bwd_data, args), {}, args.last);
}

void backward_weight_out(const BackwardWeightOutArgs& args) {
  run_into(request_of(ConvolutionPass::bwd_filter, args), {}, args.last);
}

std::optional<Tensor> plain_convolution(const ForwardArgs& args) {
  bool fits = args.alpha == 1 && !has(args.last) && !args.flip_kernel;
  return fits ? plain_forward(args) : std::nullopt;
}

void register_all(torch::Library& m) {
  register_kernels<forward, forward_fused, backward_input, backward_weight, forward_out,
                   backward_input_out, backward_weight_out>(m);
}

}  // namespace

Tensor run_forward(const ForwardArgs& args) {
  return call_without_surplus(
      args, [](const ForwardArgs& a) { return run_functional(request_of(a), a.bias, a.last); });
}

Tensor forward(const ForwardArgs& args) {
  return KnownKernel<ConvolutionProblem, run_forward, plain_convolution>::call(args);
}

Tensor backward_input(const BackwardInputArgs& args) {
  return KnownKernel<ConvolutionProblem, run_backward_input>::call(args);
}

Tensor backward_weight(const BackwardWeightArgs& args) {
  return KnownKernel<ConvolutionProblem, run_backward_weight>::call(args);
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
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_all(m); }

}  // namespace torch_cudnn_ext::convolution
