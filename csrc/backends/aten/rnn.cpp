// PyTorch's own recurrent networks. If those are cuDNN's, a training step runs as PyTorch's does;
// otherwise backward runs the forward again, recording it, with the masks of its dropout.
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <numeric>

#include "backends/aten/plan.h"
#include "core/autograd_guard.h"
#include "core/operator.h"
#include "core/tensors.h"
#include "problems/rnn_layout.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::aten {
namespace {

using Tensors = std::vector<Tensor>;

class AtenRnn : public Plan {
 public:
  AtenRnn(const RnnProblem& p, const Algorithm& algorithm, Notes notes)
      : Plan(algorithm, notes, std::nullopt), p_(p), parameters_(rnn_parameters(p)) {}

  void run(Bindings& b) override {
    Call call(p_, b);
    call.params = rnn_views(parameters_, b[Role::w]);
    // The backward runs as its forward ran, whatever PyTorch's switch says by then.
    bool cudnn =
        p_.train && is_pytorchs() && call.x.is_cuda() &&
        (p_.pass == Pass::fwd ? at::cudnn_is_acceptable(call.x) : b[Role::reserve].numel() > 0);
    if (p_.pass == Pass::fwd) {
      give_forward(b, cudnn ? forward_by_cudnn(b, call) : forward(b, call));
    } else {
      give_backward(b, cudnn ? backward_by_cudnn(b, call) : backward(b, call));
    }
  }

 private:
  // A plan's arguments, as PyTorch takes them.
  struct Call {
    Call(const RnnProblem& p, const Bindings& b) : x(b[Role::x]), hx(b[Role::hx]), cx(b[Role::cx]) {
      packed = p.lengths == RnnLengths::packed;
      if (packed) {
        batch_sizes = b[Role::batch_sizes];
        lengths = rnn_batch_sizes(p, batch_sizes);
        rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
        x = x.narrow(0, 0, rows);
      }
      if (!hx.defined()) hx = at::zeros(rnn_h(p).sizes, x.options());
      if (!cx.defined() && p.cell == RnnCell::lstm) cx = at::zeros(rnn_c(p).sizes, x.options());
    }

    Tensor x, hx, cx, batch_sizes;
    Tensors params;
    std::vector<int64_t> lengths;  // empty unless packed
    int64_t rows = 0;
    bool packed;
  };

  // PyTorch has no single biases and no skipped inputs: they are spelled out in its terms.
  bool is_pytorchs() const { return p_.bias != RnnBias::single && !p_.skip; }

  Tensors spelled_out(const Tensors& params) const {
    if (is_pytorchs()) return params;
    Tensors list;
    for (RnnCellParameters& cell : rnn_cells(parameters_, params)) {
      if (!cell.w_ih.defined()) {
        cell.w_ih = at::eye(p_.hidden, cell.w_hh.options()).repeat({p_.gates(), 1});
      }
      if (p_.bias == RnnBias::single) cell.b_hh = at::zeros_like(cell.b_ih);
      for (const Tensor& t : {cell.w_ih, cell.w_hh, cell.b_ih, cell.b_hh, cell.w_hr}) {
        if (t.defined()) list.push_back(t);
      }
    }
    return list;
  }

  // y, hy and cy. On the CPU `mask` gives the factors of each layer's input; a GPU has dropout here
  // only if no gradient is wanted.
  Tensors compute(const Call& call, const std::function<Tensor(const Tensor&)>& mask) const {
    Tensors params = spelled_out(call.params);
    if (p_.dropout == 0 || call.x.is_cuda()) {
      return compute_layers(call, params, p_.layers, p_.dropout);
    }
    Tensors y_h_c, h, c;
    Call layer = call;
    int64_t directions = p_.directions();
    auto count = static_cast<int64_t>(params.size()) / p_.layers;
    for (int64_t i = 0; i < p_.layers; ++i) {
      layer.hx = call.hx.narrow(0, i * directions, directions);
      if (call.cx.defined()) layer.cx = call.cx.narrow(0, i * directions, directions);
      if (i > 0) layer.x = y_h_c[0] * mask(y_h_c[0]);
      auto first = params.begin() + i * count;
      y_h_c = compute_layers(layer, {first, first + count}, 1, 0);
      h.push_back(y_h_c[1]);
      c.push_back(y_h_c[2]);
    }
    return {y_h_c[0], at::cat(h), call.cx.defined() ? at::cat(c) : Tensor()};
  }

