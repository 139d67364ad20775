// The schemas of layer, RMS, instance and group norm: views of one operator, which stays whole in
// graphs. A result of the inner operators that is not there is empty: vmap takes no lists of
// tensors.
#include "ops/schema.h"

namespace torch_cudnn_ext {
namespace {

const std::vector<std::string> kSchemas = {
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-05, *, str? policy=None) -> Tensor",
    "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, *, "
    "str? policy=None) -> Tensor",
    "instance_norm(Tensor input, Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None, "
    "Tensor? weight=None, Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, "
    "float eps=1e-05, *, str? policy=None) -> Tensor",
    "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float "
    "eps=1e-05, *, str? policy=None) -> Tensor",
    "_normalize(Tensor input, Tensor? weight, Tensor? bias, str kind, int groups, float eps, "
    "bool statistics, *, str? policy=None) -> (Tensor output, Tensor mean, Tensor invstd)",
    "_normalize_backward(Tensor grad_output, Tensor input, Tensor? weight, Tensor mean, Tensor "
    "invstd, str kind, int groups, bool has_bias, float eps, *, str? policy=None) -> (Tensor "
    "grad_input, Tensor grad_weight, Tensor grad_bias)"};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) { define(m, kSchemas); }

}  // namespace torch_cudnn_ext
