// What the core must know of recurrent networks.
#include "core/operator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/autograd_guard.h"
#include "core/errata.h"
#include "ops/rnn/rnn.h"

namespace torch_cudnn_ext::rnn {
namespace {

class RnnOperator : public CoupledOperatorOf<RnnProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnRNNForward, cudnnRNNBackwardData_v8, cudnnRNNBackwardWeights_v8",
        "[time, batch, input]; batch_first; packed sequences",
        "packed sequences of several lengths: standard alone; projections: lstm; aten: no dropout "
        "between layers on a GPU when training",
        {"rnn_fwd cell=lstm x=f16[64,32,512]:nchw hidden=512 layers=2 train=true"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {{"x", 1}}; }
  // PyTorch's own is made of matrix products if cuDNN is off.
  std::optional<at::Float32Op> float32_op() const override {
    return at::globalContext().userEnabledCuDNN() ? at::Float32Op::RNN : at::Float32Op::MATMUL;
  }
  bool has_math_types() const override { return true; }
  bool is_random(const RnnProblem& p) const override { return p.dropout > 0; }
  bool is_always_coupled() const override { return true; }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_RNN_ALGO_STANDARD", "standard", nullptr},
            {1, "CUDNN_RNN_ALGO_PERSIST_STATIC", "persist_static", nullptr},
            {2, "CUDNN_RNN_ALGO_PERSIST_DYNAMIC", "persist_dynamic", nullptr},
            {3, "CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H", "persist_static_small_h", nullptr}};
  }

  // Inputs of the forward come first in both passes, so that scratch draws the same values for
  // both.
  std::vector<SlotSpec> slots(const RnnProblem& p) const override {
    bool lstm = p.cell == RnnCell::lstm, forward = p.pass == Pass::fwd;
    std::vector<SlotSpec> list{{Role::x, rnn_x(p), false}};
    auto add = [&](Role role, const TensorSpec& spec, bool is_output) {
      list.push_back({role, spec, is_output});
    };
    if (p.lengths == RnnLengths::packed) {
      add(Role::batch_sizes, {at::kLong, {p.steps()}, {1}}, false);
      list.back().on_host = true;
    }
    TensorSpec h = rnn_h(p), c = rnn_c(p), reserve{at::kByte, {0}, {1}};
    add(Role::hx, h, false);
    if (lstm) add(Role::cx, c, false);
    add(Role::w, rnn_w(p), false);
    add(Role::y, rnn_y(p), forward);
    if (!forward) add(Role::dy, rnn_y(p), false);
    add(forward ? Role::hy : Role::dhy, h, forward);
    if (lstm) add(forward ? Role::cy : Role::dcy, c, forward);
    if (p.train) add(Role::reserve, reserve, forward);
    if (forward) return list;
    add(Role::dx, rnn_x(p), true);
    add(Role::dhx, h, true);
    if (lstm) add(Role::dcx, c, true);
    add(Role::dw, rnn_w(p), true);
    return list;
  }

  Cost cost(const RnnProblem& p) const override {
    double rows = static_cast<double>(p.steps()) * static_cast<double>(p.batch()), terms = 0;
    for (const RnnParameter& parameter : rnn_parameters(p)) {
      terms += static_cast<double>(parameter.numel());
    }
    double bytes = bytes_of(slots(p));
    bool forward = p.pass == Pass::fwd;
    auto widest = std::max(p.input(), p.directions() * p.state());
    return {(forward ? 2 : 4) * rows * terms, bytes, static_cast<double>(widest + p.state())};
  }

  // Parameters as large as PyTorch initialises them; sequences of many lengths.
  void prepare_scratch(const RnnProblem& p, Bindings& b) const override {
    b[Role::w].mul_(1 / std::sqrt(3.0 * static_cast<double>(p.hidden)));
    if (p.lengths == RnnLengths::full) return;
    auto* sizes = b[Role::batch_sizes].mutable_data_ptr<int64_t>();
    for (int64_t t = 0; t < p.steps(); ++t) {
      sizes[t] = std::max<int64_t>(1, p.batch() - t * p.batch() / p.steps());
    }
  }

  // None with dropout: every algorithm draws its own masks.
  Bindings reference(const RnnProblem& p, const Bindings& b) const override {
    Bindings out;
    if (p.dropout > 0) return out;
    auto wide = [&](Role role) { return b[role].defined() ? b[role].to(at::kDouble) : Tensor(); };
    std::vector<int64_t> lengths = rnn_batch_sizes(p, b[Role::batch_sizes]);
    int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    auto used = [&](Role role) {
      return wide(role).reshape({-1, b[role].size(-1)}).narrow(0, 0, rows);
    };
    // Rows after the end of the last sequence are zero.
    auto padded = [&](const Tensor& t, const TensorSpec& spec) {
      Tensor whole = at::zeros(spec.sizes, t.options());
      whole.view({-1, t.size(-1)}).narrow(0, 0, rows).copy_(t);
      return whole;
    };
    std::vector<RnnParameter> parameters = rnn_parameters(p);
    std::vector<Tensor> params = rnn_views(parameters, wide(Role::w));
    Tensor x = used(Role::x), hx = wide(Role::hx), cx = wide(Role::cx);
    if (p.pass == Pass::fwd) {
      auto results = formula(p, lengths, x, hx, cx, rnn_cells(parameters, params));
      out[Role::y] = padded(results[0], rnn_y(p));
      out[Role::hy] = results[1];
      out[Role::cy] = results[2];
      return out;
    }
    std::vector<Tensor> point{x, hx, cx};
    point.insert(point.end(), params.begin(), params.end());
    std::vector<Tensor> results;
    {
      AutogradGuard guard;
      c10::NoGradGuard once;  // gradients of gradients are not recorded
      results =
          backward_formula(p, lengths, point, {used(Role::dy), wide(Role::dhy), wide(Role::dcy)});
    }
    out[Role::dx] = padded(results[0], rnn_x(p));
    out[Role::dhx] = results[1];
    out[Role::dcx] = results[2];
    out[Role::dw] = results[3];
    return out;
  }

  // States are rounded at every step, and what a step gets wrong goes into the next.
  double tolerance(const RnnProblem& p, const Notes& notes) const override {
    bool tf32 = notes.has(Note::tf32), down = notes.has(Note::down_convert);
    double stored = epsilon_of(p.x.dtype);
    double summed = epsilon_of(p.compute);
    // A ReLU does not damp the errors of the steps before.
    double steps = p.cell == RnnCell::relu ? std::sqrt(static_cast<double>(p.steps())) : 1;
    double growth = std::max(1.0, steps / 2);
    // A state that is rounded across zero turns a gradient on or off.
    if (p.pass == Pass::bwd && epsilon_of(p.x.dtype) >= epsilon_of(at::kHalf)) stored *= growth;
    if (tf32) stored = std::max(stored, epsilon_of(at::kHalf) * growth);
    if (down) stored = std::max(stored, epsilon_of(at::kBFloat16));
    double depth = std::sqrt(static_cast<double>(p.layers));
    // The persistent algorithms compute tanh and sigmoid in fewer digits.
    double rounded = (p.pass == Pass::fwd ? 8 : 32) * stored * depth +
                     8 * summed * std::sqrt(cost(p).reduction_length) +
                     (p.x.dtype == at::kFloat ? 1.5e-5 * depth : 0);
    // In float64 no state of a measurable problem comes that near to zero.
    constexpr double kOneGradient = 0.1;  // one gradient that is turned on or off, among all
    bool kinked = p.cell == RnnCell::relu && p.pass == Pass::bwd && p.x.dtype != at::kDouble;
    return kinked ? std::max(rounded, kOneGradient) : rounded;
  }

  // PyTorch itself, which knows when cuDNN's persistent kernels are good; without it, much the same
  // rule. The first math type may use TF32, and is passed over if that is not allowed. PyTorch
  // comes last if it computes wrong results.
  std::vector<std::string> heuristic_order(const RnnProblem& p) const override {
    std::vector<std::string> order{"aten"};
    bool half = c10::isReducedFloatingType(p.x.dtype);
    bool regular = p.layers == 1 && !p.bidirectional && p.proj == 0 && p.hidden <= 1024 &&
                   p.hidden % 128 == 0 && p.input() % 128 == 0 && p.batch() <= 128 &&
                   p.batch() % 8 == 0;
    bool good =
        p.cell == RnnCell::lstm || (p.cell != RnnCell::gru && (p.batch() < 96 || p.hidden < 896));
    if (half && regular && good) order.push_back("legacy:persist_static/math=tensor_op");
    if (half) order.push_back("legacy:standard/math=tensor_op");
    order.push_back("legacy:standard/math=default");
    if (p.x.dtype == at::kFloat) order.push_back("legacy:standard/math=fma");
    if (erratum_applies("pytorch-rnn-small-h", p, kBaseline, kAnyGpu)) {
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
    return order;
  }
};

const RegisterOperator<RnnOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::rnn
