// Batch normalisation in training and inference: argument checks, Problem, gradients, and what the
// core must know of it.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/enum_text.h"
#include "core/select/execute.h"
#include "core/tensors.h"
#include "ops/autograd.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

void BatchNormProblem::validate() const {
  check_sizes("batch_norm", "x", x, 3, 3);
  TensorSpec canonical = x;
  canonicalise_strides({&canonical});
  bool dense = canonical.strides == contiguous_strides(x.sizes) ||
               canonical.strides == channels_last_strides(x.sizes);
  TORCH_CHECK_VALUE(dense, "batch_norm: x has gaps between its elements, wanted :nchw or :nhwc");
  TORCH_CHECK_VALUE(pass == BatchNormPass::fwd || !running,
                    "batch_norm: running is true, but only fwd keeps running statistics");
  TORCH_CHECK_VALUE(pass != BatchNormPass::bwd || (!z && activation == Activation::none),
                    "batch_norm: z and act are of fwd and infer, wanted neither in bwd");
  TORCH_CHECK_VALUE(pass == BatchNormPass::bwd || train,
                    "batch_norm: train is of bwd; the forward without it is batch_norm_infer");
  TORCH_CHECK_VALUE(!has_training_statistics() || x.sizes[0] * x.sizes[2] > 1,
                    "batch_norm: x has one value per channel, wanted more than 1 when training");
  check_alignment("batch_norm", alignment, x.dtype);
}

namespace batch_norm {
namespace {

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr EnumName<bool> kModes[] = {{false, "spatial"}, {true, "per_activation"}};

bool is_per_activation(std::string_view mode) {
  return enum_value(kModes, "torch_cudnn_ext::batch_norm: mode", mode);
}
Activation activation_of(std::string_view text) {
  return activation_from_text("torch_cudnn_ext::batch_norm: activation", text);
}

// Sizes of a statistic: [C], or those of one sample.
std::vector<SymInt> statistic_sizes(const Tensor& input, bool per_activation) {
  if (!per_activation) return {input.sym_size(1)};
  return {input.sym_sizes().begin() + 1, input.sym_sizes().end()};
}

at::MemoryFormat format_of(const Tensor& input, bool contiguous) {
  return contiguous ? at::MemoryFormat::Contiguous : torch_cudnn_ext::format_of(input);
}

// Without the gaps of an input without elements, which counts as dense.
Tensor dense_like(const Tensor& input, bool contiguous) {
  return at::empty_symint(input.sym_sizes(),
                          input.options().memory_format(format_of(input, contiguous)));
}

void check_input(const Tensor& input) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "torch_cudnn_ext::batch_norm: input has sizes ",
                    input.sym_sizes(), ", wanted 2 or more dimensions (batch, channels, space)");
  check_dtype("batch_norm", "input", input);
}

// Raises unless `t` is a statistic or parameter of `input`.
void check_statistic(const char* name, const OptionalTensor& t, const Tensor& input,
                     bool per_activation) {
  if (!has(t)) return;
  bool fits = per_activation ? t->sym_sizes() == input.sym_sizes().slice(1)
                             : t->dim() == 1 && t->sym_size(0) == input.sym_size(1);
  TORCH_CHECK_VALUE(fits, "torch_cudnn_ext::batch_norm: ", name, " has sizes ", t->sym_sizes(),
                    ", wanted ", SymIntArrayRef(statistic_sizes(input, per_activation)),
                    " for input of sizes ", input.sym_sizes());
  auto wanted = compute_dtype(input.scalar_type());
  TORCH_CHECK_VALUE(t->scalar_type() == wanted || t->scalar_type() == input.scalar_type(),
                    "torch_cudnn_ext::batch_norm: ", name, " is ", t->scalar_type(), ", wanted ",
                    wanted, " for input of ", input.scalar_type());
  check_device("batch_norm", name, *t, "input", input);
}

// Checks that hold for whatever computes: also for Meta.
void check_forward(const Tensor& input, const OptionalTensor& running_mean,
                   const OptionalTensor& running_var, const OptionalTensor& weight,
                   const OptionalTensor& bias, bool per_activation, const OptionalTensor& z) {
  check_input(input);
  check_statistic("running_mean", running_mean, input, per_activation);
  check_statistic("running_var", running_var, input, per_activation);
  TORCH_CHECK_VALUE(has(running_mean) == has(running_var), "torch_cudnn_ext::batch_norm: ",
                    has(running_mean) ? "running_var" : "running_mean",
                    " is None, wanted both running statistics or neither");
  check_statistic("weight", weight, input, per_activation);
  check_statistic("bias", bias, input, per_activation);
  if (has(z)) check_same("batch_norm", "z", *z, "input", input);
}

// --- between the user's tensors and those of a Problem

