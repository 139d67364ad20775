// Local response normalisation as PyTorch computes it: average pooling of padded squares, then
// elementwise steps in the data's type. Divisive normalisation, which PyTorch does not have, takes
// the same steps in float32 at least.
#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

// Means over windows with this many elements before and after their middle.
Tensor window_means(const Tensor& t, const LrnProblem& p, int64_t before, int64_t after) {
  if (p.kind == LrnKind::cross_channel) {
    Tensor padded = at::constant_pad_nd(t.unsqueeze(1), {0, 0, before, after});
    return at::avg_pool2d(padded, {p.size, 1}, {1, 1}).squeeze(1);
  }
  int dims = p.end_dim() - p.first_dim();
  std::vector<int64_t> padding, window(dims, p.size), stride(dims, 1);
  for (int i = 0; i < dims; ++i) padding.insert(padding.end(), {before, after});
  Tensor padded = at::constant_pad_nd(t, padding);
  return dims == 2 ? at::avg_pool2d(padded, window, stride)
                   : at::avg_pool3d(padded, window, stride);
}

BuildResult build_lrn_plan(const LrnProblem& p, const Algorithm& algorithm, const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  return make_plan(algorithm, {}, [p](Bindings& b) {
    bool widen = p.kind == LrnKind::divisive && p.x.dtype != at::kDouble;
    auto in = [&](Role role) { return widen ? b[role].to(at::kFloat) : b[role]; };
    Tensor x = in(Role::x);
    Tensor centred = p.means ? x - in(Role::z) : x;
    Tensor scale = at::add(at::scalar_tensor(p.k, at::kDouble),
                           window_means(centred.square(), p, p.before(), p.after()), p.alpha);
    if (p.pass == Pass::fwd) {
      give(b, Role::y, p.x, x / scale.pow(p.beta));
      return;
    }
    // The elements whose windows hold a given one form a window with the two counts swapped.
    Tensor direct = in(Role::dy) / scale.pow(p.beta);
    Tensor through = window_means((direct * x).div_(scale), p, p.after(), p.before());
    double factor = -2 * p.alpha * p.beta;
    give(b, Role::dx, p.x, at::addcmul(direct, centred, through, factor));
    if (p.means) give(b, Role::dz, p.x, through.mul_(centred).mul_(-factor));
  });
}

const RegisterBackendOperator<LrnProblem> lrn_registered("aten", candidates<LrnProblem>,
                                                         build_lrn_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
