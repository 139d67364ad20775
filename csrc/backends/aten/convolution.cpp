// PyTorch's own convolution: the baseline of every table, and the last resort. Beside it PyTorch's
// product of matrices (cuBLAS), which is often faster where windows do not overlap, and sometimes
// where they must be copied for it; and where channels are few PyTorch's convolution of more.
// They read PyTorch's global switches, which are never flipped here; what they imply is in the
// plan's notes.
#include <ATen/TensorGeometry.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>

#include "backends/aten/plan.h"
#include "backends/aten/rewritten_convolution.h"
#include "backends/large_images.h"
#include "core/tensors.h"
#include "problems/tensor_steps.h"
#include "cudnn/errata.h"

namespace torch_cudnn_ext::aten {
namespace {

// On a CPU oneDNN, and PyTorch's choice of a layout, read the strides of sizes of 1, which nothing
// determines: grouped convolutions go wrong by them.
Tensor with_strides_of(const TensorSpec& spec, const Tensor& t) {
  return t.is_cpu() ? strided_view(t, spec.sizes, spec.strides) : t;
}

// Where alpha and beta scale a result in f16, which PyTorch's kernel would round before, so that it
// may overflow.
bool is_scaled_in_f16(const ConvolutionProblem& p) {
  return p.accumulate == Accumulate::general && p.x.dtype == at::kHalf;
}

// In f32 where it is scaled in f16.
Tensor convolve(const ConvolutionProblem& p, const Bindings& b) {
  const Dims none(p.spatial_dims(), 0);
  auto given = [&](Role role, const TensorSpec& spec) {
    Tensor t = with_strides_of(spec, b[role]);
    return is_scaled_in_f16(p) ? t.to(at::kFloat) : t;
  };
  if (p.pass == ConvolutionPass::fwd) {
    return at::convolution(given(Role::x, p.x), flip_for_mode(p, given(Role::w, p.w)),
                           b[Role::bias], p.stride, p.padding, p.dilation, false, none, p.groups);
  }
  // PyTorch asks for the tensor whose gradient is wanted, of which it reads sizes and layout only.
  bool data = p.pass == ConvolutionPass::bwd_data;
  Tensor dy = given(Role::y, p.y);
  Tensor x = data ? at::empty_strided(p.x.sizes, p.x.strides, dy.options()) : given(Role::x, p.x);
  Tensor w = data ? flip_for_mode(p, given(Role::w, p.w))
                  : at::empty_strided(p.w.sizes, p.w.strides, dy.options());
  auto gradients = at::convolution_backward(dy, x, w, c10::nullopt, p.stride, p.padding, p.dilation,
                                            false, none, p.groups, {data, !data, false});
  return data ? std::get<0>(gradients) : flip_for_mode(p, std::get<1>(gradients));
}

// A convolution whose result is new.
class AtenConvolution : public Plan {
 public:
  using Function = std::function<Tensor(const Bindings&)>;

  AtenConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, Notes notes,
                  Function function)
      : Plan(algorithm, notes, std::nullopt), p_(p), function_(std::move(function)) {}

  void run(Bindings& b) override {
    Role role = result_role(p_.pass);
    Tensor result = function_(b);
    Tensor& out = b[role];
    if (out.defined() && b.beta != 0) {
      if (result.scalar_type() != out.scalar_type()) {
        out.copy_(out.to(result.scalar_type()).mul_(b.beta).add_(result, b.alpha));
        return;
      }
      if (b.beta != 1) out.mul_(b.beta);
      out.add_(result, b.alpha);
      return;
    }
    if (b.alpha != 1) result.mul_(b.alpha);
    result = in_dtype(result, p_.result().dtype);
    add_z_and_clamp(p_, result, b);
    give(b, role, p_.result(), result);
  }

