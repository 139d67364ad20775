// How far results are from their reference. Knows nothing of problems and plans.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace torch_cudnn_ext {

// The larger of two distances from the reference, in units of the reference's root mean square:
// the root mean square difference, and a twentieth of the largest difference. A difference from a
// number above 20 units is relative to that number. NaN if a result is not finite.
inline double relative_error(const at::Tensor& result, const at::Tensor& reference) {
  at::Tensor difference = result.to(at::kDouble).sub(reference);
  if (reference.numel() == 0) return 0;
  double scale = reference.square().mean().sqrt().item<double>();
  if (scale == 0) scale = 1;  // nothing to be relative to
  double mean = difference.square().mean().sqrt().item<double>() / scale;
  double largest =
      difference.abs_().div_(reference.abs().clamp_min_(20 * scale)).max().item<double>();
  bool finite = std::isfinite(mean) && std::isfinite(largest);
  return finite ? std::max(mean, largest) : std::numeric_limits<double>::quiet_NaN();
}

// The factor on a tolerance for results of few numbers, which may all be close to 0 by chance.
inline double small_sample_tolerance(int64_t numbers) {
  return 1 + 32 / static_cast<double>(numbers);
}

}  // namespace torch_cudnn_ext
