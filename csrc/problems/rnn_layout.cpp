#include "problems/rnn_layout.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace torch_cudnn_ext {

namespace {

TensorSpec contiguous(const RnnProblem& p, const Dims& sizes) {
  return {p.x.dtype, sizes, contiguous_strides(sizes)};
}

TensorSpec sequence(const RnnProblem& p, int64_t features) {
  if (p.lengths == RnnLengths::packed) return contiguous(p, {p.steps() * p.batch(), features});
  return contiguous(p, {p.steps(), p.batch(), features});
}

}  // namespace

std::vector<RnnParameter> rnn_parameters(const RnnProblem& p) {
  using Kind = RnnParameter::Kind;
  int64_t rows = p.gates() * p.hidden;
  std::vector<RnnParameter> list;
  for (int64_t layer = 0; layer < p.layers * p.directions(); ++layer) {
    bool first = layer < p.directions();
    int64_t input = first ? p.input() : p.directions() * p.state();
    if (!first || !p.skip) list.push_back({Kind::input_matrix, layer, rows, input});
    list.push_back({Kind::recurrent_matrix, layer, rows, p.state()});
    if (p.bias != RnnBias::none) list.push_back({Kind::input_bias, layer, rows, 0});
    if (p.bias == RnnBias::twice) list.push_back({Kind::recurrent_bias, layer, rows, 0});
    if (p.proj > 0) list.push_back({Kind::projection, layer, p.proj, p.hidden});
  }
  int64_t offset = 0;
  for (bool vectors : {false, true}) {
    for (RnnParameter& parameter : list) {
      if ((parameter.columns == 0) != vectors) continue;
      parameter.offset = offset;
      offset += parameter.numel();
    }
  }
  return list;
}

TensorSpec rnn_x(const RnnProblem& p) { return sequence(p, p.input()); }
TensorSpec rnn_y(const RnnProblem& p) { return sequence(p, p.directions() * p.state()); }
TensorSpec rnn_h(const RnnProblem& p) {
  return contiguous(p, {p.layers * p.directions(), p.batch(), p.state()});
}
TensorSpec rnn_c(const RnnProblem& p) {
  return contiguous(p, {p.layers * p.directions(), p.batch(), p.hidden});
}
TensorSpec rnn_w(const RnnProblem& p) {
  int64_t count = 0;
  for (const RnnParameter& parameter : rnn_parameters(p)) count += parameter.numel();
  return contiguous(p, {count});
}

std::vector<at::Tensor> rnn_views(const std::vector<RnnParameter>& parameters,
                                  const at::Tensor& w) {
  std::vector<at::Tensor> views;
  for (const RnnParameter& parameter : parameters) {
    at::Tensor flat = w.narrow(0, parameter.offset, parameter.numel());
    views.push_back(parameter.columns > 0 ? flat.view({parameter.rows, parameter.columns}) : flat);
  }
  return views;
}

at::Tensor rnn_flatten(const std::vector<RnnParameter>& parameters,
                       const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors[0];  // a matrix, so it is at offset 0
  int64_t count = 0;
  bool is_flat = true;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& t = tensors[i];
    count += t.numel();
    is_flat = is_flat && t.is_contiguous() && t.is_alias_of(first) &&
              t.storage_offset() == first.storage_offset() + parameters[i].offset;
  }
  if (is_flat) return first.as_strided({count}, {1}, first.storage_offset());
  std::vector<at::Tensor> parts;
  for (bool vectors : {false, true}) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if ((parameters[i].columns == 0) == vectors) parts.push_back(tensors[i].reshape({-1}));
    }
  }
  return at::cat(parts);
}

std::vector<RnnCellParameters> rnn_cells(const std::vector<RnnParameter>& parameters,
                                         const std::vector<at::Tensor>& tensors) {
  using Kind = RnnParameter::Kind;
  std::vector<RnnCellParameters> cells(static_cast<size_t>(parameters.back().layer) + 1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    RnnCellParameters& cell = cells[static_cast<size_t>(parameters[i].layer)];
    switch (parameters[i].kind) {
      case Kind::input_matrix:
        cell.w_ih = tensors[i];
        break;
      case Kind::recurrent_matrix:
        cell.w_hh = tensors[i];
        break;
      case Kind::input_bias:
        cell.b_ih = tensors[i];
        break;
      case Kind::recurrent_bias:
        cell.b_hh = tensors[i];
        break;
      case Kind::projection:
        cell.w_hr = tensors[i];
        break;
    }
  }
  return cells;
}

int64_t rnn_rows(std::string_view op, c10::IntArrayRef batch_sizes) {
  int64_t rows = 0;
  for (size_t i = 0; i < batch_sizes.size(); ++i) {
    bool fits = batch_sizes[i] >= 1 && (i == 0 || batch_sizes[i] <= batch_sizes[i - 1]) &&
                !__builtin_add_overflow(rows, batch_sizes[i], &rows);
    TORCH_CHECK_VALUE(fits, op, ": batch_sizes is ", batch_sizes,
                      ", wanted positive numbers that do not grow and have a sum below 2^63");
  }
  return rows;
}

std::vector<int64_t> rnn_batch_sizes(const RnnProblem& p, const at::Tensor& batch_sizes) {
  if (p.lengths == RnnLengths::full) {
    return std::vector<int64_t>(static_cast<size_t>(p.steps()), p.batch());
  }
  bool readable = batch_sizes.defined() && batch_sizes.is_cpu() &&
                  batch_sizes.scalar_type() == at::kLong && batch_sizes.is_contiguous();
  TORCH_CHECK_VALUE(readable, "rnn: batch_sizes is not of contiguous int64 numbers on the CPU");
  c10::IntArrayRef sizes(batch_sizes.const_data_ptr<int64_t>(),
                         static_cast<size_t>(batch_sizes.numel()));
  rnn_rows("rnn", sizes);
  TORCH_CHECK_VALUE(batch_sizes.numel() == p.steps() && sizes[0] == p.batch(),
                    "rnn: batch_sizes is ", sizes, ", wanted ", p.steps(),
                    " numbers, the first of them ", p.batch(), ", as the problem says");
  return sizes.vec();
}

}  // namespace torch_cudnn_ext
