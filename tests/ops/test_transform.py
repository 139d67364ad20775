"""Conversions: PyTorch's values, layouts and gradients, one problem for two spellings, errors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conftest import VIEWS, check_compiles, misaligned, newest
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.func import grad, vmap

from torch_cudnn_ext import _C, knobs, ops, trace, when
from torch_cudnn_ext.tuning import tune

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FORMATS = (torch.preserve_format, torch.contiguous_format, torch.channels_last)
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
ON_CPU = ("aten:default", "cpu:gather", "cpu:tiles")
SPECIAL = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, 1e-7, -1e-7, 65519.0, 65520.0, 1e30)


def _bits(t: Tensor) -> Tensor:
    """What the elements hold, so that -0 is not 0, and NaN is NaN."""
    return t.where(~t.isnan(), torch.nan).contiguous().view(INTEGERS[t.itemsize])


def _check(got: Tensor, wanted: Tensor) -> None:
    """Every bit, the dtype and the strides are those of PyTorch's result."""
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    assert torch.equal(_bits(got), _bits(wanted))


def _able(device: str, line: str) -> list[str]:
    """The algorithms that a problem has on a device."""
    return [c["algorithm"] for c in _C.candidates(line, device, "") if c["status"] == "ok"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_layouts_are_pytorchs(
    dtype: torch.dtype, memory_format: torch.memory_format, view: str, device: str
) -> None:
    for given in DTYPES:
        x = VIEWS[view](torch.randn(3, 5, 6, 4, device=device).to(given))
        for keywords in ({"dtype": dtype}, {}):
            wanted = x.to(keywords.get("dtype", given), memory_format=memory_format, copy=True)
            _check(ops.transform(x, memory_format=memory_format, **keywords), wanted)


@pytest.mark.parametrize("algorithm", ON_CPU)
@pytest.mark.parametrize("view", VIEWS)
def test_every_algorithm_takes_every_layout(view: str, algorithm: str) -> None:
    for sizes in ((3, 5, 6, 4), (3, 70, 66, 40), (3, 1, 2, 33)):
        x = VIEWS[view](torch.randn(sizes))
        for memory_format in FORMATS:
            wanted = x.to(torch.float16, memory_format=memory_format)
            got = ops.transform(
                x, dtype=torch.float16, memory_format=memory_format, policy=algorithm
            )
            _check(got, wanted)
            assert newest("transform_fwd").algorithm == algorithm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_numbers_are_pytorchs_with_every_algorithm(dtype: torch.dtype, device: str) -> None:
    for given in DTYPES:
        x = torch.tensor(SPECIAL, dtype=torch.float64, device=device).to(given)
        x = x.repeat(40).reshape(2, 20, 11)
        for arranged in (x, x.transpose(1, 2)):
            y = ops.transform(arranged, dtype=dtype, memory_format=torch.contiguous_format)
            wanted = arranged.to(dtype).contiguous()
            _check(y, wanted)
            line = newest("transform_fwd").problem
            for algorithm in _able(device, line):
                got = ops.transform(
                    arranged, dtype=dtype, memory_format=torch.contiguous_format, policy=algorithm
                )
                assert torch.equal(_bits(got), _bits(wanted)), (algorithm, line)


@pytest.mark.parametrize(
    "sizes", [(), (7,), (3, 5), (2, 5, 11), (2, 3, 4, 5, 6), (2, 0, 3)], ids=str
)
def test_any_number_of_dimensions(sizes: tuple[int, ...], device: str) -> None:
    x = torch.randn(sizes, device=device, requires_grad=True)
    formats = [torch.preserve_format, torch.contiguous_format]
    formats += [torch.channels_last_3d] if len(sizes) == 5 else []
    for memory_format in formats:
        for arranged in (x, x.permute(tuple(reversed(range(x.dim()))))):
            got = ops.transform(arranged, dtype=torch.float64, memory_format=memory_format)
            _check(got, arranged.to(torch.float64, memory_format=memory_format))
            (dx,) = torch.autograd.grad(got.sum(), x)
            assert torch.equal(dx, torch.ones_like(x))


def test_more_dimensions_than_a_problem_has(device: str) -> None:
    x = torch.randn([2] * 10, device=device).permute(9, 0, 8, 1, 7, 2, 6, 3, 5, 4)
    for memory_format in (torch.preserve_format, torch.contiguous_format):
        _check(
            ops.transform(x, memory_format=memory_format),
            x.to(memory_format=memory_format, copy=True),
        )


def test_overlapping_windows_are_read(device: str) -> None:
    x = torch.randn(12, device=device).unfold(0, 4, 1)
    _check(ops.transform(x, memory_format=torch.contiguous_format), x.contiguous())


def test_the_result_is_always_new(device: str) -> None:
    x = torch.randn(2, 3, 4, 5, device=device)
    for pin in _able(device, "transform_fwd x=f32[1,1,120]:nchw"):
        y = ops.transform(x, policy=pin)
        assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
        kept = x.clone()
        y.add_(1)
        assert torch.equal(x, kept), pin


def test_two_spellings_are_one_problem(device: str) -> None:
    def posed(x: Tensor, **keywords: Any) -> str:
        ops.transform(x, **keywords)
        return newest("transform_fwd").problem

    x = torch.randn(2, 5, 6, 7, device=device)
    to_nhwc = posed(x, memory_format=torch.channels_last)
    assert to_nhwc == "transform_fwd x=f32[2,5,42]:nchw y=:nhwc"
    flat = x.flatten(2).transpose(1, 2)
    assert posed(flat, memory_format=torch.contiguous_format) == to_nhwc
    # So is the way back, if it has as many rows as this has columns.
    back = torch.randn(2, 42, 1, 5, device=device).to(memory_format=torch.channels_last)
    assert posed(back, memory_format=torch.contiguous_format) == to_nhwc
    dense = "transform_fwd x=f32[1,1,420]:nchw dtype=f16"
    for view in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 3), x.flatten()):
        assert posed(view, dtype=torch.float16) == dense
    one_channel = torch.randn(4, 1, 3, 35, device=device)
    assert posed(one_channel, dtype=torch.half, memory_format=torch.channels_last) == dense


