// Dropout: argument checks, Problem, gradients, and what the core must know of it.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "core/policy/rules.h"
#include "core/select/execute.h"
#include "core/select/plan_store.h"
#include "core/tune/measure.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

void DropoutProblem::validate() const {
  check_sizes("dropout", "x", x, 1, 1);
  TORCH_CHECK_VALUE(x.strides == Dims{1} || x.sizes == Dims{1},
                    "dropout: x has strides of its own, wanted :nchw");
  TORCH_CHECK_VALUE(p > 0 && p < 1, "dropout: p is ", p, ", wanted more than 0 and less than 1");
}

namespace dropout {
namespace {

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

// A mask comes from PyTorch's generator, unless the policy leaves cuDNN's algorithm alone. Where
// that cannot run and may give way, PyTorch's generator serves what runs instead.
RandomStream stream_of(DropoutProblem problem, const ResolvedPolicy& resolved,
                       const Device& device) {
  problem.pass = Pass::fwd;  // whose rules, and those of its backward, hold for both
  problem.canonicalise();
  const ResolvedPolicy& ruled = with_rules(problem, resolved);
  const Policy& policy = ruled.policy;
  for (const char* op : {"dropout_fwd", "dropout_bwd"}) {
    auto found = policy.selections.find(op);
    if (found == policy.selections.end() || found->second.kind != Selection::Kind::pinned) continue;
    const Algorithm& pinned = found->second.algorithm;
    if (pinned.backend != "legacy") return RandomStream::philox;
    bool gives_way = policy.on_unsupported.value_or(OnUnsupported::error) != OnUnsupported::error;
    problem.rng = RandomStream::cudnn;
    problem.canonicalise();
    bool runs =
        !gives_way ||
        (!unsupported_at_run({problem, ruled, device}, pinned) &&
         std::holds_alternative<AdmissiblePlan>(admissible_plan({problem, ruled, device}, pinned)));
    return runs ? RandomStream::cudnn : RandomStream::philox;
  }
  bool pytorch = policy.admits_backend("aten") || policy.admits_backend("cpu");
  return pytorch ? RandomStream::philox : RandomStream::cudnn;
}

// Runs a pass and gives its reserve.
Tensor run(Pass pass, Bindings& bindings, const Tensor& x, double p, bool train,
           OptionalPolicy policy) {
  const ResolvedPolicy& resolved = resolve_policy(DropoutProblem::kFamily, policy);
  DropoutProblem problem;
  problem.pass = pass;
  problem.x = {x.scalar_type(), {x.numel()}, {1}};
  problem.p = p;
  problem.train = train;
  problem.rng = stream_of(problem, resolved, device_of(x.device()));
  problem.canonicalise();
  if (problem.rng == RandomStream::cudnn) align(bindings, {Role::x, Role::dy});
  align(bindings, {Role::reserve});
  execute(problem, resolved, device_of(x.device()), bindings);
  return bindings[Role::reserve];
}

void check_arguments(const char* op, const char* name, const Tensor& t, double p) {
  check_dtype(op, name, t);
  TORCH_CHECK_VALUE(p > 0 && p < 1, "torch_cudnn_ext::", op, ": p is ", p,
                    ", wanted more than 0 and less than 1");
}

// The result and, with `train`, the reserve and its writer.
Tensors3 run_forward(const Tensor& input, double p, bool train, OptionalPolicy policy) {
  check_arguments("dropout", "input", input, p);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) {  // which counts as dense, whatever gaps its strides have
    auto strides = at::infer_dense_strides(input.sizes(), input.strides());
    Tensor output = at::empty_strided(input.sizes(), strides, input.options());
    if (!train) return {output, Tensor(), Tensor()};
    return {output, no_reserve(input), make_writer(0, input)};
  }
  Tensor output = at::empty_like(input);
  Bindings bindings;
  bindings[Role::x] =
      flat(input.strides() == output.strides() ? input : at::empty_like(output).copy_(input));
  bindings[Role::y] = flat(output);
  Tensor reserve = run(Pass::fwd, bindings, input, p, train, policy);
  return {output, reserve, train ? writer_of_last(input) : Tensor()};
}

Tensor forward(const Tensor& input, double p, OptionalPolicy policy) {
  return std::get<0>(run_forward(input, p, false, policy));
}

// What a forward in training is below autograd: the reserve is for its backward alone.
Tensors3 forward_train(const Tensor& input, double p, OptionalPolicy policy) {
  return run_forward(input, p, true, policy);
}

Tensor forward_meta(const Tensor& input, double p, OptionalPolicy) {
  check_arguments("dropout", "input", input, p);
  return at::empty_like(input);
}

Tensors3 forward_train_meta(const Tensor& input, double p, OptionalPolicy policy) {
  return {forward_meta(input, p, policy), no_reserve(input), make_writer(0, input)};
}

// Whether the result has the layout of grad_output, as PyTorch's does, rather than the forward's:
// on the CPU not if elements of grad_output share memory or lie apart.
bool follows(const Tensor& grad_output) {
  bool on_cuda = grad_output.key_set().has_backend(c10::BackendComponent::CUDABit);
  return on_cuda || is_dense(grad_output);
}

// `stride` is the forward's, whose order of elements the reserve has.
Tensor backward(const Tensor& grad_output, const Tensor& reserve, const OptionalTensor& writer,
                double p, SymIntArrayRef stride, OptionalPolicy policy) {
  check_arguments("dropout_backward", "grad_output", grad_output, p);
  check_device("dropout_backward", "reserve", reserve, "grad_output", grad_output);
  OptionalPolicy coupled =
      policy_of_backward(DropoutProblem::kFamily, "dropout_backward", writer, policy);
  c10::OptionalDeviceGuard guard(grad_output.device());
  at::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(stride);
  Tensor result = at::empty_strided(grad_output.sizes(), strides, grad_output.options());
  if (grad_output.numel() == 0) return result;
  bool same_order = grad_output.strides() == strides;
  Bindings bindings;
  bindings[Role::dy] = flat(same_order ? grad_output : at::empty_like(result).copy_(grad_output));
  bindings[Role::reserve] = reserve;
  bindings[Role::dx] = flat(result);
  run(Pass::bwd, bindings, grad_output, p, true, coupled);
  if (same_order || !follows(grad_output)) return result;
  return at::empty_like(grad_output).copy_(result);
}

Tensor backward_meta(const Tensor& grad_output, const Tensor&, const OptionalTensor&, double p,
                     SymIntArrayRef stride, OptionalPolicy) {
  check_arguments("dropout_backward", "grad_output", grad_output, p);
  if (grad_output.sym_numel() != 0 && follows(grad_output)) return at::empty_like(grad_output);
  return at::empty_strided_symint(grad_output.sym_sizes(), stride, grad_output.options());
}

// --- gradients: backward multiplies by what forward multiplied by, and is its own gradient

const auto& forward_op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::dropout");
  return op;
}
const auto& train_op() {
  static auto op = find_op<decltype(forward_train)>("torch_cudnn_ext::_dropout");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::dropout_backward");
  return op;
}

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
    visit(p);
    visit(stride);
    visit(policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {backward_op().call(grads[0], saved[0], optional_of(saved[1]), p, stride, policy)};
  }
};

