// Gradients of dropout, and vmap. Backward multiplies by what forward multiplied by, so it is its
// own gradient.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/library.h>

#include "ops/dropout/dropout.h"

namespace torch_cudnn_ext::dropout {
namespace {

const auto& forward_op() { return op_of<forward>("torch_cudnn_ext::dropout"); }
const auto& train_op() { return op_of<forward_train>("torch_cudnn_ext::_dropout"); }
const auto& backward_op() { return op_of<backward>("torch_cudnn_ext::dropout_backward"); }

template <bool is_forward>
struct DropoutGradient {
  static constexpr const char* kName =
      is_forward ? "TorchCudnnExtDropoutBackward" : "TorchCudnnExtDropoutBackwardBackward";
  static constexpr size_t kInputs = 1;
  double p = 0.5;
  std::vector<SymInt> stride;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(p, stride, policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {backward_op().call(grads[0], saved[0], optional_of(saved[1]), p, stride, policy)};
  }
};

// Under nested transforms dropout calls _dropout at the inner level, so the outer level sees only
// _dropout.
Tensors3 forward_train_autograd(c10::DispatchKeySet keys, const Tensor& input, double p,
                                OptionalPolicy policy) {
  return run_with_gradient<DropoutGradient<true>>(
      {input}, 1, below_autograd(train_op(), keys, input, p, policy),
      [&](auto& node, const auto& results) {
        node.gradient.p = p;
        node.gradient.stride = results[0].sym_strides().vec();
        save_input(node, results[1]);
        save_writer(node, "_dropout", DropoutProblem::kFamily, policy, results[2]);
      });
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, double p,
                        OptionalPolicy policy) {
  if (at::GradMode::is_enabled() && input.requires_grad()) {
    return std::get<0>(forward_train_autograd(keys, input, p, policy));
  }
  return run_with_gradient<DropoutGradient<true>>(
      {input}, 1, below_autograd(forward_op(), keys, input, p, policy), [](auto&, const auto&) {});
}

Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& reserve,
                         const OptionalTensor& writer, double p, SymIntArrayRef stride,
                         OptionalPolicy policy) {
  return run_with_gradient<DropoutGradient<false>>(
      {grad_output}, 1,
      below_autograd(backward_op(), keys, grad_output, reserve, writer, p, stride, policy),
      [&](auto& node, const auto&) {
        node.gradient.p = p;
        node.gradient.stride = stride.vec();
        save_input(node, reserve);
        save_writer(node, "dropout_backward", DropoutProblem::kFamily, policy,
                    or_undefined(writer));
      });
}

// --- vmap

int64_t level_of(const Tensor& t) {
  auto* batched = at::functorch::maybeGetBatchedImpl(t);
  return batched == nullptr ? 0 : batched->level();
}

// A batched zero if vmap gives each sample its own random numbers, undefined if samples share them.
// PyTorch's own random operator decides, or raises. It draws no elements, so no generator moves.
Tensor zero_of_each_sample(const Tensor& input) {
  auto random_zero = [&] { return at::rand({0}, input.options()).sum(); };
  Tensor zero = random_zero();
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchVmapMode);
  return level_of(zero) > level_of(random_zero()) ? zero : Tensor();
}

// A sample for each turn of vmap's loop, also if the input is not batched. It is contiguous, as the
// results are that vmap stacks.
Tensor samples_of(const Tensor& input, const Tensor& zero) { return (input + zero).contiguous(); }

// Ones, whose dropout is a mask for all samples.
Tensor ones_of(const Tensor& input) { return at::ones_symint(input.sym_sizes(), input.options()); }

Tensor forward_vmap(const Tensor& input, double p, OptionalPolicy policy) {
  Tensor zero = zero_of_each_sample(input);
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchVmapMode);
  if (zero.defined()) return forward_op().call(samples_of(input, zero), p, policy);
  return input * forward_op().call(ones_of(input), p, policy);
}

Tensors3 forward_train_vmap(const Tensor& input, double p, OptionalPolicy policy) {
  Tensor zero = zero_of_each_sample(input);
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchVmapMode);
  if (zero.defined()) return train_op().call(samples_of(input, zero), p, policy);
  auto [mask, reserve, writer] = train_op().call(ones_of(input), p, policy);
  return {(input * mask).contiguous(), reserve, writer};  // in the reserve's order of elements
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("dropout", TORCH_FN(forward_autograd));
  m.impl("_dropout", TORCH_FN(forward_train_autograd));
  m.impl("dropout_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchVmapMode, m) {
  m.impl("dropout", TORCH_FN(forward_vmap));
  m.impl("_dropout", TORCH_FN(forward_train_vmap));
}

}  // namespace torch_cudnn_ext::dropout
