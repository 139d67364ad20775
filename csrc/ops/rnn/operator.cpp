// Recurrent networks: argument checks, Problem, gradients, and what the core must know of them.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/autograd_guard.h"
#include "core/select/execute.h"
#include "ops/autograd.h"
#include "problems/rnn_layout.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

void RnnProblem::canonicalise() {
  canonicalise_strides({&x});
  if (layers == 1) dropout = 0;
}

bool RnnProblem::meets_small_h_defect() const {
  bool persistent = gates() > 1 && proj == 0 && lengths == RnnLengths::full;
  bool odd_hidden = hidden > 32 && hidden <= 192 && hidden % 8 == 0 && hidden % 32 != 0;
  return persistent && odd_hidden && batch() % 8 == 0;
}

void RnnProblem::validate() const {
  check_sizes("rnn", "x", x, 3, 3);
  TORCH_CHECK_VALUE(x.strides == contiguous_strides(x.sizes),
                    "rnn: x has other strides than its sizes [time, batch, input] say, wanted "
                    ":nchw");
  TORCH_CHECK_VALUE(hidden >= 1, "rnn: hidden is ", hidden, ", wanted at least 1");
  TORCH_CHECK_VALUE(layers >= 1 && layers <= 10000, "rnn: layers is ", layers,
                    ", wanted 1 to 10000");
  double width = std::max(static_cast<double>(x.sizes[2]), static_cast<double>(hidden));
  double rows = static_cast<double>(x.sizes[0]) * static_cast<double>(x.sizes[1]);
  double elements =
      8.0 * static_cast<double>(layers) * static_cast<double>(hidden) * (rows + width);
  TORCH_CHECK_VALUE(elements * static_cast<double>(c10::elementSize(x.dtype)) < 1e15,
                    "rnn: hidden is ", hidden,
                    ", wanted less than 10^15 bytes of weights and of what layers give");
  TORCH_CHECK_VALUE(proj >= 0 && proj < hidden, "rnn: proj is ", proj,
                    ", wanted at least 0 and less than hidden=", hidden);
  TORCH_CHECK_VALUE(proj == 0 || cell == RnnCell::lstm, "rnn: proj is ", proj,
                    ", but LSTM cells alone are projected");
  TORCH_CHECK_VALUE(!skip || x.sizes[2] == hidden, "rnn: x has ", x.sizes[2],
                    " features, wanted hidden=", hidden, " since its first layer skips the input");
  TORCH_CHECK_VALUE(dropout >= 0 && dropout <= 1, "rnn: dropout is ", dropout, ", wanted 0 to 1");
  TORCH_CHECK_VALUE(train || pass == Pass::fwd, "rnn: a backward has train=true");
  bool is_double = x.dtype == c10::ScalarType::Double;
  bool narrow = x.dtype == c10::ScalarType::Float
                    ? compute == c10::ScalarType::Float
                    : compute != c10::ScalarType::Double &&
                          (compute == c10::ScalarType::Float || compute == x.dtype);
  TORCH_CHECK_VALUE(is_double ? compute == c10::ScalarType::Double : narrow, "rnn: compute is ",
                    dtype_text(compute), " for ", dtype_text(x.dtype), " data, wanted ",
                    dtype_text(default_compute()));
}

namespace rnn {
namespace {

using at::IntArrayRef;
using at::TensorList;

// What goes with every call besides tensors; as in PyTorch's _cudnn_rnn, but for the lengths.
struct Settings {
  int64_t cell = 0, bias = 0, num_layers = 0;
  double dropout = 0;
  bool bidirectional = false, skip_input = false;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  RnnCell cell_kind() const { return static_cast<RnnCell>(cell); }
  bool is_lstm() const { return cell_kind() == RnnCell::lstm; }
  RnnProblem problem() const {  // without sizes
    RnnProblem p;
    p.cell = cell_kind();
    p.bias = static_cast<RnnBias>(bias);
    p.layers = num_layers;
    p.bidirectional = bidirectional;
    p.skip = skip_input;
    p.dropout = dropout;
    return p;
  }
};

constexpr const char* kNames[] = {"rnn_relu", "rnn_tanh", "lstm", "gru"};
// Of the operator, for messages; the first check of every call.
const char* name_of(const Settings& s) {
  constexpr auto kLast = static_cast<int64_t>(std::size(kNames)) - 1;
  TORCH_CHECK_VALUE(s.cell >= 0 && s.cell <= kLast, "torch_cudnn_ext::_rnn: cell is ", s.cell,
                    ", wanted 0 to ", kLast);
  return kNames[s.cell];
}

// --- sizes

// The parts of all sizes, with symbols where they are symbols.
struct Sizes {
  SymInt rows;  // steps of all sequences together
  SymInt steps, batch, hidden, state;
  bool packed = false;

