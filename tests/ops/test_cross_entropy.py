"""Cross-entropy: PyTorch's values, gradients and errors over a policy's log-softmax."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import nn as ours
from torch_cudnn_ext import ops

SIZES = [(5,), (4, 5), (2, 5, 3), (2, 5, 3, 4), (2, 3, 2, 3, 2)]


def _target(kind: str, sizes: tuple[int, ...], device: str) -> Tensor:
    classes = sizes[0] if len(sizes) == 1 else sizes[1]
    if kind == "probabilities":
        dim = 0 if len(sizes) == 1 else 1
        return torch.rand(sizes, dtype=torch.float64, device=device).softmax(dim)
    where = () if len(sizes) == 1 else (sizes[0], *sizes[2:])
    return torch.randint(classes, where, device=device)


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients_are_pytorchs(sizes: tuple[int, ...], kind: str, device: str) -> None:
    classes = sizes[0] if len(sizes) == 1 else sizes[1]
    weights = (None, torch.rand(classes, dtype=torch.float64, device=device) + 0.5)
    indices = (-100,) if kind == "probabilities" else (-100, 1)
    for weight, ignore_index, reduction, smoothing in itertools.product(
        weights, indices, ("mean", "sum", "none"), (0.0, 0.25, 1.0)
    ):
        x = torch.randn(sizes, dtype=torch.float64, device=device, requires_grad=True)
        target = _target(kind, sizes, device)
        if kind == "probabilities":
            target.requires_grad_()
        arguments: dict[str, Any] = {
            "weight": weight,
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": smoothing,
        }
        got = ops.cross_entropy(x, target, **arguments)
        wanted = F.cross_entropy(x, target, **arguments)
        torch.testing.assert_close(got, wanted, equal_nan=True)
        grad = torch.randn_like(wanted)
        inputs = [x, target] if target.requires_grad else [x]
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs, grad),
            torch.autograd.grad(wanted, inputs, grad),
            equal_nan=True,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision_and_channels_last(dtype: torch.dtype, device: str) -> None:
    x = (
        torch.randn(2, 7, 5, 6, device=device)
        .to(dtype)
        .contiguous(memory_format=torch.channels_last)
    )
    target = torch.randint(7, (2, 5, 6), device=device)
    for smoothing in (0.0, 0.1):
        got = ops.cross_entropy(x, target, label_smoothing=smoothing)
        wanted = F.cross_entropy(x, target, label_smoothing=smoothing)
        torch.testing.assert_close(got, wanted)


def test_deprecated_arguments_and_positions(device: str) -> None:
    x, target = torch.randn(4, 5, device=device), torch.randint(5, (4,), device=device)
    with pytest.warns(UserWarning, match="size_average and reduce"):
        wanted = F.cross_entropy(x, target, None, False, 1, True)
    with pytest.warns(UserWarning, match="size_average and reduce"):
        torch.testing.assert_close(ops.cross_entropy(x, target, None, False, 1, True), wanted)


@pytest.mark.filterwarnings("ignore:reduction='elementwise_mean' is deprecated")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_the_old_name_of_the_mean(soft: bool, smoothing: float, device: str) -> None:
    x = torch.randn(4, 5, device=device)
    target = torch.rand(4, 5, device=device) if soft else torch.arange(4, device=device)
    ways: dict[str, Any] = {"reduction": "elementwise_mean", "label_smoothing": smoothing}
    torch.testing.assert_close(
        ops.cross_entropy(x, target, **ways), F.cross_entropy(x, target, **ways)
    )


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_to_count(reduction: str, kind: str, device: str) -> None:
    for sizes in ((0, 5), (4, 0), (0, 3, 2)):
        if sizes[1] == 0 and kind == "indices":
            continue
        x = torch.randn(sizes, device=device)
        target = torch.zeros(sizes if kind == "probabilities" else (0, *sizes[2:]), device=device)
        if kind == "indices":
            target = target.long()
        torch.testing.assert_close(
            ops.cross_entropy(x, target, reduction=reduction),
            F.cross_entropy(x, target, reduction=reduction),
            equal_nan=True,
        )
    x, target = torch.randn(0, 0, 2, device=device), torch.zeros(0, 2, device=device).long()
    torch.testing.assert_close(
        ops.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1),
        F.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1),
        equal_nan=True,
    )
    x, ignored = torch.randn(4, 5, device=device), torch.full((4,), -100, device=device)
    for smoothing in (0.0, 0.1):
        torch.testing.assert_close(
            ops.cross_entropy(x, ignored, reduction=reduction, label_smoothing=smoothing),
            F.cross_entropy(x, ignored, reduction=reduction, label_smoothing=smoothing),
            equal_nan=True,
        )


@pytest.mark.parametrize(
    ("sizes", "target", "arguments"),
    [
        ((4, 5), torch.zeros(4, 5, dtype=torch.int64), {}),
        ((4, 5), torch.zeros(4, 5), {"ignore_index": 0}),
        ((4, 5), torch.zeros(4, 5), {"ignore_index": 1}),
        ((4, 5), torch.zeros(4, 5), {"weight": torch.ones(4)}),
        ((4, 5), torch.zeros(4, 5), {"label_smoothing": 1.5}),
        ((4, 5), torch.zeros(4, dtype=torch.int64), {"label_smoothing": 1.5}),
        ((4, 5), torch.zeros(3, dtype=torch.int64), {}),
        ((4, 5), torch.zeros(4, dtype=torch.int32), {}),
        ((4, 5), torch.full((4,), 9), {}),
        ((4, 5), torch.zeros(4, dtype=torch.int64), {"weight": torch.ones(3)}),
        (
            (4, 5),
            torch.zeros(4, dtype=torch.uint8),
            {"weight": torch.ones(5), "label_smoothing": 0.1},
        ),
        ((), torch.zeros(()), {}),
        ((2, 3, 4, 4), torch.zeros(2, 4, 5, dtype=torch.int64), {}),
    ],
)
def test_errors_are_pytorchs(
    sizes: tuple[int, ...], target: Tensor, arguments: dict[str, Any]
) -> None:
    x = torch.randn(sizes)
    with pytest.raises(Exception) as wanted:  # noqa: PT011  whatever PyTorch raises
        F.cross_entropy(x, target, **arguments)
    with pytest.raises(wanted.type) as got:
        ops.cross_entropy(x, target, **arguments)
    assert str(got.value) == str(wanted.value)


def test_gradients_of_gradients(device: str) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    target = torch.randint(4, (3,), device=device)

    def loss(x: Tensor) -> Tensor:
        return ops.cross_entropy(x, target, label_smoothing=0.1)

    assert torch.autograd.gradcheck(loss, (x,))
    assert torch.autograd.gradgradcheck(loss, (x,))


def test_pins_are_obeyed() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    target = torch.randint(5, (4,))
    policy = "fwd=cpu:online;bwd=cpu:three_pass"
    ops.cross_entropy(x, target, policy=policy).backward()
    for op, pin in (("softmax_fwd", "cpu:online"), ("softmax_bwd", "cpu:three_pass")):
        choice = newest(op)
        assert (choice.algorithm, choice.why) == (pin, "pinned")


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_autocast(kind: str, device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    x = torch.randn(3, 5, device=device, dtype=lower)
    target = _target(kind, (3, 5), device)
    with torch.autocast(device, lower):
        for smoothing in (0.0, 0.1):
            got = ops.cross_entropy(x, target, label_smoothing=smoothing)
            wanted = F.cross_entropy(x, target, label_smoothing=smoothing)
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_compiles_whole(kind: str, device: str) -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
    target = _target(kind, (2, 5, 3), device)

    def loss(x: Tensor) -> Tensor:
        return ops.cross_entropy(x, target, label_smoothing=0.1)

    check_compiles(loss, x)


def test_module(device: str) -> None:
    weight = torch.rand(5, device=device)
    arguments: dict[str, Any] = {"weight": weight, "ignore_index": 1, "label_smoothing": 0.1}
    mine = ours.CrossEntropyLoss(**arguments, policy="fwd=aten:default")
    theirs = torch.nn.CrossEntropyLoss(**arguments)
    x, target = torch.randn(4, 5, device=device), torch.randint(5, (4,), device=device)
    for module in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert module.policy == "fwd=aten:default"
        torch.testing.assert_close(module(x, target), theirs(x, target))
    assert isinstance(mine, theirs.__class__)
    mine.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())


def test_what_is_no_tensor_is_refused() -> None:
    for arguments in (([1.0], torch.zeros(1)), (torch.zeros(2, 3), [0, 1])):
        with pytest.raises(TypeError, match="argument (input|target)"):
            ops.cross_entropy(*arguments)


def test_smoothed_and_weighted_with_ignored_targets(device: str) -> None:
    weight = torch.rand(5, dtype=torch.float64, device=device) + 0.5
    for sizes, reduction in itertools.product(SIZES[1:3], ("mean", "sum", "none")):
        x = torch.randn(sizes, dtype=torch.float64, device=device, requires_grad=True)
        target = _target("indices", sizes, device)
        target[0] = -100
        losses = [
            function(x, target, weight, reduction=reduction, label_smoothing=0.25)
            for function in (ops.cross_entropy, F.cross_entropy)
        ]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x) for one in losses))
