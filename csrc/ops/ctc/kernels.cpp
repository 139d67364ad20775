// Kernels, schemas, gradients and autocast of the CTC loss. Lengths and targets are checked on the
// host.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <limits>

#include "ops/autograd.h"
#include "ops/call.h"
#include "ops/schema.h"

namespace torch_cudnn_ext::ctc {
namespace {

constexpr const char* kOp = "torch_cudnn_ext::ctc_loss";

// Losses [N].
struct LossArgs {
  static constexpr const char* kName = "ctc_loss";
  using Result = Tensor;
  const Tensor &log_probs, &targets, &input_lengths, &target_lengths;
  int64_t blank;
  bool zero_infinity;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity,
                    policy);
  }
};

// Losses [N] and the gradient [T, N, C] of their sum.
struct GradientArgs : LossArgs {
  static constexpr const char* kName = "_ctc_loss";
  using Result = std::tuple<Tensor, Tensor>;
};

void check_log_probs(const Tensor& log_probs, int64_t blank) {
  auto dtype = log_probs.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble, kOp, ": log_probs is ", dtype,
                    ", wanted Float or Double");
  TORCH_CHECK_VALUE(log_probs.dim() == 3, kOp, ": log_probs has sizes ", log_probs.sym_sizes(),
                    ", wanted 3 dimensions [T, N, C]");
  for (const SymInt& size : log_probs.sym_sizes()) {
    TORCH_CHECK_VALUE(size > 0, kOp, ": log_probs has sizes ", log_probs.sym_sizes(),
                      ", wanted none of them empty");
  }
  TORCH_CHECK_VALUE(blank >= 0 && blank < log_probs.sym_size(2), kOp, ": blank is ", blank,
                    ", wanted at least 0 and less than ", log_probs.sym_size(2));
}

bool holds_integers(const Tensor& t) {
  return t.scalar_type() == at::kLong || t.scalar_type() == at::kInt;
}

// A copy of the lengths in host memory. Raises if one is wrong.
Tensor lengths_on_host(const char* name, const Tensor& lengths, int64_t batch, int64_t longest) {
  TORCH_CHECK_VALUE(holds_integers(lengths), kOp, ": ", name, " is ", lengths.scalar_type(),
                    ", wanted Long or Int");
  TORCH_CHECK_VALUE(lengths.dim() == 1 && lengths.size(0) == batch, kOp, ": ", name, " has sizes ",
                    lengths.sizes(), ", wanted [", batch, "]");
  Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  for (int64_t i = 0; i < batch; ++i) {
    int64_t length = host.const_data_ptr<int64_t>()[i];
    TORCH_CHECK_VALUE(length >= 0 && length <= longest, kOp, ": ", name, " holds ", length,
                      ", wanted at least 0 and at most ", longest);
  }
  return host;
}

// [N, S] int64 from [N, S] or from concatenated targets. What follows a target's end is never read.
Tensor padded_targets(const Tensor& targets, const Tensor& lengths) {
  int64_t batch = lengths.size(0);
  if (targets.dim() == 2 && targets.size(1) > 0) return targets.to(at::kLong).contiguous();
  int64_t longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  if (targets.numel() == 0) return at::zeros({batch, longest}, targets.options().dtype(at::kLong));
  Tensor first = (lengths.cumsum(0) - lengths).to(targets.device());
  Tensor index = first.unsqueeze(1) + at::arange(longest, first.options());
  return targets.to(at::kLong).take(index.clamp_max(targets.numel() - 1));
}

// Raises if a target in host memory has a wrong label. A check on a GPU would wait for it; see
// hide_wrong_classes.
void check_classes(const Tensor& targets, const Tensor& lengths, int64_t classes) {
  if (!targets.is_cpu()) return;
  for (int64_t i = 0; i < targets.size(0); ++i) {
    const int64_t* row = targets.const_data_ptr<int64_t>() + i * targets.size(1);
    for (int64_t k = 0; k < lengths.const_data_ptr<int64_t>()[i]; ++k) {
      TORCH_CHECK_VALUE(row[k] >= 0 && row[k] < classes, kOp, ": targets holds ", row[k],
                        ", wanted at least 0 and less than the number of classes, ", classes);
    }
  }
}

