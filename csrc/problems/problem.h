// WHAT is computed. One plain struct per operator; each names its fields once, and the cache key,
// the text form and its parser all come from that list. Knows nothing of algorithms, backends or
// devices.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace torch_cudnn_ext {

constexpr int kMaxDims = 8;

// Sizes or strides, inline: problems are built on every call and must not allocate.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values) { append(values.begin(), values.end()); }
  Dims(c10::IntArrayRef values) { append(values.begin(), values.end()); }
  Dims(int count, int64_t value) {
    for (int i = 0; i < count; ++i) push_back(value);
  }

  void push_back(int64_t value) {
    TORCH_CHECK_VALUE(size_ < kMaxDims, "a tensor may have at most ", kMaxDims, " dimensions");
    values_[size_++] = value;
  }
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + size_; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  operator c10::IntArrayRef() const { return {values_.data(), static_cast<size_t>(size_)}; }
  bool operator==(const Dims& other) const {
    return c10::IntArrayRef(*this) == c10::IntArrayRef(other);
  }
  bool operator!=(const Dims& other) const { return !(*this == other); }

 private:
  void append(const int64_t* first, const int64_t* last) {
    for (; first != last; ++first) push_back(*first);
  }
  std::array<int64_t, kMaxDims> values_;
  int size_ = 0;
};

struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Dims sizes;
  Dims strides;

  int64_t numel() const;
  int64_t nbytes() const;
  bool operator==(const TensorSpec& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides;
  }
};

// Checks that many validate() need; `op` begins the message, `name` is the field.
void check_alignment(const char* op, int64_t alignment, c10::ScalarType dtype);
void check_sizes(const char* op, const char* name, const TensorSpec& spec, int min_dims,
                 int max_dims);

Dims contiguous_strides(const Dims& sizes);
Dims channels_last_strides(const Dims& sizes);
// Where a tensor is both, it counts as contiguous.
bool is_channels_last(const TensorSpec& t);
bool is_one_pixel(const Dims& sizes);  // of images or filters
bool is_packed(const TensorSpec& t);   // contiguous or channels-last

// What sums are in where nothing else is asked for: float32, of float64 data float64.
inline c10::ScalarType compute_dtype(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Double ? c10::ScalarType::Double : c10::ScalarType::Float;
}

// Strides of dimensions of size 1 do not matter for the values, but they would split one problem
// into several keys. All tensors of a problem are spelled in one layout wherever that is a free
// choice.
void canonicalise_strides(std::initializer_list<TensorSpec*> tensors);

std::string dtype_text(c10::ScalarType dtype);

// Of operators with one backward, and of those with none; convolution and batch norm have passes of
// their own.
enum class Pass : uint8_t { fwd, bwd };
enum class ForwardPass : uint8_t { fwd };

enum class ConvolutionPass : uint8_t { fwd, bwd_data, bwd_filter };
enum class ConvolutionMode : uint8_t { cross, conv };
enum class Accumulate : uint8_t { none, add, general };  // (alpha, beta): (1, 0), (1, 1), any
enum class Activation : uint8_t { none, relu };

// The three passes of y = conv(x, w), which the forward may go on with: it adds a bias, [channels
// of y], or gives relu(conv(x, w) + z + bias). Sizes are those of the forward convolution in every
// pass.
struct ConvolutionProblem {
  static constexpr const char* kFamily = "conv";

  ConvolutionPass pass = ConvolutionPass::fwd;
  TensorSpec x, w, y;
  Dims padding, stride, dilation;  // one entry a spatial dimension; padding is symmetrical
  int64_t groups = 1;
  c10::ScalarType compute = c10::ScalarType::Float;
  int64_t alignment = 16;  // bytes; the largest power of two up to 16 that all pointers keep
  ConvolutionMode mode = ConvolutionMode::cross;
  std::optional<c10::ScalarType> bias, z;
  Activation activation = Activation::none;
  Accumulate accumulate = Accumulate::none;

