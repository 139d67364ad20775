// Softmax on the CPU in two ways, in float32 at least.
//   three_pass  computes the maximum, then exponentials and their sum, then the quotient
//   online      computes maximum and sum in one pass by blocks, whose sums are rescaled when the
//               maximum grows (Milakov and Gimelshein 2018), then the quotient
#include <ATen/ATen.h>

#include <cmath>

#include "backends/cpu/plan.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

constexpr int64_t kBlock = 128;  // elements of a row that `online` reads at a time

// The maximum over n and sum(exp(x - maximum)), as [outer, 1, inner]. They stay two numbers, since
// a large maximum would round the logarithm of the sum away.
struct Scale {
  Tensor largest, sum;
};

Scale scale_of(const Tensor& x, bool online) {
  // The number to subtract must be finite, also if all values so far are -inf.
  auto finite = [](const Tensor& t) { return t.masked_fill(t == -INFINITY, 0); };
  if (!online) {
    Tensor largest = finite(x.amax(1, true));
    return {largest, (x - largest).exp_().sum(1, true)};
  }
  Tensor largest, sum;
  for (int64_t first = 0; first < x.size(1); first += kBlock) {
    Tensor block = x.narrow(1, first, std::min(kBlock, x.size(1) - first));
    Tensor here = block.amax(1, true);
    if (!largest.defined()) {
      largest = here;
      sum = (block - finite(largest)).exp_().sum(1, true);
      continue;
    }
    Tensor grown = at::maximum(largest, here), from = finite(grown);
    sum = sum * (largest - from).exp_() + (block - from).exp_().sum(1, true);
    largest = grown;
  }
  return {finite(largest), sum};
}

constexpr const char* kSoftmaxNames[] = {"three_pass", "online"};

BuildResult build_softmax_plan(const SoftmaxProblem& p, const Algorithm& algorithm) {
  auto compute = compute_dtype(p.x.dtype);
  bool online = algorithm.name == "online";
  return make_plan(algorithm, {}, [=](Bindings& b) {
    if (p.pass == Pass::fwd) {
      Tensor x = b[Role::x].to(compute);
      Scale scale = scale_of(x, online);
      Tensor y = x - scale.largest;
      p.log ? y.sub_(scale.sum.log_()) : y.exp_().div_(scale.sum);
      give(b, Role::y, p.x, y.to(p.x.dtype));
      return;
    }
    Tensor y = b[Role::y].to(compute), dy = b[Role::dy].to(compute);
    if (p.log) y = y.exp();
    // The two ways differ in the sum: an elementwise product, or one dot product a row.
    Tensor sum;
    if (p.log) {
      sum = dy.sum(1, true);
    } else if (online) {
      sum = at::matmul(dy.transpose(1, 2).unsqueeze(2), y.transpose(1, 2).unsqueeze(3))
                .reshape({p.x.sizes[0], 1, p.x.sizes[2]});
    } else {
      sum = (dy * y).sum(1, true);
    }
    Tensor dx = p.log ? dy - y * sum : y * (dy - sum);
    give(b, Role::dx, p.x, dx.to(p.x.dtype));
  });
}

const auto softmax_registered =
    cpu::register_named<SoftmaxProblem, kSoftmaxNames, build_softmax_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
