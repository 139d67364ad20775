"""Derivatives of every operator, to every order and in every mode, and the policies they obey."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import needs_cuda, newest
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from torch_cudnn_ext import _C, knobs, ops
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.tuning.tasks import fp32_switches

OPS = torch.ops.torch_cudnn_ext


# Whose gradients are made of PyTorch's operations: ours and PyTorch's.
FORMULAS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (ops.silu, F.silu),
    "elu": (ops.elu, F.elu),
    "prod": (lambda t: ops.prod(t).reshape(1), lambda t: torch.prod(t).reshape(1)),
    "layer_norm": (lambda t: ops.layer_norm(t, (5,)), lambda t: F.layer_norm(t, (5,))),
    "lrn": (
        lambda t: ops.local_response_norm(t[None, :, None], 3),
        lambda t: F.local_response_norm(t[None, :, None], 3),
    ),
    "batch_norm": (
        lambda t: ops.batch_norm(t, None, None, training=True),
        lambda t: F.batch_norm(t, None, None, training=True),
    ),
}


def _random(sizes: tuple[int, ...], device: str, requires_grad: bool = True) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.float64, requires_grad=requires_grad)


# name, operator, sizes of its differentiable tensors, a function of (operator, tensors).
Sample = tuple[str, str, tuple[tuple[int, ...], ...], Callable[..., Tensor]]


def _conv(options: dict[str, Any]) -> Callable[..., Tensor]:
    def call(op: Any, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        lists = {
            key: [value] * (w.dim() - 2) if isinstance(value, int) and key != "groups" else value
            for key, value in options.items()
        }
        output: Tensor = op(x, w, bias, **lists)
        return output

    return call


def _convolution(
    dims: int, options: dict[str, Any], transposed: bool = False
) -> Callable[..., Tensor]:
    def call(op: Any, x: Tensor, w: Tensor, z: Tensor | None = None) -> Tensor:
        keywords = {k: v for k, v in options.items() if k in ("alpha", "beta", "flip_kernel")}
        output: Tensor = op(
            x,
            w,
            None,
            options.get("stride", [1] * dims),
            options.get("padding", [0] * dims),
            options.get("dilation", [1] * dims),
            transposed,
            options.get("output_padding", [0] * dims),
            options.get("groups", 1),
            z=z,
            **keywords,
        )
        return output

    return call


def _fused(activation: str, options: dict[str, Any]) -> Callable[..., Tensor]:
    def call(op: Any, x: Tensor, w: Tensor, bias: Tensor, z: Tensor | None = None) -> Tensor:
        dims = w.dim() - 2
        lists = [options.get(name, [n] * dims) for name, n in _GEOMETRY]
        output: Tensor = op(x, w, bias, *lists, options.get("groups", 1), activation, z=z)
        return output

    return call


def _backward(dims: int, sizes: list[int], options: dict[str, Any]) -> Callable[..., Tensor]:
    def call(op: Any, a: Tensor, b: Tensor, z: Tensor | None = None) -> Tensor:
        keywords = {k: v for k, v in options.items() if k in ("alpha", "beta", "flip_kernel")}
        output: Tensor = op(
            a,
            b,
            sizes,
            options.get("stride", [1] * dims),
            options.get("padding", [0] * dims),
            options.get("dilation", [1] * dims),
            options.get("groups", 1),
            z=z,
            **keywords,
        )
        return output

    return call


_GEOMETRY = (("stride", 1), ("padding", 0), ("dilation", 1))
_ADD = {"alpha": 0.5, "beta": -2.0}
_MIXED = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 2}

SAMPLES: list[Sample] = [
    ("1d", "conv1d", ((2, 2, 5), (3, 2, 3), (3,)), _conv({"padding": 1})),
    ("1d_groups", "conv1d", ((1, 4, 6), (4, 2, 2)), _conv({"groups": 2, "dilation": 2})),
    ("1d_unbatched", "conv1d", ((2, 5), (3, 2, 3), (3,)), _conv({"stride": 2})),
    ("2d", "conv2d", ((1, 2, 4, 4), (2, 2, 3, 3), (2,)), _conv({"padding": 1})),
    ("2d_mixed", "conv2d", ((1, 4, 4, 5), (4, 2, 2, 2), (4,)), _conv(_MIXED)),
    ("2d_depthwise", "conv2d", ((1, 2, 4, 4), (4, 1, 3, 3)), _conv({"groups": 2, "padding": 1})),
    ("2d_unread_border", "conv2d", ((1, 2, 4, 4), (2, 2, 1, 1)), _conv({"stride": 2})),
    ("2d_unbatched", "conv2d", ((2, 4, 4), (2, 2, 3, 3), (2,)), _conv({})),
    ("3d", "conv3d", ((1, 2, 2, 3, 3), (2, 2, 2, 2, 2), (2,)), _conv({"padding": (0, 1, 0)})),
    ("1d_transpose", "conv_transpose1d", ((2, 2, 3), (2, 3, 3), (3,)), _conv({"stride": 2})),
    (
        "2d_transpose",
        "conv_transpose2d",
        ((1, 4, 3, 3), (4, 2, 2, 2), (4,)),
        _conv({"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ),
    (
        "2d_transpose_dilated",
        "conv_transpose2d",
        ((1, 2, 3, 3), (2, 2, 2, 2)),
        _conv({"dilation": 2}),
    ),
    ("3d_transpose", "conv_transpose3d", ((1, 2, 2, 2, 2), (2, 2, 2, 2, 2), (2,)), _conv({})),
    ("convolution", "convolution", ((1, 4, 4, 5), (4, 2, 2, 2)), _convolution(2, _MIXED)),
    (
        "convolution_z",
        "convolution",
        ((1, 2, 3, 3), (2, 2, 2, 2), (1, 2, 2, 2)),
        _convolution(2, _ADD),
    ),
    (
        "convolution_flipped",
        "convolution",
        ((1, 2, 4, 4), (2, 2, 2, 3)),
        _convolution(2, {"flip_kernel": True, "padding": [1, 0]}),
    ),
    ("convolution_1d", "convolution", ((1, 2, 5), (2, 2, 3)), _convolution(1, {"padding": [1]})),
    (
        "convolution_transposed",
        "convolution",
        ((1, 2, 3, 3), (2, 2, 2, 2), (1, 2, 7, 7)),
        _convolution(2, {**_ADD, "stride": [2, 2], "output_padding": [1, 1]}, transposed=True),
    ),
    (
        "convolution_transposed_flipped",
        "convolution",
        ((1, 2, 3, 3), (2, 2, 2, 2)),
        _convolution(2, {"flip_kernel": True}, transposed=True),
    ),
    ("relu", "convolution_fused", ((1, 4, 4, 5), (4, 2, 2, 2), (4,)), _fused("relu", _MIXED)),
    ("relu_z", "convolution_fused", ((2, 2, 5), (3, 2, 3), (3,), (2, 3, 3)), _fused("relu", {})),
    *(
        (
            f"{activation}_z",
            "convolution_fused",
            ((2, 2, 5), (3, 2, 3), (3,), (2, 3, 3)),
            _fused(activation, {}),
        )
        for activation in ("none", "relu6", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")
    ),
    (
        "backward_input",
        "convolution_backward_input",
        ((1, 4, 3, 3), (4, 2, 2, 2)),
        _backward(2, [1, 4, 4, 5], _MIXED),
    ),
    (
        "backward_input_z",
        "convolution_backward_input",
        ((1, 2, 2, 2), (2, 2, 2, 2), (1, 2, 3, 3)),
        _backward(2, [1, 2, 3, 3], {**_ADD, "flip_kernel": True}),
    ),
    (
        "backward_input_1d",
        "convolution_backward_input",
        ((2, 3, 5), (3, 2, 3)),
        _backward(1, [2, 2, 5], {"padding": [1]}),
    ),
    (
        "backward_weight",
        "convolution_backward_weight",
        ((1, 4, 3, 3), (1, 4, 4, 5)),
        _backward(2, [4, 2, 2, 2], _MIXED),
    ),
    (
        "backward_weight_z",
        "convolution_backward_weight",
        ((1, 2, 2, 2), (1, 2, 3, 3), (2, 2, 2, 2)),
        _backward(2, [2, 2, 2, 2], {**_ADD, "flip_kernel": True}),
    ),
    (
        "backward_weight_3d",
        "convolution_backward_weight",
        ((1, 2, 1, 2, 2), (1, 2, 2, 3, 3)),
        _backward(3, [2, 2, 2, 2, 2], {}),
    ),
]

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample[0])


def _prepare(sample: Sample, device: str) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    _, name, sizes, call = sample
    return partial(call, getattr(OPS, name).default), tuple(_random(s, device) for s in sizes)


@every_sample
def test_first_derivatives(sample: Sample, device: str) -> None:
    function, inputs = _prepare(sample, device)
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)


@every_sample
def test_second_derivatives(sample: Sample, device: str) -> None:
    function, inputs = _prepare(sample, device)
    assert gradgradcheck(function, inputs)


@every_sample
def test_forward_over_backward(sample: Sample, device: str) -> None:
    function, inputs = _prepare(sample, device)
    inputs = tuple(tensor.detach() for tensor in inputs)
    tangents = tuple(torch.randn_like(tensor) for tensor in inputs)
    arguments = tuple(range(len(inputs)))

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        return grad(lambda *v: function(*v).sin().sum(), argnums=arguments)(*values)

    _, forward = jvp(gradient, inputs, tangents)
    # The Hessian is symmetrical: its product with the tangents is the same by two reverse sweeps.
    _, pull = vjp(gradient, *inputs)
    torch.testing.assert_close(forward, pull(tangents))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_subsets_of_requires_grad(wanted: tuple[int, ...], device: str) -> None:
    batch = 2 + sum(1 << i for i in wanted)  # no other test runs this problem
    tensors = [
        _random(sizes, device, requires_grad=i in wanted)
        for i, sizes in enumerate(((batch, 4, 5, 5), (6, 4, 3, 3), (6,)))
    ]
    leaves = [tensors[i] for i in wanted]
    y = OPS.conv2d.default(*tensors, padding=[1, 1])
    expected = F.conv2d(tensors[0], tensors[1], tensors[2], padding=1)
    torch.testing.assert_close(
        torch.autograd.grad(y.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
    )
    for op, should_run in {"conv_bwd_data": 0 in wanted, "conv_bwd_filter": 1 in wanted}.items():
        choice = _C.last_decision(op)
        ran = choice is not None and f"x=f64[{batch},4,5,5]" in choice["problem"]
        assert ran == should_run, choice


def test_no_grad_builds_no_graph(device: str) -> None:
    x, w = _random((1, 2, 4, 4), device), _random((2, 2, 3, 3), device)
    with torch.no_grad():
        assert not OPS.conv2d.default(x, w).requires_grad
    with torch.inference_mode():
        assert OPS.conv2d.default(x, w).is_inference()
    y = OPS.conv2d.default(x, w)
    assert y.requires_grad and not y.is_leaf
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_inplace_change_of_a_saved_tensor_is_noticed(device: str) -> None:
    x, w = _random((1, 2, 4, 4), device), _random((2, 2, 3, 3), device)
    y = OPS.conv2d.default(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Results that PyTorch's own gradients do not read, and the algorithms of ours that do.
CHANGEABLE: dict[str, tuple[Callable[..., Tensor], tuple[str | None, ...]]] = {
    "max_pool2d": (partial(ops.max_pool2d, kernel_size=2), ("cpu:taps", "legacy:max")),
    "adaptive_max_pool2d": (partial(ops.adaptive_max_pool2d, output_size=2), ()),
    "relu6": (ops.relu6, ()),
    "elu": (ops.elu, ("cpu:exponential", "legacy:default")),
    "silu": (ops.silu, ("cpu:exponential", "legacy:default")),
    "local_response_norm": (partial(ops.local_response_norm, size=3), ("legacy:cross_channel",)),
}


@pytest.mark.parametrize("name", CHANGEABLE)
@pytest.mark.parametrize("order", [1, 2])
def test_results_may_be_changed_in_place(name: str, order: int, device: str) -> None:
    knobs.allow_reduced_range = True  # cuDNN's algorithms of these have one
    function, algorithms = CHANGEABLE[name]
    x = _random((2, 3, 4, 4), device)
    legacy = device == "cuda"
    pins = [a for a in algorithms if a.startswith("legacy:") == legacy]
    for policy in (None, "heuristic", *pins):
        gradients = []
        for change in (lambda y: y.clone(), lambda y: y):
            y = change(function(x, policy=policy)).mul_(2).relu_()
            (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=order == 2)
            if order == 2:
                (dx,) = torch.autograd.grad(dx.square().sum(), x)
            gradients.append(dx)
        torch.testing.assert_close(*gradients)
    y = function(x)
    y.mul_(2).sum().backward(retain_graph=True)
    x.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = function(x).mul_(2).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_result_made_in_place_may_be_changed_too(device: str) -> None:
    x = _random((2, 3, 4, 4), device)
    (dx,) = torch.autograd.grad(ops.silu(x + 0, inplace=True).mul_(2).sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(F.silu(x).mul(2).sum(), x)[0])


def test_gradients_have_tangents(device: str) -> None:
    x, w = _random((2, 2, 5, 5), device), _random((3, 2, 3, 3), device)
    forward_ad: Any = torch.autograd.forward_ad
    tangents = []
    for function in (F.conv2d, ops.conv2d):
        with forward_ad.dual_level():
            y = function(forward_ad.make_dual(x, x.detach().cos()), w).pow(3).sum()
            found = torch.autograd.grad(y, (x, w))
            tangents.append([forward_ad.unpack_dual(t).tangent for t in found])
    torch.testing.assert_close(*tangents)
    y = ops.softmax(x, 1)
    with forward_ad.dual_level():  # an error, not a tangent that is lost
        dual = forward_ad.make_dual(torch.ones_like(x), x.detach())
        with pytest.raises(NotImplementedError, match="forward-mode AD is not supported"):
            torch.autograd.grad(y, x, dual)


def test_gradients_accumulate(device: str) -> None:
    x = _random((2, 4, 5, 5), device)
    w, bias = _random((6, 4, 3, 3), device), _random((6,), device)
    for _ in range(3):
        OPS.conv2d.default(x, w, bias, padding=[1, 1]).square().sum().backward()
    expected = torch.autograd.grad(F.conv2d(x, w, bias, padding=1).square().sum(), (x, w, bias))
    for leaf, once in zip((x, w, bias), expected, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, 3 * once)


def _layer(x: Tensor, w: Tensor) -> Tensor:
    return OPS.conv2d.default(x, w, padding=[1, 1]).relu()


def test_func_transforms(device: str) -> None:
    x = _random((3, 2, 5, 5), device, requires_grad=False)
    w = _random((2, 2, 3, 3), device, requires_grad=False)

    def ours(w: Tensor, x: Tensor) -> Tensor:
        return OPS.conv2d.default(x, w, padding=[1, 1]).sin().sum()

    def pytorchs(w: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).sin().sum()

    torch.testing.assert_close(grad(ours)(w, x), grad(pytorchs)(w, x))
    per_sample = vmap(grad(ours), in_dims=(None, 0))
    torch.testing.assert_close(per_sample(w, x), vmap(grad(pytorchs), in_dims=(None, 0))(w, x))
    second = grad(lambda w: grad(ours)(w, x).square().sum())
    torch.testing.assert_close(second(w), grad(lambda w: grad(pytorchs)(w, x).square().sum())(w))
    tangent = torch.randn_like(w)
    torch.testing.assert_close(
        jvp(lambda w: ours(w, x), (w,), (tangent,)),
        jvp(lambda w: pytorchs(w, x), (w,), (tangent,)),
    )


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, None), (2, 0)], ids=str)
def test_vmap(in_dims: tuple[int | None, int | None], device: str) -> None:
    def stacked(sizes: tuple[int, ...], dim: int | None) -> Tensor:
        if dim is None:
            return _random(sizes, device, requires_grad=False)
        return _random((*sizes[:dim], 3, *sizes[dim:]), device, requires_grad=False)

    x, w = stacked((2, 4, 5, 5), in_dims[0]), stacked((6, 2, 3, 3), in_dims[1])
    options = {"padding": [1, 1], "groups": 2}
    got = vmap(partial(OPS.conv2d.default, **options), in_dims=in_dims)(x, w)
    torch.testing.assert_close(got, vmap(partial(F.conv2d, **options), in_dims=in_dims)(x, w))


# Policies.


def _three_pins(device: str) -> dict[str, str]:
    """For the layer of the tests below: an algorithm for each pass that is not the default."""
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    pins = {}
    for pass_name in ("fwd", "bwd_data", "bwd_filter"):
        op = f"conv_{pass_name}"
        problem = _C.convolution_problem(op, x, w, [1, 1], [1, 1], [1, 1], 1)
        default = _C.decide(problem, device)["algorithm"]
        pins[pass_name] = next(
            candidate["algorithm"]
            for candidate in reversed(_C.candidates(problem, device))
            if candidate["status"] == "ok" and candidate["algorithm"] != default
        )
    return pins


def _assert_ran(pins: dict[str, str]) -> None:
    for pass_name, algorithm in pins.items():
        assert newest(f"conv_{pass_name}").algorithm == algorithm


@pytest.mark.parametrize("level", ["argument", "flags"])
def test_backward_honours_the_forwards_policy(level: str, device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    pins = _three_pins(device)
    policy = ";".join(f"{pass_name}={algorithm}" for pass_name, algorithm in pins.items())
    if level == "argument":
        y = OPS.conv2d.default(x, w, padding=[1, 1], policy=policy)
    else:
        with pushed(policy):
            y = OPS.conv2d.default(x, w, padding=[1, 1])
    # Neither what holds now nor the thread that backward runs on matters.
    with pushed("heuristic"):
        y.square().sum().backward()
    _assert_ran(pins)
    expected = torch.autograd.grad(F.conv2d(x, w, padding=1).square().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_what_is_set_after_the_forward_is_not_backwards(device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    y = OPS.conv2d.default(x, w, policy="backends=aten")
    _C.set_knobs("bwd_data=legacy:algo_0;bwd_filter=cpu:direct", False)
    with pushed("max_workspace=1024GiB;backends=legacy"):
        y.sum().backward()
    _assert_ran({"bwd_data": "aten:default", "bwd_filter": "aten:default"})
    # Only constraints add up.
    _C.set_knobs("", False)
    y = OPS.conv2d.default(x, w, policy="backends=aten")
    _C.set_knobs("max_workspace=512GiB", False)
    y.sum().backward()
    assert "max_workspace=512GiB" in newest("conv_bwd_data").policy


@needs_cuda
def test_backward_honours_the_policy_on_autograds_threads() -> None:
    x, w = _random((2, 8, 8, 8), "cuda"), _random((8, 8, 3, 3), "cuda")
    pins = _three_pins("cuda")
    with pushed(";".join(f"{name}={algorithm}" for name, algorithm in pins.items())):
        y = OPS.conv2d.default(x, w, padding=[1, 1])
    # Kept on the device thread: backward of a CUDA node never runs on the caller's.
    torch.autograd.backward(y, torch.ones_like(y))
    _assert_ran(pins)


def test_double_backward_honours_the_forwards_policy(device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    pins = _three_pins(device)
    policy = ";".join(f"{pass_name}={algorithm}" for pass_name, algorithm in pins.items())
    y = OPS.conv2d.default(x, w, padding=[1, 1], policy=policy)
    first = torch.autograd.grad(y.sin().sum(), (x, w), create_graph=True)
    # Another layer, so that last_decision() forgets the first sweep.
    OPS.conv2d.default(x[:1], w, padding=[1, 1], policy="heuristic").sum().backward()
    with pytest.raises(AssertionError):
        _assert_ran(pins)
    (first[0].square().sum() + first[1].square().sum()).backward()
    _assert_ran(pins)


@pytest.mark.parametrize("name", FORMULAS)
def test_pullbacks_outlive_their_transforms(name: str, device: str) -> None:
    x, v = _random((4, 5), device, False), _random((4, 5), device, False)
    found, wanted = (
        [
            vjp(lambda t, f=f: f(t).square(), x)[1](f(x) + 1)[0],
            vjp(grad(lambda t, f=f: f(t).square().sum()), x)[1](v)[0],
            jacrev(jacrev(lambda t, f=f: f(t).square().sum()))(x),
        ]
        for f in FORMULAS[name]
    )
    torch.testing.assert_close(found, wanted)


class Watching(TorchDispatchMode):
    """A mode of a user's own, which sees all that runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it as it is."""
        return func(*args, **(kwargs or {}))