// Replaces labels that are not classes, so that kernels stay in bounds. Returns [N]: whether a
// label of the target was replaced. Does not wait for the device.
Tensor hide_wrong_classes(Tensor& targets, const Tensor& lengths, int64_t classes) {
  Tensor ends = lengths.to(targets.device(), at::kLong, /*non_blocking=*/true).unsqueeze(1);
  Tensor is_label = at::arange(targets.size(1), targets.options()) < ends;
  Tensor labels = targets.clamp(0, classes - 1);
  Tensor wrong = (labels != targets).logical_and_(is_label).any(1);
  targets = labels;
  return wrong;
}

void check_targets(const Tensor& targets, const Tensor& log_probs) {
  TORCH_CHECK_VALUE(holds_integers(targets), kOp, ": targets is ", targets.scalar_type(),
                    ", wanted Long or Int");
  bool fits =
      targets.dim() == 1 || (targets.dim() == 2 && targets.sym_size(0) == log_probs.sym_size(1));
  TORCH_CHECK_VALUE(fits, kOp, ": targets has sizes ", targets.sym_sizes(),
                    ", wanted one dimension, or [N, S] with N = ", log_probs.sym_size(1));
  check_device("ctc_loss", "targets", targets, "log_probs", log_probs);
}

CtcLengths kind_of(const Tensor& inputs, const Tensor& targets, int64_t steps) {
  auto kind = CtcLengths::full;
  for (int64_t i = 0; i < inputs.size(0); ++i) {
    int64_t input = inputs.const_data_ptr<int64_t>()[i];
    int64_t target = targets.const_data_ptr<int64_t>()[i];
    if (target == 0 || 2 * target - 1 > input) return CtcLengths::irregular;
    if (input < steps) kind = CtcLengths::padded;
  }
  return kind;
}

// Binds the inputs. Raises if one is wrong. Sets `wrong` as hide_wrong_classes does, or leaves it
// undefined if targets are in host memory.
Bindings bind_inputs(const LossArgs& a, Tensor& wrong) {
  int64_t steps = a.log_probs.size(0), batch = a.log_probs.size(1), classes = a.log_probs.size(2);
  int64_t longest = a.targets.size(a.targets.dim() - 1);
  Bindings b;
  b[Role::input_lengths] = lengths_on_host("input_lengths", a.input_lengths, batch, steps);
  b[Role::target_lengths] = lengths_on_host("target_lengths", a.target_lengths, batch, longest);
  const Tensor& lengths = b[Role::target_lengths];
  if (a.targets.dim() == 1) {
    int64_t total = lengths.sum().item<int64_t>();
    TORCH_CHECK_VALUE(total == longest, kOp, ": targets has ", longest,
                      " elements, wanted the sum of target_lengths, ", total);
  }
  b[Role::x] = a.log_probs.contiguous();
  b[Role::targets] = padded_targets(a.targets, lengths);
  check_classes(b[Role::targets], lengths, classes);
  if (!a.targets.is_cpu()) wrong = hide_wrong_classes(b[Role::targets], lengths, classes);
  return b;
}

GradientArgs::Result run(const LossArgs& a, bool gradient) {
  const Tensor& log_probs = a.log_probs;
  check_log_probs(log_probs, a.blank);
  check_targets(a.targets, log_probs);
  Device device = device_of(log_probs.device());
  TORCH_CHECK(!runtime_of(device).is_capturing(device), kOp,
              " cannot be captured into a CUDA graph: it copies lengths between host and device, "
              "and waits for them");
  c10::OptionalDeviceGuard guard(log_probs.device());
  int64_t batch = log_probs.size(1);
  Tensor wrong;
  Bindings b = bind_inputs(a, wrong);
  b[Role::y] = at::empty({batch}, log_probs.options());
  if (gradient) b[Role::dx] = at::empty(log_probs.sizes(), log_probs.options());
  align(b, {Role::x});
  CtcProblem p;
  p.log_probs = spec_of(b[Role::x]);
  p.target_length = b[Role::targets].size(1);
  p.blank = a.blank;
  p.lengths = kind_of(b[Role::input_lengths], b[Role::target_lengths], log_probs.size(0));
  p.gradient = gradient;
  p.canonicalise();
  run_problem(p, a.policy, log_probs, b);
  auto fill = [&](const Tensor& sequences, double value) {
    b[Role::y].masked_fill_(sequences, value);
    if (gradient) b[Role::dx].masked_fill_(sequences.view({1, batch, 1}), value);
  };
  if (a.zero_infinity) fill(b[Role::y].isinf(), 0);
  if (wrong.defined()) fill(wrong, std::numeric_limits<double>::quiet_NaN());
  return {b[Role::y], b[Role::dx]};
}

