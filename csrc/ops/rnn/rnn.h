// What the parts of recurrent networks share: the inner operators' arguments, the sizes of calls,
// and the formula. Knows no algorithm.
#pragma once

#include <c10/core/SymInt.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/call.h"
#include "problems/rnn_layout.h"

namespace torch_cudnn_ext::rnn {

using at::IntArrayRef;
using at::TensorList;

constexpr const char* kNames[] = {"rnn_relu", "rnn_tanh", "lstm", "gru"};  // by cell

// What goes with every call in addition to tensors; as in PyTorch's _cudnn_rnn.
struct Settings {
  int64_t cell = 0, bias = 0, num_layers = 0;
  double dropout = 0;
  bool bidirectional = false, skip_input = false;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  RnnCell cell_kind() const { return static_cast<RnnCell>(cell); }
  bool is_lstm() const { return cell_kind() == RnnCell::lstm; }
  RnnProblem problem() const;  // without sizes

  auto tied() const { return std::tie(cell, bias, num_layers, dropout, bidirectional, skip_input); }
  auto attributes() { return std::tie(cell, bias, num_layers, dropout, bidirectional, skip_input); }
};

// Without batch_sizes the input is [time, batch, features]; with them it holds the steps of all
// sequences. Without hx and cx the states begin at zero.
struct Inputs {
  const Tensor& input;
  IntArrayRef batch_sizes;
  const OptionalTensor &hx, &cx;
  TensorList params;

  auto tied() const { return std::tie(input, batch_sizes, hx, cx, params); }
};

// The output, hy, cy (empty except for LSTM), the reserve and its writer. The last two hold nothing
// unless they are for a backward.
struct ForwardArgs {
  static constexpr const char* kName = "_rnn";
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
  Inputs in;
  Settings s;
  bool for_backward;
  OptionalPolicy policy;

  auto tied() const { return std::tuple_cat(in.tied(), s.tied(), std::tie(for_backward, policy)); }
};

// Gradients of input, hx, cx (empty except for LSTM) and of the parameters side by side. The
// reserve may be overwritten.
struct BackwardArgs {
  static constexpr const char* kName = "_rnn_backward";
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor>;
  const OptionalTensor &grad_output, &grad_hy, &grad_cy;
  Inputs in;
  const Tensor &output, &reserve;
  const OptionalTensor& writer;
  Settings s;
  OptionalPolicy policy;

  auto tied() const {
    return std::tuple_cat(std::tie(grad_output, grad_hy, grad_cy), in.tied(),
                          std::tie(output, reserve, writer), s.tied(), std::tie(policy));
  }
};

// The operator's name, for messages. Raises if there is no such cell: the first check of every
// call.
const char* name_of(const Settings& s);

// The parts of all sizes, with symbols if a graph is traced.
struct Sizes {
  SymInt rows;  // steps of all sequences together
  SymInt steps, batch, hidden, state;
  bool packed = false;

  void set(RnnProblem& p, const Tensor& input) const;
};
// Raises ValueError unless the input and the parameters fit each other.
Sizes sizes_of(const Tensor& input, IntArrayRef batch_sizes, TensorList params, const Settings& s);

// A result that this kind of cell does not have.
Tensor nothing(const Tensor& like);

// --- the formula, in operators that autograd knows how to differentiate any number of times

// y, hy and cy of x, which is [steps of all sequences, input], without dropout.
std::vector<Tensor> formula(const RnnProblem& p, const std::vector<int64_t>& batch_sizes,
                            const Tensor& x, const Tensor& hx, const Tensor& cx,
                            const std::vector<RnnCellParameters>& cells);
// Gradients of `point`, which is x, hx, cx and the parameters; those of the parameters are one, as
// w. They can be differentiated again if gradients are recorded.
std::vector<Tensor> backward_formula(const RnnProblem& p, const std::vector<int64_t>& batch_sizes,
                                     std::vector<Tensor> point, const std::vector<Tensor>& grads);
// Matrices before vectors, as w has them.
std::vector<Tensor> in_order_of_w(const std::vector<Tensor>& params);

}  // namespace torch_cudnn_ext::rnn
