"""Networks for tests of `optimize`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Little tuning, and nothing compiled.
BUDGET: dict[str, Any] = {"time_budget_s": 0.2, "torch_compile": False}


def trained_like(model: nn.Module) -> nn.Module:
    """A model whose batch norms have means, variances and weights as after training."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_()
    return model.eval()


class Block(nn.Module):
    """Convolutions with batch norm, a sum and ReLU, written in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.kind == "iadd":
            y += x
            return self.relu(y)
        if self.kind == "method":
            return y.add(x).relu_()
        if self.kind == "swapped":
            return F.relu(x + y)
        if self.kind == "into the input":
            z = x * 1
            z += y
            return F.relu(z) + z
        if self.kind == "broadcast":
            return F.relu(y + x.mean((2, 3), keepdim=True))
        if self.kind == "twice":
            return F.relu(y + x) + y
        return torch.relu(torch.add(y, x, alpha=2))
