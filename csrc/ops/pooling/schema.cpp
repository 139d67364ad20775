// The schemas of pooling. Windows run over the last one to three dimensions, as many as kernel_size
// has entries. An empty stride is kernel_size. With `adaptive`, kernel_size holds the output's
// sizes, and stride and padding do not count. A divisor of 1 makes sums. channels_last is the
// layout that the forward ran in.
#include "ops/schema.h"

namespace torch_cudnn_ext {
namespace {

const std::vector<std::string> kSchemas = {
    "max_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
    "dilation, bool ceil_mode=False, bool adaptive=False, *, str? policy=None) -> Tensor",
    "avg_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool "
    "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None, bool "
    "adaptive=False, *, str? policy=None) -> Tensor",
    "avg_pool_backward(Tensor grad_output, SymInt[] input_size, bool channels_last, SymInt[] "
    "kernel_size, SymInt[] stride, SymInt[] padding, bool ceil_mode=False, bool "
    "count_include_pad=True, int? divisor_override=None, bool adaptive=False, *, str? "
    "policy=None) -> Tensor",
    // Only its algorithm knows the format and the size of a reserve. The writer says which
    // algorithm that was (core/writer.h).
    "_max_pool_train(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, bool ceil_mode, bool adaptive, *, str? policy=None) -> (Tensor output, "
    "Tensor reserve, Tensor writer)",
    "_max_pool_backward(Tensor grad_output, Tensor input, Tensor output, Tensor reserve, Tensor? "
    "writer, bool channels_last, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
    "SymInt[] dilation, bool ceil_mode, bool adaptive, *, str? policy=None) -> Tensor"};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) { define(m, kSchemas); }

}  // namespace torch_cudnn_ext