  Tensors compute_layers(const Call& call, const Tensors& params, int64_t layers,
                         double dropout) const {
    // Dropout applies even if no gradient is wanted: the problem has none outside of training.
    bool biased = p_.bias != RnnBias::none, training = p_.train || p_.dropout > 0;
    auto apply = [&](auto&& function, const auto& hx) {
      return call.packed ? function(call.x, call.batch_sizes, hx, params, biased, layers, dropout,
                                    training, p_.bidirectional)
                         : function(call.x, hx, params, biased, layers, dropout, training,
                                    p_.bidirectional, false);
    };
    if (p_.cell == RnnCell::lstm) {
      auto [y, hy, cy] = apply([](auto&&... all) { return pytorch_kernels::lstm(all...); },
                               Tensors{call.hx, call.cx});
      return {y, hy, cy};
    }
    auto plain = [&](auto&& function) -> Tensors {
      auto [y, hy] = apply(function, call.hx);
      return {y, hy, Tensor()};
    };
    if (p_.cell == RnnCell::gru)
      return plain([](auto&&... all) { return pytorch_kernels::gru(all...); });
    if (p_.cell == RnnCell::tanh) {
      return plain([](auto&&... all) { return pytorch_kernels::rnn_tanh(all...); });
    }
    return plain([](auto&&... all) { return pytorch_kernels::rnn_relu(all...); });
  }

  // The reserve is what dropout kept, one layer after the other.
  Tensors forward(Bindings& b, const Call& call) const {
    Tensors kept{at::empty({0}, call.x.options().dtype(at::kByte))};
    Tensors results = compute(call, [&](const Tensor& y) {
      Tensor mask = at::zeros_like(y);
      if (p_.dropout < 1) mask.bernoulli_(1 - p_.dropout);  // else PyTorch draws nothing either
      kept.push_back(mask.to(at::kByte).flatten());
      return scaled(mask);
    });
    if (p_.train) b[Role::reserve] = at::cat(kept);
    return results;
  }

  Tensor scaled(const Tensor& mask) const {
    return p_.dropout < 1 ? mask.div(1 - p_.dropout) : mask;
  }

  // With the masks of the forward that left them.
  Tensors compute_again(const Call& call, const Tensor& kept) const {
    int64_t start = 0;
    return compute(call, [&](const Tensor& y) {
      Tensor mask = kept.narrow(0, start, y.numel()).view(y.sizes()).to(y.scalar_type());
      start += y.numel();
      return scaled(mask);
    });
  }

