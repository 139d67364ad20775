"""Pooling: PyTorch's values, gradients, layouts and errors."""

import copy
import math
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from conftest import Seeing, check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, Policy, convert, enabled, knobs, ops, when
from torch_cudnn_ext import nn as ours

Function = Callable[..., Any]
# Sizes with batch and channels, by the number of dimensions of space.
SIZES = {1: (3, 4, 11), 2: (3, 4, 9, 8), 3: (2, 3, 6, 7, 5)}
WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 4, "stride": 1, "padding": 2},
)


def _last(t: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats.get(t.dim(), torch.contiguous_format))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels_last": _last,
    "sliced": lambda t: t[:, 1:],
    "unbatched": lambda t: t[0],
    "one_batch": lambda t: _last(t[:1]),
    "empty": lambda t: t[:0],
}


def _same(mine: Function, theirs: Function, x: Tensor, **how: Any) -> None:
    x = x.detach().requires_grad_()
    got, wanted = mine(x, **how), theirs(x, **how)
    torch.testing.assert_close(got, wanted)
    if x.numel() > 0 and x.dim() > 3:
        matters = [n > 1 for n in got.shape]
        strides = zip(got.stride(), wanted.stride(), matters, strict=True)
        assert all(a == b for a, b, matter in strides if matter)
    grad = torch.randn_like(wanted)
    # PyTorch 2.11's own gradient of an average over channels_last planes is wrong on CUDA.
    plain = x.detach().contiguous().requires_grad_()
    (wanted_grad,) = torch.autograd.grad(theirs(plain, **how), plain, grad.contiguous())
    torch.testing.assert_close(torch.autograd.grad(got, x, grad)[0], wanted_grad)
    with torch.no_grad():
        torch.testing.assert_close(mine(x, **how), wanted)


def _sums_of_rows(
    x: Tensor,
    kernel_size: int,
    stride: int | None = None,
    padding: int = 0,
    ceil_mode: bool = False,
) -> Tensor:
    """Over one dimension of space, where PyTorch's average has no divisor of its own."""
    window, step = (1, kernel_size), (1, stride or kernel_size)
    rows = x.unsqueeze(-2)
    sums = F.avg_pool2d(rows, window, step, (0, padding), ceil_mode, divisor_override=1)
    return sums.squeeze(-2)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("kind", "dims"),
    [
        (kind, dims)
        for kind in ("max", "avg", "avg_exclude", "divisor", "sum")
        for dims in SIZES
        if (kind, dims) != ("divisor", 1)  # which PyTorch has not
    ],
)
def test_plain_windows_are_pytorchs(kind: str, dims: int, view: str, device: str) -> None:
    x = VIEWS[view](torch.randn(SIZES[dims], dtype=torch.float64, device=device))
    name = f"max_pool{dims}d" if kind == "max" else f"avg_pool{dims}d"
    for window in WINDOWS:
        how = dict(window)
        if kind == "avg_exclude":
            how["count_include_pad"] = False
        if kind == "max":
            _same(getattr(ops, name), getattr(F, name), x, dilation=1, **how)
        elif kind == "divisor":
            _same(getattr(ops, name), getattr(F, name), x, divisor_override=-5, **how)
        elif kind == "sum" and dims == 1:
            _same(ops.sum_pool1d, _sums_of_rows, x, **how)
        elif kind == "sum":

            def theirs(x: Tensor, how: dict[str, Any] = how) -> Tensor:
                result: Tensor = getattr(F, name)(x, divisor_override=1, **how)
                return result

            def mine(x: Tensor, how: dict[str, Any] = how) -> Tensor:
                result: Tensor = getattr(ops, f"sum_pool{dims}d")(x, **how)
                return result

            _same(mine, theirs, x)
        else:
            _same(getattr(ops, name), getattr(F, name), x, **how)


def test_heap_is_kept_from_pytorch_s_maxima_of_padding() -> None:
    # Its indices of windows that hold no pixel are not of x.
    line = "pool_fwd x=f32[2,2,1,8]:nchw window=2 pad=1 stride=2 dilation=2 mode=max train=true"
    rows = {row["algorithm"]: row for row in _C.candidates(line, "cpu")}
    assert "out of bounds" in rows["aten:default"]["reason"]
    for _ in range(20):
        x = torch.randn(2, 2, 1, 8, requires_grad=True)
        y = ops.max_pool2d(x, 2, 2, 1, 2)
        assert y.detach().isinf().all()
        y.backward(torch.ones_like(y))
        assert x.grad is not None and not x.grad.any()
    near = _C.candidates(line.replace("[2,2,1,8]", "[2,2,2,8]"), "cpu")
    assert {row["algorithm"]: row["status"] for row in near}["aten:default"] == "ok"