 private:
  const ConvolutionProblem p_;
  const Function function_;
};

constexpr const char* kMatmul = "matmul";
constexpr const char* kFolded = "folded";
constexpr const char* kTurned = "turned";
constexpr const char* kIm2col = "im2col";

// The product that is to be had of a problem at this moment. Where it is TF32 its name says so:
// what was measured under one setting of PyTorch's switch is no measurement of the other.
Algorithm product_algorithm(const char* name, const ConvolutionProblem& p, const Device& device) {
  Algorithm algorithm{"aten", name, {}};
  bool tf32 = uses_tf32(at::Float32Op::MATMUL, p.x.dtype, device);
  return tf32 ? algorithm.with("math", "tf32") : algorithm;
}

// How the matrices lie in memory.
enum class Matrices : uint8_t {
  rows,   // windows are the rows: channels-last, or one window an image
  planes  // one matrix of windows an image: contiguous
};

// Whether each window ends before the next begins, and none reaches beyond x.
bool has_separate_windows(const ConvolutionProblem& p) {
  for (int i = 0; i < p.spatial_dims(); ++i) {
    int64_t extent = (p.w.sizes[i + 2] - 1) * p.dilation[i] + 1;
    if (p.padding[i] != 0 || (extent > p.stride[i] && p.y.sizes[i + 2] > 1)) return false;
  }
  return true;
}

// nullopt where no product computes the convolution.
std::optional<Matrices> matrices_of(const ConvolutionProblem& p) {
  bool turned = p.mode == ConvolutionMode::conv && !is_one_pixel(p.w.sizes);
  if (!has_separate_windows(p) || p.groups != 1 || !is_packed(p.w) || turned) return std::nullopt;
  auto lie = [&](auto&& strides) {
    return p.x.strides == strides(p.x.sizes) && p.y.strides == strides(p.y.sizes);
  };
  bool contiguous = lie(contiguous_strides);
  if (lie(channels_last_strides) || (contiguous && is_one_pixel(p.y.sizes))) return Matrices::rows;
  return contiguous ? std::optional(Matrices::planes) : std::nullopt;
}

// What is under the windows, as dimensions of x in the order of its matrix.
struct Windows {
  Dims sizes, strides;
  bool packed;  // x is that matrix

  Windows(const ConvolutionProblem& p, Matrices matrices) {
    auto add = [this](int64_t size, int64_t stride) {
      sizes.push_back(size);
      strides.push_back(stride);
    };
    auto add_places = [&] {
      for (int i = 2; i < p.x.sizes.size(); ++i) {
        add(p.y.sizes[i], p.x.strides[i] * p.stride[i - 2]);
      }
    };
    auto add_insides = [&] {
      for (int i = 2; i < p.x.sizes.size(); ++i) {
        add(p.w.sizes[i], p.x.strides[i] * p.dilation[i - 2]);
      }
    };
    auto add_channels = [&] { add(p.x.sizes[1], p.x.strides[1]); };
    add(p.x.sizes[0], p.x.strides[0]);
    if (matrices == Matrices::rows) add_places();
    bool channels_first = p.w.strides == contiguous_strides(p.w.sizes);
    if (channels_first) add_channels();
    add_insides();
    if (!channels_first) add_channels();
    if (matrices == Matrices::planes) add_places();
    bool nothing_beside = c10::multiply_integers(sizes.begin(), sizes.end()) == p.x.numel();
    packed = nothing_beside && at::geometry_is_contiguous(sizes, strides);
  }

  Tensor of(const Tensor& x) const { return strided_view(x, sizes, strides); }
};

// result = alpha * first @ second + beta * result, of two or three dimensions.
void product(Tensor result, const Tensor& first, const Tensor& second, double alpha, double beta) {
  // PyTorch 2.11 leaves some batched products of half types unwritten where both are 0.
  if (alpha == 0 && beta == 0) return void(result.zero_());
  bool plain = alpha == 1 && beta == 0;
  if (result.dim() == 2) {
    plain ? at::mm_out(result, first, second)
          : at::addmm_out(result, result, first, second, beta, alpha);
  } else {
    plain ? at::bmm_out(result, first, second)
          : at::baddbmm_out(result, result, first, second, beta, alpha);
  }
}

class MatmulConvolution : public Plan {
 public:
  MatmulConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, Notes notes,
                    Matrices matrices)
      : Plan(algorithm, notes, std::nullopt), p_(p), matrices_(matrices), windows_(p, matrices) {}

  void run(Bindings& b) override {
    Role role = result_role(p_.pass);
    output_tensor(b, role, p_.result(), b[role == Role::y ? Role::x : Role::y]);
    Tensor& x = b[Role::x];
    if (windows_.packed) return multiply(b, x, b.beta);
    Tensor under_windows = windows_.of(x);
    if (p_.pass != ConvolutionPass::bwd_data) {
      return multiply(b, under_windows.contiguous(), b.beta);
    }
    Tensor gradient = at::empty(windows_.sizes, x.options());
    multiply(b, gradient, 0);
    if (b.beta == 0) {
      if (gradient.numel() < x.numel()) x.zero_();  // beside the windows
      under_windows.copy_(gradient);
    } else {
      if (b.beta != 1) x.mul_(b.beta);
      under_windows.add_(gradient);
    }
  }