Tensor forward(const LossArgs& a) { return std::get<0>(run(a, false)); }

GradientArgs::Result forward_with_gradient(const GradientArgs& a) { return run(a, true); }

Tensor forward_meta(const LossArgs& a) {
  check_log_probs(a.log_probs, a.blank);
  check_targets(a.targets, a.log_probs);
  check_not_meta(a.kName, "targets", a.targets, "log_probs", a.log_probs);
  check_not_meta(a.kName, "input_lengths", a.input_lengths, "log_probs", a.log_probs);
  check_not_meta(a.kName, "target_lengths", a.target_lengths, "log_probs", a.log_probs);
  return at::empty_symint({a.log_probs.sym_size(1)}, a.log_probs.options());
}

GradientArgs::Result forward_with_gradient_meta(const GradientArgs& a) {
  return {forward_meta(a), at::empty_symint(a.log_probs.sym_sizes(), a.log_probs.options())};
}

// The forward has computed the gradient as its second result, which has no derivative; PyTorch's
// has none either.
struct CtcGradient {
  static constexpr const char* kName = "TorchCudnnExtCtcLossBackward";
  static constexpr size_t kInputs = 1;

  auto attributes() { return std::tie(); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads[1].defined(),
        "the derivative of torch_cudnn_ext::ctc_loss's gradient is not implemented");
    return {saved[0] * grads[0].unsqueeze(0).unsqueeze(2)};
  }
};

// Under nested transforms ctc_loss calls _ctc_loss at the inner level, so the outer level sees only
// _ctc_loss.
GradientArgs::Result forward_with_gradient_autograd(c10::DispatchKeySet keys,
                                                    const GradientArgs& a) {
  return run_with_gradient<CtcGradient>(
      {a.log_probs}, 2, [&] { return redispatch(keys, a); },
      [](auto& node, const auto& results) { save_result(node, results[1]); });
}

Tensor forward_autograd(c10::DispatchKeySet keys, const LossArgs& a) {
  if (at::GradMode::is_enabled() && a.log_probs.requires_grad()) {
    return std::get<0>(forward_with_gradient_autograd(keys, {a}));
  }
  return run_with_gradient<CtcGradient>(
      {a.log_probs}, 1, [&] { return redispatch(keys, a); }, [](auto&, const auto&) {});
}

template <c10::DeviceType device>
Tensor forward_autocast(const LossArgs& a) {
  BelowAutocast guard(device);
  return call_op(LossArgs{at::autocast::cached_cast(at::kFloat, a.log_probs, device), a.targets,
                          a.input_lengths, a.target_lengths, a.blank, a.zero_infinity, a.policy});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(
      m,
      {"ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
       "int "
       "blank=0, bool zero_infinity=False, *, str? policy=None) -> Tensor",
       "_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
       "int blank=0, bool zero_infinity=False, *, str? policy=None) -> (Tensor, Tensor)"});
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels<forward, forward_with_gradient>(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) {
  register_kernels<forward, forward_with_gradient>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  register_kernels<forward_meta, forward_with_gradient_meta>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, forward_with_gradient_autograd>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<forward_autocast<c10::kCPU>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<forward_autocast<c10::kCUDA>>(m);
}

}  // namespace torch_cudnn_ext::ctc
