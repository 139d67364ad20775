#include "problems/problem.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/enum_text.h"
#include "core/base/text.h"
#include "problems/field_forms.h"

namespace torch_cudnn_ext {

namespace {

constexpr EnumName<c10::ScalarType> kDtypes[] = {{c10::ScalarType::Double, "f64"},
                                                 {c10::ScalarType::Float, "f32"},
                                                 {c10::ScalarType::Half, "f16"},
                                                 {c10::ScalarType::BFloat16, "bf16"}};
constexpr EnumName<Pass> kPasses[] = {{Pass::fwd, "fwd"}, {Pass::bwd, "bwd"}};
constexpr EnumName<ForwardPass> kForwardPasses[] = {{ForwardPass::fwd, "fwd"}};
constexpr EnumName<ConvolutionPass> kConvolutionPasses[] = {
    {ConvolutionPass::fwd, "fwd"},
    {ConvolutionPass::bwd_data, "bwd_data"},
    {ConvolutionPass::bwd_filter, "bwd_filter"}};
constexpr EnumName<ConvolutionMode> kModes[] = {{ConvolutionMode::cross, "cross"},
                                                {ConvolutionMode::conv, "conv"}};
constexpr EnumName<Accumulate> kAccumulates[] = {
    {Accumulate::none, "none"}, {Accumulate::add, "add"}, {Accumulate::general, "general"}};
constexpr EnumName<Activation> kActivations[] = {{Activation::none, "none"},
                                                 {Activation::relu, "relu"}};

constexpr EnumName<bool> kBooleans[] = {{false, "false"}, {true, "true"}};

const auto& words_of(bool) { return kBooleans; }
const auto& words_of(c10::ScalarType) { return kDtypes; }
const auto& words_of(Pass) { return kPasses; }
const auto& words_of(ForwardPass) { return kForwardPasses; }
const auto& words_of(ConvolutionPass) { return kConvolutionPasses; }
const auto& words_of(ConvolutionMode) { return kModes; }
const auto& words_of(Accumulate) { return kAccumulates; }
const auto& words_of(Activation) { return kActivations; }

constexpr EnumName<PoolingMode> kPoolingModes[] = {{PoolingMode::max, "max"},
                                                   {PoolingMode::avg_include, "avg_include"},
                                                   {PoolingMode::avg_exclude, "avg_exclude"},
                                                   {PoolingMode::sum, "sum"}};
const auto& words_of(PoolingMode) { return kPoolingModes; }

constexpr EnumName<BatchNormPass> kBatchNormPasses[] = {
    {BatchNormPass::fwd, "fwd"}, {BatchNormPass::infer, "infer"}, {BatchNormPass::bwd, "bwd"}};
const auto& words_of(BatchNormPass) { return kBatchNormPasses; }

constexpr EnumName<RnnCell> kRnnCells[] = {{RnnCell::relu, "relu"},
                                           {RnnCell::tanh, "tanh"},
                                           {RnnCell::lstm, "lstm"},
                                           {RnnCell::gru, "gru"}};
constexpr EnumName<RnnBias> kRnnBiases[] = {
    {RnnBias::none, "none"}, {RnnBias::single, "single"}, {RnnBias::twice, "double"}};
constexpr EnumName<RnnLengths> kRnnLengths[] = {{RnnLengths::full, "full"},
                                                {RnnLengths::packed, "packed"}};
const auto& words_of(RnnCell) { return kRnnCells; }
const auto& words_of(RnnBias) { return kRnnBiases; }
const auto& words_of(RnnLengths) { return kRnnLengths; }

constexpr EnumName<SampleMode> kSampleModes[] = {{SampleMode::bilinear, "bilinear"},
                                                 {SampleMode::nearest, "nearest"},
                                                 {SampleMode::bicubic, "bicubic"}};
constexpr EnumName<SamplePadding> kSamplePaddings[] = {{SamplePadding::zeros, "zeros"},
                                                       {SamplePadding::border, "border"},
                                                       {SamplePadding::reflection, "reflection"}};
constexpr EnumName<RandomStream> kRandomStreams[] = {{RandomStream::philox, "philox"},
                                                     {RandomStream::cudnn, "cudnn"}};
constexpr EnumName<CtcLengths> kCtcLengths[] = {{CtcLengths::full, "full"},
                                                {CtcLengths::padded, "padded"},
                                                {CtcLengths::irregular, "irregular"}};
const auto& words_of(SampleMode) { return kSampleModes; }
const auto& words_of(SamplePadding) { return kSamplePaddings; }
const auto& words_of(RandomStream) { return kRandomStreams; }
const auto& words_of(CtcLengths) { return kCtcLengths; }

constexpr EnumName<LayerNormKind> kLayerNormKinds[] = {{LayerNormKind::layer, "layer"},
                                                       {LayerNormKind::rms, "rms"},
                                                       {LayerNormKind::instance, "instance"},
                                                       {LayerNormKind::group, "group"}};
const auto& words_of(LayerNormKind) { return kLayerNormKinds; }

constexpr EnumName<LrnKind> kLrnKinds[] = {{LrnKind::cross_channel, "cross_channel"},
                                           {LrnKind::divisive, "divisive"}};
constexpr EnumName<LrnWindow> kLrnWindows[] = {{LrnWindow::torch, "torch"},
                                               {LrnWindow::cudnn, "cudnn"}};
const auto& words_of(LrnKind) { return kLrnKinds; }
const auto& words_of(LrnWindow) { return kLrnWindows; }

constexpr EnumName<ActivationKind> kActivationKinds[] = {
    {ActivationKind::relu, "relu"}, {ActivationKind::clipped_relu, "clipped_relu"},
    {ActivationKind::tanh, "tanh"}, {ActivationKind::sigmoid, "sigmoid"},
    {ActivationKind::elu, "elu"},   {ActivationKind::swish, "swish"}};
const auto& words_of(ActivationKind) { return kActivationKinds; }

constexpr EnumName<ReduceKind> kReduceKinds[] = {{ReduceKind::add, "add"},
                                                 {ReduceKind::mul, "mul"},
                                                 {ReduceKind::min, "min"},
                                                 {ReduceKind::max, "max"},
                                                 {ReduceKind::absmax, "absmax"},
                                                 {ReduceKind::mean, "mean"},
                                                 {ReduceKind::norm1, "norm1"},
                                                 {ReduceKind::norm2, "norm2"},
                                                 {ReduceKind::mul_no_zeros, "mul_no_zeros"}};
const auto& words_of(ReduceKind) { return kReduceKinds; }

template <class T>
std::string word_of(T value) {
  return enum_text(words_of(value), value);
}

template <class T>
T word_from_text(std::string_view what, std::string_view text) {
  return enum_value(words_of(T{}), c10::str("problem text: ", what), text);
}

int64_t integer_from_text(std::string_view what, std::string_view text) {
  int64_t value = 0;
  bool valid = !text.empty() && text.size() <= 18;
  bool negative = valid && text.front() == '-';
  if (negative) text.remove_prefix(1);
  valid = valid && !text.empty();
  for (char c : text) {
    valid = valid && c >= '0' && c <= '9';
    value = value * 10 + (c - '0');
  }
  TORCH_CHECK_VALUE(valid, "problem text: ", what, " holds '", text,
                    "', wanted an integer of at most 18 digits");
  return negative ? -value : value;
}

// The shortest text that reads back as the same number.
std::string number_text(double value) {
  std::array<char, 32> buffer;
  auto end = std::to_chars(buffer.begin(), buffer.end(), value).ptr;
  return {buffer.begin(), end};
}

double number_from_text(std::string_view what, std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(
      error == std::errc() && end == text.data() + text.size() && std::isfinite(value),
      "problem text: ", what, " holds '", text, "', wanted a number");
  return value;
}

Dims integers_from_text(std::string_view what, std::string_view text) {
  Dims values;
  while (true) {
    size_t comma = text.find(',');
    values.push_back(integer_from_text(what, text.substr(0, comma)));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

std::string integers_text(const Dims& values) { return c10::Join(",", c10::IntArrayRef(values)); }

bool same_where_it_matters(const Dims& sizes, const Dims& a, const Dims& b) {
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

bool has_zero(const Dims& sizes) {
  for (int64_t size : sizes) {
    if (size == 0) return true;
  }
  return false;
}

// ":nhwc", ":nchw" or ":s(1,2,3,4)".
std::string layout_text(const TensorSpec& spec) {
  if (spec.strides == contiguous_strides(spec.sizes)) return ":nchw";
  if (spec.strides == channels_last_strides(spec.sizes)) return ":nhwc";
  return c10::str(":s(", integers_text(spec.strides), ")");
}

Dims layout_from_text(std::string_view what, std::string_view text, const Dims& sizes) {
  if (text == ":nchw") return contiguous_strides(sizes);
  if (text == ":nhwc") return channels_last_strides(sizes);
  bool is_list = text.size() > 4 && text.substr(0, 3) == ":s(" && text.back() == ')';
  TORCH_CHECK_VALUE(is_list, "problem text: layout of ", what, " is '", text,
                    "', wanted :nchw, :nhwc or :s(stride,stride,...)");
  Dims strides = integers_from_text(what, text.substr(3, text.size() - 4));
  TORCH_CHECK_VALUE(strides.size() == sizes.size(), "problem text: ", what, " has ", sizes.size(),
                    " sizes but ", strides.size(), " strides");
  for (int i = 0; i < strides.size(); ++i) {
    TORCH_CHECK_VALUE(strides[i] >= 0, "problem text: ", what, " has the negative stride ",
                      strides[i]);
    TORCH_CHECK_VALUE(strides[i] > 0 || sizes[i] <= 1, "problem text: ", what,
                      " has the stride 0 over the size ", sizes[i]);
  }
  return strides;
}

TensorSpec tensor_from_text(std::string_view what, std::string_view text) {
  size_t open = text.find('[');
  size_t close = text.find(']');
  TORCH_CHECK_VALUE(
      open != std::string_view::npos && close != std::string_view::npos && open < close,
      "problem text: ", what, " is '", text, "', wanted dtype[size,size,...]:layout");
  TensorSpec spec;
  spec.dtype = word_from_text<c10::ScalarType>(what, text.substr(0, open));
  spec.sizes = integers_from_text(what, text.substr(open + 1, close - open - 1));
  spec.strides = layout_from_text(what, text.substr(close + 1), spec.sizes);
  return spec;
}

// Writes the fields after the first word.
struct TextWriter {
  std::string& out;

  void field(const char* name, const std::string& value) {
    out += ' ';
    out += name;
    out += '=';
    out += value;
  }
  static std::string text(const TensorSpec& v) {
    return c10::str(dtype_text(v.dtype), "[", integers_text(v.sizes), "]", layout_text(v));
  }
  static std::string text(int64_t v) { return std::to_string(v); }
  static std::string text(double v) { return number_text(v); }
  template <class T>
  static std::string text(T v) {
    return word_of(v);
  }
  template <class T>
  static std::string text(const std::optional<T>& v) {
    return word_of(*v);
  }
  template <class T>
  void required(const char* name, const T& value) {
    field(name, text(value));
  }
  template <class T>
  void written(const char* name, const T& value, const T&) {
    field(name, text(value));
  }
  void written(const char* name, const Dims& values, const Dims&) {
    bool equal = true;
    for (int64_t value : values) equal = equal && value == values[0];
    field(name, equal ? std::to_string(values[0]) : integers_text(values));
  }
  template <class T>
  void optional(const char* name, const T& value, const T& otherwise) {
    if (!(value == otherwise)) field(name, text(value));
  }
  template <class Default>
  void layout(const char* name, const TensorSpec& value, Default&& otherwise) {
    if (!(value == otherwise())) field(name, layout_text(value));
  }
};

// To `Visitor` fields of all kinds are alike; of a derived tensor there is the layout.
template <class Visitor>
struct EachField : Visitor {
  template <class T>
  void required(const char* name, const T& value) {
    this->field(name, value);
  }
  template <class T>
  void written(const char* name, const T& value, const T&) {
    this->field(name, value);
  }
  template <class T>
  void optional(const char* name, const T& value, const T&) {
    this->field(name, value);
  }
  template <class Default>
  void layout(const char* name, const TensorSpec& value, Default&&) {
    this->layout_field(name, value);
  }
};

// All fields, also those that the text leaves out.
struct FieldLister {
  std::vector<std::pair<std::string, std::string>>& out;

  template <class T>
  void field(const char* name, const T& value) {
    out.emplace_back(name, TextWriter::text(value));
  }
  template <class T>
  void field(const char* name, const std::optional<T>& value) {
    out.emplace_back(name, value ? TextWriter::text(value) : "");
  }
  void field(const char* name, const Dims& values) {
    std::string text;
    TextWriter{text}.written(name, values, values);
    out.emplace_back(name, text.substr(text.find('=') + 1));
  }
  void layout_field(const char* name, const TensorSpec& value) {
    out.emplace_back(name, layout_text(value));
  }
};

// Their names alone, of a problem that need not be valid.
struct NameLister {
  std::vector<std::string>& out;

  template <class T>
  void field(const char* name, const T&) {
    out.emplace_back(name);
  }
  void layout_field(const char* name, const TensorSpec&) { out.emplace_back(name); }
};

// What their values may look like.
struct FormLister {
  std::vector<std::pair<std::string, std::vector<std::string>>>& out;

  static std::vector<std::string> forms(const TensorSpec&) {
    std::vector<std::string> list;
    for (const auto& dtype : kDtypes) {
      for (const std::string& layout : layouts()) {
        list.push_back(c10::str(dtype.text, "[", kNumbers, "]", layout));
      }
    }
    return list;
  }
  static std::vector<std::string> forms(int64_t) { return {std::string(1, kNumbers)}; }
  static std::vector<std::string> forms(double) { return {std::string(1, kNumbers)}; }
  static std::vector<std::string> forms(const Dims&) { return {std::string(1, kNumbers)}; }
  template <class T>
  static std::vector<std::string> forms(T) {
    std::vector<std::string> list;
    for (const auto& word : words_of(T{})) list.emplace_back(word.text);
    return list;
  }
  template <class T>
  static std::vector<std::string> forms(const std::optional<T>&) {
    std::vector<std::string> list = forms(T{});
    list.emplace_back("");
    return list;
  }
  static std::vector<std::string> layouts() {
    return {":nchw", ":nhwc", c10::str(":s(", kNumbers, ")")};
  }
  template <class T>
  void field(const char* name, const T& value) {
    out.emplace_back(name, forms(value));
  }
  void layout_field(const char* name, const TensorSpec&) { out.emplace_back(name, layouts()); }
};

// Reads the same fields, in the same order.
struct TextReader {
  std::vector<std::pair<std::string_view, std::string_view>> tokens;
  size_t next = 0;

  std::optional<std::string_view> take(std::string_view name) {
    if (next < tokens.size() && tokens[next].first == name) return tokens[next++].second;
    return std::nullopt;
  }
  std::string_view must_take(const char* name) {
    auto value = take(name);
    TORCH_CHECK_VALUE(value, "problem text: wanted '", name, "=' ",
                      next < tokens.size() ? c10::str("before '", tokens[next].first, "='")
                                           : std::string("at the end"));
    return *value;
  }
  static void read(std::string_view what, std::string_view text, TensorSpec& value) {
    value = tensor_from_text(what, text);
  }
  static void read(std::string_view what, std::string_view text, int64_t& value) {
    value = integer_from_text(what, text);
  }
  static void read(std::string_view what, std::string_view text, double& value) {
    value = number_from_text(what, text);
  }
  template <class T>
  static void read(std::string_view what, std::string_view text, T& value) {
    value = word_from_text<T>(what, text);
  }
  template <class T>
  static void read(std::string_view what, std::string_view text, std::optional<T>& value) {
    value = word_from_text<T>(what, text);
  }
  template <class T>
  void required(const char* name, T& value) {
    read(name, must_take(name), value);
  }
  template <class T>
  void written(const char* name, T& value, const T& otherwise) {
    optional(name, value, otherwise);
  }
  void written(const char* name, Dims& values, const Dims& otherwise) {
    values = otherwise;
    auto text = take(name);
    if (!text) return;
    values = integers_from_text(name, *text);
    if (values.size() == 1) values = Dims(otherwise.size(), values[0]);
    TORCH_CHECK_VALUE(values.size() == otherwise.size(), "problem text: ", name, " has ",
                      values.size(), " values, wanted one or ", otherwise.size());
  }
  template <class T>
  void optional(const char* name, T& value, const T& otherwise) {
    value = otherwise;
    if (auto text = take(name)) read(name, *text, value);
  }
  template <class Default>
  void layout(const char* name, TensorSpec& value, Default&& otherwise) {
    value = otherwise();
    if (auto text = take(name)) value.strides = layout_from_text(name, *text, value.sizes);
  }
};

struct KeyWriter {
  Key& key;

  void add(const Dims& v) {
    for (int64_t word : v) key.push(word);
  }
  void add(const TensorSpec& v) {
    key.push(static_cast<int64_t>(v.dtype) << 8 | v.sizes.size());
    add(v.sizes);
    add(v.strides);
  }
  void add(int64_t v) { key.push(v); }
  void add(double v) {
    int64_t word;
    std::memcpy(&word, &v, sizeof word);
    key.push(word);
  }
  template <class T>
  void add(T v) {
    key.push(static_cast<int64_t>(v));
  }
  template <class T>
  void add(const std::optional<T>& v) {
    key.push(v ? static_cast<int64_t>(*v) + 1 : 0);
  }
  template <class T>
  void field(const char*, const T& value) {
    add(value);
  }
  // Sizes of a derived tensor follow from the other fields.
  void layout_field(const char*, const TensorSpec& value) { add(value.strides); }
};

uint64_t mix(uint64_t a, uint64_t b) {
  __uint128_t product = static_cast<__uint128_t>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

int64_t TensorSpec::numel() const {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

int64_t TensorSpec::nbytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides(sizes.size(), 1);
  for (int i = sizes.size() - 2; i >= 0; --i) {
    strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
  }
  return strides;
}

Dims channels_last_strides(const Dims& sizes) {
  if (sizes.size() < 3) return contiguous_strides(sizes);
  Dims strides(sizes.size(), 1);
  int64_t step = std::max<int64_t>(sizes[1], 1);
  for (int i = sizes.size() - 1; i >= 2; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  strides[0] = step;
  return strides;
}

void canonicalise_strides(std::initializer_list<TensorSpec*> tensors) {
  struct Match {
    Dims contiguous, channels_last;
    bool is_contiguous, is_channels_last;
  };
  std::array<Match, 8> matches;
  bool prefer_channels_last = false;
  size_t count = 0;
  for (TensorSpec* t : tensors) {
    Match& m = matches[count++];
    m.contiguous = contiguous_strides(t->sizes);
    m.channels_last = channels_last_strides(t->sizes);
    m.is_contiguous = same_where_it_matters(t->sizes, t->strides, m.contiguous);
    m.is_channels_last = same_where_it_matters(t->sizes, t->strides, m.channels_last);
    prefer_channels_last |= m.is_channels_last && !m.is_contiguous;
  }
  count = 0;
  for (TensorSpec* t : tensors) {
    const Match& m = matches[count++];
    if (m.is_channels_last && (prefer_channels_last || !m.is_contiguous)) {
      t->strides = m.channels_last;
    } else if (m.is_contiguous) {
      t->strides = m.contiguous;
    } else {
      for (int i = t->sizes.size() - 1; i >= 0; --i) {
        if (t->sizes[i] > 1) continue;
        bool last = i + 1 == t->sizes.size();
        t->strides[i] = last ? 1 : t->strides[i + 1] * std::max<int64_t>(t->sizes[i + 1], 1);
      }
    }
  }
}

std::string dtype_text(c10::ScalarType dtype) {
  for (const auto& word : kDtypes) {
    if (word.value == dtype) return word.text;
  }
  return c10::toString(dtype);
}

Activation activation_from_text(std::string_view what, std::string_view text) {
  return enum_value(kActivations, what, text);
}
LayerNormKind layer_norm_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLayerNormKinds, what, text);
}
LrnKind lrn_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLrnKinds, what, text);
}
LrnWindow lrn_window_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLrnWindows, what, text);
}
ActivationKind activation_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kActivationKinds, what, text);
}
ReduceKind reduce_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kReduceKinds, what, text);
}

