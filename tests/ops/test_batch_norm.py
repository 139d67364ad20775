"""Batch normalisation: PyTorch's values, statistics, gradients, layouts, modules and errors."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from conftest import misaligned, newest
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, Policy, ops
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext.ops.batch_norm import NormMode

OPS = torch.ops.torch_cudnn_ext
State = tuple[Tensor, Tensor, Tensor, Tensor]
SIZES = [(6, 5), (4, 3, 7), (3, 5, 4, 6), (2, 3, 4, 3, 5), (1, 4, 9), (5, 3, 1, 1), (4, 1, 3, 3)]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3),
    "sliced": lambda t: t[:, :, ::2],
    "expanded": lambda t: t[:, :, :1].expand(-1, -1, 6, -1),
}


def _statistics(channels: int, device: str, dtype: torch.dtype = torch.float64) -> State:
    """Running mean and variance, weight and bias."""
    mean, weight, bias = (torch.randn(channels, device=device, dtype=dtype) for _ in range(3))
    var = torch.rand(channels, device=device, dtype=dtype) + 0.5
    return mean, var, weight.requires_grad_(), bias.requires_grad_()


def _compare(x: Tensor, training: bool, tolerance: float = 1e-9) -> None:
    """Result, running statistics and gradients are PyTorch's."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, var, weight, bias = _statistics(x.shape[1], x.device.type, wide)
    x = x.detach().requires_grad_()
    kept = (mean.clone(), var.clone())
    got = ops.batch_norm(x, mean, var, weight, bias, training, 0.3, 1e-3)
    wanted = F.batch_norm(x, *kept, weight, bias, training, 0.3, 1e-3)
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=4 * tolerance)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close((mean, var), kept)
    grad = torch.randn_like(wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, (x, weight, bias), grad),
        torch.autograd.grad(wanted, (x, weight, bias), grad),
        rtol=tolerance,
        atol=4 * tolerance,
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_number_of_dimensions(sizes: tuple[int, ...], training: bool, device: str) -> None:
    _compare(torch.randn(sizes, dtype=torch.float64, device=device) + 1, training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_any_strides(view: str, training: bool, device: str) -> None:
    x = torch.randn(3, 5, 6, 4, dtype=torch.float64, device=device)
    _compare(VIEWS[view](x), training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype: torch.dtype, training: bool, device: str) -> None:
    tolerance = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    x = torch.randn(8, 6, 5, 5, device=device).to(dtype)
    _compare(x, training, tolerance)


def test_running_statistics_may_be_negated_lazily(device: str) -> None:
    x = torch.randn(4, 3, 5, 5, device=device)
    mean = torch.zeros(3, dtype=torch.complex64, device=device).conj().imag
    var = torch.ones(3, device=device)
    kept = (torch.zeros_like(var), torch.ones_like(var))
    got = ops.batch_norm(x, mean, var, training=True)
    torch.testing.assert_close(got, F.batch_norm(x, *kept, training=True), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((mean + 0, var), kept)


def test_eps_is_above_zero(device: str) -> None:
    layer = ours.BatchNorm2d(3, eps=-1.0).to(device)
    with pytest.raises(ValueError, match=r"argument eps: got -1.0, wanted more than 0"):
        layer(torch.randn(2, 3, 4, 4, device=device))
    assert layer.running_mean is not None and not layer.running_mean.any()


# With these cuDNN 9.19, and PyTorch's own training in channels-last, lose the GPU context.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_training_on_misaligned_tensors(
    dtype: torch.dtype, layout: torch.memory_format, device: str
) -> None:
    whole = torch.randn(4, 64, 28, 28, device=device).to(dtype).contiguous(memory_format=layout)
    x = misaligned(whole).requires_grad_()
    mean, var, weight, bias = (
        misaligned(t.detach()) for t in _statistics(64, device, torch.float32)
    )
    kept = (mean.clone().double(), var.clone().double())
    double = x.detach().double().requires_grad_()
    wanted = F.batch_norm(double, *kept, weight.double(), bias.double(), True)
    got = ops.batch_norm(x, mean, var, weight, bias, True)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close((mean.double(), var.double()), kept, rtol=1e-3, atol=1e-3)
    dy = misaligned(torch.randn_like(whole))
    (wanted_dx,) = torch.autograd.grad(wanted, double, dy.double())
    (dx,) = torch.autograd.grad(got, x, dy)
    torch.testing.assert_close(dx.double(), wanted_dx, rtol=1e-2, atol=1e-2)
    assert "align=" not in newest("batch_norm_bwd").problem


def test_parameters_in_half_precision(device: str) -> None:
    x = torch.randn(8, 6, 5, 5, device=device).bfloat16()
    mean, var, weight, bias = (t.detach().bfloat16() for t in _statistics(6, device, torch.float32))
    kept = (mean.float(), var.float())
    weight.requires_grad_()
    got = ops.batch_norm(x, mean, var, weight, bias, training=True)
    wanted = F.batch_norm(x.float(), *kept, weight.float(), bias.float(), training=True)
    torch.testing.assert_close(got, wanted.bfloat16(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(mean, kept[0].bfloat16())
    torch.testing.assert_close(var, kept[1].bfloat16())
    (grad,) = torch.autograd.grad(got.float().square().sum(), weight)
    assert grad.dtype == torch.bfloat16


def test_without_parameters_and_statistics(device: str) -> None:
    x = torch.randn(4, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    got = ops.batch_norm(x, None, None, training=True)
    wanted = F.batch_norm(x, None, None, training=True)
    torch.testing.assert_close(got, wanted)
    grad = torch.randn_like(got)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, grad), torch.autograd.grad(wanted, x, grad)
    )


def test_no_samples(device: str) -> None:
    mean, var, weight, bias = _statistics(3, device)
    kept = mean.clone()
    for training in (True, False):
        x = torch.randn(0, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
        y = ops.batch_norm(x, mean, var, weight, bias, training)
        assert y.shape == x.shape
        grads = torch.autograd.grad(y.sum(), (x, weight, bias))
        assert [g.shape for g in grads] == [x.shape, weight.shape, bias.shape]
        assert not grads[1].any() and torch.equal(mean, kept)


def test_no_samples_with_gaps(device: str) -> None:
    x = torch.randn(0, 6, device=device)[:, ::2]
    for training in (True, False):
        arguments = (None, None) if training else (x.new_zeros(3), x.new_ones(3))
        fakes = [t if t is None else t.to("meta") for t in arguments]
        got = ops.batch_norm(x, *arguments, training=training)
        fake = ops.batch_norm(x.to("meta"), *fakes, training=training)
        assert got.stride() == fake.stride() == (3, 1)


@pytest.mark.parametrize("training", [True, False])
def test_vmap(training: bool, device: str) -> None:
    x = torch.randn(4, 2, 3, 5, dtype=torch.float64, device=device)
    mean, var, weight, bias = (t.detach() for t in _statistics(3, device))
    kept = (None, None) if training else (mean, var)

    def both(norm: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        def run(t: Tensor) -> Tensor:
            return norm(t, *kept, weight, bias, training)

        gradient = torch.func.grad(lambda t: run(t).pow(3).sum())
        return torch.vmap(run)(x), torch.vmap(gradient)(x)

    torch.testing.assert_close(both(ops.batch_norm), both(F.batch_norm))


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_have_no_gradient(training: bool, device: str) -> None:
    x = torch.randn(4, 3, device=device)
    for name in ("running_mean", "running_var"):
        given = {"running_mean": torch.zeros(3, device=device), "running_var": x.new_ones(3)}
        given[name].requires_grad_()
        with pytest.raises(ValueError, match=f"{name} requires a gradient, wanted a tensor with"):
            ops.batch_norm(x, **given, training=training)
        with torch.no_grad():
            ops.batch_norm(x, **given, training=training)


def test_training_gives_statistics_and_changes_nothing(device: str) -> None:
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64, device=device, requires_grad=True)
    mean, var, weight, bias = _statistics(3, device)
    kept = (mean.clone(), var.clone())
    got = ops.batch_norm_train(x, mean, var, weight, bias, momentum=0.25, eps=0.01)
    values = x.detach().transpose(0, 1).flatten(1)
    torch.testing.assert_close(got.mean, values.mean(1))
    torch.testing.assert_close(got.invstd, (values.var(1, correction=0) + 0.01).rsqrt())
    assert got.running_mean is not None and got.running_var is not None
    torch.testing.assert_close(got.running_mean, kept[0].lerp(values.mean(1), 0.25))
    torch.testing.assert_close(got.running_var, kept[1].lerp(values.var(1), 0.25))
    assert torch.equal(mean, kept[0]) and torch.equal(var, kept[1])
    wanted = F.batch_norm(x, None, None, weight, bias, True, eps=0.01)
    torch.testing.assert_close(got.output, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got.output.square().sum(), (x, weight)),
        torch.autograd.grad(wanted.square().sum(), (x, weight)),
    )
    assert not got.mean.requires_grad and not got.invstd.requires_grad
    assert ops.batch_norm_train(x).running_mean is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_per_activation(layout: torch.memory_format, training: bool, device: str) -> None:
    x = torch.randn(6, 3, 4, 2, dtype=torch.float64, device=device)
    x = x.contiguous(memory_format=layout).requires_grad_()
    mean, var, weight, bias = (
        t.detach().view(3, 4, 2).requires_grad_(t.requires_grad) for t in _statistics(24, device)
    )
    flat = (mean.flatten().clone(), var.flatten().clone())
    got = ops.batch_norm(x, mean, var, weight, bias, training, mode="per_activation")
    wanted = F.batch_norm(x.flatten(1), *flat, weight.flatten(), bias.flatten(), training)
    torch.testing.assert_close(got, wanted.view(x.shape))
    torch.testing.assert_close((mean.flatten(), var.flatten()), flat)
    inputs = (x, weight, bias)
    torch.testing.assert_close(
        torch.autograd.grad(got.pow(3).sum(), inputs),
        torch.autograd.grad(wanted.pow(3).sum(), inputs),
    )


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("training", [True, False])
def test_fused_addition_and_activation(training: bool, activation: Any, device: str) -> None:
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64, device=device, requires_grad=True)
    z = torch.randn_like(x).to(memory_format=torch.channels_last).requires_grad_()
    mean, var, weight, bias = _statistics(3, device)
    kept = (mean.clone(), var.clone())
    got = ops.batch_norm(x, mean, var, weight, bias, training, z=z, activation=activation)
    wanted = F.batch_norm(x, *kept, weight, bias, training) + z
    if activation == "relu":
        wanted = wanted.relu()
    torch.testing.assert_close(got, wanted)
    grad = torch.randn_like(got)
    inputs = (x, weight, bias, z)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, grad), torch.autograd.grad(wanted, inputs, grad)
    )


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_gradients(training: bool, fused: bool, mode: Any, device: str) -> None:
    x = torch.randn(4, 2, 3, dtype=torch.float64, device=device, requires_grad=True)
    mean, var, weight, bias = _statistics(6 if mode == "per_activation" else 2, device)
    if mode == "per_activation":
        mean, var, weight, bias = (
            t.detach().view(2, 3).requires_grad_(t.requires_grad) for t in (mean, var, weight, bias)
        )
    z = torch.randn_like(x).requires_grad_()

    def function(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor) -> Tensor:
        kept = (mean.clone(), var.clone())
        if not fused:
            return ops.batch_norm(x, *kept, weight, bias, training, eps=0.1, mode=mode)
        return ops.batch_norm(
            x, *kept, weight, bias, training, eps=0.1, mode=mode, z=z, activation="relu"
        )

    inputs = (x, weight, bias, z) if fused else (x, weight, bias, z.detach())
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("training", [True, False])
def test_pins_are_obeyed(training: bool, device: str) -> None:
    x = torch.randn(4, 6, 5, device=device, requires_grad=True)
    mean, var, weight, bias = _statistics(6, device, torch.float32)
    names = ("batch_norm_fwd", "batch_norm_bwd")
    lines = [f"{names[0]} x=f32[4,6,5]:nchw running=true", f"{names[1]} x=f32[4,6,5]:nchw"]
    if not training:
        names = ("batch_norm_infer", "batch_norm_bwd")
        lines = [f"{names[0]} x=f32[4,6,5]:nchw", f"{names[1]} x=f32[4,6,5]:nchw train=false"]
    wanted = F.batch_norm(x, mean.clone(), var.clone(), weight, bias, training)
    (wanted_grad,) = torch.autograd.grad(wanted.pow(2).sum(), x)
    for name, line in zip(names, lines, strict=True):
        found = [c["algorithm"] for c in _C.candidates(line, device, "") if c["status"] == "ok"]
        assert found
        if device == "cpu":
            assert set(found) == {"aten:default", "cpu:two_pass", "cpu:chunked"}
        for pin in found:
            choices: dict[str, Any] = {name.split("_")[-1]: pin}
            policy = Policy(family="batch_norm", **choices)
            y = ops.batch_norm(x, mean.clone(), var.clone(), weight, bias, training, policy=policy)
            torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
            (grad,) = torch.autograd.grad(y.pow(2).sum(), x)
            torch.testing.assert_close(grad, wanted_grad, rtol=1e-3, atol=1e-3)
            choice = newest(name)
            assert (choice.algorithm, choice.why) == (pin, "pinned")