# What must obey a policy of the forward: itself, and what its gradient is.
def _pooled_and_dropped(x: Tensor) -> Tensor:
    return ops.dropout(ops.max_pool2d(ops.conv2d(x, x[:, :, :1, :1]), 2), 0.5)


@pytest.mark.parametrize("kind", ["watched", "watched_from_within", "saved", "recomputed"])
def test_backward_honours_the_policy_of_a_forward_in_a_mode(kind: str, device: str) -> None:
    x = _random((2, 2, 8, 8), device).float().detach().requires_grad_()
    what = CheckpointPolicy.MUST_SAVE if kind == "saved" else CheckpointPolicy.PREFER_RECOMPUTE
    contexts = partial(create_selective_checkpoint_contexts, lambda *_, **__: what)
    on_cpu = device == "cpu"
    pins = {
        "pool": "cpu:taps" if on_cpu else "legacy:max",
        "dropout": "cpu:threshold" if on_cpu else "legacy:default",
        "bwd_data": "cpu:direct" if on_cpu else "legacy:algo_1",
    }
    policy = ";".join(("allow_reduced_range", *(f"{name}={pin}" for name, pin in pins.items())))
    with pushed(policy):
        if kind.startswith("watched"):
            with Watching():
                y = _pooled_and_dropped(x)
        else:
            y = checkpoint(_pooled_and_dropped, x, use_reentrant=False, context_fn=contexts)
        kept = y.detach() != 0
    with ExitStack() as stack:
        if kind == "watched_from_within":
            stack.enter_context(Watching())
        if kind == "recomputed":  # a forward once more, which on CUDA autograd's own thread runs
            stack.enter_context(pushed(policy))
        (dx,) = torch.autograd.grad(y.sum(), x)
    for op, name in (
        ("pool_bwd", "pool"),
        ("dropout_bwd", "dropout"),
        ("conv_bwd_data", "bwd_data"),
    ):
        assert newest(op).algorithm.partition("/")[0] == pins[name]
    wanted = 2 * kept * F.max_pool2d(F.conv2d(x, x[:, :, :1, :1]), 2)
    torch.testing.assert_close(dx, torch.autograd.grad(wanted.sum(), x)[0])