// [N, C, S] with statistics over N and S. `t` is contiguous, or contiguous with channels last.
Tensor fold(const Tensor& t, bool per_activation) {
  int64_t n = t.size(0), c = per_activation ? t.numel() / n : t.size(1), s = t.numel() / (n * c);
  if (t.is_contiguous()) return strided_view(t, {n, c, s}, {c * s, s, 1});
  return strided_view(t, {n, c, s}, {c * s, 1, c});
}

// A statistic in the type and shape of a Problem; a constant where there is none.
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

// Sees to the alignment of all inputs: results that the plan makes are aligned.
void set_alignment(BatchNormProblem& p, Bindings& b) {
  std::initializer_list<Role> inputs = {
      Role::x,      Role::dy,           Role::z,           Role::w,      Role::bias, Role::mean,
      Role::invstd, Role::running_mean, Role::running_var, Role::reserve};
  if (!p.takes_any_alignment()) return align(b, inputs);
  for (Role role : inputs) p.alignment = std::min(p.alignment, alignment_of({&b[role]}));
}

struct Forward {
  BatchNormProblem problem;
  Bindings bindings;
  Tensor x;  // in the layout of the result

  Forward(BatchNormPass pass, const Tensor& input, const OptionalTensor& weight,
          const OptionalTensor& bias, double eps, bool per_activation, const OptionalTensor& z,
          std::string_view activation) {
    auto format = format_of(input, per_activation);
    x = input.contiguous(format);
    bindings[Role::x] = fold(x, per_activation);
    problem.pass = pass;
    problem.x = spec_of(bindings[Role::x]);
    problem.canonicalise();
    problem.activation = activation_of(activation);
    problem.z = has(z);
    if (has(z)) bindings[Role::z] = fold(z->contiguous(format), per_activation);
    bindings[Role::w] = flat(weight, problem.statistic(), x, 1);
    bindings[Role::bias] = flat(bias, problem.statistic(), x, 0);
    bindings.epsilon = eps;
  }

  Tensor run(OptionalPolicy policy) {
    set_alignment(problem, bindings);
    execute(problem, resolve_policy(BatchNormProblem::kFamily, policy), device_of(x.device()),
            bindings);
    return strided_view(bindings[Role::y], x.sizes(), x.strides());
  }
};

Tensors4 train(const Tensor& input, const OptionalTensor& running_mean,
               const OptionalTensor& running_var, const OptionalTensor& weight,
               const OptionalTensor& bias, double momentum, double eps, std::string_view mode,
               const OptionalTensor& z, std::string_view activation, OptionalPolicy policy) {
  bool per_activation = is_per_activation(mode);
  check_forward(input, running_mean, running_var, weight, bias, per_activation, z);
  c10::OptionalDeviceGuard guard(input.device());
  auto no_reserve = [&] { return at::empty({0}, input.options().dtype(at::kByte)); };
  if (input.numel() == 0) {
    auto options = input.options().dtype(compute_dtype(input.scalar_type()));
    Tensor nothing = at::full_symint(statistic_sizes(input, per_activation),
                                     std::numeric_limits<double>::quiet_NaN(), options);
    return {dense_like(input, per_activation), nothing, nothing.clone(), no_reserve()};
  }
  int64_t statistics = per_activation ? input.numel() / input.size(0) : input.size(1);
  TORCH_CHECK_VALUE(input.numel() > statistics, "torch_cudnn_ext::batch_norm: input has sizes ",
                    input.sizes(), ", wanted more than 1 value per channel when training");
  Forward forward(BatchNormPass::fwd, input, weight, bias, eps, per_activation, z, activation);
  Bindings& bindings = forward.bindings;
  if (has(running_mean)) {
    forward.problem.running = true;
    bindings.momentum = momentum;
    bindings[Role::running_mean] = flat(running_mean, forward.problem.statistic(), input, 0);
    bindings[Role::running_var] = flat(running_var, forward.problem.statistic(), input, 1);
  }
  Tensor y = forward.run(policy);
  update(running_mean, bindings[Role::running_mean]);
  update(running_var, bindings[Role::running_var]);
  const Tensor& reserve = bindings[Role::reserve];
  return {y, unflat(bindings[Role::mean], input, per_activation),
          unflat(bindings[Role::invstd], input, per_activation),
          reserve.defined() ? reserve : no_reserve()};
}

Tensors4 train_meta(const Tensor& input, const OptionalTensor& running_mean,
                    const OptionalTensor& running_var, const OptionalTensor& weight,
                    const OptionalTensor& bias, double, double, std::string_view mode,
                    const OptionalTensor& z, std::string_view activation, OptionalPolicy) {
  bool per_activation = is_per_activation(mode);
  activation_of(activation);
  check_forward(input, running_mean, running_var, weight, bias, per_activation, z);
  auto sizes = statistic_sizes(input, per_activation);
  auto options = input.options().dtype(compute_dtype(input.scalar_type()));
  return {dense_like(input, per_activation), at::empty_symint(sizes, options),
          at::empty_symint(sizes, options), at::empty({0}, input.options().dtype(at::kByte))};
}

