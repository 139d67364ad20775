#include "cudnn/engine_hints.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/capability.h"
#include "core/library_versions.h"
#include "core/operator.h"
#include "core/select/hints.h"
#include "problems/depthwise.h"

namespace torch_cudnn_ext {

namespace {

constexpr Platform kHopper9_19{91900, 90};

template <class P, class Condition>
EngineHint hint(std::string id, std::vector<std::string> algorithms, Condition condition,
                std::string text, std::vector<Platform> measured = {kHopper9_19}) {
  auto of_problem = [=](const Problem& p) { return condition(std::get<P>(p)); };
  return {std::move(id), P::kFamily,          std::move(algorithms),
          of_problem,    std::move(measured), std::move(text)};
}

// --- convolution

EngineHint depthwise_half(std::string id, ConvolutionPass pass, const char* engine) {
  auto condition = [=](const ConvolutionProblem& p) {
    return p.pass == pass && is_common_depthwise(p) && c10::isReducedFloatingType(p.x.dtype) &&
           is_channels_last(p.x);
  };
  return hint<ConvolutionProblem>(
      std::move(id), {engine}, condition,
      "depthwise, half types, channels-last: PyTorch's heuristic finds the same engine in the "
      "twelve such layers of MobileNet-V3 (64 images; windows of 3x3 and 5x5, stride 1 and 2), "
      "except once, and then took 9 times the time");
}

bool is_depthwise_float32(const ConvolutionProblem& p) {
  return p.pass != ConvolutionPass::bwd_filter && is_common_depthwise(p) && p.w.sizes[2] == 3 &&
         p.w.sizes[3] == 3 && p.x.dtype == c10::ScalarType::Float &&
         p.x.strides == contiguous_strides(p.x.sizes);
}

// --- batch norm

bool is_large_inference(const BatchNormProblem& p) {
  constexpr int64_t kSmall = 1 << 22;
  return p.pass == BatchNormPass::infer && p.x.sizes[2] > 1 &&
         p.x.dtype != c10::ScalarType::Double && p.is_channels_last() && p.x.numel() > kSmall;
}

// --- pooling over channels-last tensors. Engines 2 and 3 are compiled at run time. Option 34 is
// engine 2's best for a gradient's indices and for gradients.

constexpr const char* kTiled = "graph:eng2/k24=34";

bool is_volume(const PoolingProblem& p) { return p.spatial_dims() == 3; }

bool is_pooled_by_graph(const PoolingProblem& p) {
  bool small_volume = is_volume(p) && p.x.numel() < 1 << 20;
  // PyTorch's kernel of an average's gradient copies channels-last tensors.
  bool is_short = is_short_work(p.x.nbytes() + p.y().nbytes()) && !p.is_average_gradient();
  bool small = small_volume || is_short;
  return is_channels_last(p.x) && p.mode != PoolingMode::sum && !small;
}

bool is_maximum(const PoolingProblem& p) {
  return is_pooled_by_graph(p) && p.mode == PoolingMode::max;
}

bool is_large(const PoolingProblem& p) { return p.x.numel() >= 1 << 23; }

bool is_large_separate_maximum(const PoolingProblem& p) {
  bool overlaps = false;
  for (int i = 0; i < p.spatial_dims(); ++i) overlaps |= p.stride[i] < p.window[i];
  return is_maximum(p) && is_large(p) && !overlaps;
}

bool is_average_forward(const PoolingProblem& p) {
  int64_t most = p.has_one_window() && !is_volume(p) ? 1024 : 16;
  return is_pooled_by_graph(p) && p.mode != PoolingMode::max && p.pass == Pass::fwd &&
         p.window_volume() <= most;
}

bool is_dense_average(const PoolingProblem& p) {
  bool line = p.spatial_dims() == 2 && p.x.sizes[2] == 1;
  bool dense = p.stride == Dims(p.spatial_dims(), 1);
  return is_average_forward(p) && !p.has_one_window() && (dense || (line && is_large(p)));
}

}  // namespace

const std::vector<EngineHint>& engine_hints() {
  constexpr const char* kPooling = "over 41 shapes of each type and layout on an H200";
  static const auto* hints = new std::vector<EngineHint>{
      depthwise_half("conv-depthwise-half-fwd", ConvolutionPass::fwd, "graph:eng5"),
      depthwise_half("conv-depthwise-half-data", ConvolutionPass::bwd_data, "graph:eng6"),
      depthwise_half("conv-depthwise-half-filter", ConvolutionPass::bwd_filter, "graph:eng16"),
      hint<ConvolutionProblem>(
          "conv-depthwise-f32", {"graph:eng0"}, is_depthwise_float32,
          "depthwise 3x3, float32, contiguous, forward and data gradient: 0.77 to 0.98 of "
          "PyTorch's time in the layers of MobileNet-V3 on an H200"),
      hint<BatchNormProblem>(
          "batch-norm-inference", {"graph:eng1"}, is_large_inference,
          "inference, channels-last, more than 4 Mi elements: 0.66 to 0.98 of PyTorch's time for "
          "the 41 bfloat16 inferences of ResNet-50 and MobileNet-V3 on an H200"),
      hint<PoolingProblem>(
          "pool-max-training", {kTiled, "graph:eng2"},
          [](const PoolingProblem& p) { return is_maximum(p) && p.train; },
          c10::str("maxima in training, channels-last: 0.5 to 0.8 of PyTorch's time or less ",
                   kPooling)),
      hint<PoolingProblem>(
          "pool-max-volume", {kTiled},
          [](const PoolingProblem& p) { return is_maximum(p) && is_volume(p); },
          c10::str("maxima over volumes, channels-last: the fastest ", kPooling)),
      hint<PoolingProblem>(
          "pool-max-separate", {"graph:eng2"}, is_large_separate_maximum,
          c10::str("maxima of 8 Mi elements and more in windows that do not overlap, "
                   "channels-last: the fastest ",
                   kPooling)),
      hint<PoolingProblem>(
          "pool-average-gradient", {kTiled, "graph:eng2"},
          [](const PoolingProblem& p) { return is_pooled_by_graph(p) && p.is_average_gradient(); },
          c10::str("gradients of averages, channels-last: 0.5 to 0.8 of PyTorch's time or less ",
                   kPooling)),
      hint<PoolingProblem>(
          "pool-average-volume", {kTiled},
          [](const PoolingProblem& p) { return is_average_forward(p) && is_volume(p); },
          c10::str("averages over volumes, channels-last, windows of at most 16: the fastest ",
                   kPooling)),
      hint<PoolingProblem>(
          "pool-average-dense", {"graph:eng2"}, is_dense_average,
          c10::str("averages of stride 1, and of long lines, channels-last, windows of at most 16: "
                   "the fastest ",
                   kPooling)),
      hint<PoolingProblem>(
          "pool-average", {"graph:eng3"}, is_average_forward,
          c10::str(
              "other averages over planes, channels-last, windows of at most 16, or one window "
              "of at most 1024: the fastest ",
              kPooling))};
  return *hints;
}

const EngineHint* find_hint(const Problem& problem) {
  for (const EngineHint& hint : engine_hints()) {
    if (hint.family == family_of(problem) && hint.condition(problem)) return &hint;
  }
  return nullptr;
}

bool is_on(const EngineHint& hint, int64_t cudnn, int capability) {
  Platform asked{cudnn, capability};
  return std::find(hint.measured.begin(), hint.measured.end(), asked) != hint.measured.end();
}

namespace {

const bool registered = set_hints([](const Problem& problem, const Device& device) {
  const EngineHint* hint = find_hint(problem);
  bool on = hint != nullptr && is_on(*hint, library_version(Library::cudnn), capability_of(device));
  return on ? hint->algorithms : std::vector<std::string>();
});

}  // namespace

}  // namespace torch_cudnn_ext
