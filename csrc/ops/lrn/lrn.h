// What the files of local response and divisive normalisation share: kernels and the formula. Both
// public operators call one inner operator.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "ops/arguments.h"

namespace torch_cudnn_ext::lrn {

using Tensors2 = std::tuple<Tensor, Tensor>;

// All arguments but the tensors.
struct Form {
  std::string kind;
  int64_t size = 0;
  double alpha = 0, beta = 0, k = 0;
  std::string window;
};

// A problem without sizes. Raises if a text is wrong.
LrnProblem make_problem(Pass pass, const Form& form, c10::ScalarType dtype, bool means);

Tensor forward(const Tensor& input, const OptionalTensor& means, std::string_view kind,
               int64_t size, double alpha, double beta, double k, std::string_view window,
               OptionalPolicy policy);
// dx and dmeans, which is empty if there are no means.
Tensors2 backward(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                  const OptionalTensor& means, std::string_view kind, int64_t size, double alpha,
                  double beta, double k, std::string_view window, OptionalPolicy policy);

// y in ATen operators; `means` may be undefined.
Tensor formula(const Tensor& x, const Tensor& means, const LrnProblem& p);
// dx, and dmeans if there are means, by differentiating the formula.
std::vector<Tensor> gradients(const Tensor& dy, const Tensor& x, const Tensor& means,
                              const LrnProblem& p);

}  // namespace torch_cudnn_ext::lrn
