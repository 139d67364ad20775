"""The functions of `torch_cudnn_ext.ops`: what they add to the operators below them."""

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import newest
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from torch_cudnn_ext import _C, Policy, nn, ops
from torch_cudnn_ext.ops import BorderMode, ConvMode
from torch_cudnn_ext.policy import PolicyLike

CONV: dict[int, tuple[Any, Any]] = {
    1: (ops.conv1d, F.conv1d),
    2: (ops.conv2d, F.conv2d),
    3: (ops.conv3d, F.conv3d),
}
CONV_TRANSPOSE: dict[int, tuple[Any, Any]] = {
    1: (ops.conv_transpose1d, F.conv_transpose1d),
    2: (ops.conv_transpose2d, F.conv_transpose2d),
    3: (ops.conv_transpose3d, F.conv_transpose3d),
}
dims = pytest.mark.parametrize("n", [1, 2, 3])
SPACE = (9, 10, 7)
KERNEL = (3, 2, 1)
PIN = {"cpu": "cpu:direct", "cuda": "legacy:implicit_gemm"}


def random(device: str, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.float64)


def operands(n: int, device: str, kernel: tuple[int, ...] = KERNEL) -> tuple[Tensor, Tensor]:
    """Input of 4 channels and weight with 6 filters, or its transposed roles."""
    return random(device, 2, 4, *SPACE[:n]), random(device, 6, 4, *kernel[:n])


def flipped(weight: Tensor) -> Tensor:
    return weight.flip(list(range(2, weight.dim())))


# --- PyTorch's arguments -----------------------------------------------------------------------


@dims
def test_arguments_are_pytorchs_in_name_and_order(n: int, device: str) -> None:
    mine, theirs = CONV[n]
    x, _ = operands(n, device)
    w, b = random(device, 6, 2, *KERNEL[:n]), random(device, 6)
    positional = (x, w, b, 2, 1, 2, 2)
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    expected = theirs(*positional)
    torch.testing.assert_close(mine(*positional), expected)
    torch.testing.assert_close(mine(**dict(zip(names, positional, strict=True))), expected)


@dims
def test_transposed_arguments_are_pytorchs_in_name_and_order(n: int, device: str) -> None:
    mine, theirs = CONV_TRANSPOSE[n]
    x, w, b = random(device, 2, 4, *SPACE[:n]), random(device, 4, 3, *KERNEL[:n]), random(device, 6)
    positional = (x, w, b, 2, 0, 1, 2, 2)
    names = (
        "input",
        "weight",
        "bias",
        "stride",
        "padding",
        "output_padding",
        "groups",
        "dilation",
    )
    expected = theirs(*positional)
    torch.testing.assert_close(mine(*positional), expected)
    torch.testing.assert_close(mine(**dict(zip(names, positional, strict=True))), expected)


@pytest.mark.parametrize("stride", [2, (2,), [2, 2], (2, 1)])
def test_sizes_may_be_integers_tuples_or_lists(stride: Any, device: str) -> None:
    x, w = operands(2, device)
    expected = F.conv2d(x, w, stride=stride, padding=stride, dilation=stride)
    result = ops.conv2d(x, w, stride=stride, padding=stride, dilation=stride)
    torch.testing.assert_close(result, expected)


def test_integers_may_be_numpys_or_tensors(device: str) -> None:
    x = random(device, 2, 4, 6, 6)
    with pytest.raises(RuntimeError, match="Expected a value of type 'List"):
        torch.ops.torch_cudnn_ext.conv2d.default(x, x[:, :, :3, :3], stride=np.int64(2))
    for two in (np.int64(2), torch.tensor(2), torch.tensor(2, dtype=torch.uint8)):
        for size in (two, (two, 2)):
            for name in ("max_pool2d", "avg_pool2d"):
                mine, theirs = getattr(ops, name), getattr(F, name)
                torch.testing.assert_close(mine(x, size), theirs(x, 2))
            for name in ("adaptive_max_pool2d", "adaptive_avg_pool2d"):
                mine, theirs = getattr(ops, name), getattr(F, name)
                torch.testing.assert_close(mine(x, size), theirs(x, 2))
        torch.testing.assert_close(ops.group_norm(x, two), F.group_norm(x, 2))
        normalised = ops.layer_norm(x[..., :two], [two])
        torch.testing.assert_close(normalised, F.layer_norm(x[..., :2], [2]))
    for sizes in (np.array([2, 3]), torch.tensor([2, 3])):
        pooled = ops.adaptive_avg_pool2d(x, cast(Any, sizes))
        torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(x, (2, 3)))
        torch.testing.assert_close(ops.sum(x, cast(Any, sizes)), x.sum((2, 3)))
    for wrong in (torch.tensor(2.0), torch.tensor([2, 2.5]), torch.tensor(2, device="meta"), 2.0):
        for size in (wrong, (wrong, 2)):
            with pytest.raises(TypeError, match="argument kernel_size: got .* wanted an integer"):
                ops.max_pool2d(x, size)