def test_a_batch_that_a_checkpoint_computes_again_counts_as_pytorchs() -> None:
    norm, reference = (kind(3, momentum=None) for kind in (ours.BatchNorm2d, torch.nn.BatchNorm2d))
    for i in range(3):
        x = torch.randn(8, 3, 5, 5, requires_grad=True) + i
        for module in (norm, reference):
            checkpoint(module, x, use_reentrant=False).sum().backward()
    assert int(reference.num_batches_tracked) == 6
    torch.testing.assert_close(norm.state_dict(), reference.state_dict())


def test_a_refused_batch_does_not_count() -> None:
    x = torch.randn(8, 3, 4, 4) + 5
    norm = ours.BatchNorm2d(3, momentum=None).set_mode(fwd="legacy:spatial")
    with pytest.raises(RuntimeError, match="cuDNN runs on CUDA devices"):
        norm(x)
    norm.reset_mode()
    reference = torch.nn.BatchNorm2d(3, momentum=None)
    for batch in (x, x + 1):
        torch.testing.assert_close(norm(batch), reference(batch))
    assert int(norm.num_batches_tracked) == 2
    torch.testing.assert_close(norm.state_dict(), reference.state_dict())


def test_tuning_leaves_running_statistics_alone(device: str) -> None:
    x = torch.randn(4, 6, 5, device=device)
    mean, var, weight, bias = _statistics(6, device, torch.float32)
    kept = (mean.clone(), var.clone())
    for _ in range(2):
        ops.batch_norm(x, mean, var, weight, bias, True, policy="autotune")
        F.batch_norm(x, *kept, weight, bias, True)
    torch.testing.assert_close((mean, var), kept)


