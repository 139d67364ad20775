// Recurrent networks on tensors that have data: makes the Problem of a call and runs it.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include "core/select/decision_record.h"
#include "core/writer.h"
#include "ops/rnn/rnn.h"

namespace torch_cudnn_ext::rnn {
namespace {

void check_tensor(const char* op, const char* name, const Tensor& t, IntArrayRef wanted,
                  const Tensor& input) {
  TORCH_CHECK_VALUE(t.sizes() == wanted, "torch_cudnn_ext::", op, ": ", name, " has sizes ",
                    t.sizes(), ", wanted ", wanted);
  check_alike(op, name, t, "input", input);
}

void check_optional(const char* op, const char* name, const OptionalTensor& t,
                    const TensorSpec& spec, const Tensor& input) {
  if (has(t)) check_tensor(op, name, *t, spec.sizes, input);
}

// The tensors of a call as a plan takes them, and its problem.
struct Call {
  RnnProblem problem;
  Bindings bindings;
};

void check_parameters(const char* op, const std::vector<RnnParameter>& wanted, TensorList params,
                      const Tensor& input) {
  for (size_t i = 0; i < params.size(); ++i) {
    const RnnParameter& w = wanted[i];
    Dims shape = w.columns > 0 ? Dims{w.rows, w.columns} : Dims{w.rows};
    bool fits = params[i].sizes() == IntArrayRef(shape) &&
                params[i].scalar_type() == input.scalar_type() &&
                params[i].device() == input.device();
    if (!fits) check_tensor(op, c10::str("params[", i, "]").c_str(), params[i], shape, input);
  }
}

Call make_call(Pass pass, const Inputs& in, const Settings& s, bool train) {
  const char* op = name_of(s);
  const Tensor& input = in.input;
  check_dtype(op, "input", input);
  TORCH_CHECK_VALUE(input.size(-1) > 0, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sizes(), ", wanted at least one feature");
  Sizes sizes = sizes_of(input, in.batch_sizes, in.params, s);
  Call call;
  RnnProblem& p = call.problem;
  p = s.problem();
  sizes.set(p, input);
  p.pass = pass;
  p.train = train;
  p.compute = p.default_compute();
  // Sequences of one length are a plain batch, however they came.
  bool packed = !in.batch_sizes.empty() && in.batch_sizes.back() != in.batch_sizes.front();
  if (packed) p.lengths = RnnLengths::packed;
  p.canonicalise();
  std::vector<RnnParameter> parameters = rnn_parameters(p);
  check_parameters(op, parameters, in.params, input);
  check_optional(op, "hx", in.hx, rnn_h(p), input);
  check_optional(op, "cx", in.cx, rnn_c(p), input);
  Bindings& b = call.bindings;
  b[Role::x] = packed ? input.contiguous() : input.contiguous().view(p.x.sizes);
  if (packed) b[Role::batch_sizes] = at::tensor(in.batch_sizes, at::kLong);
  b[Role::hx] = contiguous_or_undefined(in.hx);
  b[Role::cx] = contiguous_or_undefined(in.cx);
  if (input.numel() > 0) b[Role::w] = rnn_flatten(parameters, in.params.vec());
  return call;
}

// With aligned tensors: a backward runs what its forward ran, whatever its own are.
void kernels_run(Call& call, const Tensor& input, OptionalPolicy policy) {
  Bindings& b = call.bindings;
  align(b, {Role::x, Role::hx, Role::cx, Role::w, Role::dy, Role::y, Role::dhy, Role::dcy,
            Role::reserve});
  run_problem(call.problem, policy, input, b);
}

// A dry run of a packed batch makes the whole one; its rows come first.
Tensor rows_of(const Tensor& t, IntArrayRef sizes) {
  int64_t count = c10::multiply_integers(sizes);
  return (t.numel() == count ? t : t.view(-1).narrow(0, 0, count)).view(sizes);
}

Tensor empty_of(const TensorSpec& spec, const Tensor& input) {
  return at::empty(spec.sizes, input.options());
}

ForwardArgs::Result forward(const ForwardArgs& args) {
  const Settings& s = args.s;
  const Tensor& input = args.in.input;
  c10::OptionalDeviceGuard guard(input.device());
  Call call = make_call(Pass::fwd, args.in, s, args.for_backward);
  const RnnProblem& p = call.problem;
  Bindings& b = call.bindings;
  auto y_sizes = input.sizes().vec();
  y_sizes.back() = p.directions() * p.state();
  TORCH_CHECK_VALUE(p.steps() > 0, "torch_cudnn_ext::", name_of(s), ": input has sizes ",
                    input.sizes(), ", wanted at least one time step");
  if (p.batch() == 0) {
    return {at::empty(y_sizes, input.options()), empty_of(rnn_h(p), input),
            s.is_lstm() ? empty_of(rnn_c(p), input) : nothing(input), no_reserve(input),
            make_writer(0, input)};
  }
  kernels_run(call, input, args.policy);
  Tensor cy = s.is_lstm() ? b[Role::cy] : nothing(input);
  return {rows_of(b[Role::y], y_sizes), b[Role::hy], cy,
          args.for_backward ? b[Role::reserve] : no_reserve(input),
          args.for_backward ? writer_of_last(input) : make_writer(0, input)};
}

BackwardArgs::Result backward(const BackwardArgs& args) {
  const Settings& s = args.s;
  const Tensor &input = args.in.input, &output = args.output;
  const char* op = name_of(s);
  check_device(op, "reserve", args.reserve, "input", input);
  OptionalPolicy coupled =
      policy_of_backward(RnnProblem::kFamily, "_rnn_backward", args.writer, args.policy);
  c10::OptionalDeviceGuard guard(input.device());
  Call call = make_call(Pass::bwd, args.in, s, true);
  const RnnProblem& p = call.problem;
  Bindings& b = call.bindings;
  check_optional(op, "grad_output", args.grad_output, spec_of(output), input);
  check_optional(op, "grad_hy", args.grad_hy, rnn_h(p), input);
  check_optional(op, "grad_cy", args.grad_cy, rnn_c(p), input);
  if (p.batch() == 0) {
    return {at::empty_like(input), empty_of(rnn_h(p), input),
            s.is_lstm() ? empty_of(rnn_c(p), input) : nothing(input),
            at::zeros(rnn_w(p).sizes, input.options())};
  }
  Tensor dy =
      has(args.grad_output) ? *args.grad_output : at::zeros(output.sizes(), output.options());
  bool packed = p.lengths == RnnLengths::packed;
  Dims y_sizes = packed ? Dims(output.sizes()) : rnn_y(p).sizes;
  b[Role::dy] = dy.contiguous().view(y_sizes);
  b[Role::y] = output.contiguous().view(y_sizes);
  b[Role::dhy] = contiguous_or_undefined(args.grad_hy);
  if (s.is_lstm()) b[Role::dcy] = contiguous_or_undefined(args.grad_cy);
  b[Role::reserve] = args.reserve;
  kernels_run(call, input, coupled);
  Tensor dcx = s.is_lstm() ? b[Role::dcx] : nothing(input);
  return {rows_of(b[Role::dx], input.sizes()), b[Role::dhx], dcx, b[Role::dw]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward, backward>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels<forward, backward>(m); }

}  // namespace torch_cudnn_ext::rnn