def test_numbers_may_be_numpys_or_tensors(device: str) -> None:
    x = random(device, 2, 4, 6, 6)
    for one in (1, np.int64(1), np.float32(1), np.bool_(True), torch.tensor(1.0), torch.tensor(1)):
        torch.testing.assert_close(ops.lp_pool2d(x, one, 2), F.lp_pool2d(x, 1.0, 2))
        torch.testing.assert_close(ops.elu(x, one), F.elu(x, 1.0))
        normalised = ops.batch_norm(x, None, None, training=True, eps=one)
        torch.testing.assert_close(normalised, F.batch_norm(x, None, None, training=True, eps=1.0))
        assert not ops.dropout(x, one).any()


# Of x [2, 4, 8, 8], w [4, 4, 2, 2] and theta [2, 2, 3]; a trace has tensors for their sizes.
TRACED: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "conv2d": lambda x, w, _: ops.conv2d(x, w, padding=x.shape[-1]),
    "same": lambda x, w, _: ops.conv2d(x, w, padding="same"),
    "half": lambda x, w, _: ops.convolution(x, w, padding="half"),
    "full": lambda x, w, _: ops.convolution(x, w, transposed=True, padding="full"),
    "input_size": lambda x, w, _: ops.convolution_backward_input(x, w, (2, 4, *_plus_one(x))),
    "weight_size": lambda x, w, _: ops.convolution_backward_weight(ops.conv2d(x, w), x, w.shape),
    "max_pool2d": lambda x, *_: ops.max_pool2d(x, x.size(2)),
    "avg_pool2d": lambda x, *_: ops.avg_pool2d(x, x.shape[2:]),
    "lp_pool2d": lambda x, *_: ops.lp_pool2d(x, 2.0, x.shape[2:]),
    "adaptive_avg_pool2d": lambda x, *_: ops.adaptive_avg_pool2d(x, (x.shape[-1], 3)),
    "adaptive_max_pool2d": lambda x, *_: ops.adaptive_max_pool2d(x, (3, None), True),
    "module": lambda x, *_: nn.AdaptiveAvgPool2d((3, None))(x),
    "layer_norm": lambda x, *_: ops.layer_norm(x, x.shape[2:]),
    "rms_norm": lambda x, *_: ops.rms_norm(x, x.shape[2:]),
    "group_norm": lambda x, *_: ops.group_norm(x, x.shape[1]),
    "amax": lambda x, *_: ops.amax(x, x.dim() - 1),
    "argmax": lambda x, *_: ops.argmax(x, x.shape[0]),
    "affine_grid": lambda x, _, theta: ops.affine_grid(theta, x.size()),
}


def _plus_one(x: Tensor) -> list[int]:
    return [size + 1 for size in x.shape[2:]]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", TRACED)
def test_traces(name: str, device: str) -> None:
    function = TRACED[name]

    def operands_() -> tuple[Tensor, ...]:
        return tuple(random(device, *s) for s in ((2, 4, 8, 8), (4, 4, 2, 2), (2, 2, 3)))

    traced = torch.jit.trace(function, operands_())
    others = operands_()
    torch.testing.assert_close(traced(*others), function(*others))


@dims
def test_inputs_without_a_batch_and_with_any_strides(n: int, device: str) -> None:
    x, w = operands(n, device)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    expected = CONV[n][1](x, w)
    torch.testing.assert_close(CONV[n][0](strided, w), expected)
    torch.testing.assert_close(CONV[n][0](strided[0], w), expected[0])
    transposed = random(device, 4, 6, *KERNEL[:n])
    expected = CONV_TRANSPOSE[n][1](x, transposed)
    torch.testing.assert_close(CONV_TRANSPOSE[n][0](strided[0], transposed), expected[0])


