// Pooling on tensors that have data: makes the Problem of a call and runs it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "core/select/decision_record.h"
#include "core/writer.h"
#include "ops/known_kernel.h"
#include "ops/pooling/pooling.h"

namespace torch_cudnn_ext::pooling {
namespace {

Tensor dense(const Tensor& t, const Windows& w, at::MemoryFormat format) {
  return lift(t, w).contiguous(format);
}

// The strides of one pixel or one channel fit both layouts, but later operators read the layout off
// them.
Tensor with_strides_of(at::MemoryFormat format, const Tensor& t) {
  if (format == at::MemoryFormat::Contiguous) return t;
  Dims strides = channels_last_strides(t.sizes());
  return t.strides() == at::IntArrayRef(strides) ? t : strided_view(t, t.sizes(), strides);
}

// The numbers of a line as those of a plane of height 1.
Dims lifted(SymIntArrayRef values, int64_t of_height) {
  Dims out;
  if (values.size() == 1) out.push_back(of_height);
  for (const SymInt& value : values) out.push_back(value.guard_int(__FILE__, __LINE__));
  return out;
}

// `x` has the input's lifted sizes and its format.
PoolingProblem make_problem(Pass pass, PoolingMode mode, const Windows& w, const TensorSpec& x,
                            int64_t alignment) {
  PoolingProblem p;
  p.pass = pass;
  p.mode = mode;
  p.x = x;
  p.window = lifted(w.window, 1);
  p.stride = lifted(w.stride, 1);
  p.padding = lifted(w.padding, 0);
  p.dilation = lifted(w.dilation, 1);
  p.ceil = w.ceil;
  p.adaptive = w.adaptive;
  p.alignment = alignment;
  return p;
}

void run_pooling(PoolingProblem& p, OptionalPolicy policy, const Tensor& on, Bindings& bindings) {
  p.canonicalise();
  run_problem(p, policy, on, bindings);
}

// The result and, with `train`, the reserve of a maximum and its writer.
Tensors3 run_forward(const char* op, const Tensor& input, const Windows& w, PoolingMode mode,
                     int64_t divisor, bool train, OptionalPolicy policy) {
  check_dtype(op, "input", input);
  SymInts sizes = output_sizes(op, input.sym_sizes(), w);
  c10::OptionalDeviceGuard guard(input.device());
  bool is_max = mode == PoolingMode::max;
  if (c10::multiply_integers(sizes) == 0) {
    Tensor y = empty_output(op, input, w, is_max);
    if (!train) return {y, Tensor(), Tensor()};
    return {y, no_reserve(input), make_writer(0, input)};
  }
  Bindings bindings;
  Tensor& x = bindings[Role::x];
  x = dense(input, w, format_of(lift(input, w), w, is_max));
  if (train) align(bindings, {Role::x});
  PoolingProblem p = make_problem(Pass::fwd, mode, w, spec_of(x), alignment_of({&x}));
  p.divisor = divisor;
  p.train = train;
  run_pooling(p, policy, x, bindings);
  at::MemoryFormat format = format_of_result(lift(input, w), w, is_max);
  Tensor y = lower(with_strides_of(format, bindings[Role::y]), w, input.dim());
  if (!train) return {y, Tensor(), Tensor()};
  const Tensor& reserve = bindings[Role::reserve];
  return {y, reserve.defined() ? reserve : no_reserve(input), writer_of_last(input)};
}

Tensors3 run_max_pool_train(const MaxPoolTrainArgs& args) {
  return run_forward("max_pool", args.input, args.w, PoolingMode::max, 1, true, args.policy);
}

Tensors3 max_pool_train(const MaxPoolTrainArgs& args) {
  return KnownKernel<PoolingProblem, run_max_pool_train>::call(args);
}

PoolingMode mode_of(const AverageArgs& average) {
  if (average.divisor) return PoolingMode::sum;
  return average.count_include_pad ? PoolingMode::avg_include : PoolingMode::avg_exclude;
}

Tensor run_max_pool(const MaxPoolArgs& args) {
  return std::get<0>(
      run_forward("max_pool", args.input, args.w, PoolingMode::max, 1, false, args.policy));
}

// PyTorch's own pooling of images, by windows that do not adapt.
std::optional<Tensor> plain_max_pool(const MaxPoolArgs& args) {
  const WindowArgs& w = args.w;
  if (args.input.dim() != 4 || w.kernel_size.size() != 2 || w.adaptive) return std::nullopt;
  return std::get<0>(at::max_pool2d_with_indices(
      args.input, C10_AS_INTARRAYREF_SLOW(w.kernel_size), C10_AS_INTARRAYREF_SLOW(w.stride),
      C10_AS_INTARRAYREF_SLOW(w.padding), C10_AS_INTARRAYREF_SLOW(w.dilation), w.ceil));
}

std::optional<Tensor> plain_avg_pool(const AvgPoolArgs& args) {
  const AverageArgs& a = args.average;
  if (args.input.dim() != 4 || a.kernel_size.size() != 2 || a.adaptive) return std::nullopt;
  return at::avg_pool2d(args.input, C10_AS_INTARRAYREF_SLOW(a.kernel_size),
                        C10_AS_INTARRAYREF_SLOW(a.stride), C10_AS_INTARRAYREF_SLOW(a.padding),
                        a.ceil, a.count_include_pad, a.divisor);
}

Tensor run_avg_pool(const AvgPoolArgs& args) {
  Windows w = checked_windows(args.input, args.average);
  int64_t divisor = divisor_of(args.average);
  return std::get<0>(
      run_forward("avg_pool", args.input, w, mode_of(args.average), divisor, false, args.policy));
}

Tensor run_avg_pool_backward(const AvgPoolBackwardArgs& args) {
  Windows w = args.average.windows();
  check_avg_backward(args, w);
  c10::OptionalDeviceGuard guard(args.grad_output.device());
  if (args.grad_output.numel() == 0) return avg_pool_backward_meta(args).zero_();
  at::MemoryFormat format = format_from(args.channels_last, w);
  Bindings bindings;
  Tensor& dy = bindings[Role::dy];
  dy = dense(args.grad_output, w, format);
  Dims sizes{dy.size(0), dy.size(1)};
  for (int64_t size : lifted(args.input_size.slice(args.input_size.size() - w.window.size()), 1)) {
    sizes.push_back(size);
  }
  TensorSpec x{dy.scalar_type(), sizes,
               args.channels_last ? channels_last_strides(sizes) : contiguous_strides(sizes)};
  PoolingProblem p = make_problem(Pass::bwd, mode_of(args.average), w, x, alignment_of({&dy}));
  p.divisor = divisor_of(args.average);
  run_pooling(p, args.policy, dy, bindings);
  return lower(with_strides_of(format, bindings[Role::dx]), w,
               static_cast<int64_t>(args.input_size.size()));
}

// Runs in the layout of the forward: hooks on saved tensors may have changed that of the tensors.
Tensor run_max_pool_backward(const MaxPoolBackwardArgs& args) {
  Windows w = args.w;
  const Tensor& input = args.input;
  check_max_backward(args, w);
  check_device("_max_pool_backward", "reserve", args.reserve, "input", input);
  OptionalPolicy coupled =
      policy_of_backward(PoolingProblem::kFamily, "_max_pool_backward", args.writer, args.policy);
  c10::OptionalDeviceGuard guard(input.device());
  if (args.output.numel() == 0) return max_pool_backward_meta(args).zero_();
  at::MemoryFormat format = format_from(args.channels_last, w);
  Bindings bindings;
  Tensor& x = bindings[Role::x];
  x = dense(input, w, format);
  bindings[Role::y] = dense(args.output, w, format);
  bindings[Role::dy] = dense(args.grad_output, w, format);
  bindings[Role::reserve] = args.reserve;
  align(bindings, {Role::x, Role::y, Role::dy, Role::reserve});
  PoolingProblem p = make_problem(Pass::bwd, PoolingMode::max, w, spec_of(x), 16);
  run_pooling(p, coupled, x, bindings);
  return lower(with_strides_of(format, bindings[Role::dx]), w, input.dim());
}

void register_all(torch::Library& m) {
  register_kernels<max_pool, avg_pool, avg_pool_backward, max_pool_train, max_pool_backward>(m);
}

}  // namespace

Tensor max_pool(const MaxPoolArgs& args) {
  return KnownKernel<PoolingProblem, run_max_pool, plain_max_pool>::call(args);
}

Tensor max_pool_backward(const MaxPoolBackwardArgs& args) {
  return KnownKernel<PoolingProblem, run_max_pool_backward>::call(args);
}

Tensor avg_pool(const AvgPoolArgs& args) {
  return KnownKernel<PoolingProblem, run_avg_pool, plain_avg_pool>::call(args);
}

Tensor avg_pool_backward(const AvgPoolBackwardArgs& args) {
  return KnownKernel<PoolingProblem, run_avg_pool_backward>::call(args);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_all(m); }

}  // namespace torch_cudnn_ext::pooling
