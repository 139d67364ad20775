// Gradients of dropout, and vmap. Backward multiplies by what forward multiplied by, so it is its
// own gradient.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/call.h"
#include "ops/dropout/dropout.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::dropout {
namespace {

template <bool is_forward>
struct DropoutGradient {
  static constexpr const char* kName =
      is_forward ? "TorchCudnnExtDropoutBackward" : "TorchCudnnExtDropoutBackwardBackward";
  static constexpr size_t kInputs = 1;
  double p = 0.5;
  std::vector<SymInt> stride;
  std::optional<std::string> policy;

  auto attributes() { return std::tie(p, stride, policy); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_op(BackwardArgs{grads[0], saved[0], optional_of(saved[1]), p, stride, policy})};
  }
};

// Under nested transforms dropout calls _dropout at the inner level, so the outer level sees only
// _dropout.
TrainArgs::Result forward_train_autograd(c10::DispatchKeySet keys, const TrainArgs& a) {
  return run_with_gradient<DropoutGradient<true>>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient.p = a.p;
        node.gradient.stride = results[0].sym_strides().vec();
        save_input(node, results[1]);
        save_writer(node, a.kName, DropoutProblem::kFamily, a.policy, results[2]);
      });
}

Tensor forward_autograd(c10::DispatchKeySet keys, const ForwardArgs& a) {
  if (at::GradMode::is_enabled() && a.input.requires_grad()) {
    return std::get<0>(forward_train_autograd(keys, {a}));
  }
  return run_with_gradient<DropoutGradient<true>>(
      {a.input}, 1, [&] { return redispatch(keys, a); }, [](auto&, const auto&) {});
}

Tensor backward_autograd(c10::DispatchKeySet keys, const BackwardArgs& a) {
  return run_with_gradient<DropoutGradient<false>>(
      {a.grad_output}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto&) {
        node.gradient.p = a.p;
        node.gradient.stride = a.stride.vec();
        save_input(node, a.reserve);
        save_writer(node, a.kName, DropoutProblem::kFamily, a.policy, or_undefined(a.writer));
      });
}

// --- vmap

// A batched zero if vmap gives each sample its own random numbers, undefined if samples share them.
// PyTorch's own random operator decides, or raises. It draws no elements, so no generator moves.
Tensor zero_of_each_sample(const Tensor& input) {
  auto random_zero = [&] { return at::rand({0}, input.options()).sum(); };
  Tensor zero = random_zero();
  ExcludeKeysGuard below(c10::DispatchKey::FuncTorchVmapMode);
  return vmap_level_of(zero) > vmap_level_of(random_zero()) ? zero : Tensor();
}

// A sample for each turn of vmap's loop, also if the input is not batched. It is contiguous, as the
// results are that vmap stacks.
Tensor samples_of(const Tensor& input, const Tensor& zero) { return (input + zero).contiguous(); }

// Ones, whose dropout is a mask for all samples.
Tensor ones_of(const Tensor& input) { return at::ones_symint(input.sym_sizes(), input.options()); }

Tensor forward_vmap(const ForwardArgs& a) {
  Tensor zero = zero_of_each_sample(a.input);
  ExcludeKeysGuard below(c10::DispatchKey::FuncTorchVmapMode);
  if (zero.defined()) return call_op(ForwardArgs{samples_of(a.input, zero), a.p, a.policy});
  return a.input * call_op(ForwardArgs{ones_of(a.input), a.p, a.policy});
}

TrainArgs::Result forward_train_vmap(const TrainArgs& a) {
  Tensor zero = zero_of_each_sample(a.input);
  ExcludeKeysGuard below(c10::DispatchKey::FuncTorchVmapMode);
  if (zero.defined()) return call_op(TrainArgs{{samples_of(a.input, zero), a.p, a.policy}});
  auto [mask, reserve, writer] = call_op(TrainArgs{{ones_of(a.input), a.p, a.policy}});
  return {(a.input * mask).contiguous(), reserve, writer};  // in the reserve's order of elements
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, forward_train_autograd, backward_autograd>(m);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchVmapMode, m) {
  register_kernels<forward_vmap, forward_train_vmap>(m);
}

}  // namespace torch_cudnn_ext::dropout