 private:
  // `x` is what is under the windows, packed, and the result where its gradient is.
  void multiply(Bindings& b, const Tensor& x, double beta) const {
    matrices_ == Matrices::rows ? multiply_rows(b, x, beta) : multiply_planes(b, x, beta);
  }

  // [rows, columns]: one row a window; of the weight, one a channel of y.
  static Tensor rows(const Tensor& t, int64_t columns) {
    return strided_view(t, {t.numel() / columns, columns}, {columns, 1});
  }
  // [images, rows, windows]
  static Tensor planes(const Tensor& t, int64_t rows) {
    int64_t n = t.size(0), windows = t.numel() / (n * rows);
    return strided_view(t, {n, rows, windows}, {rows * windows, windows, 1});
  }

  void multiply_rows(Bindings& b, const Tensor& under_windows, double beta) const {
    Tensor x = rows(under_windows, columns_), w = rows(b[Role::w], columns_),
           y = rows(b[Role::y], p_.w.sizes[0]);
    switch (p_.pass) {
      case ConvolutionPass::fwd:
        if (p_.bias) {
          at::addmm_out(y, b[Role::bias], x, w.t());
        } else {
          product(y, x, w.t(), b.alpha, beta);
        }
        return add_z_and_clamp(p_, b[Role::y], b);
      case ConvolutionPass::bwd_data:
        return product(x, y, w, b.alpha, beta);
      case ConvolutionPass::bwd_filter:
        return product(w, y.t(), x, b.alpha, beta);
    }
  }

  void multiply_planes(Bindings& b, const Tensor& under_windows, double beta) const {
    Tensor x = planes(under_windows, columns_), w = rows(b[Role::w], columns_),
           y = planes(b[Role::y], p_.w.sizes[0]);
    Tensor each = w.expand({x.size(0), -1, -1});  // the same for each image
    switch (p_.pass) {
      case ConvolutionPass::fwd:
        product(y, each, x, b.alpha, beta);
        return add_epilogue(p_, b[Role::y], b);
      case ConvolutionPass::bwd_data:
        return product(x, each.transpose(1, 2), y, b.alpha, beta);
      case ConvolutionPass::bwd_filter:
        Tensor sum = at::bmm(y, x.transpose(1, 2)).sum(0);
        if (beta == 0) {
          w.copy_(b.alpha == 1 ? sum : sum.mul_(b.alpha));
        } else {
          if (beta != 1) w.mul_(beta);
          w.add_(sum, b.alpha);
        }
    }
  }

  const ConvolutionProblem p_;
  const Matrices matrices_;
  const Windows windows_;
  const int64_t columns_ = p_.w.numel() / p_.w.sizes[0];  // of the weight's matrix
};

// Whether a window that is not the first may hang over the end of x's depth: on the CPU the filter
// gradient of PyTorch 2.11 (oneDNN) may then write out of bounds.
bool meets_depth_defect(const ConvolutionProblem& p) {
  if (p.pass != ConvolutionPass::bwd_filter || p.spatial_dims() != 3) return false;
  int64_t stride = p.stride[0], padding = p.padding[0];
  int64_t extent = (p.w.sizes[2] - 1) * p.dilation[0] + 1;
  int64_t first_inside = stride - ((padding - 1) % stride + 1);
  return stride > 1 && padding > 0 && first_inside + extent > p.x.sizes[2];
}