Tensors4 train_alone(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     double eps, std::string_view mode, const OptionalTensor& z,
                     std::string_view activation, OptionalPolicy policy) {
  return train(input, {}, {}, weight, bias, 0, eps, mode, z, activation, policy);
}

Tensors4 train_alone_meta(const Tensor& input, const OptionalTensor& weight,
                          const OptionalTensor& bias, double eps, std::string_view mode,
                          const OptionalTensor& z, std::string_view activation,
                          OptionalPolicy policy) {
  return train_meta(input, {}, {}, weight, bias, 0, eps, mode, z, activation, policy);
}

Tensor infer(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
             const OptionalTensor& weight, const OptionalTensor& bias, double eps,
             std::string_view mode, const OptionalTensor& z, std::string_view activation,
             OptionalPolicy policy) {
  bool per_activation = is_per_activation(mode);
  check_forward(input, running_mean, running_var, weight, bias, per_activation, z);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) return dense_like(input, per_activation);
  Forward forward(BatchNormPass::infer, input, weight, bias, eps, per_activation, z, activation);
  TensorSpec statistic = forward.problem.statistic();
  forward.bindings[Role::running_mean] = flat(running_mean, statistic, input, 0);
  forward.bindings[Role::running_var] = flat(running_var, statistic, input, 1);
  return forward.run(policy);
}

Tensor infer_meta(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                  const OptionalTensor& weight, const OptionalTensor& bias, double,
                  std::string_view mode, const OptionalTensor& z, std::string_view activation,
                  OptionalPolicy) {
  bool per_activation = is_per_activation(mode);
  activation_of(activation);
  check_forward(input, running_mean, running_var, weight, bias, per_activation, z);
  return dense_like(input, per_activation);
}

void check_backward(const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
                    const Tensor& mean, const Tensor& spread, bool per_activation) {
  check_input(input);
  check_same("batch_norm_backward", "grad_output", grad_output, "input", input);
  check_statistic("weight", weight, input, per_activation);
  check_statistic("mean", mean, input, per_activation);
  check_statistic("invstd_or_var", spread, input, per_activation);
}

// Whether the gradient of the input is contiguous for any layout of the input, as PyTorch's is on
// CUDA: in evaluation, and in training by its own kernels except for images. cuDNN keeps the
// input's layout. It takes float32, float64, and float16 with parameters in float32.
bool gives_contiguous(const Tensor& input, const OptionalTensor& weight, bool training) {
  if (!input.key_set().has_backend(c10::BackendComponent::CUDABit)) return false;
  if (!training) return true;
  bool cudnn = has(weight) && weight->scalar_type() == compute_dtype(input.scalar_type()) &&
               input.scalar_type() != at::kBFloat16 && input.dim() >= 3 &&
               at::globalContext().userEnabledCuDNN();
  return !cudnn && input.dim() != 4;
}

// `mean` and `spread` are what training gave, the mean and the inverse deviation, or the running
// mean and variance.
Tensors3 backward(const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
                  const Tensor& mean, const Tensor& spread, bool training, double eps,
                  std::string_view mode, const OptionalTensor& reserve, OptionalPolicy policy) {
  bool per_activation = is_per_activation(mode);
  check_backward(grad_output, input, weight, mean, spread, per_activation);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) {
    auto options = input.options().dtype(compute_dtype(input.scalar_type()));
    Tensor zeros = at::zeros_symint(statistic_sizes(input, per_activation), options);
    bool contiguous = per_activation || gives_contiguous(input, weight, training);
    return {dense_like(input, contiguous), zeros, zeros.clone()};
  }
  // If the result is contiguous, computing in the layout of grad_output saves a copy.
  bool contiguous = gives_contiguous(input, weight, training);
  auto format = format_of(contiguous ? grad_output : input, per_activation);
  Tensor x = input.contiguous(format), dy = grad_output.contiguous(format);
  Bindings bindings;
  bindings.epsilon = eps;
  bindings[Role::x] = fold(x, per_activation);
  bindings[Role::dy] = fold(dy, per_activation);
  BatchNormProblem p;
  p.pass = BatchNormPass::bwd;
  p.train = training;
  p.x = spec_of(bindings[Role::x]);
  p.canonicalise();
  bindings[Role::w] = flat(weight, p.statistic(), x, 1);
  bindings[training ? Role::mean : Role::running_mean] = flat(mean, p.statistic(), x, 0);
  bindings[training ? Role::invstd : Role::running_var] = flat(spread, p.statistic(), x, 1);
  if (has(reserve)) bindings[Role::reserve] = *reserve;
  set_alignment(p, bindings);
  execute(p, resolve_policy(BatchNormProblem::kFamily, policy), device_of(x.device()), bindings);
  Tensor dx = strided_view(bindings[Role::dx], x.sizes(), x.strides());
  return {contiguous ? dx.contiguous() : dx, unflat(bindings[Role::dw], input, per_activation),
          unflat(bindings[Role::dbias], input, per_activation)};
}

