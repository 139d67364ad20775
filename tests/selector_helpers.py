"""Calls of one small convolution on the scripted backend."""

from typing import Any

import torch
import torch.nn.functional as F
from conftest import newest
from torch import Tensor

from torch_cudnn_ext import _C, ops

OPS = torch.ops.torch_cudnn_ext
TUNE = "autotune;backends=fake"


def conv_problem(x: Tensor, w: Tensor, policy: str | None = None) -> str:
    return _C.convolution_problem("conv_fwd", x, w, [0, 0], [1, 1], [1, 1], 1, policy)


def convolve(x: Tensor, w: Tensor, policy: str | None = None) -> str:
    """Runs a convolution, sees that it is right, and says which algorithm ran."""
    y = OPS.conv2d.default(x, w, policy=policy)
    torch.testing.assert_close(y, F.conv2d(x, w))
    return conv_decision().algorithm


def conv_decision() -> ops.Decision:
    return newest("conv_fwd")


def measure_conv(
    x: Tensor, w: Tensor, policy: str = "backends=fake", **more: Any
) -> dict[str, Any]:
    """Measurements by algorithm, best first."""
    return {
        m["algorithm"]: m for m in _C.measure(conv_problem(x, w, policy), "cpu", policy, **more)
    }