def test_gradients_of_channels_last_tensors_in_transforms(device: str) -> None:
    x, w = (
        torch.randn(sizes, device=device).to(memory_format=torch.channels_last)
        for sizes in ((2, 3, 4, 4), (2, 3, 2, 2))
    )

    def ours(w: Tensor) -> Tensor:
        return ops.conv2d(x, w).square().mean((0, 2, 3))

    def theirs(w: Tensor) -> Tensor:
        return F.conv2d(x, w).square().mean((0, 2, 3))

    for derive in (
        jacrev,
        lambda f: jacrev(lambda w: grad(lambda w: f(w).sum())(w)),
        lambda f: partial(torch.autograd.functional.jacobian, f, vectorize=True),
    ):
        torch.testing.assert_close(derive(ours)(w), derive(theirs)(w), rtol=1e-3, atol=1e-3)


def test_gradients_of_a_batch_of_gradients_may_be_tuned(device: str) -> None:
    x, w = _random((3, 4, 8, 8), device), _random((4, 4, 3, 3), device)
    y = ops.softmax(ops.conv2d(x, w, policy="autotune"), 1, policy="autotune").sum((0, 2, 3))
    basis = torch.eye(4, dtype=torch.float64, device=device)
    got = torch.autograd.grad(y, (x, w), basis, retain_graph=True, is_grads_batched=True)
    for i, row in enumerate(basis):
        torch.testing.assert_close(
            tuple(t[i] for t in got), torch.autograd.grad(y, (x, w), row, retain_graph=True)
        )


