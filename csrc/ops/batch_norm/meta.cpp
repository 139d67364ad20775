// What is known of a batch normalisation without data: whether its arguments are valid, the sizes
// and the layout of its results.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/base/enum_text.h"
#include "ops/batch_norm/batch_norm.h"

namespace torch_cudnn_ext::batch_norm {
namespace {

constexpr EnumName<bool> kModes[] = {{false, "spatial"}, {true, "per_activation"}};

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

}  // namespace

bool is_per_activation(std::string_view mode) {
  return enum_value(kModes, "torch_cudnn_ext::batch_norm: mode", mode);
}

Activation activation_of(std::string_view text) {
  static constexpr EnumName<Activation> kTaken[] = {{Activation::none, "none"},
                                                    {Activation::relu, "relu"}};
  return enum_value(kTaken, "torch_cudnn_ext::batch_norm: activation", text);
}

bool check_forward(const ForwardArgs& args) {
  bool per_activation = is_per_activation(args.mode);
  const Tensor& input = args.input;
  check_input(input);
  check_statistic("running_mean", args.running_mean, input, per_activation);
  check_statistic("running_var", args.running_var, input, per_activation);
  TORCH_CHECK_VALUE(
      has(args.running_mean) == has(args.running_var),
      "torch_cudnn_ext::batch_norm: ", has(args.running_mean) ? "running_var" : "running_mean",
      " is None, wanted both running statistics or neither");
  check_statistic("weight", args.weight, input, per_activation);
  check_statistic("bias", args.bias, input, per_activation);
  if (has(args.z)) check_same("batch_norm", "z", *args.z, "input", input);
  return per_activation;
}

bool check_backward(const BackwardArgs& args) {
  bool per_activation = is_per_activation(args.mode);
  const Tensor& input = args.input;
  check_input(input);
  check_same("batch_norm_backward", "grad_output", args.grad_output, "input", input);
  check_statistic("weight", args.weight, input, per_activation);
  check_statistic("mean", args.mean, input, per_activation);
  check_statistic("invstd_or_var", args.spread, input, per_activation);
  return per_activation;
}

std::vector<SymInt> statistic_sizes(const Tensor& input, bool per_activation) {
  if (!per_activation) return {input.sym_size(1)};
  return {input.sym_sizes().begin() + 1, input.sym_sizes().end()};
}

at::TensorOptions statistic_options(const Tensor& input) {
  return input.options().dtype(compute_dtype(input.scalar_type()));
}

at::MemoryFormat format_of(const Tensor& input, bool contiguous) {
  return contiguous ? at::MemoryFormat::Contiguous : torch_cudnn_ext::format_of(input);
}

Tensor dense_like(const Tensor& input, bool contiguous) {
  return at::empty_symint(input.sym_sizes(),
                          input.options().memory_format(format_of(input, contiguous)));
}

bool gives_contiguous(const BackwardArgs& args) {
  const Tensor& input = args.input;
  if (!input.key_set().has_backend(c10::BackendComponent::CUDABit)) return false;
  if (!args.training) return true;
  // cuDNN takes float32, float64, and float16 with parameters in float32.
  bool cudnn = has(args.weight) &&
               args.weight->scalar_type() == compute_dtype(input.scalar_type()) &&
               input.scalar_type() != at::kBFloat16 && input.dim() >= 3 &&
               at::globalContext().userEnabledCuDNN();
  return !cudnn && input.dim() != 4;
}

namespace {

Tensor empty_statistic(const Tensor& input, bool per_activation) {
  return at::empty_symint(statistic_sizes(input, per_activation), statistic_options(input));
}

Tensors4 empty_results(const ForwardArgs& args) {
  const Tensor& input = args.input;
  activation_of(args.activation);
  bool per_activation = check_forward(args);
  return {dense_like(input, per_activation), empty_statistic(input, per_activation),
          empty_statistic(input, per_activation), no_reserve(input)};
}
Tensors4 train_meta(const TrainArgs& args) { return empty_results(args); }
Tensors4 train_alone_meta(const TrainAloneArgs& args) { return empty_results(args.forward()); }

Tensor infer_meta(const InferArgs& args) {
  activation_of(args.activation);
  return dense_like(args.input, check_forward(args.forward(args.running_mean, args.running_var)));
}

Tensors3 backward_meta(const BackwardArgs& args) {
  const Tensor& input = args.input;
  bool per_activation = check_backward(args);
  return {dense_like(input, per_activation || gives_contiguous(args)),
          empty_statistic(input, per_activation), empty_statistic(input, per_activation)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<train_meta, train_alone_meta, infer_meta, backward_meta>(m);
}

}  // namespace torch_cudnn_ext::batch_norm
