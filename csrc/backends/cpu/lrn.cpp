// Local response and divisive normalisation on the CPU in two ways, in float32 at least. They
// differ in the sums over windows.
//   shifted  one addition for each element of the window, a dimension after the other
//   prefix   differences of running sums, with the same steps for any window; in float64, since the
//            differences cancel most digits
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// Zeros before and after, along one dimension.
Tensor padded(const Tensor& t, int64_t dim, int64_t before, int64_t after) {
  std::vector<int64_t> padding(2 * (t.dim() - dim), 0);
  padding[padding.size() - 2] = before;
  padding[padding.size() - 1] = after;
  return at::constant_pad_nd(t, padding);
}

Tensor shifted_sums(const Tensor& t, int64_t dim, int64_t before, int64_t after) {
  Tensor wide = padded(t, dim, before, after);
  Tensor sums = wide.narrow(dim, 0, t.size(dim)).clone();
  for (int64_t i = 1; i <= before + after; ++i) sums.add_(wide.narrow(dim, i, t.size(dim)));
  return sums;
}

Tensor prefix_sums(const Tensor& t, int64_t dim, int64_t before, int64_t after) {
  Tensor running = padded(t.to(at::kDouble), dim, before + 1, after).cumsum(dim);
  int64_t n = t.size(dim);
  return (running.narrow(dim, before + after + 1, n) - running.narrow(dim, 0, n))
      .to(t.scalar_type());
}

Tensor window_means(const Tensor& t, const LrnProblem& p, int64_t before, int64_t after,
                    bool prefix) {
  Tensor sums = t;
  for (int dim = p.first_dim(); dim < p.end_dim(); ++dim) {
    sums = prefix ? prefix_sums(sums, dim, before, after) : shifted_sums(sums, dim, before, after);
  }
  return sums.div_(p.elements());
}

void run(const LrnProblem& p, Bindings& b, bool prefix) {
  auto compute = compute_dtype(p.x.dtype);
  Tensor x = b[Role::x].to(compute);
  Tensor centred = p.means ? x - b[Role::z].to(compute) : x;
  Tensor scale = window_means(centred.square(), p, p.before(), p.after(), prefix);
  scale = scale.mul_(p.alpha).add_(p.k);
  if (p.pass == Pass::fwd) {
    give(b, Role::y, p.x, (x * scale.pow(-p.beta)).to(p.x.dtype));
    return;
  }
  // The elements whose windows hold a given one form a window with the two counts swapped.
  Tensor direct = b[Role::dy].to(compute) * scale.pow(-p.beta);
  Tensor through = window_means(direct * x / scale, p, p.after(), p.before(), prefix);
  through = through.mul_(centred).mul_(-2 * p.alpha * p.beta);
  give(b, Role::dx, p.x, (direct + through).to(p.x.dtype));
  if (p.means) give(b, Role::dz, p.x, (-through).to(p.x.dtype));
}

constexpr const char* kLrnNames[] = {"shifted", "prefix"};

BuildResult build_lrn_plan(const LrnProblem& p, const Algorithm& algorithm) {
  bool prefix = algorithm.name == "prefix";
  // One infinity or NaN makes all later running sums infinite or NaN.
  Notes notes;
  if (prefix) notes.add(Note::reduced_range);
  return make_plan(algorithm, notes, [=](Bindings& b) { run(p, b, prefix); });
}

const auto lrn_registered = cpu::register_named<LrnProblem, kLrnNames, build_lrn_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
