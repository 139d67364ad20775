// The CTC loss on the CPU in two ways (Graves et al. 2006), for all sequences at once. Forward and
// backward variables run over the labels with blanks around them.
//   forward_backward  keeps logarithms of the variables
//   rescaled          keeps the variables in float64, divided by their sum at each step; states
//   some
//                     300 orders of magnitude below the likeliest one are lost
#include <ATen/ATen.h>

#include <limits>

#include "backends/cpu/plan.h"
#include "core/errors.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A row of states for each sequence: label s / 2 at odd s, blanks between.
struct States {
  Tensor label;  // [N, L]
  Tensor last;   // [N, L]: whether a sequence may end in the state
  Tensor skip;   // [N, L]: whether the state can be entered from the one two before it
  Tensor valid;  // [N, L]: whether the sequence has the state
  Tensor steps;  // [N, 1]: input lengths
};

States states_of(const CtcProblem& p, const Bindings& b) {
  States s;
  Tensor lengths = b[Role::target_lengths].unsqueeze(1);
  Tensor position = at::arange(p.target_length, at::kLong);
  Tensor labels = b[Role::targets].masked_fill(position >= lengths, p.blank);
  s.label = at::full({labels.size(0), 2 * p.target_length + 1}, p.blank, at::kLong);
  s.label.slice(1, 1, std::nullopt, 2).copy_(labels);
  Tensor state = at::arange(s.label.size(1), at::kLong);
  s.valid = state <= 2 * lengths;
  s.last = s.valid.logical_and(state >= 2 * lengths - 1);
  s.skip = at::zeros_like(s.label, at::kBool);
  // Blanks between labels never differ. A blank among the targets is treated as in PyTorch.
  s.skip.slice(1, 2).copy_(s.label.slice(1, 2) != s.label.slice(1, 0, -2));
  s.steps = b[Role::input_lengths].unsqueeze(1);
  return s;
}

// The row moved by `count` states towards higher ones (lower for negative), filled up.
Tensor moved(const Tensor& row, int64_t count, double fill) {
  int64_t n = row.size(1);
  Tensor out = at::full_like(row, fill);
  if (count > 0) {
    out.slice(1, count).copy_(row.slice(1, 0, n - count));
  } else {
    out.slice(1, 0, n + count).copy_(row.slice(1, -count));
  }
  return out;
}

// The states of the first step: the first blank and the first label.
Tensor first_states(const States& s) {
  return (at::arange(s.label.size(1), at::kLong) < 2).logical_and(s.valid);
}

struct Result {
  Tensor losses;     // [N]
  Tensor posterior;  // [T, N, L]: each state's share in the likelihood
};

Tensor losses_of(const States& s, const Tensor& log_likelihood) {
  // Without input, an empty target is certain, and any other impossible.
  Tensor certain = (s.steps == 0).logical_and(s.valid.sum(1, true) == 1).squeeze(1);
  return -log_likelihood.masked_fill(certain, 0);
}

Tensor skips_from_their_beginnings(const States& s) {
  Tensor leaving = at::zeros_like(s.skip);
  leaving.slice(1, 0, -2).copy_(s.skip.slice(1, 2));
  return leaving;
}

Result forward_backward(const CtcProblem& p, const States& s, const Tensor& log_probs) {
  int64_t steps = log_probs.size(0);
  Tensor emitted = log_probs.gather(2, s.label.unsqueeze(0).expand({steps, -1, -1}));  // [T, N, L]
  // A state is entered from itself, its neighbour, or the one after that.
  auto entered = [&](const Tensor& row, int64_t direction, const Tensor& skip) {
    Tensor by_skip =
        moved(row, 2 * direction, -kInfinity).masked_fill(skip.logical_not(), -kInfinity);
    return at::logaddexp(at::logaddexp(row, moved(row, direction, -kInfinity)), by_skip);
  };
  Tensor alpha = at::full_like(emitted, -kInfinity);
  alpha[0].copy_(at::where(first_states(s), emitted[0], alpha[0]));
  Tensor end = alpha[0].masked_fill(s.steps != 1, -kInfinity);
  for (int64_t t = 1; t < steps; ++t) {
    check_interrupt_if_due();
    alpha[t].copy_(emitted[t] + entered(alpha[t - 1], 1, s.skip));
    end = at::where(s.steps == t + 1, alpha[t], end);
  }
  Tensor log_likelihood = end.masked_fill(s.last.logical_not(), -kInfinity).logsumexp(1);
  Result result{losses_of(s, log_likelihood), {}};
  if (!p.gradient) return result;
  Tensor leaving = skips_from_their_beginnings(s);
  result.posterior = at::zeros_like(emitted);
  Tensor beta;  // likelihood of the steps after this one
  for (int64_t t = steps - 1; t >= 0; --t) {
    check_interrupt_if_due();
    Tensor at_end = at::zeros_like(end).masked_fill(s.last.logical_not(), -kInfinity);
    beta = t + 1 == steps ? at::full_like(end, -kInfinity)
                          : entered(beta + emitted[t + 1], -1, leaving);
    beta = at::where(s.steps == t + 1, at_end, beta);
    result.posterior[t].copy_((alpha[t] + beta + result.losses.unsqueeze(1)).exp());
  }
  return result;
}