  void set(RnnProblem& p, const Tensor& input) const {
    p.hidden = hidden.expect_int();
    p.proj = state == hidden ? 0 : state.expect_int();
    Dims x{steps.expect_int(), batch.expect_int(), input.size(-1)};
    p.x = {input.scalar_type(), x, contiguous_strides(x)};
  }
};

Sizes sizes_of(const Tensor& input, IntArrayRef batch_sizes, TensorList params, const Settings& s) {
  const char* op = name_of(s);
  Sizes sizes;
  sizes.packed = !batch_sizes.empty();
  int64_t dims = sizes.packed ? 2 : 3;
  TORCH_CHECK_VALUE(input.dim() == dims, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sym_sizes(), ", wanted ", dims, " dimensions (",
                    sizes.packed ? "steps of all sequences" : "time, batch", ", features)");
  constexpr auto kLastBias = static_cast<int64_t>(RnnBias::twice);
  TORCH_CHECK_VALUE(s.bias >= 0 && s.bias <= kLastBias, "torch_cudnn_ext::", op, ": bias is ",
                    s.bias, ", wanted 0 to ", kLastBias);
  RnnProblem shape = s.problem();  // of the list of parameters
  TORCH_CHECK_VALUE(s.num_layers >= 1 && s.num_layers <= 10000, "torch_cudnn_ext::", op,
                    ": num_layers is ", s.num_layers, ", wanted 1 to 10000");
  size_t recurrent = s.skip_input ? 0 : 1;
  TORCH_CHECK_VALUE(params.size() > recurrent && params[recurrent].dim() == 2,
                    "torch_cudnn_ext::", op, ": params holds ", params.size(),
                    " tensors, wanted a matrix of the hidden states at place ", recurrent);
  sizes.hidden = params[recurrent].sym_size(0) / shape.gates();
  sizes.state = params[recurrent].sym_size(1);
  TORCH_CHECK_VALUE(!s.skip_input || input.sym_size(-1) == sizes.hidden, "torch_cudnn_ext::", op,
                    ": input has sizes ", input.sym_sizes(), ", wanted hidden_size=", sizes.hidden,
                    " features since skip_input is True");
  shape.hidden = 2;
  shape.proj = sizes.state == sizes.hidden ? 0 : 1;
  shape.x.sizes = {1, 1, 2};
  size_t wanted = rnn_parameters(shape).size();
  TORCH_CHECK_VALUE(params.size() == wanted, "torch_cudnn_ext::", op, ": params holds ",
                    params.size(), " tensors, wanted ", wanted, " for ", s.num_layers,
                    " layers in ", s.directions(), " directions");
  if (sizes.packed) {
    int64_t rows = rnn_rows(c10::str("torch_cudnn_ext::", op), batch_sizes);
    std::optional<int64_t> given = input.sym_size(0).maybe_as_int();
    TORCH_CHECK_VALUE(!given || *given == rows, "torch_cudnn_ext::", op, ": batch_sizes add up to ",
                      rows, ", wanted the ", *given, " steps that input of sizes ",
                      input.sym_sizes(), " has");
    sizes.rows = rows;
    sizes.steps = static_cast<int64_t>(batch_sizes.size());
    sizes.batch = batch_sizes[0];
  } else {
    sizes.steps = input.sym_size(0);
    sizes.batch = input.sym_size(1);
    sizes.rows = sizes.steps * sizes.batch;
  }
  return sizes;
}

void check_tensor(const char* op, const char* name, const Tensor& t, IntArrayRef wanted,
                  const Tensor& input) {
  TORCH_CHECK_VALUE(t.sizes() == wanted, "torch_cudnn_ext::", op, ": ", name, " has sizes ",
                    t.sizes(), ", wanted ", wanted);
  check_alike(op, name, t, "input", input);
}

void check_optional(const char* op, const char* name, const Tensor& t, const TensorSpec& spec,
                    const Tensor& input) {
  if (t.defined()) check_tensor(op, name, t, spec.sizes, input);
}

// --- calls

// The tensors of a call as a plan takes them, and its problem.
struct Call {
  RnnProblem problem;
  std::vector<RnnParameter> parameters;
  Bindings bindings;
};

Call make_call(Pass pass, const Tensor& input, IntArrayRef batch_sizes, const Tensor& hx,
               const Tensor& cx, TensorList params, const Settings& s, bool train) {
  const char* op = name_of(s);
  check_dtype(op, "input", input);
  TORCH_CHECK_VALUE(input.size(-1) > 0, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sizes(), ", wanted at least one feature");
  Sizes sizes = sizes_of(input, batch_sizes, params, s);
  Call call;
  RnnProblem& p = call.problem;
  p = s.problem();
  sizes.set(p, input);
  p.pass = pass;
  p.train = train;
  p.compute = p.default_compute();
  // Sequences of one length are a plain batch, however they came.
  bool packed = !batch_sizes.empty() && batch_sizes.back() != batch_sizes.front();
  if (packed) p.lengths = RnnLengths::packed;
  p.canonicalise();
  call.parameters = rnn_parameters(p);
  for (size_t i = 0; i < params.size(); ++i) {
    const RnnParameter& wanted = call.parameters[i];
    Dims shape = wanted.columns > 0 ? Dims{wanted.rows, wanted.columns} : Dims{wanted.rows};
    bool fits = params[i].sizes() == IntArrayRef(shape) &&
                params[i].scalar_type() == input.scalar_type() &&
                params[i].device() == input.device();
    if (!fits) check_tensor(op, c10::str("params[", i, "]").c_str(), params[i], shape, input);
  }
  check_optional(op, "hx", hx, rnn_h(p), input);
  check_optional(op, "cx", cx, rnn_c(p), input);
  Bindings& b = call.bindings;
  b[Role::x] = packed ? input.contiguous() : input.contiguous().view(p.x.sizes);
  if (packed) b[Role::batch_sizes] = at::tensor(batch_sizes, at::kLong);
  if (hx.defined()) b[Role::hx] = hx.contiguous();
  if (cx.defined()) b[Role::cx] = cx.contiguous();
  if (input.numel() > 0) b[Role::w] = rnn_flatten(call.parameters, params.vec());
  return call;
}

// With aligned tensors: a backward runs what its forward ran, whatever its own are.
void run(Call& call, const Tensor& input, OptionalPolicy policy) {
  Bindings& b = call.bindings;
  align(b, {Role::x, Role::hx, Role::cx, Role::w, Role::dy, Role::y, Role::dhy, Role::dcy,
            Role::reserve});
  execute(call.problem, resolve_policy(RnnProblem::kFamily, policy), device_of(input.device()), b);
}

// Of a packed batch a dry run makes the whole one; its rows come first.
Tensor rows_of(const Tensor& t, IntArrayRef sizes) {
  int64_t count = c10::multiply_integers(sizes);
  return (t.numel() == count ? t : t.view(-1).narrow(0, 0, count)).view(sizes);
}

Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// y, hy, cy (empty but for LSTM), and the reserve and its writer, which hold nothing unless they
// are for a backward.
Forward forward(const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor& hx,
                const OptionalTensor& cx, TensorList params, int64_t cell, int64_t bias,
                int64_t num_layers, double dropout, bool bidirectional, bool skip_input,
                bool for_backward, OptionalPolicy policy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  c10::OptionalDeviceGuard guard(input.device());
  Call call = make_call(Pass::fwd, input, batch_sizes, or_undefined(hx), or_undefined(cx), params,
                        s, for_backward);
  const RnnProblem& p = call.problem;
  Bindings& b = call.bindings;
  auto y_sizes = input.sizes().vec();
  y_sizes.back() = p.directions() * p.state();
  TORCH_CHECK_VALUE(p.steps() > 0, "torch_cudnn_ext::", name_of(s), ": input has sizes ",
                    input.sizes(), ", wanted at least one time step");
  if (p.batch() == 0) {
    return {at::empty(y_sizes, input.options()), at::empty(rnn_h(p).sizes, input.options()),
            s.is_lstm() ? at::empty(rnn_c(p).sizes, input.options()) : nothing(input),
            no_reserve(input), make_writer(0, input)};
  }
  run(call, input, policy);
  Tensor cy = s.is_lstm() ? b[Role::cy] : nothing(input);
  return {rows_of(b[Role::y], y_sizes), b[Role::hy], cy,
          for_backward ? b[Role::reserve] : no_reserve(input),
          for_backward ? writer_of_last(input) : make_writer(0, input)};
}

Forward forward_meta(const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor& hx,
                     const OptionalTensor& cx, TensorList params, int64_t cell, int64_t bias,
                     int64_t num_layers, double dropout, bool bidirectional, bool skip_input, bool,
                     OptionalPolicy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  if (has(hx)) check_device(name_of(s), "hx", *hx, "input", input);
  if (has(cx)) check_device(name_of(s), "cx", *cx, "input", input);
  for (const Tensor& t : params) check_device(name_of(s), "params", t, "input", input);
  Sizes sizes = sizes_of(input, batch_sizes, params, s);
  auto y_sizes = input.sym_sizes().vec();
  y_sizes.back() = sizes.state * s.directions();
  SymInt layers = s.num_layers * s.directions();
  std::vector<SymInt> h{layers, sizes.batch, sizes.state}, c{layers, sizes.batch, sizes.hidden};
  return {at::empty_symint(y_sizes, input.options()), at::empty_symint(h, input.options()),
          s.is_lstm() ? at::empty_symint(c, input.options()) : nothing(input), no_reserve(input),
          make_writer(0, input)};
}

// Gradients of input, hx, cx (empty but for LSTM) and of the parameters side by side. The reserve
// may be overwritten.
Backward backward(const OptionalTensor& grad_output, const OptionalTensor& grad_hy,
                  const OptionalTensor& grad_cy, const Tensor& input, IntArrayRef batch_sizes,
                  const OptionalTensor& hx, const OptionalTensor& cx, TensorList params,
                  const Tensor& output, const Tensor& reserve, const OptionalTensor& writer,
                  int64_t cell, int64_t bias, int64_t num_layers, double dropout,
                  bool bidirectional, bool skip_input, OptionalPolicy policy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  check_device(name_of(s), "reserve", reserve, "input", input);
  OptionalPolicy coupled = policy_of_backward(RnnProblem::kFamily, "_rnn_backward", writer, policy);
  c10::OptionalDeviceGuard guard(input.device());
  Call call =
      make_call(Pass::bwd, input, batch_sizes, or_undefined(hx), or_undefined(cx), params, s, true);
  const RnnProblem& p = call.problem;
  Bindings& b = call.bindings;
  Tensor dy = or_undefined(grad_output), dhy = or_undefined(grad_hy), dcy = or_undefined(grad_cy);
  TensorSpec y_spec = spec_of(output);
  check_optional(name_of(s), "grad_output", dy, y_spec, input);
  check_optional(name_of(s), "grad_hy", dhy, rnn_h(p), input);
  check_optional(name_of(s), "grad_cy", dcy, rnn_c(p), input);
  if (p.batch() == 0) {
    return {at::empty_like(input), at::empty(rnn_h(p).sizes, input.options()),
            s.is_lstm() ? at::empty(rnn_c(p).sizes, input.options()) : nothing(input),
            at::zeros(rnn_w(p).sizes, input.options())};
  }
  if (!dy.defined()) dy = at::zeros(output.sizes(), output.options());
  bool packed = p.lengths == RnnLengths::packed;
  Dims y_sizes = packed ? Dims(output.sizes()) : rnn_y(p).sizes;
  b[Role::dy] = dy.contiguous().view(y_sizes);
  b[Role::y] = output.contiguous().view(y_sizes);
  b[Role::dhy] = contiguous_or_undefined(dhy);
  if (s.is_lstm()) b[Role::dcy] = contiguous_or_undefined(dcy);
  b[Role::reserve] = reserve;
  run(call, input, coupled);
  Tensor dcx = s.is_lstm() ? b[Role::dcx] : nothing(input);
  return {rows_of(b[Role::dx], input.sizes()), b[Role::dhx], dcx, b[Role::dw]};
}

Backward backward_meta(const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                       const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor&,
                       const OptionalTensor&, TensorList params, const Tensor&, const Tensor&,
                       const OptionalTensor&, int64_t cell, int64_t bias, int64_t num_layers,
                       double dropout, bool bidirectional, bool skip_input, OptionalPolicy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  Sizes sizes = sizes_of(input, batch_sizes, params, s);
  SymInt layers = s.num_layers * s.directions(), count = 0;
  for (const Tensor& t : params) count += t.sym_numel();
  std::vector<SymInt> h{layers, sizes.batch, sizes.state}, c{layers, sizes.batch, sizes.hidden};
  return {at::empty_symint(input.sym_sizes(), input.options()),
          at::empty_symint(h, input.options()),
          s.is_lstm() ? at::empty_symint(c, input.options()) : nothing(input),
          at::empty_symint({count}, input.options())};
}

// --- the formula

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

// y, hy and cy of x, which is [steps of all sequences, input], without dropout: operators that
// autograd knows how to differentiate any number of times.
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

// Matrices before vectors, as w has them.
std::vector<Tensor> in_order_of_w(const std::vector<Tensor>& params) {
  std::vector<Tensor> list;
  for (int64_t dims : {2, 1}) {
    for (const Tensor& t : params) {
      if (t.dim() == dims) list.push_back(t);
    }
  }
  return list;
}

// The backward of the formula: gradients of x, hx, cx and w, which can be differentiated again
// where gradients are recorded.
std::vector<Tensor> backward_formula(const RnnProblem& p, const std::vector<int64_t>& batch_sizes,
                                     std::vector<Tensor> point, const variable_list& grads) {
  bool create_graph = c10::GradMode::is_enabled();
  at::AutoGradMode on(true);
  for (Tensor& t : point) {
    if (t.defined()) t = variable_of(t, create_graph);
  }
  std::vector<Tensor> params(point.begin() + 3, point.end());
  int64_t width = p.x.sizes[2];
  std::vector<Tensor> results = formula(p, batch_sizes, point[0].reshape({-1, width}), point[1],
                                        point[2], rnn_cells(rnn_parameters(p), params));
  variable_list outputs, weights, wanted{point[0], point[1]};
  for (size_t i = 0; i < 3; ++i) {
    if (!results[i].defined() || !grads[i].defined()) continue;
    outputs.push_back(results[i]);
    weights.push_back(grads[i].reshape(results[i].sizes()));
  }
  if (point[2].defined()) wanted.push_back(point[2]);
  std::vector<Tensor> ordered = in_order_of_w(params);
  wanted.insert(wanted.end(), ordered.begin(), ordered.end());
  variable_list found =
      torch::autograd::grad(outputs, wanted, weights, std::nullopt, create_graph, true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(wanted[i]);
  }
  auto first = found.begin() + (point[2].defined() ? 3 : 2);
  std::vector<Tensor> parts;
  for (auto it = first; it != found.end(); ++it) parts.push_back(it->reshape({-1}));
  return {found[0], found[1], point[2].defined() ? found[2] : Tensor(), at::cat(parts)};
}

// --- gradients

const auto& forward_op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::_rnn");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::_rnn_backward");
  return op;
}

