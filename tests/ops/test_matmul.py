"""Matrix products: PyTorch's values and gradients in every form, epilogues, modules and errors."""

import copy
import math
import pickle
import re
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, Policy, ops
from torch_cudnn_ext import nn as ours

SHAPES = [
    ((3, 4), (4, 5)),
    ((1, 4), (4, 1)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((2, 3, 3, 4), (1, 3, 4, 2)),
    ((1, 3, 4), (6, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((2, 3, 4), (2, 4, 0)),
    ((0, 3, 4), (4, 5)),
]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
    "sliced": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "batch_last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": lambda t: t[:1].expand_as(t) if t.dim() > 2 else t,
}


def _leaf(*sizes: int, device: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, device=device, dtype=dtype, requires_grad=True)


def test_bias_of_a_product_with_a_vector(device: str) -> None:
    x, w = torch.randn(3, 3, 2, device=device).transpose(0, 1), torch.randn(2, device=device)
    for sizes in ((), (1,), (3,), (3, 1), (3, 3)):
        bias = torch.randn(sizes, device=device)
        torch.testing.assert_close(ops.linear(x, w, bias), F.linear(x, w, bias))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("first", "second"), SHAPES, ids=str)
def test_values_and_gradients_are_pytorchs(
    first: tuple[int, ...], second: tuple[int, ...], view: str, device: str
) -> None:
    a = VIEWS[view](torch.randn(first, dtype=torch.float64, device=device)).detach()
    b = VIEWS[view](torch.randn(second, dtype=torch.float64, device=device)).detach()
    a.requires_grad_()
    b.requires_grad_()
    got, wanted = ops.matmul(a, b), torch.matmul(a, b)
    torch.testing.assert_close(got, wanted)
    assert got.is_contiguous()
    grad = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, (a, b), grad),
        torch.autograd.grad(wanted, (a, b), grad),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype, device: str) -> None:
    a, b = (torch.randn(s, device=device).to(dtype) for s in ((2, 17, 33), (33, 9)))
    wanted = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(ops.matmul(a, b), wanted, rtol=0.01, atol=0.02)


_ACTIVATIONS: dict[str, Any] = {"none": lambda y: y, "relu": torch.relu, "silu": F.silu}


@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "bias", "z", "activation"),
    list(product([False, True], [False, True], [False, True], [None, (3, 5), (5,)], _ACTIVATIONS)),
)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["single", "batch"])
def test_gemm_is_the_formula(
    batch: tuple[int, ...],
    transpose_a: bool,
    transpose_b: bool,
    bias: bool,
    z: tuple[int, ...] | None,
    activation: str,
    device: str,
) -> None:
    a = _leaf(*batch, *((4, 3) if transpose_a else (3, 4)), device=device)
    b = _leaf(*((5, 4) if transpose_b else (4, 5)), device=device)
    c = _leaf(5, device=device) if bias else None
    added = _leaf(*z, device=device) if z else None
    leaves = [t for t in (a, b, c, added) if t is not None]
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (0.5, 0.0)):
        got = ops.gemm(
            a,
            b,
            c,
            transpose_a=transpose_a,
            transpose_b=transpose_b,
            alpha=alpha,
            beta=beta if added is not None else 0.0,
            z=added,
            activation=activation,
        )
        wanted = alpha * ((a.mT if transpose_a else a) @ (b.mT if transpose_b else b))
        if added is not None:
            wanted = wanted + beta * added
        if c is not None:
            wanted = wanted + c
        wanted = _ACTIVATIONS[activation](wanted)
        torch.testing.assert_close(got, wanted)
        grad = torch.randn_like(wanted)
        mine = torch.autograd.grad(got, leaves, grad)
        theirs = torch.autograd.grad(wanted, leaves, grad)
        for first, second in zip(mine, theirs, strict=True):
            torch.testing.assert_close(first, second)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize(
    "sizes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 5))]
)
def test_gradients_of_gradients(
    sizes: tuple[tuple[int, ...], tuple[int, ...]], activation: str, device: str
) -> None:
    a, b = (_leaf(*s, device=device) for s in sizes)
    bias, z = _leaf(5, device=device), _leaf(3, 5, device=device)

    def f(a: Tensor, b: Tensor, bias: Tensor, z: Tensor) -> Tensor:
        return ops.gemm(a, b, bias, alpha=0.5, beta=1.5, z=z, activation=activation)

    assert torch.autograd.gradcheck(f, (a, b, bias, z))
    assert torch.autograd.gradgradcheck(f, (a, b, bias, z))
    for frozen in (a, b):  # the other's gradient alone
        frozen.requires_grad_(False)
        assert torch.autograd.gradcheck(f, (a, b, bias, z))
        assert torch.autograd.gradgradcheck(f, (a, b, bias, z))
        frozen.requires_grad_()


