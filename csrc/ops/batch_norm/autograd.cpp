// Gradients of batch normalisation.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/batch_norm/batch_norm.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::batch_norm {
namespace {

struct BatchNormGradient {
  static constexpr const char* kName = "TorchCudnnExtBatchNormBackward";
  static constexpr size_t kInputs = 4;  // input, weight, bias, z
  bool training = false, relu = false;
  double eps = 0;
  std::string mode;
  at::ScalarType weight_dtype = at::kFloat, bias_dtype = at::kFloat;
  std::optional<std::string> policy;

  auto attributes() {
    return std::tie(training, relu, eps, mode, weight_dtype, bias_dtype, policy);
  }
  // saved: input, weight, mean and spread, reserve, output (the last two may be undefined)
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    variable_list out(kInputs);
    if (!grads[0].defined()) return out;
    Tensor grad = relu ? at::threshold_backward(grads[0], saved[5], 0) : grads[0];
    if (needed[3]) out[3] = grad;
    if (!needed[0] && !needed[1] && !needed[2]) return out;
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &spread = saved[3];
    auto [dx, dw, dbias] = call_kernel({&grad, &input, &weight, &mean, &spread}, backward,
                                       {grad, input, optional_of(weight), mean, spread, training,
                                        eps, mode, optional_of(saved[4]), policy});
    if (needed[0]) out[0] = dx;
    if (needed[1]) out[1] = in_dtype(dw, weight_dtype);
    if (needed[2]) out[2] = in_dtype(dbias, bias_dtype);
    return out;
  }
};
template <class Node>
void fill(Node& node, const ForwardArgs& args, bool training) {
  auto& g = node.gradient;
  g.training = training;
  g.relu = activation_of(args.activation) == Activation::relu;
  g.eps = args.eps;
  g.mode = std::string(args.mode);
  if (has(args.weight)) g.weight_dtype = args.weight->scalar_type();
  if (has(args.bias)) g.bias_dtype = args.bias->scalar_type();
  g.policy = policy_to_save(BatchNormProblem::kFamily, args.policy);
}

// As PyTorch, which has no gradient of them either and says so.
void check_no_gradient(const char* name, const Tensor& t) {
  TORCH_CHECK_VALUE(!t.defined() || !t.requires_grad() || !at::GradMode::is_enabled(),
                    "torch_cudnn_ext::batch_norm: ", name,
                    " requires a gradient, wanted a tensor without: batch_norm is not "
                    "differentiable with respect to it");
}

template <class Run, class Record, class SaveFirst>
auto with_gradient(const ForwardArgs& args, Run&& run, Record&& record, SaveFirst&& save_first) {
  return run_with_gradient<BatchNormGradient>(
      {args.input, or_undefined(args.weight), or_undefined(args.bias), or_undefined(args.z)}, 1,
      run, record, [&](auto& node) {
        save_input(node, args.input);
        save_input(node, or_undefined(args.weight));
        save_first(node);
      });
}

template <class Args>
Tensors4 train_with_gradient(c10::DispatchKeySet keys, const Args& args,
                             const ForwardArgs& forward) {
  return with_gradient(
      forward, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& results) {
        fill(node, forward, true);
        for (int i : {1, 2, 3}) save_result(node, results[i]);
        save_result(node, node.gradient.relu ? results[0] : Tensor());
      },
      SaveNothingFirst());
}

Tensors4 train_alone_autograd(c10::DispatchKeySet keys, const TrainAloneArgs& args) {
  return train_with_gradient(keys, args, args.forward());
}

Tensor infer_autograd(c10::DispatchKeySet keys, const InferArgs& args) {
  check_no_gradient("running_mean", args.running_mean);
  check_no_gradient("running_var", args.running_var);
  ForwardArgs forward = args.forward(kNone, kNone);
  return with_gradient(
      forward, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& results) {
        fill(node, forward, false);
        save_result(node, node.gradient.relu ? results[0] : Tensor());
      },
      [&](auto& node) {
        // Copies, since a training forward may change the running statistics before the backward.
        save_input(node, args.running_mean.clone());
        save_input(node, args.running_var.clone());
        save_input(node, Tensor());
      });
}

struct BatchNormBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtBatchNormBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, weight
  bool training = false;
  double eps = 0;
  std::string mode;

  auto attributes() { return std::tie(training, eps, mode); }
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
Tensors3 backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& args) {
  const Tensor& weight = or_undefined(args.weight);
  return run_with_gradient<BatchNormBackwardGradient>(
      {args.grad_output, args.input, weight}, 3, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) {
        node.gradient.training = args.training;
        node.gradient.eps = args.eps;
        node.gradient.mode = std::string(args.mode);
        for (const Tensor* t :
             {&args.grad_output, &args.input, &weight, &args.mean, &args.spread}) {
          save_input(node, *t);
        }
      });
}

}  // namespace

Tensors4 train_autograd(c10::DispatchKeySet keys, const TrainArgs& args) {
  check_no_gradient("running_mean", or_undefined(args.running_mean));
  check_no_gradient("running_var", or_undefined(args.running_var));
  auto results = train_with_gradient(keys, args, args);
  // A node that saved them must not take the new ones for its own.
  for (const OptionalTensor* running : {&args.running_mean, &args.running_var}) {
    if (has(*running) && !(*running)->is_inference()) {
      increment_version(**running);
    }
  }
  return results;
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<train_autograd, train_alone_autograd, infer_autograd, backward_autograd>(m);
}

}  // namespace torch_cudnn_ext::batch_norm
