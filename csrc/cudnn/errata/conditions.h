// What conditions of several errata of cuDNN share, and the versions in which they were seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "core/algorithm.h"
#include "core/errata.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

inline constexpr int64_t kCudnn9_19 = 91900, kCudnn9_26 = 92600, kCudnn9_28_1 = 92801;

inline bool exceeds_int(int64_t elements) { return elements > std::numeric_limits<int>::max(); }

inline constexpr int64_t kMostBlocks = 65535;  // in the second and third dimension of a launch grid
inline constexpr const char* kExceedsGrid =
    "a launch would have more than 65535 blocks in a dimension of its grid";

// Whether every step between neighbouring rows (or pixels, in nhwc) is a multiple of 16 bytes.
inline bool has_aligned_rows(const TensorSpec& t) {
  auto element = static_cast<int64_t>(c10::elementSize(t.dtype));
  for (int i = 0; i < t.sizes.size(); ++i) {
    if (t.strides[i] != 1 && t.sizes[i] > 1 && t.strides[i] * element % 16 != 0) return false;
  }
  return true;
}

inline bool has_math(const Algorithm& algorithm, std::initializer_list<std::string_view> types) {
  const std::string* math = algorithm.option("math");
  return math != nullptr && std::find(types.begin(), types.end(), *math) != types.end();
}

}  // namespace torch_cudnn_ext