def test_spaces_of_one_size_are_one_problem(device: str) -> None:
    for sizes in ((2, 3, 24), (2, 3, 4, 6), (2, 3, 2, 3, 4)):
        ops.batch_norm(torch.randn(sizes, device=device), None, None, training=True)
        assert newest("batch_norm_fwd").problem == "batch_norm_fwd x=f32[2,3,24]:nchw"
    x = torch.randn(5, 3, 4, 6, device=device)
    ops.batch_norm(x, None, None, training=True, mode="per_activation")
    assert newest("batch_norm_fwd").problem == "batch_norm_fwd x=f32[5,72,1]:nchw"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_a_gradient_of_an_evaluation_is_of_its_statistics(
    mode: NormMode, fused: bool, device: str
) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    mean, var, weight, bias = _statistics(3, device)
    keywords: dict[str, Any] = {"mode": mode}
    if fused:
        keywords |= {"z": torch.randn_like(x), "activation": "relu"}
    found = []
    for change in (False, True):
        y = ops.batch_norm(x, mean, var, weight, bias, **keywords)
        if change:
            ops.batch_norm(x.detach() + 1, mean, var, training=True, mode=mode)
        first = torch.autograd.grad(y.cos().sum(), (x, weight), create_graph=True)
        if change:
            ops.batch_norm(x.detach() + 2, mean, var, training=True, mode=mode)
        second = torch.autograd.grad(sum(t.sin().sum() for t in first), (x, weight))
        found.append((first, second))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_autocast_leaves_dtypes_alone(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    for dtype in (lower, torch.float32):
        x = torch.randn(4, 3, device=device, dtype=dtype)
        with torch.autocast(device, lower):
            assert ops.batch_norm(x, None, None, training=True).dtype == dtype
            assert F.batch_norm(x, None, None, training=True).dtype == dtype


def test_operators_are_well_made(device: str) -> None:
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64, device=device, requires_grad=True)
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    mean, var, weight, bias = _statistics(4, device)
    for keywords in ({}, {"z": torch.randn_like(x), "activation": "relu"}):
        for data in (x, last):
            for training in (True, False):
                arguments = (data, mean, var, weight, bias, training)
                torch.library.opcheck(OPS.batch_norm.default, arguments, keywords)
            torch.library.opcheck(
                OPS.batch_norm_train.default, (data, mean, var, weight, bias), keywords
            )
    for training in (True, False):
        backward = (torch.randn_like(x), x, weight, mean, var, training, 1e-5)
        torch.library.opcheck(OPS.batch_norm_backward.default, backward)