@pytest.mark.parametrize("frozen", [0, 1])
def test_what_no_gradient_reads_is_not_kept(frozen: int, device: str) -> None:
    leaves = [_leaf(2, 4, device=device), _leaf(3, 4, device=device)]
    leaves[frozen].requires_grad_(False)
    operands = [leaf * 1 for leaf in leaves]
    kept: list[Tensor] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = ops.linear(*operands)
    assert [t.data_ptr() for t in kept] == [operands[frozen].data_ptr()]
    y = ops.linear(*operands)
    operands[1 - frozen].detach().add_(1)  # as layers that work in place do
    (got,) = torch.autograd.grad(y.sum(), operands[1 - frozen])
    expected = operands[frozen].sum(0).expand_as(got)
    torch.testing.assert_close(got, expected)


def test_pins_are_obeyed_in_forward_and_gradients(device: str) -> None:
    a, b = (_leaf(6, 6, device=device, dtype=torch.float32) for _ in range(2))
    line = "matmul_fwd x=f32[1,6,6]:nchw w=f32[1,6,6]:nchw"
    found = [
        c["algorithm"] for c in _C.candidates(line, device, "allow_tf32") if c["status"] == "ok"
    ]
    assert found
    assert device == "cuda" or len(found) >= 3
    for pin in found:
        policy = Policy(family="matmul", fwd=pin, allow_tf32=True)
        y = ops.matmul(a, b, policy=policy)
        for step in ("forward", "backward"):
            if step == "backward":
                torch.autograd.grad(y.sum(), (a, b))
            choice = newest("matmul_fwd")
            assert (choice.algorithm, choice.why) == (pin, "pinned"), step
        torch.testing.assert_close(y, a @ b, rtol=5e-3, atol=5e-3)


def test_rows_of_one_matrix_are_one_product(device: str) -> None:
    x = _leaf(2, 3, 4, device=device)
    weight = _leaf(5, 4, device=device)
    y = ops.linear(x, weight, policy="fwd=aten:default")
    assert "x=f64[1,6,4]" in newest("matmul_fwd").problem
    torch.autograd.grad(y.sum(), weight)
    assert "x=f64[1,5,6]" in newest("matmul_fwd").problem


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (((1, 5), (10, 2)), ((5, 4), (4, 1))),
        (((5,), (7,)), ((5, 4), (4, 1))),
        (((4, 1), (1, 1)), ((1, 3), (3, 17))),
        (((4, 5), (5, 1)), ((5, 1), (2, 2))),
        (((3, 1, 5), (10, 10, 2)), ((5, 4), (4, 1))),
        (((3, 4, 5), (20, 5, 1)), ((3, 5, 1), (10, 2, 1))),
    ],
)
def test_a_row_or_column_of_elements_apart_has_a_line_of_its_own(
    a: Any, b: Any, device: str
) -> None:
    left, right = (
        torch.empty_strided(*form, dtype=torch.float64, device=device).normal_() for form in (a, b)
    )
    torch.testing.assert_close(ops.matmul(left, right), left @ right)
    problem = newest("matmul_fwd").problem
    assert _C.canonical_problem(problem) == problem
    rows = _C.measure(problem, device)
    assert "ok" in {row["status"] for row in rows}


