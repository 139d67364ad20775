// PyTorch's own batch normalisation: cuDNN's kernels or its native ones, whichever it takes.

#include "backends/aten/plan.h"
#include "core/operator.h"
#include "core/tensors.h"
#include "torch/internals.h"

namespace torch_cudnn_ext::aten {
namespace {

// PyTorch recognises layouts by four dimensions, and data without space by two.
Tensor as_image(const Tensor& t) {
  if (t.size(2) == 1) return without_unit_dim(t, 2);
  // This stride marks channels_last, though the dimension has one element.
  int64_t last = t.stride(1) == 1 ? t.size(1) : 1;
  return strided_view(t, {t.size(0), t.size(1), t.size(2), 1},
                      {t.stride(0), t.stride(1), t.stride(2), last});
}
Tensor as_rows(const Tensor& t) {
  return t.dim() == 2 ? with_unit_dim(t, 2) : without_unit_dim(t, 3);
}

void batch_norm_forward(const BatchNormProblem& p, Bindings& b) {
  bool training = p.pass == BatchNormPass::fwd;
  auto [y, mean, invstd, reserve, implementation] = at::_batch_norm_impl_index(
      as_image(b[Role::x]), b[Role::w], b[Role::bias], b[Role::running_mean], b[Role::running_var],
      training, b.momentum, b.epsilon, at::globalContext().userEnabledCuDNN());
  if (p.z) y.add_(as_image(b[Role::z]));
  if (p.activation == Activation::relu) y.relu_();
  give(b, Role::y, p.x, as_rows(y));
  if (!training) return;
  give(b, Role::mean, p.statistic(), mean);
  give(b, Role::invstd, p.statistic(), invstd);
  b[Role::reserve] = reserve;
}

// The kernels that PyTorch takes for training. cuDNN's for channels_last read a reserve that only
// their own forward leaves: after another algorithm's forward, the native ones run.
int64_t backward_implementation(const Tensor& x, const Bindings& b, const Tensor& reserve) {
  if (!x.is_cuda() || !at::globalContext().userEnabledCuDNN()) return 0;
  auto chosen = pytorch_kernels::_select_batch_norm_backend(x, b[Role::w], b[Role::w], Tensor(),
                                                            Tensor(), true, b.epsilon);
  if (chosen != pytorch_kernels::BatchNormBackend::Cudnn) return 0;
  auto wanted = pytorch_kernels::_get_cudnn_batch_norm_reserve_space_size(x, true);
  return reserve.numel() == static_cast<int64_t>(wanted) ? 1 : 0;
}

void batch_norm_backward(const BatchNormProblem& p, Bindings& b) {
  Tensor x = as_image(b[Role::x]), dy = as_image(b[Role::dy]);
  const Tensor& left = b[Role::reserve];
  Tensor reserve = left.defined() ? left : at::empty({0}, x.options().dtype(at::kByte));
  int64_t implementation = p.train ? backward_implementation(x, b, reserve) : 0;
  // PyTorch's own inference leaves empty statistics of training: it reads the running ones.
  Tensor none = p.train ? Tensor() : at::empty({0}, b[Role::w].options());
  auto [dx, dw, dbias] = at::_batch_norm_impl_index_backward(
      implementation, x, dy, b[Role::w], b[Role::running_mean], b[Role::running_var],
      p.train ? b[Role::mean] : none, p.train ? b[Role::invstd] : none, p.train, b.epsilon,
      {true, true, true}, reserve);
  give(b, Role::dx, p.x, as_rows(dx));
  give(b, Role::dw, p.statistic(), dw);
  give(b, Role::dbias, p.statistic(), dbias);
}

// For running statistics and channels_last on CUDA. PyTorch's own step after the sums is the same
// product, but gives a contiguous result, at several times the cost of a copy. That counts for less
// than the host's time of these operators if there is little to do.
void backward_of_inference(const BatchNormProblem& p, Bindings& b) {
  const Tensor &x = b[Role::x], &dy = b[Role::dy], &w = b[Role::w], &mean = b[Role::running_mean];
  Tensor invstd = (b[Role::running_var] + b.epsilon).rsqrt_();
  auto [sum_dy, sum_dy_xmu, dw, dbias] =
      at::batch_norm_backward_reduce(as_image(dy), as_image(x), mean, invstd, w, false, true, true);
  at::mul_out(output_tensor(b, Role::dx, p.x, x), dy, (w * invstd).unsqueeze(1));
  give(b, Role::dw, p.statistic(), dw);
  give(b, Role::dbias, p.statistic(), dbias);
}

BuildResult build_batch_norm_plan(const BatchNormProblem& p, const Algorithm& algorithm,
                                  const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  bool of_inference =
      !p.train && p.is_channels_last() && device.is_cuda() && !is_short_work(3 * p.x.nbytes());
  return make_plan(algorithm, {}, [p, of_inference](Bindings& b) {
    if (p.pass == BatchNormPass::bwd) {
      of_inference ? backward_of_inference(p, b) : batch_norm_backward(p, b);
    } else {
      batch_norm_forward(p, b);
    }
  });
}

const RegisterBackendOperator<BatchNormProblem> batch_norm_registered("aten",
                                                                      candidates<BatchNormProblem>,
                                                                      build_batch_norm_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
