"""Algorithms compute what they claim; operators compute what PyTorch's do."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, PASSES, SMALL, Case
from conftest import EVERY_NUMERICS, misaligned, needs_cuda, newest
from helpers import OUTPUT_ROLE
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from torch_cudnn_ext import _C, ops
from torch_cudnn_ext.knobs import pushed

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OPS = torch.ops.torch_cudnn_ext

# A value that random data never takes: memory around the output must still hold it afterwards.
GUARD = -1024.0
GUARD_ELEMENTS = 256


def _torch_reference(case: Case, op: str, tensors: dict[str, Tensor]) -> Tensor:
    """The problem computed by PyTorch's convolution and autograd, float64, on the CPU."""
    double = {role: tensor.cpu().double() for role, tensor in tensors.items()}
    x = double["x"] if op != "conv_bwd_data" else torch.zeros(case.x, dtype=torch.float64)
    w = double["w"] if op != "conv_bwd_filter" else torch.zeros(case.w, dtype=torch.float64)
    x.requires_grad_(op == "conv_bwd_data")
    w.requires_grad_(op == "conv_bwd_filter")
    kernel = w.flip(list(range(2, w.dim()))) if case.mode == "conv" else w
    y = CONV[case.spatial_dims](
        x,
        kernel,
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
        groups=case.groups,
    )
    if op == "conv_fwd":
        result = y
    else:
        (result,) = torch.autograd.grad(y, x if op == "conv_bwd_data" else w, double["y"])
    # Scratch bindings have alpha 0.75 and beta 1.5 where a problem leaves them open.
    alpha, beta = {"none": (1.0, 0.0), "add": (1.0, 1.0), "general": (0.75, 1.5)}[case.accumulate]
    if beta != 0:
        result = alpha * result + beta * double[OUTPUT_ROLE[op]]
    return result.detach()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_windows_beside_the_image_sum_nothing(dtype: torch.dtype, device: str) -> None:
    one = torch.ones(1, 1, 1, dtype=dtype, device=device)
    assert ops.conv1d(one, one, None, 2, 1, 2).tolist() == [[[0, 0]]]
    x = torch.ones(1, 4, 2, 1, dtype=dtype, device=device).to(memory_format=torch.channels_last)
    w = torch.ones(4, 2, 2, 1, dtype=dtype, device=device)
    for policy in (None, "autotune"):
        y = ops.conv2d(x, w, None, (1, 3), (3, 2), (1, 2), 2, policy=policy)
        assert y.shape == (1, 4, 7, 2) and not y.any()


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_reference_is_pytorchs_convolution(case: Case, op: str) -> None:
    problem = case.problem(op)
    tensors = _C.scratch(problem, "cpu", seed=1)
    reference = _C.reference(problem, tensors)[OUTPUT_ROLE[op]]
    assert reference.dtype == torch.float64
    torch.testing.assert_close(reference, _torch_reference(case, op, tensors))


@needs_cuda
def test_many_algorithms_for_the_flagship_layer() -> None:
    case = next(case for case in CASES if case.name == "resnet_3x3_56-f32-nchw")
    legacy = {
        candidate["algorithm"].split("/")[0]
        for candidate in _C.candidates(case.problem("conv_fwd"), "cuda", EVERY_NUMERICS)
        if candidate["backend"] == "legacy" and candidate["status"] == "ok"
    }
    wanted = {
        _C.canonical_algorithm(str(number), "conv_fwd").split("/")[0]
        for number in (0, 1, 2, 4, 5, 7)
    }
    assert wanted <= legacy
    case = next(case for case in CASES if case.name == "resnet_3x3_56-f16-nhwc")
    engines = {
        candidate["algorithm"].split("/")[0]
        for candidate in _C.candidates(case.problem("conv_fwd"), "cuda", EVERY_NUMERICS)
        if candidate["backend"] == "graph" and candidate["status"] == "ok"
    }
    assert len(engines) >= 16


# The operators, against PyTorch's functions of the same arguments.

