// The public operators: layer, RMS, instance and group norm, as views of the inner one; and
// autocast.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <limits>

#include "ops/known_kernel.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/typed_call.h"
#include "torch/compat.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::layer_norm {
namespace {

Tensor normalised(const Tensor& rows, const OptionalTensor& weight, const OptionalTensor& bias,
                  std::string_view kind, int64_t groups, double epsilon, OptionalPolicy policy) {
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias);
  return std::get<0>(call_kernel({&rows, &w, &b}, run_normalize,
                                 {rows, weight, bias, kind, groups, epsilon, false, policy}));
}

// The tensor itself if it has the sizes: autograd records every view.
Tensor with_sizes(const Tensor& t, SymIntArrayRef sizes) {
  return t.sym_sizes().equals(sizes) ? t : t.reshape_symint(sizes);
}

// As with_sizes, but the result is no view, so that users may write into it.
Tensor result_with_sizes(const Tensor& t, SymIntArrayRef sizes) {
  return t.sym_sizes().equals(sizes) ? t : at::_unsafe_view_symint(t, sizes);
}

enum class KeepsLayout : uint8_t { on_cpu, on_cpu_and_meta, everywhere };

// PyTorch's group and RMS norm keep channels_last on some devices; all others give contiguous
// tensors.
Tensor in_pytorchs_layout(const Tensor& y, const Tensor& input, KeepsLayout where) {
  Tensor shaped = result_with_sizes(y, input.sym_sizes());
  bool keeps = input.is_cpu() || where == KeepsLayout::everywhere ||
               (where == KeepsLayout::on_cpu_and_meta && input.is_meta());
  return keeps ? shaped.contiguous(input.suggest_memory_format()) : shaped;
}

// [rows, n]: n counts the elements of the last dimensions, whose sizes are `normalized_shape`.
Tensor as_rows(const char* op, const Tensor& input, SymIntArrayRef normalized_shape) {
  auto count = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK_VALUE(count >= 1, "torch_cudnn_ext::", op,
                    ": normalized_shape is empty, wanted at least one size");
  bool ends_so = input.dim() >= count &&
                 input.sym_sizes().slice(input.dim() - count, count).equals(normalized_shape);
  TORCH_CHECK_VALUE(ends_so, "torch_cudnn_ext::", op, ": normalized_shape is ", normalized_shape,
                    ", wanted the last sizes of input, which has ", input.sym_sizes());
  SymInt rows = 1, n = 1;
  for (int64_t i = 0; i < input.dim(); ++i)
    (i < input.dim() - count ? rows : n) *= input.sym_size(i);
  return with_sizes(input, {rows, n});
}

// Parameters of layer norms have the normalised sizes.
OptionalTensor flat(const char* op, const char* name, const OptionalTensor& t,
                    SymIntArrayRef normalized_shape) {
  if (!t) return t;
  TORCH_CHECK_VALUE(t->sym_sizes().equals(normalized_shape), "torch_cudnn_ext::", op, ": ", name,
                    " has sizes ", t->sym_sizes(), ", wanted normalized_shape ", normalized_shape);
  return with_sizes(*t, {t->sym_numel()});
}

struct LayerNormArgs {
  const Tensor& input;
  SymIntArrayRef normalized_shape;
  const OptionalTensor &weight, &bias;
  double epsilon;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, normalized_shape, weight, bias, epsilon, policy); }
};

Tensor run_layer_norm(const LayerNormArgs& a) {
  constexpr const char* kOp = "layer_norm";
  Tensor y = normalised(
      as_rows(kOp, a.input, a.normalized_shape), flat(kOp, "weight", a.weight, a.normalized_shape),
      flat(kOp, "bias", a.bias, a.normalized_shape), "layer", 1, a.epsilon, a.policy);
  return result_with_sizes(y, a.input.sym_sizes());
}

std::optional<Tensor> plain_layer_norm(const LayerNormArgs& a) {
  auto fits = [&](const OptionalTensor& t) {
    return !has(t) || t->scalar_type() == a.input.scalar_type();
  };
  if (!fits(a.weight) || !fits(a.bias)) return std::nullopt;
  return std::get<0>(at::native_layer_norm(a.input, C10_AS_INTARRAYREF_SLOW(a.normalized_shape),
                                           a.weight, a.bias, a.epsilon));
}

}  // namespace