Tensors3 backward_meta(const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
                       const Tensor& mean, const Tensor& spread, bool training, double,
                       std::string_view mode, const OptionalTensor&, OptionalPolicy) {
  bool per_activation = is_per_activation(mode);
  check_backward(grad_output, input, weight, mean, spread, per_activation);
  auto sizes = statistic_sizes(input, per_activation);
  auto options = input.options().dtype(compute_dtype(input.scalar_type()));
  bool contiguous = per_activation || gives_contiguous(input, weight, training);
  return {dense_like(input, contiguous), at::empty_symint(sizes, options),
          at::empty_symint(sizes, options)};
}

// --- the public forward, made of the inner ones

const auto& train_op() {
  static auto op = find_op<decltype(train)>("torch_cudnn_ext::_batch_norm_train");
  return op;
}
const auto& train_alone_op() {
  static auto op = find_op<decltype(train_alone)>("torch_cudnn_ext::_batch_norm_train_alone");
  return op;
}
const auto& infer_op() {
  static auto op = find_op<decltype(infer)>("torch_cudnn_ext::_batch_norm_infer");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::batch_norm_backward");
  return op;
}

Tensors4 trained(const Tensor& input, const OptionalTensor& running_mean,
                 const OptionalTensor& running_var, const OptionalTensor& weight,
                 const OptionalTensor& bias, double momentum, double eps, std::string_view mode,
                 const OptionalTensor& z, std::string_view activation, OptionalPolicy policy) {
  if (!has(running_mean) && !has(running_var)) {
    return train_alone_op().call(input, weight, bias, eps, mode, z, activation, policy);
  }
  return train_op().call(input, running_mean, running_var, weight, bias, momentum, eps, mode, z,
                         activation, policy);
}

Tensors3 forward_with_statistics(const Tensor& input, const OptionalTensor& running_mean,
                                 const OptionalTensor& running_var, const OptionalTensor& weight,
                                 const OptionalTensor& bias, double momentum, double eps,
                                 std::string_view mode, const OptionalTensor& z,
                                 std::string_view activation, OptionalPolicy policy) {
  auto [output, mean, invstd, reserve] = trained(input, running_mean, running_var, weight, bias,
                                                 momentum, eps, mode, z, activation, policy);
  return {output, mean, invstd};
}

Tensor forward(const Tensor& input, const OptionalTensor& running_mean,
               const OptionalTensor& running_var, const OptionalTensor& weight,
               const OptionalTensor& bias, bool training, double momentum, double eps,
               std::string_view mode, const OptionalTensor& z, std::string_view activation,
               OptionalPolicy policy) {
  if (training) {
    return std::get<0>(trained(input, running_mean, running_var, weight, bias, momentum, eps, mode,
                               z, activation, policy));
  }
  TORCH_CHECK_VALUE(has(running_mean) && has(running_var), "torch_cudnn_ext::batch_norm: ",
                    has(running_mean) ? "running_var" : "running_mean",
                    " is None, wanted a Tensor when training is False");
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias), &addend = or_undefined(z);
  return call_directly({&input, &*running_mean, &*running_var, &w, &b, &addend}, infer, infer_op(),
                       input, *running_mean, *running_var, weight, bias, eps, mode, z, activation,
                       policy);
}

// --- gradients

struct BatchNormGradient {
  static constexpr const char* kName = "TorchCudnnExtBatchNormBackward";
  static constexpr size_t kInputs = 4;  // input, weight, bias, z
  bool training = false, relu = false;
  double eps = 0;
  std::string mode;
  at::ScalarType weight_dtype = at::kFloat, bias_dtype = at::kFloat;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(training);
    visit(relu);
    visit(eps);
    visit(mode);
    visit(weight_dtype);
    visit(bias_dtype);
    visit(policy);
  }
  // saved: input, weight, mean and spread, reserve, output (the last two may be undefined)
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    variable_list out(kInputs);
    if (!grads[0].defined()) return out;
    Tensor grad = relu ? at::threshold_backward(grads[0], saved[5], 0) : grads[0];
    if (needed[3]) out[3] = grad;
    if (!needed[0] && !needed[1] && !needed[2]) return out;
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &spread = saved[3];
    auto [dx, dw, dbias] = call_directly(
        {&grad, &input, &weight, &mean, &spread}, backward, backward_op(), grad, input,
        optional_of(weight), mean, spread, training, eps, mode, optional_of(saved[4]), policy);
    if (needed[0]) out[0] = dx;
    if (needed[1]) out[1] = in_dtype(dw, weight_dtype);
    if (needed[2]) out[2] = in_dtype(dbias, bias_dtype);
    return out;
  }
};

