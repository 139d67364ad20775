// What the files of local response and divisive normalisation share: arguments and the formula. The
// two public operators call an inner one.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "ops/arguments.h"

namespace torch_cudnn_ext::lrn {

// The function that is computed. `Text` is std::string in what outlives the call.
template <class Text>
struct Form {
  Text kind;
  int64_t size = 0;
  double alpha = 0, beta = 0, k = 0;
  Text window;
};
using FormArgs = Form<std::string_view>;

struct LrnArgs {
  static constexpr const char* kName = "_lrn";
  using Result = Tensor;
  const Tensor& input;
  const OptionalTensor& means;
  FormArgs form;
  OptionalPolicy policy;

  auto tied() const {
    const FormArgs& f = form;
    return std::tie(input, means, f.kind, f.size, f.alpha, f.beta, f.k, f.window, policy);
  }
};

// dx and dmeans, which is empty if there are no means.
struct BackwardArgs {
  static constexpr const char* kName = "_lrn_backward";
  using Result = std::tuple<Tensor, Tensor>;
  const Tensor &grad_output, &input, &output;
  const OptionalTensor& means;
  FormArgs form;
  OptionalPolicy policy;

  auto tied() const {
    const FormArgs& f = form;
    return std::tie(grad_output, input, output, means, f.kind, f.size, f.alpha, f.beta, f.k,
                    f.window, policy);
  }
};

// A problem without sizes. Raises if a text is wrong.
LrnProblem make_problem(Pass pass, const FormArgs& form, c10::ScalarType dtype, bool means);

// dx, and dmeans if there are means, by differentiating the formula of y.
std::vector<Tensor> gradients(const Tensor& dy, const Tensor& x, const Tensor& means,
                              const LrnProblem& p);

}  // namespace torch_cudnn_ext::lrn
