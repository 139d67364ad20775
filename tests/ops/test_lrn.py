"""Local response and divisive normalisation: values, gradients, windows and errors."""

import copy
import inspect
import pickle
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, newest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_cudnn_ext import _C, Policy, knobs, ops
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext.models import conversion_steps

OPS = torch.ops.torch_cudnn_ext


def _leaf(*sizes: int, device: str) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "sliced"])
@pytest.mark.parametrize("sizes", [(2, 7, 5), (2, 7, 4, 3), (1, 6, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_values_and_gradients_are_pytorchs(
    size: int, sizes: tuple[int, ...], layout: str, device: str
) -> None:
    x = torch.randn(sizes, device=device, dtype=torch.float64)
    if layout == "sliced":
        x = torch.cat([x, x], 2)[:, :, ::2]
    if layout == "channels_last" and len(sizes) > 3:
        last = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=last)
    x = x.detach().requires_grad_()
    got = ops.local_response_norm(x, size, 2.0, 0.6, 1.5)
    wanted = F.local_response_norm(x, size, 2.0, 0.6, 1.5)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, grad), torch.autograd.grad(wanted, x, grad)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 9, 20, device=device).to(dtype)
    torch.testing.assert_close(ops.local_response_norm(x, 5), F.local_response_norm(x, 5))
    volume = torch.randn(1, 2, 3, 5, 4, device=device).to(dtype)
    got = ops.divisive_norm(volume, 3)
    torch.testing.assert_close(got, ops.divisive_norm(volume.float(), 3).to(dtype))


