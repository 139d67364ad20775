// Dropout on the CPU in two ways, which draw different masks from one seed.
//   threshold  compares a uniform number for each element with p
//   geometric  draws the distances between elements of the rarer kind, dropped or kept, so that
//   small
//              p need few numbers
#include <ATen/ATen.h>

#include <cmath>

#include "backends/cpu/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

// A mask of n elements, each of which is set with probability `share`.
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

constexpr const char* kDropoutNames[] = {"threshold", "geometric"};

BuildResult build_dropout_plan(const DropoutProblem& p, const Algorithm& algorithm) {
  if (p.rng == RandomStream::cudnn) {
    return Unsupported{"the mask must come from cuDNN's generator (rng=cudnn)"};
  }
  bool geometric = algorithm.name == "geometric";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    bool forward = p.pass == Pass::fwd;
    if (!forward) check_reserve("dropout", algorithm, b[Role::reserve], p.x.numel());
    Tensor mask = forward ? mask_of(p, geometric) : b[Role::reserve].view(at::kBool);
    // The mask is scaled, not the tensor: a scaled element may overflow, and would give NaN if
    // dropped.
    Tensor scale = mask.to(p.x.dtype).div_(1 - p.p);
    give(b, forward ? Role::y : Role::dx, p.x, b[forward ? Role::x : Role::dy] * scale);
    if (forward && p.train) b[Role::reserve] = mask.view(at::kByte);
  });
}

const auto dropout_registered =
    cpu::register_named<DropoutProblem, kDropoutNames, build_dropout_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
