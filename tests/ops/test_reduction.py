"""Reductions: PyTorch's values, gradients and indices over any dimensions, and errors."""

from collections.abc import Callable

import conftest
import numpy as np
import pytest
import torch
from conftest import check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, knobs, ops

Dims = int | tuple[int, ...] | None


def _dims(x: Tensor, dim: Dims) -> list[int]:
    if dim is None:
        return list(range(x.dim()))
    return [d % x.dim() for d in ((dim,) if isinstance(dim, int) else dim)]


def _prod(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    for d in sorted(_dims(x, dim), reverse=True):
        x = x.prod(d, keepdim)
    return x


def _norm(order: float) -> Callable[[Tensor, Dims, bool], Tensor]:
    def norm(x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
        result: Tensor = torch.linalg.vector_norm(x, order, dim, keepdim)
        return result

    return norm


# Ours, and PyTorch's.
Pair = tuple[Callable[..., Tensor], Callable[[Tensor, Dims, bool], Tensor]]
ALL: dict[str, Pair] = {
    "add": (ops.sum, lambda x, d, k: torch.sum(x, d, k)),
    "mul": (ops.prod, _prod),
    "min": (ops.amin, lambda x, d, k: torch.amin(x, _dims(x, d), k)),
    "max": (ops.amax, lambda x, d, k: torch.amax(x, _dims(x, d), k)),
    "absmax": (ops.absmax, _norm(float("inf"))),
    "mean": (ops.mean, lambda x, d, k: torch.mean(x, d, k)),
    "norm1": (ops.norm1, _norm(1)),
    "norm2": (ops.norm2, _norm(2)),
    "mul_no_zeros": (ops.prod_nonzero, lambda x, d, k: _prod(x.masked_fill(x == 0, 1), d, k)),
}
VIEWS = {**conftest.VIEWS, "thin": lambda t: t[:, :, :1]}
DIMS: list[Dims] = [None, 0, 1, -1, (0, 2), (1, 2), (0, 2, 3), (3, 1), (0, 1, 2, 3)]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_values_and_gradients_are_pytorchs(name: str, dim: Dims, view: str, device: str) -> None:
    mine, theirs = ALL[name]
    x = torch.randn(3, 4, 6, 2, dtype=torch.float64, device=device)
    x = VIEWS[view](x).detach().requires_grad_()
    for keepdim in (False, True):
        got, wanted = mine(x, dim, keepdim), theirs(x, dim, keepdim)
        torch.testing.assert_close(got, wanted)
        assert got.is_contiguous()
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(got, x, grad), torch.autograd.grad(wanted, x, grad)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_lower_precision(name: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs = ALL[name]
    x = (1 + torch.randn(5, 7, 3, device=device) / 8).to(dtype)
    for dim in (None, 1, (0, 2)):
        wanted = theirs(x.double(), dim, False).to(dtype)
        torch.testing.assert_close(mine(x, dim), wanted, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("name", ALL)
def test_zeros_ties_and_gradients_of_gradients(name: str, device: str) -> None:
    mine, theirs = ALL[name]
    x = torch.randn(3, 4, dtype=torch.float64, device=device)
    assert torch.autograd.gradcheck(lambda t: mine(t, 1), (x.requires_grad_(),))
    assert torch.autograd.gradgradcheck(lambda t: mine(t, 1), (x,))
    tied = torch.tensor([[0.0, 0, 0], [2, -2, 2], [0, 1, 2]], dtype=torch.float64, device=device)
    tied.requires_grad_()
    got, wanted = mine(tied, 1), theirs(tied, 1, False)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), tied), torch.autograd.grad(wanted.sum(), tied)
    )


@pytest.mark.parametrize("function", [ops.amax, ops.amin, ops.absmax])
def test_more_ties_than_float16_counts(function: Callable[..., Tensor], device: str) -> None:
    value = 1.0 if function is ops.absmax else 0.0
    x = torch.full((70000,), value, dtype=torch.half, device=device, requires_grad=True)
    function(x).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 70000))


