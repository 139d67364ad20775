// What the files of the activation operators share: arguments, kernels, and the functions as
// formulas.
#pragma once

#include <tuple>
#include <type_traits>

#include "ops/arguments.h"

namespace torch_cudnn_ext::activation {

// In place, the first tensor becomes the result.
template <bool inplace>
using FirstTensor = std::conditional_t<inplace, Tensor&, const Tensor&>;
template <bool inplace>
using ResultOf = std::conditional_t<inplace, void, Tensor>;

template <bool inplace>
struct ForwardArgs {
  static constexpr const char* kName = inplace ? "activation_" : "activation";
  using Result = ResultOf<inplace>;
  FirstTensor<inplace> input;
  std::string_view kind;
  double coefficient;
  OptionalPolicy policy;

  auto tied() const { return std::tie(input, kind, coefficient, policy); }
};

template <bool inplace>
struct BackwardArgs {
  static constexpr const char* kName = inplace ? "activation_backward_" : "activation_backward";
  using Result = ResultOf<inplace>;
  FirstTensor<inplace> grad_output;
  const OptionalTensor& input;
  const Tensor& output;
  std::string_view kind;
  double coefficient;
  OptionalPolicy policy;

  auto tied() const { return std::tie(grad_output, input, output, kind, coefficient, policy); }
};

// A valid problem of one element with the dtype of `t`. Raises if an argument is wrong.
ActivationProblem problem_of(const char* op, const Tensor& t, std::string_view kind,
                             double coefficient, Pass pass = Pass::fwd, bool from_output = false);

// y from x, and dx from x, or from y if x is undefined, in ATen operators.
Tensor forward_formula(const ActivationProblem& p, const Tensor& x);
Tensor backward_formula(const ActivationProblem& p, const Tensor& dy, const Tensor& x,
                        const Tensor& y);

}  // namespace torch_cudnn_ext::activation