@pytest.mark.parametrize("dims", SIZES)
def test_dilation_and_indices(dims: int, device: str) -> None:
    name = f"max_pool{dims}d"
    x = torch.randn(SIZES[dims], device=device)
    how: dict[str, Any] = {"kernel_size": 2, "stride": 1, "padding": 1, "dilation": 2}
    _same(getattr(ops, name), getattr(F, name), x, **how)
    got = getattr(ops, name)(x, return_indices=True, **how)
    wanted = getattr(F, name)(x, return_indices=True, **how)
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])
    with pytest.raises(ValueError, match="no other algorithm gives indices"):
        getattr(ops, name)(x, 2, return_indices=True, policy="legacy:max")


@pytest.mark.parametrize("kind", ["MaxPool2d", "AdaptiveMaxPool2d"])
def test_indices_are_refused_by_backends_that_do_not_make_them(kind: str, device: str) -> None:
    x = torch.randn(2, 3, 4, 4, device=device)
    for policy in ("backends=cudnn", "backends=cpu;fwd=autotune", {"backends": ["legacy", "cpu"]}):
        module = getattr(ours, kind)(2, return_indices=True, policy=policy)
        with pytest.raises(
            ValueError, match=r"return_indices: got True .* aten among the backends"
        ):
            module(x)
    module = getattr(ours, kind)(2, return_indices=True)
    with knobs.flags(backends="cudnn"), pytest.raises(ValueError, match="aten among the backends"):
        module(x)
    with knobs.flags(backends="cudnn"):  # the argument is the stronger one
        allowed = getattr(ours, kind)(2, return_indices=True, policy="backends=aten,cpu")(x)
    for got, wanted in zip(allowed, module(x), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"kernel_size": 0}, r"kernel_size is \[0, 0\], wanted at least 1"),
        ({"kernel_size": 2, "dilation": 0}, r"dilation is \[0, 0\], wanted at least 1"),
        ({"kernel_size": 2, "padding": 2}, "padding is 2, wanted at most half of kernel_size"),
        ({"kernel_size": 9}, "kernel_size is 9 with dilation 1, wanted no more than"),
        ({"kernel_size": 2, "input": torch.zeros(8, 8)}, "input has sizes .8, 8., wanted 4"),
        ({"kernel_size": 2, "input": torch.zeros(1, 1, 8, 8).long()}, "input is Long, wanted"),
        ({"output_size": -1}, r"output_size is \[-1, -1\], wanted at least 0"),
        ({"output_size": 2, "input": torch.zeros(1, 1, 8, 8).long()}, "input is Long, wanted"),
    ],
)
def test_indices_are_refused_where_maxima_are(
    how: dict[str, Any], message: str, device: str
) -> None:
    function: Function = ops.adaptive_max_pool2d if "output_size" in how else ops.max_pool2d
    keywords = {"input": torch.zeros(1, 1, 8, 8), **how}
    keywords["input"] = keywords["input"].to(device)
    for return_indices in (False, True):
        with pytest.raises(ValueError, match=message):
            function(**keywords, return_indices=return_indices)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dims", SIZES)
def test_adaptive_windows_are_pytorchs(dims: int, view: str, device: str) -> None:
    x = VIEWS[view](torch.randn(SIZES[dims], dtype=torch.float64, device=device))
    outputs: list[Any] = [1, 2, 3, *([(None,) * (dims - 1) + (2,)] if dims > 1 else [])]
    for output in outputs:
        for kind in ("avg", "max"):
            name = f"adaptive_{kind}_pool{dims}d"
            if view == "empty" and kind == "max" and dims == 1:
                continue  # PyTorch's own refuses it
            _same(getattr(ops, name), getattr(F, name), x, output_size=output)
    if x.numel() > 0:
        got = getattr(ops, f"adaptive_max_pool{dims}d")(x, 2, return_indices=True)
        wanted = getattr(F, f"adaptive_max_pool{dims}d")(x, 2, return_indices=True)
        assert torch.equal(got[1], wanted[1])


@pytest.mark.parametrize("dims", SIZES)
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_windows_of_nothing(kind: str, dims: int, device: str) -> None:
    function = getattr(ops, f"adaptive_{kind}_pool{dims}d")
    x = _last(torch.randn(SIZES[dims], device=device)).requires_grad_()
    for view, output, sizes in (
        (x, 0, x.shape[:2] + (0,) * dims),
        (x[:, :0], 2, (x.shape[0], 0) + (2,) * dims),
        (x[0, :0], 2, (0,) + (2,) * dims),
    ):
        got, fake = function(view, output), function(view.to("meta"), output)
        assert got.shape == sizes
        assert got.stride() == fake.stride()
        (grad,) = torch.autograd.grad(got.sum(), x)
        assert not grad.any()