// An operator of its own to autograd too: where transforms are nested, dropout calls it at the
// inner level, and the outer one sees nothing else.
Tensors3 forward_train_autograd(c10::DispatchKeySet keys, const Tensor& input, double p,
                                OptionalPolicy policy) {
  return run_with_gradient<DropoutGradient<true>>(
      {input}, 1,
      [&] { return train_op().redispatch(keys & c10::after_autograd_keyset, input, p, policy); },
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
      {input}, 1,
      [&] { return forward_op().redispatch(keys & c10::after_autograd_keyset, input, p, policy); },
      [](auto&, const auto&) {});
}

Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& reserve,
                         const OptionalTensor& writer, double p, SymIntArrayRef stride,
                         OptionalPolicy policy) {
  return run_with_gradient<DropoutGradient<false>>(
      {grad_output}, 1,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, reserve,
                                        writer, p, stride, policy);
      },
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

// Zero as a random number where vmap gives each sample numbers of its own; undefined where all
// share them. It is PyTorch's own random operator that says so, or raises; of no elements, so that
// no generator moves.
Tensor zero_of_each_sample(const Tensor& input) {
  auto random_zero = [&] { return at::rand({0}, input.options()).sum(); };
  Tensor zero = random_zero();
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::FuncTorchVmapMode);
  return level_of(zero) > level_of(random_zero()) ? zero : Tensor();
}

