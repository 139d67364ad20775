// Recurrent networks on the CPU in two ways, in float32 at least.
//   fused     one product makes the input's share of all gates of all time steps; backward, one
//             product makes the gradient of a parameter
//   unrolled  every time step makes its own products, and adds to the gradients of the parameters
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <numeric>

#include "backends/cpu/plan.h"
#include "core/errors.h"
#include "core/tensors.h"
#include "problems/rnn_layout.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

using Cell = RnnCellParameters;  // or their gradients

std::vector<Cell> cells_of(const RnnProblem& p, const Tensor& w) {
  std::vector<RnnParameter> parameters = rnn_parameters(p);
  return rnn_cells(parameters, rnn_views(parameters, w));
}

// The rows of the sequences' steps that belong to each time step.
struct RnnSteps {
  explicit RnnSteps(const std::vector<int64_t>& sizes) : sizes(sizes), starts(sizes.size()) {
    std::exclusive_scan(sizes.begin(), sizes.end(), starts.begin(), int64_t{0});
  }
  int64_t count() const { return static_cast<int64_t>(sizes.size()); }
  int64_t rows() const { return starts.back() + sizes.back(); }
  Tensor of(const Tensor& t, int64_t step) const {
    return t.narrow(0, starts[static_cast<size_t>(step)], sizes[static_cast<size_t>(step)]);
  }
  Tensor first(const Tensor& state, int64_t step) const {
    return state.narrow(0, 0, sizes[static_cast<size_t>(step)]);
  }

  const std::vector<int64_t> sizes;
  std::vector<int64_t> starts;
};

// What a forward leaves for its backward: matrices one after the other in one buffer. Both passes
// take the same matrices in the same order.
class Tape {
 public:
  explicit Tape(Tensor buffer) : buffer_(std::move(buffer)) {}
  Tensor next(int64_t rows, int64_t columns) {
    Tensor t = buffer_.narrow(0, used_, rows * columns).view({rows, columns});
    used_ += rows * columns;
    return t;
  }

 private:
  Tensor buffer_;
  int64_t used_ = 0;
};

// One direction of one layer, with a row for each step of each sequence.
struct DirectionTape {
  Tensor gates;   // after their activations; for GRU also what the reset gate multiplies
  Tensor before;  // hidden state
  Tensor cell_before;
};

// One layer.
struct LayerTape {
  Tensor input;  // undefined: x itself
  Tensor mask;   // of the dropout that made it; undefined without
  std::vector<DirectionTape> directions;
};

int64_t taped_gates(const RnnProblem& p) {
  return (p.cell == RnnCell::gru ? 4 : p.gates()) * p.hidden;
}

int64_t tape_elements(const RnnProblem& p, int64_t rows) {
  int64_t cell = p.cell == RnnCell::lstm ? p.hidden : 0;
  int64_t direction = taped_gates(p) + p.state() + cell;
  int64_t width = p.directions() * p.state();
  int64_t between = (p.dropout > 0 ? 2 : 1) * width;
  return rows * (p.layers * p.directions() * direction + (p.layers - 1) * between);
}

std::vector<LayerTape> layers_of(const RnnProblem& p, int64_t rows, const Tensor& buffer) {
  Tape tape(buffer);
  std::vector<LayerTape> layers(static_cast<size_t>(p.layers));
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerTape& layer = layers[i];
    if (i > 0) layer.input = tape.next(rows, p.directions() * p.state());
    if (i > 0 && p.dropout > 0) layer.mask = tape.next(rows, p.directions() * p.state());
    for (int64_t d = 0; d < p.directions(); ++d) {
      DirectionTape direction{tape.next(rows, taped_gates(p)), tape.next(rows, p.state()), {}};
      if (p.cell == RnnCell::lstm) direction.cell_before = tape.next(rows, p.hidden);
      layer.directions.push_back(direction);
    }
  }
  return layers;
}

// --- one time step

// The input's share of the gates.
Tensor from_input(const RnnProblem& p, const Cell& cell, const Tensor& x) {
  if (cell.w_ih.defined()) return at::linear(x, cell.w_ih, optional_of(cell.b_ih));
  Tensor copies = x.repeat({1, p.gates()});
  return cell.b_ih.defined() ? copies.add_(cell.b_ih) : copies;
}