template <class Node>
void fill(Node& node, const OptionalTensor& weight, const OptionalTensor& bias, double eps,
          std::string_view mode, std::string_view activation, OptionalPolicy policy) {
  node.gradient.relu = activation_of(activation) == Activation::relu;
  node.gradient.eps = eps;
  node.gradient.mode = std::string(mode);
  if (has(weight)) node.gradient.weight_dtype = weight->scalar_type();
  if (has(bias)) node.gradient.bias_dtype = bias->scalar_type();
  node.gradient.policy = policy_to_save(BatchNormProblem::kFamily, policy);
}

// As PyTorch, which has no gradient of them either and says so.
void check_no_gradient(const char* name, const OptionalTensor& t) {
  TORCH_CHECK_VALUE(!has(t) || !t->requires_grad() || !at::GradMode::is_enabled(),
                    "torch_cudnn_ext::batch_norm: ", name,
                    " requires a gradient, wanted a tensor without: batch_norm is not "
                    "differentiable with respect to it");
}

// `run` is () -> Tensors4.
template <class Run>
Tensors4 training_with_gradient(const Tensor& input, const OptionalTensor& weight,
                                const OptionalTensor& bias, double eps, std::string_view mode,
                                const OptionalTensor& z, std::string_view activation,
                                OptionalPolicy policy, Run&& run) {
  return run_with_gradient<BatchNormGradient>(
      {input, or_undefined(weight), or_undefined(bias), or_undefined(z)}, 1, run,
      [&](auto& node, const auto& results) {
        fill(node, weight, bias, eps, mode, activation, policy);
        node.gradient.training = true;
        for (int i : {1, 2, 3}) save_result(node, results[i]);
        save_result(node, node.gradient.relu ? results[0] : Tensor());
      },
      [&](auto& node) {
        save_input(node, input);
        save_input(node, or_undefined(weight));
      });
}

Tensors4 train_alone_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                              std::string_view mode, const OptionalTensor& z,
                              std::string_view activation, OptionalPolicy policy) {
  return training_with_gradient(input, weight, bias, eps, mode, z, activation, policy, [&] {
    return train_alone_op().redispatch(keys & c10::after_autograd_keyset, input, weight, bias, eps,
                                       mode, z, activation, policy);
  });
}

Tensors4 train_autograd(c10::DispatchKeySet keys, const Tensor& input,
                        const OptionalTensor& running_mean, const OptionalTensor& running_var,
                        const OptionalTensor& weight, const OptionalTensor& bias, double momentum,
                        double eps, std::string_view mode, const OptionalTensor& z,
                        std::string_view activation, OptionalPolicy policy) {
  check_no_gradient("running_mean", running_mean);
  check_no_gradient("running_var", running_var);
  auto results = training_with_gradient(input, weight, bias, eps, mode, z, activation, policy, [&] {
    return train_op().redispatch(keys & c10::after_autograd_keyset, input, running_mean,
                                 running_var, weight, bias, momentum, eps, mode, z, activation,
                                 policy);
  });
  // A node that saved them must not take the new ones for its own.
  for (const OptionalTensor* running : {&running_mean, &running_var}) {
    if (has(*running) && !(*running)->is_inference()) {
      torch::autograd::increment_version(**running);
    }
  }
  return results;
}

Tensor infer_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& running_mean,
                      const Tensor& running_var, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps, std::string_view mode,
                      const OptionalTensor& z, std::string_view activation, OptionalPolicy policy) {
  check_no_gradient("running_mean", running_mean);
  check_no_gradient("running_var", running_var);
  return run_with_gradient<BatchNormGradient>(
      {input, or_undefined(weight), or_undefined(bias), or_undefined(z)}, 1,
      [&] {
        return infer_op().redispatch(keys & c10::after_autograd_keyset, input, running_mean,
                                     running_var, weight, bias, eps, mode, z, activation, policy);
      },
      [&](auto& node, const auto& results) {
        fill(node, weight, bias, eps, mode, activation, policy);
        save_result(node, node.gradient.relu ? results[0] : Tensor());
      },
      [&](auto& node) {
        save_input(node, input);
        save_input(node, or_undefined(weight));
        // Copies, since a training forward may change the running statistics before the backward.
        save_input(node, running_mean.clone());
        save_input(node, running_var.clone());
        save_input(node, Tensor());
      });
}