// Samples that vmap's loop gives a mask each, also where they were one; contiguous, as the results
// that it stacks.
Tensor samples_of(const Tensor& input, const Tensor& zero) { return (input + zero).contiguous(); }

// Dropout of it is a mask for all samples.
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

// --- what the core must know

class DropoutOperator : public CoupledOperatorOf<DropoutProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnDropoutForward, cudnnDropoutBackward",
        "dense, any shape",
        "cuDNN: its own random numbers alone (rng=cudnn), no bf16; aten and cpu: PyTorch's alone",
        {"dropout_fwd x=f16[1048576]:nchw rng=philox",
         "dropout_fwd x=f16[1048576]:nchw rng=cudnn"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }
  bool is_random(const DropoutProblem&) const override { return true; }
  bool has_one_choice() const override { return true; }

  std::vector<SlotSpec> slots(const DropoutProblem& p) const override {
    bool forward = p.pass == Pass::fwd;
    TensorSpec mask{at::kByte, {0}, {1}};
    std::vector<SlotSpec> list{{forward ? Role::x : Role::dy, p.x, false}};
    if (p.train) list.push_back({Role::reserve, mask, forward});
    list.push_back({forward ? Role::y : Role::dx, p.x, true});
    return list;
  }

  Cost cost(const DropoutProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double mask_bytes = p.train ? elements / 8 : 0;  // at least
    return {elements, 2 * static_cast<double>(p.x.nbytes()) + mask_bytes, 1};
  }

  // Zeros of x, which random numbers of few bits have, would pass for dropped.
  void prepare_scratch(const DropoutProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::bwd) return;
    bindings[Role::x].masked_fill_(bindings[Role::x] == 0, 1);
  }

  // Nothing foretells a mask: see fault().
  Bindings reference(const DropoutProblem&, const Bindings&) const override { return {}; }

  // The mask is read off the output: it must leave out a share p, and both passes must have
  // multiplied by it.
  std::string fault(const DropoutProblem& p, const Bindings& bindings) const override {
    constexpr double kSigmas = 6;
    const Tensor& y = bindings[Role::y];
    Tensor kept = (y != 0).to(at::kDouble);
    bool forward = p.pass == Pass::fwd;
    Tensor expected = bindings[forward ? Role::x : Role::dy].to(at::kDouble) * kept / (1 - p.p);
    double error = relative_error(bindings[forward ? Role::y : Role::dx], expected);
    // cuDNN keeps 1 / (1 - p) in float32.
    double scale_error = p.rng == RandomStream::cudnn ? 1e-7 : 0;
    if (!(error <= tolerance(p, {}) + scale_error)) {
      return c10::str("relative error ", error,
                      forward ? " of what y keeps of x" : " of dx under y's mask");
    }
    auto n = static_cast<double>(p.x.numel());
    double share = 1 - kept.mean().item<double>();
    double allowed = kSigmas * std::sqrt(p.p * (1 - p.p) / n) + 1 / n;
    if (std::abs(share - p.p) <= allowed) return "";
    return c10::str("a share ", share, " is dropped, wanted ", p.p, " within ", allowed);
  }

  double tolerance(const DropoutProblem& p, const Notes&) const override {
    return 4 * epsilon_of(p.x.dtype);
  }

  std::vector<std::string> heuristic_order(const DropoutProblem& p) const override {
    if (p.rng == RandomStream::cudnn) return {"legacy"};
    return {"aten"};
  }
};

const RegisterOperator<DropoutOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("dropout", TORCH_FN(forward));
  m.impl("_dropout", TORCH_FN(forward_train));
  m.impl("dropout_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("dropout", TORCH_FN(forward_meta));
  m.impl("_dropout", TORCH_FN(forward_train_meta));
  m.impl("dropout_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("dropout", TORCH_FN(forward_autograd));
  m.impl("_dropout", TORCH_FN(forward_train_autograd));
  m.impl("dropout_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchVmapMode, m) {
  m.impl("dropout", TORCH_FN(forward_vmap));
  m.impl("_dropout", TORCH_FN(forward_train_vmap));
}

}  // namespace dropout
}  // namespace torch_cudnn_ext
