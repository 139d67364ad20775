// What the core must know of softmax and log-softmax.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/arguments.h"

namespace torch_cudnn_ext::softmax {
namespace {

class SoftmaxOperator : public OperatorOf<SoftmaxProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnSoftmaxForward, cudnnSoftmaxBackward",
            "contiguous; any dimension",
            "fast needs allow_reduced_range; log-softmax: accurate alone",
            {"softmax_fwd x=f16[32,64,3136]:nchw"}};
  }

  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_SOFTMAX_FAST", "fast", nullptr},
            {1, "CUDNN_SOFTMAX_ACCURATE", "accurate", nullptr}};
  }

  std::vector<SlotSpec> slots(const SoftmaxProblem& p) const override {
    if (p.pass == Pass::fwd) return {{Role::x, p.x, false}, {Role::y, p.x, true}};
    return {{Role::y, p.x, false}, {Role::dy, p.x, false}, {Role::dx, p.x, true}};
  }

  Cost cost(const SoftmaxProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    auto bytes = static_cast<double>(p.x.nbytes());
    bool forward = p.pass == Pass::fwd;
    // Maximum, difference, exponential, sum, quotient; product, sum, difference, product.
    return {(forward ? 5 : 4) * elements, (forward ? 2 : 3) * bytes,
            static_cast<double>(p.x.sizes[1])};
  }

  // A gradient is taken at an output that the forward computes.
  void prepare_scratch(const SoftmaxProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    Tensor y = bindings[Role::y].to(at::kFloat);
    bindings[Role::y].copy_(p.log ? y.log_softmax(1) : y.softmax(1));
  }

  Bindings reference(const SoftmaxProblem& p, const Bindings& bindings) const override {
    Bindings out;
    if (p.pass == Pass::fwd) {
      Tensor x = bindings[Role::x].to(at::kDouble);
      out[Role::y] = p.log ? x.log_softmax(1) : x.softmax(1);
      return out;
    }
    Tensor y = bindings[Role::y].to(at::kDouble), dy = bindings[Role::dy].to(at::kDouble);
    out[Role::dx] = p.log ? dy - y.exp() * dy.sum(1, true) : y * (dy - (dy * y).sum(1, true));
    return out;
  }

  // Rounding of the exponential and the quotient, and of a sum in float32 at least.
  double tolerance(const SoftmaxProblem& p, const Notes&) const override {
    double terms = std::sqrt(cost(p).reduction_length);
    return 4 * epsilon_of(p.x.dtype) + 4 * epsilon_of(compute_dtype(p.x.dtype)) * terms;
  }

  // PyTorch's own kernel is best at rows in memory order, except for the gradient of softmax, whose
  // product it rounds and stores first: cuDNN took 0.55 to 0.76 of its time for rows of 10 to 1024
  // on an H200, and 4 times as long for 50257. For sums across channels cuDNN has a thread or a
  // warp a pixel, which are few if images are small. Over 826 problems of 1 to 64 images, 2 to 4096
  // pixels and 2 to 8192 channels, the first of this order took 1.05 times what the fastest took on
  // an H100 (geometric mean).
  std::vector<std::string> heuristic_order(const SoftmaxProblem& p) const override {
    int64_t channels = p.x.sizes[1], pixels = p.x.sizes[2];
    bool rows = pixels == 1, few = pixels < 32, many_channels = channels >= 64;
    bool cudnn = rows ? p.pass == Pass::bwd && !p.log && channels <= 1024 : !few || !many_channels;
    std::vector<std::string> order{"aten", "legacy:accurate"};
    if (cudnn) std::swap(order[0], order[1]);
    bool copies =
        few ? pixels >= 16 && channels >= 1024
            : many_channels && p.x.sizes[0] * pixels <= 64 * std::min<int64_t>(channels, 256);
    if (copies) order.insert(order.begin(), "aten:transposed");
    return order;
  }
};

const RegisterOperator<SoftmaxOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::softmax
