// What the files of the activation operators share: kernels, and the functions as formulas.
#pragma once

#include "ops/arguments.h"

namespace torch_cudnn_ext::activation {

Tensor forward(const Tensor& input, std::string_view kind, double coefficient,
               OptionalPolicy policy);
void forward_inplace(Tensor& input, std::string_view kind, double coefficient,
                     OptionalPolicy policy);
Tensor backward(const Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                std::string_view kind, double coefficient, OptionalPolicy policy);
void backward_inplace(Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                      std::string_view kind, double coefficient, OptionalPolicy policy);

// A valid problem of one element with the dtype of `t`. Raises if an argument is wrong.
ActivationProblem problem_of(const char* op, const Tensor& t, std::string_view kind,
                             double coefficient, Pass pass = Pass::fwd, bool from_output = false);

// y from x, and dx from x, or from y if x is undefined, in ATen operators.
Tensor forward_formula(const ActivationProblem& p, const Tensor& x);
Tensor backward_formula(const ActivationProblem& p, const Tensor& dy, const Tensor& x,
                        const Tensor& y);

}  // namespace torch_cudnn_ext::activation
