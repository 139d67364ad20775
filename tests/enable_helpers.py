"""What tests of `enable`, rules and flags share."""

from collections.abc import Callable
from typing import Any

import torch
from conftest import newest
from torch import Tensor, nn
from torch.nn import functional as F

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload.running import recording

# What any device has besides PyTorch's own.
OTHER = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}
# Engines of the graph API would take a GPU minutes.
AUTOTUNE = {"cpu": "autotune", "cuda": "autotune;backends=legacy,aten"}


def dispatch_tables() -> list[str]:
    names = [f"aten::{name}" for name in _C.overridden_ops()]
    dump: Any = torch._C._dispatch_dump
    table: Any = torch._C._dispatch_dump_table
    return [text for name in names for text in (dump(name), table(name))]


class Net(nn.Module):
    """A bit of everything that convolution has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding="same", groups=2, bias=False)
        self.reflect = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = self.reflect(self.grouped(x)).relu()
        x = self.up(x).mean((2, 3))
        return F.log_softmax(self.head(x), 1) + F.softmax(x, -1).sum()


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = model(x)
    y.float().square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def check_equal(ours: list[Tensor], plain: list[Tensor], tolerance: float = 1e-4) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        difference = float((a - b).detach().float().norm())
        assert difference <= tolerance * float(b.detach().float().norm()) + 1e-6


def images(device: str, size: int = 12) -> Tensor:
    return torch.randn(2, 3, size, size, device=device)


def ran(op: str = "conv_fwd") -> str:
    return newest(op).algorithm


def passes_of(call: Callable[[], object]) -> list[str]:
    """The passes of ours that ran meanwhile."""
    with recording():
        call()
        calls = _C.recorded()
    return [call["problem"].split()[0] for call in calls if not isinstance(call, str)]


class AllKinds(nn.Module):
    """A layer of each kind that is overridden."""

    def __init__(self, recurrent: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.max = nn.MaxPool2d(2)
        self.group = nn.GroupNorm(2, 8)
        self.avg = nn.AvgPool2d(2)
        self.adaptive = nn.AdaptiveAvgPool2d((3, 4))
        self.layer = nn.LayerNorm(12)
        self.lstm = nn.LSTM(12, 6) if recurrent else None
        self.soft = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group(self.max(self.norm(self.conv(x)).relu()))
        x = self.layer(self.adaptive(self.avg(x)).flatten(2))
        if self.lstm is not None:
            x = self.lstm(x)[0]
        result: Tensor = self.soft(x)
        return result


KINDS = {
    "conv": "conv_fwd",
    "norm": "batch_norm_fwd",
    "max": "pool_fwd",
    "group": "layer_norm_fwd",
    "avg": "pool_fwd",
    "adaptive": "pool_fwd",
    "layer": "layer_norm_fwd",
    "lstm": "rnn_fwd",
    "soft": "softmax_fwd",
}