struct BatchNormBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtBatchNormBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, weight
  bool training = false;
  double eps = 0;
  std::string mode;

  template <class F>
  void attributes(F&& visit) {
    visit(training);
    visit(eps);
    visit(mode);
  }
  // saved: the inputs, mean, spread
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    bool per_activation = is_per_activation(mode);
    auto sizes = statistic_sizes(saved[1], per_activation), ones = sizes;
    ones.insert(ones.begin(), 1);
    ones.resize(saved[1].dim(), 1);
    std::vector<int64_t> over{0};
    for (int64_t i = 2; !per_activation && i < saved[1].dim(); ++i) over.push_back(i);
    auto dtype = compute_dtype(saved[1].scalar_type());
    auto broadcast = [&](const Tensor& t) { return t.to(dtype).reshape_symint(ones); };
    auto formula = [&](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
      Tensor dy = inputs[0].to(dtype), x = inputs[1].to(dtype);
      // When training, the statistics are functions of x.
      Tensor mean = training ? x.mean(over, true) : broadcast(saved[3]);
      Tensor centred = x - mean;
      Tensor variance = training ? centred.square().mean(over, true) : broadcast(saved[4]);
      Tensor invstd = (variance + eps).rsqrt();
      Tensor normal = centred * invstd;
      Tensor dx = dy;
      if (training) {
        dx = dy - dy.mean(over, true) - normal * (dy * normal).mean(over, true);
      }
      dx = dx * invstd;
      if (inputs[2].defined()) dx = dx * broadcast(inputs[2]);
      return {dx.to(inputs[1].scalar_type()), (dy * normal).sum(over).reshape_symint(sizes),
              dy.sum(over).reshape_symint(sizes)};
    };
    return gradients_of_formula(formula, {saved[0], saved[1], saved[2]}, grads, needed);
  }
};

Tensors3 backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& input,
                           const OptionalTensor& weight, const Tensor& mean, const Tensor& spread,
                           bool training, double eps, std::string_view mode,
                           const OptionalTensor& reserve, OptionalPolicy policy) {
  return run_with_gradient<BatchNormBackwardGradient>(
      {grad_output, input, or_undefined(weight)}, 3,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input,
                                        weight, mean, spread, training, eps, mode, reserve, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.training = training;
        node.gradient.eps = eps;
        node.gradient.mode = std::string(mode);
        for (const Tensor& t : {grad_output, input, or_undefined(weight), mean, spread}) {
          save_input(node, t);
        }
      });
}

// --- PyTorch's own, overridden

struct AtenBatchNorm {
  static constexpr const char* kOp = "batch_norm";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            const OptionalTensor& weight,
                                            const OptionalTensor& bias,
                                            const OptionalTensor& running_mean,
                                            const OptionalTensor& running_var, bool training,
                                            double, double, bool) {
    const Tensor &w = or_undefined(weight), &b = or_undefined(bias),
                 &mean = or_undefined(running_mean), &var = or_undefined(running_var);
    if (auto reason = refusal_of_any(keys, {{"input", input}, {"weight", w}, {"bias", b}})) {
      return reason;
    }
    for (const auto& [name, t] :
         {NamedTensor{"running_mean", mean}, NamedTensor{"running_var", var}}) {
      if (auto reason = refusal_of(keys, name, t)) return reason;
    }
    if (auto reason = refusal_of_dtypes(
            input, {{"weight", w}, {"bias", b}, {"running_mean", mean}, {"running_var", var}})) {
      return reason;
    }
    if (mean.defined() != var.defined()) return "one of the running statistics is missing";
    for (const Tensor* running : {&mean, &var}) {
      bool overlaps = training && running->defined() &&
                      at::has_internal_overlap(*running) == at::MemOverlap::Yes;
      if (overlaps) return "elements of a running statistic share memory";
    }
    if (training && input.dim() >= 2 && input.sym_numel() == input.sym_size(1)) {
      return "there is one value per channel";
    }
    return std::nullopt;
  }
  static Tensor with_autograd(c10::DispatchKeySet keys, const Tensor& input,
                              const OptionalTensor& weight, const OptionalTensor& bias,
                              const OptionalTensor& running_mean, const OptionalTensor& running_var,
                              bool training, double momentum, double eps, bool) {
    if (training && has(running_mean)) {
      return std::get<0>(train_autograd(keys, input, running_mean, running_var, weight, bias,
                                        momentum, eps, "spatial", {}, "none", {}));
    }
    return forward(input, running_mean, running_var, weight, bias, training, momentum, eps,
                   "spatial", {}, "none", {});
  }
};

const RegisterOverrideOfComposite<
    AtenBatchNorm, Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, bool, double, double, bool)>
    overridden("batch_norm");

// --- what the core must know

Tensor broadcast(const Tensor& statistic) { return statistic.to(at::kDouble).view({1, -1, 1}); }

