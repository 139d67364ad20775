"""Softmax and log-softmax: PyTorch's values, gradients, layouts and errors."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import conftest
import pytest
import torch
from conftest import check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, Policy, ops
from torch_cudnn_ext import nn as ours

Function = Callable[..., Tensor]
BOTH: dict[str, tuple[Function, Function]] = {
    "softmax": (ops.softmax, torch.softmax),
    "log_softmax": (ops.log_softmax, torch.log_softmax),
}
VIEWS = {**conftest.VIEWS, "one_batch": lambda t: t[:1]}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("name", BOTH)
def test_values_and_gradients_are_pytorchs(name: str, dim: int, view: str, device: str) -> None:
    mine, theirs = BOTH[name]
    x = torch.randn(3, 5, 6, 4, dtype=torch.float64, device=device)
    x = VIEWS[view](x).detach().requires_grad_()
    got, wanted = mine(x, dim), theirs(x, dim)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    for grad in (torch.randn_like(wanted), torch.ones((), device=device).double().expand_as(got)):
        torch.testing.assert_close(
            torch.autograd.grad(got, x, grad, retain_graph=True),
            torch.autograd.grad(wanted, x, grad, retain_graph=True),
        )


@pytest.mark.parametrize("algorithm", ["aten:default", "cpu:three_pass", "cpu:online"])
@pytest.mark.parametrize("name", BOTH)
def test_a_large_offset_costs_no_digits(name: str, algorithm: str) -> None:
    mine, theirs = BOTH[name]
    noise = torch.randn(4, 300)
    offsets = torch.tensor([1e5, -1e9, 1e38, float("-inf")]).unsqueeze(1)
    for x in (noise + offsets, (noise + offsets)[:, :5], offsets.expand(4, 7)):
        torch.testing.assert_close(
            mine(x, 1, policy=algorithm), theirs(x, 1), rtol=1e-5, atol=1e-5, equal_nan=True
        )


@pytest.mark.parametrize("name", BOTH)
def test_what_does_not_lie_in_rows_is_copied_to_them(name: str, device: str) -> None:
    mine, theirs = BOTH[name]
    for sizes, dim in (((2, 300, 4, 3), 1), ((5, 7), 0), ((1, 2000, 1, 9), 1)):
        x = torch.randn(sizes, device=device, requires_grad=True)
        got, wanted = mine(x, dim, policy="aten:transposed"), theirs(x, dim)
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
        grad = torch.randn_like(got)
        torch.testing.assert_close(
            torch.autograd.grad(got, x, grad), torch.autograd.grad(wanted, x, grad)
        )
    with pytest.raises(RuntimeError, match="runs over the last dimension already"):
        mine(torch.zeros(2, 3, device=device), 1, policy="aten:transposed")


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_without_a_dim_it_is_pytorchs_choice(name: str, device: str) -> None:
    mine, theirs = BOTH[name]
    module = ours.Softmax() if name == "softmax" else ours.LogSoftmax()
    for sizes in ((4,), (2, 3), (2, 3, 4), (2, 3, 4, 5)):
        x = torch.randn(sizes, device=device)
        wanted = theirs(x, 0 if len(sizes) in (1, 3) else 1)
        torch.testing.assert_close(mine(x), wanted)
        for function in (mine, module):
            compiled = torch.compile(function, fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(x), wanted)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        mine(torch.zeros(2, 3), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_lower_precision(name: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs = BOTH[name]
    x = torch.randn(8, 21, 9, 9, device=device).to(dtype)
    torch.testing.assert_close(mine(x, 1), theirs(x, 1))
    torch.testing.assert_close(mine(x, 1, torch.float32), theirs(x, 1, dtype=torch.float32))


@pytest.mark.parametrize("name", BOTH)
def test_scalars_and_empty_tensors(name: str, device: str) -> None:
    mine, theirs = BOTH[name]
    for sizes in ((), (0,), (3, 0), (0, 4), (2, 0, 3)):
        x = torch.randn(sizes, device=device, requires_grad=True)
        dim = -1
        got = mine(x, dim)
        torch.testing.assert_close(got, theirs(x, dim))
        got.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


def test_large_inputs_do_not_overflow(device: str) -> None:
    x = torch.tensor([[1000.0, 999.0, -1000.0]], device=device)
    torch.testing.assert_close(ops.softmax(x, 1), torch.softmax(x, 1))
    torch.testing.assert_close(ops.log_softmax(x, 1), torch.log_softmax(x, 1))


@pytest.mark.parametrize("name", BOTH)
def test_gradients_of_gradients(name: str, device: str) -> None:
    mine, _ = BOTH[name]
    x = torch.randn(2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: mine(t, 1), (x,))
    assert torch.autograd.gradgradcheck(lambda t: mine(t, 1), (x,))


@pytest.mark.parametrize("name", BOTH)
def test_pins_are_obeyed(name: str, device: str) -> None:
    x = torch.randn(4, 6, 5, device=device, requires_grad=True)
    line = f"softmax_fwd x=f32[4,6,5]:nchw log={'true' if name == 'log_softmax' else 'false'}"
    found = [c for c in _C.candidates(line, device, "") if c["status"] == "ok"]
    assert len(found) >= 2
    for candidate in found:
        pin = candidate["algorithm"]
        y = BOTH[name][0](x, 1, policy=Policy(family="softmax", fwd=pin, bwd=pin))
        y.sum().backward()
        for op in ("softmax_fwd", "softmax_bwd"):
            choice = newest(op)
            assert (choice.algorithm, choice.why) == (pin, "pinned")


def test_autocast_gives_pytorchs_dtype(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    x = torch.randn(3, 4, device=device, dtype=lower)
    with torch.autocast(device, lower):
        assert ops.softmax(x, 1).dtype == torch.softmax(x, 1).dtype


@pytest.mark.parametrize("algorithm", ["aten:default", "cpu:three_pass", "cpu:online"])
def test_rows_that_are_masked_out_at_first(algorithm: str) -> None:
    x = torch.full((2, 300), -torch.inf)
    x[0, 200], x[1, 5:9] = 1.5, 0.5
    for function, plain in ((ops.softmax, torch.softmax), (ops.log_softmax, torch.log_softmax)):
        torch.testing.assert_close(function(x, 1, policy=f"fwd={algorithm}"), plain(x, 1))
    nothing = torch.full((1, 300), -torch.inf)
    assert ops.softmax(nothing, 1, policy=f"fwd={algorithm}").isnan().all()


def test_compiles_whole(device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return ops.log_softmax(ops.softmax(x, 1), 2).square().sum()

    x = torch.randn(3, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 3), 2), "dim is 2, wanted at least -2 and less than 2"),
        ((torch.zeros(2, 3, dtype=torch.int64), 1), "input is Long, wanted Float"),
        ((torch.zeros(2, 3), 1, None, "fwd=slow"), "'slow' is not one of softmax_fwd"),
        ((torch.zeros(2, 3), 1, None, "fwd=fft"), "it is one of conv_fwd, conv_bwd_data"),
        ((torch.zeros(2, 3), 1, None, "fwd=accurate"), "softmax_fwd: the pinned algorithm"),
        (
            (torch.zeros(2, 3), 1, None, "cpu:taps"),
            r"got .cpu:taps. for softmax_fwd, .*it is an algorithm of pool \(pool=cpu:taps\)",
        ),
    ],
)
def test_errors_name_the_argument(arguments: tuple[Any, ...], message: str) -> None:
    tensor, dim, *rest = arguments
    dtype, policy = rest or (None, None)
    with pytest.raises((ValueError, RuntimeError), match=message):
        ops.softmax(tensor, dim, dtype, policy=policy)


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_meta_tensors_are_refused_alike(place: str) -> None:
    x = torch.zeros(2, 3, device=place)
    with pytest.raises((ValueError, RuntimeError), match="input is Long, wanted Float"):
        ops.softmax(x.long(), 1)
    backward = torch.ops.torch_cudnn_ext.softmax_backward
    with pytest.raises(
        (ValueError, RuntimeError), match="output has sizes .4, 3., wanted grad_out"
    ):
        backward(x, torch.zeros(4, 3, device=place), 1, False)
    with pytest.raises((ValueError, RuntimeError), match="output is Double, wanted grad_output's"):
        backward(x, x.double(), 1, False)


def test_what_is_no_dtype_is_refused() -> None:
    for op in (torch.ops.torch_cudnn_ext.softmax, torch.ops.torch_cudnn_ext.log_softmax):
        for number in (-1, 1000):
            with pytest.raises((ValueError, RuntimeError), match="dtype"):
                op(torch.zeros(2, 3), 1, number)


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (ours.Softmax(1), (2, 3, 4)),
        (ours.LogSoftmax(-1, policy="autotune"), (2, 3)),
        (ours.Softmax2d(), (2, 3, 4, 5)),
    ],
)
def test_modules(module: ours.Tunable, sizes: tuple[int, ...], device: str) -> None:
    x = torch.randn(sizes, device=device)
    parent = module.replaces(*([] if isinstance(module, ours.Softmax2d) else [module.dim]))
    torch.testing.assert_close(module(x), parent(x))
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied.policy == module.policy
        torch.testing.assert_close(copied(x), parent(x))
    module.set_mode("cpu:online", bwd="cpu:three_pass")
    assert module.policy == "fwd=cpu:online;bwd=cpu:three_pass"
    assert module.reset_mode().policy is None
    with pytest.raises(TypeError, match="wanted fwd, bwd$"):
        module.set_mode(bwd_data="aten:default")
    module.policy = "fwd=time_once"
    module(x)
    assert newest("softmax_fwd").why == "pinned"
