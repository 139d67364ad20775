// The schemas of batch normalisation. `batch_norm` and `batch_norm_train` are made of the inner
// operators. A reserve is what PyTorch's own forward leaves for its backward. The inner operators
// call their mode norm_mode: PyTorch has an argument named `mode` of its own when it makes an
// operator functional.
#include "ops/schema.h"

namespace torch_cudnn_ext {
namespace {

const std::vector<std::string> kSchemas = {
    "batch_norm(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
    "weight=None, Tensor? bias=None, bool training=False, float momentum=0.1, float eps=1e-05, *, "
    "str mode=\"spatial\", Tensor? z=None, str activation=\"none\", str? policy=None) -> Tensor",
    "batch_norm_train(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
    "weight=None, Tensor? bias=None, float momentum=0.1, float eps=1e-05, *, str "
    "mode=\"spatial\", Tensor? z=None, str activation=\"none\", str? policy=None) -> (Tensor "
    "output, Tensor mean, Tensor invstd)",
    // With training=True it takes the statistics that training gave, else the running ones.
    "batch_norm_backward(Tensor grad_output, Tensor input, Tensor? weight, Tensor mean, Tensor "
    "invstd_or_var, bool training, float eps, *, str mode=\"spatial\", Tensor? reserve=None, str? "
    "policy=None) -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
    "_batch_norm_train(Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? "
    "weight, Tensor? bias, float momentum, float eps, str norm_mode, Tensor? z, str activation, "
    "str? policy) -> (Tensor output, Tensor mean, Tensor invstd, Tensor reserve)",
    // It changes no tensor: vmap does not support that.
    "_batch_norm_train_alone(Tensor input, Tensor? weight, Tensor? bias, float eps, str norm_mode, "
    "Tensor? z, str activation, str? policy) -> (Tensor output, Tensor mean, Tensor invstd, Tensor "
    "reserve)",
    "_batch_norm_infer(Tensor input, Tensor running_mean, Tensor running_var, Tensor? weight, "
    "Tensor? bias, float eps, str norm_mode, Tensor? z, str activation, str? policy) -> Tensor"};

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) { define(m, kSchemas); }

}  // namespace torch_cudnn_ext