// Advances the states by one step; `gates` are kept for backward.
void step_forward(const RnnProblem& p, const Cell& cell, const Tensor& from_x, const Tensor& h,
                  const Tensor& c, const Tensor& gates) {
  Tensor from_h = at::linear(h, cell.w_hh, optional_of(cell.b_hh));
  int64_t n = p.hidden;
  auto gate = [&](int64_t i) { return gates.narrow(1, i * n, n); };
  if (p.cell == RnnCell::gru) {
    Tensor both = gates.narrow(1, 0, 2 * n);
    at::add_out(both, from_x.narrow(1, 0, 2 * n), from_h.narrow(1, 0, 2 * n));
    both.sigmoid_();
    Tensor reset = gate(0), update = gate(1), fresh = gate(2), hidden_share = gate(3);
    hidden_share.copy_(from_h.narrow(1, 2 * n, n));
    fresh.copy_(at::addcmul(from_x.narrow(1, 2 * n, n), reset, hidden_share).tanh_());
    h.copy_(at::lerp(fresh, h, update));
    return;
  }
  Tensor sums = gates;
  at::add_out(sums, from_x, from_h);
  if (p.cell == RnnCell::lstm) {
    gates.narrow(1, 0, 2 * n).sigmoid_();
    gate(2).tanh_();
    gate(3).sigmoid_();
    c.mul_(gate(1)).addcmul_(gate(0), gate(2));
    Tensor hidden = c.tanh().mul_(gate(3));
    h.copy_(cell.w_hr.defined() ? at::linear(hidden, cell.w_hr) : hidden);
    return;
  }
  h.copy_(p.cell == RnnCell::relu ? sums.relu_() : sums.tanh_());
}

// Gradients of the sums that the gates are made of: the input's share and the hidden state's. They
// differ for GRU alone.
struct GateGradients {
  Tensor x, h;
};

Tensor sigmoid_gradient(const Tensor& grad, const Tensor& y) { return grad * y * (1 - y); }
Tensor tanh_gradient(const Tensor& grad, const Tensor& y) { return grad * (1 - y * y); }

// Turns dh and dc into gradients of the states before the step, without what comes through the
// matrix of the hidden state.
GateGradients step_backward(const RnnProblem& p, const Cell& cell, const Cell& gradient,
                            const DirectionTape& tape, const RnnSteps& steps, int64_t t,
                            const Tensor& dh, const Tensor& dc) {
  Tensor gates = steps.of(tape.gates, t);
  int64_t n = p.hidden;
  auto gate = [&](int64_t i) { return gates.narrow(1, i * n, n); };
  if (p.cell == RnnCell::gru) {
    Tensor reset = gate(0), update = gate(1), fresh = gate(2), hidden_share = gate(3);
    Tensor d_fresh = tanh_gradient(dh * (1 - update), fresh);
    Tensor d_update = sigmoid_gradient(dh * (steps.of(tape.before, t) - fresh), update);
    Tensor d_reset = sigmoid_gradient(d_fresh * hidden_share, reset);
    dh.mul_(update);
    return {at::cat({d_reset, d_update, d_fresh}, 1),
            at::cat({d_reset, d_update, d_fresh * reset}, 1)};
  }
  if (p.cell == RnnCell::lstm) {
    Tensor in = gate(0), forget = gate(1), fresh = gate(2), out = gate(3);
    Tensor before = steps.of(tape.cell_before, t);
    Tensor squashed = (forget * before).addcmul_(in, fresh).tanh_();
    Tensor d_hidden = dh;
    if (cell.w_hr.defined()) {
      gradient.w_hr.addmm_(dh.t(), out * squashed);
      d_hidden = at::mm(dh, cell.w_hr);
    }
    dc.add_(tanh_gradient(d_hidden * out, squashed));
    Tensor sums =
        at::cat({sigmoid_gradient(dc * fresh, in), sigmoid_gradient(dc * before, forget),
                 tanh_gradient(dc * in, fresh), sigmoid_gradient(d_hidden * squashed, out)},
                1);
    dc.mul_(forget);
    dh.zero_();
    return {sums, sums};
  }
  Tensor sums =
      p.cell == RnnCell::relu ? at::threshold_backward(dh, gates, 0) : tanh_gradient(dh, gates);
  dh.zero_();
  return {sums, sums};
}

// Adds to the gradients of a cell's parameters, over any number of rows.
void add_gradients(const Cell& gradient, const GateGradients& sums, const Tensor& x,
                   const Tensor& before) {
  if (gradient.w_ih.defined()) gradient.w_ih.addmm_(sums.x.t(), x);
  gradient.w_hh.addmm_(sums.h.t(), before);
  if (gradient.b_ih.defined()) gradient.b_ih.add_(sums.x.sum(0));
  if (gradient.b_hh.defined()) gradient.b_hh.add_(sums.h.sum(0));
}

Tensor input_gradient(const RnnProblem& p, const Cell& cell, const Tensor& sums) {
  if (cell.w_ih.defined()) return at::mm(sums, cell.w_ih);
  return sums.view({sums.size(0), p.gates(), p.hidden}).sum(1);
}

