#include "backends/aten/convolution_errata.h"

#include <ATen/Context.h>

#include <utility>

#include "backends/large_images.h"

namespace torch_cudnn_ext::aten {
namespace {

// Those of the CPU are errata of oneDNN.

int64_t extent_of_window(const ConvolutionProblem& p, int i) {
  return (p.w.sizes[i + 2] - 1) * p.dilation[i] + 1;
}

// Whether a window that is not the first may reach past the end of x's depth: a filter gradient may
// then write out of bounds.
bool reaches_past_depth(const ConvolutionProblem& p) {
  if (p.pass != ConvolutionPass::bwd_filter || p.spatial_dims() != 3) return false;
  int64_t stride = p.stride[0], padding = p.padding[0];
  int64_t first_inside = stride - ((padding - 1) % stride + 1);
  return stride > 1 && padding > 0 && first_inside + extent_of_window(p, 0) > p.x.sizes[2];
}

// Filter gradients in f32 may write out of bounds, on two threads, for windows of one pixel that
// leave out rows and no columns. Here all dimensions but the last are checked, there the last.
bool leaves_out_rows(const ConvolutionProblem& p) {
  if (p.pass != ConvolutionPass::bwd_filter || p.x.dtype != c10::ScalarType::Float) return false;
  bool leaves_out = false;
  for (int i = 0; i + 1 < p.spatial_dims(); ++i) {
    if (p.w.sizes[i + 2] != 1) return false;
    leaves_out |= p.stride[i] > 1;
  }
  return leaves_out;
}
bool sees_each_column_alone(const ConvolutionProblem& p) {
  int last = p.spatial_dims() - 1;
  return p.w.sizes[last + 2] == 1 && p.stride[last] == 1;
}
constexpr const char* kLeavesOutRows =
    "PyTorch 2.11's f32 filter gradients on the CPU may write out of bounds for 1x1 kernels with a "
    "row stride above 1 and a column stride of 1";

// Whether a forward may read outside of channels-last images of one channel. The strides of such
// images are contiguous ones as well.
bool leaves_one_column(const ConvolutionProblem& p) {
  int last = p.spatial_dims() - 1;
  return p.pass == ConvolutionPass::fwd && p.x.dtype == c10::ScalarType::Float && last > 0 &&
         p.x.sizes[1] == 1 && p.stride[last - 1] == 1 && p.stride[last] > 1 &&
         p.y.sizes[last + 2] == 1;
}

// Whether the kernel of a forward may never be made.
std::optional<Unsupported> endless_forward(const ConvolutionProblem& p) {
  constexpr int64_t kMostChannels = 16, kWide = 15;
  bool depthwise = p.groups > 1 && p.groups == p.x.sizes[1];
  bool endless = p.x.dtype == c10::ScalarType::Half && depthwise && p.groups <= kMostChannels &&
                 p.w.sizes[p.w.sizes.size() - 1] >= kWide;
  if (!endless) return std::nullopt;
  return Unsupported{
      "PyTorch 2.11's f16 convolutions on the CPU may never end over one channel a group, in at "
      "most 16 groups, with windows 15 or more wide"};
}

// Whether a first window lies in the padding alone and is followed by others with a stride: bf16
// may crash.
bool begins_in_padding(const ConvolutionProblem& p) {
  for (int i = 0; i < p.spatial_dims(); ++i) {
    if (p.stride[i] > 1 && p.padding[i] >= extent_of_window(p, i)) return true;
  }
  return false;
}

// Whether results may be uninitialised memory.
bool leaves_results_unwritten(const ConvolutionProblem& p) {
  if (p.x.dtype != c10::ScalarType::BFloat16 || p.pass == ConvolutionPass::bwd_data) return false;
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

// Whether nothing is summed, since all windows lie outside of the image in some dimension: half
// types, and f32 with a bias, may crash.
bool sums_nothing(const ConvolutionProblem& p) {
  bool half = c10::isReducedFloatingType(p.x.dtype);
  bool adds_in_f32 =
      p.x.dtype == c10::ScalarType::Float && p.bias && p.pass == ConvolutionPass::fwd;
  if (!half && !adds_in_f32) return false;
  for (int i = 0; i < p.spatial_dims(); ++i) {
    if (!reads_image(p, i)) return true;
  }
  return false;
}

}  // namespace

std::optional<Unsupported> erratum_of_convolution(const ConvolutionProblem& p,
                                                  const Device& device) {
  if (device.is_cuda()) {
    bool is_cudnn_9_19 = at::globalContext().versionRuntimeCuDNN() / 100 == 919;
    if (!is_cudnn_9_19 || !exceeds_int_in_8_images(p)) return std::nullopt;
    return Unsupported{
        "PyTorch 2.11's filter gradients of half types in cuDNN 9.19 may read memory that is not "
        "there if 8 images of a larger batch have 2^31 elements or more"};
  }
  if (leaves_out_rows(p) && sees_each_column_alone(p)) return Unsupported{kLeavesOutRows};
  if (reaches_past_depth(p)) {
    return Unsupported{
        "PyTorch 2.11's filter gradients on the CPU may write out of bounds if strided windows "
        "that "
        "start inside x reach past the end of its depth"};
  }
  if (leaves_one_column(p)) {
    return Unsupported{
        "PyTorch 2.11's f32 forwards on the CPU may read out of bounds of images with one channel "
        "if windows with a row stride of 1 and a column stride above 1 leave one column"};
  }
  if (sums_nothing(p)) {
    return Unsupported{
        "PyTorch 2.11's convolutions of half types, and in f32 with a bias, on the CPU may crash "
        "if all windows lie outside of the image"};
  }
  if (leaves_results_unwritten(p)) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may leave results unwritten: those of one "
        "column of windows with a column stride above 1, filter gradients of images smaller than "
        "the stride, and forwards of deeper windows over volumes of depth 1"};
  }
  if (p.x.dtype == c10::ScalarType::BFloat16 && begins_in_padding(p)) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may crash if a first window lies in the "
        "padding alone and the stride is above 1"};
  }
  if (p.pass == ConvolutionPass::fwd) return endless_forward(p);
  return std::nullopt;
}

std::optional<Unsupported> erratum_of_rewriting(const ConvolutionProblem& p, const Device& device) {
  if (device.is_cuda()) return std::nullopt;
  if (p.x.dtype == c10::ScalarType::BFloat16) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may be wrong over images narrower than the "
        "window"};
  }
  bool one_plane = p.pass == ConvolutionPass::bwd_data && p.w.sizes[0] == 1;
  if (p.x.dtype == c10::ScalarType::Float && one_plane) {
    return Unsupported{
        "PyTorch 2.11's f32 forwards on the CPU, which this would become, may read out of bounds "
        "of "
        "images with one channel"};
  }
  return endless_forward(p);
}

std::optional<Unsupported> erratum_of_folding(const ConvolutionProblem& p, const Device& device) {
  if (device.is_cuda() || !leaves_out_rows(p)) return std::nullopt;
  return Unsupported{kLeavesOutRows};
}

}  // namespace torch_cudnn_ext::aten