@pytest.mark.parametrize(
    ("line", "canonical"),
    [
        ("x=f32[2,5,6,7]:nchw y=:nhwc", "x=f32[2,5,42]:nchw y=:nhwc"),
        ("x=f32[2,5,6,7]:nhwc y=:nchw", "x=f32[2,42,5]:nchw y=:nhwc"),
        ("x=f32[2,5,6,7]:nhwc", "x=f32[2,42,5]:nchw y=:nhwc"),
        ("x=f32[5,6,7]:nchw dtype=f32", "x=f32[1,1,210]:nchw"),
        ("x=f16[1,5,1,7]:nchw y=:nhwc dtype=f64", "x=f16[1,5,7]:nchw y=:nhwc dtype=f64"),
        ("x=f32[4,6]:s(1,4)", "x=f32[1,6,4]:nchw y=:nhwc"),
        ("x=f32[4,6]:s(12,1)", "x=f32[1,4,6]:s(48,12,1)"),
        ("x=f32[4,6]:s(12,2)", "x=f32[1,1,24]:s(48,48,2)"),
        ("x=f32[2,3,4,5]:s(1,2,6,24)", "x=f32[5,4,3,2]:nchw y=:s(1,5,20,60)"),
        ("x=f32[1]:nchw align=4", "x=f32[1,1,1]:nchw align=4"),
    ],
)
def test_the_canonical_line(line: str, canonical: str) -> None:
    found = _C.canonical_problem(f"transform_fwd {line}")
    assert found == f"transform_fwd {canonical}"
    assert _C.canonical_problem(found) == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x=f32[4,6]:nchw y=:s(1,1)", r"y has the strides \[1, 1\] over the sizes \[4, 6\]"),
        ("x=f32[4,6]:nchw y=:s(3,1)", "wanted strides by which no two elements share memory"),
        ("x=f32[4,0]:nchw", "wanted sizes of at least 1"),
        ("x=f32[4]:nchw dtype=i8", "dtype is 'i8', wanted one of f64"),
        ("x=f32[4]:nchw align=2", "align is 2, wanted at least an element of f32"),
        ("x=f32[4]:nchw kind=copy", "the key 'kind' is unknown"),
    ],
)
def test_lines_that_are_no_problem(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.canonical_problem(f"transform_fwd {line}")


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_gradients(view: str, memory_format: torch.memory_format, device: str) -> None:
    def run(t: Tensor) -> Tensor:
        return ops.transform(VIEWS[view](t), memory_format=memory_format)

    x = torch.randn(3, 2, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_is_a_conversion_back(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(2, 5, 6, 7, device=device, requires_grad=True)
    y = ops.transform(x, dtype=dtype, memory_format=torch.channels_last)
    g = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, g)
    _check(dx, g.to(torch.float32, memory_format=torch.contiguous_format))
    line = newest("transform_fwd").problem
    assert line.startswith(f"transform_fwd x={_C.problem_info(line)['dtype']}[2,42,5]:nchw y=:nhwc")
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    y = ops.transform(last, dtype=dtype, memory_format=torch.contiguous_format)
    (dx,) = torch.autograd.grad(y, last, torch.randn_like(y))
    assert (dx.dtype, dx.stride()) == (last.dtype, last.stride())


def test_a_third_derivative(device: str) -> None:
    x = torch.randn(2, 3, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
    y = ops.transform(x, memory_format=torch.channels_last).pow(4).sum()
    for factor, power in ((4, 3), (12, 2), (24, 1)):
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        torch.testing.assert_close(g, factor * x**power)
        y = g.sum()


def test_backward_honours_the_forwards_policy() -> None:
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    for pin in ON_CPU:
        y = ops.transform(x, memory_format=torch.channels_last, policy=f"fwd={pin}")
        for g in (torch.randn_like(y), torch.ones(()).expand_as(y)):
            ops.transform(torch.zeros(3))
            torch.autograd.grad(y, x, g, retain_graph=True)
            chosen = newest("transform_fwd")
            assert (chosen.algorithm, chosen.why) == (pin, "pinned")


def test_knobs_rules_and_tuning() -> None:
    x = torch.randn(2, 40, 9, 9)
    knobs.transform_fwd_algo = "cpu:tiles"
    ops.transform(x, memory_format=torch.channels_last)
    assert newest("transform_fwd").algorithm == "cpu:tiles"
    with when("transform_fwd x=f32[2,*]* y=:nhwc", use="cpu:gather"):
        ops.transform(x, memory_format=torch.channels_last)
        assert newest("transform_fwd").algorithm == "cpu:gather"
        ops.transform(x)
        assert newest("transform_fwd").algorithm == "cpu:tiles"
    with when("transform_fwd dtype=f16", use="cpu:gather"):
        ops.transform(x, dtype=torch.float16)
        assert newest("transform_fwd").algorithm == "cpu:gather"
    knobs.transform_fwd_algo = None
    line = "transform_fwd x=f32[2,40,81]:nchw y=:nhwc"
    best = tune([line], device="cpu")[line]
    ops.transform(x, memory_format=torch.channels_last, policy="autotune")
    chosen = newest("transform_fwd")
    assert (chosen.problem, chosen.algorithm, chosen.why) == (line, best["algorithm"], "cached")


def test_tuning_takes_exact_results_alone(device: str) -> None:
    for cast in ("", " dtype=f64", " dtype=f16"):
        line = f"transform_fwd x=f32[3,70,65]:nchw y=:nhwc{cast}"
        rows = [row for row in _C.measure(line, device, "", record=False) if row["status"] == "ok"]
        assert len(rows) >= (3 if device == "cpu" else 1)
        assert _C.tolerance(line, []) == (0 if cast != " dtype=f16" else pytest.approx(4.9e-4))
        for row in rows:
            assert row["error"] <= _C.tolerance(line, [])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_at_any_address(dtype: torch.dtype, device: str) -> None:
    x = misaligned(torch.randn(2, 5, 6, 7, device=device).to(dtype))
    for memory_format in FORMATS:
        for to in DTYPES:
            got = ops.transform(x, dtype=to, memory_format=memory_format)
            _check(got, x.to(to, memory_format=memory_format, copy=True))


def test_what_cudnn_does_not_convert_has_a_reason() -> None:
    def reason(line: str, backend: str) -> str:
        rows = _C.candidates(f"transform_fwd {line}", "target:h200")
        return next(str(row["reason"]) for row in rows if row["backend"] == backend)

    assert "converts no types" in reason("x=f32[2,5,42]:nchw y=:nhwc dtype=f16", "legacy")
    assert "32 bits" in reason("x=f32[2,5,2147483647]:nchw y=:nhwc", "legacy")
    assert "not aligned" in reason("x=f32[2,5,42]:nchw y=:nhwc align=4", "legacy")
    assert "only with a GPU" in reason("x=f32[2,5,42]:nchw y=:nhwc", "legacy")
    assert "keep their order in memory" in reason("x=f32[2,5,42]:nchw y=:nhwc", "graph")
    assert "keep their order in memory" in reason("x=f32[1,1,42]:s(84,84,2)", "graph")
    assert "keep their order in memory" in reason("x=f32[1,1,42]:nchw y=:s(84,84,2)", "graph")


class Converting(torch.nn.Module):
    """PyTorch's conversions, and then ours."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.float16, memory_format=torch.channels_last).contiguous().clone()
        return ops.transform(y, dtype=torch.float64)


def test_enable_leaves_pytorchs_conversions_to_pytorch() -> None:
    (line,) = trace(Converting(), torch.randn(2, 3, 4, 5), train=False)
    assert line == "transform_fwd x=f16[1,1,120]:nchw dtype=f64  # model x1"


def test_autocast_changes_nothing(device: str) -> None:
    x = torch.randn(2, 3, device=device)
    with torch.autocast(device, torch.bfloat16):
        assert ops.transform(x).dtype == torch.float32
        assert ops.transform(x, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic: bool, device: str) -> None:
    def loss(x: Tensor) -> Tensor:
        y = ops.transform(x, dtype=torch.float32, memory_format=torch.channels_last)
        return ops.transform(y.square(), memory_format=torch.contiguous_format).sum()

    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x, dynamic=dynamic)


def test_compiled_autograd_converts_back(device: str) -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, device=device)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    y = ops.transform(x, dtype=torch.float32, memory_format=torch.contiguous_format)
    with compiled_autograd._enable(partial(torch.compile, backend="aot_eager")):
        torch.autograd.backward(y.sum())
    assert x.grad is not None
    _check(x.grad, torch.ones_like(x))


def test_transforms_of_functions(device: str) -> None:
    x = torch.randn(4, 2, 3, 5, dtype=torch.float64, device=device)
    for function in (
        lambda t: ops.transform(t, dtype=torch.float32),
        lambda t: ops.transform(t.unsqueeze(0), memory_format=torch.channels_last),
    ):
        wanted = torch.stack([function(t) for t in x])
        assert torch.equal(vmap(function)(x), wanted)

    def loss(t: Tensor) -> Tensor:
        return ops.transform(t[None], memory_format=torch.channels_last).pow(3).sum()

    torch.testing.assert_close(vmap(grad(loss))(x), 3 * x.square())
    second = vmap(grad(lambda t: grad(loss)(t).sum()))
    torch.testing.assert_close(second(x), 6 * x)


def test_meta_tensors_have_the_layout_of_real_ones() -> None:
    for view in VIEWS:
        for memory_format in FORMATS:
            x = VIEWS[view](torch.randn(3, 5, 6, 4))
            real = ops.transform(x, dtype=torch.half, memory_format=memory_format)
            meta = ops.transform(x.to("meta"), dtype=torch.half, memory_format=memory_format)
            assert meta.is_meta and (meta.shape, meta.dtype) == (real.shape, real.dtype)
            assert view == "expanded" or meta.stride() == real.stride()


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.transform(x.long()), "transform: input is Long, wanted Float, Half"),
        (lambda x: ops.transform(x, dtype=torch.int8), "transform: dtype is Char, wanted Float"),
        (
            lambda x: ops.transform(x, memory_format=torch.channels_last),
            r"memory_format is ChannelsLast, wanted one of Preserve, Contiguous for .* \[2, 3\]",
        ),
        (
            lambda x: ops.transform(x[None, None], memory_format=torch.channels_last_3d),
            r"is ChannelsLast3d, wanted one of Preserve, Contiguous, ChannelsLast for input",
        ),
        (lambda x: torch.ops.torch_cudnn_ext.transform(x, memory_format=9), "memory_format"),
        (lambda x: torch.ops.torch_cudnn_ext.transform(x, dtype=999), "dtype"),
        (lambda x: ops.transform(x, dtype="f16"), "transform: argument dtype: got 'f16'"),
        (
            lambda x: ops.transform(x, memory_format="nhwc"),
            "argument memory_format: got 'nhwc' .*wanted a torch.memory_format",
        ),
        (lambda x: ops.transform(x, policy="fwd=cpu:taps"), "wanted one of cpu:gather, cpu:tiles"),
    ],
)
def test_errors_name_the_argument(
    call: Callable[[Tensor], Tensor], message: str, place: str
) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        call(torch.zeros(2, 3, device=place))