def test_autocast_is_pytorchs(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    a, b = _leaf(3, 4, device=device, dtype=torch.float32), torch.randn(4, 5, device=device)
    with torch.autocast(device, lower):
        y = ops.matmul(a, b)
        assert y.dtype == torch.matmul(a, b).dtype == lower
        assert ops.linear(a.to(lower), b.T, torch.randn(5, device=device)).dtype == lower
    (grad,) = torch.autograd.grad(y.float().sum(), a)
    assert grad.dtype == torch.float32


def test_compiles_whole(device: str) -> None:
    weight, bias = _leaf(5, 4, device=device), _leaf(5, device=device)

    def loss(x: Tensor) -> Tensor:
        y = ops.linear(x, weight, bias)
        return ops.gemm(y, y, transpose_a=True, alpha=0.5, activation="relu").square().sum()

    x = _leaf(2, 3, 4, device=device)
    check_compiles(loss, x, inputs=(x, weight, bias))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.matmul(torch.zeros(2, 3), torch.zeros(4, 5)),
            r"other has sizes \[4, 5\], wanted 3 rows: input has sizes \[2, 3\]",
        ),
        (
            lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 2)),
            r"weight has sizes \[4, 2\] and is transposed, wanted 3 rows: input has",
        ),
        (lambda: ops.gemm(torch.zeros(2, 3), torch.zeros(4, 5)), r"b has sizes .*: a has sizes"),
        (
            lambda: ops.matmul(torch.zeros(2, 3), torch.zeros(3, 5).double()),
            "other is Double, wanted input's",
        ),
        (lambda: ops.matmul(torch.zeros(2, 3).long(), torch.zeros(3, 5)), "input is Long, wanted"),
        (lambda: ops.matmul(torch.tensor(1.0), torch.zeros(3)), "input: got a scalar"),
        (lambda: ops.matmul(torch.zeros(2, 2, 3), torch.zeros(3, 3, 5)), "must match the size"),
        (lambda: ops.gemm(torch.zeros(2, 3), torch.zeros(3, 5), torch.zeros(4)), "bias has sizes"),
        (lambda: ops.gemm(torch.zeros(2, 3), torch.zeros(3, 5), beta=1.0), "beta is 1, wanted 0"),
        (
            lambda: ops.gemm(torch.zeros(2, 3), torch.zeros(3, 5), beta=1.0, z=torch.zeros(3, 5)),
            "z has sizes",
        ),
        (
            lambda: ops.gemm(torch.zeros(2, 3), torch.zeros(3, 5), activation="elu"),
            "activation is 'elu', wanted one of none, relu",
        ),
        (lambda: ops.linear(torch.zeros(2, 3), torch.zeros(1, 2, 3)), "wanted .* and"),
        (lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4)), "weight has sizes .1, 4."),
        (
            lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(5)),
            r"bias has sizes \[5\], wanted sizes that broadcast to \[2, 4\]",
        ),
        (
            lambda: ops.linear(torch.zeros(3), torch.zeros(4, 3), torch.zeros(2, 4)),
            r"bias has sizes \[2, 4\], wanted sizes that broadcast to \[1, 4\]",
        ),
        (
            lambda: ops.linear(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(1).double()),
            "bias is Double, wanted input's dtype Float",
        ),
        (
            lambda: ops.matmul(torch.zeros(2, 3), torch.zeros(3, 5), policy="fwd=cpu:tree"),
            "wanted one of cpu:blocked, cpu:dot ",
        ),
    ],
)
def test_errors_name_the_argument(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("matmul_fwd x=f64[1,64,64]:nchw w=f64[1,64,64]:nchw", "no float64"),
        pytest.param(
            "matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw",
            "driver|3008",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver"),
        ),
    ],
)
def test_graph_says_why_on_a_target(line: str, reason: str) -> None:
    found = [
        c
        for c in _C.candidates(line, "target:h200", "")
        if c["algorithm"].startswith("graph") and c["status"] != "ok"
    ]
    assert found
    assert any(re.search(reason, c["reason"]) for c in found), found


@pytest.mark.parametrize("bias", [False, True])
def test_linear_module(bias: bool, device: str) -> None:
    theirs = torch.nn.Linear(4, 5, bias=bias, device=device)
    mine = ours.Linear(4, 5, bias=bias, device=device, policy="autotune")
    mine.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())
    for sizes in ((3, 4), (4,), (2, 3, 4), (0, 4)):
        x = torch.randn(sizes, device=device)
        torch.testing.assert_close(mine(x), theirs(x))
    x = torch.randn(3, 4, device=device)
    for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert copied.policy == mine.policy == "fwd=autotune"
        torch.testing.assert_close(copied(x), theirs(x))
    mine.set_mode("aten:default")
    assert mine.policy == "fwd=aten:default"
    arguments: dict[str, Any] = {"bwd": "autotune"}
    with pytest.raises(TypeError, match="wanted fwd$"):
        mine.set_mode(**arguments)