@pytest.mark.parametrize("sizes", [(2, 3, 4), (2, 1, 3, 4), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_global_averages_of_more_dimensions(dims: int, sizes: tuple[int, ...], device: str) -> None:
    name, x = f"adaptive_avg_pool{dims}d", torch.randn(*sizes, 5, 3, 4, 2, device=device)
    x = x.flatten(len(sizes), len(sizes) + 3 - dims).double()
    for output in (1, (1,) * dims):
        _same(getattr(ops, name), getattr(F, name), x, output_size=output)
    plane = torch.randn(4, 3, device=device, dtype=torch.float64)
    for refusing in (getattr(F, name), getattr(ops, name)):
        with pytest.raises((RuntimeError, ValueError)):
            refusing(x, 2)
        with pytest.raises((RuntimeError, ValueError)):
            refusing(plane, (1, 2, 1)[:dims])
    if dims == 2:  # of which PyTorch takes the mean
        _same(ops.adaptive_avg_pool2d, F.adaptive_avg_pool2d, plane, output_size=1)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_indices_that_pytorch_s_kernel_gets_wrong_are_refused(dims: int) -> None:
    x = torch.randn(1, 4, *[5] * (dims - 1), 1, requires_grad=True)
    module = getattr(ours, f"MaxPool{dims}d")(2, 2, 1, 2, return_indices=True)
    with pytest.raises(ValueError, match=r"return_indices: .*if a window lies in the padding"):
        module(x)
    module(x.detach())
    x = torch.randn(1, 4, *[8] * dims, requires_grad=True)  # no such window
    wanted = getattr(torch.nn, f"MaxPool{dims}d")(2, 2, 1, 2, return_indices=True)(x)
    torch.testing.assert_close(module(x), wanted)
    empty = x[:0] if dims > 1 else x[:0].detach()
    assert module(empty)[1].shape == (0, *wanted[1].shape[1:])


def test_gradients_of_global_averages_ignore_the_default_dtype(device: str) -> None:
    x = torch.randn(1, 2, 257, 257, device=device, requires_grad=True)
    wanted = torch.autograd.grad(F.adaptive_avg_pool2d(x, 1).sum(), x)[0]
    torch.set_default_dtype(torch.float16)
    try:
        got = torch.autograd.grad(ops.adaptive_avg_pool2d(x, 1).sum(), x)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(got, wanted)


def test_no_stride_is_the_kernels_size(device: str) -> None:
    x = torch.randn(2, 3, 4, 4, device=device)
    none: tuple[Any, ...] = ((), [])
    for stride in none:
        for name in ("max_pool2d", "avg_pool2d"):
            wanted = getattr(F, name)(x, 2, stride=stride)
            torch.testing.assert_close(getattr(ops, name)(x, 2, stride=stride), wanted)


@pytest.mark.parametrize("norm", [1, 2, 3.0])
@pytest.mark.parametrize("dims", SIZES)
def test_norms_are_pytorchs(dims: int, norm: float, device: str) -> None:
    x = torch.rand(SIZES[dims], dtype=torch.float64, device=device)
    x.flatten(2)[0, 0] = 0
    name = f"lp_pool{dims}d"
    for how in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "ceil_mode": True}):
        _same(getattr(ops, name), getattr(F, name), x, norm_type=norm, **how)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_lower_precision(layout: str, dtype: torch.dtype, device: str) -> None:
    x = VIEWS[layout](torch.randn(2, 8, 12, 10, device=device).to(dtype))
    torch.testing.assert_close(ops.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 3, 2, 1))
    torch.testing.assert_close(ops.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1))


def test_half_averages_over_volumes_that_pytorch_refuses_on_the_cpu() -> None:
    x = torch.randn(1, 2, 4, 4, 4)
    got = ops.avg_pool3d(x.half(), 2)
    torch.testing.assert_close(got.float(), F.avg_pool3d(x, 2), rtol=2e-3, atol=2e-3)


