// What the files of the dropout operators share: arguments.
#pragma once

#include <tuple>

#include "ops/arguments.h"

namespace torch_cudnn_ext::dropout {

struct ForwardArgs {
  static constexpr const char* kName = "dropout";
  using Result = Tensor;
  const Tensor& input;
  double p;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, p, policy); }
};

// The result, the reserve for the backward, and its writer.
struct TrainArgs : ForwardArgs {
  static constexpr const char* kName = "_dropout";
  using Result = std::tuple<Tensor, Tensor, Tensor>;
};

// `stride` holds the strides of the forward's result, in whose order the reserve is.
struct BackwardArgs {
  static constexpr const char* kName = "dropout_backward";
  using Result = Tensor;
  const Tensor &grad_output, &reserve;
  const OptionalTensor& writer;
  double p;
  SymIntArrayRef stride;
  OptionalPolicy policy;

  auto tied() const { return std::tie(grad_output, reserve, writer, p, stride, policy); }
};

}  // namespace torch_cudnn_ext::dropout
