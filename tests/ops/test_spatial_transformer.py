"""Spatial transformers: PyTorch's grids, samples, gradients and errors."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, needs_cuda, newest
from helpers import TORCH_RELEASE
from torch import Tensor

from torch_cudnn_ext import _C, Policy, ops

SIZES = [(2, 3, 5, 7), (3, 1, 1, 4), (1, 2, 1, 1), (2, 3, 3, 4, 5), (1, 1, 1, 2, 3)]
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def _theta(sizes: tuple[int, ...], device: str, dtype: torch.dtype = torch.float64) -> Tensor:
    dims = len(sizes) - 2
    return torch.randn(sizes[0], dims, dims + 1, dtype=dtype, device=device)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("padding", PADDINGS)
def test_samples_beside_all_numbers_end_in_numbers_or_nan(
    padding: str, value: float, device: str
) -> None:
    x = torch.zeros(1, 1, 3, 4, device=device, requires_grad=True)
    grid = torch.full((1, 1, 8, 2), value, device=device, requires_grad=True)
    y = ops.grid_sample(x, grid, padding_mode=padding)
    dx, dgrid = torch.autograd.grad(y.sum(), (x, grid))
    assert dx.shape == x.shape and dgrid.shape == grid.shape


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("padding", PADDINGS)
def test_what_is_no_number_stays_where_it_is_read(padding: str, value: float) -> None:
    x = torch.ones(1, 2, 4, 4)
    x[..., -1, -1] = value
    # Far outside, inside, and between the pixel and the outside.
    grid = torch.tensor([[[[9.0, 9.0], [0.1, 0.1], [1.1, 1.1]]]], requires_grad=True)
    wanted = F.grid_sample(x, grid, padding_mode=padding, align_corners=False)
    y = ops.grid_sample(x, grid, padding_mode=padding, policy="cpu:gather")
    torch.testing.assert_close(y, wanted, equal_nan=True)
    (gradient,) = torch.autograd.grad(y.sum(), grid)
    (wanted_gradient,) = torch.autograd.grad(wanted.sum(), grid)
    torch.testing.assert_close(gradient, wanted_gradient, equal_nan=True)


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_a_grid_that_is_no_number_is_pytorchs(padding: str) -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4).requires_grad_()
    points = [[float("nan"), 0.0], [0.2, float("nan")], [0.1, 0.3]]
    grid = torch.tensor(points).view(1, 1, 3, 2).requires_grad_()
    wanted = F.grid_sample(x, grid, padding_mode=padding, align_corners=False)
    y = ops.grid_sample(x, grid, padding_mode=padding, policy="cpu:gather")
    torch.testing.assert_close(y, wanted)
    dx, dgrid = torch.autograd.grad(y.sum(), (x, grid))  # PyTorch's may crash on the CPU
    torch.testing.assert_close(dx.sum(), torch.tensor(3.0))
    assert dgrid.isfinite().all() and dgrid[0, 0, 0, 0] == dgrid[0, 0, 1, 1] == 0


@needs_cuda
def test_grids_in_tf32_are_noted() -> None:
    theta = torch.randn(2, 2, 3, device="cuda")
    line = "affine_grid_fwd theta=f32[2,2,3]:nchw grid=f32[2,4,5,2]:nchw align_corners=false"
    for precision, notes in (("ieee", []), ("tf32", ["tf32"])):
        torch.backends.cuda.matmul.fp32_precision = precision
        rows = {row["algorithm"]: row for row in _C.candidates(line, "cuda")}
        assert rows["aten:default"]["status"] == "ok"
        assert rows["aten:default"]["notes"] == notes
    with pytest.raises(RuntimeError, match="may use TF32"):
        ops.affine_grid(theta, (2, 3, 4, 5), policy="allow_tf32=false")


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_grids_are_pytorchs(sizes: tuple[int, ...], align: bool, device: str) -> None:
    theta = _theta(sizes, device).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's, about a lone point
        wanted = F.affine_grid(theta, list(sizes), align)
    got = ops.affine_grid(theta, sizes, align)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    for grad in (torch.randn_like(wanted), torch.ones((), device=device).double().expand_as(got)):
        torch.testing.assert_close(
            torch.autograd.grad(got, theta, grad, retain_graph=True),
            torch.autograd.grad(wanted, theta, grad, retain_graph=True),
        )


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize(("mode", "padding"), list(itertools.product(MODES, PADDINGS)))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_samples_are_pytorchs(
    sizes: tuple[int, ...], mode: str, padding: str, align: bool, device: str
) -> None:
    dims = len(sizes) - 2
    if mode == "bicubic" and dims == 3:
        pytest.skip("PyTorch has no bicubic sampling in 3-D")
    x = torch.randn(sizes, dtype=torch.float64, device=device, requires_grad=True)
    points = (sizes[0], *range(3, 3 + dims), dims)
    grid = (torch.randn(points, dtype=torch.float64, device=device) * 1.5).requires_grad_()
    got = ops.grid_sample(x, grid, mode, padding, align)
    wanted = F.grid_sample(x, grid, mode, padding, align)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    for inputs in ((x, grid), (x,), (grid,)):
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs, grad, retain_graph=True),
            torch.autograd.grad(wanted, inputs, grad, retain_graph=True),
        )


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3),
    "sliced": lambda t: t[:, :, ::2],
    "expanded": lambda t: t[:1].expand(2, -1, -1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_layouts(view: str, device: str) -> None:
    x = VIEWS[view](torch.randn(2, 3, 6, 7, dtype=torch.float64, device=device))
    x = x.detach().requires_grad_()
    grid = torch.randn(2, 2, 5, 4, dtype=torch.float64, device=device).permute(0, 2, 3, 1)
    grid = grid.detach().requires_grad_()
    got, wanted = (f(x, grid, align_corners=True) for f in (ops.grid_sample, F.grid_sample))
    torch.testing.assert_close(got, wanted)
    grad = torch.randn_like(wanted).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        torch.autograd.grad(got, (x, grid), grad), torch.autograd.grad(wanted, (x, grid), grad)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype, device: str) -> None:
    theta = _theta((2, 3, 8, 8), device, dtype)
    grid = ops.affine_grid(theta, (2, 3, 8, 8), True)
    wanted = F.affine_grid(theta, [2, 3, 8, 8], True)
    torch.testing.assert_close(grid, wanted, atol=4 * torch.finfo(dtype).eps, rtol=0.02)
    x = torch.randn(2, 3, 8, 8, device=device).to(dtype)
    torch.testing.assert_close(
        ops.grid_sample(x, wanted, align_corners=True),
        F.grid_sample(x, wanted, align_corners=True),
        atol=32 * torch.finfo(dtype).eps,
        rtol=0.02,
    )


def test_nothing_to_sample(device: str) -> None:
    for sizes, points in (((0, 3, 4, 4), (0, 2, 2, 2)), ((2, 0, 4, 4), (2, 3, 3, 2))):
        x = torch.randn(sizes, device=device, requires_grad=True)
        grid = torch.randn(points, device=device, requires_grad=True)
        got = ops.grid_sample(x, grid)
        assert got.shape == F.grid_sample(x, grid, align_corners=False).shape
        got.sum().backward()
        assert grid.grad is not None and bool((grid.grad == 0).all())
    no_points = ops.grid_sample(torch.randn(2, 3, 4, 4, device=device), grid[:, :0])
    assert no_points.shape == (2, 3, 0, 3)


def test_gradients(device: str) -> None:
    theta = _theta((2, 3, 3, 4), device).requires_grad_()
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, device=device, requires_grad=True)

    def grid(theta: Tensor) -> Tensor:
        return ops.affine_grid(theta, (2, 3, 3, 4), True)

    assert torch.autograd.gradcheck(grid, (theta,))
    assert torch.autograd.gradgradcheck(grid, (theta,))
    transform = 0.1 * theta.detach() + torch.eye(2, 3, dtype=torch.float64, device=device) * 0.7
    transform.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, theta: ops.grid_sample(x, grid(theta), align_corners=True),
        (x, transform),
        nondet_tol=1e-12,
    )


def _second_gradients(sample: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    x, grid = inputs
    y = sample(x, grid, align_corners=True)
    first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)


@pytest.mark.parametrize("space", [(3, 4), (2, 3, 4)])
def test_second_gradients_of_samples_are_pytorchs(space: tuple[int, ...], device: str) -> None:
    sizes = (2, *(2,) * len(space), len(space))
    x = torch.randn(2, 2, *space, device=device, dtype=torch.float64, requires_grad=True)
    grid = torch.rand(sizes, device=device, dtype=torch.float64).requires_grad_()
    if TORCH_RELEASE >= (2, 15):
        torch.testing.assert_close(
            _second_gradients(ops.grid_sample, x, grid), _second_gradients(F.grid_sample, x, grid)
        )
        return
    for sample in (F.grid_sample, ops.grid_sample):  # no earlier version of PyTorch has them
        with pytest.raises(RuntimeError, match="grid_sample\\w*_backward is not implemented"):
            _second_gradients(sample, x, grid)


def test_pins_are_obeyed(device: str) -> None:
    theta = _theta((2, 3, 4, 5), device, torch.float32).requires_grad_()
    x = torch.randn(2, 3, 6, 6, device=device, requires_grad=True)
    lines = {
        "affine_grid": "affine_grid_fwd theta=f32[2,2,3]:nchw grid=f32[2,4,5,2]:nchw "
        "align_corners=true",
        "grid_sample": "grid_sample_fwd x=f32[2,3,6,6]:nchw grid=f32[2,4,5,2]:nchw "
        "align_corners=true",
    }
    for family, line in lines.items():
        found = [c for c in _C.candidates(line, device, "") if c["status"] == "ok"]
        assert len(found) >= 2
        for candidate in found:
            pin = candidate["algorithm"]
            policy = Policy(family=family, fwd=pin, bwd=pin)
            policies = {name: policy if name == family else None for name in lines}
            grid = ops.affine_grid(theta, (2, 3, 4, 5), True, policy=policies["affine_grid"])
            y = ops.grid_sample(x, grid, align_corners=True, policy=policies["grid_sample"])
            y.sum().backward()
            for op in (f"{family}_fwd", f"{family}_bwd"):
                choice = newest(op)
                assert (choice.algorithm, choice.why) == (pin, "pinned")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grids_of_one_point_in_half_types(dtype: torch.dtype, device: str) -> None:
    theta = _theta((2, 3, 1, 4), device, torch.float32).to(dtype).requires_grad_()
    exact = theta.detach().float().requires_grad_()
    got = ops.affine_grid(theta, (2, 3, 1, 4), True)  # PyTorch has none
    wanted = F.affine_grid(exact, [2, 3, 1, 4], True)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), wanted, rtol=0.02, atol=0.02)
    got.sum().backward()
    wanted.sum().backward()
    assert theta.grad is not None and exact.grad is not None
    torch.testing.assert_close(theta.grad.float(), exact.grad, rtol=0.02, atol=0.02)


def test_autocast_gives_pytorchs_dtypes(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    theta = _theta((2, 3, 4, 4), device, torch.float32)
    x = torch.randn(2, 3, 4, 4, device=device)
    grid = torch.rand(2, 4, 4, 2, device=device)
    with torch.autocast(device, lower):
        got, wanted = (
            ops.affine_grid(theta, (2, 3, 4, 4)),
            F.affine_grid(theta, [2, 3, 4, 4], False),
        )
        assert got.dtype == wanted.dtype
        for dtypes in itertools.product((lower, torch.float32), repeat=2):
            pair = (x.to(dtypes[0]), grid.to(dtypes[1]))
            got = ops.grid_sample(*pair)
            wanted = F.grid_sample(*pair, align_corners=False)
            assert got.dtype == wanted.dtype


def test_compiles_whole(device: str) -> None:
    theta = _theta((2, 3, 4, 4), device).requires_grad_()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, device=device, requires_grad=True)

    def loss(x: Tensor, theta: Tensor) -> Tensor:
        grid = ops.affine_grid(theta, x.shape, True)
        return ops.grid_sample(x, grid, align_corners=True).square().sum()

    for dynamic in (False, True):
        check_compiles(loss, x, theta, dynamic=dynamic)


def test_opcheck(device: str) -> None:
    operators = torch.ops.torch_cudnn_ext
    theta = _theta((2, 3, 4, 4), device).requires_grad_()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, device=device, requires_grad=True)
    grid = torch.rand(2, 4, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
    torch.library.opcheck(operators.affine_grid.default, (theta, (2, 3, 4, 4), True))
    torch.library.opcheck(operators.grid_sample.default, (x, grid, 0, 0, True))
    for wanted in (True, False):
        torch.library.opcheck(
            operators.grid_sample_backward.default,
            (x.detach(), x.detach(), grid.detach(), 0, 0, True, wanted),
        )


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (ops.affine_grid, (torch.zeros(2, 2, 3), (2, 3, 4)), "size is .2, 3, 4., wanted .N, C, H"),
        (ops.affine_grid, (torch.zeros(1, 2, 3), (1, 1, 0, 2)), "size is .1, 1, 0, 2., wanted at"),
        (ops.affine_grid, (torch.zeros(0, 2, 3), (0, 1, 2, 2)), "size is .0, 1, 2, 2., wanted at"),
        (ops.affine_grid, (torch.zeros(2, 2, 2), (2, 3, 4, 4)), "theta has sizes .2, 2, 2., want"),
        (ops.affine_grid, (torch.zeros(2, 2, 3).long(), (2, 3, 4, 4)), "theta is Long, wanted F"),
        (
            ops.grid_sample,
            (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, 3)),
            "grid has sizes .2, 4, 4, 3., wanted",
        ),
        (
            ops.grid_sample,
            (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, 2).double()),
            "grid is Double, wanted input's dtype Float",
        ),
        (
            ops.grid_sample,
            (torch.zeros(2, 3, 0, 4), torch.zeros(2, 4, 4, 2)),
            "wanted non-empty spatial dimensions",
        ),
        (
            ops.grid_sample,
            (torch.zeros(1, 1, 2, 2, 2), torch.zeros(1, 2, 2, 2, 3), "bicubic"),
            "argument mode: got 'bicubic', wanted one of bilinear, nearest",
        ),
        (
            ops.grid_sample,
            (torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, 2), "cubic"),
            "argument mode: got 'cubic', wanted one of bilinear, nearest, bicubic",
        ),
    ],
)
def test_errors_name_the_argument(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_a_size_is_a_sequence() -> None:
    size: Any = 5
    with pytest.raises(TypeError, match="argument size: got 5 .int., wanted 4 or 5 integers"):
        ops.affine_grid(torch.zeros(5, 2, 3), size)


def test_refusals_say_why() -> None:
    lines = {
        "grid=f32[2,4,5,2]:nchw align_corners=false": "align corners",
        "grid=f32[2,4,5,2]:nchw mode=nearest align_corners=true": "samples bilinearly",
        "grid=f32[2,4,5,2]:nchw padding=border align_corners=true": "pads with zeros",
    }
    for fields, reason in lines.items():
        line = f"grid_sample_fwd x=f32[2,3,6,6]:nchw {fields}"
        (row,) = (
            c for c in _C.candidates(line, "target:h200", "") if c["algorithm"] == "legacy:bilinear"
        )
        assert row["status"] == "unsupported" and reason in row["reason"]


def test_align_corners_may_be_left_to_pytorchs_default() -> None:
    x, theta = torch.randn(1, 2, 4, 5), torch.randn(1, 2, 3)
    grid = ops.affine_grid(theta, [1, 2, 3, 3], None)
    assert torch.equal(grid, ops.affine_grid(theta, [1, 2, 3, 3], False))
    assert torch.equal(
        ops.grid_sample(x, grid, align_corners=None), ops.grid_sample(x, grid, align_corners=False)
    )