# --- borders -----------------------------------------------------------------------------------


@dims
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [(3, 2, 1), (4, 5, 2)])
@pytest.mark.parametrize("border", ["valid", "half", "full"])
def test_border_modes_are_theanos(
    n: int, dilation: int, kernel: tuple[int, ...], border: BorderMode, device: str
) -> None:
    x, w = operands(n, device, kernel)
    amounts = {
        "valid": [0] * n,
        "half": [((k - 1) * dilation + 1) // 2 for k in kernel[:n]],
        "full": [(k - 1) * dilation for k in kernel[:n]],
    }[border]
    expected = CONV[n][1](x, w, padding=amounts, dilation=dilation)
    torch.testing.assert_close(CONV[n][0](x, w, padding=border, dilation=dilation), expected)
    result = ops.convolution(x, w, padding=border, dilation=dilation)
    torch.testing.assert_close(result, expected)


@dims
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("kernel", [(3, 5, 1), (4, 3, 2), (2, 2, 2)])
def test_same_is_pytorchs_also_where_it_is_lopsided(
    n: int, dilation: int, kernel: tuple[int, ...], device: str
) -> None:
    x, w = operands(n, device, kernel)
    expected = CONV[n][1](x, w, padding="same", dilation=dilation)
    result = CONV[n][0](x, w, padding="same", dilation=dilation)
    assert result.shape[2:] == x.shape[2:]
    torch.testing.assert_close(result, expected)
    unbatched = CONV[n][0](x[0], w, padding="same", dilation=dilation)
    torch.testing.assert_close(unbatched, expected[0])


def test_half_keeps_the_size_for_odd_filters_and_full_undoes_valid(device: str) -> None:
    x, w = operands(2, device, (3, 5))
    assert ops.conv2d(x, w, padding="half").shape[2:] == x.shape[2:]
    back = ops.conv2d(ops.conv2d(x, w, padding="valid"), random(device, 4, 6, 3, 5), padding="full")
    assert back.shape == x.shape


@pytest.mark.parametrize("border", ["valid", "half", "full"])
def test_border_modes_of_transposed_convolutions(border: BorderMode, device: str) -> None:
    x, w = random(device, 2, 4, 9, 8), random(device, 4, 6, 3, 2)
    amounts = {"valid": (0, 0), "half": (1, 1), "full": (2, 1)}[border]
    expected = F.conv_transpose2d(x, w, padding=amounts)
    torch.testing.assert_close(ops.conv_transpose2d(x, w, padding=border), expected)
    result = ops.convolution(x, w, padding=border, transposed=True)
    torch.testing.assert_close(result, expected)


# --- convolution proper ------------------------------------------------------------------------


@dims
def test_conv_mode_conv_flips_the_filters(n: int, device: str) -> None:
    x, w = operands(n, device)
    b = random(device, 6)
    expected = CONV[n][1](x, flipped(w), b, padding=1)
    torch.testing.assert_close(CONV[n][0](x, w, b, padding=1, conv_mode="conv"), expected)
    result = CONV[n][0](x[0], w, b, padding=1, conv_mode="conv")
    torch.testing.assert_close(result, expected[0])
    w = random(device, 4, 6, *KERNEL[:n])
    expected = CONV_TRANSPOSE[n][1](x, flipped(w), b, 2)
    torch.testing.assert_close(CONV_TRANSPOSE[n][0](x, w, b, 2, conv_mode="conv"), expected)
    result = CONV_TRANSPOSE[n][0](x[0], w, b, 2, conv_mode="conv")
    torch.testing.assert_close(result, expected[0])


def test_convolution_proper_is_that_of_polynomials(device: str) -> None:
    one, two = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])
    product = ops.conv1d(
        one.to(device).view(1, 1, -1),
        two.to(device).view(1, 1, -1),
        padding="full",
        conv_mode="conv",
    )
    assert product.flatten().tolist() == pytest.approx([4, 13, 22, 15])


@pytest.mark.parametrize("mode", ["cross", "conv"])
def test_gradients_pass_through(mode: ConvMode, device: str) -> None:
    x, w = (tensor.requires_grad_() for tensor in operands(2, device))
    b = random(device, 6).requires_grad_()
    mine = torch.autograd.grad(
        ops.conv2d(x, w, b, padding="same", conv_mode=mode).square().sum(), (x, w, b)
    )
    seen = flipped(w) if mode == "conv" else w
    theirs = torch.autograd.grad(F.conv2d(x, seen, b, padding="same").square().sum(), (x, w, b))
    for got, wanted in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, wanted)


