// Batch normalisation: what makes a problem valid.
#include "problems/field_text.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void BatchNormProblem::validate() const {
  check_sizes("batch_norm", "x", x, 3, 3);
  TensorSpec canonical = x;
  canonicalise_strides({&canonical});
  bool dense = canonical.strides == contiguous_strides(x.sizes) ||
               canonical.strides == channels_last_strides(x.sizes);
  TORCH_CHECK_VALUE(dense, "batch_norm: x has gaps between its elements, wanted :nchw or :nhwc");
  TORCH_CHECK_VALUE(pass == BatchNormPass::fwd || !running,
                    "batch_norm: running is true, but only fwd keeps running statistics");
  TORCH_CHECK_VALUE(activation == Activation::none || activation == Activation::relu,
                    "batch_norm: act is ", name_text(activation), ", wanted none or relu");
  TORCH_CHECK_VALUE(pass != BatchNormPass::bwd || (!z && activation == Activation::none),
                    "batch_norm: z and act are of fwd and infer, wanted neither in bwd");
  TORCH_CHECK_VALUE(pass == BatchNormPass::bwd || train,
                    "batch_norm: train is of bwd; the forward without it is batch_norm_infer");
  TORCH_CHECK_VALUE(!has_training_statistics() || x.sizes[0] * x.sizes[2] > 1,
                    "batch_norm: x has one value per channel, wanted more than 1 when training");
  check_alignment("batch_norm", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