template <class F>
void visit_settings(Settings& s, F&& visit) {
  visit(s.cell);
  visit(s.bias);
  visit(s.num_layers);
  visit(s.dropout);
  visit(s.bidirectional);
  visit(s.skip_input);
}

// Where backward_formula() is evaluated.
struct Point {
  RnnProblem p;
  std::vector<int64_t> lengths;
  std::vector<Tensor> tensors;  // input, hx, cx, parameters; states that are left out are zero
};

Point point_of(const Settings& settings, IntArrayRef batch_sizes, std::vector<Tensor> tensors,
               const char* gradient) {
  TORCH_CHECK_NOT_IMPLEMENTED(settings.dropout == 0 || settings.num_layers == 1,
                              "torch_cudnn_ext::", name_of(settings), ": ", gradient,
                              " is not computed with dropout, since the mask is not known outside "
                              "of the algorithm; wanted dropout=0, got ",
                              settings.dropout);
  RnnProblem p = settings.problem();
  sizes_of(tensors[0], batch_sizes, TensorList(tensors).slice(3), settings).set(p, tensors[0]);
  std::vector<int64_t> lengths = batch_sizes.vec();
  if (lengths.empty()) lengths.assign(static_cast<size_t>(p.steps()), p.batch());
  if (!tensors[1].defined()) tensors[1] = at::zeros(rnn_h(p).sizes, tensors[0].options());
  if (!tensors[2].defined() && settings.is_lstm()) {
    tensors[2] = at::zeros(rnn_c(p).sizes, tensors[0].options());
  }
  return {p, std::move(lengths), std::move(tensors)};
}