# --- primitives --------------------------------------------------------------------------------


@dims
@pytest.mark.parametrize("mode", ["cross", "conv"])
def test_primitives_are_the_gradients(n: int, mode: ConvMode, device: str) -> None:
    x, w = (tensor.requires_grad_() for tensor in operands(n, device))
    seen = flipped(w) if mode == "conv" else w
    y = CONV[n][1](x, seen, stride=2, padding=1)
    dy = torch.randn_like(y)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    x, w = x.detach(), w.detach()
    common: dict[str, Any] = {"stride": 2, "padding": 1, "conv_mode": mode}
    torch.testing.assert_close(ops.convolution(x, w, **common), y.detach())
    result = ops.convolution_backward_input(dy, w, x.shape, **common)
    torch.testing.assert_close(result, dx)
    result = ops.convolution_backward_weight(dy, x, w.shape, **common)
    torch.testing.assert_close(result, dw)


def primitive_calls(device: str) -> list[tuple[str, Any, Tensor]]:
    """Each primitive as a function of its keywords, and its plain result."""
    x, w = operands(2, device)
    dy = torch.randn_like(F.conv2d(x, w))

    def forward(**keywords: Any) -> Tensor:
        return ops.convolution(x, w, **keywords)

    def backward_input(**keywords: Any) -> Tensor:
        return ops.convolution_backward_input(dy, w, x.shape, **keywords)

    def backward_weight(**keywords: Any) -> Tensor:
        return ops.convolution_backward_weight(dy, x, list(w.shape), **keywords)

    calls = [("fwd", forward), ("bwd_data", backward_input), ("bwd_filter", backward_weight)]
    return [(name, call, call()) for name, call in calls]


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0), (1.0, 0.0), (0.0, 1.0)])
def test_primitives_add_to_z_and_to_out(alpha: float, beta: float, device: str) -> None:
    for _, call, plain in primitive_calls(device):
        z = torch.randn_like(plain)
        expected = alpha * plain + beta * z
        before = z.clone()
        torch.testing.assert_close(call(z=z, alpha=alpha, beta=beta), expected)
        assert torch.equal(z, before)
        out = z.clone()
        assert call(out=out, alpha=alpha, beta=beta) is out
        torch.testing.assert_close(out, expected)


def test_out_with_no_beta_ignores_what_it_held(device: str) -> None:
    for _, call, plain in primitive_calls(device):
        out = torch.full_like(plain, float("nan"))
        call(out=out)
        torch.testing.assert_close(out, plain)


def test_parameter_gradients_accumulate_with_a_scale(device: str) -> None:
    x, w = operands(2, device)
    dy = torch.randn_like(F.conv2d(x, w))
    total = torch.zeros_like(w)
    for scale in (1.0, 0.25):
        ops.convolution_backward_weight(dy, x, w.shape, alpha=scale, beta=1.0, out=total)
    torch.testing.assert_close(total, 1.25 * ops.convolution_backward_weight(dy, x, w.shape))


def test_accumulation_is_differentiable(device: str) -> None:
    x, w = (tensor.requires_grad_() for tensor in operands(2, device))
    z = torch.randn_like(F.conv2d(x, w)).requires_grad_()
    result = ops.convolution(x, w, z=z, alpha=0.5, beta=2.0)
    weighting = torch.randn_like(result)
    mine = torch.autograd.grad(result, (x, w, z), weighting)
    theirs = torch.autograd.grad(0.5 * F.conv2d(x, w) + 2.0 * z, (x, w, z), weighting)
    for got, wanted in zip(mine, theirs, strict=True):
        torch.testing.assert_close(got, wanted)


def test_bias_is_not_scaled(device: str) -> None:
    x, w = operands(2, device)
    b = random(device, 6)
    expected = 0.5 * F.conv2d(x, w) + b.view(1, -1, 1, 1)
    torch.testing.assert_close(ops.convolution(x, w, b, alpha=0.5), expected)


# --- policies ----------------------------------------------------------------------------------


