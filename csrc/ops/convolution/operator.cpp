// What the core must know of convolution.
#include "core/operator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "core/tensors.h"
#include "ops/arguments.h"
#include "problems/depthwise.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::convolution {
namespace {

constexpr LegacyName kForwardAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM", "implicit_gemm", "none"},
    {1, "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM", "implicit_precomp_gemm", "small"},
    {2, "CUDNN_CONVOLUTION_FWD_ALGO_GEMM", "gemm", "large"},
    {3, "CUDNN_CONVOLUTION_FWD_ALGO_DIRECT", "direct", nullptr},
    {4, "CUDNN_CONVOLUTION_FWD_ALGO_FFT", "fft", nullptr},
    {5, "CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING", "fft_tiling", nullptr},
    {6, "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD", "winograd", nullptr},
    {7, "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused", "winograd_non_fused"}};
// Theano's own table has no `small` here, but its manual has: the deterministic algorithm, which
// is, like the forward's `small`, the implicit GEMM with precomputed indices.
constexpr LegacyName kBackwardDataAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_0", "algo_0", "none"},
    {1, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "algo_1", "deterministic"},
    {1, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_1", "algo_1", "small"},
    {2, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT", "fft", nullptr},
    {3, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING", "fft_tiling", nullptr},
    {4, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD", "winograd", nullptr},
    {5, "CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused",
     "winograd_non_fused"}};
constexpr LegacyName kBackwardFilterAlgorithms[] = {
    {0, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0", "algo_0", "none"},
    {1, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1", "algo_1", "deterministic"},
    {2, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT", "fft", nullptr},
    {3, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3", "algo_3", "small"},
    {4, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD", "winograd", nullptr},
    {5, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED", "winograd_nonfused",
     "winograd_non_fused"},
    {6, "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING", "fft_tiling", nullptr}};

class ConvolutionOperator : public OperatorOf<ConvolutionProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnConvolutionForward, cudnnConvolutionBackwardData, "
        "cudnnConvolutionBackwardFilter",
        "nchw, nhwc; 1 to 3 dimensions of space",
        "of a forward bias, z and activation are fused; float64 contiguous",
        {"conv_fwd x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1",
         "conv_fwd x=f16[32,3,224,224]:nhwc w=f16[64,3,7,7]:nhwc pad=3 stride=2"}};
  }

  std::optional<at::Float32Op> float32_op() const override { return at::Float32Op::CONV; }
  bool obeys_depthwise_kernel() const override { return true; }
  bool has_math_types() const override { return true; }

  std::vector<LegacyName> legacy_names(const std::string& pass) const override {
    if (pass == "fwd") return {std::begin(kForwardAlgorithms), std::end(kForwardAlgorithms)};
    if (pass == "bwd_data") {
      return {std::begin(kBackwardDataAlgorithms), std::end(kBackwardDataAlgorithms)};
    }
    return {std::begin(kBackwardFilterAlgorithms), std::end(kBackwardFilterAlgorithms)};
  }

  std::vector<SlotSpec> slots(const ConvolutionProblem& p) const override {
    Role output = result_role(p.pass);
    std::vector<SlotSpec> slots{{Role::x, p.x, output == Role::x},
                                {Role::w, p.w, output == Role::w},
                                {Role::y, p.y, output == Role::y}};
    if (p.bias) slots.push_back({Role::bias, {*p.bias, {p.w.sizes[0]}, {1}}, false});
    if (p.z) slots.push_back({Role::z, p.y, false});
    return slots;
  }

  Cost cost(const ConvolutionProblem& p) const override {
    double taps = 1;
    for (int i = 1; i < p.w.sizes.size(); ++i) taps *= static_cast<double>(p.w.sizes[i]);
    auto outputs = static_cast<double>(p.y.numel());
    double terms = taps;
    if (p.pass == ConvolutionPass::bwd_data) {
      int64_t channels = p.w.sizes[0] / p.groups;
      terms = taps / static_cast<double>(p.w.sizes[1]) * static_cast<double>(channels);
    } else if (p.pass == ConvolutionPass::bwd_filter) {
      terms = outputs / static_cast<double>(p.w.sizes[0]);
    }
    double bytes = bytes_of(slots(p));
    return {2 * outputs * taps, bytes, terms};
  }

  bool accumulates(const ConvolutionProblem& p) const override {
    return p.accumulate != Accumulate::none;
  }
  void set_scalars(const ConvolutionProblem& p, Bindings& bindings) const override {
    Accumulate accumulate = p.accumulate;
    if (accumulate == Accumulate::none) return;
    bindings.alpha = accumulate == Accumulate::add ? 1 : 0.75;
    bindings.beta = accumulate == Accumulate::add ? 1 : 1.5;
  }
  Bindings reference(const ConvolutionProblem& p, const Bindings& bindings) const override;

  // Rounding of the output, once more before a bias or z is added, plus the error of a sum of that
  // many terms in the compute type. Filter gradients are long sums, split over blocks whose sums
  // may be added in the data's type. Winograd and FFT transform their operands, which costs some
  // more digits; TF32 keeps 10 bits of each factor.
  double tolerance(const ConvolutionProblem& p, const Notes& notes) const override {
    double sum = epsilon_of(p.compute) * std::sqrt(cost(p).reduction_length);
    double roundings =
        p.pass == ConvolutionPass::bwd_filter ? 6 : 2 + p.bias.has_value() + p.z.has_value();
    double tolerance = roundings * epsilon_of(p.x.dtype) + 4 * sum;
    if (notes.has(Note::tf32)) tolerance += 2e-3;
    if (notes.has(Note::down_convert)) {
      tolerance += 8e-3 + epsilon_of(at::kHalf) * std::sqrt(cost(p).reduction_length);
    }
    if (notes.has(Note::low_accuracy)) tolerance += 1e-2;
    bool transforms = notes.has(Note::winograd) || notes.has(Note::fft);
    return transforms ? tolerance * 10 : tolerance;
  }

  std::vector<std::string> heuristic_order(const ConvolutionProblem& p) const override {
    if (is_depthwise(p)) return depthwise_order(p);
    // cuDNN pads the few channels of an image. If windows do not overlap, such as a vision
    // transformer's patches, the matrix product took an eighth to a half of its time. For
    // contiguous images its first engine converts to a smaller type, as PyTorch's call may; the
    // next one took 1.09 to 2.8 times as long.
    bool of_images = p.w.sizes[1] < 8 && c10::isReducedFloatingType(p.x.dtype) &&
                     p.w.numel() > p.w.sizes[0] * p.w.sizes[1];
    bool plain = p.groups == 1 && !p.has_epilogue();
    if (of_images && is_channels_last(p.x)) {
      // In float16 PyTorch's call took half the time of cuDNN's first engine (7x7, stride 2).
      if (plain && p.x.dtype == at::kHalf) return {"aten:matmul", "aten", "graph", "legacy"};
      return {"aten:matmul", "graph", "legacy", "aten"};
    }
    if (of_images && plain) return {"aten", "graph", "legacy"};
    return {"graph", "legacy", "aten"};
  }

 private:
  // One filter a channel. PyTorch's own kernel comes first, except for float32 filter gradients:
  // cuDNN took 0.29 to 0.76 of its time, once 1.13, in the twelve such layers of MobileNet-V3 on an
  // H200 (64 images; windows of 3x3 and 5x5). Single engines lead for others
  // (cudnn/engine_hints.cpp).
  static std::vector<std::string> depthwise_order(const ConvolutionProblem& p) {
    bool filter = p.pass == ConvolutionPass::bwd_filter && is_common_depthwise(p) &&
                  p.x.dtype == at::kFloat && p.x.strides == contiguous_strides(p.x.sizes) &&
                  p.stride == Dims(2, 1);
    if (filter) return {"graph", "aten", "legacy"};
    return {"aten", "graph", "legacy"};
  }
};

// The float64 result of a pass. On the CPU it is computed over a part of the images at a time: one
// call may take many seconds, in which the user cannot stop it. So are filter gradients of more
// elements than an int counts: PyTorch's kernel of depthwise ones has offsets that are ints.
template <class Part>
Tensor by_images(const ConvolutionProblem& p, double flops, bool on_cpu, Part&& part) {
  constexpr double kFlopsAtOnce = 1e9;
  int64_t images = p.x.sizes[0];
  double parts = on_cpu ? std::ceil(flops / kFlopsAtOnce) : 1;
  if (p.pass == ConvolutionPass::bwd_filter) {
    auto elements = static_cast<double>(std::max(p.x.numel(), p.y.numel()));
    parts = std::max(parts, std::ceil(elements / std::numeric_limits<int>::max()));
  }
  int64_t step = std::max<int64_t>(1, images / static_cast<int64_t>(parts));
  if (step >= images) return part(0, images);
  std::vector<Tensor> results;
  for (int64_t first = 0; first < images; first += step) {
    check_interrupt_if_due();
    Tensor result = part(first, std::min(step, images - first));
    if (p.pass != ConvolutionPass::bwd_filter || results.empty()) {
      results.push_back(std::move(result));
    } else {
      results[0].add_(result);
    }
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

Bindings ConvolutionOperator::reference(const ConvolutionProblem& p,
                                        const Bindings& bindings) const {
  auto in_double = [&](Role role) { return bindings[role].to(at::kDouble).contiguous(); };
  Tensor w = p.pass == ConvolutionPass::bwd_filter
                 ? at::empty(p.w.sizes, bindings[Role::x].options().dtype(at::kDouble))
                 : flip_for_mode(p, in_double(Role::w));
  Dims none(p.spatial_dims(), 0);
  bool on_cpu = bindings[p.pass == ConvolutionPass::fwd ? Role::x : Role::y].is_cpu();
  Tensor result;
  if (p.pass == ConvolutionPass::fwd) {
    Tensor x = in_double(Role::x);
    result = by_images(p, cost(p).flops, on_cpu, [&](int64_t first, int64_t count) {
      return at::convolution(x.narrow(0, first, count), w, {}, p.stride, p.padding, p.dilation,
                             false, none, p.groups);
    });
  } else {
    bool data = p.pass == ConvolutionPass::bwd_data;
    Tensor dy = in_double(Role::y);
    Tensor x = data ? at::empty(p.x.sizes, dy.options()) : in_double(Role::x);
    result = by_images(p, cost(p).flops, on_cpu, [&](int64_t first, int64_t count) {
      auto gradients = at::convolution_backward(
          dy.narrow(0, first, count), x.narrow(0, first, count), w, c10::nullopt, p.stride,
          p.padding, p.dilation, false, none, p.groups, {data, !data, false});
      return data ? std::get<0>(gradients) : std::get<1>(gradients);
    });
    if (!data) result = flip_for_mode(p, result);
  }
  const Tensor& before = bindings[result_role(p.pass)];
  if (accumulates(p)) {
    result = result.mul(bindings.alpha).add_(before.to(at::kDouble), bindings.beta);
  }
  add_epilogue(p, result, bindings);
  Bindings out;
  out[result_role(p.pass)] = std::move(result);
  return out;
}

const RegisterOperator<ConvolutionOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::convolution