struct RnnBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtRnnBackwardBackward";
  static constexpr size_t kInputs = kAny;  // the three gradients, input, hx, cx, parameters
  Settings settings;
  std::vector<int64_t> batch_sizes;

  template <class F>
  void attributes(F&& visit) {
    visit_settings(settings, visit);
    visit(batch_sizes);
  }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    Point at =
        point_of(settings, batch_sizes, saved.slice(3).vec(), "the gradient of its gradient");
    std::vector<Tensor> inputs = saved.slice(0, 3).vec();
    inputs.insert(inputs.end(), at.tensors.begin(), at.tensors.end());
    return gradients_of_formula(
        [&](const std::vector<Tensor>& in) {
          return backward_formula(at.p, at.lengths, {in.begin() + 3, in.end()},
                                  {in.begin(), in.begin() + 3});
        },
        inputs, grads, needed);
  }
};

Backward backward_autograd(c10::DispatchKeySet keys, const OptionalTensor& grad_output,
                           const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                           const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor& hx,
                           const OptionalTensor& cx, TensorList params, const Tensor& output,
                           const Tensor& reserve, const OptionalTensor& writer, int64_t cell,
                           int64_t bias, int64_t num_layers, double dropout, bool bidirectional,
                           bool skip_input, OptionalPolicy policy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  std::vector<TensorRef> inputs{or_undefined(grad_output), or_undefined(grad_hy),
                                or_undefined(grad_cy),     input,
                                or_undefined(hx),          or_undefined(cx)};
  inputs.insert(inputs.end(), params.begin(), params.end());
  return run_with_gradient<RnnBackwardGradient>(
      inputs, 4,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, grad_hy,
                                        grad_cy, input, batch_sizes, hx, cx, params, output,
                                        reserve, writer, cell, bias, num_layers, dropout,
                                        bidirectional, skip_input, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.settings = s;
        node.gradient.batch_sizes = batch_sizes.vec();
        for (const Tensor& t : inputs) save_input(node, t);
      });
}

