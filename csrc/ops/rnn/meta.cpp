// What is known of a recurrent network without data: whether its arguments are valid, and the sizes
// of its results.
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include "core/writer.h"
#include "ops/rnn/rnn.h"

namespace torch_cudnn_ext::rnn {

RnnProblem Settings::problem() const {
  RnnProblem p;
  p.cell = cell_kind();
  p.bias = static_cast<RnnBias>(bias);
  p.layers = num_layers;
  p.bidirectional = bidirectional;
  p.skip = skip_input;
  p.dropout = dropout;
  return p;
}

const char* name_of(const Settings& s) {
  constexpr auto kLast = static_cast<int64_t>(std::size(kNames)) - 1;
  TORCH_CHECK_VALUE(s.cell >= 0 && s.cell <= kLast, "torch_cudnn_ext::_rnn: cell is ", s.cell,
                    ", wanted 0 to ", kLast);
  return kNames[s.cell];
}

void Sizes::set(RnnProblem& p, const Tensor& input) const {
  p.hidden = hidden.expect_int();
  p.proj = state == hidden ? 0 : state.expect_int();
  Dims x{steps.expect_int(), batch.expect_int(), input.size(-1)};
  p.x = {input.scalar_type(), x, contiguous_strides(x)};
}

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

Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

namespace {

Tensor hidden_states(const Tensor& input, const Sizes& sizes, const Settings& s) {
  return at::empty_symint({s.num_layers * s.directions(), sizes.batch, sizes.state},
                          input.options());
}
Tensor cell_states(const Tensor& input, const Sizes& sizes, const Settings& s) {
  if (!s.is_lstm()) return nothing(input);
  return at::empty_symint({s.num_layers * s.directions(), sizes.batch, sizes.hidden},
                          input.options());
}

ForwardArgs::Result forward_meta(const ForwardArgs& args) {
  const Settings& s = args.s;
  const Tensor& input = args.in.input;
  const char* op = name_of(s);
  if (has(args.in.hx)) check_device(op, "hx", *args.in.hx, "input", input);
  if (has(args.in.cx)) check_device(op, "cx", *args.in.cx, "input", input);
  for (const Tensor& t : args.in.params) check_device(op, "params", t, "input", input);
  Sizes sizes = sizes_of(input, args.in.batch_sizes, args.in.params, s);
  auto y_sizes = input.sym_sizes().vec();
  y_sizes.back() = sizes.state * s.directions();
  return {at::empty_symint(y_sizes, input.options()), hidden_states(input, sizes, s),
          cell_states(input, sizes, s), no_reserve(input), make_writer(0, input)};
}

BackwardArgs::Result backward_meta(const BackwardArgs& args) {
  const Tensor& input = args.in.input;
  Sizes sizes = sizes_of(input, args.in.batch_sizes, args.in.params, args.s);
  SymInt count = 0;
  for (const Tensor& t : args.in.params) count += t.sym_numel();
  return {at::empty_symint(input.sym_sizes(), input.options()), hidden_states(input, sizes, args.s),
          cell_states(input, sizes, args.s), at::empty_symint({count}, input.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) { register_kernels<forward_meta, backward_meta>(m); }

}  // namespace torch_cudnn_ext::rnn
