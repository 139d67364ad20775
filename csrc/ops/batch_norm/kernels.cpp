// Batch normalisation of tensors that have data: makes the Problem of a call and runs it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "core/tensors.h"
#include "ops/batch_norm/batch_norm.h"
#include "ops/known_kernel.h"

namespace torch_cudnn_ext::batch_norm {
namespace {

// --- between the user's tensors and those of a Problem

// [N, C, S] with statistics over N and S. `t` is contiguous, or contiguous with channels last.
Tensor fold(const Tensor& t, bool per_activation) {
  int64_t n = t.size(0), c = per_activation ? t.numel() / n : t.size(1), s = t.numel() / (n * c);
  if (t.is_contiguous()) return strided_view(t, {n, c, s}, {c * s, s, 1});
  return strided_view(t, {n, c, s}, {c * s, 1, c});
}

// A statistic in the type and shape of a Problem; a constant if there is none.
Tensor flat(const OptionalTensor& t, const TensorSpec& spec, const Tensor& like, double otherwise) {
  if (!has(t)) return at::full(spec.sizes, otherwise, like.options().dtype(spec.dtype));
  if (t->dim() == 1 && t->scalar_type() == spec.dtype && t->is_contiguous()) return *t;
  return t->to(spec.dtype).reshape(spec.sizes).contiguous();
}

Tensor unflat(const Tensor& t, const Tensor& input, bool per_activation) {
  if (!per_activation) return t;
  return t.view(C10_AS_INTARRAYREF_SLOW(statistic_sizes(input, per_activation)));
}

void update(const OptionalTensor& running, const Tensor& computed) {
  if (has(running) && running->const_data_ptr() != computed.const_data_ptr()) {
    running->copy_(computed.view(running->sizes()));
  }
}

// Aligns all inputs, or notes their alignment. Results that the plan makes are aligned.
void set_alignment(BatchNormProblem& p, Bindings& b) {
  std::initializer_list<Role> inputs = {
      Role::x,      Role::dy,           Role::z,           Role::w,      Role::bias, Role::mean,
      Role::invstd, Role::running_mean, Role::running_var, Role::reserve};
  if (!p.takes_any_alignment()) return align(b, inputs);
  for (Role role : inputs) p.alignment = std::min(p.alignment, alignment_of({&b[role]}));
}
// A forward that is ready to run, except for its running statistics.
struct Forward {
  BatchNormProblem problem;
  Bindings bindings;
  Tensor x;  // in the layout of the result

  Forward(BatchNormPass pass, const ForwardArgs& args, bool per_activation) {
    auto format = format_of(args.input, per_activation);
    x = args.input.contiguous(format);
    bindings[Role::x] = fold(x, per_activation);
    problem.pass = pass;
    problem.x = spec_of(bindings[Role::x]);
    problem.canonicalise();
    problem.activation = activation_of(args.activation);
    problem.z = has(args.z);
    if (has(args.z)) bindings[Role::z] = fold(args.z->contiguous(format), per_activation);
    bindings[Role::w] = flat(args.weight, problem.statistic(), x, 1);
    bindings[Role::bias] = flat(args.bias, problem.statistic(), x, 0);
    bindings.epsilon = args.eps;
  }

  void set_running(const OptionalTensor& mean, const OptionalTensor& var) {
    bindings[Role::running_mean] = flat(mean, problem.statistic(), x, 0);
    bindings[Role::running_var] = flat(var, problem.statistic(), x, 1);
  }

