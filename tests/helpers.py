"""Problems, networks and helpers that tests of several folders share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from torch_cudnn_ext import _C, Policy
from torch_cudnn_ext._libraries import torch_release
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.results import LayerProfile, Profile

PROBLEM = "conv_fwd x=f32[2,4,8,8]:nchw w=f32[6,4,3,3]:nchw pad=1 stride=1 dilation=1 groups=1"
LINE = f"{PROBLEM} compute=f32"
OTHER = LINE.replace("pad=1", "pad=0")
ACTIVATION = "activation_fwd x=f32[100]:nchw kind=relu"
TORCH_RELEASE = torch_release(torch.__version__)  # (2, 15)
PASSES = ("conv_fwd", "conv_bwd_data", "conv_bwd_filter")
OUTPUT_ROLE = {"conv_fwd": "y", "conv_bwd_data": "x", "conv_bwd_filter": "w"}


def policy_fields(policy: Policy) -> dict[str, Any]:
    return _C.policy_fields(str(policy))


def only_layer(result: Profile) -> LayerProfile:
    (layer,) = result.layers
    return layer


def convolutions(model: nn.Module, inputs: Any, passes: list[str] | None = None) -> list[Layer]:
    work = network_layers(model, inputs, passes or ["fwd", "bwd"])
    return [layer for layer in work.layers if layer.problem.startswith("conv_")]


class Network(nn.Module):
    """Two equal convolutions, a depthwise one, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding="same")
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.second(self.first(x)))
        out: torch.Tensor = self.up(self.norm(self.depthwise(input=x)))
        return out


class Frozen(nn.Module):
    """Trains its last layers alone, with pooling before and between."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fixed.requires_grad_(False)
        self.act = nn.ReLU(inplace=True)
        self.trained = nn.Conv2d(4, 4, 3)
        self.trained.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.trained(self.act(F.avg_pool2d(self.trained(self.fixed(x)), 2)))}


def network_with(function: Callable[[torch.Tensor], Any]) -> nn.Module:
    """A network of a linear layer, 4 to 4, and a function."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.linear(x))

    return Net()
