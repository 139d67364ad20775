"""Modules whose algorithms can be selected: subclasses of those in ``torch.nn``.

A module of this package takes the arguments of its parent, loads and saves the same state, and
gives the same results. ``policy`` and the methods of `Tunable` select its algorithms:

    >>> layer = nn.Conv2d(64, 64, 3, padding=1, policy="autotune")
    >>> layer.set_mode(fwd="legacy:winograd_nonfused", bwd_data=1)
    >>> layer.workspace_limit = 64 * 2**20
"""

from torch_cudnn_ext.nn.activation import ELU, ClippedReLU, ReLU, ReLU6, Sigmoid, SiLU, Tanh
from torch_cudnn_ext.nn.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from torch_cudnn_ext.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from torch_cudnn_ext.nn.cross_entropy import CrossEntropyLoss
from torch_cudnn_ext.nn.ctc import CTCLoss
from torch_cudnn_ext.nn.dropout import Dropout
from torch_cudnn_ext.nn.layer_norm import (
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from torch_cudnn_ext.nn.lrn import DivisiveNorm, LocalResponseNorm
from torch_cudnn_ext.nn.matmul import Linear
from torch_cudnn_ext.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from torch_cudnn_ext.nn.rnn import GRU, LSTM, RNN, Recurrent
from torch_cudnn_ext.nn.softmax import LogSoftmax, Softmax, Softmax2d
from torch_cudnn_ext.nn.tunable import Tunable

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CTCLoss", "ClippedReLU", "Conv1d", "Conv2d",
    "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "CrossEntropyLoss",
    "DivisiveNorm", "Dropout", "ELU", "GRU", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LPPool1d", "LPPool2d", "LPPool3d", "LSTM", "LayerNorm", "Linear",
    "LocalResponseNorm", "LogSoftmax", "MaxPool1d", "MaxPool2d", "MaxPool3d", "RMSNorm", "RNN",
    "ReLU", "ReLU6", "Recurrent", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Tanh", "Tunable",
]  # fmt: skip


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