@pytest.mark.parametrize(
    ("sizes", "bias_sizes"),
    [((5, 2, 3), bias) for bias in ((1,), (), (2, 4), (5, 2, 4), (5, 1, 1))]
    + [((2, 3), (2, 1)), ((3,), (1,)), ((3,), ()), ((0, 3), (1,))],
)
def test_biases_broadcast(sizes: tuple[int, ...], bias_sizes: tuple[int, ...], device: str) -> None:
    leaves = [_leaf(*s, device=device) for s in (sizes, (4, 3), bias_sizes)]
    x, weight, bias = leaves
    wanted = x @ weight.T + bias  # F.linear takes less where the input has three dimensions
    got = ops.linear(x, weight, bias)
    torch.testing.assert_close(got, wanted)
    r = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, r), torch.autograd.grad(wanted, leaves, r), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_vector_of_weights() -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(4), torch.randn(())
    for pin in ("aten:default", "cpu:blocked"):
        for left in (x, x[0]):
            y = ops.linear(left, weight, bias, policy=f"fwd={pin}")
            torch.testing.assert_close(y, left @ weight + bias)
            torch.testing.assert_close(ops.linear(left, weight), left @ weight)
        ops.linear(x, weight, policy=f"fwd={pin}")
        choice = newest("matmul_fwd")
        assert (choice.algorithm, choice.why) == (pin, "pinned")


def test_a_factor_scales_before_products_are_rounded(device: str) -> None:
    a = torch.full((4, 100), 30.0, device=device, dtype=torch.float16)
    b = torch.full((100, 5), 40.0, device=device, dtype=torch.float16)
    bias = torch.ones(5, device=device, dtype=torch.float16)
    for first, second in ((a, b), (a.expand(3, 4, 100), b.expand(3, 100, 5))):
        got = ops.gemm(first, second, alpha=0.1, policy="aten:default")
        torch.testing.assert_close(got, torch.full_like(got, 12000.0))
        got = ops.gemm(first, second, bias, alpha=0.1, policy="aten:default")
        torch.testing.assert_close(got, torch.full_like(got, 12001.0))
    images, filters = a[:1, :, None, None] / 10, b.t()[:, :, None, None]
    y = ops.convolution(images, filters, alpha=0.1, policy="aten:matmul")
    torch.testing.assert_close(y, torch.full_like(y, 1200.0))


def test_a_trace_of_a_layer_warns_of_nothing() -> None:
    layer, x = ours.Linear(4, 3), torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.parametrize("size", [1, 3])
def test_a_trace_of_linear_adds_any_bias(size: int) -> None:
    x, w, bias = torch.randn(2, 4), torch.randn(3, 4), torch.randn(size)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(ops.linear, (x, w, bias))
    torch.testing.assert_close(traced(x, w, bias), F.linear(x, w) + bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_scaled_by_zero_is_written(dtype: torch.dtype, device: str) -> None:
    a = torch.ones(2, 64, 64, device=device, dtype=dtype)
    x, w = a[:, :, :, None], torch.ones(64, 64, 1, 1, device=device, dtype=dtype)

    def spoil() -> None:  # what is allocated next
        spoilt = [torch.full_like(a, math.nan) for _ in range(8)]
        del spoilt

    calls: list[Callable[[], Tensor]] = [
        lambda: ops.gemm(a, a, alpha=0.0),
        lambda: ops.gemm(a, a, z=a, alpha=0.0, beta=0.0),
        lambda: ops.gemm(a, a, bias=torch.zeros(64, device=device, dtype=dtype), alpha=0.0),
        lambda: ops.convolution(x, w, alpha=0.0),
        lambda: ops.convolution_backward_input(x, w, x.shape, alpha=0.0),
    ]
    for made in calls:
        for _ in range(4):
            spoil()
            assert not made().any()
    sized = a.clone().requires_grad_()
    y = ops.gemm(sized, a, alpha=0.0, z=a, beta=1.0)
    spoil()
    (grad,) = torch.autograd.grad(y.sum(), sized)
    assert not grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_run_where_pytorch_wants_determinism(dtype: torch.dtype, device: str) -> None:
    a, b = (
        torch.randn(8, 16, dtype=dtype, device=device),
        torch.randn(16, 4, device=device).to(dtype),
    )
    theta = torch.randn(2, 2, 3, dtype=dtype, device=device)
    torch.use_deterministic_algorithms(True)
    torch.testing.assert_close(ops.matmul(a, b), torch.matmul(a, b))
    grid = F.affine_grid(theta, [2, 1, 4, 5], align_corners=False)
    torch.testing.assert_close(ops.affine_grid(theta, (2, 1, 4, 5), align_corners=False), grid)


@pytest.mark.parametrize("sizes", [(2, 3, 4), (2, 3, 0)])
def test_a_weight_has_a_vectorised_jacobian(sizes: tuple[int, ...], device: str) -> None:
    x = torch.randn(sizes, device=device)
    w = torch.randn(5, sizes[-1], device=device)
    results = [
        torch.autograd.functional.jacobian(lambda w, f=f: f(x, w), w, vectorize=True)
        for f in (ops.linear, F.linear)
    ]
    torch.testing.assert_close(*results)