void check_alignment(const char* op, int64_t alignment, c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(alignment >= 1 && alignment <= 16 && (alignment & (alignment - 1)) == 0, op,
                    ": align is ", alignment, ", wanted 1, 2, 4, 8 or 16");
  TORCH_CHECK_VALUE(alignment >= static_cast<int64_t>(c10::elementSize(dtype)), op, ": align is ",
                    alignment, ", wanted at least an element of ", dtype_text(dtype));
}

void check_sizes(const char* op, const char* name, const TensorSpec& spec, int min_dims,
                 int max_dims) {
  TORCH_CHECK_VALUE(spec.sizes.size() >= min_dims && spec.sizes.size() <= max_dims, op, ": ", name,
                    " has sizes [", integers_text(spec.sizes), "], wanted ", min_dims,
                    min_dims == max_dims ? "" : c10::str(" to ", max_dims), " dimensions");
  for (int64_t size : spec.sizes) {
    TORCH_CHECK_VALUE(size >= 1, op, ": ", name, " has sizes [", integers_text(spec.sizes),
                      "], wanted sizes of at least 1");
  }
  double bytes = static_cast<double>(c10::elementSize(spec.dtype));
  for (int64_t size : spec.sizes) bytes *= static_cast<double>(size);
  TORCH_CHECK_VALUE(bytes < 1e15, op, ": ", name, " has sizes [", integers_text(spec.sizes),
                    "], wanted less than 10^15 bytes");
}