@pytest.mark.parametrize("training", [True, False])
def test_compiles_whole(training: bool, device: str) -> None:
    mean, var, weight, bias = _statistics(3, device)

    def loss(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y = ops.batch_norm(x, mean, var, weight, bias, training, activation="relu")
        return y.square().sum()

    x = torch.randn(4, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    kept, compiled_kept = ((mean.clone(), var.clone()) for _ in range(2))
    wanted = torch.autograd.grad(loss(x, *kept), (x, weight))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(x, *compiled_kept), (x, weight))
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(compiled_kept, kept)


ROW = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((torch.zeros(3), None, None), {"training": True}, "input has sizes .3., wanted 2 or more"),
        ((ROW.int(), None, None), {"training": True}, "input is Int, wanted Float"),
        ((ROW, None, None), {}, "running_mean is None, wanted a Tensor when training is False"),
        ((ROW, ROW[0], None), {"training": True}, "running_var is None, wanted both"),
        ((ROW, ROW[0], ROW[0], ROW[0, :2]), {}, r"weight has sizes \[2\], wanted \[3\]"),
        ((ROW, ROW[0], ROW[0].double()), {}, "running_var is Double, wanted Float"),
        ((ROW[:1], None, None), {"training": True}, "wanted more than 1 value per channel"),
        ((ROW, None, None), {"training": True, "mode": "layer"}, "mode is 'layer', wanted one of"),
        ((ROW, None, None), {"training": True, "activation": "elu"}, "activation is 'elu'"),
        ((ROW, None, None), {"training": True, "z": ROW[0]}, r"z has sizes \[3\], wanted input"),
        ((ROW, None, None), {"training": True, "policy": "fwd=fast"}, "'fast' is not one of"),
    ],
)
def test_errors_name_the_argument(
    arguments: tuple[Any, ...], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        ops.batch_norm(*arguments, **keywords)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("where", ["real", "meta", "export"])
def test_one_value_a_statistic_is_refused_in_training(where: str, mode: NormMode) -> None:
    x = torch.randn(1, 3, 1 if mode == "spatial" else 4, device="meta" if where == "meta" else None)

    class Trained(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ops.batch_norm(x, None, None, training=True, mode=mode)

    with pytest.raises(ValueError, match="batch_norm: .*wanted more than 1 value per channel"):
        if where == "export":
            torch.export.export(Trained(), (x,))
        else:
            Trained()(x)
    with pytest.raises(ValueError, match="batch_norm_train: .*wanted more than 1 value"):
        ops.batch_norm_train(x, mode=mode)
    assert ops.batch_norm_train(torch.cat([x, x]), mode=mode).output.shape == (2, *x.shape[1:])


def test_cudnns_refusals_say_why() -> None:
    def reasons(line: str) -> dict[str, str]:
        return {c["algorithm"]: c["reason"] for c in _C.candidates(line, "target:h200", "")}

    kept = reasons("batch_norm_bwd x=f32[4,6,25]:nchw train=false")
    assert "that of training" in kept["legacy:spatial"]
    assert "over space" in reasons("batch_norm_fwd x=f32[4,6,25]:nchw")["legacy:per_activation"]
    rows = reasons("batch_norm_infer x=f32[4,6,1]:nchw")
    assert "computes no statistics" in rows["legacy:spatial_persistent"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("BatchNorm1d", (4, 3)),
        ("BatchNorm1d", (4, 3, 5)),
        ("BatchNorm2d", (4, 3, 2, 5)),
        ("BatchNorm3d", (2, 3, 2, 3, 2)),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}, {"momentum": 0.5}],
    ids=str,
)
def test_modules(name: str, sizes: tuple[int, ...], arguments: Any, device: str) -> None:
    mine = getattr(ours, name)(3, dtype=torch.float64, device=device, **arguments)
    theirs = getattr(torch.nn, name)(3, dtype=torch.float64, device=device, **arguments)
    assert issubclass(type(mine), mine.replaces) and mine.replaces is type(theirs)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    mine.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        mine.train(training)
        theirs.train(training)
        x = torch.randn(sizes, dtype=torch.float64, device=device)
        torch.testing.assert_close(mine(x), theirs(x))
    theirs.load_state_dict(mine.state_dict())
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())
    for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        torch.testing.assert_close(copied(x), theirs(x))
    with pytest.raises(ValueError, match="expected"):
        mine(torch.zeros(1, 1, 1, 1, 1, 1, dtype=torch.float64, device=device))