  Tensor run(OptionalPolicy policy) {
    set_alignment(problem, bindings);
    run_problem(problem, policy, x, bindings);
    return strided_view(bindings[Role::y], x.sizes(), x.strides());
  }
};

Tensors4 run_training(const ForwardArgs& args) {
  const Tensor& input = args.input;
  bool per_activation = check_forward(args);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) {
    Tensor nothing =
        at::full_symint(statistic_sizes(input, per_activation),
                        std::numeric_limits<double>::quiet_NaN(), statistic_options(input));
    return {dense_like(input, per_activation), nothing, nothing.clone(), no_reserve(input)};
  }
  int64_t statistics = per_activation ? input.numel() / input.size(0) : input.size(1);
  TORCH_CHECK_VALUE(input.numel() > statistics, "torch_cudnn_ext::batch_norm: input has sizes ",
                    input.sizes(), ", wanted more than 1 value per channel when training");
  Forward forward(BatchNormPass::fwd, args, per_activation);
  Bindings& bindings = forward.bindings;
  if (has(args.running_mean)) {
    forward.problem.running = true;
    bindings.momentum = args.momentum;
    forward.set_running(args.running_mean, args.running_var);
  }
  Tensor y = forward.run(args.policy);
  update(args.running_mean, bindings[Role::running_mean]);
  update(args.running_var, bindings[Role::running_var]);
  const Tensor& reserve = bindings[Role::reserve];
  return {y, unflat(bindings[Role::mean], input, per_activation),
          unflat(bindings[Role::invstd], input, per_activation),
          reserve.defined() ? reserve : no_reserve(input)};
}

Tensor run_inference(const InferArgs& args) {
  OptionalTensor mean = args.running_mean, var = args.running_var;
  ForwardArgs forward_args = args.forward(mean, var);
  bool per_activation = check_forward(forward_args);
  c10::OptionalDeviceGuard guard(args.input.device());
  if (args.input.numel() == 0) return dense_like(args.input, per_activation);
  Forward forward(BatchNormPass::infer, forward_args, per_activation);
  forward.set_running(mean, var);
  return forward.run(args.policy);
}

Tensors4 run_train(const TrainArgs& args) { return run_training(args); }
Tensors4 train(const TrainArgs& args) {
  return KnownKernel<BatchNormProblem, run_train>::call(args);
}

Tensors4 run_train_alone(const TrainAloneArgs& args) { return run_training(args.forward()); }
Tensors4 train_alone(const TrainAloneArgs& args) {
  return KnownKernel<BatchNormProblem, run_train_alone>::call(args);
}

Tensors3 run_backward(const BackwardArgs& args) {
  const Tensor& input = args.input;
  bool per_activation = check_backward(args), training = args.training;
  bool contiguous = gives_contiguous(args);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) {
    Tensor zeros =
        at::zeros_symint(statistic_sizes(input, per_activation), statistic_options(input));
    return {dense_like(input, per_activation || contiguous), zeros, zeros.clone()};
  }
  // If the result is contiguous, computing in the layout of grad_output saves a copy.
  auto format = format_of(contiguous ? args.grad_output : input, per_activation);
  Tensor x = input.contiguous(format), dy = args.grad_output.contiguous(format);
  Bindings bindings;
  bindings.epsilon = args.eps;
  bindings[Role::x] = fold(x, per_activation);
  bindings[Role::dy] = fold(dy, per_activation);
  BatchNormProblem p;
  p.pass = BatchNormPass::bwd;
  p.train = training;
  p.x = spec_of(bindings[Role::x]);
  p.canonicalise();
  bindings[Role::w] = flat(args.weight, p.statistic(), x, 1);
  bindings[training ? Role::mean : Role::running_mean] = flat(args.mean, p.statistic(), x, 0);
  bindings[training ? Role::invstd : Role::running_var] = flat(args.spread, p.statistic(), x, 1);
  if (has(args.reserve)) bindings[Role::reserve] = *args.reserve;
  set_alignment(p, bindings);
  run_problem(p, args.policy, x, bindings);
  Tensor dx = strided_view(bindings[Role::dx], x.sizes(), x.strides());
  return {contiguous ? dx.contiguous() : dx, unflat(bindings[Role::dw], input, per_activation),
          unflat(bindings[Role::dbias], input, per_activation)};
}

}  // namespace

Tensor infer(const InferArgs& args) {
  return KnownKernel<BatchNormProblem, run_inference>::call(args);
}

Tensors3 backward(const BackwardArgs& args) {
  return KnownKernel<BatchNormProblem, run_backward>::call(args);
}

namespace {

void register_on_devices(torch::Library& m) {
  register_kernels<train, train_alone, infer, backward>(m);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_on_devices(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_on_devices(m); }

}  // namespace torch_cudnn_ext::batch_norm