def _by_hand(x: Tensor, size: int, window: Literal["torch", "cudnn"]) -> Tensor:
    behind = size // 2 if window == "torch" else (size - 1) // 2
    rows = []
    for c in range(x.shape[1]):
        near = x[:, max(c - behind, 0) : c + size - behind].square().sum(1)
        rows.append(x[:, c] / (1.5 + 2.0 / size * near) ** 0.6)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("window", ["torch", "cudnn"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_windows(size: int, window: Literal["torch", "cudnn"], device: str) -> None:
    x = _leaf(2, 6, 5, device=device)
    got = ops.local_response_norm(x, size, 2.0, 0.6, 1.5, window)
    torch.testing.assert_close(got, _by_hand(x, size, window))
    different = _by_hand(x, size, "cudnn" if window == "torch" else "torch")
    assert torch.allclose(got, different) == (size % 2 == 1)


def test_windows_are_one_problem_where_they_agree() -> None:
    canonical = _C.canonical_problem
    for size, same in ((3, True), (4, False)):
        line = f"lrn_fwd x=f32[2,6,5]:nchw kind=cross_channel size={size}"
        assert (canonical(line) == canonical(f"{line} window=cudnn")) == same


def test_cudnn_says_what_it_refuses() -> None:
    for line, reason in (
        ("x=f32[2,6,5]:nchw kind=cross_channel size=4", "window=cudnn asks for the former"),
        ("x=f32[2,6,5]:nchw kind=cross_channel size=17", "1 to 16 elements, not 17"),
        ("x=f32[2,6,5]:nchw kind=cross_channel size=3 k=0", "k of at least"),
        ("x=f32[2,6,5]:nchw kind=cross_channel size=3 beta=0", "beta of at least"),
    ):
        found = _C.candidates(f"lrn_fwd {line}", "target:h200", "")
        (refused,) = (c for c in found if c["algorithm"].startswith("legacy:"))
        assert reason in refused["reason"]


def _divisive_by_hand(x: Tensor, size: int, means: Tensor | None) -> Tensor:
    behind = (size - 1) // 2
    squares = (x if means is None else x - means).square()
    scale = torch.zeros_like(x)
    height, width = x.shape[2:]
    for i in range(height):
        for j in range(width):
            rows = slice(max(i - behind, 0), i + size - behind)
            columns = slice(max(j - behind, 0), j + size - behind)
            scale[:, :, i, j] = squares[:, :, rows, columns].sum((2, 3))
    return x / (1.5 + 2.0 / size**2 * scale) ** 0.6


@pytest.mark.parametrize("has_means", [False, True])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_divisive_norm_is_its_formula(size: int, has_means: bool, device: str) -> None:
    x = torch.randn(2, 3, 5, 4, device=device, dtype=torch.float64)
    means = F.avg_pool2d(x, 3, 1, 1) if has_means else None
    got = ops.divisive_norm(x, size, 2.0, 0.6, 1.5, means)
    torch.testing.assert_close(got, _divisive_by_hand(x, size, means))


def test_gradients_of_gradients(device: str) -> None:
    x, plane = _leaf(2, 4, 3, device=device), _leaf(1, 2, 3, 4, device=device)
    means = _leaf(1, 2, 3, 4, device=device)

    def cross(x: Tensor) -> Tensor:
        return ops.local_response_norm(x, 2, 1.0, 0.7, 1.0)

    def divisive(x: Tensor, means: Tensor | None = None) -> Tensor:
        return ops.divisive_norm(x, 3, 1.0, 0.7, 1.0, means)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(cross, (x,))
        assert check(divisive, (plane,))
        assert check(divisive, (plane, means))
        assert check(divisive, (plane.detach(), means))


def test_gradients_of_gradients_without_channels(device: str) -> None:
    x = _leaf(2, 0, 3, device=device)
    (grad,) = torch.autograd.grad(ops.local_response_norm(x, 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x, allow_unused=True)
    assert second is None or second.shape == x.shape


PINS = {
    "cross": ("lrn_fwd x=f32[2,6,20]:nchw kind=cross_channel size=3 alpha=1", (2, 6, 4, 5)),
    "divisive": ("lrn_fwd x=f32[2,6,4,5]:nchw kind=divisive size=3 alpha=1", (2, 6, 4, 5)),
}


@pytest.mark.parametrize("kind", PINS)
def test_pins_are_obeyed(kind: str, device: str) -> None:
    knobs.allow_reduced_range = True
    line, sizes = PINS[kind]
    function = ops.local_response_norm if kind == "cross" else ops.divisive_norm
    x = torch.randn(sizes, device=device, requires_grad=True)
    found = [c["algorithm"] for c in _C.candidates(line, device, "") if c["status"] == "ok"]
    assert len(found) >= 2
    for pin in found:
        torch.autograd.backward(
            function(x, 3, 1.0, policy=Policy(family="lrn", fwd=pin, bwd=pin)).sum()
        )
        for op in ("lrn_fwd", "lrn_bwd"):
            choice = newest(op)
            assert (choice.algorithm, choice.why) == (pin, "pinned")


def test_empty_tensors(device: str) -> None:
    for sizes in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        x = torch.randn(sizes, device=device, requires_grad=True)
        y = ops.local_response_norm(x, 3)
        assert y.shape == x.shape
        torch.autograd.backward(y.sum())
        assert x.grad is not None and x.grad.shape == x.shape
    gaps = torch.randn(0, 6, 3, device=device)[:, ::2]
    fake = ops.local_response_norm(gaps.to("meta"), 3)
    assert ops.local_response_norm(gaps, 3).stride() == fake.stride()


def test_opcheck_of_the_inner_operators(device: str) -> None:
    x, m, dy = (_leaf(2, 3, 4, 5, device=device) for _ in range(3))
    form = ("divisive", 3, 1.0, 0.5, 1.0, "cudnn")
    torch.library.opcheck(OPS._lrn.default, (x, m, *form))
    y = OPS._lrn.default(x.detach(), None, *form)
    torch.library.opcheck(OPS._lrn_backward.default, (dy, x, y, m, *form))
    torch.library.opcheck(OPS._lrn_backward.default, (dy, x, y, None, *form))


def test_autocast_gives_pytorchs_dtype(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    for sizes in ((2, 4, 3), (2, 4, 3, 3), (2, 4, 3, 3, 2)):
        for dtype in (lower, torch.float32, torch.float64):
            x = torch.randn(sizes, device=device, dtype=dtype)
            with torch.autocast(device, lower):
                got, wanted = ops.local_response_norm(x, 3), F.local_response_norm(x, 3)
            assert got.dtype == wanted.dtype


def test_vmap(device: str) -> None:
    x, means = (torch.randn(3, 2, 4, 5, 2, device=device) for _ in range(2))

    def gradient(function: Any) -> Any:
        return torch.func.grad(lambda t: function(t, 3, 1.0).pow(3).sum())

    wanted = torch.vmap(gradient(F.local_response_norm))(x)
    torch.testing.assert_close(torch.vmap(gradient(ops.local_response_norm))(x), wanted)

    def divisive(t: Tensor, m: Tensor) -> Tensor:
        return ops.divisive_norm(t, 3, 1.0, means=m).pow(3).sum()

    both = torch.func.grad(divisive, (0, 1))
    wanted_pairs = [both(*pair) for pair in zip(x, means, strict=True)]
    for i, got in enumerate(torch.vmap(both)(x, means)):
        torch.testing.assert_close(got, torch.stack([pair[i] for pair in wanted_pairs]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic: bool, device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return ops.divisive_norm(ops.local_response_norm(x, 3, 1.0), 3, 1.0).pow(3).sum()

    x = _leaf(2, 4, 5, 3, device=device)
    check_compiles(loss, x, dynamic=dynamic)


_X = torch.zeros(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("local_response_norm", (_X[0, 0], 3), "wanted at least 3 dimensions"),
        ("local_response_norm", (_X, 0), "size is 0, wanted at least 1"),
        ("local_response_norm", (_X.int(), 3), "input is Int, wanted Float"),
        ("local_response_norm", (_X, 3, 1.0, 1.0, 1.0, "left"), "window is 'left', wanted one of"),
        ("divisive_norm", (_X[0], 3), "wanted 4 or 5 dimensions"),
        ("divisive_norm", (_X, 3, 1.0, 1.0, 1.0, _X[:1]), "means has sizes"),
        ("divisive_norm", (_X, 3, 1.0, 1.0, 1.0, _X.double()), "means is Double"),
    ],
)
def test_errors_name_the_argument(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(*arguments)


def test_module_with_the_window_of_cudnn(device: str) -> None:
    x = torch.randn(2, 5, 4, 3, device=device)
    module = ours.LocalResponseNorm(4, 1.0, window="cudnn")
    torch.testing.assert_close(module(x), ops.local_response_norm(x, 4, 1.0, window="cudnn"))
    assert str(module).endswith("window='cudnn')")
    assert copy.deepcopy(module).window == "cudnn"
    (step,) = conversion_steps(module, to="torch")
    assert step.becomes is None and step.reason == "torch.nn has no window='cudnn'"


def test_modules(device: str) -> None:
    x = torch.randn(2, 5, 4, 3, device=device)
    module = ours.LocalResponseNorm(3, 1.0, policy="autotune")
    parent = torch.nn.LocalResponseNorm(3, 1.0)
    divisive = ours.DivisiveNorm(3, alpha=1.0, policy="fwd=cpu:prefix;allow_reduced_range")
    assert type(parent) is module.replaces
    torch.testing.assert_close(module(x), parent(x))
    if device == "cpu":
        torch.testing.assert_close(divisive(x), ops.divisive_norm(x, 3, 1.0))
        torch.testing.assert_close(divisive(x, x), x)
        assert newest("lrn_fwd").algorithm == "cpu:prefix"
    for tunable in (module, divisive):
        assert not tunable.state_dict()
        for copied in (copy.deepcopy(tunable), pickle.loads(pickle.dumps(tunable))):
            assert copied.policy == tunable.policy
            assert str(copied) == str(tunable)
    assert "policy='fwd=autotune;bwd=autotune'" in str(module)
    arguments = "3, alpha=1.0, beta=0.75, k=1.0"
    assert str(divisive) == f"DivisiveNorm({arguments}, policy={divisive.policy!r})"
    assert str(ours.DivisiveNorm(3, alpha=1.0)) == f"DivisiveNorm({arguments})"
    with pytest.raises(TypeError):  # a policy is given by keyword, as to all modules
        ours.DivisiveNorm(3, 1.0, 0.75, 1.0, "autotune")  # type: ignore[misc]
    assert module.reset_mode().policy is None


@pytest.mark.parametrize("name", ["alpha", "beta", "k"])
@pytest.mark.parametrize("value", [0.7, [0.5, 0.6, 0.7, 0.8]], ids=["one", "by_channel"])
def test_the_module_trains_numbers_as_pytorchs(name: str, value: Any, device: str) -> None:
    x = torch.randn(2, 4, 3, 5, device=device)
    given = torch.tensor(value, device=device)
    number = torch.nn.Parameter(given.reshape(4, 1, 1) if given.dim() else given)
    mine, theirs = ours.LocalResponseNorm(3), torch.nn.LocalResponseNorm(3)
    for module in (mine, theirs):
        setattr(module, name, number)
    got, wanted = mine(x), theirs(x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got.square().sum(), number),
        torch.autograd.grad(wanted.square().sum(), number),
    )
    mine.window = "cudnn"
    with pytest.raises(TypeError, match=f"argument {name}: got Parameter"):
        mine(x)


def test_the_module_of_divisive_norm_has_the_function_s_defaults() -> None:
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(ours.DivisiveNorm(3)(x), ops.divisive_norm(x, 3), rtol=0, atol=0)
    mine = [*inspect.signature(ours.DivisiveNorm).parameters.values()][1:4]
    function = inspect.signature(ops.divisive_norm).parameters
    assert [p.default for p in mine] == [function[p.name].default for p in mine]


@pytest.mark.parametrize("function", [ops.local_response_norm, ops.divisive_norm])
def test_a_backward_gets_the_output_as_it_was(function: Any, device: str) -> None:
    seen: list[Tensor] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "_lrn_backward" in str(func):
                seen.append(args[2].clone())
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 6, 5, 4, device=device, requires_grad=True)
    y = function(x, 3)
    wanted = y.detach().clone()
    y.zero_()
    with Recorder():
        y.sum().backward()
    (output,) = seen
    torch.testing.assert_close(output.view_as(wanted), wanted)