def test_nan_and_infinities(device: str) -> None:
    x = torch.tensor([[[[1.0, torch.nan, -torch.inf, -torch.inf]]]], device=device)
    wanted = F.max_pool2d(x, (1, 2))
    # cuDNN's maximum of a window that is all -inf is the lowest finite number.
    pin = "fwd=aten:default" if device == "cuda" else None
    torch.testing.assert_close(ops.max_pool2d(x, (1, 2), policy=pin), wanted, equal_nan=True)
    for pin in ("aten:taps", *(("cpu:taps", "cpu:unfold") if device == "cpu" else ())):
        got = ops.max_pool2d(x, (1, 2), policy=f"fwd={pin}")
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_maxima_without_indices(dims: int, device: str) -> None:
    mine, theirs = getattr(ops, f"max_pool{dims}d"), getattr(F, f"max_pool{dims}d")
    windows = (*WINDOWS, {"kernel_size": 2, "dilation": 3}, {"kernel_size": 3, "stride": 5})
    for layout, view in VIEWS.items():
        x = view(torch.randn(SIZES[dims], device=device))
        for window in windows:
            got = mine(x, **window, policy="max_workspace=0;fwd=aten:taps")
            assert torch.equal(got, theirs(x, **window)), (layout, window)
            assert torch.equal(mine(x, **window, policy="max_workspace=0"), got)
    problem = "pool_fwd x=f32[2,3,9,9]:nchw window={} mode=max{}"
    for window, more, wanted in (
        (8, "", "ok"),
        (9, "", "unsupported"),
        (2, " train=true", "unsupported"),
    ):
        line = problem.format(window, more)
        rows = _C.measure(line, device, "backends=aten", min_samples=1, record=False)
        (row,) = (r for r in rows if r["algorithm"] == "aten:taps")
        assert row["status"] == wanted
        assert wanted != "ok" or (row["workspace_bytes"], row["error"]) == (0, 0)
        assert wanted == "ok" or "at most 64 elements" in row["reason"]


@pytest.mark.parametrize("pin", ["aten:default", "cpu:taps", "cpu:unfold"])
def test_padding_has_no_gradient(pin: str) -> None:
    windows: list[Any] = [(1, 1), (1, 1, 2), (2, 0, 1, True)]  # stride, padding, dilation, ceil
    for window in windows:
        x = torch.full((2, 8, 6), -torch.inf, requires_grad=True)
        y = ops.max_pool1d(x, 3, *window, policy=f"fwd={pin}")
        assert isinstance(y, Tensor)
        wanted = F.max_pool1d(x, 3, *window)
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(y, x, grad), torch.autograd.grad(wanted, x, grad)
        )


@pytest.mark.parametrize("adaptive", [False, True])
def test_nested_transforms(adaptive: bool, device: str) -> None:
    def twice(pool: Function, x: Tensor) -> Tensor:
        def inner(t: Tensor) -> Tensor:
            first: Tensor = torch.func.grad(lambda u: pool(u[None], 2).pow(3).sum())(t)
            return first.sum()

        result: Tensor = torch.func.grad(inner)(x)
        return result

    name = "adaptive_max_pool1d" if adaptive else "max_pool1d"
    x = torch.tensor([1.0, 2.0, 4.0, 3.0], device=device)
    got = twice(getattr(ops, name), x)
    torch.testing.assert_close(got, torch.tensor([0.0, 12.0, 24.0, 0.0], device=device))
    torch.testing.assert_close(got, twice(getattr(F, name), x))


