// What the parts of batch normalisation share: its operators' arguments, and what is known of a
// call without data. Knows no algorithm.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "ops/call.h"

namespace torch_cudnn_ext::batch_norm {

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;

inline const OptionalTensor kNone;

struct ForwardArgs {
  const Tensor& input;
  const OptionalTensor &running_mean, &running_var, &weight, &bias;
  double momentum, eps;
  std::string_view mode;
  const OptionalTensor& z;
  std::string_view activation;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, running_mean, running_var, weight, bias, momentum, eps, mode, z,
                    activation, policy);
  }
};

// Output, mean, inverse deviation, and what PyTorch's own forward leaves for its backward.
struct TrainArgs : ForwardArgs {
  static constexpr const char* kName = "_batch_norm_train";
  using Result = Tensors4;
};

// Without running statistics, so that it changes no tensor: vmap does not support that.
struct TrainAloneArgs {
  static constexpr const char* kName = "_batch_norm_train_alone";
  using Result = Tensors4;
  const Tensor& input;
  const OptionalTensor &weight, &bias;
  double eps;
  std::string_view mode;
  const OptionalTensor& z;
  std::string_view activation;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, weight, bias, eps, mode, z, activation, policy); }
  ForwardArgs forward() const {
    return {input, kNone, kNone, weight, bias, 0, eps, mode, z, activation, policy};
  }
};

struct InferArgs {
  static constexpr const char* kName = "_batch_norm_infer";
  using Result = Tensor;
  const Tensor &input, &running_mean, &running_var;
  const OptionalTensor &weight, &bias;
  double eps;
  std::string_view mode;
  const OptionalTensor& z;
  std::string_view activation;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, running_mean, running_var, weight, bias, eps, mode, z, activation,
                    policy);
  }
  ForwardArgs forward(const OptionalTensor& mean, const OptionalTensor& var) const {
    return {input, mean, var, weight, bias, 0, eps, mode, z, activation, policy};
  }
};

// `mean` and `spread` are what training gave, the mean and the inverse deviation, or the running
// mean and variance.
struct BackwardArgs {
  static constexpr const char* kName = "batch_norm_backward";
  using Result = Tensors3;
  const Tensor &grad_output, &input;
  const OptionalTensor& weight;
  const Tensor &mean, &spread;
  bool training;
  double eps;
  std::string_view mode;
  const OptionalTensor& reserve;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(grad_output, input, weight, mean, spread, training, eps, mode, reserve, policy);
  }
};

// The public forward.
struct BatchNormArgs {
  static constexpr const char* kName = "batch_norm";
  using Result = Tensor;
  const Tensor& input;
  const OptionalTensor &running_mean, &running_var, &weight, &bias;
  bool training;
  double momentum, eps;
  std::string_view mode;
  const OptionalTensor& z;
  std::string_view activation;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, running_mean, running_var, weight, bias, training, momentum, eps, mode,
                    z, activation, policy);
  }
};

Tensor infer(const InferArgs& args);
Tensors3 backward(const BackwardArgs& args);
Tensors4 train_autograd(c10::DispatchKeySet keys, const TrainArgs& args);
Tensor batch_norm(const BatchNormArgs& args);

// --- what is known of a call without data. What is wrong with its arguments raises ValueError.

bool is_per_activation(std::string_view mode);
Activation activation_of(std::string_view text);
// Both return whether statistics are per activation.
bool check_forward(const ForwardArgs& args);
bool check_backward(const BackwardArgs& args);

// Sizes of a statistic, [C] or those of one sample, and its options.
std::vector<SymInt> statistic_sizes(const Tensor& input, bool per_activation);
at::TensorOptions statistic_options(const Tensor& input);

at::MemoryFormat format_of(const Tensor& input, bool contiguous);
// An empty tensor without the gaps of an input without elements, which counts as dense.
Tensor dense_like(const Tensor& input, bool contiguous);
// Whether the gradient of the input is contiguous for any layout of the input, as PyTorch's is on
// CUDA: in evaluation, and in training by its own kernels except for images. cuDNN keeps the
// input's layout.
bool gives_contiguous(const BackwardArgs& args);

}  // namespace torch_cudnn_ext::batch_norm