CONV_FORMS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("1d", (2, 4, 9), (6, 4, 3), {}),
    ("1d_all", (2, 4, 11), (6, 2, 3), {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    ("1d_unbatched", (4, 9), (6, 4, 3), {"padding": (1,)}),
    ("2d", (2, 4, 7, 6), (6, 4, 3, 2), {}),
    ("2d_ints", (2, 4, 7, 6), (6, 4, 3, 2), {"stride": 2, "padding": 1, "dilation": 1}),
    (
        "2d_tuples",
        (2, 4, 7, 9),
        (6, 4, 3, 2),
        {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 3)},
    ),
    ("2d_groups", (2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    ("2d_depthwise", (2, 4, 5, 5), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
    ("2d_unbatched", (4, 7, 6), (6, 4, 3, 2), {"padding": 1}),
    ("3d", (2, 4, 4, 3, 5), (6, 4, 2, 3, 2), {}),
    (
        "3d_all",
        (1, 4, 5, 6, 7),
        (4, 2, 2, 3, 2),
        {"stride": (1, 2, 1), "padding": (0, 2, 1), "dilation": (2, 1, 3), "groups": 2},
    ),
    ("3d_unbatched", (4, 4, 3, 5), (6, 4, 2, 3, 2), {}),
]

CONV_TRANSPOSE_FORMS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("1d", (2, 4, 9), (4, 6, 3), {}),
    (
        "1d_all",
        (2, 4, 9),
        (4, 3, 3),
        {"stride": 3, "padding": 2, "output_padding": 1, "groups": 2, "dilation": 2},
    ),
    ("1d_unbatched", (4, 9), (4, 6, 3), {"padding": 1}),
    ("2d", (2, 4, 5, 4), (4, 6, 3, 2), {}),
    ("2d_ints", (2, 4, 5, 4), (4, 6, 3, 2), {"stride": 2, "padding": 1, "output_padding": 1}),
    (
        "2d_tuples",
        (2, 4, 5, 4),
        (4, 6, 3, 3),
        {"stride": (2, 3), "padding": (0, 1), "output_padding": (1, 2), "dilation": (1, 2)},
    ),
    ("2d_groups", (2, 4, 5, 4), (4, 3, 3, 2), {"groups": 2}),
    ("2d_unbatched", (4, 5, 4), (4, 6, 3, 2), {}),
    ("3d", (1, 4, 3, 2, 4), (4, 6, 2, 3, 2), {}),
    (
        "3d_all",
        (1, 4, 3, 2, 4),
        (4, 3, 2, 3, 2),
        {"stride": 2, "padding": (0, 1, 0), "output_padding": (1, 0, 1), "groups": 2},
    ),
    ("3d_unbatched", (4, 3, 2, 4), (4, 6, 2, 3, 2), {}),
]


def _ours(name: str) -> Any:
    return getattr(OPS, name).default


def _lists(options: dict[str, Any], dims: int) -> dict[str, Any]:
    """As the dispatcher wants them: integers only for ``groups``."""
    return {
        key: [value] * dims if isinstance(value, int) and key != "groups" else value
        for key, value in options.items()
    }


# On a GPU it may be TF32.
F32_TOLERANCE = {"cpu": {"rtol": 1e-5, "atol": 1e-5}, "cuda": {"rtol": 1e-3, "atol": 5e-2}}


def _random(sizes: tuple[int, ...], device: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, device=device, dtype=dtype)


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("form", CONV_FORMS, ids=lambda form: form[0])
def test_conv_takes_every_form(form: Any, with_bias: bool, device: str) -> None:
    _, x_sizes, w_sizes, options = form
    dims = len(w_sizes) - 2
    x, w = _random(x_sizes, device), _random(w_sizes, device)
    bias = _random(w_sizes[:1], device) if with_bias else None
    wanted = CONV[dims](x, w, bias, **options)
    torch.testing.assert_close(_ours(f"conv{dims}d")(x, w, bias, **_lists(options, dims)), wanted)
    torch.testing.assert_close(getattr(ops, f"conv{dims}d")(x, w, bias, **options), wanted)


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("form", CONV_TRANSPOSE_FORMS, ids=lambda form: form[0])
def test_conv_transpose_takes_every_form(form: Any, with_bias: bool, device: str) -> None:
    _, x_sizes, w_sizes, options = form
    dims = len(w_sizes) - 2
    x, w = _random(x_sizes, device), _random(w_sizes, device)
    channels = w_sizes[1] * options.get("groups", 1)
    bias = _random((channels,), device) if with_bias else None
    wanted = CONV_TRANSPOSE[dims](x, w, bias, **options)
    name = f"conv_transpose{dims}d"
    torch.testing.assert_close(_ours(name)(x, w, bias, **_lists(options, dims)), wanted)
    torch.testing.assert_close(getattr(ops, name)(x, w, bias, **options), wanted)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_convolution_is_atens(transposed: bool, device: str) -> None:
    x, w = _random((2, 4, 6, 5), device), _random((4, 2, 3, 2), device)
    bias = _random((4,), device)
    output_padding = [1, 0] if transposed else [0, 0]
    arguments = ([2, 1], [1, 1], [1, 2], transposed, output_padding, 2)
    torch.testing.assert_close(
        OPS.convolution.default(x, w, bias, *arguments),
        torch.ops.aten.convolution.default(x, w, bias, *arguments),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_conv2d_in_lower_precision(dtype: torch.dtype, device: str) -> None:
    x, w, bias = (_random(s, device, dtype) for s in ((2, 8, 7, 7), (8, 8, 3, 3), (8,)))
    got = OPS.conv2d.default(x, w, bias, padding=[1, 1], policy="allow_tf32=false")
    assert got.dtype == dtype
    wanted = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    tolerance = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


def _views(sizes: tuple[int, ...], device: str) -> dict[str, Tensor]:
    """One tensor of each memory format and view that a user may come with."""
    n, c, h, w = sizes
    return {
        "contiguous": _random(sizes, device),
        "channels_last": _random(sizes, device).to(memory_format=torch.channels_last),
        "transposed": _random((n, c, w, h), device).transpose(2, 3),
        "sliced": _random((n, c, h, 2 * w), device)[..., ::2],
        "channel_slice": _random((n, c + 3, h, w), device)[:, 2:-1],
        "cropped": _random((n, c, h + 2, w + 2), device)[:, :, 1:-1, 1:-1],
        "expanded_batch": _random((1, c, h, w), device).expand(sizes),
        "expanded_space": _random((n, c, 1, 1), device).expand(sizes),
        "offset": _random((n * c * h * w + 1,), device)[1:].view(sizes),
        "batch_last": _random((c, h, w, n), device).movedim(-1, 0),
    }


VIEWS = tuple(_views((1, 1, 1, 1), "cpu"))


@pytest.mark.parametrize("w_view", VIEWS)
@pytest.mark.parametrize("x_view", VIEWS)
def test_any_strides(x_view: str, w_view: str, device: str) -> None:
    x = _views((2, 4, 6, 5), device)[x_view].requires_grad_()
    w = _views((6, 4, 3, 2), device)[w_view].requires_grad_()
    got = OPS.conv2d.default(x, w, None, padding=[1, 1])
    wanted = F.conv2d(x, w, None, padding=1)
    torch.testing.assert_close(got, wanted)
    for view in ("contiguous", "channels_last", "transposed", "expanded_space"):
        grad = _views(tuple(wanted.shape), device)[view]
        torch.testing.assert_close(
            torch.autograd.grad(got, (x, w), grad, retain_graph=True),
            torch.autograd.grad(wanted, (x, w), grad, retain_graph=True),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_strides_of_single_elements_of_a_grouped_filter(dtype: torch.dtype, device: str) -> None:
    x = _random((2, 4, 3, 9), device).to(dtype).to(memory_format=torch.channels_last)
    w = _random((8, 2, 3, 1), device).to(dtype).as_strided((8, 2, 3, 1), (6, 1, 2, 7))
    dy = _random((2, 8, 1, 5), device).to(dtype).to(memory_format=torch.channels_last)
    y = ops.conv2d(x, w, stride=(1, 2), groups=2, policy="fwd=aten:default")
    dx = ops.convolution_backward_input(
        dy, w, x.shape, stride=(1, 2), groups=2, policy="bwd_data=aten:default"
    )
    wanted_y = F.conv2d(x.double(), w.double(), stride=(1, 2), groups=2)
    wanted_dx = torch.nn.grad.conv2d_input(
        x.shape, w.double(), dy.double(), stride=(1, 2), groups=2
    )
    torch.testing.assert_close(y, wanted_y.to(dtype), atol=0.05, rtol=0.02)
    torch.testing.assert_close(dx, wanted_dx.to(dtype), atol=0.05, rtol=0.02)


TYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compute", [None, "as_input", "as_input_f32"])
def test_the_type_of_accumulation(compute: str | None, dtype: str) -> None:
    x, w = torch.ones(1, 2, 4, 4, dtype=TYPES[dtype]), torch.ones(2, 2, 3, 3, dtype=TYPES[dtype])
    policy = None if compute is None else f"compute={compute}"
    ones, none = [1, 1], [0, 0]
    problem = _C.convolution_problem("conv_fwd", x, w, none, ones, ones, 1, policy, False)
    wide = "f64" if dtype == "f64" else "f32"
    assert f" compute={dtype if compute == 'as_input' else wide}" in problem


def test_strides_of_a_lone_image_of_a_grouped_convolution(device: str) -> None:
    x = _random((1, 12, 6, 6), device).float().as_strided((1, 12, 6, 6), (12, 1, 72, 12))
    dy = _random((1, 4, 6, 6), device).float().as_strided((1, 4, 6, 6), (144, 1, 24, 4))
    policy = "allow_tf32=false" if device == "cuda" else "aten:default"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        dw = ops.convolution_backward_weight(dy, x, (4, 3, 1, 1), groups=4, policy=policy)
    finally:
        torch.set_num_threads(threads)
    wanted = torch.nn.grad.conv2d_weight(x.double(), (4, 3, 1, 1), dy.double(), groups=4)
    torch.testing.assert_close(dw, wanted.float(), atol=1e-4, rtol=1e-4)


def _last(t: Tensor, wanted: bool = True) -> Tensor:
    """Channels last, also over one dimension of space."""
    if not wanted:
        return t
    if t.dim() == 3:
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    return t.to(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


def _check_strides(name: str, x: Tensor, w: Tensor, **options: Any) -> None:
    """Of PyTorch's function, of ours, and of ours on fake tensors."""
    wanted = getattr(F, name)(x, w, **options)
    got = _ours(name)(x, w, **_lists(options, x.dim() - 2))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = _ours(name)(mode.from_tensor(x), mode.from_tensor(w), **_lists(options, x.dim() - 2))
    assert got.shape == wanted.shape == fake.shape
    assert got.stride() == fake.stride()
    if x.dtype == torch.float64:
        # PyTorch keeps channels_last for float64 on the CPU in up to two dimensions and nowhere
        # else.
        assert got.is_contiguous()
    else:
        assert got.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("w_channels_last", [False, True], ids=["w", "w_channels_last"])
@pytest.mark.parametrize("x_channels_last", [False, True], ids=["x", "x_channels_last"])
@pytest.mark.parametrize(
    "name", [*(f"conv{i}d" for i in CONV), *(f"conv_transpose{i}d" for i in CONV)]
)
def test_output_strides_are_pytorchs(
    name: str, x_channels_last: bool, w_channels_last: bool, dtype: torch.dtype, device: str
) -> None:
    dims = int(name[-2])
    for batch in (1, 2):
        x = _random((batch, 8, *(5, 4, 6)[:dims]), device, dtype)
        w = _random((8, 8, *(3, 2, 3)[:dims]), device, dtype)
        _check_strides(name, _last(x, x_channels_last), _last(w, w_channels_last))


# On the CPU, PyTorch has two kinds of kernels for volumes, of which one keeps channels_last.
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 2, 16])
@pytest.mark.parametrize("kernel", [(1, 1, 1), (3, 1, 1), (1, 3, 3), (1, 4, 4)], ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_output_strides_of_volumes_are_pytorchs(
    transposed: bool, kernel: tuple[int, ...], batch: int, threads: int
) -> None:
    name = "conv_transpose3d" if transposed else "conv3d"
    forms: list[dict[str, Any]] = [{}, {"stride": 2}, {"dilation": 2}, {"groups": 2}]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for options in forms:
            w = _random((8, 8 // options.get("groups", 1), *kernel), "cpu")
            for space in ((5, 7, 7), (54, 54, 7)) if batch == 1 else ((5, 7, 7),):
                x = _last(_random((batch, 8, *space), "cpu"))
                for dtype in (torch.float32, torch.float16, torch.bfloat16):
                    _check_strides(name, x.to(dtype), w.to(dtype), **options)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("grad_channels_last", [False, True], ids=["dy", "dy_channels_last"])
@pytest.mark.parametrize("w_channels_last", [False, True], ids=["w", "w_channels_last"])
@pytest.mark.parametrize("x_channels_last", [False, True], ids=["x", "x_channels_last"])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "conv3d"])
def test_gradients_have_the_layout_of_their_forward(
    name: str, x_channels_last: bool, w_channels_last: bool, grad_channels_last: bool, device: str
) -> None:
    if name == "conv3d" and device == "cpu":
        pytest.skip("PyTorch's gradients of volumes on the CPU have layouts of several kinds")
    dims = int(name[-2])
    x = _last(_random((2, 8, *(5, 4, 6)[:dims]), device, torch.float32), x_channels_last)
    w = _last(_random((8, 8, *(3, 2, 3)[:dims]), device, torch.float32), w_channels_last)
    leaves = [t.detach().requires_grad_() for t in (x, w)]
    outputs = [getattr(module, name)(*leaves) for module in (ops, F)]
    dy = _last(torch.randn_like(outputs[0]).contiguous(), grad_channels_last)
    got, wanted = (torch.autograd.grad(y, leaves, dy) for y in outputs)
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
    assert [t.stride() for t in got] == [t.stride() for t in wanted]
    # All three run in one layout, so that what was chosen ahead for it is met.
    layouts = [_C.last_decision(f"conv_{name}") for name in ("fwd", "bwd_data", "bwd_filter")]
    assert len({choice["problem"].count(":nhwc") > 0 for choice in layouts if choice}) == 1


def test_one_value_stands_for_all_dimensions(device: str) -> None:
    x, w = _random((2, 4, 9, 8), device), _random((4, 6, 3, 3), device)
    for call, theirs in ((OPS.conv2d, F.conv2d), (OPS.conv_transpose2d, F.conv_transpose2d)):
        filters = w.transpose(0, 1) if theirs is F.conv2d else w
        torch.testing.assert_close(
            call.default(x, filters, None, [2], [1]), theirs(x, filters, None, 2, 1)
        )
    with pytest.raises(ValueError, match=r"stride is \[1, 1, 1\], wanted 2 values"):
        OPS.conv2d.default(x, w.transpose(0, 1), None, [1, 1, 1])


def test_unbatched_output_strides_are_pytorchs(device: str) -> None:
    x, w = _random((8, 5, 6), device), _random((4, 8, 3, 3), device)
    assert OPS.conv2d.default(x, w).stride() == F.conv2d(x, w).stride()


@pytest.mark.parametrize(
    ("dims", "options"),
    [
        (1, {"dilation": 3, "output_padding": 2}),
        (2, {"dilation": 2, "output_padding": 1}),
        (2, {"stride": 2, "dilation": 4, "output_padding": 3, "padding": 2}),
        (2, {"stride": (1, 3), "dilation": (4, 1), "output_padding": (3, 2), "padding": (5, 0)}),
        (2, {"stride": 2, "dilation": 3, "output_padding": (0, 2), "groups": 2}),
        (3, {"dilation": 2, "output_padding": (1, 0, 1), "padding": 1}),
    ],
    ids=str,
)
def test_output_padding_beyond_stride(dims: int, options: dict[str, Any], device: str) -> None:
    x = _random((2, 4, *(4, 3, 3)[:dims]), device).requires_grad_()
    w = _random((4, 2, *(3, 3, 2)[:dims]), device).requires_grad_()
    bias = _random((2 * options.get("groups", 1),), device).requires_grad_()
    leaves = (x, w, bias)
    given = _lists(options, dims)
    wanted = CONV_TRANSPOSE[dims](x, w, bias, **options)
    got = _ours(f"conv_transpose{dims}d")(x, w, bias, **given)
    torch.testing.assert_close(got, wanted)
    grad = torch.randn_like(wanted).requires_grad_()
    firsts = [torch.autograd.grad(y, leaves, grad, create_graph=True) for y in (got, wanted)]
    torch.testing.assert_close(*firsts)
    more = [torch.randn_like(leaf) for leaf in leaves]
    torch.testing.assert_close(*(torch.autograd.grad(g, (x, w, grad), more) for g in firsts))
    tangents = [
        torch.func.jvp(lambda x: op(x, w, bias, **given), (x,), (x.sin(),))[1]  # noqa: B023
        for op in (_ours(f"conv_transpose{dims}d"), CONV_TRANSPOSE[dims])
    ]
    torch.testing.assert_close(*tangents)

    with torch.inference_mode():
        torch.testing.assert_close(_ours(f"conv_transpose{dims}d")(x, w, bias, **given), wanted)
        meta = [t.detach().to("meta") for t in leaves]
        assert _ours(f"conv_transpose{dims}d")(*meta, **given).shape == wanted.shape
    arguments = {"stride": [1] * dims, "padding": [0] * dims, "groups": 1, **given}
    out = torch.empty_like(wanted)
    OPS.convolution_out.default(
        *(t.detach() for t in leaves), **arguments, transposed=True, out=out
    )
    torch.testing.assert_close(out, wanted.detach())


def test_zero_size_batch(device: str) -> None:
    x = _random((0, 4, 5, 6), device).requires_grad_()
    w = _random((6, 4, 3, 3), device).requires_grad_()
    bias = _random((6,), device).requires_grad_()
    y = OPS.conv2d.default(x, w, bias, padding=[1, 1])
    assert y.shape == (0, 6, 5, 6)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert w.grad is not None and torch.equal(w.grad, torch.zeros_like(w))
    assert bias.grad is not None and torch.equal(bias.grad, torch.zeros_like(bias))
    transposed = OPS.conv_transpose2d.default(x, _random((4, 6, 3, 3), device))
    assert transposed.shape == (0, 6, 7, 8)


@pytest.mark.parametrize("groups", [1, 2])
def test_zero_size_channels(groups: int, device: str) -> None:
    x = _random((2, 0, 5, 6), device).requires_grad_()
    w = _random((4, 0, 3, 3), device).requires_grad_()
    bias = _random((4,), device).requires_grad_()
    y = OPS.conv2d.default(x, w, bias, padding=[1, 1], groups=groups)
    assert y.shape == F.conv2d(x, w, bias, padding=1, groups=groups).shape == (2, 0, 5, 6)
    assert OPS.conv2d.default(x.to("meta"), w.to("meta"), padding=[1, 1]).shape == y.shape
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert w.grad is not None and w.grad.shape == w.shape
    assert bias.grad is not None and torch.equal(bias.grad, torch.zeros_like(bias))
    tangent = torch.func.jvp(lambda b: OPS.conv2d.default(x, w, b), (bias,), (bias,))[1]
    assert tangent.shape == (2, 0, 3, 4)


def test_empty_gradient_of_a_primitive(device: str) -> None:
    w = _random((6, 4, 3, 3), device)
    empty = _random((0, 6, 3, 3), device)
    options = ([1, 1], [0, 0], [1, 1], 1)
    data = OPS.convolution_backward_input.default(empty, w, [0, 4, 5, 5], *options)
    assert data.shape == (0, 4, 5, 5)
    x = _random((0, 4, 5, 5), device)
    weight = OPS.convolution_backward_weight.default(empty, x, list(w.shape), *options)
    assert torch.equal(weight, torch.zeros_like(w))


def _primitive_arguments(case: Case, device: str) -> dict[str, tuple[Any, ...]]:
    """Positional arguments of the three primitives for one case, in float64."""
    x, w, y = (_random(sizes, device) for sizes in (case.x, case.w, case.y))
    options = (list(case.stride), list(case.padding), list(case.dilation))
    no_padding = [0] * case.spatial_dims
    return {
        "convolution": (x, w, None, *options, False, no_padding, case.groups),
        "convolution_backward_input": (y, w, list(case.x), *options, case.groups),
        "convolution_backward_weight": (y, x, list(case.w), *options, case.groups),
    }


PRIMITIVES = {
    "convolution": "conv_fwd",
    "convolution_backward_input": "conv_bwd_data",
    "convolution_backward_weight": "conv_bwd_filter",
}
F64_CASES = [case for case in SMALL if case.dtype == "f64" and case.accumulate == "none"]


def _expected(case: Case, name: str, arguments: tuple[Any, ...], flip_kernel: bool) -> Tensor:
    roles = {
        "convolution": ("x", "w"),
        "convolution_backward_input": ("y", "w"),
        "convolution_backward_weight": ("y", "x"),
    }[name]
    tensors = dict(zip(roles, arguments[:2], strict=True))
    case = replace(case, mode="conv" if flip_kernel else "cross")
    return _torch_reference(case, PRIMITIVES[name], tensors).to(arguments[0].device)


@pytest.mark.parametrize("flip_kernel", [False, True], ids=["cross", "conv"])
@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize("case", F64_CASES, ids=lambda case: case.name)
def test_primitives(case: Case, name: str, flip_kernel: bool, device: str) -> None:
    arguments = _primitive_arguments(case, device)[name]
    expected = _expected(case, name, arguments, flip_kernel)
    op = _ours(name)
    torch.testing.assert_close(op(*arguments, flip_kernel=flip_kernel), expected)
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (2.0, 0.0), (0.0, 1.0)):
        z = torch.randn_like(expected)
        kept = z.clone()
        got = op(*arguments, z=z, alpha=alpha, beta=beta, flip_kernel=flip_kernel)
        torch.testing.assert_close(got, alpha * expected + beta * z)
        assert torch.equal(z, kept), "z was written"

        out = z.clone()
        returned = _ours(f"{name}_out")(
            *arguments, alpha=alpha, beta=beta, flip_kernel=flip_kernel, out=out
        )
        assert returned is None
        torch.testing.assert_close(out, alpha * expected + beta * z)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_out_with_beta_zero_ignores_what_it_holds(name: str, device: str) -> None:
    case = F64_CASES[0]
    arguments = _primitive_arguments(case, device)[name]
    expected = _expected(case, name, arguments, flip_kernel=False)
    out = torch.full_like(expected, torch.nan)
    _ours(f"{name}_out")(*arguments, out=out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize("view", ["channels_last", "transposed", "sliced", "cropped", "offset"])
def test_out_of_any_strides(name: str, view: str, device: str) -> None:
    case = F64_CASES[0]
    arguments = _primitive_arguments(case, device)[name]
    expected = _expected(case, name, arguments, flip_kernel=False)
    out = _views(tuple(expected.shape), device)[view]
    before, strides = out.clone(), out.stride()
    _ours(f"{name}_out")(*arguments, alpha=0.5, beta=2.0, out=out)
    assert out.stride() == strides
    torch.testing.assert_close(out, 0.5 * expected + 2.0 * before)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_out_refuses_requires_grad(name: str, device: str) -> None:
    case = F64_CASES[0]
    arguments = list(_primitive_arguments(case, device)[name])
    out = torch.empty_like(_expected(case, name, tuple(arguments), flip_kernel=False))
    with pytest.raises((RuntimeError, ValueError), match="requires? .*grad|requires_grad"):
        _ours(f"{name}_out")(*arguments, out=out.clone().requires_grad_())
    arguments[0] = arguments[0].requires_grad_()
    with pytest.raises((RuntimeError, ValueError), match="requires? .*grad|requires_grad"):
        _ours(f"{name}_out")(*arguments, out=out)


def _distinct(problem: str, device: str) -> list[str]:
    """One supported algorithm of each name that a problem has."""
    by_name: dict[str, str] = {}
    for candidate in _C.candidates(problem, device):
        if candidate["status"] == "ok":
            by_name.setdefault(candidate["algorithm"].split("/")[0], candidate["algorithm"])
    return list(by_name.values())


def test_policy_argument_pins_the_operator(device: str) -> None:
    x, w = _random((2, 8, 8, 8), device, torch.float32), _random((8, 8, 3, 3), device).float()
    problem = _C.convolution_problem("conv_fwd", x, w, [1, 1], [1, 1], [1, 1], 1)
    expected = F.conv2d(x.double(), w.double(), padding=1)
    algorithms = _distinct(problem, device)
    assert len(algorithms) >= 3
    for algorithm in algorithms:
        y = OPS.conv2d.default(x, w, padding=[1, 1], policy=f"fwd={algorithm}")
        choice = newest("conv_fwd")
        assert choice.algorithm == algorithm
        assert choice.why == "pinned"
        assert choice.problem == problem
        torch.testing.assert_close(y.double(), expected, **F32_TOLERANCE[device])


def _geometry(dims: int) -> tuple[Any, ...]:
    return ([1] * dims, [1] * dims, [1] * dims, False, [0] * dims, 1)


@pytest.mark.parametrize(
    ("dtype", "dims"), [("f32", 2), ("f16", 2), ("f32", 1), ("f64", 1), ("f16", 3)]
)
def test_a_pin_of_a_convolution_with_bias_is_obeyed(dtype: str, dims: int, device: str) -> None:
    kind = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}[dtype]
    x, w = _random((2, 8, *[6] * dims), device, kind), _random((16, 8, *[3] * dims), device, kind)
    bias = _random((16,), device, kind)
    expected = CONV[dims](x.double(), w.double(), bias.double(), padding=1)
    plain, problem = (
        _C.problems_posed_by(lambda b=b: OPS.convolution.default(x, w, b, *_geometry(dims)))[0]
        for b in (None, bias)
    )
    assert problem == f"{plain} bias={dtype}"
    good, good_plain = (
        {c["algorithm"] for c in _C.candidates(line, device, "") if c["status"] == "ok"}
        for line in (problem, plain)
    )
    assert good_plain <= good
    tolerance = {
        "f64": {"rtol": 1e-12, "atol": 1e-12},
        "f32": F32_TOLERANCE[device],
        "f16": {"rtol": 1e-2, "atol": 1e-1},
    }[dtype]
    for algorithm in _distinct(problem, device):
        y = OPS.convolution.default(x, w, bias, *_geometry(dims), policy=f"fwd={algorithm}")
        choice = newest("conv_fwd")
        assert (choice.problem, choice.algorithm) == (problem, algorithm)
        torch.testing.assert_close(y.double(), expected, **tolerance)


def test_a_convolution_with_bias_is_tuned(device: str) -> None:
    x, w, bias = (_random(s, device, torch.float16) for s in ((2, 8, 6, 6), (16, 8, 3, 3), (16,)))
    y = OPS.conv2d.default(x, w, bias, padding=[1, 1], policy="autotune")
    wanted = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-2, atol=1e-1)
    choice = newest("conv_fwd")
    assert choice.why in ("tuned", "cached") and choice.problem.endswith("bias=f16")


def test_only_a_plain_forward_poses_its_bias(device: str) -> None:
    x, w, bias = (_random(s, device) for s in ((2, 8, 6, 6), (8, 8, 3, 3), (8,)))
    wanted = F.conv2d(x, w, bias, padding=1)
    z = torch.zeros_like(wanted)

    def posed(call: Callable[[], object]) -> bool:
        (problem,) = _C.problems_posed_by(lambda: call())
        return "bias=f64" in problem.split()

    assert posed(lambda: ops.conv2d(x, w, bias, padding=1))
    assert posed(lambda: ops.conv2d(x[0], w, bias, padding=1))
    assert posed(lambda: ops.conv2d(x, w, bias, padding=1, conv_mode="conv"))
    assert posed(lambda: ops.convolution(x, w, bias, padding=1, z=z, beta=0.0))
    assert not posed(lambda: ops.conv2d(x, w, padding=1))
    assert not posed(lambda: ops.conv_transpose2d(x, w, bias))
    assert not posed(lambda: ops.convolution(x, w, bias, padding=1, alpha=2.0))
    assert not posed(lambda: ops.convolution(x, w, bias, padding=1, z=z, beta=1.0))
    assert not posed(lambda: ops.convolution(x, w, bias, padding=1, out=z))
    torch.testing.assert_close(
        ops.convolution(x, w, bias, padding=1, z=wanted, beta=1.0), 2 * wanted
    )


def _relu_operands(
    dims: int, device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, w = _random((2, 4, *(9, 8, 7)[:dims]), device, dtype), _random((6, 2, *[3] * dims), device)
    bias, z = _random((6,), device, dtype), _random((2, 6, *(5, 4, 4)[:dims]), device, dtype)
    return x, w.to(dtype), bias, z


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("addends", ["", "bias", "z", "bias z"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_relu_of_a_convolution(dims: int, addends: str, flipped: bool, device: str) -> None:
    x, w, bias, z = (t.requires_grad_() for t in _relu_operands(dims, device))
    has_bias, has_z = "bias" in addends, "z" in addends
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2}
    y = ops.convolution(
        x,
        w,
        bias if has_bias else None,
        **options,
        z=z if has_z else None,
        beta=float(has_z),
        activation="relu",
        conv_mode="conv" if flipped else "cross",
    )
    fields = newest("conv_fwd").problem.split()
    assert ("bias=f64" in fields, "z=f64" in fields) == (has_bias, has_z)
    assert "act=relu" in fields and ("mode=conv" in fields) == flipped
    kernel = w.flip([*range(2, w.dim())]) if flipped else w
    wanted = CONV[dims](x, kernel, bias if has_bias else None, **options)
    wanted = (wanted + z if has_z else wanted).relu()
    torch.testing.assert_close(y, wanted)
    assert 0.1 < (y == 0).double().mean() < 0.9
    leaves = [x, w, *([bias] if has_bias else []), *([z] if has_z else [])]
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(y, leaves, grad), torch.autograd.grad(wanted, leaves, grad)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("view", ["as_it_is", "channels_last", "misaligned", "expanded"])
def test_what_is_added_before_relu_may_lie_anywhere(
    view: str, dtype: torch.dtype, device: str
) -> None:
    x, w, bias, z = _relu_operands(2, device, dtype)
    z = {
        "as_it_is": lambda t: t,
        "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
        "misaligned": misaligned,
        "expanded": lambda t: t[:, :, :1].expand(t.shape),
    }[view](z)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = x.contiguous(memory_format=layout)
        for policy in ("allow_tf32=false", "autotune;allow_tf32=false"):
            y = ops.convolution(
                x, w, bias, 2, 1, groups=2, z=z, beta=1, activation="relu", policy=policy
            )
            wanted = F.conv2d(x.double(), w.double(), bias.double(), 2, 1, groups=2)
            wanted = (wanted + z.double()).relu()
            rounding = 1e-4 if dtype == torch.float32 else 5e-2
            torch.testing.assert_close(y.double(), wanted, rtol=rounding, atol=rounding)
            plain = F.conv2d(x, w, bias, 2, 1, groups=2)
            assert y.stride() == plain.stride() and y.data_ptr() != z.data_ptr()


def test_relu_of_nothing(device: str) -> None:
    x, w, bias, z = _relu_operands(2, device)
    leaves = [t.requires_grad_() for t in (x[:0], w, bias, z[:0])]
    y = ops.convolution(*leaves[:3], 2, 1, groups=2, z=leaves[3], beta=1, activation="relu")
    assert y.shape == (0, 6, 5, 4)
    for leaf, gradient in zip(leaves, torch.autograd.grad(y.sum(), leaves), strict=True):
        assert gradient.shape == leaf.shape and not gradient.any()
    channels = (torch.empty(2, 0, 9, 8, device=device, dtype=x.dtype), w[:, :0], bias)
    y = ops.convolution(*channels, padding=1, activation="relu")
    assert y.shape == F.conv2d(*channels, padding=1).shape and y.numel() == 0


def test_relu_is_compiled_and_cast_as_the_operator(device: str) -> None:
    x, w, bias, z = (t.requires_grad_() for t in _relu_operands(2, device, torch.float32))

    def step(x: Tensor) -> Tensor:
        return ops.convolution(x, w, bias, 2, 1, groups=2, z=z, beta=1, activation="relu")

    compiled = torch.compile(step, fullgraph=True)
    torch.testing.assert_close(compiled(x), step(x))
    grown = torch.compile(lambda x: step(x[:2]) * x.shape[0], fullgraph=True, dynamic=True)
    for count in (2, 3, 5):
        more = torch.cat([x.detach()] * 3)[:count].requires_grad_()
        wanted = step(more[:2]) * count
        grad = torch.randn_like(wanted)
        torch.testing.assert_close(grown(more), wanted)
        torch.testing.assert_close(
            torch.autograd.grad(grown(more), more, grad), torch.autograd.grad(wanted, more, grad)
        )
    with torch.autocast(device, dtype=torch.bfloat16):
        y = step(x)
    assert y.dtype == torch.bfloat16 and "z=bf16" in newest("conv_fwd").problem
    torch.testing.assert_close(y.float(), step(x), rtol=0.05, atol=0.1)
    y.float().sum().backward()
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in (x, w, bias, z))
    torch.testing.assert_close(torch.vmap(step)(x.detach()[None]), step(x.detach())[None])


def test_relu_counts_the_flops_of_its_convolution(device: str) -> None:
    x, w, bias, _ = _relu_operands(2, device)
    counts = []
    for activation in ("none", "relu"):
        with FlopCounterMode(display=False) as counter:
            ops.convolution(x, w, bias, 2, 1, groups=2, activation=activation)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_a_bias_may_lie_anywhere(device: str) -> None:
    x, w = (_random(s, device, torch.float32) for s in ((2, 8, 6, 6), (8, 8, 3, 3)))
    values = _random((17,), device, torch.float32)
    for bias in (values[1:9], values[::2][:8], values[:1].expand(8)):
        y = OPS.conv2d.default(x, w, bias, padding=[1, 1], policy="allow_tf32=false")
        wanted = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)
        assert "align=" not in newest("conv_fwd").problem


def test_what_is_written_may_be_negated_lazily(device: str) -> None:
    x, w = (_random(s, device, torch.float32) for s in ((2, 4, 7, 7), (6, 4, 3, 3)))
    out = torch.zeros(2, 6, 5, 5, dtype=torch.complex64, device=device).conj().imag
    assert out.is_neg()
    policy = "allow_tf32=false"
    y = ops.convolution(x, w, policy=policy)
    ops.convolution(x, w, out=out, policy=policy)
    torch.testing.assert_close(out + 0, y)
    dx = torch.zeros(2, 4, 7, 7, dtype=torch.complex64, device=device).conj().imag
    ops.convolution_backward_input(y, w, x.shape, out=dx, policy=policy)
    torch.testing.assert_close(dx + 0, ops.convolution_backward_input(y, w, x.shape, policy=policy))
    values = torch.randn(40, 50, dtype=torch.complex64, device=device).conj().imag
    wanted = values.relu()
    assert ops.relu(values, inplace=True) is values and values.is_neg()
    torch.testing.assert_close(values + 0, wanted)
    with pytest.raises(ValueError, match="input is ComplexFloat"):
        ops.relu(torch.randn(3, dtype=torch.complex64, device=device).conj(), inplace=True)


def test_a_bias_may_lie_in_out(device: str) -> None:
    x, w = (_random(s, device, torch.float32) for s in ((2, 4, 7, 7), (6, 4, 3, 3)))
    out = _random((2, 6, 5, 5), device, torch.float32)
    bias = out.view(-1)[:6]
    wanted = F.conv2d(x.double(), w.double(), bias.double())
    ops.convolution(x, w, bias, out=out, policy="allow_tf32=false")
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)


# With these cuDNN 9.19, and PyTorch's own filter gradient, lose the GPU context.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_misaligned_tensors(
    dtype: torch.dtype, layout: torch.memory_format, device: str
) -> None:
    x, w, dy = (
        misaligned(_random(sizes, device, dtype).contiguous(memory_format=layout))
        for sizes in ((6, 100, 24, 24), (32, 100, 3, 3), (6, 32, 12, 12))
    )
    double = (x.double().requires_grad_(), w.double().requires_grad_())
    wanted = F.conv2d(*double, padding=1, stride=2)
    leaves = (x.requires_grad_(), w.requires_grad_())
    got = ops.conv2d(*leaves, padding=1, stride=2, policy="allow_tf32=false")
    assert f"align={dtype.itemsize}" in newest("conv_fwd").problem
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=3e-2)
    dx, dw = torch.autograd.grad(wanted, double, dy.double())
    for gradient, its_own in zip(torch.autograd.grad(got, leaves, dy), (dx, dw), strict=True):
        torch.testing.assert_close(gradient.double(), its_own, rtol=1e-2, atol=3e-1)
    assert "align=" not in newest("conv_bwd_filter").problem
    out = misaligned(torch.ones_like(w.detach()))
    with torch.no_grad():
        ops.convolution_backward_weight(
            dy, x, w.shape, padding=1, stride=2, out=out, policy="allow_tf32=false"
        )
    torch.testing.assert_close(out.double(), dw, rtol=1e-2, atol=3e-1)
    # The next tensor finds a context that works.
    assert (torch.ones(3, device=device) + 1).sum().item() == 6