// Saved: input, hx, cx, the reserve, its writer, parameters, and the output.
struct RnnGradient {
  static constexpr const char* kName = "TorchCudnnExtRnnBackward";
  static constexpr size_t kInputs = kAny;  // input, hx, cx, parameters
  Settings settings;
  std::vector<int64_t> batch_sizes;
  std::optional<std::string> policy;
  bool retain_variables = true;

  template <class F>
  void attributes(F&& visit) {
    visit_settings(settings, visit);
    visit(batch_sizes);
    visit(policy);
  }

  // The output, by the algorithm that gave it. What dropout drew cannot be had again.
  Tensor remade(TensorList before) const {
    const Settings& s = settings;
    if (s.dropout > 0 && s.num_layers > 1) return Tensor();
    c10::NoGradGuard no_grad;
    constexpr bool kForBackward = false;
    return std::get<0>(forward_op().call(before[0], batch_sizes, optional_of(before[1]),
                                         optional_of(before[2]), before.slice(5), s.cell, s.bias,
                                         s.num_layers, s.dropout, s.bidirectional, s.skip_input,
                                         kForBackward, policy));
  }

  // Gradients of x, hx, cx and w.
  std::vector<Tensor> all(const variable_list& grads, TensorList saved,
                          const std::vector<Tensor>& params) {
    const Settings& s = settings;
    variable_list three = grads;
    three.resize(3);
    constexpr c10::DispatchKeySet kBatched(
        {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Batched});
    // An operator of lists of tensors has no rule for batches.
    bool batched = std::any_of(three.begin(), three.end(), [&](const Tensor& t) {
      return t.defined() && t.key_set().has_any(kBatched);
    });
    if (batched) {
      std::vector<Tensor> tensors = saved.slice(0, 3).vec();
      tensors.insert(tensors.end(), params.begin(), params.end());
      Point at = point_of(s, batch_sizes, std::move(tensors), "a batch of its gradients");
      std::optional<NoSavedTensorHooks> no_hooks;
      if (!c10::GradMode::is_enabled()) no_hooks.emplace();
      return backward_formula(at.p, at.lengths, std::move(at.tensors), three);
    }
    // cuDNN writes into the reserve, and whoever traces a graph may run it more than once.
    bool again = retain_variables || c10::impl::TorchDispatchModeTLS::any_modes_set();
    Tensor reserve = again ? saved[3].clone() : saved[3];
    auto [dx, dhx, dcx, dw] =
        backward_op().call(optional_of(three[0]), optional_of(three[1]), optional_of(three[2]),
                           saved[0], batch_sizes, optional_of(saved[1]), optional_of(saved[2]),
                           params, saved.back(), reserve, optional_of(saved[4]), s.cell, s.bias,
                           s.num_layers, s.dropout, s.bidirectional, s.skip_input, policy);
    return {dx, dhx, dcx, dw};
  }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    std::vector<Tensor> params(saved.begin() + 5, saved.end() - 1);
    variable_list gradients = all(grads, saved, params);
    Tensor dw = std::move(gradients[3]);
    for (size_t i = 0; i < 3; ++i) {
      if (!needed[i]) gradients[i] = Tensor();
    }
    gradients.resize(3 + params.size());
    std::vector<SymInt> counts;
    for (const Tensor& t : in_order_of_w(params)) counts.push_back(t.sym_numel());
    std::vector<Tensor> parts = dw.split_with_sizes_symint(counts);
    size_t next = 0;
    for (int64_t dims : {2, 1}) {
      for (size_t i = 0; i < params.size(); ++i) {
        if (params[i].dim() != dims) continue;
        const Tensor& part = parts[next++];
        if (needed[3 + i]) gradients[3 + i] = part.view_symint(params[i].sym_sizes());
      }
    }
    return gradients;
  }
};

