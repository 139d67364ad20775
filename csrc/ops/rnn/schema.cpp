// The schemas of recurrent networks. Arguments are in the order of torch._VF; without hx the states
// begin at zero. The inner operators also return and take the reserve and its writer; `cell` and
// `bias` are numbers of RnnCell and RnnBias.
#include "ops/schema.h"

namespace torch_cudnn_ext {
namespace {

const std::string kOptions =
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool "
    "bidirectional";
const std::string kOwnOptions =
    "*, bool skip_input=False, bool single_bias=False, str? policy=None";

// Its results are drawn from a random generator if there is dropout.
const std::vector<std::string> kForward = {
    "_rnn(Tensor input, int[] batch_sizes, Tensor? hx, Tensor? cx, Tensor[] params, int cell, int "
    "bias, int num_layers, float dropout, bool bidirectional, bool skip_input, bool for_backward, "
    "*, str? policy=None) -> (Tensor output, Tensor hy, Tensor cy, Tensor reserve, Tensor writer)"};
const std::vector<std::string> kBackward = {
    "_rnn_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, int[] "
    "batch_sizes, Tensor? hx, Tensor? cx, Tensor[] params, Tensor output, Tensor reserve, Tensor? "
    "writer, int cell, int bias, int num_layers, float dropout, bool bidirectional, bool "
    "skip_input, *, str? policy=None) -> (Tensor, Tensor, Tensor, Tensor)"};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define(m, kForward, random_tags());
  define(m, kBackward);
  for (const std::string name : {"lstm", "gru", "rnn_tanh", "rnn_relu"}) {
    bool is_lstm = name == "lstm";
    std::string hx = is_lstm ? "Tensor[] hx" : "Tensor? hx";
    std::string results = is_lstm ? "(Tensor, Tensor, Tensor)" : "(Tensor, Tensor)";
    define(m, {name + "(Tensor input, " + hx + ", " + kOptions + ", bool batch_first, " +
                   kOwnOptions + ") -> " + results,
               name + "_packed(Tensor data, int[] batch_sizes, " + hx + ", " + kOptions + ", " +
                   kOwnOptions + ") -> " + results});
  }
}

}  // namespace torch_cudnn_ext
