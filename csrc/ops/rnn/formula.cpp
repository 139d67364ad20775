// Recurrent networks by their definition, and the gradient of it: the reference of all algorithms,
// and the way to gradients of gradients.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/autograd.h"
#include "ops/rnn/rnn.h"

namespace torch_cudnn_ext::rnn {
namespace {

struct State {
  Tensor h, c;
};

State step(const RnnProblem& p, const RnnCellParameters& cell, const Tensor& x,
           const State& before) {
  Tensor from_x = cell.w_ih.defined() ? at::matmul(x, cell.w_ih.t()) : x.repeat({1, p.gates()});
  if (cell.b_ih.defined()) from_x = from_x + cell.b_ih;
  Tensor from_h = at::matmul(before.h, cell.w_hh.t());
  if (cell.b_hh.defined()) from_h = from_h + cell.b_hh;
  if (p.cell == RnnCell::relu) return {(from_x + from_h).relu(), {}};
  if (p.cell == RnnCell::tanh) return {(from_x + from_h).tanh(), {}};
  std::vector<Tensor> a = from_x.chunk(p.gates(), 1), b = from_h.chunk(p.gates(), 1);
  if (p.cell == RnnCell::gru) {
    Tensor reset = (a[0] + b[0]).sigmoid(), update = (a[1] + b[1]).sigmoid();
    Tensor fresh = (a[2] + reset * b[2]).tanh();
    return {(1 - update) * fresh + update * before.h, {}};
  }
  Tensor c = (a[1] + b[1]).sigmoid() * before.c + (a[0] + b[0]).sigmoid() * (a[2] + b[2]).tanh();
  Tensor h = (a[3] + b[3]).sigmoid() * c.tanh();
  return {cell.w_hr.defined() ? at::matmul(h, cell.w_hr.t()) : h, c};
}

// The first rows take part in a step, the others keep their state.
Tensor replaced(const Tensor& state, const Tensor& first) {
  if (!state.defined() || first.size(0) == state.size(0)) return first;
  return at::cat({first, state.narrow(0, first.size(0), state.size(0) - first.size(0))});
}

}  // namespace

std::vector<Tensor> formula(const RnnProblem& p, const std::vector<int64_t>& batch_sizes,
                            const Tensor& x, const Tensor& hx, const Tensor& cx,
                            const std::vector<RnnCellParameters>& cells) {
  Tensor input = x;
  std::vector<Tensor> hy, cy;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    std::vector<Tensor> xs = input.split_with_sizes(batch_sizes), outputs;
    for (int64_t direction = 0; direction < p.directions(); ++direction) {
      int64_t k = layer * p.directions() + direction;
      State state{hx[k], cx.defined() ? cx[k] : cx};
      std::vector<Tensor> ys(xs.size());
      for (size_t i = 0; i < xs.size(); ++i) {
        size_t t = direction == 0 ? i : xs.size() - 1 - i;
        int64_t n = batch_sizes[t];
        State first{state.h.narrow(0, 0, n), state.c.defined() ? state.c.narrow(0, 0, n) : state.c};
        State next = step(p, cells[k], xs[t], first);
        ys[t] = next.h;
        state = {replaced(state.h, next.h), next.c.defined() ? replaced(state.c, next.c) : next.c};
      }
      outputs.push_back(at::cat(ys));
      hy.push_back(state.h);
      if (state.c.defined()) cy.push_back(state.c);
    }
    input = at::cat(outputs, 1);
  }
  return {input, at::stack(hy), cy.empty() ? Tensor() : at::stack(cy)};
}

std::vector<Tensor> in_order_of_w(const std::vector<Tensor>& params) {
  std::vector<Tensor> list;
  for (int64_t dims : {2, 1}) {
    for (const Tensor& t : params) {
      if (t.dim() == dims) list.push_back(t);
    }
  }
  return list;
}

std::vector<Tensor> backward_formula(const RnnProblem& p, const std::vector<int64_t>& batch_sizes,
                                     std::vector<Tensor> point, const std::vector<Tensor>& grads) {
  bool create_graph = c10::GradMode::is_enabled();
  at::AutoGradMode on(true);
  for (Tensor& t : point) {
    if (t.defined()) t = variable_of(t, create_graph);
  }
  std::vector<Tensor> params(point.begin() + 3, point.end());
  int64_t width = p.x.sizes[2];
  std::vector<Tensor> results = formula(p, batch_sizes, point[0].reshape({-1, width}), point[1],
                                        point[2], rnn_cells(rnn_parameters(p), params));
  std::vector<Tensor> outputs, weights, wanted{point[0], point[1]};
  for (size_t i = 0; i < 3; ++i) {
    if (!results[i].defined() || !grads[i].defined()) continue;
    outputs.push_back(results[i]);
    weights.push_back(grads[i].reshape(results[i].sizes()));
  }
  if (point[2].defined()) wanted.push_back(point[2]);
  std::vector<Tensor> ordered = in_order_of_w(params);
  wanted.insert(wanted.end(), ordered.begin(), ordered.end());
  std::vector<Tensor> found =
      torch::autograd::grad(outputs, wanted, weights, std::nullopt, create_graph, true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(wanted[i]);
  }
  auto first = found.begin() + (point[2].defined() ? 3 : 2);
  std::vector<Tensor> parts;
  for (auto it = first; it != found.end(); ++it) parts.push_back(it->reshape({-1}));
  return {found[0], found[1], point[2].defined() ? found[2] : Tensor(), at::cat(parts)};
}

}  // namespace torch_cudnn_ext::rnn
