#include "problems/convolution.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "problems/field_text.h"

namespace torch_cudnn_ext {

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
  int rank = x.sizes.size();
  check_sizes("convolution", "x", x, 3, 5);
  TORCH_CHECK_VALUE(w.sizes.size() == rank, "convolution: w has sizes [", w.sizes.text(),
                    "], wanted as many dimensions as x, which has [", x.sizes.text(), "]");
  check_sizes("convolution", "w", w, rank, rank);
  TORCH_CHECK_VALUE(x.dtype == w.dtype, "convolution: w is ", dtype_text(w.dtype),
                    ", wanted x's dtype ", dtype_text(x.dtype));
  TORCH_CHECK_VALUE(groups >= 1, "convolution: groups is ", groups, ", wanted at least 1");
  TORCH_CHECK_VALUE(w.sizes[1] * groups == x.sizes[1], "convolution: w has sizes [", w.sizes.text(),
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
  Dims output = output_sizes();
  bool has_output = std::find(output.begin(), output.end(), 0) == output.end();
  TORCH_CHECK_VALUE(has_output, "convolution: the kernel of w [", w.sizes.text(),
                    "] with dilation=", dilation.text(), " is larger than the padded x [",
                    x.sizes.text(), "] with pad=", padding.text());
  check_sizes("convolution", "y", {x.dtype, output, {}}, rank, rank);
  check_alignment("convolution", alignment, x.dtype);
  check_compute();
  auto check_epilogue = [&](const char* name, const std::string& value) {
    TORCH_CHECK_VALUE(pass == ConvolutionPass::fwd, "convolution: ", name, " is ", value,
                      " in conv_", name_text(pass), ", wanted it in conv_fwd only");
    TORCH_CHECK_VALUE(accumulate == Accumulate::none, "convolution: ", name, " is ", value,
                      " with accumulate=", name_text(accumulate), ", wanted one of the two");
  };
  auto check_addend = [&](const char* name, const std::optional<c10::ScalarType>& dtype) {
    if (!dtype) return;
    TORCH_CHECK_VALUE(*dtype == x.dtype, "convolution: ", name, " is ", dtype_text(*dtype),
                      ", wanted x's dtype ", dtype_text(x.dtype));
    check_epilogue(name, dtype_text(*dtype));
  };
  check_addend("bias", bias);
  check_addend("z", z);
  if (activation != Activation::none) check_epilogue("act", name_text(activation));
}

}  // namespace torch_cudnn_ext
