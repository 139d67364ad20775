// The tensors of a recurrent network: their sizes, and where its parameters lie in the one tensor w
// that holds them all. First come all matrices, layer by layer and direction by direction, then all
// biases: torch.nn.RNN.flatten_parameters lays them so on a GPU, as cuDNN wants them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "problems/problem.h"

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
  int64_t layer;          // a layer that runs both ways counts twice
  int64_t rows, columns;  // 0 columns: a vector
  int64_t offset = 0;     // in w, in elements

  int64_t numel() const { return columns > 0 ? rows * columns : rows; }
};

// In PyTorch's order.
std::vector<RnnParameter> rnn_parameters(const RnnProblem& p);

TensorSpec rnn_x(const RnnProblem& p);
TensorSpec rnn_y(const RnnProblem& p);
TensorSpec rnn_h(const RnnProblem& p);  // hidden states at either end
TensorSpec rnn_c(const RnnProblem& p);  // cell states
TensorSpec rnn_w(const RnnProblem& p);

// Views of w, in PyTorch's order.
std::vector<at::Tensor> rnn_views(const std::vector<RnnParameter>& parameters, const at::Tensor& w);

// The tensor that holds the parameters side by side: the one that they are already views of, where
// there is one, else a new one.
at::Tensor rnn_flatten(const std::vector<RnnParameter>& parameters,
                       const std::vector<at::Tensor>& tensors);

// The parameters of one layer in one direction; undefined where it has none of a kind.
struct RnnCellParameters {
  at::Tensor w_ih, w_hh, b_ih, b_hh, w_hr;
};
std::vector<RnnCellParameters> rnn_cells(const std::vector<RnnParameter>& parameters,
                                         const std::vector<at::Tensor>& tensors);

// Rows of packed sequences in all, of the number of sequences in each time step. Throws ValueError
// unless these are positive, do not grow, and have a sum. `op` begins the message.
int64_t rnn_rows(std::string_view op, c10::IntArrayRef batch_sizes);
// How many sequences take part in each time step. Throws ValueError unless what is bound as
// `batch_sizes` is in host memory and of this problem: plans index by these numbers.
std::vector<int64_t> rnn_batch_sizes(const RnnProblem& p, const at::Tensor& batch_sizes);

}  // namespace torch_cudnn_ext