def test_a_policy_may_be_given_in_any_form(device: str) -> None:
    x, w = operands(2, device)
    pin = PIN[device]
    for policy in (f"fwd={pin}", Policy(fwd=pin), {"fwd": pin}):
        ops.conv2d(x, w, policy=policy)
        choice = newest("conv_fwd")
        assert choice.why == "pinned"
        assert choice.algorithm.startswith(pin)
    nothings: tuple[PolicyLike, ...] = (None, "", -1, {}, Policy())
    for nothing in nothings:
        ops.conv2d(x, w, policy=nothing)
        assert newest("conv_fwd").why == "heuristic"


def test_every_function_honours_its_policy(device: str) -> None:
    x, w = operands(2, device)
    pins: dict[str, str] = {
        "cpu": dict.fromkeys(("fwd", "bwd_data", "bwd_filter"), "cpu:direct"),
        "cuda": {
            "fwd": "legacy:implicit_gemm",
            "bwd_data": str(Policy(bwd_data=1).get("bwd_data")),
            "bwd_filter": str(Policy(bwd_filter=1).get("bwd_filter")),
        },
    }[device]
    policy = Policy().replace(**pins)
    for name, call, _ in primitive_calls(device):
        for keywords in ({}, {"out": torch.zeros_like(call()), "beta": 1.0}):
            call(policy=policy, **keywords)
            assert newest(f"conv_{name}").algorithm.startswith(pins[name])
    ops.conv2d(x, w, conv_mode="conv", policy=policy)
    choice = newest("conv_fwd")
    assert "mode=conv" in choice.problem and choice.why == "pinned"
    ops.conv_transpose2d(x, random(device, 4, 6, 3, 2), policy=policy)
    assert newest("conv_bwd_data").why == "pinned"


def test_last_decision(device: str) -> None:
    x, w = operands(2, device)
    ops.conv2d(x, w, policy={"fwd": PIN[device]})
    choice = newest()
    assert choice == ops.last_decision("conv_fwd") == ops.last_decision("conv", "fwd")
    assert choice == ops.last_decision("conv_fwd", "fwd")
    filter_choice = ops.last_decision(pass_name="bwd_filter")
    assert filter_choice is None or filter_choice.op == "conv_bwd_filter"
    assert choice.op == "conv_fwd"
    assert choice.problem.startswith("conv_fwd x=f64[2,4,9,10]:nchw w=f64[6,4,3,2]:nchw pad=0")
    assert choice.device.startswith(device)
    assert Policy.parse(choice.policy).get("fwd") is not None
    assert choice.decision_ms > 0
    assert choice.workspace_bytes is None or choice.workspace_bytes >= 0
    for bad in (
        ("conv_sideways",),
        ("conv",),
        ("conv", "sideways"),
        ("conv_fwd", "bwd_data"),
        (None, "fwd"),
    ):
        with pytest.raises(ValueError, match="info --operators"):
            ops.last_decision(*bad)


RUN_NOTHING = {"last_decision", "rnn_parameter_sizes"}


def test_every_function_takes_a_policy() -> None:
    functions = {name: getattr(ops, name) for name in ops.__all__}
    without = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "policy" not in inspect.signature(function).parameters
    }
    assert without == RUN_NOTHING


# --- every function ----------------------------------------------------------------------------

IMAGES, WORDS = torch.randn(2, 4, 6, 5), torch.randn(4, 2, 5)
# What each function needs beside its first tensor, by its name without a number of dimensions.
MORE: dict[str, tuple[Any, ...]] = {
    "adaptive_avg_pool": (2,),
    "adaptive_max_pool": (2,),
    **dict.fromkeys(("avg_pool", "max_pool", "sum_pool"), (2,)),
    "lp_pool": (2.0, 2),
    "batch_norm": (torch.zeros(4), torch.ones(4)),
    "clipped_relu": (3.0,),
    **dict.fromkeys(("divisive_norm", "local_response_norm"), (3,)),
    "group_norm": (2,),
    **dict.fromkeys(("layer_norm", "rms_norm"), ((5,),)),
    **dict.fromkeys(("softmax", "log_softmax"), (1,)),
    "reduce": ("add", 1),
    **dict.fromkeys(("argmin", "argmax", "sum", "prod", "mean", "amin", "amax"), (1,)),
    **dict.fromkeys(("norm1", "norm2", "absmax", "prod_nonzero"), (1,)),
}
WHOLE: dict[str, tuple[Any, ...]] = {
    "affine_grid": (torch.randn(2, 2, 3), (2, 3, 4, 5)),
    "grid_sample": (IMAGES, torch.rand(2, 3, 3, 2)),
    "convolution": (IMAGES, torch.randn(6, 4, 2, 2)),
    "convolution_backward_input": (torch.randn(2, 6, 5, 4), torch.randn(6, 4, 2, 2), IMAGES.shape),
    "convolution_backward_weight": (torch.randn(2, 6, 5, 4), IMAGES, (6, 4, 2, 2)),
    "cross_entropy": (torch.randn(3, 4), torch.tensor([0, 1, 2])),
    "ctc_loss": (WORDS.log_softmax(2), torch.ones(2, 1, dtype=torch.int64), (4, 4), (1, 1)),
    "gemm": (torch.randn(3, 4), torch.randn(4, 5)),
    "matmul": (torch.randn(3, 4), torch.randn(4, 5)),
    "linear": (torch.randn(3, 4), torch.randn(5, 4)),
}
CELLS = {"rnn_tanh": 3, "rnn_relu": 3, "gru": 9, "lstm": 12}  # rows of a weight