// Windows of one pixel that leave out rows and no columns: on the CPU the filter gradient of
// PyTorch 2.11 (oneDNN) may then write out of bounds in float32, on two threads. This is their part
// but for the last dimension.
bool leaves_out_rows(const ConvolutionProblem& p) {
  if (p.pass != ConvolutionPass::bwd_filter || p.x.dtype != at::kFloat) return false;
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
Unsupported refused_for_rows() {
  return {
      "PyTorch 2.11's f32 filter gradients on the CPU may write out of bounds where windows of one "
      "pixel leave out rows and no columns"};
}

// Whether the forward of PyTorch 2.11 (oneDNN) on the CPU may read beside channels-last images of
// one channel. The strides of such are contiguous ones as well.
bool meets_column_defect(const ConvolutionProblem& p) {
  int last = p.spatial_dims() - 1;
  return p.pass == ConvolutionPass::fwd && p.x.dtype == at::kFloat && last > 0 &&
         p.x.sizes[1] == 1 && p.stride[last - 1] == 1 && p.stride[last] > 1 &&
         p.y.sizes[last + 2] == 1;
}

// Whether PyTorch 2.11 (oneDNN) may be at work for ever on the CPU, making the kernel of a forward.
std::optional<Unsupported> refuse_endless(const ConvolutionProblem& p, const Device& device) {
  constexpr int64_t kMostChannels = 16, kWide = 15;
  bool depthwise = p.groups > 1 && p.groups == p.x.sizes[1];
  bool meets = p.x.dtype == at::kHalf && depthwise && p.groups <= kMostChannels &&
               p.w.sizes[p.w.sizes.size() - 1] >= kWide;
  if (device.is_cuda() || !meets) return std::nullopt;
  return Unsupported{
      "PyTorch 2.11's f16 convolutions on the CPU may never end over one channel a group, in at "
      "most 16 groups, with windows 15 or more wide"};
}

// Whether a first window lies in the padding alone, and a stride leads on from there: over bfloat16
// PyTorch 2.11 (oneDNN) may crash then on the CPU.
bool begins_in_padding(const ConvolutionProblem& p) {
  for (int i = 0; i < p.spatial_dims(); ++i) {
    int64_t extent = (p.w.sizes[i + 2] - 1) * p.dilation[i] + 1;
    if (p.stride[i] > 1 && p.padding[i] >= extent) return true;
  }
  return false;
}

// Whether PyTorch 2.11 (oneDNN) may give uninitialised memory on the CPU.
bool leaves_results_unwritten(const ConvolutionProblem& p) {
  if (p.x.dtype != at::kBFloat16 || p.pass == ConvolutionPass::bwd_data) return false;
  int last = p.spatial_dims() - 1;
  bool fwd = p.pass == ConvolutionPass::fwd;
  bool is_flat = p.spatial_dims() == 3 && p.x.sizes[2] == 1 && p.w.sizes[2] > 1;
  bool skips_images = false;
  for (int i = 0; i <= last; ++i) skips_images |= p.x.sizes[i + 2] < p.stride[i];
  bool is_one_column = p.y.sizes[last + 2] == 1;
  return (fwd && is_flat) || (!fwd && skips_images) || (p.stride[last] > 1 && is_one_column);
}

// Whether all windows lie beside the image in some dimension, so that nothing is summed: over half
// types, and in f32 with a bias, PyTorch 2.11 (oneDNN) may crash then on the CPU.
bool meets_empty_windows(const ConvolutionProblem& p) {
  // Taps and outputs are alike here: places at a distance of each other. One is looked for among
  // the fewer.
  auto meets_image = [&](int i) {
    int64_t few = p.w.sizes[i + 2], many = p.y.sizes[i + 2];
    int64_t step = p.dilation[i], other_step = p.stride[i];
    if (many < few) {
      std::swap(few, many);
      std::swap(step, other_step);
    }
    for (int64_t n = 0; n < few; ++n) {  // most often the first does
      int64_t start = n * step - p.padding[i];
      int64_t skipped = start < 0 ? (-start + other_step - 1) / other_step : 0;
      if (skipped < many && start + skipped * other_step < p.x.sizes[i + 2]) return true;
    }
    return false;
  };
  for (int i = 0; i < p.spatial_dims(); ++i) {
    if (!meets_image(i)) return true;
  }
  return false;
}

// Of convolutions and products alike.
std::optional<Unsupported> refuse_extras(const ConvolutionProblem& p) {
  if (p.compute != compute_dtype(p.x.dtype)) {
    return Unsupported{c10::str("aten computes ", dtype_text(p.x.dtype), " data in f32, not ",
                                dtype_text(p.compute))};
  }
  return std::nullopt;
}

// Of PyTorch's own convolution, whose kernel cuDNN chooses on a GPU.
std::optional<Unsupported> refuse_convolution(const ConvolutionProblem& p, const Device& device) {
  if (auto refused = refuse_extras(p)) return refused;
  if (device.is_cuda() && is_cudnn_9_19() && exceeds_int_in_8_images(p)) {
    return Unsupported{
        "PyTorch 2.11's filter gradients of half types in cuDNN 9.19 may read memory that is not "
        "there where 8 images of a larger batch have 2^31 elements or more"};
  }
  if (!device.is_cuda() && leaves_out_rows(p) && sees_each_column_alone(p)) {
    return refused_for_rows();
  }
  if (!device.is_cuda() && meets_depth_defect(p)) {
    return Unsupported{
        "PyTorch 2.11's filter gradients on the CPU may write out of bounds where strided windows "
        "that start inside x end behind its depth"};
  }
  if (!device.is_cuda() && meets_column_defect(p)) {
    return Unsupported{
        "PyTorch 2.11's f32 forwards on the CPU may read beside images of one channel where "
        "windows that go down by 1 and across by more leave one column"};
  }
  bool half = c10::isReducedFloatingType(p.x.dtype);
  bool adds_in_f32 = p.x.dtype == at::kFloat && p.bias && p.pass == ConvolutionPass::fwd;
  if (!device.is_cuda() && (half || adds_in_f32) && meets_empty_windows(p)) {
    return Unsupported{
        "PyTorch 2.11's convolutions of half types, and in f32 with a bias, on the CPU may crash "
        "where all windows lie beside the image"};
  }
  if (!device.is_cuda() && leaves_results_unwritten(p)) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may leave results unwritten: those of one "
        "column of windows with a stride above 1 across, filter gradients of images smaller than "
        "the stride, and forwards of deeper windows over volumes of depth 1"};
  }
  if (!device.is_cuda() && p.x.dtype == at::kBFloat16 && begins_in_padding(p)) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may crash where a first window lies in the "
        "padding alone and the stride is above 1"};
  }
  if (p.pass == ConvolutionPass::fwd) return refuse_endless(p, device);
  return std::nullopt;
}