@pytest.mark.parametrize("name", ["add", "mul", "max", "mean", "norm1", "norm2"])
def test_autocast_gives_pytorchs_dtype(name: str, device: str) -> None:
    mine, theirs = ALL[name]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        x = torch.rand(3, 4).to(device, dtype)
        with torch.autocast(device, torch.bfloat16):
            assert mine(x, 1).dtype == theirs(x, 1, False).dtype


def test_what_is_reduced_from_one_element_is_not_its_input(device: str) -> None:
    for policy in ("", "backends=cpu") if device == "cpu" else ("",):
        x = torch.ones(3, 1, device=device)
        ops.sum(x, 1, policy=policy).add_(10)
        assert torch.equal(x, torch.ones_like(x))


def test_the_gradient_of_a_product_is_that_of_all_factors_at_once() -> None:
    values = torch.tensor([[1e30, 1e-30], [1e30, 1e-30]])  # on a GPU they meet in another order
    for dims in ((0, 1), (1,), None):
        mine, theirs = (values.clone().requires_grad_() for _ in range(2))
        ops.prod(mine, dims).sum().backward()
        (theirs.prod(1) if dims == (1,) else theirs.prod()).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    x = torch.randn(3, 4, 2, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.prod(x, 1).sum(), x)
    assert gradient.stride() == x.stride()


@pytest.mark.parametrize(("sizes", "dim"), [((3, 0, 5), 1), ((0, 0, 5), 0), ((3, 0, 5), (1, 2))])
def test_products_of_nothing_have_gradients_of_nothing(
    sizes: tuple[int, ...], dim: Dims, device: str
) -> None:
    x = torch.randn(sizes, device=device, requires_grad=True)
    for function in (ops.prod, ops.prod_nonzero):
        y = function(x, dim)
        assert bool((y == 1).all())
        (dx,) = torch.autograd.grad(y.sum(), x)
        assert dx.shape == x.shape


def test_kept_and_reduced_dimensions_may_take_turns_often(device: str) -> None:
    x = torch.randn([2] * 10, dtype=torch.float64, device=device)
    for view in (x, x.permute(*reversed(range(10)))):
        torch.testing.assert_close(ops.sum(view, (0, 2, 4, 6, 8)), view.sum((0, 2, 4, 6, 8)))
    values, indices = ops.reduce(x, "max", (1, 3, 5, 7, 9), return_indices=True)
    rows = x.permute(0, 2, 4, 6, 8, 1, 3, 5, 7, 9).flatten(5)
    assert torch.equal(values, rows.amax(-1))
    assert torch.equal(rows.gather(-1, indices.unsqueeze(-1)).squeeze(-1), values)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("kind", ["min", "max"])
def test_indices_name_the_extremes(kind: str, dim: Dims, view: str, device: str) -> None:
    x = torch.randn(3, 4, 6, 2, dtype=torch.float64, device=device)
    x = VIEWS[view](x).detach().requires_grad_()
    dims = _dims(x, dim)
    kept = [d for d in range(4) if d not in dims]
    rows = x.permute(*kept, *sorted(dims)).reshape(*(x.shape[d] for d in kept), -1)
    for keepdim in (False, True):
        values, indices = ops.reduce(x, kind, dim, keepdim, return_indices=True)
        wanted = ALL[kind][1](x, dim, keepdim)
        torch.testing.assert_close(values, wanted)
        assert indices.dtype == torch.int64 and indices.shape == values.shape
        named = rows.gather(-1, indices.reshape(*rows.shape[:-1], 1)).reshape(values.shape)
        assert torch.equal(named, values)
        if view != "expanded":  # there, extremes are equal, and amax shares the gradient
            grad = torch.randn_like(values)
            torch.testing.assert_close(
                torch.autograd.grad(values, x, grad), torch.autograd.grad(wanted, x, grad)
            )
    if view != "expanded":
        point = x.detach().clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda t: ops.reduce(t, kind, dim, return_indices=True)[0], (point,)
        )


