// Matrix products on the CPU in two ways, in float32 at least.
//   blocked  sums products of blocks along k, so that both factors stay in the cache
//   dot      computes each element as one sum of products, by slabs of rows
#include <ATen/ATen.h>

#include "backends/cpu/plan.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

Tensor blocked(const Tensor& x, const Tensor& w) {
  constexpr int64_t kBlock = 64;
  Tensor y;
  for (int64_t first = 0; first < x.size(2); first += kBlock) {
    int64_t length = std::min(kBlock, x.size(2) - first);
    Tensor part = at::matmul(x.narrow(2, first, length), w.narrow(1, first, length));
    y = y.defined() ? y.add_(part) : part;
  }
  return y;
}

Tensor dots(const Tensor& x, const Tensor& w) {
  constexpr int64_t kElements = 1 << 20;                         // products held at once
  Tensor columns = w.transpose(1, 2).contiguous().unsqueeze(1);  // [batch, 1, n, k]
  int64_t batch = std::max(x.size(0), w.size(0));
  int64_t slab = std::max<int64_t>(1, kElements / (batch * w.size(1) * w.size(2)));
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < x.size(1); first += slab) {
    Tensor rows = x.narrow(1, first, std::min(slab, x.size(1) - first)).unsqueeze(2);
    parts.push_back((rows * columns).sum(3));
  }
  return at::cat(parts, 1);
}

constexpr const char* kMatmulNames[] = {"blocked", "dot"};

BuildResult build_matmul_plan(const MatmulProblem& p, const Algorithm& algorithm) {
  bool by_blocks = algorithm.name == "blocked";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    auto input = [&](Role role) { return b[role].to(p.compute); };
    Tensor x = input(Role::x), w = input(Role::w);
    Tensor y = by_blocks ? blocked(x, w) : dots(x, w);
    bool general = p.accumulate == Accumulate::general;
    if (general) y.mul_(b.alpha);
    if (p.z) y.add_(input(Role::z), general ? b.beta : 1);
    if (p.bias) y.add_(input(Role::bias));
    activate(p.activation, y);
    give(b, Role::y, p.output(), y.to(p.x.dtype));
  });
}

const auto matmul_registered =
    cpu::register_named<MatmulProblem, kMatmulNames, build_matmul_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