// --- whole sequences

class CpuRnn : public Plan {
 public:
  CpuRnn(const RnnProblem& p, const Algorithm& algorithm)
      : Plan(algorithm, {}, std::nullopt), p_(p), fused_(algorithm.name == "fused") {}

  void run(Bindings& b) override {
    RnnSteps steps(rnn_batch_sizes(p_, b[Role::batch_sizes]));
    if (p_.pass == Pass::fwd) {
      forward(b, steps);
    } else {
      backward(b, steps);
    }
  }

 private:
  // Every second direction runs backwards in time.
  static int64_t time(const RnnSteps& steps, int64_t i, int64_t direction) {
    return direction == 0 ? i : steps.count() - 1 - i;
  }

  // The rows of all steps, in the compute type.
  Tensor rows_of(const Bindings& b, Role role, const RnnSteps& steps) const {
    const Tensor& t = b[role];
    return t.view({-1, t.size(-1)}).narrow(0, 0, steps.rows()).to(p_.compute);
  }

  // A copy of a state, or zeros if there is none.
  Tensor state_of(const Bindings& b, Role role, const TensorSpec& spec) const {
    if (b[role].defined()) return b[role].to(p_.compute, false, true);
    return at::zeros(spec.sizes, b[Role::x].options().dtype(p_.compute));
  }

  // Rows after the end of the last sequence are zero.
  void give_rows(Bindings& b, Role role, const TensorSpec& spec, const Tensor& rows) const {
    const Tensor& x = b[Role::x];
    Dims sizes = spec.sizes;
    if (p_.lengths == RnnLengths::packed) sizes[0] = x.size(0);
    int64_t missing = sizes[0] - rows.size(0);
    bool padded = p_.lengths == RnnLengths::packed && missing > 0;
    Tensor whole = padded ? at::constant_pad_nd(rows, {0, 0, 0, missing}) : rows;
    give(b, role, spec, whole.to(p_.x.dtype).view(sizes));
  }

  void forward(Bindings& b, const RnnSteps& steps) const {
    int64_t rows = steps.rows(), width = p_.directions() * p_.state();
    auto options = b[Role::x].options().dtype(p_.compute);
    Tensor buffer = at::empty({tape_elements(p_, rows)}, options);
    std::vector<LayerTape> tapes = layers_of(p_, rows, buffer);
    std::vector<Cell> cells = cells_of(p_, b[Role::w].to(p_.compute));
    Tensor h = state_of(b, Role::hx, rnn_h(p_)), c;
    if (p_.cell == RnnCell::lstm) c = state_of(b, Role::cx, rnn_c(p_));
    Tensor input = rows_of(b, Role::x, steps);
    for (size_t i = 0; i < tapes.size(); ++i) {
      if (i > 0) input = between(input, tapes[i]);
      Tensor output = at::empty({rows, width}, options);
      for (int64_t d = 0; d < p_.directions(); ++d) {
        int64_t k = static_cast<int64_t>(i) * p_.directions() + d;
        run_direction(steps, d, cells[static_cast<size_t>(k)], tapes[i].directions[d], input, h[k],
                      c.defined() ? c[k] : c, output.narrow(1, d * p_.state(), p_.state()));
      }
      input = output;
    }
    give_rows(b, Role::y, rnn_y(p_), input);
    give(b, Role::hy, rnn_h(p_), h.to(p_.x.dtype));
    if (c.defined()) give(b, Role::cy, rnn_c(p_), c.to(p_.x.dtype));
    if (p_.train) b[Role::reserve] = buffer.view(at::kByte);
  }

  // The input of the next layer.
  Tensor between(const Tensor& output, LayerTape& tape) const {
    if (p_.dropout == 0) return tape.input.copy_(output);
    double kept = 1 - p_.dropout;
    tape.mask.bernoulli_(kept);
    if (kept > 0) tape.mask.div_(kept);
    return at::mul_out(tape.input, output, tape.mask);
  }

  void run_direction(const RnnSteps& steps, int64_t direction, const Cell& cell,
                     const DirectionTape& tape, const Tensor& input, const Tensor& h,
                     const Tensor& c, const Tensor& output) const {
    Tensor all = fused_ ? from_input(p_, cell, input) : Tensor();
    for (int64_t i = 0; i < steps.count(); ++i) {
      check_interrupt_if_due();
      int64_t t = time(steps, i, direction);
      Tensor from_x = fused_ ? steps.of(all, t) : from_input(p_, cell, steps.of(input, t));
      Tensor h_now = steps.first(h, t), c_now = c.defined() ? steps.first(c, t) : c;
      steps.of(tape.before, t).copy_(h_now);
      if (c.defined()) steps.of(tape.cell_before, t).copy_(c_now);
      step_forward(p_, cell, from_x, h_now, c_now, steps.of(tape.gates, t));
      steps.of(output, t).copy_(h_now);
    }
  }