bool is_channels_last(const TensorSpec& t) {
  return t.strides == channels_last_strides(t.sizes) && t.strides != contiguous_strides(t.sizes);
}

bool is_one_pixel(const Dims& sizes) {
  return std::all_of(sizes.begin() + 2, sizes.end(), [](int64_t n) { return n == 1; });
}

bool is_packed(const TensorSpec& t) {
  return t.strides == contiguous_strides(t.sizes) || t.strides == channels_last_strides(t.sizes);
}

TensorSpec BatchNormProblem::image(c10::ScalarType dtype) const {
  const Dims &n = x.sizes, &strides = x.strides;
  int64_t last = is_channels_last() ? n[1] : 1;
  return {dtype, {n[0], n[1], n[2], 1}, {strides[0], strides[1], strides[2], last}};
}

const TensorSpec& ConvolutionProblem::result() const {
  switch (pass) {
    case ConvolutionPass::fwd:
      return y;
    case ConvolutionPass::bwd_data:
      return x;
    case ConvolutionPass::bwd_filter:
      return w;
  }
  TORCH_INTERNAL_ASSERT(false);
}

Dims ConvolutionProblem::output_sizes() const {
  Dims sizes{x.sizes[0], w.sizes[0]};
  for (int i = 0; i < spatial_dims(); ++i) {
    int64_t reach = 0, room = x.sizes[i + 2] + 2 * padding[i];
    bool overflows = __builtin_mul_overflow(dilation[i], w.sizes[i + 2] - 1, &reach);
    bool fits = !overflows && reach >= 0 && reach < room && stride[i] > 0;
    sizes.push_back(fits ? (room - reach - 1) / stride[i] + 1 : 0);
  }
  return sizes;
}

