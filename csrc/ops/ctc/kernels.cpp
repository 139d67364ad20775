// Kernels and schemas of the CTC loss. Lengths and targets are checked on the host.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <limits>

#include "ops/ctc/ctc.h"
#include "ops/registration.h"

namespace torch_cudnn_ext::ctc {
namespace {

constexpr const char* kOp = "torch_cudnn_ext::ctc_loss";

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

// Binds the inputs. Raises if an argument is wrong. Sets `wrong` as hide_wrong_classes does, or
// leaves it undefined if targets are in host memory.
Bindings bind_inputs(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                     const Tensor& target_lengths, Tensor& wrong) {
  int64_t steps = log_probs.size(0), batch = log_probs.size(1), classes = log_probs.size(2);
  bool padded = targets.dim() == 2;
  Bindings b;
  b[Role::input_lengths] = lengths_on_host("input_lengths", input_lengths, batch, steps);
  b[Role::target_lengths] = lengths_on_host("target_lengths", target_lengths, batch,
                                            padded ? targets.size(1) : targets.size(0));
  const Tensor& lengths = b[Role::target_lengths];
  if (!padded) {
    int64_t total = lengths.sum().item<int64_t>();
    TORCH_CHECK_VALUE(total == targets.size(0), kOp, ": targets has ", targets.size(0),
                      " elements, wanted the sum of target_lengths, ", total);
  }
  b[Role::x] = log_probs.contiguous();
  b[Role::targets] = padded_targets(targets, lengths);
  check_classes(b[Role::targets], lengths, classes);
  if (!targets.is_cpu()) wrong = hide_wrong_classes(b[Role::targets], lengths, classes);
  return b;
}

std::tuple<Tensor, Tensor> run(const Tensor& log_probs, const Tensor& targets,
                               const Tensor& input_lengths, const Tensor& target_lengths,
                               int64_t blank, bool zero_infinity, bool gradient,
                               OptionalPolicy policy) {
  check_log_probs(log_probs, blank);
  check_targets(targets, log_probs);
  Device device = device_of(log_probs.device());
  TORCH_CHECK(!runtime_of(device).is_capturing(device), kOp,
              " cannot be captured into a CUDA graph: it copies lengths between host and device, "
              "and waits for them");
  c10::OptionalDeviceGuard guard(log_probs.device());
  int64_t steps = log_probs.size(0), batch = log_probs.size(1);
  Tensor wrong;
  Bindings b = bind_inputs(log_probs, targets, input_lengths, target_lengths, wrong);
  b[Role::y] = at::empty({batch}, log_probs.options());
  if (gradient) b[Role::dx] = at::empty(log_probs.sizes(), log_probs.options());
  align(b, {Role::x});
  CtcProblem p;
  p.log_probs = spec_of(b[Role::x]);
  p.target_length = b[Role::targets].size(1);
  p.blank = blank;
  p.lengths = kind_of(b[Role::input_lengths], b[Role::target_lengths], steps);
  p.gradient = gradient;
  p.canonicalise();
  run_problem(p, policy, log_probs, b);
  auto fill = [&](const Tensor& sequences, double value) {
    b[Role::y].masked_fill_(sequences, value);
    if (gradient) b[Role::dx].masked_fill_(sequences.view({1, batch, 1}), value);
  };
  if (zero_infinity) fill(b[Role::y].isinf(), 0);
  if (wrong.defined()) fill(wrong, std::numeric_limits<double>::quiet_NaN());
  return {b[Role::y], b[Role::dx]};
}

}  // namespace

Tensor forward(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
               const Tensor& target_lengths, int64_t blank, bool zero_infinity,
               OptionalPolicy policy) {
  return std::get<0>(
      run(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, false, policy));
}

std::tuple<Tensor, Tensor> forward_with_gradient(const Tensor& log_probs, const Tensor& targets,
                                                 const Tensor& input_lengths,
                                                 const Tensor& target_lengths, int64_t blank,
                                                 bool zero_infinity, OptionalPolicy policy) {
  return run(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, true, policy);
}

namespace {

Tensor forward_meta(const Tensor& log_probs, const Tensor& targets, const Tensor& inputs,
                    const Tensor& lengths, int64_t blank, bool, OptionalPolicy) {
  check_log_probs(log_probs, blank);
  check_targets(targets, log_probs);
  check_not_meta("ctc_loss", "targets", targets, "log_probs", log_probs);
  check_not_meta("ctc_loss", "input_lengths", inputs, "log_probs", log_probs);
  check_not_meta("ctc_loss", "target_lengths", lengths, "log_probs", log_probs);
  return at::empty_symint({log_probs.sym_size(1)}, log_probs.options());
}

std::tuple<Tensor, Tensor> forward_with_gradient_meta(const Tensor& log_probs,
                                                      const Tensor& targets, const Tensor& inputs,
                                                      const Tensor& lengths, int64_t blank,
                                                      bool zero_infinity, OptionalPolicy policy) {
  return {forward_meta(log_probs, targets, inputs, lengths, blank, zero_infinity, policy),
          at::empty_symint(log_probs.sym_sizes(), log_probs.options())};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward, forward_meta>(
      m,
      "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int "
      "blank=0, bool zero_infinity=False, *, str? policy=None) -> Tensor",
      tags());
  define_operator<forward_with_gradient, forward_with_gradient_meta>(
      m,
      "_ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
      "int blank=0, bool zero_infinity=False, *, str? policy=None) -> (Tensor, Tensor)",
      tags());
}

}  // namespace torch_cudnn_ext::ctc