def test_modules_take_a_policy() -> None:
    module = cast(ours.Tunable, ours.BatchNorm2d(3, policy="fwd=cpu:chunked"))
    module(torch.randn(2, 3, 4, 4))
    assert newest("batch_norm_fwd").algorithm == "cpu:chunked"
    module.set_mode("spatial_persistent", infer=1, bwd=0)
    assert (
        module.policy
        == "fwd=legacy:spatial_persistent;infer=legacy:spatial;bwd=legacy:per_activation"
    )
    assert module.reset_mode().policy is None


def test_modules_that_were_told_to_stop_tracking_keep_their_statistics(device: str) -> None:
    mine, theirs = ours.BatchNorm2d(3).to(device), torch.nn.BatchNorm2d(3).to(device)
    x = torch.randn(4, 3, 5, 5, device=device) + 2
    for module in (mine, theirs):
        module.track_running_stats = False  # the common way to freeze them
    for training in (True, False):
        mine.train(training)
        theirs.train(training)
        torch.testing.assert_close(mine(x), theirs(x))
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("algorithm", ["cpu:two_pass", "aten:default"])
def test_running_means_of_infinities(momentum: float, algorithm: str) -> None:
    x = torch.ones(2, 1, 4)
    x[0, 0, 0] = math.inf
    mean = torch.zeros(1)
    ops.batch_norm(x, mean, torch.ones(1), None, None, True, momentum, policy=algorithm)
    assert mean == math.inf