Tensor layer_norm(const Tensor& input, SymIntArrayRef normalized_shape,
                  const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                  OptionalPolicy policy) {
  LayerNormArgs args{input, normalized_shape, weight, bias, epsilon, policy};
  if (!is_plain_call({&input, &or_undefined(weight), &or_undefined(bias)})) {
    return run_layer_norm(args);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return KnownKernel<LayerNormProblem, run_layer_norm, plain_layer_norm>::call(args);
}

namespace {

// The epsilon of the dtype that sums are taken in.
double smallest_step(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
}

Tensor rms_norm(const Tensor& input, SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                std::optional<double> epsilon, OptionalPolicy policy) {
  constexpr const char* kOp = "rms_norm";
  OptionalTensor w = flat(kOp, "weight", weight, normalized_shape);
  auto dtype = input.scalar_type();
  bool mixed = w && at::isFloatingType(w->scalar_type()) && w->scalar_type() != dtype;
  if (mixed) w = w->to(compute_dtype(dtype));  // PyTorch takes any two
  Tensor y = normalised(as_rows(kOp, input, normalized_shape), w, {}, "rms", 1,
                        epsilon.value_or(smallest_step(input.scalar_type())), policy);
  return in_pytorchs_layout(y, input, KeepsLayout::on_cpu_and_meta);
}

// [batch, channels, space]
Tensor as_channels(const char* op, const Tensor& input, int64_t least_dims) {
  TORCH_CHECK_VALUE(input.dim() >= least_dims, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sym_sizes(), ", wanted at least ", least_dims,
                    " dimensions (batch, channels, ...)");
  SymInt space = 1;
  for (int64_t i = 2; i < input.dim(); ++i) space *= input.sym_size(i);
  return with_sizes(input, {input.sym_size(0), input.sym_size(1), space});
}

}  // namespace

Tensor group_norm(const Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                  const OptionalTensor& bias, double epsilon, OptionalPolicy policy) {
  Tensor x = as_channels("group_norm", input, 2);
  if (input.dim() == 3)
    x = x.contiguous();  // a transposed sequence is not an image of channels_last
  TORCH_CHECK_VALUE(num_groups >= 1 && x.sym_size(1) % num_groups == 0,
                    "torch_cudnn_ext::group_norm: num_groups is ", num_groups,
                    ", wanted a divisor of input's ", x.sym_size(1), " channels");
  Tensor y = normalised(x, weight, bias, "group", num_groups, epsilon, policy);
  return in_pytorchs_layout(y, input,
                            kGroupNormKeepsLayout ? KeepsLayout::everywhere : KeepsLayout::on_cpu);
}

namespace {

void check_running(const char* name, const OptionalTensor& t, const Tensor& input) {
  constexpr const char* kOp = "instance_norm";
  if (!t) return;
  check_dtype(kOp, name, *t);
  TORCH_CHECK_VALUE(t->dim() == 1 && t->sym_size(0) == input.sym_size(1), "torch_cudnn_ext::", kOp,
                    ": ", name, " has sizes ", t->sym_sizes(), ", wanted one for each of input's ",
                    input.sym_size(1), " channels");
  check_device(kOp, name, *t, "input", input);
  TORCH_CHECK_VALUE(!t->requires_grad() || !at::GradMode::is_enabled(), "torch_cudnn_ext::", kOp,
                    ": ", name, " requires a gradient, wanted a tensor without: ", kOp,
                    " is not differentiable with respect to it");
}

// The share of the new value in a running statistic is `momentum`. Values are averaged over the
// batch.
void update_running(const Tensor& running, const Tensor& values, double momentum) {
  Tensor mean = values.mean(0);
  Tensor before = running.to(at::promote_types(running.scalar_type(), mean.scalar_type()));
  running.copy_(before * (1 - momentum) + mean * momentum);  // lerp_ makes NaN of infinities
}

// Given statistics leave nothing to choose: this is one scale and shift a channel.
Tensor with_given_statistics(const Tensor& x, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, const OptionalTensor& weight,
                             const OptionalTensor& bias, double epsilon) {
  TORCH_CHECK_VALUE(running_mean,
                    "torch_cudnn_ext::instance_norm: running_mean is missing, wanted "
                    "one since use_input_stats is False");
  check_arguments(LayerNormKind::instance, x, weight, bias);
  auto has_type_of_x = [&](const OptionalTensor& t) {
    return !t || t->scalar_type() == x.scalar_type();
  };
  bool all = has_type_of_x(weight) && has_type_of_x(bias) && has_type_of_x(running_mean) &&
             has_type_of_x(running_var);
  auto dtype = all ? x.scalar_type() : compute_dtype(x.scalar_type());
  // Contiguous, since PyTorch 2.11's gradient on the CPU misreads numbers that have gaps.
  auto fitting = [&](const OptionalTensor& t) { return t ? t->to(dtype).contiguous() : Tensor(); };
  // A gradient reads copies, since a training forward may change the running statistics first.
  bool copies = compute_requires_grad(x, or_undefined(weight), or_undefined(bias));
  auto kept = [&](const OptionalTensor& running) {
    Tensor t = fitting(running);
    return copies && t.is_same(*running) ? t.clone() : t;
  };
  return at::batch_norm(x.contiguous(), fitting(weight), fitting(bias), kept(running_mean),
                        kept(running_var), false, 0, epsilon,
                        at::globalContext().userEnabledCuDNN());
}

Tensor instance_norm(const Tensor& input, const OptionalTensor& running_mean,
                     const OptionalTensor& running_var, const OptionalTensor& weight,
                     const OptionalTensor& bias, bool use_input_stats, double momentum,
                     double epsilon, OptionalPolicy policy) {
  constexpr const char* kOp = "instance_norm";
  Tensor x = as_channels(kOp, input, 3);
  TORCH_CHECK_VALUE(running_mean.has_value() == running_var.has_value(), "torch_cudnn_ext::", kOp,
                    ": got one of running_mean and running_var, wanted both or neither");
  check_running("running_mean", running_mean, x);
  check_running("running_var", running_var, x);
  if (!use_input_stats) {
    return with_given_statistics(x, running_mean, running_var, weight, bias, epsilon)
        .view_symint(input.sym_sizes());
  }
  TORCH_CHECK_VALUE(x.sym_size(2) != 1, "torch_cudnn_ext::", kOp, ": input has sizes ",
                    input.sym_sizes(), ", wanted more than one element in space");
  Tensor y = normalised(x, weight, bias, "instance", 1, epsilon, policy);
  if (running_mean && x.sym_size(2) != 0) {
    at::NoGradGuard no_grad;
    // Not from the inverse deviation, in which epsilon hides a small variance.
    Tensor values = x.to(compute_dtype(x.scalar_type()));
    update_running(*running_mean, values.mean(2), momentum);
    update_running(*running_var, values.var(2), momentum);
  }
  return y.view_symint(input.sym_sizes());
}

// As PyTorch does, on CUDA alone: layer and group norm compute in float32.
Tensor layer_norm_autocast(const Tensor& input, SymIntArrayRef normalized_shape,
                           const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                           OptionalPolicy policy) {
  BelowAutocast below(c10::kCUDA);
  using at::autocast::cached_cast;
  return layer_norm(cached_cast(at::kFloat, input), normalized_shape,
                    cached_cast(at::kFloat, weight), cached_cast(at::kFloat, bias), epsilon,
                    policy);
}

Tensor group_norm_autocast(const Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                           const OptionalTensor& bias, double epsilon, OptionalPolicy policy) {
  BelowAutocast below(c10::kCUDA);
  using at::autocast::cached_cast;
  return group_norm(cached_cast(at::kFloat, input), num_groups, cached_cast(at::kFloat, weight),
                    cached_cast(at::kFloat, bias), epsilon, policy);
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  implement(m, "layer_norm", TORCH_FN(layer_norm));
  implement(m, "rms_norm", TORCH_FN(rms_norm));
  implement(m, "group_norm", TORCH_FN(group_norm));
  implement(m, "instance_norm", TORCH_FN(instance_norm));
}

// A schema that may change tensors has no loop over samples: vmap sees what it is made of.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchBatched, m) {
  implement(m, "instance_norm", TORCH_FN(instance_norm));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  implement(m, "layer_norm", TORCH_FN(layer_norm_autocast));
  implement(m, "group_norm", TORCH_FN(group_norm_autocast));
}

}  // namespace torch_cudnn_ext::layer_norm