def test_transposed_convolution_names_the_primitive_that_runs(device: str) -> None:
    x, w = _random((2, 8, 5, 5), device), _random((8, 4, 3, 3), device)
    problem = _C.convolution_problem(
        "conv_bwd_data", _random((2, 4, 7, 7), device), w, [0, 0], [1, 1], [1, 1], 1
    )
    for algorithm in _distinct(problem, device):
        OPS.conv_transpose2d.default(x, w, policy=f"bwd_data={algorithm}")
        choice = newest()
        assert (choice.op, choice.algorithm) == ("conv_bwd_data", algorithm)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 CUDA devices")
def test_tensors_on_another_than_the_current_device() -> None:
    with torch.cuda.device(0):
        x = _random((2, 4, 6, 6), "cuda:1").requires_grad_()
        w = _random((4, 4, 3, 3), "cuda:1").requires_grad_()
        y = OPS.conv2d.default(x, w, padding=[1, 1])
        assert y.device == torch.device("cuda:1")
        assert torch.cuda.current_device() == 0
        wanted = F.conv2d(x, w, padding=1)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(y.square().sum(), (x, w)),
            torch.autograd.grad(wanted.square().sum(), (x, w)),
        )
        autotuned = OPS.conv2d.default(x, w, padding=[1, 1], policy="autotune")
        torch.testing.assert_close(autotuned, wanted)


