// The CTC loss: argument checks, Problem, gradients, and what the core must know of it.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "core/select/execute.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

void CtcProblem::validate() const {
  check_sizes("ctc", "log_probs", log_probs, 3, 3);
  TORCH_CHECK_VALUE(log_probs.strides == contiguous_strides(log_probs.sizes),
                    "ctc: log_probs has strides of its own, wanted :nchw");
  TORCH_CHECK_VALUE(log_probs.dtype == at::kFloat || log_probs.dtype == at::kDouble,
                    "ctc: log_probs is ", dtype_text(log_probs.dtype), ", wanted f32 or f64");
  TORCH_CHECK_VALUE(target_length >= 1, "ctc: target_length is ", target_length,
                    ", wanted at least 1");
  TORCH_CHECK_VALUE(blank >= 0 && blank < log_probs.sizes[2], "ctc: blank is ", blank,
                    ", wanted at least 0 and less than the number of classes ", log_probs.sizes[2]);
}

namespace ctc {
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

// In host memory, where they are checked.
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

// [N, S] int64 from [N, S] or from targets one after another. What lies behind a target's end is
// never read.
Tensor padded_targets(const Tensor& targets, const Tensor& lengths) {
  int64_t batch = lengths.size(0);
  if (targets.dim() == 2 && targets.size(1) > 0) return targets.to(at::kLong).contiguous();
  int64_t longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  if (targets.numel() == 0) return at::zeros({batch, longest}, targets.options().dtype(at::kLong));
  Tensor first = (lengths.cumsum(0) - lengths).to(targets.device());
  Tensor index = first.unsqueeze(1) + at::arange(longest, first.options());
  return targets.to(at::kLong).take(index.clamp_max(targets.numel() - 1));
}

// In host memory alone: a GPU would have to be waited for (`hide_wrong_classes`).
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

// Makes every label one that there is, so that kernels read nothing else, and says of which targets
// it replaced some: [N]. Does not wait for the device.
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

// Losses [N], and the gradient [T, N, C] of their sum or an undefined tensor.
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
  bool padded = targets.dim() == 2;
  Bindings b;
  b[Role::input_lengths] = lengths_on_host("input_lengths", input_lengths, batch, steps);
  b[Role::target_lengths] = lengths_on_host("target_lengths", target_lengths, batch,
                                            padded ? targets.size(1) : targets.size(0));
  if (!padded) {
    int64_t total = b[Role::target_lengths].sum().item<int64_t>();
    TORCH_CHECK_VALUE(total == targets.size(0), kOp, ": targets has ", targets.size(0),
                      " elements, wanted the sum of target_lengths, ", total);
  }
  b[Role::x] = log_probs.contiguous();
  b[Role::targets] = padded_targets(targets, b[Role::target_lengths]);
  check_classes(b[Role::targets], b[Role::target_lengths], log_probs.size(2));
  Tensor wrong;
  if (!targets.is_cpu()) {
    wrong = hide_wrong_classes(b[Role::targets], b[Role::target_lengths], log_probs.size(2));
  }
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
  execute(p, resolve_policy(CtcProblem::kFamily, policy), device_of(log_probs.device()), b);
  auto fill = [&](const Tensor& sequences, double value) {
    b[Role::y].masked_fill_(sequences, value);
    if (gradient) b[Role::dx].masked_fill_(sequences.view({1, batch, 1}), value);
  };
  if (zero_infinity) fill(b[Role::y].isinf(), 0);
  if (wrong.defined()) fill(wrong, std::numeric_limits<double>::quiet_NaN());
  return {b[Role::y], b[Role::dx]};
}

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

// --- gradients

// The forward has computed the gradient already: a second result, whose own derivative there is
// not, in PyTorch neither.
struct CtcGradient {
  static constexpr const char* kName = "TorchCudnnExtCtcLossBackward";
  static constexpr size_t kInputs = 1;

  template <class F>
  void attributes(F&&) {}
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads[1].defined(),
        "the derivative of torch_cudnn_ext::ctc_loss's gradient is not implemented");
    return {saved[0] * grads[0].unsqueeze(0).unsqueeze(2)};
  }
};

// An operator of its own to autograd too: where transforms are nested, ctc_loss calls it at the
// inner level, and the outer one sees nothing else.
std::tuple<Tensor, Tensor> forward_with_gradient_autograd(
    c10::DispatchKeySet keys, const Tensor& log_probs, const Tensor& targets,
    const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank, bool zero_infinity,
    OptionalPolicy policy) {
  static auto op = find_op<decltype(forward_with_gradient)>("torch_cudnn_ext::_ctc_loss");
  return run_with_gradient<CtcGradient>(
      {log_probs}, 2,
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, log_probs, targets, input_lengths,
                             target_lengths, blank, zero_infinity, policy);
      },
      [](auto& node, const auto& results) { save_result(node, results[1]); });
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& log_probs, const Tensor& targets,
                        const Tensor& input_lengths, const Tensor& target_lengths, int64_t blank,
                        bool zero_infinity, OptionalPolicy policy) {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::ctc_loss");
  if (at::GradMode::is_enabled() && log_probs.requires_grad()) {
    return std::get<0>(forward_with_gradient_autograd(
        keys, log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, policy));
  }
  return run_with_gradient<CtcGradient>(
      {log_probs}, 1,
      [&] {
        return op.redispatch(keys & c10::after_autograd_keyset, log_probs, targets, input_lengths,
                             target_lengths, blank, zero_infinity, policy);
      },
      [](auto&, const auto&) {});
}

