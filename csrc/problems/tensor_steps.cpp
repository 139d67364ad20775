#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {

at::Tensor flip_for_mode(const ConvolutionProblem& p, const at::Tensor& w) {
  if (p.mode == ConvolutionMode::cross) return w;
  Dims axes;
  for (int i = 2; i < p.w.sizes.size(); ++i) axes.push_back(i);
  return w.flip(axes);
}

void add_bias(at::Tensor& result, const at::Tensor& bias) {
  Dims shape(static_cast<int>(result.dim()), 1);
  shape[1] = bias.size(0);
  result.add_(bias.view(shape));
}

at::Tensor reduced_rows(const ReduceProblem& p, const at::Tensor& x) {
  return x.permute(p.rows_order()).reshape({-1, p.reduced_count()});
}

}  // namespace torch_cudnn_ext