@pytest.mark.parametrize("kind", ["conv", "transposed", "softmax", "layer_norm", "lstm"])
def test_gradients_inside_autocast_have_their_forwards_types(kind: str, device: str) -> None:
    for switch in fp32_switches():
        switch.fp32_precision = "ieee"
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    w = torch.randn(3, 3, 3, 3, device=device)
    lstm = ours.LSTM(8, 4).to(device)
    call: Callable[[Tensor], Tensor] = {
        "conv": lambda x: ops.conv2d(x, w),
        "transposed": lambda x: ops.conv_transpose2d(x, w),
        "softmax": lambda x: ops.softmax(x, 1),
        "layer_norm": lambda x: ops.layer_norm(x, (8,)),
        "lstm": lambda x: lstm(x[0])[0],
    }[kind]
    (wanted,) = torch.autograd.grad(call(x).square().sum(), x)
    with torch.autograd.set_multithreading_enabled(False):
        problems = _C.problems_posed_by(lambda: torch.autograd.grad(call(x).sum(), x))
    pins = [
        f"{problem.split()[0]}={row['algorithm']}"
        for problem in dict.fromkeys(problems)
        for row in [r for r in _C.candidates(problem, device) if r["status"] == "ok"][:6]
    ]
    assert len(pins) >= 2, problems
    for pin in pins:
        policy = f"{pin};on_unsupported=fallback"
        with pushed(policy), torch.autocast(device, torch.bfloat16):
            with torch.autocast(device, enabled=False):
                y = call(x)
            (got,) = torch.autograd.grad(y.square().sum(), x)
        torch.testing.assert_close(
            got, wanted, rtol=1e-3, atol=1e-4, msg=lambda m, pin=pin: f"{pin}: {m}"
        )