// Of what is scaled behind PyTorch's kernel.
std::optional<Unsupported> refuse_scaled(const ConvolutionProblem& p) {
  if (!is_scaled_in_f16(p)) return std::nullopt;
  return Unsupported{
      "PyTorch's convolution is rounded to f16 before alpha scales it, so that it may overflow"};
}

// What is made into another convolution may become one that PyTorch gets wrong.
std::optional<Unsupported> refuse_rewriting(const ConvolutionProblem& p, const Device& device) {
  if (!device.is_cuda() && p.x.dtype == at::kBFloat16) {
    return Unsupported{
        "PyTorch 2.11's bf16 convolutions on the CPU may be wrong over images narrower than the "
        "window"};
  }
  bool one_plane = p.pass == ConvolutionPass::bwd_data && p.w.sizes[0] == 1;
  if (!device.is_cuda() && p.x.dtype == at::kFloat && one_plane) {
    return Unsupported{
        "PyTorch 2.11's f32 forwards on the CPU, which this would become, may read beside images "
        "of one channel"};
  }
  if (auto refused = refuse_endless(p, device)) return refused;
  if (auto refused = refuse_scaled(p)) return refused;
  return refuse_convolution(p, device);
}

// What PyTorch's switches make of its convolution in this pass.
Notes notes_of(ConvolutionPass pass, const ConvolutionProblem& p, const Device& device) {
  Notes notes;
  if (!device.is_cuda()) return notes;
  if (uses_tf32(at::Float32Op::CONV, p.x.dtype, device)) notes.add(Note::tf32);
  const at::Context& context = at::globalContext();
  bool deterministic = context.deterministicCuDNN() || context.deterministicAlgorithms();
  if (!deterministic && pass != ConvolutionPass::fwd) notes.add(Note::nondeterministic);
  return notes;
}

BuildResult build_default(const ConvolutionProblem& p, const Algorithm& algorithm,
                          const Device& device) {
  if (auto refused = refuse(algorithm, device)) return *refused;
  if (auto refused = refuse_convolution(p, device)) return *refused;
  // In f32 PyTorch's kernels on the CPU have defects of their own.
  if (auto refused = refuse_scaled(p); refused && !device.is_cuda()) return *refused;
  return std::make_shared<AtenConvolution>(p, algorithm, notes_of(p.pass, p, device),
                                           [p](const Bindings& b) { return convolve(p, b); });
}

BuildResult build_folded(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto refused = refuse_rewriting(p, device)) return *refused;
  if (!FoldedChannels::takes(p)) {
    return Unsupported{
        "folds forwards and filter gradients of 1 to 4 channels and a channels-last y, over 2 or 3 "
        "dimensions, with windows wider than a pixel and not dilated there, one group, "
        "cross-correlating, of f32 and narrower"};
  }
  // Folded windows are one column wide, and meet each.
  if (!device.is_cuda() && leaves_out_rows(p)) return refused_for_rows();
  if (device.is_target()) return needs_device();
  return std::make_shared<AtenConvolution>(p, algorithm, notes_of(p.pass, p, device),
                                           FoldedChannels(p));
}

