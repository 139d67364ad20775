#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "problems/problem.h"

namespace torch_cudnn_ext {

// A ceiling is rounded to the data's type, so that the gradient tells an output that reached it
// from one that did not. A gradient that the output determines does not read the input.
void ActivationProblem::canonicalise() {
  if (!has_coefficient()) coefficient = 1;
  if (kind == ActivationKind::clipped_relu && x.dtype != c10::kDouble) {
    auto narrow = static_cast<float>(coefficient);
    if (x.dtype == c10::kHalf) narrow = static_cast<c10::Half>(narrow);
    if (x.dtype == c10::kBFloat16) narrow = static_cast<c10::BFloat16>(narrow);
    if (std::isfinite(narrow) && narrow != 0) coefficient = narrow;
  }
  from_output = pass == Pass::bwd && (from_output || !has_coefficient());
  canonicalise_strides({&x});
}

void ActivationProblem::validate() const {
  check_sizes("activation", "x", x, 1, 1);
  TORCH_CHECK_VALUE(x.strides[0] == 1, "activation: x has the stride ", x.strides[0],
                    ", wanted 1: a dense tensor of any shape is [n]");
  TORCH_CHECK_VALUE(std::isfinite(coefficient), "activation: coefficient is ", coefficient,
                    ", wanted a finite number");
  TORCH_CHECK_VALUE(kind != ActivationKind::clipped_relu || coefficient > 0,
                    "activation: coefficient is ", coefficient,
                    ", wanted a ceiling above 0 for clipped_relu");
  TORCH_CHECK_VALUE(!from_output || kind != ActivationKind::swish,
                    "activation: from_output is true, but the gradient of swish cannot be computed "
                    "from its output");
  TORCH_CHECK_VALUE(!from_output || kind != ActivationKind::elu || coefficient >= 0,
                    "activation: coefficient is ", coefficient,
                    ", wanted an alpha of at least 0 if elu's gradient is computed from y");
  check_alignment("activation", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