template <c10::DeviceType device>
Tensor forward_autocast(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                        const Tensor& target_lengths, int64_t blank, bool zero_infinity,
                        OptionalPolicy policy) {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::ctc_loss");
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return op.call(at::autocast::cached_cast(at::kFloat, log_probs, device), targets, input_lengths,
                 target_lengths, blank, zero_infinity, policy);
}

// --- what the core must know

class CtcOperator : public OperatorOf<CtcProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnCTCLoss_v8",
            "contiguous [time, batch, classes]",
            "cuDNN: f32, blank 0, targets that are not empty and fit into their inputs; once "
            "differentiable",
            {"ctc_fwd log_probs=f32[150,32,40]:nchw target_length=30 gradient=true"},
            "f64, f32"};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"log_probs", 1}}; }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC", "deterministic", nullptr},
            {1, "CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC", "non_deterministic", nullptr}};
  }

  std::vector<SlotSpec> slots(const CtcProblem& p) const override {
    int64_t batch = p.log_probs.sizes[1];
    auto lengths = [batch](Role role) {
      SlotSpec slot{role, {at::kLong, {batch}, {1}}, false};
      slot.on_host = true;
      return slot;
    };
    std::vector<SlotSpec> list{
        {Role::x, p.log_probs, false},
        {Role::targets, {at::kLong, {batch, p.target_length}, {p.target_length, 1}}, false},
        lengths(Role::input_lengths),
        lengths(Role::target_lengths),
        {Role::y, {p.log_probs.dtype, {batch}, {1}}, true}};
    if (p.gradient) list.push_back({Role::dx, p.log_probs, true});
    return list;
  }

  Cost cost(const CtcProblem& p) const override {
    auto steps = static_cast<double>(p.log_probs.sizes[0]);
    double states = 2 * static_cast<double>(p.target_length) + 1;
    double cells = steps * states * static_cast<double>(p.log_probs.sizes[1]);
    double passes = p.gradient ? 2 : 1;
    return {4 * passes * cells, passes * static_cast<double>(p.log_probs.nbytes()), steps};
  }

  // Targets of several lengths with repetitions and without blanks, each short enough for its
  // input; lengths as the problem says.
  void prepare_scratch(const CtcProblem& p, Bindings& b) const override {
    int64_t steps = p.log_probs.sizes[0], batch = p.log_probs.sizes[1];
    int64_t labels = p.log_probs.sizes[2] - 1;
    b[Role::x].copy_(b[Role::x].log_softmax(2));
    Tensor index = at::arange(batch * p.target_length, b[Role::targets].options());
    Tensor label = (index * index + index.div(3, "floor")).remainder(std::max<int64_t>(labels, 1));
    label = label + (label >= p.blank).to(at::kLong);
    b[Role::targets].copy_(label.clamp_max(labels).view_as(b[Role::targets]));
    Tensor inputs = b[Role::input_lengths].fill_(steps), targets = b[Role::target_lengths];
    for (int64_t i = 0; i < batch; ++i) {
      int64_t& input = inputs.mutable_data_ptr<int64_t>()[i];
      if (p.lengths != CtcLengths::full) input -= std::min(i % 3, steps - 1);
      int64_t fits = std::max<int64_t>((input + 1) / 2, 1);
      int64_t target = std::max<int64_t>(p.target_length - i % 2, 1);
      targets.mutable_data_ptr<int64_t>()[i] = std::min(target, fits);
    }
    if (p.lengths == CtcLengths::irregular) targets.mutable_data_ptr<int64_t>()[0] = 0;
  }

  Bindings reference(const CtcProblem& p, const Bindings& b) const override {
    auto lengths = [&](Role role) {
      return at::IntArrayRef(b[role].const_data_ptr<int64_t>(), b[role].numel());
    };
    at::IntArrayRef inputs = lengths(Role::input_lengths), targets = lengths(Role::target_lengths);
    Tensor x = b[Role::x].to(at::kDouble);
    auto [losses, log_alpha] = at::_ctc_loss(x, b[Role::targets], inputs, targets, p.blank, false);
    Bindings out;
    out[Role::y] = losses;
    if (p.gradient) {
      out[Role::dx] = at::_ctc_loss_backward(at::ones_like(losses), x, b[Role::targets], inputs,
                                             targets, losses, log_alpha, p.blank, false);
    }
    return out;
  }

  // Logarithms of probabilities grow with the steps, and their roundings with them; exponentials
  // make these relative errors of the gradient.
  double tolerance(const CtcProblem& p, const Notes&) const override {
    // A logarithm of that size is exponentiated.
    auto steps = static_cast<double>(p.log_probs.sizes[0]);
    auto classes = static_cast<double>(p.log_probs.sizes[2]);
    return epsilon_of(p.log_probs.dtype) * (16 + 64 * steps * std::log(classes + 2));
  }

  std::vector<std::string> heuristic_order(const CtcProblem&) const override {
    return {"aten", "legacy"};
  }
};

const RegisterOperator<CtcOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("ctc_loss", TORCH_FN(forward));
  m.impl("_ctc_loss", TORCH_FN(forward_with_gradient));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("ctc_loss", TORCH_FN(forward_meta));
  m.impl("_ctc_loss", TORCH_FN(forward_with_gradient_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autograd));
  m.impl("_ctc_loss", TORCH_FN(forward_with_gradient_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("ctc_loss", TORCH_FN(forward_autocast<c10::kCUDA>));
}

}  // namespace ctc
}  // namespace torch_cudnn_ext
