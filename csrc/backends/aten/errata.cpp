// Errata of PyTorch's own kernels. Those of convolutions on the CPU are oneDNN's.
#include "core/errata.h"

#include <torch/headeronly/version.h>

#include <utility>

namespace torch_cudnn_ext::aten {
namespace {

using c10::ScalarType;

constexpr int64_t kPyTorch2_11 = 21100;

const bool registered_version = register_library(Library::pytorch, [] {
  return int64_t{TORCH_VERSION_MAJOR * 10000 + TORCH_VERSION_MINOR * 100 + TORCH_VERSION_PATCH};
});

Erratum& on_the_cpu(Erratum&& row, std::vector<std::string> algorithms) {
  row.library = Library::pytorch;
  return row.of("aten", std::move(algorithms)).on(Place::cpu);
}

// PyTorch's convolution, and those that a problem is rewritten as.
const std::vector<std::string> kConvolutions{"default", "folded", "turned"};
const std::vector<std::string> kRewritten{"folded", "turned"};

int64_t extent_of_window(const ConvolutionProblem& p, int i) {
  return (p.w.sizes[i + 2] - 1) * p.dilation[i] + 1;
}

// Whether a window that is not the first may reach past the end of x's depth.
bool reaches_past_depth(const ConvolutionProblem& p) {
  if (p.spatial_dims() != 3) return false;
  int64_t stride = p.stride[0], padding = p.padding[0];
  int64_t first_inside = stride - ((padding - 1) % stride + 1);
  return stride > 1 && padding > 0 && first_inside + extent_of_window(p, 0) > p.x.sizes[2];
}

// Windows of one pixel that leave out rows and no columns. Folded channels see one column alone
// whatever the window's width.
bool leaves_out_rows(const ConvolutionProblem& p, const Algorithm& algorithm) {
  if (p.x.dtype != ScalarType::Float) return false;
  int last = p.spatial_dims() - 1;
  bool leaves_out = false;
  for (int i = 0; i < last; ++i) {
    if (p.w.sizes[i + 2] != 1) return false;
    leaves_out |= p.stride[i] > 1;
  }
  bool each_column = p.w.sizes[last + 2] == 1 && p.stride[last] == 1;
  bool folded = algorithm.name == "folded" && p.w.sizes[last + 2] > 1;
  return leaves_out && (each_column || folded);
}

// The strides of channels-last images of one channel are contiguous ones as well.
bool leaves_one_column(const ConvolutionProblem& p) {
  int last = p.spatial_dims() - 1;
  return p.x.dtype == ScalarType::Float && last > 0 && p.x.sizes[1] == 1 &&
         p.stride[last - 1] == 1 && p.stride[last] > 1 && p.y.sizes[last + 2] == 1;
}

// Whether the kernel may never be made. A rewritten gradient is a forward.
bool is_endless(const ConvolutionProblem& p, const Algorithm& algorithm) {
  constexpr int64_t kMostChannels = 16, kWide = 15;
  bool forward = p.pass == ConvolutionPass::fwd || algorithm.name != "default";
  bool depthwise = p.groups > 1 && p.groups == p.x.sizes[1];
  return forward && p.x.dtype == ScalarType::Half && depthwise && p.groups <= kMostChannels &&
         p.w.sizes[p.w.sizes.size() - 1] >= kWide;
}

// Whether a first window lies in the padding alone and is followed by others with a stride.
bool begins_in_padding(const ConvolutionProblem& p) {
  if (p.x.dtype != ScalarType::BFloat16) return false;
  for (int i = 0; i < p.spatial_dims(); ++i) {
    if (p.stride[i] > 1 && p.padding[i] >= extent_of_window(p, i)) return true;
  }
  return false;
}

bool leaves_results_unwritten(const ConvolutionProblem& p) {
  if (p.x.dtype != ScalarType::BFloat16) return false;
  int last = p.spatial_dims() - 1;
  bool fwd = p.pass == ConvolutionPass::fwd;
  bool is_flat = p.spatial_dims() == 3 && p.x.sizes[2] == 1 && p.w.sizes[2] > 1;
  bool skips_images = false;
  for (int i = 0; i <= last; ++i) skips_images |= p.x.sizes[i + 2] < p.stride[i];
  bool is_one_column = p.y.sizes[last + 2] == 1;
  return (fwd && is_flat) || (!fwd && skips_images) || (p.stride[last] > 1 && is_one_column);
}

// Whether some window reads the image in this dimension. Taps and outputs are alike: places at a
// distance of each other. The search is over the fewer, and most often the first is one.
bool reads_image(const ConvolutionProblem& p, int i) {
  int64_t few = p.w.sizes[i + 2], many = p.y.sizes[i + 2];
  int64_t step = p.dilation[i], other_step = p.stride[i];
  if (many < few) {
    std::swap(few, many);
    std::swap(step, other_step);
  }
  for (int64_t n = 0; n < few; ++n) {
    int64_t start = n * step - p.padding[i];
    int64_t skipped = start < 0 ? (-start + other_step - 1) / other_step : 0;
    if (skipped < many && start + skipped * other_step < p.x.sizes[i + 2]) return true;
  }
  return false;
}

// Whether nothing is summed, since all windows lie outside of the image in some dimension.
bool sums_nothing(const ConvolutionProblem& p) {
  bool half = c10::isReducedFloatingType(p.x.dtype);
  bool adds_in_f32 = p.x.dtype == ScalarType::Float && p.bias && p.pass == ConvolutionPass::fwd;
  if (!half && !adds_in_f32) return false;
  for (int i = 0; i < p.spatial_dims(); ++i) {
    if (!reads_image(p, i)) return true;
  }
  return false;
}

// Whether some window has all its pixels in the padding, which dilation makes possible. PyTorch
// then gives an index outside of x.
bool has_window_in_padding(const PoolingProblem& p) {
  if (p.mode != PoolingMode::max || p.adaptive) return false;
  const Dims sizes = p.y().sizes;
  for (int i = 0; i < p.spatial_dims(); ++i) {
    auto is_in_padding = [&](int64_t place) {
      int64_t start = place * p.stride[i] - p.padding[i], step = p.dilation[i];
      int64_t skipped = start < 0 ? (-start + step - 1) / step : 0;
      return skipped >= p.window[i] || start + skipped * step >= p.x.sizes[i + 2];
    };
    int64_t last = sizes[i + 2] - 1;
    for (int64_t place = 0; place < last && place * p.stride[i] < p.padding[i]; ++place) {
      if (is_in_padding(place)) return true;
    }
    if (is_in_padding(last)) return true;  // those before it that start in x start further left
  }
  return false;
}

const bool registered_convolutions = register_errata({
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-left-out-rows", leaves_out_rows),
               kConvolutions)
        .in({"bwd_filter"})
        .unsupported("f32 filter gradients on the CPU may write out of bounds for 1x1 kernels with "
                     "a row stride above 1 and a column stride of 1")
        .seen(kPyTorch2_11, "writes outside of the result, on two threads"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-past-depth", reaches_past_depth),
               kConvolutions)
        .in({"bwd_filter"})
        .unsupported("filter gradients on the CPU may write out of bounds if a strided window "
                     "starts inside x and ends beyond its depth")
        .seen(kPyTorch2_11, "heap corrupted")
        .reproduced_by("conv_bwd_filter x=f32[2,16,3,3,3]:nchw w=f32[12,16,5,5,5]:nchw pad=4,2,2 "
                       "stride=3",
                       "aten:default"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-one-column", leaves_one_column),
               kConvolutions)
        .in({"fwd"})
        .unsupported("f32 forwards on the CPU may read out of bounds of images with one channel if "
                     "the row stride is 1, the column stride is above 1, and the output has one "
                     "column")
        .seen(kPyTorch2_11, "wrong values, reads outside of the image")
        .reproduced_by("conv_fwd x=f32[2,1,7,3]:nhwc w=f32[2,1,3,3]:nhwc pad=0 stride=1,4",
                       "aten:default"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-nothing-summed", sums_nothing),
               kConvolutions)
        .unsupported("convolutions of half types, and in f32 with a bias, on the CPU may crash if "
                     "all windows lie outside of the image")
        .seen(kPyTorch2_11, "process ended")
        .reproduced_by("conv_fwd x=f16[2,8,8,1]:nhwc w=f16[2,8,3,1]:nhwc pad=2 stride=3 dilation=2",
                       "aten:default"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-unwritten", leaves_results_unwritten),
               kConvolutions)
        .in({"fwd", "bwd_filter"})
        .unsupported("bf16 convolutions on the CPU may leave results unwritten if the result has "
                     "one column and the column stride is above 1, if a filter gradient reads "
                     "images smaller than the stride, or if a forward has windows deeper than 1 "
                     "over volumes of depth 1")
        .seen(kPyTorch2_11, "values not written")
        .reproduced_by("conv_fwd x=bf16[1,3,1,8,8]:nchw w=bf16[8,3,3,3,3]:nchw pad=1",
                       "aten:default"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-first-window", begins_in_padding),
               kConvolutions)
        .unsupported("bf16 convolutions on the CPU may crash if a first window lies in the padding "
                     "alone and the stride is above 1")
        .seen(kPyTorch2_11, "process ended"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-endless", is_endless), kConvolutions)
        .unsupported("f16 convolutions on the CPU may never end over one channel a group, in at "
                     "most 16 groups, with windows 15 or more wide")
        .seen(kPyTorch2_11, "hangs")
        .reproduced_by("conv_fwd x=f16[2,16,14,64]:nchw w=f16[16,1,3,31]:nchw pad=1,15 groups=16",
                       "aten:default"),
    on_the_cpu(erratum<ConvolutionProblem>(
                   "pytorch-cpu-conv-narrow-images",
                   [](const ConvolutionProblem& p) { return p.x.dtype == ScalarType::BFloat16; }),
               kRewritten)
        .unsupported("bf16 convolutions on the CPU, which this would become, may be wrong over "
                     "images narrower than the window")
        .seen(kPyTorch2_11, "wrong values"),
    on_the_cpu(erratum<ConvolutionProblem>("pytorch-cpu-conv-one-plane",
                                           [](const ConvolutionProblem& p) {
                                             return p.x.dtype == ScalarType::Float &&
                                                    p.w.sizes[0] == 1;
                                           }),
               kRewritten)
        .in({"bwd_data"})
        .unsupported("f32 forwards on the CPU, which this would become, may read out of bounds of "
                     "images with one channel")
        .seen(kPyTorch2_11, "wrong values, reads outside of the image")
        .reproduced_by("conv_bwd_data x=f32[2,3,7,4]:nhwc w=f32[1,3,3,3]:nhwc pad=1 stride=4,1",
                       "aten:turned/block=4"),
});

const bool registered_others = register_errata({
    on_the_cpu(erratum<PoolingProblem>("pytorch-cpu-pool-padding", has_window_in_padding),
               {"default"})
        .unsupported("indices of a maximum on the CPU point outside of x, and its gradient writes "
                     "out of bounds, if a window lies in the padding alone")
        .seen(kPyTorch2_11, "heap corrupted"),
    on_the_cpu(
        erratum<PoolingProblem>("pytorch-pool-average-gradient",
                                [](const PoolingProblem& p) { return p.mode != PoolingMode::max; }),
        {"default"})
        .in({"bwd"})
        .on(Place::both)
        .works_around("the gradient of averages over channels-last planes is wrong on CUDA: it is "
                      "given contiguous tensors")
        .seen(kPyTorch2_11, "wrong values; H200"),
    on_the_cpu(erratum<GridSampleProblem>("pytorch-cpu-grid-sample-nan",
                                          [](const GridSampleProblem& p) {
                                            return p.spatial_dims() == 2 &&
                                                   p.mode == SampleMode::bilinear &&
                                                   p.padding != SamplePadding::zeros;
                                          }),
               {"default"})
        .in({"bwd"})
        .unsupported("gradients of bilinear samples on the CPU crash on a grid with NaN or "
                     "infinity unless the padding is zeros")
        .seen(kPyTorch2_11, "process ended")
        .reproduced_by("grid_sample_bwd x=f32[2,3,8,8]:nchw grid=f32[2,4,4,2]:nchw padding=border",
                       "aten:default", "grid=nan"),
});

}  // namespace
}  // namespace torch_cudnn_ext::aten