  int spatial_dims() const { return x.sizes.size() - 2; }
  bool has_epilogue() const { return bias || z || activation != Activation::none; }
  Dims output_sizes() const;
  const TensorSpec& result() const;
  TensorSpec default_output() const;
  // Gradients are computed of tensors that are aligned.
  bool takes_any_alignment() const { return pass == ConvolutionPass::fwd; }
  void canonicalise() {
    canonicalise_strides({&x, &w, &y});
    if (!takes_any_alignment()) alignment = 16;
  }
  void validate() const;       // throws ValueError naming the field
  void check_compute() const;  // the part of it that a policy may have got wrong

  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }

  // `written` fields are always in the text but may be left out by whoever writes one by hand.
  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("w", p.w);
    visit.written("pad", p.padding, Dims(p.spatial_dims(), 0));
    visit.written("stride", p.stride, Dims(p.spatial_dims(), 1));
    visit.written("dilation", p.dilation, Dims(p.spatial_dims(), 1));
    visit.written("groups", p.groups, int64_t{1});
    visit.written("compute", p.compute, p.default_compute());
    visit.layout("y", p.y, [&] { return p.default_output(); });
    visit.optional("align", p.alignment, int64_t{16});
    visit.optional("mode", p.mode, ConvolutionMode::cross);
    visit.optional("bias", p.bias, std::optional<c10::ScalarType>());
    visit.optional("z", p.z, std::optional<c10::ScalarType>());
    visit.optional("act", p.activation, Activation::none);
    visit.optional("accumulate", p.accumulate, Accumulate::none);
  }
};