Forward forward_autograd(c10::DispatchKeySet keys, const Tensor& input, IntArrayRef batch_sizes,
                         const OptionalTensor& hx, const OptionalTensor& cx, TensorList params,
                         int64_t cell, int64_t bias, int64_t num_layers, double dropout,
                         bool bidirectional, bool skip_input, bool for_backward,
                         OptionalPolicy policy) {
  Settings s{cell, bias, num_layers, dropout, bidirectional, skip_input};
  std::vector<TensorRef> inputs{input, or_undefined(hx), or_undefined(cx)};
  inputs.insert(inputs.end(), params.begin(), params.end());
  bool wanted = false;
  for (const Tensor& t : inputs) wanted |= t.defined() && t.requires_grad();
  for_backward |= wanted && at::GradMode::is_enabled();
  return run_with_gradient<RnnGradient>(
      inputs, s.is_lstm() ? 3 : 2,
      [&] {
        return forward_op().redispatch(keys & c10::after_autograd_keyset, input, batch_sizes, hx,
                                       cx, params, cell, bias, num_layers, dropout, bidirectional,
                                       skip_input, for_backward, policy);
      },
      [&](auto& node, const auto& out) {
        node.gradient.settings = s;
        node.gradient.batch_sizes = batch_sizes.vec();
        for (size_t i = 0; i < 3; ++i) save_input(node, inputs[i]);
        save_input(node, out[3]);
        save_writer(node, "_rnn", RnnProblem::kFamily, policy, out[4]);
        for (const Tensor& t : params) save_input(node, t);
        save_result(node, out[0]);
      });
}

// As PyTorch's _cudnn_rnn: everything that is float32 is cast, cell states included.
template <c10::DeviceType device>
Forward forward_autocast(const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor& hx,
                         const OptionalTensor& cx, TensorList params, int64_t cell, int64_t bias,
                         int64_t num_layers, double dropout, bool bidirectional, bool skip_input,
                         bool for_backward, OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  auto dtype = at::autocast::get_autocast_dtype(device);
  auto cast = [&](const auto& value) { return at::autocast::cached_cast(dtype, value, device); };
  return forward_op().call(cast(input), batch_sizes, cast(hx), cast(cx), cast(params), cell, bias,
                           num_layers, dropout, bidirectional, skip_input, for_backward, policy);
}

// --- the public operators, with PyTorch's arguments

RnnBias bias_of(bool has_biases, bool single_bias) {
  if (!has_biases) return RnnBias::none;
  return single_bias ? RnnBias::single : RnnBias::twice;
}

Forward call(RnnCell cell, const Tensor& input, IntArrayRef batch_sizes, const OptionalTensor& hx,
             const OptionalTensor& cx, TensorList params, bool has_biases, int64_t num_layers,
             double dropout, bool train, bool bidirectional, bool skip_input, bool single_bias,
             OptionalPolicy policy) {
  TORCH_CHECK_VALUE(dropout >= 0 && dropout <= 1, "torch_cudnn_ext::rnn: dropout is ", dropout,
                    ", wanted 0 to 1");
  double active = train && num_layers > 1 ? dropout : 0;
  return forward_op().call(input, batch_sizes, hx, cx, params, static_cast<int64_t>(cell),
                           static_cast<int64_t>(bias_of(has_biases, single_bias)), num_layers,
                           active, bidirectional, skip_input, false, policy);
}

Tensor time_first(const char* op, const Tensor& input, bool batch_first) {
  TORCH_CHECK_VALUE(input.dim() == 3, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sym_sizes(), ", wanted 3 dimensions");
  return batch_first ? input.transpose(0, 1) : input;
}

std::pair<OptionalTensor, OptionalTensor> states_of(TensorList hx) {
  TORCH_CHECK_VALUE(hx.empty() || hx.size() == 2, "torch_cudnn_ext::lstm: hx holds ", hx.size(),
                    " tensors, wanted a hidden and a cell state, or none");
  if (hx.empty()) return {c10::nullopt, c10::nullopt};
  return {hx[0], hx[1]};
}

void check_packed(const char* op, IntArrayRef batch_sizes) {
  TORCH_CHECK_VALUE(!batch_sizes.empty(), "torch_cudnn_ext::", op,
                    ": batch_sizes is empty, wanted one number for each time step");
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, TensorList hx, TensorList params,
                                        bool has_biases, int64_t num_layers, double dropout,
                                        bool train, bool bidirectional, bool batch_first,
                                        bool skip_input, bool single_bias, OptionalPolicy policy) {
  auto [h, c] = states_of(hx);
  auto [y, hy, cy, reserve, writer] =
      call(RnnCell::lstm, time_first("lstm", input, batch_first), {}, h, c, params, has_biases,
           num_layers, dropout, train, bidirectional, skip_input, single_bias, policy);
  return {batch_first ? y.transpose(0, 1) : y, hy, cy};
}