def test_no_graph_is_left_of_second_derivatives(device: str) -> None:
    x = torch.randn(4, device=device)
    for function in (ops.tanh, ops.silu, lambda x: ops.layer_norm(x, (4,))):

        def loss(x: Tensor, function: Any = function) -> Tensor:
            return function(x).square().sum()

        hessian = jacrev(grad(loss))(x)
        _, pull = torch.func.vjp(grad(loss), x)
        assert not hessian.requires_grad and not pull(torch.ones_like(x))[0].requires_grad


def test_flags_around_a_backward_hold_on_its_threads_and_end_there(device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    pins = _three_pins(device)
    ran: list[str] = []

    def block(x: Tensor) -> Tensor:
        y = ops.conv2d(x, w, padding=1)
        ran.append(newest("conv_fwd").why)
        return y.relu()

    for policy in (f"fwd={pins['fwd']}", "heuristic"):
        y = checkpoint(block, x, use_reentrant=False).sum()
        with pushed(policy):
            y.backward()
    assert ran == ["heuristic", "pinned", "heuristic", "heuristic"]


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["not_reentrant", "reentrant"])
def test_checkpoint(use_reentrant: bool, device: str) -> None:
    x, w = _random((2, 8, 8, 8), device), _random((8, 8, 3, 3), device)
    pins = _three_pins(device)
    policy = ";".join(f"{pass_name}={algorithm}" for pass_name, algorithm in pins.items())

    def block(x: Tensor, w: Tensor) -> Tensor:
        return OPS.conv2d.default(x, w, padding=[1, 1], policy=policy).relu()

    checkpoint(block, x, w, use_reentrant=use_reentrant).square().sum().backward()
    _assert_ran(pins)
    expected = torch.autograd.grad(F.conv2d(x, w, padding=1).relu().square().sum(), (x, w))
    torch.testing.assert_close((x.grad, w.grad), expected)


