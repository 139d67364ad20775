"""The operators as functions, with PyTorch's argument names and a selection of algorithms.

Each takes ``policy`` by keyword: how the algorithms of its passes are selected. `last_decision`
tells which one ran.
"""

from torch_cudnn_ext.ops._border import BorderMode, Padding
from torch_cudnn_ext.ops.activation import (
    clipped_relu,
    elu,
    relu,
    relu6,
    sigmoid,
    silu,
    swish,
    tanh,
)
from torch_cudnn_ext.ops.batch_norm import (
    BatchNormTrained,
    NormActivation,
    NormMode,
    batch_norm,
    batch_norm_train,
)
from torch_cudnn_ext.ops.convolution import (
    ConvMode,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from torch_cudnn_ext.ops.convolution_primitives import (
    ConvActivation,
    convolution,
    convolution_backward_input,
    convolution_backward_weight,
)
from torch_cudnn_ext.ops.cross_entropy import cross_entropy
from torch_cudnn_ext.ops.ctc import ctc_loss
from torch_cudnn_ext.ops.decision import Decision, last_decision
from torch_cudnn_ext.ops.dropout import dropout
from torch_cudnn_ext.ops.layer_norm import group_norm, instance_norm, layer_norm, rms_norm
from torch_cudnn_ext.ops.lrn import LrnWindow, divisive_norm, local_response_norm
from torch_cudnn_ext.ops.matmul import gemm, linear, matmul
from torch_cudnn_ext.ops.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    sum_pool1d,
    sum_pool2d,
    sum_pool3d,
)
from torch_cudnn_ext.ops.reduction import (
    absmax,
    amax,
    amin,
    argmax,
    argmin,
    mean,
    norm1,
    norm2,
    prod,
    prod_nonzero,
    reduce,
    sum,
)
from torch_cudnn_ext.ops.rnn import gru, lstm, rnn_parameter_sizes, rnn_relu, rnn_tanh
from torch_cudnn_ext.ops.softmax import log_softmax, softmax
from torch_cudnn_ext.ops.spatial_transformer import affine_grid, grid_sample
from torch_cudnn_ext.ops.transform import transform

__all__ = [
    "BatchNormTrained", "BorderMode", "ConvActivation", "ConvMode", "Decision", "LrnWindow",
    "NormActivation", "NormMode", "Padding", "absmax", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "affine_grid", "amax", "amin", "argmax", "argmin", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "batch_norm", "batch_norm_train", "clipped_relu", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "convolution_backward_input", "convolution_backward_weight", "cross_entropy",
    "ctc_loss", "divisive_norm", "dropout", "elu", "gemm", "grid_sample", "group_norm", "gru",
    "instance_norm", "last_decision", "layer_norm", "linear", "local_response_norm",
    "log_softmax", "lp_pool1d", "lp_pool2d", "lp_pool3d", "lstm", "matmul", "max_pool1d",
    "max_pool2d", "max_pool3d", "mean", "norm1", "norm2", "prod", "prod_nonzero", "reduce",
    "relu", "relu6", "rms_norm", "rnn_parameter_sizes", "rnn_relu", "rnn_tanh", "sigmoid",
    "silu", "softmax", "sum", "sum_pool1d", "sum_pool2d", "sum_pool3d", "swish", "tanh",
    "transform",
]  # fmt: skip


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