class BatchNormOperator : public OperatorOf<BatchNormProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnBatchNormalizationForwardTraining, "
        "cudnnBatchNormalizationForwardInference, cudnnBatchNormalizationBackward",
        "nchw, nhwc; any dimensions of space",
        "graph: no f64; spatial_persistent: training of f32 and narrower; per_activation: without "
        "space; backward of inference: aten and cpu alone; legacy adds z and relu separately",
        {"batch_norm_fwd x=f16[32,64,3136]:nhwc", "batch_norm_fwd x=f16[32,1000,1]:nchw"}};
  }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_BATCHNORM_PER_ACTIVATION", "per_activation", nullptr},
            {1, "CUDNN_BATCHNORM_SPATIAL", "spatial", nullptr},
            {2, "CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "spatial_persistent", nullptr}};
  }

  std::vector<SlotSpec> slots(const BatchNormProblem& p) const override {
    TensorSpec statistic = p.statistic();
    if (p.pass == BatchNormPass::bwd) {
      return {{Role::x, p.x, false},
              {Role::dy, p.x, false},
              {Role::w, statistic, false},
              {p.train ? Role::mean : Role::running_mean, statistic, false},
              {p.train ? Role::invstd : Role::running_var, statistic, false},
              {Role::dx, p.x, true},
              {Role::dw, statistic, true},
              {Role::dbias, statistic, true}};
    }
    bool training = p.pass == BatchNormPass::fwd;
    std::vector<SlotSpec> list{
        {Role::x, p.x, false}, {Role::w, statistic, false}, {Role::bias, statistic, false}};
    if (p.running || !training) {
      list.push_back({Role::running_mean, statistic, false, training});
      list.push_back({Role::running_var, statistic, false, training});
    }
    if (p.z) list.push_back({Role::z, p.x, false});
    list.push_back({Role::y, p.x, true});
    if (training) {
      list.push_back({Role::mean, statistic, true});
      list.push_back({Role::invstd, statistic, true});
    }
    return list;
  }

  Cost cost(const BatchNormProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double bytes = bytes_of(slots(p));
    // Sum, difference, square, sum; difference, two products, sum. Backward: two sums of products
    // with what they are made of, and the same over again to put them together.
    double flops = p.pass == BatchNormPass::infer ? 4 : p.pass == BatchNormPass::fwd ? 8 : 10;
    return {flops * elements, bytes, static_cast<double>(values_per_channel(p))};
  }

  // Data that is not centred, variances that are positive, and statistics that a forward left.
  void prepare_scratch(const BatchNormProblem& p, Bindings& bindings) const override {
    Tensor& x = bindings[Role::x];
    x.add_(0.5);
    if (bindings[Role::running_var].defined()) bindings[Role::running_var].abs_().add_(0.5);
    if (p.pass != BatchNormPass::bwd || !p.train) return;
    Tensor values = x.to(at::kDouble), mean = mean_of_channels(values);
    bindings[Role::mean].copy_(mean);
    bindings[Role::invstd].copy_(
        (mean_of_channels((values - broadcast(mean)).square()) + bindings.epsilon).rsqrt());
  }

  Bindings reference(const BatchNormProblem& p, const Bindings& bindings) const override {
    return p.pass == BatchNormPass::bwd ? reference_backward(p, bindings)
                                        : reference_forward(p, bindings);
  }

  // Rounding of results, and of sums in float32 at least.
  double tolerance(const BatchNormProblem& p, const Notes&) const override {
    double rounded = 4 * epsilon_of(p.x.dtype) +
                     4 * epsilon_of(p.statistic_dtype()) * std::sqrt(cost(p).reduction_length);
    if (p.pass != BatchNormPass::bwd || !p.train) return rounded;
    return rounded * conditioning_of_norm(values_per_channel(p), 2);
  }

  // On an H200, ms for 64x64x112x112: float32 nchw 0.197 and 0.349 by the persistent kernels where
  // PyTorch takes 0.467 and 1.180; nhwc 3 to 10 by the classic API, PyTorch 0.165 and 0.258. In
  // bfloat16 nhwc the graph's first choice took 0.29 to 0.86 of PyTorch's time for all 29 forwards
  // of ResNet-50 and MobileNet-V3 in training, but 0.44 to 1.45 for their backwards. For the 41
  // bfloat16 inferences of these the order below took 0.66 to 0.98 of PyTorch's time. In float32
  // nchw both take the same, but the classic API 5 to 10 us of the host, PyTorch 11 to 26.
  std::vector<std::string> heuristic_order(const BatchNormProblem& p) const override {
    bool persistent =
        p.has_training_statistics() && !p.is_channels_last() && p.x.dtype != at::kDouble;
    bool half = c10::isReducedFloatingType(p.x.dtype);
    // Of bfloat16 in rows of 49, which are not aligned, PyTorch's kernel took 0.74 to 0.96 of the
    // time for 512 to 2048 channels, 1.26 and more for fewer.
    bool odd = p.pass == BatchNormPass::bwd && p.x.dtype == at::kBFloat16 && p.x.sizes[1] >= 512 &&
               p.x.sizes[2] % 2 == 1 && p.x.sizes[2] < 64;
    if (persistent && p.x.sizes[2] > 1 && !odd) {
      return {"legacy:spatial_persistent", "aten", "legacy"};
    }
    if (p.pass == BatchNormPass::infer && p.x.sizes[2] > 1 && p.x.dtype != at::kDouble) {
      constexpr int64_t kSmall = 1 << 22;
      bool small = p.x.numel() <= kSmall;
      if (small || !p.is_channels_last()) return {"legacy:spatial", "aten", "graph"};
      return {"graph:eng1", "aten", "graph", "legacy"};
    }
    if (p.is_channels_last() && half && p.pass == BatchNormPass::fwd) {
      return {"graph", "aten", "legacy"};
    }
    if (p.is_channels_last()) return {"aten", "graph", "legacy"};
    return {"aten", "legacy", "graph"};
  }

 private:
  static int64_t values_per_channel(const BatchNormProblem& p) {
    return p.pass == BatchNormPass::infer ? 1 : p.x.sizes[0] * p.x.sizes[2];
  }

  static Bindings reference_forward(const BatchNormProblem& p, const Bindings& b) {
    Bindings out;
    Tensor x = b[Role::x].to(at::kDouble), mean, var;
    if (p.pass == BatchNormPass::infer) {
      mean = b[Role::running_mean].to(at::kDouble);
      var = b[Role::running_var].to(at::kDouble);
    } else {
      mean = mean_of_channels(x);
      var = mean_of_channels((x - broadcast(mean)).square());
      out[Role::mean] = mean;
      out[Role::invstd] = (var + b.epsilon).rsqrt();
    }
    if (p.running) {
      auto n = static_cast<double>(values_per_channel(p));
      Tensor unbiased = var * (n / (n - 1));
      double kept = 1 - b.momentum;
      out[Role::running_mean] = b[Role::running_mean].to(at::kDouble) * kept + mean * b.momentum;
      out[Role::running_var] = b[Role::running_var].to(at::kDouble) * kept + unbiased * b.momentum;
    }
    Tensor scale = (var + b.epsilon).rsqrt() * b[Role::w].to(at::kDouble);
    Tensor y = (x - broadcast(mean)) * broadcast(scale) + broadcast(b[Role::bias]);
    if (p.z) y = y + b[Role::z].to(at::kDouble);
    out[Role::y] = p.activation == Activation::relu ? y.relu() : y;
    return out;
  }

  static Bindings reference_backward(const BatchNormProblem& p, const Bindings& b) {
    Tensor dy = b[Role::dy].to(at::kDouble);
    Tensor mean = broadcast(b[p.train ? Role::mean : Role::running_mean]);
    Tensor invstd = p.train ? broadcast(b[Role::invstd])
                            : (broadcast(b[Role::running_var]) + b.epsilon).rsqrt();
    Tensor normal = (b[Role::x].to(at::kDouble) - mean) * invstd;
    Bindings out;
    out[Role::dbias] = sum_of_channels(dy);
    out[Role::dw] = sum_of_channels(dy * normal);
    Tensor dx = dy;
    if (p.train) {
      auto n = static_cast<double>(values_per_channel(p));
      dx = dy - broadcast(out[Role::dbias]) / n - normal * broadcast(out[Role::dw]) / n;
    }
    out[Role::dx] = dx * invstd * broadcast(b[Role::w]);
    return out;
  }
};

const RegisterOperator<BatchNormOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("_batch_norm_train", TORCH_FN(train));
  m.impl("_batch_norm_train_alone", TORCH_FN(train_alone));
  m.impl("_batch_norm_infer", TORCH_FN(infer));
  m.impl("batch_norm_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("_batch_norm_train", TORCH_FN(train_meta));
  m.impl("_batch_norm_train_alone", TORCH_FN(train_alone_meta));
  m.impl("_batch_norm_infer", TORCH_FN(infer_meta));
  m.impl("batch_norm_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("_batch_norm_train", TORCH_FN(train_autograd));
  m.impl("_batch_norm_train_alone", TORCH_FN(train_alone_autograd));
  m.impl("_batch_norm_infer", TORCH_FN(infer_autograd));
  m.impl("batch_norm_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  m.impl("batch_norm", TORCH_FN(forward));
  m.impl("batch_norm_train", TORCH_FN(forward_with_statistics));
}

// A schema that may change tensors has no loop over samples: vmap sees what it is made of.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchBatched, m) {
  m.impl("batch_norm", TORCH_FN(forward));
  m.impl("batch_norm_train", TORCH_FN(forward_with_statistics));
}

}  // namespace batch_norm
}  // namespace torch_cudnn_ext
