// Sizes or strides of one tensor. Knows nothing of tensors or problems.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace torch_cudnn_ext {

constexpr int kMaxDims = 8;

// The numbers are inline: every call builds problems, which must not allocate.
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
  std::string text() const { return c10::Join(",", c10::IntArrayRef(*this)); }  // "64,3,3"

 private:
  void append(const int64_t* first, const int64_t* last) {
    for (; first != last; ++first) push_back(*first);
  }
  std::array<int64_t, kMaxDims> values_;
  int size_ = 0;
};

}  // namespace torch_cudnn_ext
