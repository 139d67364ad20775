// Pooling: the sizes of a problem, its canonical form, and what makes it valid.
#include <algorithm>
#include <functional>
#include <numeric>

#include "problems/pooled_size.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

int64_t PoolingProblem::window_volume() const {
  return std::accumulate(window.begin(), window.end(), int64_t{1}, std::multiplies<>());
}

bool PoolingProblem::has_one_window() const {
  int dims = spatial_dims();
  return !adaptive && padding == Dims(dims, 0) && dilation == Dims(dims, 1) &&
         std::equal(window.begin(), window.end(), x.sizes.begin() + 2);
}

TensorSpec PoolingProblem::y() const {
  TensorSpec out{x.dtype, {x.sizes[0], x.sizes[1]}, {}};
  for (int i = 0; i < spatial_dims(); ++i) {
    out.sizes.push_back(adaptive ? window[i]
                                 : pooled_size(x.sizes[i + 2], window[i], padding[i], stride[i],
                                               dilation[i], ceil));
  }
  out.strides =
      is_channels_last(x) ? channels_last_strides(out.sizes) : contiguous_strides(out.sizes);
  return out;
}

void PoolingProblem::canonicalise() {
  canonicalise_strides({&x});
  if (!takes_any_alignment()) alignment = 16;
  const int dims = spatial_dims();
  if (adaptive) {
    bool divides = true;
    for (int i = 0; i < dims; ++i) divides &= x.sizes[i + 2] % window[i] == 0;
    padding = Dims(dims, 0);
    dilation = Dims(dims, 1);
    ceil = false;
    if (divides) {
      for (int i = 0; i < dims; ++i) window[i] = x.sizes[i + 2] / window[i];
      adaptive = false;
    }
    stride = window;
  }
  if (ceil) {
    Dims with_ceil = y().sizes;
    ceil = false;
    ceil = y().sizes != with_ceil;
  }
  for (int i = 0; i < dims; ++i) {
    if (window[i] == 1) dilation[i] = 1;
  }
  bool no_padding = padding == Dims(dims, 0);
  if (mode == PoolingMode::avg_exclude && no_padding) mode = PoolingMode::avg_include;
  if (mode == PoolingMode::sum && !ceil && !adaptive && divisor == window_volume()) {
    mode = PoolingMode::avg_include;
    divisor = 1;
  }
  if (pass == Pass::bwd && mode == PoolingMode::max) train = true;
}

void PoolingProblem::validate() const {
  check_sizes("pool", "x", x, 4, 5);
  TORCH_CHECK_VALUE(
      x.strides == contiguous_strides(x.sizes) || x.strides == channels_last_strides(x.sizes),
      "pool: x has strides that are neither contiguous nor channels_last, wanted :nchw or :nhwc");
  TORCH_CHECK_VALUE(x.sizes[0] * x.sizes[1] < INT64_C(1) << 40, "pool: x is too large");
  auto check_positive = [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value >= 1 && value < INT64_C(1) << 31, "pool: ", name, " is ", value,
                      ", wanted at least 1");
  };
  for (int i = 0; i < spatial_dims(); ++i) {
    check_positive("window", window[i]);
    check_positive("stride", stride[i]);
    check_positive("dilation", dilation[i]);
    TORCH_CHECK_VALUE(padding[i] >= 0 && padding[i] <= window[i] / 2, "pool: pad is ", padding[i],
                      ", wanted 0 to half of window=", window[i]);
    TORCH_CHECK_VALUE(mode == PoolingMode::max || dilation[i] == 1, "pool: dilation is ",
                      dilation[i], ", wanted 1: only a maximum has windows with gaps");
  }
  for (int64_t size : y().sizes) {
    TORCH_CHECK_VALUE(size >= 1,
                      "pool: the window is larger than the padded x, so that y is empty");
  }
  TORCH_CHECK_VALUE(divisor != 0 && (divisor == 1 || mode == PoolingMode::sum), "pool: divisor is ",
                    divisor, ", wanted 1, or with mode=sum any number but 0");
  TORCH_CHECK_VALUE(
      !adaptive || mode != PoolingMode::sum,
      "pool: mode is sum, wanted max or an average, since adaptive windows differ in size");
  TORCH_CHECK_VALUE(
      !train || mode == PoolingMode::max,
      "pool: train is true, wanted false: an average leaves nothing for its backward");
  check_alignment("pool", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
