// Kernels and schemas of dropout with 0 < p < 1.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include "core/policy/rules.h"
#include "core/select/plan_store.h"
#include "core/writer.h"
#include "ops/call.h"
#include "ops/dropout/dropout.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::dropout {
namespace {

// The source of the mask: PyTorch's generator, unless the policy admits cuDNN's algorithm alone. It
// is PyTorch's too if that algorithm cannot run and the policy lets another run instead.
RandomStream stream_of(DropoutProblem problem, const ResolvedPolicy& resolved,
                       const Device& device) {
  problem.pass = Pass::fwd;  // the rules of both passes hold for both
  problem.canonicalise();
  const ResolvedPolicy& ruled = with_rules(problem, resolved);
  const Policy& policy = ruled.policy;
  for (const char* op : {"dropout_fwd", "dropout_bwd"}) {
    auto found = policy.selections.find(op);
    if (found == policy.selections.end() || found->second.kind != Selection::Kind::pinned) continue;
    const Algorithm& pinned = found->second.algorithm;
    if (pinned.backend != "legacy") return RandomStream::philox;
    bool may_fall_back =
        policy.on_unsupported.value_or(OnUnsupported::error) != OnUnsupported::error;
    problem.rng = RandomStream::cudnn;
    problem.canonicalise();
    bool runs =
        !may_fall_back ||
        (!unsupported_at_run({problem, ruled, device}, pinned) &&
         std::holds_alternative<AdmissiblePlan>(admissible_plan({problem, ruled, device}, pinned)));
    return runs ? RandomStream::cudnn : RandomStream::philox;
  }
  bool pytorch = policy.admits_backend("aten") || policy.admits_backend("cpu");
  return pytorch ? RandomStream::philox : RandomStream::cudnn;
}

// Runs a pass and returns its reserve.
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

// The result and, if `train` is set, the reserve and its writer.
TrainArgs::Result run_forward(const ForwardArgs& a, bool train) {
  const Tensor& input = a.input;
  check_arguments(a.kName, "input", input, a.p);
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) {  // counts as dense, even if its strides have gaps
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
  Tensor reserve = run(Pass::fwd, bindings, input, a.p, train, a.policy);
  return {output, reserve, train ? writer_of_last(input) : Tensor()};
}

// Whether the gradient has the layout of grad_output, as PyTorch's has, rather than the forward's.
// It does not on the CPU if elements of grad_output share memory or lie apart.
bool keeps_layout(const Tensor& grad_output) {
  bool on_cuda = grad_output.key_set().has_backend(c10::BackendComponent::CUDABit);
  return on_cuda || is_dense(grad_output);
}

Tensor forward(const ForwardArgs& a) { return std::get<0>(run_forward(a, false)); }

TrainArgs::Result forward_train(const TrainArgs& a) { return run_forward(a, true); }

Tensor backward(const BackwardArgs& a) {
  const Tensor& grad_output = a.grad_output;
  check_arguments(a.kName, "grad_output", grad_output, a.p);
  check_device(a.kName, "reserve", a.reserve, "grad_output", grad_output);
  OptionalPolicy coupled = policy_of_backward(DropoutProblem::kFamily, a.kName, a.writer, a.policy);
  c10::OptionalDeviceGuard guard(grad_output.device());
  at::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(a.stride);
  Tensor result = at::empty_strided(grad_output.sizes(), strides, grad_output.options());
  if (grad_output.numel() == 0) return result;
  bool same_order = grad_output.strides() == strides;
  Bindings bindings;
  bindings[Role::dy] = flat(same_order ? grad_output : at::empty_like(result).copy_(grad_output));
  bindings[Role::reserve] = a.reserve;
  bindings[Role::dx] = flat(result);
  run(Pass::bwd, bindings, grad_output, a.p, true, coupled);
  if (same_order || !keeps_layout(grad_output)) return result;
  return at::empty_like(grad_output).copy_(result);
}

Tensor forward_meta(const ForwardArgs& a) {
  check_arguments(a.kName, "input", a.input, a.p);
  return at::empty_like(a.input);
}

TrainArgs::Result forward_train_meta(const TrainArgs& a) {
  return {forward_meta(a), no_reserve(a.input), make_writer(0, a.input)};
}

Tensor backward_meta(const BackwardArgs& a) {
  const Tensor& dy = a.grad_output;
  check_arguments(a.kName, "grad_output", dy, a.p);
  if (dy.sym_numel() != 0 && keeps_layout(dy)) return at::empty_like(dy);
  return at::empty_strided_symint(dy.sym_sizes(), a.stride, dy.options());
}

}  // namespace

// dropout calls _dropout if a gradient is wanted. The reserve is the mask, in a format and a size
// that only its algorithm knows; the writer says which algorithm that was (core/writer.h).
TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m,
         {"dropout(Tensor input, float p, *, str? policy=None) -> Tensor",
          "_dropout(Tensor input, float p, *, str? policy=None) -> (Tensor output, Tensor reserve, "
          "Tensor writer)"},
         random_tags());
  define(m, {"dropout_backward(Tensor grad_output, Tensor reserve, Tensor? writer, float p, "
             "SymInt[] stride, *, str? policy=None) -> Tensor"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) {
  register_kernels<forward, forward_train, backward>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) {
  register_kernels<forward, forward_train, backward>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<forward_meta, forward_train_meta, backward_meta>(m);
}

}  // namespace torch_cudnn_ext::dropout