def test_double_backward_through_checkpoint(device: str) -> None:
    x, w = _random((1, 2, 4, 4), device), _random((2, 2, 3, 3), device)

    def penalty(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        y = checkpoint(function, x, w, use_reentrant=False).sin().sum()
        first = torch.autograd.grad(y, (x, w), create_graph=True)
        loss = first[0].square().sum() + first[1].square().sum()
        return torch.autograd.grad(loss, (x, w))

    torch.testing.assert_close(
        penalty(_layer), penalty(lambda x, w: F.conv2d(x, w, padding=1).relu())
    )


def _second_derivatives() -> dict[str, Callable[[Tensor], Tensor]]:
    gru = torch.nn.GRU(4, 3).double()
    weights = [p.detach() for p in gru.parameters()]
    ones = torch.ones(4, dtype=torch.float64)
    return {
        "silu": ops.silu,
        "tanh": ops.tanh,
        "elu": ops.elu,
        "softmax": lambda t: ops.softmax(t, 1),
        "layer_norm": lambda t: ops.layer_norm(t, (4,)),
        "rms_norm": lambda t: ops.rms_norm(t, (4,)),
        "group_norm": lambda t: ops.group_norm(t[..., None], 2),
        "batch_norm": lambda t: ops.batch_norm(t, None, None, training=True),
        "batch_norm, evaluating": lambda t: ops.batch_norm(t, 0 * ones, ones),
        "local_response_norm": lambda t: ops.local_response_norm(t[..., None], 3),
        "linear": lambda t: ops.linear(t, weights[0].to(t.device)),
        "norm2": lambda t: ops.norm2(t, 1),
        "gru": lambda t: ops.gru(t[:, None], None, [p.to(t.device) for p in weights], True)[0],
    }


@pytest.mark.parametrize("name", _second_derivatives())
def test_second_derivatives_are_the_same_with_a_graph(name: str) -> None:
    """What is differentiated by has a history of its own, and others share it."""
    function = _second_derivatives()[name]
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def second(create_graph: bool) -> Tensor:
        y = function(x * 1).pow(3).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        total = gradient.square().sum()
        (result,) = torch.autograd.grad(total, x, create_graph=create_graph)
        return result.detach()

    torch.testing.assert_close(second(True), second(False))


# Operators that are twice differentiable, as functions of batch, channels and space: [2, 4, 3].
def _twice_differentiable() -> dict[str, Callable[[Tensor], Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def constant(t: Tensor, *sizes: int) -> Tensor:
        generator.manual_seed(0)
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(t.device)

    def rnn(t: Tensor, name: str, gates: int) -> Tensor:
        weights = [constant(t, *n) for n in ((gates, 3), (gates, 2), (gates,), (gates,))]
        y: Tensor = getattr(ops, name)(t, None, weights, True)[0]
        return y

    return {
        "tanh": ops.tanh,
        "elu": ops.elu,
        "silu": ops.silu,
        "softmax": lambda t: ops.softmax(t, 1),
        "log_softmax": lambda t: ops.log_softmax(t, 2),
        "cross_entropy": lambda t: ops.cross_entropy(t, constant(t, 2, 3).abs().long()),
        "layer_norm": lambda t: ops.layer_norm(t, (3,)),
        "layer_norm, with parameters": lambda t: ops.layer_norm(
            t, (4, 3), constant(t, 4, 3), constant(t, 4, 3)
        ),
        "layer_norm, of weights": lambda t: ops.layer_norm(
            constant(t, 5, 4, 3), (4, 3), t[0], t[1]
        ),
        "rms_norm": lambda t: ops.rms_norm(t, (3,)),
        "group_norm": lambda t: ops.group_norm(t, 2, constant(t, 4)),
        "instance_norm": lambda t: ops.instance_norm(t, None, None, constant(t, 4)),
        "batch_norm": lambda t: ops.batch_norm(t, None, None, constant(t, 4), training=True),
        "batch_norm, evaluating": lambda t: ops.batch_norm(
            t, constant(t, 4), constant(t, 4).abs() + 1, constant(t, 4)
        ),
        "local_response_norm": lambda t: ops.local_response_norm(t, 3),
        "divisive_norm": lambda t: ops.divisive_norm(t[:, None], 3),
        "max_pool1d": lambda t: ops.max_pool1d(t, 2),
        "avg_pool1d": lambda t: ops.avg_pool1d(t, 2),
        "sum_pool1d": lambda t: ops.sum_pool1d(t, 2),
        "adaptive_avg_pool2d": lambda t: ops.adaptive_avg_pool2d(t, 2),
        "conv1d": lambda t: ops.conv1d(t, constant(t, 2, 4, 2)),
        "conv1d, of a filter": lambda t: ops.conv1d(constant(t, 2, 4, 5), t),
        "conv1d, of itself": lambda t: ops.conv1d(t, t[..., :2]),
        "conv_transpose1d": lambda t: ops.conv_transpose1d(t, constant(t, 4, 2, 2)),
        "linear": lambda t: ops.linear(t, constant(t, 2, 3)),
        "linear, of weights": lambda t: ops.linear(constant(t, 5, 3), t[0]),
        "matmul": lambda t: ops.matmul(t, t.transpose(1, 2)),
        "sum": lambda t: ops.sum(t, 1).square(),
        "mean": lambda t: ops.mean(t, 1).square(),
        "norm2": lambda t: ops.norm2(t, 1),
        "prod": lambda t: ops.prod(t, 1),
        "lstm": lambda t: rnn(t, "lstm", 8),
        "gru": lambda t: rnn(t, "gru", 6),
        "affine_grid": lambda t: ops.affine_grid(t[:, :2], (2, 1, 2, 3)).square(),
    }


# [2, 4, 3] as views of 64 elements. Samples may be equal, channels and positions may not.
VIEWS_OF_A_LEAF: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t[:24].view(2, 4, 3),
    "transposed": lambda t: t[:24].view(3, 4, 2).transpose(0, 2),
    "channels_last": lambda t: t[:24].view(2, 3, 4).transpose(1, 2),
    "flipped": lambda t: t[:24].view(2, 4, 3).flip(1, 2),
    "expanded": lambda t: t[:12].view(1, 4, 3).expand(2, 4, 3),
    "offset": lambda t: t.view(4, 4, 4)[1:3, :, 1:],
    "sliced": lambda t: t[:48].view(4, 4, 3)[::2],
    "overlapping": lambda t: t.as_strided((2, 4, 3), (5, 2, 1), 3),
    "unfolded": lambda t: t[:12].view(2, 6).unfold(1, 3, 1),
}


@pytest.mark.parametrize("view", VIEWS_OF_A_LEAF)
@pytest.mark.parametrize("name", _twice_differentiable())
def test_second_derivatives_of_views(name: str, view: str, device: str) -> None:
    function, form = _twice_differentiable()[name], VIEWS_OF_A_LEAF[view]
    leaf = _random((64,), device)
    assert gradgradcheck(lambda t: function(form(t)), leaf, fast_mode=True)
    # The same numbers in a leaf of that form, whose gradients count no element twice.
    expected: list[Tensor] = []
    for x in (form(leaf.detach()).contiguous(), form(leaf.detach())):
        y = function(x.requires_grad_())
        dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=device).view(y.shape)
        (first,) = torch.autograd.grad(y, x, dy.requires_grad_(), create_graph=True)
        found = [first.detach()]
        if first.requires_grad:
            total = (first * first.detach().cos()).sum()
            both = torch.autograd.grad(total, (x, dy), allow_unused=True, create_graph=True)
            found += [t.detach() for t in both if t is not None]
        expected = expected or found
        torch.testing.assert_close(found, expected)
