// What the core must know of the CTC loss.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "ops/arguments.h"

namespace torch_cudnn_ext::ctc {
namespace {

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
    const Tensor& targets = b[Role::target_lengths];
    Tensor inputs = b[Role::input_lengths].fill_(steps);
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

  // Logarithms of probabilities grow with the steps, and their rounding with them. Exponentials
  // make it a relative error of the gradient.
  double tolerance(const CtcProblem& p, const Notes&) const override {
    auto steps = static_cast<double>(p.log_probs.sizes[0]);
    auto classes = static_cast<double>(p.log_probs.sizes[2]);
    return epsilon_of(p.log_probs.dtype) * (16 + 64 * steps * std::log(classes + 2));
  }

  std::vector<std::string> heuristic_order(const CtcProblem&) const override {
    return {"aten", "legacy"};
  }
};

const RegisterOperator<CtcOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::ctc