std::tuple<Tensor, Tensor, Tensor> lstm_packed(const Tensor& data, IntArrayRef batch_sizes,
                                               TensorList hx, TensorList params, bool has_biases,
                                               int64_t num_layers, double dropout, bool train,
                                               bool bidirectional, bool skip_input,
                                               bool single_bias, OptionalPolicy policy) {
  check_packed("lstm_packed", batch_sizes);
  auto [h, c] = states_of(hx);
  auto [y, hy, cy, reserve, writer] =
      call(RnnCell::lstm, data, batch_sizes, h, c, params, has_biases, num_layers, dropout, train,
           bidirectional, skip_input, single_bias, policy);
  return {y, hy, cy};
}

template <RnnCell cell>
std::tuple<Tensor, Tensor> plain(const Tensor& input, const OptionalTensor& hx, TensorList params,
                                 bool has_biases, int64_t num_layers, double dropout, bool train,
                                 bool bidirectional, bool batch_first, bool skip_input,
                                 bool single_bias, OptionalPolicy policy) {
  const char* op = kNames[static_cast<int>(cell)];
  auto [y, hy, cy, reserve, writer] =
      call(cell, time_first(op, input, batch_first), {}, hx, c10::nullopt, params, has_biases,
           num_layers, dropout, train, bidirectional, skip_input, single_bias, policy);
  return {batch_first ? y.transpose(0, 1) : y, hy};
}

template <RnnCell cell>
std::tuple<Tensor, Tensor> plain_packed(const Tensor& data, IntArrayRef batch_sizes,
                                        const OptionalTensor& hx, TensorList params,
                                        bool has_biases, int64_t num_layers, double dropout,
                                        bool train, bool bidirectional, bool skip_input,
                                        bool single_bias, OptionalPolicy policy) {
  check_packed(kNames[static_cast<int>(cell)], batch_sizes);
  auto [y, hy, cy, reserve, writer] =
      call(cell, data, batch_sizes, hx, c10::nullopt, params, has_biases, num_layers, dropout,
           train, bidirectional, skip_input, single_bias, policy);
  return {y, hy};
}

// --- PyTorch's own, overridden

std::optional<std::string> refusal_of_rnn(c10::DispatchKeySet keys, const Tensor& input,
                                          TensorList hx, TensorList params) {
  if (auto reason = refusal_of_any(keys, {{"input", input}})) return reason;
  for (const Tensor& t : hx) {
    if (auto reason = refusal_of_any(keys, {{"hx", t}})) return reason;
  }
  for (const Tensor& t : params) {
    if (auto reason = refusal_of_any(keys, {{"a parameter", t}})) return reason;
  }
  return std::nullopt;
}

std::optional<std::string> refusal_of_packed(c10::DispatchKeySet keys, const Tensor& data,
                                             const Tensor& batch_sizes, TensorList hx,
                                             TensorList params) {
  bool readable = batch_sizes.is_cpu() && batch_sizes.scalar_type() == at::kLong &&
                  batch_sizes.is_contiguous() &&
                  !batch_sizes.key_set().has(c10::DispatchKey::Python);
  if (!readable) return "batch_sizes are no int64 numbers on the CPU";
  return refusal_of_rnn(keys, data, hx, params);
}

IntArrayRef numbers_of(const Tensor& t) {
  return {t.const_data_ptr<int64_t>(), static_cast<size_t>(t.numel())};
}

struct AtenLstm {
  static constexpr const char* kOp = "lstm";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            TensorList hx, TensorList params, bool, int64_t, double,
                                            bool, bool, bool) {
    if (hx.size() != 2) return "hx does not hold two tensors";
    return refusal_of_rnn(keys, input, hx, params);
  }
  static std::tuple<Tensor, Tensor, Tensor> with_autograd(c10::DispatchKeySet, const Tensor& input,
                                                          TensorList hx, TensorList params,
                                                          bool has_biases, int64_t num_layers,
                                                          double dropout, bool train,
                                                          bool bidirectional, bool batch_first) {
    return lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                batch_first, false, false, {});
  }
};

struct AtenLstmPacked {
  static constexpr const char* kOp = "lstm";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& data,
                                            const Tensor& batch_sizes, TensorList hx,
                                            TensorList params, bool, int64_t, double, bool, bool) {
    if (hx.size() != 2) return "hx does not hold two tensors";
    return refusal_of_packed(keys, data, batch_sizes, hx, params);
  }
  static std::tuple<Tensor, Tensor, Tensor> with_autograd(c10::DispatchKeySet, const Tensor& data,
                                                          const Tensor& batch_sizes, TensorList hx,
                                                          TensorList params, bool has_biases,
                                                          int64_t num_layers, double dropout,
                                                          bool train, bool bidirectional) {
    return lstm_packed(data, numbers_of(batch_sizes), hx, params, has_biases, num_layers, dropout,
                       train, bidirectional, false, false, {});
  }
};

template <RnnCell cell>
struct AtenRnn {
  static constexpr const char* kOp = kNames[static_cast<int>(cell)];

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            const Tensor& hx, TensorList params, bool, int64_t,
                                            double, bool, bool, bool) {
    return refusal_of_rnn(keys, input, hx, params);
  }
  static std::tuple<Tensor, Tensor> with_autograd(c10::DispatchKeySet, const Tensor& input,
                                                  const Tensor& hx, TensorList params,
                                                  bool has_biases, int64_t num_layers,
                                                  double dropout, bool train, bool bidirectional,
                                                  bool batch_first) {
    return plain<cell>(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                       batch_first, false, false, {});
  }
};