  void backward(Bindings& b, const RnnSteps& steps) const {
    auto element = static_cast<int64_t>(c10::elementSize(p_.compute));
    check_reserve("rnn", algorithm, b[Role::reserve], tape_elements(p_, steps.rows()) * element);
    std::vector<LayerTape> tapes = layers_of(p_, steps.rows(), b[Role::reserve].view(p_.compute));
    std::vector<Cell> cells = cells_of(p_, b[Role::w].to(p_.compute));
    Tensor dw = at::zeros(b[Role::w].sizes(), b[Role::w].options().dtype(p_.compute));
    std::vector<Cell> gradients = cells_of(p_, dw);
    Tensor dh = state_of(b, Role::dhy, rnn_h(p_)), dc;
    if (p_.cell == RnnCell::lstm) dc = state_of(b, Role::dcy, rnn_c(p_));
    Tensor x = rows_of(b, Role::x, steps), grad = rows_of(b, Role::dy, steps);
    for (size_t i = tapes.size(); i-- > 0;) {
      const LayerTape& tape = tapes[i];
      const Tensor& input = i == 0 ? x : tape.input;
      Tensor dx = at::zeros_like(input);
      for (int64_t d = 0; d < p_.directions(); ++d) {
        int64_t k = static_cast<int64_t>(i) * p_.directions() + d;
        auto at_k = static_cast<size_t>(k);
        run_direction_back(
            steps, d, cells[at_k], gradients[at_k], tape.directions[static_cast<size_t>(d)], input,
            grad.narrow(1, d * p_.state(), p_.state()), dh[k], dc.defined() ? dc[k] : dc, dx);
      }
      grad = tape.mask.defined() ? dx.mul_(tape.mask) : dx;
    }
    give_rows(b, Role::dx, rnn_x(p_), grad);
    give(b, Role::dhx, rnn_h(p_), dh.to(p_.x.dtype));
    if (dc.defined()) give(b, Role::dcx, rnn_c(p_), dc.to(p_.x.dtype));
    give(b, Role::dw, rnn_w(p_), dw.to(p_.x.dtype));
  }

  void run_direction_back(const RnnSteps& steps, int64_t direction, const Cell& cell,
                          const Cell& gradient, const DirectionTape& tape, const Tensor& input,
                          const Tensor& grad, const Tensor& dh, const Tensor& dc,
                          const Tensor& dx) const {
    GateGradients all;
    if (fused_) {
      all.x = at::empty({steps.rows(), p_.gates() * p_.hidden}, input.options());
      all.h = p_.cell == RnnCell::gru ? at::empty_like(all.x) : all.x;
    }
    for (int64_t i = steps.count(); i-- > 0;) {
      check_interrupt_if_due();
      int64_t t = time(steps, i, direction);
      Tensor dh_now = steps.first(dh, t), dc_now = dc.defined() ? steps.first(dc, t) : dc;
      dh_now.add_(steps.of(grad, t));
      GateGradients sums = step_backward(p_, cell, gradient, tape, steps, t, dh_now, dc_now);
      dh_now.addmm_(sums.h, cell.w_hh);
      if (fused_) {
        steps.of(all.x, t).copy_(sums.x);
        if (p_.cell == RnnCell::gru) steps.of(all.h, t).copy_(sums.h);
        continue;
      }
      add_gradients(gradient, sums, steps.of(input, t), steps.of(tape.before, t));
      steps.of(dx, t).add_(input_gradient(p_, cell, sums.x));
    }
    if (!fused_) return;
    add_gradients(gradient, all, input, tape.before);
    dx.add_(input_gradient(p_, cell, all.x));
  }

  const RnnProblem p_;
  const bool fused_;
};

constexpr const char* kRnnNames[] = {"fused", "unrolled"};

BuildResult build_rnn_plan(const RnnProblem& p, const Algorithm& algorithm) {
  if (p.compute != p.default_compute()) {
    return Unsupported{c10::str("cpu computes ", dtype_text(p.x.dtype), " data in ",
                                dtype_text(p.default_compute()), ", not ", dtype_text(p.compute))};
  }
  return std::make_shared<CpuRnn>(p, algorithm);
}

const auto rnn_registered = cpu::register_named<RnnProblem, kRnnNames, build_rnn_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
