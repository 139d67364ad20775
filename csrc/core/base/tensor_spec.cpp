#include "core/base/tensor_spec.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

namespace torch_cudnn_ext {

namespace {

bool are_equivalent_strides(const Dims& sizes, const Dims& a, const Dims& b) {
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace

std::string dtype_text(c10::ScalarType dtype) {
  for (const auto& name : kDtypes) {
    if (name.value == dtype) return name.text;
  }
  return c10::toString(dtype);
}

int64_t TensorSpec::numel() const {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

int64_t TensorSpec::nbytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

int64_t TensorSpec::extent() const {
  int64_t count = 1;
  for (int i = 0; i < sizes.size(); ++i) count += (sizes[i] - 1) * strides[i];
  return count;
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

bool is_channels_last(const TensorSpec& t) {
  return t.strides == channels_last_strides(t.sizes) && t.strides != contiguous_strides(t.sizes);
}

bool is_packed(const TensorSpec& t) {
  return t.strides == contiguous_strides(t.sizes) || t.strides == channels_last_strides(t.sizes);
}

bool is_one_pixel(const Dims& sizes) {
  return std::all_of(sizes.begin() + 2, sizes.end(), [](int64_t n) { return n == 1; });
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
    m.is_contiguous = are_equivalent_strides(t->sizes, t->strides, m.contiguous);
    m.is_channels_last = are_equivalent_strides(t->sizes, t->strides, m.channels_last);
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

void check_alignment(const char* op, int64_t alignment, c10::ScalarType dtype) {
  TORCH_CHECK_VALUE(alignment >= 1 && alignment <= 16 && (alignment & (alignment - 1)) == 0, op,
                    ": align is ", alignment, ", wanted 1, 2, 4, 8 or 16");
  TORCH_CHECK_VALUE(alignment >= static_cast<int64_t>(c10::elementSize(dtype)), op, ": align is ",
                    alignment, ", wanted at least an element of ", dtype_text(dtype));
}

void check_sizes(const char* op, const char* name, const TensorSpec& spec, int min_dims,
                 int max_dims) {
  TORCH_CHECK_VALUE(spec.sizes.size() >= min_dims && spec.sizes.size() <= max_dims, op, ": ", name,
                    " has sizes [", spec.sizes.text(), "], wanted ", min_dims,
                    min_dims == max_dims ? "" : c10::str(" to ", max_dims), " dimensions");
  for (int64_t size : spec.sizes) {
    TORCH_CHECK_VALUE(size >= 1, op, ": ", name, " has sizes [", spec.sizes.text(),
                      "], wanted sizes of at least 1");
  }
  double bytes = static_cast<double>(c10::elementSize(spec.dtype));
  for (int64_t size : spec.sizes) bytes *= static_cast<double>(size);
  TORCH_CHECK_VALUE(bytes < 1e15, op, ": ", name, " has sizes [", spec.sizes.text(),
                    "], wanted less than 10^15 bytes");
}

}  // namespace torch_cudnn_ext