TensorSpec ConvolutionProblem::default_output() const {
  TensorSpec output{x.dtype, output_sizes(), {}};
  bool channels_last = is_channels_last(x) || is_channels_last(w);
  output.strides =
      channels_last ? channels_last_strides(output.sizes) : contiguous_strides(output.sizes);
  return output;
}

void ConvolutionProblem::check_compute() const {
  bool is_double = x.dtype == c10::ScalarType::Double;
  TORCH_CHECK_VALUE(!is_double || compute == c10::ScalarType::Double, "convolution: compute is ",
                    dtype_text(compute), " for f64 data, wanted f64");
}

void ConvolutionProblem::validate() const {
  auto sizes_text = [](const TensorSpec& t) { return integers_text(t.sizes); };
  int rank = x.sizes.size();
  check_sizes("convolution", "x", x, 3, 5);
  TORCH_CHECK_VALUE(w.sizes.size() == rank, "convolution: w has sizes [", sizes_text(w),
                    "], wanted as many dimensions as x, which has [", sizes_text(x), "]");
  check_sizes("convolution", "w", w, rank, rank);
  TORCH_CHECK_VALUE(x.dtype == w.dtype, "convolution: w is ", dtype_text(w.dtype),
                    ", wanted x's dtype ", dtype_text(x.dtype));
  TORCH_CHECK_VALUE(groups >= 1, "convolution: groups is ", groups, ", wanted at least 1");
  TORCH_CHECK_VALUE(w.sizes[1] * groups == x.sizes[1], "convolution: w has sizes [", sizes_text(w),
                    "] with groups=", groups, ", wanted ", x.sizes[1], "/", groups,
                    " input channels in w, since x has ", x.sizes[1]);
  TORCH_CHECK_VALUE(w.sizes[0] % groups == 0, "convolution: w has ", w.sizes[0],
                    " output channels, wanted a multiple of groups=", groups);
  for (int i = 0; i < spatial_dims(); ++i) {
    constexpr int64_t kMost = int64_t{1} << 40;  // what is computed from them does not overflow
    auto check = [](const char* name, int64_t value, int64_t least) {
      TORCH_CHECK_VALUE(value >= least && value <= kMost, "convolution: ", name, " is ", value,
                        ", wanted at least ", least, value > kMost ? " and at most 2^40" : "");
    };
    check("pad", padding[i], 0);
    check("stride", stride[i], 1);
    check("dilation", dilation[i], 1);
  }
  TORCH_CHECK_VALUE(!has_zero(output_sizes()), "convolution: the kernel of w [", sizes_text(w),
                    "] with dilation=", integers_text(dilation), " is larger than the padded x [",
                    sizes_text(x), "] with pad=", integers_text(padding));
  check_sizes("convolution", "y", {x.dtype, output_sizes(), {}}, rank, rank);
  check_alignment("convolution", alignment, x.dtype);
  check_compute();
  auto check_epilogue = [&](const char* name, const std::string& value) {
    TORCH_CHECK_VALUE(pass == ConvolutionPass::fwd, "convolution: ", name, " is ", value,
                      " in conv_", word_of(pass), ", wanted it in conv_fwd only");
    TORCH_CHECK_VALUE(accumulate == Accumulate::none, "convolution: ", name, " is ", value,
                      " with accumulate=", word_of(accumulate), ", wanted one of the two");
  };
  auto check_addend = [&](const char* name, const std::optional<c10::ScalarType>& dtype) {
    if (!dtype) return;
    TORCH_CHECK_VALUE(*dtype == x.dtype, "convolution: ", name, " is ", dtype_text(*dtype),
                      ", wanted x's dtype ", dtype_text(x.dtype));
    check_epilogue(name, dtype_text(*dtype));
  };
  bool relu = activation == Activation::relu;
  check_addend("bias", bias);
  check_addend("z", z);
  if (relu) check_epilogue("act", word_of(activation));
  TORCH_CHECK_VALUE(!z || relu, "convolution: z is ", dtype_text(*z),
                    " without act=relu, wanted accumulate=add for the sum alone");
}