def test_flags_change_what_an_operator_runs(device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    problem = _C.convolution_problem("conv_fwd", x, w, [1, 1], [1, 1], [1, 1], 1)
    ran = []
    algorithms = _distinct(problem, device)[:3]
    for algorithm in algorithms:
        with pushed(f"fwd={algorithm}"):
            OPS.conv2d.default(x, w, padding=[1, 1])
        ran.append(newest("conv_fwd").algorithm)
    assert ran == algorithms


def test_a_factor_scales_before_sums_are_rounded_to_f16(device: str) -> None:
    x = torch.full((8, 8, 34, 34), 3.0, device=device, dtype=torch.float16)
    dy = torch.full((8, 4, 32, 32), 16.0, device=device, dtype=torch.float16)
    out = torch.zeros(4, 8, 3, 3, device=device, dtype=torch.float16)
    ops.convolution_backward_weight(dy, x, out.shape, out=out, alpha=1 / 1024, beta=1.0)
    assert (out == 384).all()
    scaled = partial(ops.convolution_backward_weight, dy, x, policy="aten:default")
    if device == "cuda":
        scaled(out.shape, out=out, alpha=1 / 1024, beta=0.5)
        assert (out == 576).all() and (scaled(out.shape, alpha=1 / 512) == 768).all()
    else:
        with pytest.raises(RuntimeError, match="rounded to f16 before alpha scales it"):
            scaled(out.shape, alpha=0.5)


def test_factors_are_no_tensors_that_want_gradients() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    for name in ("alpha", "beta"):
        factor = {name: torch.tensor(2.0, requires_grad=True), "z": torch.zeros(1, 3, 3, 3)}
        with pytest.raises(TypeError, match=f"convolution: argument {name}: .* wanted a number"):
            ops.convolution(x, w, **factor)  # type: ignore[arg-type]
        factor["z"] = torch.zeros(5, 5)
        with pytest.raises(TypeError, match=f"gemm: argument {name}: .* wanted a number"):
            ops.gemm(x[0, 0], x[0, 0], **factor)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["cross", "conv"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_copied_windows(dims: int, dtype: torch.dtype, last: bool, mode: str, device: str) -> None:
    if last and dims == 1:
        pytest.skip("PyTorch has no channels_last of three dimensions")
    layout = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims) if last else None
    format = {"memory_format": layout or torch.contiguous_format}
    windows = (3, 1, 2)[:dims]
    policy = "fwd=aten:im2col;bwd_filter=aten:im2col"
    for stride, padding, dilation in (
        (1, 1, 1),
        (2, (0, 1, 2)[:dims], 1),
        ((3, 1, 2)[:dims], 2, 2),
    ):
        x = torch.randn(3, 4, *(9, 10, 7)[:dims], device=device, dtype=dtype).contiguous(**format)
        w = torch.randn(5, 4, *windows, device=device, dtype=dtype).contiguous(**format)
        b = torch.randn(5, device=device, dtype=dtype)
        w.requires_grad_()
        plain = w if mode == "cross" else w.flip(tuple(range(2, 2 + dims)))
        arguments = (stride, padding, dilation)
        with torch.backends.mkldnn.flags(enabled=False):
            wanted = getattr(F, f"conv{dims}d")(x.double(), plain.double(), b.double(), *arguments)
        got = getattr(ops, f"conv{dims}d")(x, w, b, *arguments, conv_mode=mode, policy=policy)
        near = 1e-7 if dtype == torch.float64 else 1e-4
        tolerance = {"rtol": near, "atol": 10 * near}
        torch.testing.assert_close(got, wanted.to(dtype), **tolerance)
        dy = torch.randn_like(got)
        torch.testing.assert_close(
            torch.autograd.grad(got, w, dy),
            torch.autograd.grad(wanted, w, dy.double()),
            **tolerance,
        )


@pytest.mark.parametrize("sizes", [(1, 3, 3, 3), (6, 3, 8, 8)], ids=["one_filter", "one_pixel"])
def test_sizes_of_one_keep_contiguous_strides(sizes: tuple[int, ...], device: str) -> None:
    x, w = torch.randn(2, 3, 8, 8, device=device), torch.randn(sizes, device=device)
    w.requires_grad_()
    strides = []
    for algorithm in ("aten:default", "aten:im2col"):
        policy = f"fwd={algorithm};bwd_filter={algorithm}"
        y = ops.conv2d(x, w, stride=sizes[2], padding=1, policy=policy)
        (dw,) = torch.autograd.grad(y, w, torch.randn_like(y))
        strides.append((y.stride(), dw.stride()))
    assert strides[0] == strides[1]


@pytest.mark.parametrize("algorithm", ["aten:default", "aten:matmul", "cpu:direct", "cpu:im2col"])
def test_one_pixel_keeps_channels_last(algorithm: str) -> None:
    x = torch.randn(2, 8, 1, 1).as_strided((2, 8, 1, 1), (8, 1, 8, 8))
    w = torch.randn(6, 8, 1, 1).as_strided((6, 8, 1, 1), (8, 1, 8, 8)).requires_grad_()
    results = []
    for function, policy in ((ops.conv2d, {"policy": algorithm}), (F.conv2d, {})):
        y = function(x, w, **policy)
        (dw,) = torch.autograd.grad(y.square().sum(), w)
        results.append((y.stride(), dw.stride()))
    assert results[0] == results[1] == ((6, 1, 6, 6), (8, 1, 8, 8))
