// WHAT is computed. One plain struct per operator; each names its fields once, and the cache key,
// the text form and its parser all come from that list. Knows nothing of algorithms, backends or
// devices.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

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

Dims contiguous_strides(const Dims& sizes);
Dims channels_last_strides(const Dims& sizes);
// Strides of dimensions of size 1 do not matter for the values, but they would split one problem
// into several keys. All tensors of a problem are spelled in one layout wherever that is a free
// choice.
void canonicalise_strides(std::initializer_list<TensorSpec*> tensors);

std::string dtype_text(c10::ScalarType dtype);
c10::ScalarType dtype_from_text(std::string_view text);  // throws ValueError

enum class ConvolutionPass : uint8_t { fwd, bwd_data, bwd_filter };
enum class ConvolutionMode : uint8_t { cross, conv };
enum class Accumulate : uint8_t { none, add, general };  // (alpha, beta): (1, 0), (1, 1), any
enum class Activation : uint8_t { none, relu };

// The three passes of y = conv(x, w). Sizes are those of the forward convolution in every pass.
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
  Dims output_sizes() const;
  TensorSpec default_output() const;
  void canonicalise() { canonicalise_strides({&x, &w, &y}); }
  void validate() const;  // throws ValueError naming the field

  c10::ScalarType default_compute() const {
    return x.dtype == c10::ScalarType::Double ? c10::ScalarType::Double : c10::ScalarType::Float;
  }

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

using Problem = std::variant<ConvolutionProblem>;

const char* family_of(const Problem& problem);
std::string pass_of(const Problem& problem);  // "fwd"
std::string op_of(const Problem& problem);    // "conv_fwd"
std::string problem_text(const Problem& problem);
Problem parse_problem(std::string_view text);  // throws ValueError; canonical and valid

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