def test_arguments_of_extremes_are_pytorchs(device: str) -> None:
    x = torch.randn(4, 5, 6, device=device)
    for dim in (None, 0, 1, -1):
        for keepdim in (False, True) if dim is not None else (False,):
            assert torch.equal(ops.argmax(x, dim, keepdim), torch.argmax(x, dim, keepdim))
            assert torch.equal(ops.argmin(x, dim, keepdim), torch.argmin(x, dim, keepdim))


def test_dimensions_may_be_numpys_or_tensors(device: str) -> None:
    x = torch.randn(4, 5, 6, dtype=torch.float64, device=device)
    for one in (np.int64(1), torch.tensor(1)):
        torch.testing.assert_close(ops.sum(x, one), x.sum(1))
        torch.testing.assert_close(ops.sum(x, (0, one)), x.sum((0, 1)))
        assert torch.equal(ops.argmax(x, one), x.argmax(1))


@pytest.mark.parametrize("name", ALL)
def test_nan_scalars_and_empty_tensors(name: str, device: str) -> None:
    mine, theirs = ALL[name]
    x = torch.tensor([[1.0, float("nan"), 2], [1, 2, float("inf")]], device=device)
    torch.testing.assert_close(mine(x, 1), theirs(x, 1, False), equal_nan=True)
    scalar = torch.tensor(-2.0, device=device)
    for dim in (None, 0, -1):
        torch.testing.assert_close(mine(scalar, dim), theirs(scalar.view(1), 0, False))
    empty = torch.zeros(2, 0, 3, device=device)
    assert mine(empty, 0).shape == (0, 3)
    if name in ("min", "max", "absmax"):
        for nothing, dim in ((empty, 1), (torch.zeros(0, 0, device=device), 0)):
            with pytest.raises(IndexError, match="dim.* at least one element"):
                mine(nothing, dim)
            if name != "absmax":
                with pytest.raises(IndexError, match="dim.* at least one element"):
                    ops.reduce(nothing, name, dim, return_indices=True)
    else:
        torch.testing.assert_close(mine(empty, 1), theirs(empty, 1, False), equal_nan=True)


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("kind", ["min", "max", "absmax"])
def test_every_algorithm_of_extremes_keeps_nan(kind: str, dim: int | None, device: str) -> None:
    x = torch.randn(64, 48, device=device)
    x[3, 5] = float("nan")
    knobs.allow_reduced_range = True  # as the classic API has it: of infinities
    wanted = ALL[kind][1](x, (0, 1) if dim is None else dim, False)
    ops.reduce(x, kind, dim)
    choice = newest("reduce_fwd")
    listed = [c for c in _C.candidates(choice.problem, device) if c["status"] == "ok"]
    found = [c["algorithm"] for c in listed if c["backend"] != "graph"]  # which drop NaN
    assert len(found) >= 2
    for pin in found:
        got = ops.reduce(x, kind, dim, policy=f"fwd={pin}")
        torch.testing.assert_close(
            got, wanted, equal_nan=True, msg=lambda m, pin=pin: f"{pin}: {m}"
        )


def test_the_gradient_of_a_mean_may_be_changed_in_place(device: str) -> None:
    x = torch.randn(3, 4, 5, device=device, requires_grad=True)
    x.register_hook(lambda g: g.mul_(2))
    ops.mean(x, (0, 2)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2 / 15))


def test_many_dimensions(device: str) -> None:
    x = torch.randn((2,) * 10, dtype=torch.float64, device=device)
    torch.testing.assert_close(ops.sum(x, (0, 1, 8, 9)), x.sum((0, 1, 8, 9)))