const char* family_of(const Problem& problem) {
  return std::visit([](const auto& p) { return std::decay_t<decltype(p)>::kFamily; }, problem);
}

std::string pass_of(const Problem& problem) {
  return std::visit([](const auto& p) { return word_of(p.pass); }, problem);
}

std::vector<std::string> passes_of(const Problem& problem) {
  std::vector<std::string> list;
  std::visit(
      [&](const auto& p) {
        for (const auto& word : words_of(p.pass)) list.emplace_back(word.text);
      },
      problem);
  return list;
}

int64_t alignment_of_tensors(const Problem& problem) {
  return std::visit([](const auto& p) { return p.alignment; }, problem);
}

std::string op_of(const Problem& problem) {
  return c10::str(family_of(problem), "_", pass_of(problem));
}

std::string problem_text(const Problem& problem) {
  std::string out = op_of(problem);
  std::visit([&](const auto& p) { std::decay_t<decltype(p)>::fields(p, TextWriter{out}); },
             problem);
  return out;
}

namespace {

// Tries one alternative of the variant after another: the first word says which it is.
template <size_t Index = 0>
Problem problem_from_word(std::string_view word, std::vector<std::string> known = {}) {
  if constexpr (Index < std::variant_size_v<Problem>) {
    using P = std::variant_alternative_t<Index, Problem>;
    P problem;
    for (const auto& pass : words_of(problem.pass)) {
      std::string op = c10::str(P::kFamily, "_", pass.text);
      if (word == op) {
        problem.pass = pass.value;
        return problem;
      }
      known.push_back(std::move(op));
    }
    return problem_from_word<Index + 1>(word, std::move(known));
  }
  TORCH_CHECK_VALUE(false, "problem text: starts with '", word, "', ",
                    wanted_words(word, known, kInOperators));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> problem_fields(const Problem& problem) {
  std::vector<std::pair<std::string, std::string>> out;
  std::visit(
      [&](const auto& p) { std::decay_t<decltype(p)>::fields(p, EachField<FieldLister>{{out}}); },
      problem);
  return out;
}

std::vector<std::string> field_names(std::string_view op) {
  std::vector<std::string> out;
  Problem problem = problem_from_word(op);
  std::visit(
      [&](const auto& p) { std::decay_t<decltype(p)>::fields(p, EachField<NameLister>{{out}}); },
      problem);
  return out;
}

std::vector<std::pair<std::string, std::vector<std::string>>> field_forms(std::string_view op) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  Problem problem = problem_from_word(op);
  std::visit(
      [&](const auto& p) { std::decay_t<decltype(p)>::fields(p, EachField<FormLister>{{out}}); },
      problem);
  return out;
}

namespace {

[[noreturn]] void refuse_key(std::string_view key, std::string_view op) {
  std::vector<std::string> names = field_names(op), near;
  bool is_known = std::find(names.begin(), names.end(), key) != names.end();
  if (!is_known) near = nearest_words(key, names);
  TORCH_CHECK_VALUE(false, "problem text: the key '", key, "' is ",
                    is_known ? "out of order, or given before" : "unknown",
                    near.empty() ? "" : c10::str(" (the nearest: ", c10::Join(", ", near), ")"),
                    ", wanted in this order: ", c10::Join(", ", names));
}

}  // namespace

Problem parse_problem(std::string_view text) {
  check_length("problem text", text);
  TextReader reader;
  std::string_view first;
  bool seen_first = false;
  while (!text.empty()) {
    size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    std::string_view token = text.substr(0, text.find_first_of(" \t\r\n"));
    if (token[0] == '#') break;  // a remark, such as which layers have it
    text.remove_prefix(token.size());
    if (!seen_first) {
      first = token;
      seen_first = true;
      continue;
    }
    size_t equals = token.find('=');
    TORCH_CHECK_VALUE(equals != std::string_view::npos, "problem text: '", token,
                      "' is not of the form key=value");
    reader.tokens.emplace_back(token.substr(0, equals), token.substr(equals + 1));
  }
  TORCH_CHECK_VALUE(seen_first, "problem text: it is empty");
  Problem problem = problem_from_word(first);
  std::visit(
      [&](auto& p) {
        std::decay_t<decltype(p)>::fields(p, reader);
        if (reader.next != reader.tokens.size()) {
          refuse_key(reader.tokens[reader.next].first, first);
        }
        p.validate();
        p.canonicalise();
      },
      problem);
  return problem;
}

void Key::finish() {
  // Two words a step, in the manner of wyhash.
  auto word = [&](int i) { return i < count_ ? static_cast<uint64_t>(words_[i]) : 0; };
  uint64_t h = 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(count_);
  for (int i = 0; i < count_; i += 2) {
    h = mix(h ^ word(i) ^ 0xA0761D6478BD642Full, word(i + 1) ^ 0xE7037ED1A0B428DBull);
  }
  hash_ = h;
}

bool Key::operator==(const Key& other) const {
  return hash_ == other.hash_ && count_ == other.count_ &&
         std::memcmp(words_.data(), other.words_.data(), sizeof(int64_t) * count_) == 0;
}

void append_key(Key& key, const Problem& problem) {
  key.push(static_cast<int64_t>(problem.index()));
  std::visit(
      [&](const auto& p) {
        key.push(static_cast<int64_t>(p.pass));
        std::decay_t<decltype(p)>::fields(p, EachField<KeyWriter>{{key}});
      },
      problem);
}

}  // namespace torch_cudnn_ext
