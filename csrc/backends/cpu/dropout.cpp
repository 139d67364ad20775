// Dropout on the CPU in two ways, which draw different masks from one seed.
//   threshold  a uniform number for each element, compared with p
//   geometric  the distances between elements of the rarer kind, dropped or kept: for small p few
//              numbers are drawn
#include <ATen/ATen.h>

#include <cmath>

#include "backends/cpu/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// Which of n elements are of a kind that each is with probability `share`.
Tensor scattered(int64_t n, double share) {
  Tensor mask = at::zeros({n}, at::kBool);
  double expected = static_cast<double>(n) * share;
  auto draws = static_cast<int64_t>(expected + 4 * std::sqrt(expected)) + 8;
  for (int64_t last = -1; last < n - 1;) {
    Tensor distances = at::empty({draws}, at::kDouble).geometric_(share).to(at::kLong);
    Tensor positions = distances.cumsum(0) + last;
    last = positions[draws - 1].item<int64_t>();
    mask.index_fill_(0, positions.masked_select(positions < n), true);
  }
  return mask;
}

Tensor mask_of(const DropoutProblem& p, bool geometric) {
  int64_t n = p.x.numel();
  if (!geometric) return at::rand({n}, at::kFloat) >= p.p;
  return p.p <= 0.5 ? scattered(n, p.p).logical_not_() : scattered(n, 1 - p.p);
}

constexpr const char* kNames[] = {"threshold", "geometric"};

BuildResult build_plan(const DropoutProblem& p, const Algorithm& algorithm) {
  if (p.rng == RandomStream::cudnn) {
    return Unsupported{"the mask is to come from cuDNN's generator (rng=cudnn)"};
  }
  bool geometric = algorithm.name == "geometric";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    bool forward = p.pass == Pass::fwd;
    if (!forward) check_reserve("dropout", algorithm, b[Role::reserve], p.x.numel());
    Tensor mask = forward ? mask_of(p, geometric) : b[Role::reserve].view(at::kBool);
    // Not the tensor is scaled: what is dropped would be NaN where that overflows.
    Tensor scale = mask.to(p.x.dtype).div_(1 - p.p);
    give(b, forward ? Role::y : Role::dx, p.x, b[forward ? Role::x : Role::dy] * scale);
    if (forward && p.train) b[Role::reserve] = mask.view(at::kByte);
  });
}

const auto registered = cpu::register_named<DropoutProblem, kNames, build_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