GRADIENTS: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda t: ops.max_pool2d(t, 3, 2, 1, ceil_mode=True),
    "max_dilated": lambda t: ops.max_pool2d(t, 2, 1, 1, 2),
    "max_1d": lambda t: ops.max_pool1d(t[0], 3, 2),
    "avg": lambda t: ops.avg_pool2d(t, 3, 2, 1, count_include_pad=False),
    "avg_ceil": lambda t: ops.avg_pool2d(t, 2, 2, 1, ceil_mode=True),
    "sum": lambda t: ops.sum_pool2d(t, 3, 1),
    "norm": lambda t: ops.lp_pool2d(t, 2, 2),
    "adaptive_avg": lambda t: ops.adaptive_avg_pool2d(t, 3),
    "adaptive_max": lambda t: ops.adaptive_max_pool2d(t, (3, 2)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_gradients(name: str, device: str) -> None:
    # Far apart, so that no small step changes which is the largest.
    x = torch.randperm(2 * 2 * 5 * 4, device=device).double().view(2, 2, 5, 4).div(8)
    x.add_(1).requires_grad_()
    assert torch.autograd.gradcheck(GRADIENTS[name], (x,))
    assert torch.autograd.gradgradcheck(GRADIENTS[name], (x,))


@pytest.mark.parametrize("name", [name for name in GRADIENTS if "max" in name])
def test_second_derivatives_by_the_input_are_zero(name: str, device: str) -> None:
    x = torch.randn(2, 2, 5, 4, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(GRADIENTS[name](x).sum(), x, create_graph=True)
    torch.autograd.backward(grad.square().sum())
    assert x.grad is not None and torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("mode", ["max", "avg_include"])
def test_pins_are_obeyed_by_both_passes(mode: str, device: str) -> None:
    knobs.allow_reduced_range = True
    train = " train=true" if mode == "max" else ""
    line = f"pool_fwd x=f32[2,4,8,6]:nchw window=3 pad=1 stride=2 mode={mode}{train}"
    found = [c for c in _C.candidates(line, device, "") if c["status"] == "ok"]
    assert len(found) >= 2
    function = ops.max_pool2d if mode == "max" else ops.avg_pool2d
    for candidate in found:
        pin = candidate["algorithm"]
        x = torch.randn(2, 4, 8, 6, device=device, requires_grad=True)
        # A maximum's backward follows its forward.
        policy = f"fwd={pin}" if mode == "max" else f"fwd={pin};bwd={pin}"
        if mode != "max" and pin.startswith("graph"):
            continue  # these have no backward
        y = function(x, 3, 2, 1, policy=policy)
        assert isinstance(y, Tensor)
        torch.autograd.backward(y.sum())
        followed = "coupled with its forward" if mode == "max" else "pinned"
        for op, why in (("pool_fwd", "pinned"), ("pool_bwd", followed)):
            choice = newest(op)
            assert (choice.algorithm, choice.why) == (pin, why)


def test_coupled_passes_refuse_different_pins() -> None:
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="these passes are coupled"):
        ops.max_pool2d(x, 2, policy="fwd=cpu:taps;bwd=cpu:unfold")
    y = ops.avg_pool2d(x, 2, policy="fwd=cpu:taps;bwd=cpu:unfold")
    torch.autograd.backward(y.sum())
    assert newest("pool_bwd").algorithm == "cpu:unfold"


def test_autotuned_training_and_inference(device: str) -> None:
    x = torch.randn(2, 4, 9, 9, device=device, requires_grad=True)
    for function in (ops.max_pool2d, ops.avg_pool2d):
        y = function(x, 3, 2, policy="autotune")
        assert isinstance(y, Tensor)
        torch.autograd.backward(y.sum())
        forward, backward = ops.last_decision("pool_fwd"), ops.last_decision("pool_bwd")
        assert forward is not None
        assert backward is not None
        assert forward.why == "tuned"
        if function is ops.max_pool2d:
            assert forward.algorithm == backward.algorithm


@pytest.mark.parametrize("dims", SIZES)
@pytest.mark.parametrize("kind", ["max", "avg", "lp", "adaptive_avg", "adaptive_max"])
def test_autocast_gives_pytorchs_dtype(kind: str, dims: int, device: str) -> None:
    name = f"{kind}_pool{dims}d"
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    arguments = (2.0, 2) if kind == "lp" else (2,)
    for dtype in (torch.float32, lower):
        x = torch.rand(SIZES[dims], device=device, dtype=dtype)
        with torch.autocast(device, lower):
            got = getattr(ops, name)(x, *arguments)
            assert got.dtype == getattr(F, name)(x, *arguments).dtype


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole(backend: str, device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        y = ops.max_pool2d(x, 3, 2, 1)
        assert isinstance(y, Tensor)
        return ops.adaptive_avg_pool2d(ops.avg_pool2d(y, 2), 1).square().sum()

    x = torch.randn(2, 3, 12, 12, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x, backend=backend)


def test_equal_problems_have_one_text() -> None:
    def same(a: str, b: str) -> None:
        assert _C.canonical_problem(a) == _C.canonical_problem(b)

    x = "pool_fwd x=f32[2,4,8,6]:nchw"
    same(f"{x} window=4,2 adaptive=true", f"{x} window=2,3 stride=2,3")
    same(f"{x} window=2 ceil=true", f"{x} window=2")
    same(f"{x} window=2 mode=avg_exclude", f"{x} window=2 mode=avg_include")
    same(f"{x} window=2 mode=sum divisor=4", f"{x} window=2 mode=avg_include")
    same(f"{x} window=1 dilation=3", f"{x} window=1")
    same(f"{x.replace('fwd', 'bwd')} window=2", f"{x.replace('fwd', 'bwd')} window=2 train=true")


@pytest.mark.parametrize(
    ("problem", "algorithm", "reason"),
    [
        ("window=3 stride=2 ceil=true", "legacy:max", "rounds sizes down"),
        ("window=3 dilation=2", "legacy:max", "no dilation"),
        ("window=3 dilation=2", "graph:eng0", "no dilation"),
        ("window=3 adaptive=true", "legacy:max", "do not divide"),
        ("window=3 mode=sum", "graph:eng0", "does not sum"),
        ("window=3 stride=2 mode=avg_include ceil=true", "graph:eng0", "past the padding"),
    ],
)
def test_refusals_have_reasons(problem: str, algorithm: str, reason: str) -> None:
    line = f"pool_fwd x=f32[2,4,8,8]:nchw {problem}"
    found = {c["algorithm"]: c["reason"] for c in _C.candidates(line, "target:h200", "")}
    assert reason in found[algorithm]


def test_precompiled_engines_are_listed_without_a_gpu() -> None:
    for mode in ("max", "avg_include", "avg_exclude"):
        # The backward of an average is listed by cuDNN, and fails at the run.
        for op in ("pool_fwd", "pool_bwd") if mode == "max" else ("pool_fwd",):
            line = f"{op} x=f16[2,8,12,12]:nchw window=3 pad=1 stride=2 mode={mode}"
            policy = "allow_reduced_range" if mode == "max" else ""
            listed = _C.candidates(line, "target:h200", policy)
            found = {c["algorithm"]: c["status"] for c in listed}
            assert found["graph:eng1"] == "ok"


X = torch.zeros(1, 2, 4, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.max_pool2d(cast(Any, [1.0]), 2), "argument input: got .*, wanted a Tensor"),
        (lambda: ops.max_pool2d(X, cast(Any, "2")), "argument kernel_size: got '2'"),
        (lambda: ops.max_pool2d(X, (2, 2, 2)), "argument kernel_size: got 3 numbers"),
        (lambda: ops.max_pool2d(X, 0), r"kernel_size is \[0, 0\], wanted at least 1"),
        (lambda: ops.max_pool2d(X, 2, 0), r"stride is \[0, 0\], wanted at least 1"),
        (lambda: ops.avg_pool2d(X, 3, 1, 2), "padding is 2, wanted at most half of kernel_size"),
        (lambda: ops.max_pool2d(X, 5), "kernel_size is 5 with dilation 1, wanted no more than"),
        (lambda: ops.max_pool2d(X[0, 0], 2), "input has sizes .*, wanted 4 dimensions, or 3"),
        (lambda: ops.max_pool2d(X[:, :0], 2), "wanted at least 1 in all dimensions but the batch"),
        (lambda: ops.avg_pool2d(X, 2, divisor_override=0), "divisor_override is 0"),
        (lambda: ops.max_pool2d(X.long(), 2), "input is Long, wanted Float"),
        (lambda: ops.adaptive_avg_pool2d(X, -1), r"output_size is \[-1, -1\], wanted at least 0"),
        (lambda: ops.adaptive_max_pool2d(X[..., :0], 2), "but the batch's and the channels'"),
        (lambda: ops.lp_pool2d(X, 0, 2), "norm_type: got 0"),
        (lambda: ops.max_pool2d(X, 2, policy="fwd=fft"), "it is one of conv_fwd"),
        (lambda: ops.avg_pool2d(X, 2, policy="fwd=max"), "legacy:max cannot run"),
    ],
)
def test_errors_name_the_argument(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        call()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_arguments_of_the_inner_gradient_are_checked(device: str) -> None:
    inner = torch.ops.torch_cudnn_ext._max_pool_backward.default
    x, y = torch.zeros(1, 1, 4, 4, device=device), torch.zeros(1, 1, 2, 2, device=device)
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False, False)
    rest = (torch.empty(0, device=device), None, False, *windows)
    with pytest.raises(ValueError, match="grad_output has sizes .1, 1, 1, 1., wanted output's"):
        inner(y[..., :1, :1], x, y, *rest)
    with pytest.raises(ValueError, match="grad_output is Double, wanted output's dtype Float"):
        inner(y.double(), x, y, *rest)
    with pytest.raises(ValueError, match="output has sizes .1, 1, 4, 4., wanted .1, 1, 2, 2."):
        inner(x, x, x, *rest)
    with pytest.raises(ValueError, match="input is Long, wanted Float"):
        inner(y, x.long(), y, *rest)


