"""The operators whose host time `overhead` measures, as PyTorch and as this package call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_cudnn_ext import nn, ops


@dataclass(frozen=True)
class Case:
    """One operator on small tensors.

    Attributes:
        name: What the table calls it.
        theirs: PyTorch's function.
        ours: The function of `ops` that takes the same arguments.
        arguments: The arguments of both.
        their_module: The module of ``torch.nn`` that calls ``theirs``.
        our_module: The module of `nn` that calls ``ours``.
        inputs: The arguments of both modules.
    """

    name: str
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    arguments: tuple[Any, ...]
    their_module: torch.nn.Module
    our_module: torch.nn.Module
    inputs: tuple[Tensor, ...]


def cases(device: str, dtype: torch.dtype) -> list[Case]:
    """All operators, on tensors of one dtype.

    The first input requires a gradient. On the CPU the tensors are so small that the arithmetic
    takes little of the time.
    """
    on_gpu = device.startswith("cuda")
    batch, channels, side, kernel = (8, 16, 8, 3) if on_gpu else (1, 4, 4, 1)
    form: dict[str, Any] = {"device": device, "dtype": dtype}
    images = torch.randn(batch, channels, side, side, **form)
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    rows = torch.randn(batch, channels, **form).requires_grad_()
    classes = torch.arange(batch, device=device) % channels
    conv = torch.nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False, **form)
    conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    linear = torch.nn.Linear(channels, channels, **form)
    norm = torch.nn.LayerNorm(channels, **form)
    geometry = (None, conv.stride, conv.padding, conv.dilation, conv.groups)
    return [
        Case("conv2d", F.conv2d, ops.conv2d, (images, conv.weight, *geometry), conv,
             _ours(nn.Conv2d, conv, channels, channels, kernel, padding=kernel // 2, bias=False),
             (images,)),
        Case("max_pool2d", F.max_pool2d, ops.max_pool2d, (images, 2, 2),
             torch.nn.MaxPool2d(2, 2), nn.MaxPool2d(2, 2), (images,)),
        Case("avg_pool2d", F.avg_pool2d, ops.avg_pool2d, (images, 2, 2),
             torch.nn.AvgPool2d(2, 2), nn.AvgPool2d(2, 2), (images,)),
        _batch_norm("batch_norm, training", images, True),
        _batch_norm("batch_norm", images, False),
        Case("layer_norm", F.layer_norm, ops.layer_norm,
             (rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps),
             norm, _ours(nn.LayerNorm, norm, channels), (rows,)),
        Case("softmax", F.softmax, ops.softmax, (rows, 1), torch.nn.Softmax(1), nn.Softmax(1),
             (rows,)),
        Case("cross_entropy", F.cross_entropy, ops.cross_entropy, (rows, classes),
             torch.nn.CrossEntropyLoss(), nn.CrossEntropyLoss(), (rows, classes)),
        Case("relu", F.relu, ops.relu, (rows,), torch.nn.ReLU(), nn.ReLU(), (rows,)),
        Case("linear", F.linear, ops.linear, (rows, linear.weight, linear.bias), linear,
             _ours(nn.Linear, linear, channels, channels), (rows,)),
        _lstm(batch, channels, form),
    ]  # fmt: skip


def _ours(
    kind: Callable[..., torch.nn.Module], theirs: torch.nn.Module, *arguments: Any, **keywords: Any
) -> torch.nn.Module:
    """A module of ours with the parameters of one of PyTorch's."""
    weight = next(theirs.parameters())
    module = kind(*arguments, **keywords, device=weight.device, dtype=weight.dtype)
    module.load_state_dict(theirs.state_dict())
    if weight.dim() == 4:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    return module.train(theirs.training)


def _batch_norm(name: str, images: Tensor, training: bool) -> Case:
    channels = images.shape[1]
    theirs = torch.nn.BatchNorm2d(channels, device=images.device).train(training)
    statistics = (theirs.running_mean, theirs.running_var)
    arguments = (images, *statistics, theirs.weight, theirs.bias, training, 0.1, theirs.eps)
    ours = _ours(nn.BatchNorm2d, theirs, channels)
    return Case(name, F.batch_norm, ops.batch_norm, arguments, theirs, ours, (images,))


def _lstm(batch: int, features: int, form: Mapping[str, Any]) -> Case:
    theirs = torch.nn.LSTM(features, features, **form)
    steps = torch.randn(2, batch, features, **form).requires_grad_()
    state = torch.zeros(1, batch, features, **form)
    arguments = (steps, [state, state], [*theirs.parameters()], True, 1, 0.0, True, False, False)
    ours = _ours(nn.LSTM, theirs, features, features)
    return Case("lstm", torch.lstm, ops.lstm, arguments, theirs, ours, (steps,))