  // Gradients of x, hx, cx and w.
  Tensors backward(const Bindings& b, Call& call) const {
    AutogradGuard recording;
    NoSavedTensorHooks no_hooks;
    auto leaf = [](Tensor& t) { t = t.detach().requires_grad_(); };
    leaf(call.x);
    leaf(call.hx);
    if (call.cx.defined()) leaf(call.cx);
    for (Tensor& t : call.params) leaf(t);
    Tensors results = compute_again(call, b[Role::reserve]);
    Tensors outputs, weights, leaves{call.x, call.hx};
    for (auto [result, role] : {std::pair(&results[0], Role::dy), std::pair(&results[1], Role::dhy),
                                std::pair(&results[2], Role::dcy)}) {
      if (!b[role].defined()) continue;
      outputs.push_back(*result);
      weights.push_back(role == Role::dy && call.packed ? b[role].narrow(0, 0, call.rows)
                                                        : b[role]);
    }
    if (call.cx.defined()) leaves.push_back(call.cx);
    size_t states = leaves.size();
    leaves.insert(leaves.end(), call.params.begin(), call.params.end());
    Tensors found =
        torch::autograd::grad(outputs, leaves, weights, std::nullopt, false, /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].defined()) found[i] = at::zeros_like(leaves[i]);
    }
    Tensor dw =
        rnn_flatten(parameters_, {found.begin() + static_cast<int64_t>(states), found.end()});
    return {found[0], found[1], call.cx.defined() ? found[2] : Tensor(), dw};
  }

  // --- PyTorch's operators of cuDNN

  int64_t matrices_and_biases() const {  // of one layer in one direction
    return (p_.bias == RnnBias::none ? 2 : 4) + (p_.proj > 0 ? 1 : 0);
  }

  // Makes the tensors views of a new buffer in PyTorch's layout.
  Tensor flatten_as_pytorch(const Tensors& params) const {
    return at::_cudnn_rnn_flatten_weight(params, matrices_and_biases(), p_.input(),
                                         static_cast<int64_t>(p_.cell), p_.hidden, p_.proj,
                                         p_.layers, false, p_.bidirectional);
  }

  // The parameters as one buffer in PyTorch's layout: w itself if that is the same.
  Tensor weight_buffer(const Bindings& b, Call& call) {
    const Tensor& w = b[Role::w];
    if (!same_layout_) {
      Tensors views = rnn_views(parameters_, at::empty_like(w));
      Tensor buffer = flatten_as_pytorch(views);
      same_layout_ = buffer.numel() == w.numel();
      for (size_t i = 0; i < views.size(); ++i) {
        *same_layout_ &= views[i].storage_offset() == parameters_[i].offset;
      }
    }
    return *same_layout_ ? w : flatten_as_pytorch(call.params);
  }

  Tensors forward_by_cudnn(Bindings& b, Call& call) {
    Tensor buffer = weight_buffer(b, call);
    auto [y, hy, cy, reserve, weights] = at::_cudnn_rnn(
        call.x, call.params, matrices_and_biases(), buffer, call.hx, optional_of(call.cx),
        static_cast<int64_t>(p_.cell), p_.hidden, p_.proj, p_.layers, false, p_.dropout, true,
        p_.bidirectional, call.lengths, std::nullopt);
    b[Role::reserve] = reserve;
    return {y, hy, cy};
  }

  Tensors backward_by_cudnn(const Bindings& b, Call& call) {
    Tensor buffer = weight_buffer(b, call);
    auto rows = [&](Role role) { return call.packed ? b[role].narrow(0, 0, call.rows) : b[role]; };
    bool lstm = p_.cell == RnnCell::lstm;
    auto [dx, dhx, dcx, dparams] = at::_cudnn_rnn_backward(
        call.x, call.params, matrices_and_biases(), buffer, call.hx, optional_of(call.cx),
        rows(Role::y), rows(Role::dy), optional_of(b[Role::dhy]), optional_of(b[Role::dcy]),
        static_cast<int64_t>(p_.cell), p_.hidden, p_.proj, p_.layers, false, p_.dropout, true,
        p_.bidirectional, call.lengths, std::nullopt, b[Role::reserve], {true, true, lstm, true});
    return {dx, dhx, dcx, rnn_flatten(parameters_, dparams)};
  }

  // --- results

  // Rows after the end of the last sequence are zero.
  Tensor padded(const Tensor& t, const Bindings& b) const {
    int64_t missing = b[Role::x].size(0) - t.size(0);
    return missing > 0 ? at::constant_pad_nd(t, {0, 0, 0, missing}) : t;
  }

  void give_forward(Bindings& b, const Tensors& results) const {
    give(b, Role::y, rnn_y(p_), padded(results[0], b));
    give(b, Role::hy, rnn_h(p_), results[1]);
    if (p_.cell == RnnCell::lstm) give(b, Role::cy, rnn_c(p_), results[2]);
  }

  void give_backward(Bindings& b, const Tensors& results) const {
    give(b, Role::dx, rnn_x(p_), padded(results[0], b));
    give(b, Role::dhx, rnn_h(p_), results[1]);
    if (p_.cell == RnnCell::lstm) give(b, Role::dcx, rnn_c(p_), results[2]);
    give(b, Role::dw, rnn_w(p_), results[3]);
  }

  const RnnProblem p_;
  const std::vector<RnnParameter> parameters_;
  std::optional<bool> same_layout_;  // PyTorch's buffer and ours
};

BuildResult build_rnn_plan(const RnnProblem& p, const Algorithm& algorithm, const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  if (p.compute != p.default_compute()) {
    return Unsupported{c10::str("aten computes ", dtype_text(p.x.dtype), " data in ",
                                dtype_text(p.default_compute()), ", not ", dtype_text(p.compute))};
  }
  if (p.train && p.dropout > 0 && device.is_cuda()) {
    return Unsupported{
        "PyTorch's dropout between layers draws its masks from a state on the GPU that is not "
        "kept, "
        "so its backward cannot be run apart from its forward"};
  }
  Notes notes;
  if (uses_tf32(*operator_of(p).float32_op(), p.x.dtype, device)) notes.add(Note::tf32);
  return std::make_shared<AtenRnn>(p, algorithm, notes);
}

const RegisterBackendOperator<RnnProblem> rnn_registered("aten", candidates<RnnProblem>,
                                                         build_rnn_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