MODULES: dict[str, tuple[dict[str, Any], ...]] = {
    "MaxPool": ({"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 2}),
    "AvgPool": ({"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},),
    "LPPool": ({"norm_type": 2, "kernel_size": 2},),
    "AdaptiveAvgPool": ({"output_size": 2}, {"output_size": 1}),
    "AdaptiveMaxPool": ({"output_size": 2}, {"output_size": 2, "return_indices": True}),
}


@pytest.mark.parametrize("dims", SIZES)
@pytest.mark.parametrize("kind", MODULES)
def test_modules(kind: str, dims: int, device: str) -> None:
    x = torch.rand(SIZES[dims], device=device)
    for arguments in MODULES[kind]:
        cls = getattr(ours, f"{kind}{dims}d")
        module = cls(**arguments, policy="heuristic")
        parent = cls.replaces(**arguments)
        assert cls.replaces is getattr(torch.nn, f"{kind}{dims}d")
        wanted = parent(x)
        for copied in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert copied.policy == module.policy
            torch.testing.assert_close(copied(x), wanted)
        assert module.state_dict() == parent.state_dict()
        assert module.set_mode("max", bwd="max_deterministic").policy == (
            "fwd=legacy:max;bwd=legacy:max_deterministic"
        )
        assert module.reset_mode().policy is None


def test_what_a_maximum_leaves_may_be_kept_elsewhere(device: str) -> None:
    x = torch.randn(2, 16, 9, 8, device=device).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    wanted = torch.autograd.grad(F.max_pool2d(x, 3, 2).square().sum(), x)[0]

    def repacked(t: Tensor) -> Tensor:
        return torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)

    graphs = "backends=graph;allow_reduced_range"
    for policy in ("", graphs if device == "cuda" else "backends=cpu"):
        with torch.autograd.graph.saved_tensors_hooks(repacked, lambda t: t):
            y = ops.max_pool2d(x, 3, 2, policy=policy)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], wanted)


def test_samples_of_a_maximum_may_lie_anywhere(device: str) -> None:
    # Channels-last, of 144 bytes each, and 72 for the places of its maxima.
    x = torch.randn(5, 1, 4, 4, 8, device=device).half().permute(0, 1, 4, 2, 3)

    def loss(function: Function) -> Function:
        return lambda t: function(t, 2, 1).square().sum()

    wanted = torch.func.vmap(torch.func.grad(loss(F.max_pool2d)))(x)
    got = torch.func.vmap(torch.func.grad(loss(ops.max_pool2d)))(x)
    torch.testing.assert_close(got, wanted)
    odd = torch.randn(3, 1, 2, 3, 3, device=device)  # of 72 bytes
    with when("pool_fwd align=8", use="aten:default"):
        got = torch.func.vmap(torch.func.grad(loss(ops.max_pool2d)))(odd)
    torch.testing.assert_close(got, torch.func.vmap(torch.func.grad(loss(F.max_pool2d)))(odd))


@pytest.mark.parametrize(
    "policy", [None, "autotune", Policy(fwd="aten:default", family="pool")], ids=str
)
def test_indices_are_compiled(policy: Any, device: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=device)
    module = ours.MaxPool2d(2, return_indices=True, policy=policy)
    adaptive = ours.AdaptiveMaxPool2d(3, return_indices=True, policy=policy)
    for function in (
        lambda t: ops.max_pool2d(t, 2, return_indices=True, policy=policy),
        module,
        adaptive,
    ):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for got, wanted in zip(compiled(x), function(x), strict=True):
            assert torch.equal(got, wanted)
    for module_ in (module, adaptive):
        exported = torch.export.export(module_, (x,), strict=True).module()
        assert torch.equal(exported(x)[1], module_(x)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_volumes_average_wants_windows_that_fit(dtype: torch.dtype, device: str) -> None:
    for place in (device, "meta"):
        x = torch.ones(1, 1, 2, 2, 2, dtype=dtype, device=place)
        with pytest.raises(RuntimeError, match="smaller than kernel size"):
            F.avg_pool3d(x, 3, ceil_mode=True)
        with pytest.raises(ValueError, match="kernel_size is 3, wanted no more than input .* 2"):
            ops.avg_pool3d(x, 3, ceil_mode=True)


def test_indices_obey_what_a_policy_says_of_the_unsupported(device: str) -> None:
    x = torch.randn(2, 3, 4, 4, device=device)
    wanted = F.max_pool2d(x, 2, return_indices=True)
    policy = "cpu:taps;on_unsupported="
    got = ops.max_pool2d(x, 2, return_indices=True, policy=f"{policy}fallback")
    assert all(map(torch.equal, got, wanted))
    with pytest.warns(
        UserWarning, match="no other algorithm gives indices; aten:default runs"
    ) as w:
        ops.max_pool2d(x, 2, return_indices=True, policy=f"{policy}warn")
    assert w[0].filename == __file__
    with (
        knobs.flags(pool_fwd_algo="cpu:taps"),
        pytest.raises(ValueError, match="policy fwd=cpu:taps, wanted aten:default"),
    ):
        ops.max_pool2d(x, 2, return_indices=True)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_modules_hand_on_whether_the_last_window_may_reach_beyond(dims: int, device: str) -> None:
    x = torch.randn(SIZES[dims], device=device)
    for kind, made in (("MaxPool", (3,)), ("AvgPool", (3,)), ("LPPool", (2.0, 3))):
        for ceil_mode in (False, True):
            mine, theirs = (
                getattr(side, f"{kind}{dims}d")(*made, stride=2, ceil_mode=ceil_mode)
                for side in (ours, torch.nn)
            )
            torch.testing.assert_close(mine(x), theirs(x))


def test_indices_of_a_window_larger_than_its_input(device: str) -> None:
    x = torch.randn(2, 3, 1, 4, device=device)
    how: dict[str, Any] = {"kernel_size": 2, "ceil_mode": True, "return_indices": True}
    torch.testing.assert_close(ops.max_pool2d(x, **how), F.max_pool2d(x, **how))


def test_indices_are_refused_where_their_backward_is_pinned() -> None:
    x = torch.randn(2, 3, 4, 4)
    with pytest.raises(ValueError, match="under the policy bwd=cpu:taps, wanted aten:default"):
        ops.max_pool2d(x, 2, return_indices=True, policy="bwd=cpu:taps")


@pytest.mark.parametrize("how", ["enabled", "converted"])
def test_no_list_of_a_pooling_is_empty(how: str) -> None:
    """AOTInductor of PyTorch 2.11 calls a custom operator with None for such."""

    class Pools(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.largest = torch.nn.AdaptiveAvgPool2d(1), torch.nn.AdaptiveMaxPool2d(2)

        def forward(self, x: Tensor) -> Any:
            pooled = F.avg_pool2d(F.max_pool2d(x, 2), 2)
            return pooled, self.mean(x), self.largest(x), F.adaptive_avg_pool2d(x, (2, 1))

    model, x = Pools().eval(), torch.randn(2, 3, 8, 8)
    wanted = model(x)
    if how == "converted":
        model = convert(model)
    with enabled() if how == "enabled" else nullcontext(), Seeing() as seeing:
        torch.testing.assert_close(model(x), wanted)
    ours = [given for function, given in seeing.met if function.namespace == "torch_cudnn_ext"]
    lists = [argument for given in ours for argument in given if isinstance(argument, list)]
    assert len(lists) > 6 and all(lists)


@pytest.mark.parametrize(
    "line",
    [
        "x=bf16[2,2,9,255]:nchw window=3",
        "x=bf16[1,1,12,256]:nhwc window=5 stride=2",
        "x=bf16[1,2,13,128]:nchw window=5",
        "x=bf16[1,1,20,56]:nchw window=13",
        "x=bf16[1,1,20,31]:nchw window=3,4 dilation=4,1",
        "x=f16[1,1,5,64,64]:nchw window=3",
        "x=bf16[1,1,1,300]:nchw window=1,17 dilation=1,3",
        "x=f32[1,1,70,70]:nchw window=64",
    ],
)
def test_maxima_of_scratch_stand_in_one_place(line: str) -> None:
    problem = f"pool_fwd {line} mode=max"
    windows = _C.scratch(problem, "cpu")["x"]
    fields = dict(field.split("=") for field in line.split()[1:])
    dims = windows.dim() - 2
    for dim in range(dims):
        size, step = (
            int([*fields.get(name, "1").split(",") * dims][dim]) for name in ("window", "dilation")
        )
        windows = windows.unfold(dim + 2, (size - 1) * step + 1, 1)[..., ::step]
    windows = windows.flatten(-dims)
    assert (windows == windows.amax(-1, keepdim=True)).sum(-1).max() == 1


@pytest.mark.parametrize("algorithm", ["cpu:taps", "cpu:unfold", "aten:default"])
def test_a_gradient_that_is_not_finite_goes_to_the_maximum_alone(algorithm: str) -> None:
    x = torch.tensor([[[[1.0, 4.0, 2.0, 3.0]]]], requires_grad=True)
    y = ops.max_pool2d(x, (1, 4), policy=algorithm)
    (dx,) = torch.autograd.grad(y, x, torch.full_like(y, math.inf))
    assert dx.flatten().tolist() == [0, math.inf, 0, 0]