Result rescaled(const CtcProblem& p, const States& s, const Tensor& log_probs) {
  int64_t steps = log_probs.size(0);
  Tensor emitted =
      log_probs.gather(2, s.label.unsqueeze(0).expand({steps, -1, -1})).to(at::kDouble).exp_();
  auto entered = [&](const Tensor& row, int64_t direction, const Tensor& skip) {
    return row + moved(row, direction, 0) + moved(row, 2 * direction, 0) * skip;
  };
  auto divided = [](const Tensor& row, const Tensor& sum) {
    return row / sum.masked_fill(sum == 0, 1);
  };
  Tensor alpha = at::zeros_like(emitted), end = at::zeros_like(emitted[0]);
  Tensor log_scale = at::zeros(s.steps.sizes(), emitted.options());
  for (int64_t t = 0; t < steps; ++t) {
    check_interrupt_if_due();
    Tensor reached = t == 0 ? first_states(s).to(at::kDouble) : entered(alpha[t - 1], 1, s.skip);
    Tensor row = emitted[t] * reached * s.valid;
    Tensor sum = row.sum(1, true);
    alpha[t].copy_(divided(row, sum));
    log_scale += sum.log().masked_fill(s.steps <= t, 0);
    end = at::where(s.steps == t + 1, alpha[t], end);
  }
  Tensor log_likelihood = (end * s.last).sum(1).log() + log_scale.squeeze(1);
  Result result{losses_of(s, log_likelihood), {}};
  if (!p.gradient) return result;
  Tensor leaving = skips_from_their_beginnings(s);
  result.posterior = at::zeros_like(emitted);
  Tensor beta;
  for (int64_t t = steps - 1; t >= 0; --t) {
    check_interrupt_if_due();
    beta = t + 1 == steps ? at::zeros_like(end) : entered(beta * emitted[t + 1], -1, leaving);
    beta = at::where(s.steps == t + 1, s.last.to(at::kDouble), divided(beta, beta.sum(1, true)));
    Tensor share = alpha[t] * beta;
    result.posterior[t].copy_(divided(share, share.sum(1, true)));
  }
  return result;
}

// The gradient for logits whose log-softmax is log_probs: a class's probability minus its states'
// share. As in PyTorch it is NaN for an impossible class, and for all if the loss is not finite.
Tensor gradient_of(const States& s, const Tensor& log_probs, const Result& result) {
  int64_t steps = log_probs.size(0);
  Tensor gradient = log_probs.exp();
  gradient.scatter_add_(2, s.label.unsqueeze(0).expand({steps, -1, -1}),
                        -result.posterior.to(gradient.scalar_type()));
  Tensor undefined = result.losses.isfinite().logical_not().view({1, -1, 1});
  gradient.masked_fill_(undefined.logical_or(log_probs == -kInfinity),
                        std::numeric_limits<double>::quiet_NaN());
  Tensor time = at::arange(steps, at::kLong).view({steps, 1, 1});
  return gradient.masked_fill_(time >= s.steps.unsqueeze(0), 0);
}

constexpr const char* kCtcNames[] = {"forward_backward", "rescaled"};

BuildResult build_ctc_plan(const CtcProblem& p, const Algorithm& algorithm) {
  Notes notes;
  auto compute = forward_backward;
  if (algorithm.name == "rescaled") {
    notes.add(Note::reduced_range);
    compute = rescaled;
  }
  return make_plan(algorithm, notes, [=](Bindings& b) {
    const Tensor& log_probs = b[Role::x];
    States states = states_of(p, b);
    Result result = compute(p, states, log_probs);
    if (p.gradient) give(b, Role::dx, p.log_probs, gradient_of(states, log_probs, result));
    give(b, Role::y, {p.log_probs.dtype, {p.log_probs.sizes[1]}, {1}},
         result.losses.to(p.log_probs.dtype));
  });
}

const auto ctc_registered = cpu::register_named<CtcProblem, kCtcNames, build_ctc_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