Algorithm turned_algorithm(int64_t block) {
  return Algorithm{"aten", kTurned, {}}.with("block", std::to_string(block));
}

BuildResult build_turned(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto refused = refuse_rewriting(p, device)) return *refused;
  for (int64_t block : TransposedAsForward::blocks(p)) {
    if (!(algorithm == turned_algorithm(block))) continue;
    if (device.is_target()) return needs_device();
    Notes notes = notes_of(ConvolutionPass::fwd, p, device);
    return std::make_shared<AtenConvolution>(p, algorithm, notes, TransposedAsForward(p, block));
  }
  return Unsupported{
      "turns data gradients, not dilated, by blocks whose side is a multiple of each stride, with "
      "at most 64 channels of a group in a block, but for side 1: of one group 2 or more and at "
      "most 4 times the least stride, of several groups the largest stride"};
}

// Of products of matrices: what PyTorch's switch does not make of them at this moment.
std::optional<Unsupported> refuse_switch(const ConvolutionProblem& p, const Algorithm& algorithm,
                                         const Device& device) {
  Algorithm offered = product_algorithm(algorithm.name.c_str(), p, device);
  if (algorithm == offered) return std::nullopt;
  Algorithm other{"aten", algorithm.name, {}};
  bool known = algorithm == other || algorithm == other.with("math", "tf32");
  if (!known) return Unsupported{c10::str("aten has no ", algorithm.text())};
  return Unsupported{c10::str("PyTorch's switch for matrix products makes it ", offered.text())};
}

Notes notes_of_product(const Algorithm& algorithm) {
  return algorithm.options.empty() ? Notes{} : Notes{Note::tf32};
}

BuildResult build_matmul(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto refused = refuse_extras(p)) return *refused;
  std::optional<Matrices> matrices = matrices_of(p);
  if (!matrices) {
    return Unsupported{
        "a product of matrices cross-correlates with windows that do not overlap (of one pixel, or "
        "no larger than the stride), no padding, one group, packed w, and x and y in one packed "
        "layout"};
  }
  if (auto refused = refuse_switch(p, algorithm, device)) return *refused;
  bool sums = *matrices == Matrices::planes && p.pass == ConvolutionPass::bwd_filter;
  if (auto refused = sums ? refuse_scaled(p) : std::nullopt) return *refused;
  if (device.is_target()) return needs_device();
  Notes notes = notes_of_product(algorithm);
  bool halves = c10::isReducedFloatingType(p.x.dtype) && p.x.sizes[0] > 1;
  if (sums && halves) notes.add(Note::down_convert);
  return std::make_shared<MatmulConvolution>(p, algorithm, notes, *matrices);
}

BuildResult build_im2col(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto refused = refuse_extras(p)) return *refused;
  if (matrices_of(p) || !Im2col::takes(p)) {
    return Unsupported{
        "im2col is of forwards and filter gradients in f32 and f64, of one group, where "
        "aten:matmul is not, with copies of at most 1 GiB"};
  }
  if (auto refused = refuse_switch(p, algorithm, device)) return *refused;
  if (device.is_target()) return needs_device();
  return std::make_shared<AtenConvolution>(p, algorithm, notes_of_product(algorithm), Im2col(p));
}

std::vector<Candidate> all(const ConvolutionProblem& p, const Device& device) {
  std::vector<Candidate> list = candidates(p, device);
  list.push_back({product_algorithm(kMatmul, p, device), "PyTorch"});
  if (p.pass != ConvolutionPass::bwd_data) {
    list.push_back({product_algorithm(kIm2col, p, device), "PyTorch"});
    list.push_back({{"aten", kFolded, {}}, "PyTorch"});
  }
  for (int64_t block : TransposedAsForward::blocks(p))
    list.push_back({turned_algorithm(block), "PyTorch"});
  return list;
}

BuildResult build_plan(const ConvolutionProblem& p, const Algorithm& algorithm,
                       const Device& device) {
  if (algorithm.name == kMatmul) return build_matmul(p, algorithm, device);
  if (algorithm.name == kIm2col) return build_im2col(p, algorithm, device);
  if (algorithm.name == kTurned) return build_turned(p, algorithm, device);
  bool folded = algorithm.name == kFolded && algorithm.options.empty();
  return folded ? build_folded(p, algorithm, device) : build_default(p, algorithm, device);
}

const RegisterBackendOperator<ConvolutionProblem> registered("aten", all, build_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
