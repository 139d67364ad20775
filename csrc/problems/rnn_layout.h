// The tensors of a recurrent network: their sizes, and the places of its parameters in the tensor
// w, which holds them all. w begins with all matrices, by layer and direction, and ends with all
// biases. cuDNN needs this order, and torch.nn.RNN.flatten_parameters makes it on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "problems/rnn.h"

namespace torch_cudnn_ext {

struct RnnParameter {
  enum class Kind : uint8_t {
    input_matrix,
    recurrent_matrix,
    input_bias,
    recurrent_bias,
    projection
  };
  Kind kind;
  int64_t layer;          // a bidirectional layer counts as two
  int64_t rows, columns;  // 0 columns: a vector
  int64_t offset = 0;     // in w, in elements

  int64_t numel() const { return columns > 0 ? rows * columns : rows; }
};

// In PyTorch's order.
std::vector<RnnParameter> rnn_parameters(const RnnProblem& p);

TensorSpec rnn_x(const RnnProblem& p);
TensorSpec rnn_y(const RnnProblem& p);
TensorSpec rnn_h(const RnnProblem& p);  // hidden states before the first step or after the last
TensorSpec rnn_c(const RnnProblem& p);  // cell states
TensorSpec rnn_w(const RnnProblem& p);

// Views of w, in PyTorch's order.
std::vector<at::Tensor> rnn_views(const std::vector<RnnParameter>& parameters, const at::Tensor& w);

// The tensor that holds the parameters in this order: the one that they already are views of, else
// a new one.
at::Tensor rnn_flatten(const std::vector<RnnParameter>& parameters,
                       const std::vector<at::Tensor>& tensors);

// The parameters of one layer in one direction; undefined if it has none of a kind.
struct RnnCellParameters {
  at::Tensor w_ih, w_hh, b_ih, b_hh, w_hr;
};
std::vector<RnnCellParameters> rnn_cells(const std::vector<RnnParameter>& parameters,
                                         const std::vector<at::Tensor>& tensors);

// The rows of a packed batch, from its number of sequences at each time step. Throws ValueError
// unless these numbers are positive, do not grow, and have a sum. `op` begins the message.
int64_t rnn_rows(std::string_view op, c10::IntArrayRef batch_sizes);
// The number of sequences at each time step. Plans index by these numbers, so it throws ValueError
// unless the tensor `batch_sizes` is in host memory and fits the problem.
std::vector<int64_t> rnn_batch_sizes(const RnnProblem& p, const at::Tensor& batch_sizes);

}  // namespace torch_cudnn_ext
