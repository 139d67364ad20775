// Layer, RMS, instance and group norm: the view that all kinds have, and what makes a problem
// valid.
#include <utility>

#include "problems/problem.h"

namespace torch_cudnn_ext {

LayerNormProblem::View LayerNormProblem::view() const {
  if (x.sizes.size() == 2) return {x.sizes[0], 1, x.sizes[1], 1};
  bool instance = kind == LayerNormKind::instance;
  return {x.sizes[0], instance ? x.sizes[1] : groups, x.sizes[1], x.sizes[2]};
}

// PyTorch keeps those of group norm in the parameters' type: its gradient wants them so.
TensorSpec LayerNormProblem::statistics() const {
  c10::ScalarType dtype =
      kind == LayerNormKind::group ? w.value_or(x.dtype) : compute_dtype(x.dtype);
  return {dtype, {view().count()}, {1}};
}

void LayerNormProblem::validate() const {
  bool of_rows = kind == LayerNormKind::layer || kind == LayerNormKind::rms;
  int dims = of_rows ? 2 : 3;
  check_sizes("layer_norm", "x", x, dims, dims);
  bool nhwc = kind == LayerNormKind::instance && x.strides == channels_last_strides(x.sizes);
  TORCH_CHECK_VALUE(nhwc || x.strides == contiguous_strides(x.sizes),
                    "layer_norm: x has other strides than its sizes say, wanted :nchw, or :nhwc "
                    "for kind=instance");
  bool divides =
      groups >= 1 && (groups == 1 || kind == LayerNormKind::group) && x.sizes[1] % groups == 0;
  TORCH_CHECK_VALUE(divides, "layer_norm: groups is ", groups,
                    ", wanted a divisor of the channels for kind=group, 1 for others");
  for (const auto& [name, dtype] : {std::make_pair("w", w), std::make_pair("bias", bias)}) {
    bool fits = !dtype || *dtype == x.dtype ||
                (*dtype == c10::ScalarType::Float && x.dtype != c10::ScalarType::Double);
    TORCH_CHECK_VALUE(fits, "layer_norm: ", name, " is ", dtype_text(*dtype), ", wanted ",
                      dtype_text(x.dtype), " as x, or f32 with f16 and bf16");
  }
  TORCH_CHECK_VALUE(!w || !bias || *w == *bias, "layer_norm: w and bias have different dtypes");
  TORCH_CHECK_VALUE(!bias || has_mean(), "layer_norm: kind=rms has no bias");
  TORCH_CHECK_VALUE(stats || pass == Pass::fwd, "layer_norm: a backward has stats");
  check_alignment("layer_norm", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
