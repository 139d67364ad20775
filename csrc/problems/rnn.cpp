// Recurrent networks: the canonical form of a problem, and what makes it valid.
#include <algorithm>

#include "problems/checks.h"

namespace torch_cudnn_ext {

void RnnProblem::canonicalise() {
  canonicalise_strides({&x});
  if (layers == 1) dropout = 0;
}

void RnnProblem::validate() const {
  check_sizes("rnn", "x", x, 3, 3);
  check_contiguous("rnn", "x", x);
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

}  // namespace torch_cudnn_ext