@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("kind", ALL)
def test_pins_are_obeyed(kind: str, indices: bool, device: str) -> None:
    if indices and kind not in ("min", "max"):
        pytest.skip("indices are of extremes alone")
    knobs.allow_reduced_range = True
    x = torch.randn(6, 8, device=device)
    line = f"reduce_fwd x=f32[6,8]:nchw kind={kind} indices={str(indices).lower()}"
    found = [c["algorithm"] for c in _C.candidates(line, device, "") if c["status"] == "ok"]
    assert len(found) >= 2
    for pin in found:
        if indices:
            values, places = ops.reduce(x, kind, 1, return_indices=True, policy=f"fwd={pin}")
            assert torch.equal(x.gather(1, places[:, None])[:, 0], values)
        else:
            values = ops.reduce(x, kind, 1, policy=f"fwd={pin}")
        torch.testing.assert_close(values, ALL[kind][1](x, 1, False))
        choice = newest("reduce_fwd")
        assert (choice.algorithm, choice.why) == (pin, "pinned")


def test_one_problem_for_one_computation(device: str) -> None:
    x = torch.randn(2, 3, 4, 5, device=device)
    for tensor, dim in (
        (x, (2, 3)),
        (x.view(2, 3, 20), 2),
        (x.view(6, 1, 20), (1, 2)),
        (x.view(2, 3, 1, 20), -1),
    ):
        ops.sum(tensor, dim)
        assert "x=f32[6,20]:nchw first_reduced=false" in newest("reduce_fwd").problem
    # The order in memory counts, not that of the dimensions.
    ops.sum(x.contiguous(memory_format=torch.channels_last), (0, 2, 3))
    assert "x=f32[40,3]:nchw first_reduced=true" in newest("reduce_fwd").problem


def test_compiles_whole(device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        values, _ = ops.reduce(ops.norm2(x, 1), "max", 0, return_indices=True)
        return values.sum() + ops.mean(x, (0, 2)).square().sum()

    x = torch.randn(3, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.sum(torch.zeros(2, 3), 2), "dim is 2, wanted at least -2 and less than 2"),
        (lambda: ops.sum(torch.zeros(2, 3), (0, -2)), "dim names dimension 0 twice"),
        (lambda: ops.sum(torch.tensor(1.0), (0, -1)), "dim names dimension 0 twice"),
        (lambda: ops.sum(torch.zeros(2, 3).long()), "input is Long, wanted Float"),
        (lambda: ops.reduce(torch.zeros(2), "median"), "kind is 'median', wanted one of add"),
        (
            lambda: ops.reduce(torch.zeros(2), "add", return_indices=True)[0],
            "kind is add, wanted min or max",
        ),
        (
            lambda: ops.sum(torch.zeros(2), policy="fwd=cpu:dot"),
            "wanted one of cpu:serial, cpu:tree ",
        ),
    ],
)
def test_errors_name_the_argument(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


@pytest.mark.parametrize("sizes", [(2, 3), (2, 0, 3)])
def test_a_norm_of_zero_has_a_second_derivative(sizes: tuple[int, ...], device: str) -> None:
    x = torch.zeros(sizes, device=device, requires_grad=True)
    results = []
    for norm in (ops.norm2, lambda x, dim: torch.linalg.vector_norm(x, dim=dim)):
        w = torch.ones(norm(x, 1).shape, device=device, requires_grad=True)
        (dx,) = torch.autograd.grad((w * norm(x, 1)).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum() + dx.sum(), w)[0])
    assert torch.equal(*results)


def test_errors_name_the_function_that_was_called() -> None:
    x = torch.ones(0, 0)
    with pytest.raises(TypeError, match="^sum: argument input: got 3"):
        ops.sum(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^argmax: argument dim: got 'a'"):
        ops.argmax(x, "a")  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="^amin: argument dim: "):
        ops.amin(x, 1)


def test_a_gradient_of_a_norm_does_not_overflow() -> None:
    x = torch.tensor([0.006, 0.0, 0.008], dtype=torch.float16, requires_grad=True)
    (ours,) = torch.autograd.grad(1024 * ops.norm2(x), x)
    (expected,) = torch.autograd.grad(1024 * torch.linalg.vector_norm(x), x)
    torch.testing.assert_close(ours, expected)