def operands_of(name: str) -> tuple[Any, ...]:
    """Operands on the CPU that a function takes."""
    if name in WHOLE:
        return WHOLE[name]
    if name in CELLS:
        rows = CELLS[name]
        state = torch.zeros(1, 2, 3)
        params = [torch.randn(rows, 5), torch.randn(rows, 3), torch.zeros(rows), torch.zeros(rows)]
        return WORDS, (state, state) if name == "lstm" else state, params
    space = {"1d": (6,), "2d": (6, 5), "3d": (6, 5, 4)}.get(name[-2:], (6, 5))
    short = name[:-2] if name[-2:] in ("1d", "2d", "3d") else name
    if short in ("conv", "conv_transpose"):
        return torch.randn(2, 4, *space), torch.randn(4, 4, *(2 for _ in space))
    return torch.randn(2, 4, *space), *MORE.get(short, ())


def _is_function(name: str) -> bool:
    return inspect.isfunction(getattr(ops, name)) and name not in RUN_NOTHING


@pytest.mark.parametrize("name", [name for name in ops.__all__ if _is_function(name)])
def test_every_function_hands_its_policy_on(name: str) -> None:
    for policy in (None, "max_workspace=123456789"):
        getattr(ops, name)(*operands_of(name), policy=policy)
        assert ("max_workspace=123456789" in newest().policy.split(";")) == (policy is not None)


def test_every_function_tells_of_reduced_ranges() -> None:
    silent = set()
    for name in filter(_is_function, ops.__all__):
        function = getattr(ops, name)
        function(*operands_of(name))
        reasons = [row["reason"] for row in _C.candidates(newest().problem, "cpu")]
        if (
            any("allow_reduced_range" in r for r in reasons)
            and "allow_reduced_range" not in function.__doc__
        ):
            silent.add(name)
    assert silent == {"divisive_norm"}  # whose docstring refers to local_response_norm's


def test_every_function_refuses_what_is_no_tensor() -> None:
    for name in ops.__all__:
        if not _is_function(name):
            continue
        function = getattr(ops, name)
        parameters = inspect.signature(function).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        with pytest.raises(TypeError, match=r"argument \w+: got .* \(list\), wanted a Tensor"):
            function(*[[1.0]] * len(needed))


def test_what_the_operator_refuses_is_traced_and_counted() -> None:
    """The operator alone raises an error for these calls. The function takes them."""
    x = torch.randn(3, 5)
    loss = nn.CrossEntropyLoss()
    traced = torch.jit.trace(loss, (x, x.softmax(1)))
    torch.testing.assert_close(traced(x, x.softmax(1)), loss(x, x.softmax(1)))
    volume = torch.randn(2, 2, 3, 4, 4)
    with FlopCounterMode(display=False):
        pooled = ops.adaptive_avg_pool2d(volume, 1)
        ops.linear(x, torch.ones(4, 5), torch.ones(1))
    torch.testing.assert_close(pooled, ops.adaptive_avg_pool2d(volume, 1))


def test_a_stride_of_zero_is_an_error_with_a_negative_output_padding() -> None:
    with pytest.raises(ValueError, match="stride"):
        ops.conv_transpose2d(
            torch.randn(1, 1, 3, 3),
            torch.randn(1, 1, 2, 2),
            stride=(0, 1),
            output_padding=(-1, 2),
            dilation=4,
        )
