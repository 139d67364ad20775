// The public forward of batch normalisation, made of the inner operators, and PyTorch's own
// operator, overridden by it.
#include <ATen/MemoryOverlap.h>
#include <torch/library.h>

#include "ops/batch_norm/batch_norm.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext::batch_norm {
namespace {

struct PublicTrainArgs : ForwardArgs {
  static constexpr const char* kName = "batch_norm_train";
  using Result = Tensors3;
};

Tensors4 composites_train(const ForwardArgs& a) {
  if (has(a.running_mean) || has(a.running_var)) return call_op(TrainArgs{a});
  return call_op(
      TrainAloneArgs{a.input, a.weight, a.bias, a.eps, a.mode, a.z, a.activation, a.policy});
}

Tensors3 batch_norm_train(const PublicTrainArgs& args) {
  auto [output, mean, invstd, reserve] = composites_train(args);
  return {output, mean, invstd};
}

void composites_register_all(torch::Library& m) {
  register_kernels<batch_norm, batch_norm_train>(m);
}

}  // namespace

Tensor batch_norm(const BatchNormArgs& a) {
  const OptionalTensor &mean = a.running_mean, &var = a.running_var;
  if (a.training) {
    return std::get<0>(composites_train({a.input, mean, var, a.weight, a.bias, a.momentum, a.eps,
                                         a.mode, a.z, a.activation, a.policy}));
  }
  TORCH_CHECK_VALUE(has(mean) && has(var),
                    "torch_cudnn_ext::batch_norm: ", has(mean) ? "running_var" : "running_mean",
                    " is None, wanted a Tensor when training is False");
  return call_kernel(
      {&a.input, &*mean, &*var, &or_undefined(a.weight), &or_undefined(a.bias), &or_undefined(a.z)},
      infer, {a.input, *mean, *var, a.weight, a.bias, a.eps, a.mode, a.z, a.activation, a.policy});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) { composites_register_all(m); }
// A schema that may change tensors has no loop over samples: vmap sees what it is made of.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchBatched, m) { composites_register_all(m); }

namespace {

// --- PyTorch's own, overridden

struct AtenBatchNorm {
  static constexpr const char* kOp = "batch_norm";

  static std::optional<std::string> why_declined(c10::DispatchKeySet keys, const Tensor& input,
                                                 const OptionalTensor& weight,
                                                 const OptionalTensor& bias,
                                                 const OptionalTensor& running_mean,
                                                 const OptionalTensor& running_var, bool training,
                                                 double, double, bool) {
    const Tensor &w = or_undefined(weight), &b = or_undefined(bias),
                 &mean = or_undefined(running_mean), &var = or_undefined(running_var);
    if (auto reason = why_any_is_declined(keys, {{"input", input}, {"weight", w}, {"bias", b}})) {
      return reason;
    }
    for (const auto& [name, t] :
         {NamedTensor{"running_mean", mean}, NamedTensor{"running_var", var}}) {
      if (auto reason = why_tensor_is_declined(keys, name, t)) return reason;
    }
    if (auto reason = why_dtypes_are_declined(
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
      return std::get<0>(
          train_autograd(keys, {{input, running_mean, running_var, weight, bias, momentum, eps,
                                 "spatial", kNone, "none", std::nullopt}}));
    }
    return batch_norm({input, running_mean, running_var, weight, bias, training, momentum, eps,
                       "spatial", kNone, "none", std::nullopt});
  }
};

const RegisterOverrideOfComposite<
    AtenBatchNorm, Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, bool, double, double, bool)>
    overridden("batch_norm");

}  // namespace
}  // namespace torch_cudnn_ext::batch_norm