template <RnnCell cell>
struct AtenRnnPacked {
  static constexpr const char* kOp = kNames[static_cast<int>(cell)];

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& data,
                                            const Tensor& batch_sizes, const Tensor& hx,
                                            TensorList params, bool, int64_t, double, bool, bool) {
    return refusal_of_packed(keys, data, batch_sizes, hx, params);
  }
  static std::tuple<Tensor, Tensor> with_autograd(c10::DispatchKeySet, const Tensor& data,
                                                  const Tensor& batch_sizes, const Tensor& hx,
                                                  TensorList params, bool has_biases,
                                                  int64_t num_layers, double dropout, bool train,
                                                  bool bidirectional) {
    return plain_packed<cell>(data, numbers_of(batch_sizes), hx, params, has_biases, num_layers,
                              dropout, train, bidirectional, false, false, {});
  }
};

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Two = std::tuple<Tensor, Tensor>;
const RegisterOverrideOfComposite<AtenLstm, Three(const Tensor&, TensorList, TensorList, bool,
                                                  int64_t, double, bool, bool, bool)>
    lstm_overridden("lstm.input");
const RegisterOverrideOfComposite<AtenLstmPacked,
                                  Three(const Tensor&, const Tensor&, TensorList, TensorList, bool,
                                        int64_t, double, bool, bool)>
    lstm_packed_overridden("lstm.data");

template <RnnCell cell>
struct RegisterCell {
  const RegisterOverrideOfComposite<AtenRnn<cell>, Two(const Tensor&, const Tensor&, TensorList,
                                                       bool, int64_t, double, bool, bool, bool)>
      input{c10::str(kNames[static_cast<int>(cell)], ".input").c_str()};
  const RegisterOverrideOfComposite<AtenRnnPacked<cell>,
                                    Two(const Tensor&, const Tensor&, const Tensor&, TensorList,
                                        bool, int64_t, double, bool, bool)>
      packed{c10::str(kNames[static_cast<int>(cell)], ".data").c_str()};
};
const RegisterCell<RnnCell::gru> gru_overridden;
const RegisterCell<RnnCell::tanh> tanh_overridden;
const RegisterCell<RnnCell::relu> relu_overridden;

// --- what the core must know

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
  // PyTorch's own is made of products of matrices where cuDNN is off.
  std::optional<at::Float32Op> float32_op() const override {
    return at::globalContext().userEnabledCuDNN() ? at::Float32Op::RNN : at::Float32Op::MATMUL;
  }
  bool has_math_types() const override { return true; }
  bool is_random(const RnnProblem& p) const override { return p.dropout > 0; }
  bool has_one_choice() const override { return true; }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_RNN_ALGO_STANDARD", "standard", nullptr},
            {1, "CUDNN_RNN_ALGO_PERSIST_STATIC", "persist_static", nullptr},
            {2, "CUDNN_RNN_ALGO_PERSIST_DYNAMIC", "persist_dynamic", nullptr},
            {3, "CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H", "persist_static_small_h", nullptr}};
  }

  // Inputs of the forward come first in both passes, so that scratch draws the same for both.
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

  // None with dropout: every algorithm has masks of its own.
  Bindings reference(const RnnProblem& p, const Bindings& b) const override {
    Bindings out;
    if (p.dropout > 0) return out;
    auto wide = [&](Role role) { return b[role].defined() ? b[role].to(at::kDouble) : Tensor(); };
    std::vector<int64_t> lengths = rnn_batch_sizes(p, b[Role::batch_sizes]);
    int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    auto used = [&](Role role) {
      return wide(role).reshape({-1, b[role].size(-1)}).narrow(0, 0, rows);
    };
    // Rows behind the last sequence's end are zero.
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
      c10::NoGradGuard once;  // the formula's own recording aside
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
    constexpr double kOneGradient = 0.1;  // that is turned on or off, beside the others
    bool kinked = p.cell == RnnCell::relu && p.pass == Pass::bwd && p.x.dtype != at::kDouble;
    return kinked ? std::max(rounded, kOneGradient) : rounded;
  }

  // PyTorch itself, which knows where cuDNN's persistent kernels are good; without it, much the
  // same rule. The first math type may use TF32, and is passed over where that is not allowed. What
  // PyTorch computes wrongly comes last.
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
    if (p.x.dtype == at::kHalf && p.meets_small_h_defect()) {
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
    return order;
  }
};

const RegisterOperator<RnnOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("_rnn", TORCH_FN(forward));
  m.impl("_rnn_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("_rnn", TORCH_FN(forward_meta));
  m.impl("_rnn_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("_rnn", TORCH_FN(forward_autograd));
  m.impl("_rnn_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("_rnn", TORCH_FN(forward_autocast<at::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("_rnn", TORCH_FN(forward_autocast<at::kCUDA>));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  m.impl("lstm", TORCH_FN(lstm));
  m.impl("lstm_packed", TORCH_FN(lstm_packed));
  m.impl("gru", TORCH_FN(plain<RnnCell::gru>));
  m.impl("gru_packed", TORCH_FN(plain_packed<RnnCell::gru>));
  m.impl("rnn_tanh", TORCH_FN(plain<RnnCell::tanh>));
  m.impl("rnn_tanh_packed", TORCH_FN(plain_packed<RnnCell::tanh>));
  m.impl("rnn_relu", TORCH_FN(plain<RnnCell::relu>));
  m.impl("rnn_relu_packed", TORCH_FN(plain_packed<RnnCell::relu>));
}

}  // namespace rnn
}  // namespace torch_cudnn_ext