// softmax or log-softmax: tensors are [outer, n, inner], contiguous, and the sum runs over n. Any
// dimension of a contiguous tensor of any rank is that.
struct SoftmaxProblem {
  static constexpr const char* kFamily = "softmax";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  bool log = false;
  int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&x}); }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("log", p.log, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class PoolingMode : uint8_t { max, avg_include, avg_exclude, sum };

// Pooling over windows of a plane or a volume; a line is a plane of height 1. All tensors have x's
// dtype and layout, which is contiguous or channels_last.
struct PoolingProblem {
  static constexpr const char* kFamily = "pool";

  Pass pass = Pass::fwd;
  TensorSpec x;
  Dims window;  // where adaptive: the output's sizes instead
  Dims padding, stride, dilation;
  PoolingMode mode = PoolingMode::max;
  bool ceil = false;      // a last window may reach beyond the padding
  bool adaptive = false;  // windows as even as they can be; their sizes differ
  int64_t divisor = 1;    // of sums
  bool train = false;     // of a maximum: leaves what its backward reads
  int64_t alignment = 16;

  int spatial_dims() const { return x.sizes.size() - 2; }
  int64_t window_volume() const;
  bool has_one_window() const;  // which is all of x
  TensorSpec y() const;
  // What a maximum leaves is read by the algorithm that left it, whatever the tensors of its
  // backward: both have aligned ones.
  bool takes_any_alignment() const {
    return !train && (mode != PoolingMode::max || pass == Pass::fwd);
  }
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("window", p.window, Dims(p.spatial_dims(), 1));
    visit.written("pad", p.padding, Dims(p.spatial_dims(), 0));
    visit.written("stride", p.stride, p.window);
    visit.written("dilation", p.dilation, Dims(p.spatial_dims(), 1));
    visit.written("mode", p.mode, PoolingMode::max);
    visit.optional("ceil", p.ceil, false);
    visit.optional("adaptive", p.adaptive, false);
    visit.optional("divisor", p.divisor, int64_t{1});
    visit.optional("train", p.train, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class BatchNormPass : uint8_t { fwd, infer, bwd };

// Batch normalisation of [N, C, S] with statistics over N and S; statistics and parameters are
// float32, for float64 data float64. Space of any rank is S, and statistics of each activation are
// those of [N, C * S, 1], so that the modes of cuDNN are algorithms.
struct BatchNormProblem {
  static constexpr const char* kFamily = "batch_norm";

  BatchNormPass pass = BatchNormPass::fwd;
  TensorSpec x;          // and y, z, dy, dx
  bool running = false;  // fwd: running statistics are kept
  bool z = false;        // fwd, infer: y = activation(batch_norm(x) + z)
  Activation activation = Activation::none;
  bool train = true;  // bwd: the statistics are x's own, and have a gradient
  int64_t alignment = 16;

  c10::ScalarType statistic_dtype() const { return compute_dtype(x.dtype); }
  TensorSpec statistic() const { return {statistic_dtype(), {x.sizes[1]}, {1}}; }
  TensorSpec image(c10::ScalarType dtype) const;  // x as [N,C,S,1], which tells its layout
  bool has_training_statistics() const {
    return pass == BatchNormPass::fwd || (pass == BatchNormPass::bwd && train);
  }
  bool is_channels_last() const { return x.strides != contiguous_strides(x.sizes); }
  // Training is computed of tensors that are aligned.
  bool takes_any_alignment() const { return pass == BatchNormPass::infer; }
  void canonicalise() {
    canonicalise_strides({&x});
    if (!takes_any_alignment()) alignment = 16;
  }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.optional("running", p.running, false);
    visit.optional("z", p.z, false);
    visit.optional("act", p.activation, Activation::none);
    visit.optional("train", p.train, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class RnnCell : uint8_t { relu, tanh, lstm, gru };  // cuDNN's numbers
enum class RnnBias : uint8_t { none, single, twice };    // single: of the input alone
enum class RnnLengths : uint8_t { full, packed };        // of the sequences of a batch

// A recurrent network of several layers over x, which is [time, batch, input]. Of a packed batch
// this is the room it would take if padded: what runs are [time * batch, input] tensors, the first
// rows of which hold the steps of all sequences, as in PyTorch's PackedSequence. The parameters are
// one tensor (core/rnn_layout.h).
struct RnnProblem {
  static constexpr const char* kFamily = "rnn";

  Pass pass = Pass::fwd;
  RnnCell cell = RnnCell::lstm;
  TensorSpec x;
  int64_t hidden = 1;
  int64_t proj = 0;  // 0: hidden states are not projected
  int64_t layers = 1;
  bool bidirectional = false;
  RnnBias bias = RnnBias::twice;
  bool skip = false;   // the first layer's input is added to each gate as it is
  double dropout = 0;  // between layers
  RnnLengths lengths = RnnLengths::full;
  bool train = false;  // leaves what backward reads
  c10::ScalarType compute = c10::ScalarType::Float;
  static constexpr int64_t alignment = 16;

  int64_t steps() const { return x.sizes[0]; }
  int64_t batch() const { return x.sizes[1]; }
  int64_t input() const { return x.sizes[2]; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t gates() const { return cell == RnnCell::lstm ? 4 : cell == RnnCell::gru ? 3 : 1; }
  int64_t state() const { return proj > 0 ? proj : hidden; }  // elements of a hidden state
  // Where cuDNN 9.19's persist_static_small_h, which PyTorch runs for float16, computes wrongly on
  // tensor cores, also where these round float32: found on an H100 and an H200 over hidden sizes to
  // 192 and batches to 128.
  bool meets_small_h_defect() const;
  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("cell", p.cell);
    visit.required("x", p.x);
    visit.required("hidden", p.hidden);
    visit.optional("proj", p.proj, int64_t{0});
    visit.written("layers", p.layers, int64_t{1});
    visit.written("bidirectional", p.bidirectional, false);
    visit.written("bias", p.bias, RnnBias::twice);
    visit.optional("skip", p.skip, false);
    visit.optional("dropout", p.dropout, 0.0);
    visit.written("lengths", p.lengths, RnnLengths::full);
    visit.written("train", p.train, p.pass == Pass::bwd);
    visit.written("compute", p.compute, p.default_compute());
  }
};

// The points of a regular grid over [-1, 1]^d under an affine map each: grid[n] = base theta[n]^T.
struct AffineGridProblem {
  static constexpr const char* kFamily = "affine_grid";

  Pass pass = Pass::fwd;
  TensorSpec theta;  // [N, d, d + 1]; like grid, contiguous
  TensorSpec grid;   // [N, *space, d], with space in the order of tensors, points in that of x, y
  bool align_corners = false;
  int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&theta}); }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("theta", p.theta);
    visit.required("grid", p.grid);
    visit.written("align_corners", p.align_corners, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

// With the numbers of PyTorch's operators.
enum class SampleMode : uint8_t { bilinear, nearest, bicubic };
enum class SamplePadding : uint8_t { zeros, border, reflection };

// x read at the points of a grid. Results are contiguous.
struct GridSampleProblem {
  static constexpr const char* kFamily = "grid_sample";

  Pass pass = Pass::fwd;
  TensorSpec x;     // [N, C, *space]
  TensorSpec grid;  // [N, *output space, d], contiguous
  SampleMode mode = SampleMode::bilinear;
  SamplePadding padding = SamplePadding::zeros;
  bool align_corners = false;
  bool input_gradient = true;  // of bwd: whether dx is wanted beside dgrid
  int64_t alignment = 16;

  int spatial_dims() const { return x.sizes.size() - 2; }
  TensorSpec output() const;
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("grid", p.grid);
    visit.written("mode", p.mode, SampleMode::bilinear);
    visit.written("padding", p.padding, SamplePadding::zeros);
    visit.written("align_corners", p.align_corners, false);
    visit.optional("input_gradient", p.input_gradient, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class RandomStream : uint8_t { philox, cudnn };  // PyTorch's generator, or cuDNN's own

// Each element of a dense tensor is zero with probability p, else divided by 1 - p.
struct DropoutProblem {
  static constexpr const char* kFamily = "dropout";

  Pass pass = Pass::fwd;
  TensorSpec x;  // all elements in the order of memory: [numel]
  double p = 0.5;
  RandomStream rng = RandomStream::philox;
  bool train = true;  // of fwd: whether the mask is kept for a backward
  // Passes that share a mask are one choice wherever their tensors lie.
  static constexpr int64_t alignment = 16;

  void canonicalise() {
    canonicalise_strides({&x});
    train = train || pass == Pass::bwd;
  }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("p", p.p, 0.5);
    visit.written("rng", p.rng, RandomStream::philox);
    visit.optional("train", p.train, true);
  }
};

// Input lengths: all of them T, or some less. Irregular: some target is empty, or so long that with
// a blank between any two labels it would not fit into its input.
enum class CtcLengths : uint8_t { full, padded, irregular };

// The CTC loss of each sequence and, if wanted, its gradient.
struct CtcProblem {
  static constexpr const char* kFamily = "ctc";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec log_probs;       // contiguous [T, N, classes]
  int64_t target_length = 1;  // the longest target's, at least 1
  int64_t blank = 0;
  CtcLengths lengths = CtcLengths::full;
  bool gradient = false;
  static constexpr int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&log_probs}); }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("log_probs", p.log_probs);
    visit.required("target_length", p.target_length);
    visit.written("blank", p.blank, int64_t{0});
    visit.written("lengths", p.lengths, CtcLengths::full);
    visit.optional("gradient", p.gradient, false);
  }
};

enum class LayerNormKind : uint8_t { layer, rms, instance, group };

// Norms by the statistics of one sample. layer and rms: x is [rows, n], contiguous, normalised over
// n, with parameters [n]. instance and group: x is [batch, channels, space] with parameters
// [channels]; an instance norm is also nhwc. epsilon is given at the run.
struct LayerNormProblem {
  static constexpr const char* kFamily = "layer_norm";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and y, dy, dx
  LayerNormKind kind = LayerNormKind::layer;
  int64_t groups = 1;  // of channels, in a group norm; else 1
  std::optional<c10::ScalarType> w, bias;
  bool stats = true;  // whether a forward also gives mean and invstd; a backward reads them
  int64_t alignment = 16;

  // What is normalised together is one group of [batch, groups, channels / groups, space]: the one
  // view that all kinds have.
  struct View {
    int64_t batch, groups, channels, space;

    int64_t count() const { return batch * groups; }  // of statistics
    int64_t length() const { return channels / groups * space; }
  };
  View view() const;
  bool has_mean() const { return kind != LayerNormKind::rms; }
  TensorSpec statistics() const;
  TensorSpec parameters(c10::ScalarType dtype) const { return {dtype, {view().channels}, {1}}; }

  void canonicalise() { canonicalise_strides({&x}); }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.optional("groups", p.groups, int64_t{1});
    visit.optional("w", p.w, std::optional<c10::ScalarType>());
    visit.optional("bias", p.bias, std::optional<c10::ScalarType>());
    visit.optional("stats", p.stats, true);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class LrnKind : uint8_t { cross_channel, divisive };
enum class LrnWindow : uint8_t { torch, cudnn };

// x divided by (k + alpha * mean of squares in a window)^beta, all being zero outside of x.
// cross_channel: x is [batch, channels, space], the window runs over channels. divisive: x is
// [batch, channels, space...], the window runs over each spatial dimension, and what is squared is
// x - means. Tensors are contiguous.
struct LrnProblem {
  static constexpr const char* kFamily = "lrn";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  LrnKind kind = LrnKind::cross_channel;
  int64_t size = 5;  // of the window
  double alpha = 1e-4, beta = 0.75, k = 1;
  LrnWindow window = LrnWindow::torch;  // where a window of even size has its middle
  bool means = false;                   // whether there are any
  int64_t alignment = 16;

  // Elements of the window before its middle.
  int64_t behind() const { return window == LrnWindow::torch ? size / 2 : (size - 1) / 2; }
  int64_t ahead() const { return size - 1 - behind(); }
  // Dimensions that the window runs over.
  int first_dim() const { return kind == LrnKind::divisive ? 2 : 1; }
  int end_dim() const { return kind == LrnKind::divisive ? x.sizes.size() : 2; }
  double elements() const;  // of the window

  // Windows of odd size are the same in both; those of divisive norms are always cuDNN's.
  void canonicalise() {
    canonicalise_strides({&x});
    window =
        size % 2 == 1 ? LrnWindow::torch : (kind == LrnKind::divisive ? LrnWindow::cudnn : window);
  }
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.required("size", p.size);
    visit.written("alpha", p.alpha, 1e-4);
    visit.written("beta", p.beta, 0.75);
    visit.written("k", p.k, 1.0);
    visit.optional("window", p.window, LrnWindow::torch);
    visit.optional("means", p.means, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

enum class ActivationKind : uint8_t { relu, clipped_relu, tanh, sigmoid, elu, swish };

// An elementwise function of a dense tensor, which is [n] whatever its shape.
struct ActivationProblem {
  static constexpr const char* kFamily = "activation";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  ActivationKind kind = ActivationKind::relu;
  double coefficient = 1;    // ceiling of clipped_relu, alpha of elu, beta of swish; else 1
  bool from_output = false;  // the gradient is computed from y alone
  int64_t alignment = 16;

  bool has_coefficient() const {
    return kind == ActivationKind::clipped_relu || kind == ActivationKind::elu ||
           kind == ActivationKind::swish;
  }
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.optional("coefficient", p.coefficient, 1.0);
    visit.optional("from_output", p.from_output, p.pass == Pass::bwd && !p.has_coefficient());
    visit.optional("align", p.alignment, int64_t{16});
  }
};

// y = act(alpha x w + beta z + bias): x is [batch, m, k], w is [batch, k, n], either batch may be 1
// and then serves all; y and z are [batch, m, n] and contiguous, bias is [n]. A transpose is a
// matter of strides, and gradients are products themselves.
struct MatmulProblem {
  static constexpr const char* kFamily = "matmul";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec x, w;
  c10::ScalarType compute = c10::ScalarType::Float;
  int64_t alignment = 16;
  bool bias = false;
  Activation activation = Activation::none;
  Accumulate accumulate = Accumulate::none;  // of z; `general` with or without one
  bool z = false;

  TensorSpec output() const {
    Dims sizes{std::max(x.sizes[0], w.sizes[0]), x.sizes[1], w.sizes[2]};
    return {x.dtype, sizes, contiguous_strides(sizes)};
  }
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("w", p.w);
    visit.written("compute", p.compute, p.default_compute());
    visit.optional("align", p.alignment, int64_t{16});
    visit.optional("bias", p.bias, false);
    visit.optional("act", p.activation, Activation::none);
    visit.optional("accumulate", p.accumulate, Accumulate::none);
    visit.optional("z", p.z, p.accumulate != Accumulate::none);
  }
};

enum class ReduceKind : uint8_t {
  add,
  mul,
  min,
  max,
  absmax,
  mean,
  norm1,
  norm2,
  mul_no_zeros,
};

// x is contiguous. Neighbouring dimensions of which all or none are reduced are one, and those of
// size 1 are left out, so that reduced and kept dimensions take turns; one at least is reduced. y
// has x's rank, with sizes of 1 where x is reduced.
struct ReduceProblem {
  static constexpr const char* kFamily = "reduce";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec x;
  bool first_reduced = false;  // of the dimensions that take turns
  ReduceKind kind = ReduceKind::add;
  bool indices = false;  // of min or max, counted over the reduced dimensions
  int64_t alignment = 16;

  bool reduces(int dim) const { return (dim % 2 == 0) == first_reduced; }
  Dims reduced_dims() const;
  Dims rows_order() const;  // the kept dimensions, then the reduced ones
  int64_t reduced_count() const;
  TensorSpec output() const;
  void canonicalise();
  void validate() const;  // throws ValueError naming the field

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("first_reduced", p.first_reduced, false);
    visit.required("kind", p.kind);
    visit.optional("indices", p.indices, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

// Every operator's problem; the order is that of listings.
using Problem =
    std::variant<ConvolutionProblem, SoftmaxProblem, PoolingProblem, BatchNormProblem, RnnProblem,
                 AffineGridProblem, GridSampleProblem, DropoutProblem, CtcProblem, LayerNormProblem,
                 LrnProblem, ActivationProblem, MatmulProblem, ReduceProblem>;

// The words of problem texts are those of arguments; `what` begins the message of a ValueError.
Activation activation_from_text(std::string_view what, std::string_view text);
LayerNormKind layer_norm_kind_from_text(std::string_view what, std::string_view text);
LrnKind lrn_kind_from_text(std::string_view what, std::string_view text);
LrnWindow lrn_window_from_text(std::string_view what, std::string_view text);
ActivationKind activation_kind_from_text(std::string_view what, std::string_view text);
ReduceKind reduce_kind_from_text(std::string_view what, std::string_view text);

const char* family_of(const Problem& problem);
std::string pass_of(const Problem& problem);                 // "fwd"
std::vector<std::string> passes_of(const Problem& problem);  // all of its family
int64_t alignment_of_tensors(const Problem& problem);
std::string op_of(const Problem& problem);  // "conv_fwd"
std::string problem_text(const Problem& problem);
Problem parse_problem(std::string_view text);  // throws ValueError; canonical and valid

// Every field with its text, also those that problem_text leaves out; and the fields' names of an
// operator such as "conv_fwd".
std::vector<std::pair<std::string, std::string>> problem_fields(const Problem& problem);
std::vector<std::string> field_names(std::string_view op);  // throws ValueError

// Everything that tells one problem from another, as words: hashed and compared without allocation.
class Key {
 public:
  void push(int64_t word) {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(count_ < static_cast<int>(words_.size()));
    words_[count_++] = word;
  }
  void finish();
  uint64_t hash() const { return hash_; }
  bool operator==(const Key& other) const;

 private:
  std::array<int64_t, 80> words_;
  int count_ = 0;
  uint64_t hash_ = 0;
};

void append_key(Key& key, const Problem& problem);

}  // namespace torch_cudnn_ext
