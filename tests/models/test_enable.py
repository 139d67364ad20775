"""Plain PyTorch models on our operators."""

import copy
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from conftest import Seeing, newest
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_cudnn_ext
from torch_cudnn_ext import (
    _C,
    Policy,
    convert,
    declined,
    disable,
    enable,
    enabled,
    is_enabled,
    knobs,
    tuning,
    when,
)
from torch_cudnn_ext import _cudnn_flags as backends
from torch_cudnn_ext._workload.running import recording
from torch_cudnn_ext.models import enable as enabling

# What any device has besides PyTorch's own.
OTHER = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}
# Engines of the graph API would take a GPU minutes.
AUTOTUNE = {"cpu": "autotune", "cuda": "autotune;backends=legacy,aten"}


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    """Whatever a test does, PyTorch is itself again afterwards."""
    declined(reset=True)
    yield
    if is_enabled():
        disable()


def dispatch_tables() -> list[str]:
    names = [f"aten::{name}" for name in _C.overridden_ops()]
    dump: Any = torch._C._dispatch_dump
    table: Any = torch._C._dispatch_dump_table
    return [text for name in names for text in (dump(name), table(name))]


class Net(nn.Module):
    """A bit of everything that convolution has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding="same", groups=2, bias=False)
        self.reflect = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = self.reflect(self.grouped(x)).relu()
        x = self.up(x).mean((2, 3))
        return F.log_softmax(self.head(x), 1) + F.softmax(x, -1).sum()


def run(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = model(x)
    y.float().square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def check_equal(ours: list[Tensor], plain: list[Tensor], tolerance: float = 1e-4) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        difference = float((a - b).detach().float().norm())
        assert difference <= tolerance * float(b.detach().float().norm()) + 1e-6


@pytest.fixture
def net(device: str) -> Net:
    """A small model."""
    return Net().to(device)


def images(device: str, size: int = 12) -> Tensor:
    return torch.randn(2, 3, size, size, device=device)


def ran(op: str = "conv_fwd") -> str:
    return newest(op).algorithm


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
@pytest.mark.parametrize("compiled", [False, True])
def test_padding_by_the_word_valid(layer: Any, compiled: bool, device: str) -> None:
    pin = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}[device]
    model = layer(3, 4, 3, padding="valid").to(device)
    x = torch.randn(2, 3, *[8] * (model.weight.dim() - 2), device=device)
    wanted = model(x)
    torch._dynamo.reset()
    with enabled(f"conv_fwd={pin}"):
        got = torch.compile(model, backend="aot_eager")(x) if compiled else model(x)
        assert torch_cudnn_ext.declined() == {}
        assert ran().startswith(pin)
    check_equal([got], [wanted])


@pytest.mark.parametrize("policy", [None, "backends", "autotune"])
def test_outputs_and_gradients_are_pytorchs(net: Net, device: str, policy: str | None) -> None:
    x = images(device)
    plain = run(net, x)
    if policy == "backends":
        policy = "backends=cpu" if device == "cpu" else "backends=cudnn,aten"
    if policy == "autotune":
        policy = AUTOTUNE[device]
    with enabled(policy):
        assert is_enabled()
        ours = run(net, x)
        assert net(x).grad_fn is not None
        assert "TorchCudnnExt" in F.conv2d(x, net.first.weight).grad_fn.name()  # type: ignore[union-attr]
    check_equal(ours, plain)
    assert not is_enabled()
    assert declined() == {}


@pytest.mark.parametrize("channels_last", [False, True])
def test_resnet18(device: str, channels_last: bool) -> None:
    # In float64, since batch norm over few values magnifies what rounding does to gradients.
    model = torchvision.models.resnet18().double().to(device)
    x = torch.randn(2, 3, 64, 64, dtype=torch.double, device=device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    state = copy.deepcopy(model.state_dict())
    plain = run(model, x)
    model.load_state_dict(state)
    with enabled("backends=cpu" if device == "cpu" else None):
        ours = run(model, x)
        assert ran("conv_bwd_filter").startswith("cpu:" if device == "cpu" else "")
    check_equal(ours, plain, 1e-6)


def test_softmax_runs_ours(device: str) -> None:
    x = torch.randn(3, 5, 7, device=device, requires_grad=True)
    for function in (F.softmax, F.log_softmax):
        plain = function(x, 1)
        with enabled():
            ours = function(x, 1)
            assert ran("softmax_fwd")
            assert "TorchCudnnExt" in ours.grad_fn.name()  # type: ignore[union-attr]
            (gradient,) = torch.autograd.grad(ours.square().sum(), x)
        (wanted,) = torch.autograd.grad(plain.square().sum(), x)
        check_equal([ours, gradient], [plain, wanted], 1e-5)


def randn(device: str, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes, device=device, dtype=dtype, requires_grad=True)


def batch_norm(device: str, training: bool) -> list[Tensor]:
    model = nn.BatchNorm2d(6).to(device).train(training)
    model.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    x = randn(device, 4, 6, 5, 7)
    y = model(x)
    return [y, *model.buffers(), *torch.autograd.grad(y.pow(3).sum(), [x, *model.parameters()])]


def of_module(model: nn.Module, x: Tensor) -> list[Tensor]:
    model = model.to(x.device)
    y = model(x)
    results = [y] if isinstance(y, Tensor) else [y[0], *(y[1] if len(y[1]) == 2 else [y[1]])]
    total = sum((t.pow(3).sum() for t in results), torch.zeros((), device=x.device))
    return [*results, *torch.autograd.grad(total, [x, *model.parameters()])]


def of_packed(model: nn.Module, x: Tensor) -> list[Tensor]:
    model = model.to(x.device)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 6, 1]), enforce_sorted=False)
    y, states = model(packed)
    results = [y.data, *([states] if isinstance(states, Tensor) else states)]
    total = sum((t.pow(3).sum() for t in results), torch.zeros((), device=x.device))
    return [*results, *torch.autograd.grad(total, [x, *model.parameters()])]


# How PyTorch users call what is overridden, and the pass of ours that runs.
CALLS: dict[str, tuple[str, str, Callable[[str], list[Tensor]]]] = {
    "batch_norm, training": ("batch_norm", "batch_norm_fwd", lambda d: batch_norm(d, True)),
    "batch_norm, evaluating": ("batch_norm", "batch_norm_infer", lambda d: batch_norm(d, False)),
    "max_pool1d": (
        "max_pool1d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool1d(3, 2, 1), randn(d, 2, 3, 13)),
    ),
    "max_pool2d": (
        "max_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool2d(3, padding=1, ceil_mode=True), randn(d, 2, 3, 13, 11)),
    ),
    "max_pool3d": (
        "max_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool3d(2, dilation=2), randn(d, 3, 7, 6, 5)),
    ),
    "avg_pool1d": (
        "avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool1d(3, count_include_pad=False), randn(d, 2, 3, 13)),
    ),
    "avg_pool2d": (
        "avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool2d(3, 2, 1, divisor_override=5), randn(d, 2, 3, 13, 11)),
    ),
    "avg_pool3d": (
        "avg_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool3d((2, 3, 1)), randn(d, 2, 3, 7, 6, 5)),
    ),
    "adaptive_avg_pool2d": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool2d((3, 2)), randn(d, 2, 3, 13, 11)),
    ),
    "adaptive_avg_pool3d": (
        "adaptive_avg_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool3d((3, 2, 2)), randn(d, 2, 3, 7, 6, 5)),
    ),
    "adaptive_avg_pool2d, global": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool2d(1), randn(d, 2, 3, 13, 11)),
    ),
    "adaptive_avg_pool1d": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool1d(1), randn(d, 2, 3, 13)),
    ),
    "layer_norm": (
        "layer_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.LayerNorm([5, 7]), randn(d, 2, 3, 5, 7)),
    ),
    "layer_norm, no parameters": (
        "layer_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.LayerNorm(7, elementwise_affine=False), randn(d, 3, 7)),
    ),
    "group_norm": (
        "group_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.GroupNorm(2, 6), randn(d, 3, 6, 5)),
    ),
    "lstm": (
        "lstm.input",
        "rnn_fwd",
        lambda d: of_module(
            nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True), randn(d, 3, 6, 5)
        ),
    ),
    "gru": ("gru.input", "rnn_fwd", lambda d: of_module(nn.GRU(5, 4), randn(d, 6, 3, 5))),
    "rnn_tanh": ("rnn_tanh.input", "rnn_fwd", lambda d: of_module(nn.RNN(5, 4), randn(d, 6, 3, 5))),
    "rnn_relu": (
        "rnn_relu.input",
        "rnn_fwd",
        lambda d: of_module(nn.RNN(5, 4, nonlinearity="relu"), randn(d, 6, 3, 5)),
    ),
    "lstm, packed": (
        "lstm.data",
        "rnn_fwd",
        lambda d: of_packed(nn.LSTM(5, 4, 2, proj_size=3), randn(d, 6, 3, 5)),
    ),
    "gru, packed": (
        "gru.data",
        "rnn_fwd",
        lambda d: of_packed(nn.GRU(5, 4, bidirectional=True), randn(d, 6, 3, 5)),
    ),
    "rnn_tanh, packed": (
        "rnn_tanh.data",
        "rnn_fwd",
        lambda d: of_packed(nn.RNN(5, 4), randn(d, 6, 3, 5)),
    ),
    "rnn_relu, packed": (
        "rnn_relu.data",
        "rnn_fwd",
        lambda d: of_packed(nn.RNN(5, 4, nonlinearity="relu"), randn(d, 6, 3, 5)),
    ),
    "convolution": (
        "convolution",
        "conv_fwd",
        lambda d: of_module(nn.Conv2d(3, 4, 3), randn(d, 2, 3, 7, 7)),
    ),
    "softmax": ("_softmax", "softmax_fwd", lambda d: of_module(nn.Softmax(1), randn(d, 2, 3))),
    "log_softmax": (
        "_log_softmax",
        "softmax_fwd",
        lambda d: of_module(nn.LogSoftmax(1), randn(d, 2, 3)),
    ),
}


def test_every_override_is_called_here() -> None:
    assert {op for op, _, _ in CALLS.values()} == set(_C.overridden_ops())


def passes_of(call: Callable[[], object]) -> list[str]:
    """The passes of ours that ran meanwhile."""
    with recording():
        call()
        calls = _C.recorded()
    return [call["problem"].split()[0] for call in calls if not isinstance(call, str)]


@pytest.mark.parametrize("call", CALLS)
def test_plain_calls_run_ours_and_give_the_same(device: str, call: str) -> None:
    _, forward, function = CALLS[call]
    torch.manual_seed(1)
    plain = function(device)
    ours: list[Tensor] = []
    with enabled():
        torch.manual_seed(1)
        ran = passes_of(lambda: ours.extend(function(device)))
    backward = {"conv": "bwd_filter"}.get(family := forward.rpartition("_")[0], "bwd")
    assert {forward, f"{family}_{backward}"} <= set(ran)
    check_equal(ours, plain)
    assert [t.stride() for t in ours] == [t.stride() for t in plain]
    assert declined() == {}


class AllKinds(nn.Module):
    """A layer of each kind that is overridden."""

    def __init__(self, recurrent: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.max = nn.MaxPool2d(2)
        self.group = nn.GroupNorm(2, 8)
        self.avg = nn.AvgPool2d(2)
        self.adaptive = nn.AdaptiveAvgPool2d((3, 4))
        self.layer = nn.LayerNorm(12)
        self.lstm = nn.LSTM(12, 6) if recurrent else None
        self.soft = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group(self.max(self.norm(self.conv(x)).relu()))
        x = self.layer(self.adaptive(self.avg(x)).flatten(2))
        if self.lstm is not None:
            x = self.lstm(x)[0]
        result: Tensor = self.soft(x)
        return result


KINDS = {
    "conv": "conv_fwd",
    "norm": "batch_norm_fwd",
    "max": "pool_fwd",
    "group": "layer_norm_fwd",
    "avg": "pool_fwd",
    "adaptive": "pool_fwd",
    "layer": "layer_norm_fwd",
    "lstm": "rnn_fwd",
    "soft": "softmax_fwd",
}


def test_a_model_of_all_kinds(device: str) -> None:
    model, x = AllKinds().to(device), images(device, 16)
    explanation = torch_cudnn_ext.explain(model, x, train=True, measure=False)
    ours = {call.layer: call.op for call in explanation.calls if call.op.endswith("_fwd")}
    assert ours == KINDS
    assert sum(call.op.endswith("_bwd") for call in explanation.calls) == len(KINDS) - 1
    other = copy.deepcopy(model)
    with enabled():
        found = run(other, x)
    check_equal(found, run(model, x), 1e-3)
    check_equal(list(other.buffers()), list(model.buffers()))
    assert declined() == {}


@pytest.mark.parametrize("train", [True, False])
def test_tuning_a_model_ahead_leaves_nothing_to_measure(device: str, train: bool) -> None:
    model, x = AllKinds().to(device).train(train), images(device, 16)
    policy = f"max_workspace=64MiB;backends={'cpu,aten' if device == 'cpu' else 'legacy,aten'}"
    with torch.autocast(device, torch.bfloat16):
        best = tuning.tune_model(model, x, train=train, policy=policy)
    assert {line.split()[0] for line in best} >= {"conv_fwd", "pool_fwd", "softmax_fwd"}
    assert all(row["status"] == "ok" for row in best.values())
    assert not is_enabled()
    before = tuning.entries()
    with torch.autocast(device, torch.bfloat16):
        with enabled(f"autotune;{policy}"), torch.set_grad_enabled(train):
            y = model(x)
            if train:
                y.float().square().sum().backward()
        assert tuning.entries() == before
        assert tuning.tune_model(model, x, train=train, policy=policy) == {}
        other = policy.replace("64MiB", "32MiB")
        again = tuning.tune_model(model, x, train=train, policy=other)
    assert again.keys() == best.keys()  # other constraints, other rankings
    with pytest.raises(ValueError, match="tune_model: got a model and inputs without a tensor"):
        tuning.tune_model(nn.Identity(), None)


def test_a_model_is_tuned_in_the_precision_of_the_policy() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    (line,) = tuning.tune_model(layer, x, train=False, policy="compute=f64", time_budget_s=0.1)
    assert "compute=f64" in line
    with enabled("autotune;compute=f64"), torch.no_grad():
        layer(x)
    choice = newest("conv_fwd")
    assert (choice.problem, choice.why) == (line, "cached")


def test_tuning_a_model_while_enabled_leaves_that_as_it_is() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 6, 6)
    with enabled("autotune;deterministic;backends=aten,cpu"):
        before = _C.resolved_policy(None)
        best = tuning.tune_model(model, x, train=False, time_budget_s=0.1)
        assert [line.split()[0] for line in best] == ["conv_fwd", "softmax_fwd"]
        assert all("deterministic" in entry["constraints"] for entry in tuning.entries())
        assert is_enabled() and _C.resolved_policy(None) == before
        table = tuning.entries()
        model(x)
        assert tuning.entries() == table  # nothing was left to measure


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_of_all_kinds(device: str, training: bool) -> None:
    model, x = AllKinds(recurrent=False).to(device).train(training), images(device, 16)
    other = copy.deepcopy(model)
    compiled: Any = torch.compile(other, backend="aot_eager", fullgraph=True)
    found: list[Tensor] = []
    with enabled():
        ran = passes_of(lambda: found.extend(run(compiled, x)))
    forward = "batch_norm_fwd" if training else "batch_norm_infer"
    wanted = {*KINDS.values(), "batch_norm_bwd", "pool_bwd", "layer_norm_bwd", "softmax_bwd"}
    assert (wanted - {"rnn_fwd", "batch_norm_fwd"}) | {forward} <= set(ran)
    check_equal(found, run(model, x), 1e-3)
    check_equal(list(other.buffers()), list(model.buffers()))


def test_inference_mode_of_all_kinds(device: str) -> None:
    model, x = AllKinds().to(device).eval(), images(device, 16)
    found: list[Tensor] = []
    with torch.inference_mode():
        plain = model(x)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode(), enabled():
            ran = passes_of(lambda: found.append(model(x)))
        assert set(ran) == {*KINDS.values(), "batch_norm_infer"} - {"batch_norm_fwd"}
        check_equal(found[-1:], [plain])
        assert found[-1].is_inference() == (mode is torch.inference_mode)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_all_kinds(device: str, dtype: torch.dtype) -> None:
    recurrent = device == "cpu" and dtype == torch.bfloat16
    model, x = AllKinds(recurrent or device == "cuda").to(device), images(device, 16)
    other = copy.deepcopy(model)
    with torch.autocast(device, dtype):
        plain = run(model, x)
        with enabled():
            ours = run(other, x)
    assert [t.dtype for t in ours] == [t.dtype for t in plain]
    check_equal(ours[:1], plain[:1], 0.1)


def refused(call: Callable[[], object]) -> dict[str, int]:
    """What was declined; the result is PyTorch's, bit for bit."""
    plain = call()
    with enabled():
        ours = call()
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    return declined(reset=True)


def test_what_the_operators_cannot_express_is_declined(device: str) -> None:
    x = torch.randn(1, 4, device=device)
    reasons = refused(lambda: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False))
    assert reasons == {"batch_norm: there is one value per channel": 1}
    batch = torch.randn(3, 4, device=device)
    image, w = torch.randn(1, 3, 5, 5, device=device), torch.randn(2, 3, 3, 3, device=device)
    two = [1, 1]
    reasons = refused(lambda: torch.convolution(image, w, None, two, two, two, False, two, 1))
    assert reasons == {"convolution: output_padding of a convolution that is not transposed": 1}
    if device == "cpu":
        one = torch.zeros(1)
        shared = refused(
            lambda: F.batch_norm(batch.cpu(), one.expand(4), one.expand(4), None, None, True)
        )
        assert shared == {"batch_norm: elements of a running statistic share memory": 1}
        integers = torch.arange(16).view(1, 1, 4, 4)
        assert refused(lambda: F.max_pool2d(integers, 2)) == {"max_pool2d: input is Long": 1}
    forward_ad: Any = torch.autograd.forward_ad
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "batch_norm": lambda t: F.batch_norm(t, None, None, training=True),
        "layer_norm": lambda t: F.layer_norm(t, (4,)),
        "group_norm": lambda t: F.group_norm(t, 2),
        "avg_pool2d": lambda t: F.avg_pool2d(t.view(1, 1, 3, 4), 2),
        "max_pool2d": lambda t: F.max_pool2d(t.view(1, 1, 3, 4), 2),
    }
    for name, function in functions.items():

        def tangent(function: Callable[[Tensor], Tensor] = function) -> Tensor:
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(batch, torch.ones_like(batch))
                result: Tensor = forward_ad.unpack_dual(function(dual)).tangent
            return result

        assert refused(tangent) == {f"{name}: input has a tangent (forward-mode AD)": 1}


def test_what_ours_alone_refuse_goes_to_pytorch() -> None:
    # On the CPU: PyTorch's CUDA kernel refuses such a weight as well.
    x, ones = torch.randn(2, 3, 4), torch.ones(3)
    reasons = refused(lambda: F.batch_norm(x, None, None, ones.view(1, 3), training=True))
    assert list(reasons.values()) == [1] and "weight has sizes [1, 3]" in next(iter(reasons))


def test_what_pytorch_refuses_of_all_kinds(device: str) -> None:
    x, w = torch.randn(2, 3, 5, 5, device=device), torch.ones(2, device=device)
    calls: list[Callable[[], object]] = [
        lambda: F.batch_norm(x, None, w, training=False),
        lambda: F.batch_norm(x, w, w, training=False),
        lambda: F.batch_norm(x, None, None, w, training=True),
        lambda: F.max_pool2d(x, 7),
        lambda: F.max_pool2d(x, 2, padding=2),
        lambda: F.avg_pool2d(x, 7),
        lambda: F.avg_pool2d(x, 2, divisor_override=0),
        lambda: F.layer_norm(x, (4,)),
        lambda: F.group_norm(x, 2),
        lambda: nn.LSTM(3, 4).to(device)(x[0, 0]),
    ]
    for call in calls:
        with pytest.raises(Exception) as plain:  # noqa: PT011 - compared below
            call()
        with enabled(), pytest.raises(Exception) as ours:  # noqa: PT011
            call()
        assert str(ours.value).splitlines()[0] == str(plain.value).splitlines()[0]


def test_the_policy_is_between_rules_and_flags(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    knobs.conv_fwd_algo = "aten:default"
    with enabled(f"fwd={pin}"), torch.no_grad():
        net(x)
        assert ran().startswith(pin)
        with knobs.flags(conv_fwd_algo="aten:default"):
            net(x)
            assert ran().startswith(pin)
        with when("conv_fwd", use="aten:default"):
            net(x)
            assert ran() == "aten:default"
            torch_cudnn_ext.ops.conv2d(x, net.first.weight, policy=f"fwd={pin}")
            assert ran().startswith(pin)
    net(x)
    torch_cudnn_ext.ops.conv2d(x, net.first.weight)
    assert ran() == "aten:default"  # the knob's


def test_backward_keeps_to_the_policy_of_its_forward(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    enable("bwd_filter=" + ("cpu:im2col" if device == "cpu" else "legacy:algo_0"))
    y = net(x).sum()
    disable()
    y.backward()
    assert ran("conv_bwd_filter").startswith(pin if device == "cpu" else "legacy:algo_0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(net: Net, device: str, dtype: torch.dtype) -> None:
    x = images(device)
    with torch.autocast(device, dtype):
        plain = run(net, x)
    with enabled(), torch.autocast(device, dtype):
        ours = run(net, x)
    assert f"x={'bf16' if dtype == torch.bfloat16 else 'f16'}[" in newest("conv_fwd").problem
    assert [t.dtype for t in ours] == [t.dtype for t in plain]
    check_equal(ours, plain, 0.1)


@pytest.mark.parametrize("first", ["enable", "compile"])
def test_compiled_before_or_after(net: Net, device: str, first: str) -> None:
    x = images(device)
    plain = run(net, x)
    compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
    if first == "compile":
        check_equal(run(compiled, x), plain)
    pin = OTHER[device]
    with enabled(f"fwd={pin}"):
        check_equal(run(compiled, x), plain)
        assert ran().startswith(pin)
    torch_cudnn_ext.ops.conv2d(x, net.first.weight.detach(), policy="aten:default")
    check_equal(run(compiled, x), plain)
    assert ran() == "aten:default"  # no call since was ours


def test_what_our_operators_refuse_is_declined_in_compiled_models_too() -> None:
    # On the CPU: PyTorch's CUDA kernel refuses such a stride as well.
    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=2**31)

    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    w = torch.randn(4, 4, 3, 3)
    wanted = convolve(x, w)
    (gradient,) = torch.autograd.grad(wanted.sum(), x)
    with enabled():
        y = torch.compile(convolve, fullgraph=True, backend="aot_eager")(x, w)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], gradient)
        (reason,) = declined()
        assert "stride is [2147483648, 2147483648], wanted at least 1" in reason


def test_a_pooling_stride_beyond_32_bits_stays_pytorchs() -> None:
    x = torch.randn(1, 1, 8)
    wanted = F.max_pool1d(x, 2, stride=2**31)
    with enabled():
        torch.testing.assert_close(F.max_pool1d(x, 2, stride=2**31), wanted)
        (reason,) = declined()
        assert "stride is [2147483648], wanted at least 1 and less than 2^31" in reason


def test_operators_stay_whole_in_a_compiled_graph(net: Net, device: str) -> None:
    from torch._dynamo.backends.common import aot_autograd

    seen: list[str] = []

    def collect(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    with enabled():
        compiled: Any = torch.compile(
            net, backend=aot_autograd(fw_compiler=collect), fullgraph=True
        )
        compiled(images(device)).sum().backward()
    for name in ("convolution", "convolution_backward_input", "convolution_backward_weight"):
        assert f"torch_cudnn_ext.{name}.default" in seen
    assert not any(name.startswith("aten.convolution") for name in seen)


@pytest.mark.parametrize("policy", [None, "backends=cpu"])
def test_traces_are_pytorchs(device: str, policy: str | None) -> None:
    model = Net().to(device)
    x, other = images(device), images(device)
    plain, trace = model(other), torch.jit.trace(model, x)
    kinds = [node.kind() for node in trace.inlined_graph.nodes()]
    with enabled(policy if device == "cpu" else None):
        ours = torch.jit.trace(model, x, check_trace=False)
        assert [node.kind() for node in ours.inlined_graph.nodes()] == kinds
        found = ours(other)
    check_equal([found, ours(other)], [plain, plain])


@pytest.mark.parametrize("recorded", [False, True])
def test_maxima_of_sequences_have_pytorchs_strides(recorded: bool, device: str) -> None:
    x = randn(device, 1, 8, 2).transpose(1, 2).detach().requires_grad_(recorded)
    for t in (x, x[0]):
        wanted = F.max_pool1d(t, 2).stride()
        with enabled("heuristic"):
            assert F.max_pool1d(t, 2).stride() == wanted


@pytest.mark.parametrize("dims", [2, 3])
def test_one_pixel_keeps_the_layout_of_many(dims: int, device: str) -> None:
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    x = randn(device, 2, 8, *(4, 3, 3)[:dims]).to(memory_format=layout)
    names = ("adaptive_avg_pool", "adaptive_max_pool", "max_pool", "avg_pool")
    for function, size in [(getattr(F, f"{name}{dims}d"), 1) for name in names[:2]] + [
        (getattr(F, f"{name}{dims}d"), (4, 3, 3)[:dims]) for name in names[2:]
    ]:
        wanted = function(x, size).stride()
        with enabled("heuristic"):
            assert function(x, size).stride() == wanted, function


def test_results_may_be_changed_in_place(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)).to(device)
    x = images(device)
    plain = run(model, x)
    pin = "pool=cpu:taps" if device == "cpu" else "pool=legacy:max;allow_reduced_range"
    for policy in (None, pin, "heuristic", "autotune"):
        with enabled(policy):
            check_equal(run(model, x), plain)
    assert declined() == {}


def test_the_users_own_cache_tag_is_kept() -> None:
    from torch.compiler import config

    mine = "my_torch_cudnn_ext"
    before, config.cache_key_tag = config.cache_key_tag, mine
    try:
        with enabled():
            assert config.cache_key_tag not in (mine, "")
        assert config.cache_key_tag == mine
    finally:
        config.cache_key_tag = before


def test_inference_mode_and_no_grad(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            plain = net(x)
            with enabled(f"fwd={pin};bwd_data={pin if device == 'cpu' else 'aten:default'}"):
                ours = net(x)
                assert ran().startswith(pin)
                F.softmax(x, 1)
        check_equal([ours], [plain])


def test_double_backward(device: str) -> None:
    x = torch.randn(1, 2, 5, 5, dtype=torch.double, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, dtype=torch.double, device=device, requires_grad=True)
    b = torch.randn(3, dtype=torch.double, device=device, requires_grad=True)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.softmax(F.conv2d(x, w, b, padding=1), 1)

    with enabled():
        # On a GPU the default algorithms need not repeat bit for bit.
        assert torch.autograd.gradcheck(function, (x, w, b), nondet_tol=1e-10)
        assert torch.autograd.gradgradcheck(function, (x, w, b), nondet_tol=1e-10)


def test_checkpoint_and_gradient_accumulation(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]

    def accumulate(forward: Callable[[Tensor], Any]) -> list[Tensor]:
        net.zero_grad()
        for part in (x[:1], x[1:]):
            forward(part).square().sum().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    plain = accumulate(net)
    for reentrant in (False, True):
        with enabled(f"fwd={pin}"):
            ours = accumulate(
                lambda part, reentrant=reentrant: checkpoint(  # type: ignore[misc]
                    net, part.requires_grad_(), use_reentrant=reentrant
                )
            )
            assert ran().startswith(pin)
        check_equal(ours, plain)


def test_distributed_data_parallel(device: str, tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = Net().to(device)
        x, pin = images(device), OTHER[device]
        plain = run(net, x)
        wrapped = nn.parallel.DistributedDataParallel(net)
        with enabled(f"fwd={pin}"):
            check_equal(run(wrapped, x), plain)
            assert ran().startswith(pin)
    finally:
        dist.destroy_process_group()


def test_off_means_off(net: Net, device: str) -> None:
    before, x = dispatch_tables(), images(device)
    plain = run(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What torch._inductor warns of where it is first imported.
        warnings.filterwarnings("ignore", message="`torch.jit.script_method` is deprecated")
        enable()
    assert dispatch_tables() != before
    run(net, x)
    disable()
    assert dispatch_tables() == before
    assert all(torch.equal(a, b) for a, b in zip(run(net, x), plain, strict=True))
    assert "TorchCudnnExt" not in F.conv2d(x, net.first.weight).grad_fn.name()  # type: ignore[union-attr]
    for name in ("conv_fwd_algo", "conv_bwd_data_algo", "conv_bwd_filter_algo"):
        assert not hasattr(torch.backends.cudnn, name)
    assert "flags" not in vars(torch.backends.cudnn)


def test_twice_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="disable.*not enabled"):
        disable()
    enable()
    with pytest.raises(RuntimeError, match="enabled already"):
        enable()
    assert is_enabled()
    disable()
    with pytest.raises(RuntimeError, match="not enabled"):
        disable()


@pytest.mark.parametrize("policy", ["fwd=nonsense", "backends=rocm", "time_once"])
def test_a_bad_policy_leaves_pytorch_as_it_was(policy: str) -> None:
    before = dispatch_tables()
    with pytest.raises(ValueError):
        enable(policy)
    assert not is_enabled()
    assert dispatch_tables() == before


def test_a_pin_of_what_there_is_not_is_refused() -> None:
    for policy, wanted in (
        ("cpu:nonsense", "got 'cpu:nonsense' for conv_fwd, wanted one of .*cpu:im2col"),
        ("cpu:online", "for conv_fwd.*it is an algorithm of softmax"),
        ("cpu:im2col;softmax=cpu:im2col", "for softmax_fwd.*it is an algorithm of conv"),
        ({"fwd": "cpu:nonsense"}, "got 'cpu:nonsense' for conv_fwd"),
        ("softmax=cpu:nonsense", "got 'cpu:nonsense' for softmax_fwd"),
    ):
        with pytest.raises(ValueError, match=wanted), enabled(policy):
            pass
        with pytest.raises(ValueError, match=wanted):
            tuning.tune([], device="cpu", policy=policy)
        assert not is_enabled()
    for policy in (
        "cpu:im2col;softmax=cpu:online",
        "fwd=graph:eng99/k2=1",  # only a GPU tells
        "cpu:nonsense;on_unsupported=fallback",
    ):
        with enabled(policy):
            pass


def test_enabled_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), enabled():
        raise KeyError
    assert not is_enabled()


def test_what_is_not_ours_is_declined_and_counted(device: str) -> None:
    x = torch.randn(2, 4, device=device)
    tangent = torch.randn(2, 4, device=device)
    with enabled():
        if device == "cpu":
            integers = torch.ones(1, 1, 4, 4, dtype=torch.int64)
            assert F.conv2d(integers, integers[..., :2, :2]).sum() == 36
            assert declined() == {"convolution: input is Long": 1}
        forward_ad: Any = torch.autograd.forward_ad
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            found = forward_ad.unpack_dual(F.softmax(dual, 1)).tangent
    y = x.softmax(1)
    check_equal([found], [y * (tangent - (y * tangent).sum(1, True))])
    counts = declined(reset=True)
    assert counts["_softmax: input has a tangent (forward-mode AD)"] == 1
    assert declined() == {}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_the_tangent_of_a_bias_alone_is_kept(mode: Any, device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    tangent = torch.randn(3, device=device)
    forward_ad: Any = torch.autograd.forward_ad
    with mode(), enabled(), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(3, device=device), tangent)
        found = forward_ad.unpack_dual(F.conv2d(x, w, dual)).tangent
    check_equal([found], [tangent.view(1, 3, 1, 1).expand(1, 3, 3, 3)])


def test_subclasses_that_know_only_pytorchs_operators() -> None:
    from torch.testing._internal import two_tensor

    TwoTensor: Any = two_tensor.TwoTensor
    one, two = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 5, 5)
    w = torch.randn(3, 2, 3, 3)
    with enabled():
        both = F.conv2d(TwoTensor(one, two), TwoTensor(w, w))
    assert isinstance(both, TwoTensor)
    torch.testing.assert_close(both.b, F.conv2d(two, w))
    assert any("__torch_dispatch__" in reason for reason in declined())


@pytest.mark.parametrize(
    ("sizes", "weight"), [((1, 3, 5, 5), (4, 2, 3, 3)), ((1, 2, 2, 2), (4, 2, 3, 3))]
)
def test_what_pytorch_refuses_is_refused_in_its_words(
    device: str, sizes: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    x, w = torch.randn(sizes, device=device), torch.randn(weight, device=device)
    messages = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            F.conv2d(x, w)
        messages.append(str(caught.value).splitlines()[0])
        if not is_enabled():
            enable()
    assert messages[0] == messages[1]


@pytest.mark.parametrize("sizes", [(0, 2, 5, 5), (2, 5, 5)])
def test_empty_and_unbatched(device: str, sizes: tuple[int, ...]) -> None:
    x, w = torch.randn(sizes, device=device), torch.randn(3, 2, 3, 3, device=device)
    plain = F.conv2d(x, w)
    with enabled():
        ours = F.conv2d(x, w)
    assert ours.shape == plain.shape
    assert ours.stride() == plain.stride()
    torch.testing.assert_close(ours, plain)


def test_measuring_and_references_are_pytorchs_own(device: str) -> None:
    problem = "conv_fwd x=f32[1,2,5,5]:nchw w=f32[3,2,3,3]:nchw"
    with enabled("fwd=" + OTHER[device]):
        tensors = _C.scratch(problem, device)
        reference = _C.reference(problem, tensors)["y"]
        result = _C.run(problem, "aten:default", tensors)["y"]
        assert _C.relative_error(result, reference) < 1e-5
        rows = _C.measure(problem, device, algorithms=["aten:default"], min_samples=1)
    assert rows[0]["status"] == "ok"


def test_functorch(device: str) -> None:
    x, w = torch.randn(4, 1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, w).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    plain = per_sample(w, x)
    with enabled():
        check_equal([per_sample(w, x)], [plain])
    assert declined()["convolution: a transform of torch.func"] > 0


def test_threads(net: Net, device: str) -> None:
    x = images(device)
    plain = run(copy.deepcopy(net), x)
    results: list[list[Tensor]] = []
    with enabled(AUTOTUNE[device]):
        copies = [copy.deepcopy(net) for _ in range(4)]

        def work(model: Net) -> None:
            for _ in range(3):
                result = run(model, x)
            results.append(result)

        threads = [threading.Thread(target=work, args=(model,)) for model in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 4
    for result in results:
        check_equal(result, plain)


# Rules by problem.


def test_a_rule_chooses_for_the_problems_that_match(device: str) -> None:
    pin = OTHER[device]
    small, large = (torch.randn(1, 2, n, n, device=device) for n in (5, 9))
    w = torch.randn(3, 2, 3, 3, device=device)
    rule = when("conv_fwd x=*[1,2,5,5]* pad=0 align=16", use=pin)
    torch_cudnn_ext.ops.conv2d(small, w)
    choice = newest("conv_fwd")
    assert choice.algorithm.startswith(pin)
    assert choice.why == 'pinned by when("conv_fwd x=*[1,2,5,5]* pad=0 align=16")'
    torch_cudnn_ext.ops.conv2d(large, w, policy="aten:default")
    assert ran() == "aten:default"
    torch_cudnn_ext.ops.conv2d(small, w, policy="fwd=aten:default")  # a call is stronger
    assert ran() == "aten:default"
    knobs.conv_fwd_algo = "aten:default"  # a knob is weaker
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran().startswith(pin)
    newer = when("conv_fwd", use="aten:default")
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran() == "aten:default"
    newer.remove()
    rule.remove()
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran() == "aten:default"  # the knob's
    with pytest.raises(ValueError, match="removed before"):
        rule.remove()


def test_a_rule_matches_however_its_value_is_spelt() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    for value in ("stride=1,1", "pad=0,0", "stride=1"):
        with when(f"conv_fwd {value}", use="cpu:im2col"):
            torch_cudnn_ext.ops.conv2d(x, w)
            assert ran("conv_fwd") == "cpu:im2col"
    elu = "activation_fwd x=f32[64]:nchw kind=elu coefficient=0.5"
    for rule, line, matches in (
        ("activation_fwd coefficient=0.5", elu, True),
        ("activation_fwd coefficient=0.50", elu, True),
        ("activation_fwd coefficient=0.5", "activation_fwd x=f32[64]:nchw kind=relu", False),
        (
            "lrn_fwd window=cudnn",
            "lrn_fwd x=f32[2,8,64]:nchw kind=cross_channel size=4 window=cudnn",
            True,
        ),
        ("lrn_fwd window=cudnn", "lrn_fwd x=f32[2,8,64]:nchw kind=cross_channel size=4", False),
    ):
        with when(rule, use="deterministic"):
            assert ("deterministic" in _C.policy_for(_C.canonical_problem(line), "")) == matches
    with when("lrn_fwd alpha=0.0001", use="cpu:shifted"):
        torch_cudnn_ext.ops.local_response_norm(x, 2, alpha=1e-4)
        assert ran("lrn_fwd") == "cpu:shifted"


def test_a_rule_matches_with_and_without_a_bias(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    bias = torch.randn(3, device=device)
    calls = [lambda: F.conv2d(x, w), lambda: F.conv2d(x, w, bias)]

    def found(matcher: str) -> list[bool]:
        with when(matcher, use=OTHER[device]), enabled("aten:default"):
            return [call() is not None and ran().startswith(OTHER[device]) for call in calls]

    assert found("conv_fwd w=*[3,2,3,3]* pad=0") == [True, True]
    assert found("conv_fwd bias=f32") == [False, True]
    assert found("conv_fwd bias=") == [True, False]


def test_a_rule_reaches_the_backward_that_saved_its_policy(device: str) -> None:
    pin = "cpu:direct" if device == "cpu" else "legacy:algo_0"
    x = torch.randn(1, 2, 5, 5, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, device=device, requires_grad=True)
    knobs.conv_bwd_filter_algo = "aten:default"
    y: Any = torch_cudnn_ext.ops.conv2d(x, w).sum()
    with when("conv_bwd_filter", use=pin):
        y.backward()
    assert ran("conv_bwd_filter").startswith(pin)
    y = torch_cudnn_ext.ops.conv2d(x, w, policy="bwd_filter=aten:default").sum()
    with when("conv_bwd_filter", use=pin):
        y.backward()
    assert ran("conv_bwd_filter") == "aten:default"


def test_a_rule_costs_nothing_on_warm_calls(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    with when("conv_fwd", use="aten:default"):
        torch_cudnn_ext.ops.conv2d(x, w)
        misses = _C.plan_cache_info()["misses"]
        torch_cudnn_ext.ops.conv2d(x, w)
        assert _C.plan_cache_info()["misses"] == misses


@pytest.mark.parametrize(
    ("matcher", "use", "wanted"),
    [
        ("", "autotune", "empty"),
        ("conv_forward", "autotune", "conv_fwd"),
        ("conv_fwd widht=3", "autotune", "no field 'widht'.*pad"),
        ("conv_fwd 3x3", "autotune", "key=glob"),
        ("conv_fwd", "nonsense", "nonsense"),
        ("conv_fwd", "bwd_data=autotune", "rule is for conv_fwd"),
        ("conv_fwd", "compute=f64", "compute"),
        ("softmax_fwd", "legacy:fft/math", "math"),
        ("conv_fwd pad=1 pad=2", "autotune", "'pad' twice"),
        ("conv_fwd", "cpu:im2cool", "cpu:im2cool' for conv_fwd, wanted one of .*cpu:im2col"),
        ("softmax_bwd", "bwd=cpu:fft", "softmax_bwd.*it is an algorithm of conv"),
        ("conv_fwd", 99, "99"),
    ],
)
def test_a_wrong_rule_is_an_error(matcher: str, use: str | int, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        when(matcher, use)


# torch.backends.cudnn.


def chosen(op: str = "conv_fwd") -> str:
    """What a GPU that need not be there would run, or be told to."""
    problem = f"{op} x=f32[8,64,28,28]:nchw w=f32[64,64,3,3]:nchw pad=1"
    try:
        return _C.decide(problem, "target:h200")["algorithm"]
    except RuntimeError as error:  # the classic API answers only with a GPU at hand
        pinned = re.search("the pinned algorithm (legacy:.*) cannot run", str(error))
        assert pinned is not None, error
        return pinned[1]


def test_attributes_of_torch_backends_cudnn() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        assert (cudnn.conv_fwd_algo, cudnn.conv_bwd_data_algo, cudnn.conv_bwd_filter_algo) == (
            -1,
            -1,
            -1,
        )
        cudnn.conv_fwd_algo = 1
        cudnn.conv_bwd_filter_algo = "algo_1"
        assert chosen().startswith("legacy:implicit_precomp_gemm")
        assert chosen("conv_bwd_filter").startswith("legacy:algo_1")
        cudnn.conv_fwd_algo = 0  # a seen shape
        assert chosen().startswith("legacy:implicit_gemm")
        knobs.conv_fwd_algo = "implicit_precomp_gemm"  # stronger
        assert chosen().startswith("legacy:implicit_precomp_gemm")
        knobs.conv_fwd_algo = None
        cudnn.conv_fwd_algo = -1
        cudnn.conv_bwd_filter_algo = -1
        assert not chosen().startswith("legacy:implicit_gemm")
        for wrong, kind in (
            ("nonsense", ValueError),
            ("cpu:nonsense", ValueError),
            ("time_once", ValueError),
            (99, ValueError),
            (1.5, TypeError),
            ([1], TypeError),
        ):
            with pytest.raises(kind, match="torch.backends.cudnn.conv_fwd_algo"):
                cudnn.conv_fwd_algo = wrong
        assert cudnn.conv_fwd_algo == -1
    with enabled("on_unsupported=fallback"):
        cudnn.conv_fwd_algo = "cpu:nonsense"  # which anything may replace
        cudnn.conv_fwd_algo = -1


@pytest.mark.parametrize("at", ["before", "within", "behind"])
def test_ctrl_c_leaves_nothing_enabled(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn: Any = torch.backends.cudnn
    before, tag = dispatch_tables(), torch.compiler.config.cache_key_tag

    class Interrupting(backends._Pin):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            if name == "conv_bwd_data_algo":
                raise KeyboardInterrupt

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cudnn.conv_fwd_algo = 0
    try:
        with monkeypatch.context() as patch:
            if at == "before":
                patch.setattr(backends, "install", interrupt)
            elif at == "within":
                patch.setattr(backends, "_Pin", Interrupting)
            else:
                patch.setattr(enabling, "_forget_compiled", interrupt)
            with pytest.raises(KeyboardInterrupt):
                enable("fwd=cpu:direct")
            # What undoes it is interrupted too, behind all that it calls.
            assert is_enabled() == (at == "behind")
        if is_enabled():
            disable()
        assert not is_enabled() and dispatch_tables() == before
        assert "flags" not in vars(cudnn) and vars(cudnn)["conv_fwd_algo"] == 0
        assert _C.enabled_policy() == "" and torch.compiler.config.cache_key_tag == tag
        with enabled():
            assert cudnn.conv_fwd_algo == 0
    finally:
        vars(cudnn).pop("conv_fwd_algo", None)


def test_a_value_set_before_is_adopted_and_kept() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.conv_fwd_algo = 0
    assert not chosen().startswith("legacy:implicit_gemm")
    try:
        with enabled():
            assert cudnn.conv_fwd_algo == 0
            assert chosen().startswith("legacy:implicit_gemm")
        assert cudnn.conv_fwd_algo == 0
        assert not chosen().startswith("legacy:implicit_gemm")
        cudnn.conv_fwd_algo = "nonsense"
        before = dispatch_tables()
        with pytest.raises(ValueError, match="conv_fwd_algo"):
            enable()
        assert not is_enabled()
        assert dispatch_tables() == before
    finally:
        del cudnn.conv_fwd_algo


def test_a_pin_of_flags_ends_with_them_also_where_disabled_inside() -> None:
    cudnn: Any = torch.backends.cudnn
    enable()
    with cudnn.flags(conv_fwd_algo=5):
        disable()
    assert not hasattr(cudnn, "conv_fwd_algo")
    with enabled():
        assert cudnn.conv_fwd_algo == -1
        cudnn.conv_fwd_algo = 1
        with cudnn.flags(conv_fwd_algo=5):
            disable()
            enable()
            assert cudnn.conv_fwd_algo == 5
        assert cudnn.conv_fwd_algo == 1
        cudnn.conv_fwd_algo = -1


def test_pins_of_several_threads_do_not_undo_each_other() -> None:
    cudnn: Any = torch.backends.cudnn
    names = ("conv_fwd_algo", "conv_bwd_data_algo")
    kept = dict.fromkeys(names, 0)

    def work(name: str) -> None:
        for value in (0, 1) * 300:
            setattr(cudnn, name, value)
            kept[name] += getattr(cudnn, name) == value

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with enabled():
            threads = [threading.Thread(target=work, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for name in names:
                setattr(cudnn, name, -1)
    finally:
        sys.setswitchinterval(before)
    assert kept == dict.fromkeys(names, 600)


def test_flags_leave_what_they_do_not_name() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic = True, True
    with enabled():
        with cudnn.flags(conv_fwd_algo=0):
            assert cudnn.conv_fwd_algo == 0
            assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, True, True)
            with cudnn.flags(conv_fwd_algo=1, benchmark=False):
                assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (1, False)
                assert cudnn.deterministic
            assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (0, True)
        assert cudnn.conv_fwd_algo == -1
        with cudnn.flags(enabled=True):  # PyTorch's own
            assert (cudnn.benchmark, cudnn.deterministic) == (False, False)
        with (
            pytest.raises(TypeError, match="benchmrk"),
            cudnn.flags(conv_fwd_algo=0, benchmrk=True),
        ):
            pass
        with pytest.raises(ValueError, match="conv_fwd_algo"), cudnn.flags(conv_fwd_algo="x"):
            pass
        assert cudnn.conv_fwd_algo == -1


def test_a_cudnn_pin_leaves_the_cpu_alone() -> None:
    cudnn: Any = torch.backends.cudnn
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    with enabled():
        cudnn.conv_fwd_algo = 1
        F.conv2d(x, w)
        assert ran() == "aten:default"
        cudnn.conv_fwd_algo = -1


def test_autotune_for_all_operators(device: str) -> None:
    with enabled(Policy("autotune")):
        assert Policy.parse(_C.resolved_policy(None, "softmax"), "softmax").get("fwd") is None
    with enabled("autotune"):
        for family, name in (("conv", "bwd_data"), ("softmax", "fwd")):
            policy = Policy.parse(_C.resolved_policy(None, family), family)
            assert policy.get(name) == "autotune"


def test_floating_point_operations_are_counted(device: str) -> None:
    x = torch.randn(2, 6, 9, 8, device=device, requires_grad=True)
    model = nn.Sequential(
        nn.Conv2d(6, 4, 3, stride=2), nn.ConvTranspose2d(4, 3, 3), nn.Flatten()
    ).to(device)

    def total(call: Callable[[], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter:
            call().sum().backward()
        return int(counter.get_total_flops())

    plain = total(lambda: model(x))
    with enabled():
        assert total(lambda: model(x)) == plain > 0
    weight = torch.randn(5, 8, device=device, requires_grad=True)
    wanted = total(lambda: F.linear(x, weight))
    assert total(lambda: torch_cudnn_ext.ops.linear(x, weight)) == wanted > 0


def test_results_can_be_viewed_as_pytorchs_can(device: str) -> None:
    sequence = torch.randn(2, 5, 3, device=device)
    filters = torch.randn(4, 3, 3, device=device)
    volume = torch.randn(1, 3, 2, 3, 2, device=device).to(memory_format=torch.channels_last_3d)
    up = torch.randn(3, 2, 2, 2, 2, device=device)

    def results() -> list[Tensor]:
        y = F.conv_transpose3d(volume, up, stride=2)
        return [
            F.conv1d(sequence.transpose(1, 2), filters).view(2, -1),
            y.view(1, -1) if device == "cpu" else y,
        ]

    plain = results()
    with enabled():
        ours = results()
        compiled = torch.compile(results, backend="aot_eager")()
    check_equal(ours, plain)
    check_equal(compiled, plain)
    assert [y.stride() for y in plain] == [y.stride() for y in ours]
    assert declined() == {}


def test_output_padding_beyond_stride(device: str) -> None:
    model = nn.ConvTranspose2d(3, 2, 3, dilation=2, output_padding=1).to(device)
    x = images(device, 4)
    plain = run(model, x)
    with enabled():
        ours = run(model, x)
        assert ran("conv_bwd_data")
    check_equal(ours, plain)
    assert declined() == {}


def test_an_end_inside_its_block_is_no_error() -> None:
    with enabled():
        disable()
    with pytest.raises(KeyError), enabled():
        disable()
        raise KeyError
    assert not is_enabled()
    with when("conv_fwd", use="aten:default") as rule:
        rule.remove()
    with pytest.raises(KeyError), when("conv_fwd", use="aten:default") as rule:
        rule.remove()
        raise KeyError
    with pytest.raises(ValueError):
        rule.remove()


def test_a_rule_takes_the_integer_of_its_pass(tmp_path: Path) -> None:
    for op, number in (("conv_fwd", 1), ("conv_bwd_data", 0)):
        with when(op, use=number) as rule, when(op, use=str(number)) as same:
            assert (rule.matcher, rule.use) == (same.matcher, same.use)
    torch_cudnn_ext.save_pins(tmp_path / "pins.toml", {}, {"conv_fwd": 1})
    assert torch_cudnn_ext.load_rules(tmp_path / "pins.toml") == {"conv_fwd": "1"}
    with pytest.raises(TypeError, match=r"got True \(bool\)"):
        when("conv_fwd", use=True)


def test_a_matcher_is_a_text() -> None:
    with pytest.raises(TypeError, match="argument matcher: got 3"):
        when(3, use="autotune")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind"),
    [
        ((), {"benchmark": True, "conv_fwd_algo": "x"}, ValueError),
        ((), {"benchmark": True, "deterministic": "x", "conv_fwd_algo": 0}, Exception),
        ((False,), {"enabled": True, "conv_fwd_algo": 0}, TypeError),
        ((True,) * 9, {"conv_fwd_algo": 0}, TypeError),
    ],
)
def test_flags_that_are_refused_change_nothing(
    arguments: tuple[Any, ...], keywords: dict[str, Any], kind: type[Exception]
) -> None:
    cudnn: Any = torch.backends.cudnn
    before = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    with enabled():
        with pytest.raises(kind), cudnn.flags(*arguments, **keywords):
            pass
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == before
        assert cudnn.conv_fwd_algo == -1
        with cudnn.flags(False, conv_fwd_algo=0):
            assert not cudnn.enabled


def test_a_rule_s_keywords_are_of_its_operator() -> None:
    with when("softmax_fwd", use={"fwd": "accurate"}) as rule:  # no name of convolution's
        assert rule.use == "fwd=legacy:accurate"
    x = torch.randn(2, 3, requires_grad=True)
    with when("softmax_bwd", use={"bwd": "cpu:three_pass"}):  # no pass of convolution's
        torch.autograd.grad(torch_cudnn_ext.ops.softmax(x, 1)[0, 0], x)
    assert newest("softmax_bwd").algorithm == "cpu:three_pass"


@pytest.mark.filterwarnings("ignore:.*batching rule")
def test_vectorised_hessians_of_maximum_pooling(device: str) -> None:
    layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    model = torch.nn.Sequential(*layers).double().to(device)
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, device=device)

    def hessian() -> Tensor:
        return torch.autograd.functional.hessian(
            lambda x: model(x).square().sum(), x, vectorize=True
        )

    wanted = hessian()
    with enabled():
        torch.testing.assert_close(hessian(), wanted)


@pytest.mark.parametrize("kind", ["hook", "mode"])
def test_a_value_error_of_the_users_is_the_users(kind: str, device: str) -> None:
    x = torch.randn(8, 3, 6, device=device, requires_grad=True)
    mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
    failed = []

    def fail(*_: Any) -> Any:
        failed.append(kind)
        raise ValueError("mine")

    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
            fail()

    hook = torch.autograd.graph.saved_tensors_hooks(fail, lambda t: t)
    with (
        enabled(),
        pytest.raises(ValueError, match="^mine$"),
        hook if kind == "hook" else Failing(),
    ):
        F.batch_norm(x, mean, var, training=True)
    # PyTorch's own kernel does not try again what the user stopped.
    assert failed == [kind] and not mean.any()


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg2d": lambda x: F.avg_pool2d(x, (2, 2, 2), (2, 2, 2), (0, 0, 0)),  # type: ignore[arg-type]
    "avg3d": lambda x: F.avg_pool3d(x, (2, 2), (2, 2), (0, 0)),  # type: ignore[arg-type]
    "adaptive2d": lambda x: F.adaptive_avg_pool2d(x, (2, 2, 2)),  # type: ignore[arg-type]
    "adaptive3d": lambda x: F.adaptive_avg_pool3d(x, (2, 2)),  # type: ignore[arg-type]
    "max2d": lambda x: torch.max_pool2d(x, (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    "max3d": lambda x: torch.max_pool3d(x, (2, 2), (2, 2), (0, 0), (1, 1)),
}


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_that_pytorch_refuses_is_refused(kind: str, device: str) -> None:
    x = torch.randn(2, 4, 4, 4, device=device)
    with enabled(), pytest.raises(RuntimeError):
        POOLINGS[kind](x)


@pytest.mark.parametrize("kind", ["batch_norm", "lrn"])
def test_one_image_of_interleaved_channels_stays_so(kind: str, device: str) -> None:
    image = torch.randn(8, 8, 3, device=device).permute(2, 0, 1)[None]
    layer = {"batch_norm": torch.nn.BatchNorm2d(3), "lrn": torch.nn.LocalResponseNorm(3)}[kind]
    layer = layer.to(device)
    with enabled():
        assert layer(image).is_contiguous(memory_format=torch.channels_last)
    assert convert(layer)(image).is_contiguous(memory_format=torch.channels_last)


def test_checkpoints_run_no_convolution_again_that_saves_inputs_alone(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).to(device)
    with enabled():
        y = checkpoint(model, images(device).requires_grad_(), use_reentrant=False)
        with Seeing() as seen:
            y.sum().backward()
    names = [str(function) for function, _ in seen.met]
    assert names.count("torch_cudnn_ext.convolution.default") == 1
    assert names.count("torch_cudnn_ext.convolution_backward_weight.default") == 2


def test_a_hook_that_raises_leaves_running_statistics_alone(device: str) -> None:
    def full(t: Tensor) -> Tensor:
        raise MemoryError

    norm = nn.BatchNorm2d(3).to(device)
    with (
        enabled(),
        pytest.raises(MemoryError),
        torch.autograd.graph.saved_tensors_hooks(full, lambda t: t),
    ):
        norm(images(device).requires_grad_())
    assert norm.running_mean is not None and not norm.running_mean.any()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_tuning_is_nothing_that_hooks_on_saved_tensors_see(kind: Any, device: str) -> None:
    tuning.reset()
    layer = kind(8, 4).to(device)
    x = torch.randn(5, 2, 8, device=device, requires_grad=True)
    (wanted,) = torch.autograd.grad(layer(x)[0].sum(), x)
    with enabled("autotune"):
        for _ in range(2):
            y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
            (dx,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(dx, wanted, rtol=0, atol=2e-3)  # may be TF32
    packed: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t

    for _ in range(2):
        tuning.reset()
        with (
            enabled("autotune"),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            layer(x)[0].sum().backward()
    assert len(packed) < 60 and {t.dtype for t in packed} <= {torch.float32, torch.uint8}


def test_named_tensors_are_pytorchs(device: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Named tensors")
        x = torch.randn(2, 8, 16, 16, device=device, names=("N", "C", "H", "W"))
        declined(reset=True)
        with enabled("autotune"):
            assert F.max_pool2d(x, 2).names == F.max_pool2d(x, 3).names == x.names
        assert sum(declined(reset=True).values()) == 2


def test_reasons_with_sizes_in_them_come_to_an_end(device: str) -> None:
    declined(reset=True)
    w = torch.randn(4, 3, 3, 3, device=device)
    with enabled():
        for size in range(300):
            with pytest.raises(RuntimeError):
                F.conv2d(torch.randn(1, 2, 8, 8 + size, device=device), w)
    assert 200 < len(declined()) <= 257
    assert sum(declined(reset=True).values()) == 300


def test_flags_of_a_disabled_package_pin_nothing() -> None:
    cudnn: Any = torch.backends.cudnn
    problem = "conv_fwd x=f32[8,64,28,28]:nchw w=f32[64,64,3,3]:nchw pad=1"
    with enabled():
        flags = cudnn.flags(conv_fwd_algo=1)
    with flags:
        assert cudnn.conv_fwd_algo == 1  # a plain value, which enable() would adopt
        assert _C.decide(problem, "target:h200", "")["algorithm"].startswith("graph:")
    assert not hasattr(cudnn, "conv_fwd_algo")


def test_flags_leave_pins_that_they_do_not_name() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        with cudnn.flags(conv_fwd_algo=1):
            cudnn.conv_bwd_data_algo = 1
        assert (cudnn.conv_fwd_algo, cudnn.conv_bwd_data_algo) == (-1, 1)
        cudnn.conv_bwd_data_algo = -1


def test_every_number_of_a_rule_may_be_spelt_otherwise() -> None:
    tried = 0
    for operator in _C.operators():
        for example in operator["examples"]:
            for name in operator["passes"]:
                line = " ".join([f"{operator['family']}_{name}", *example.split()[1:]])
                try:
                    canonical = _C.canonical_problem(line)
                except ValueError:  # its fields are of the forward alone
                    continue
                for word in canonical.split()[1:]:
                    key, _, value = word.partition("=")
                    if not re.fullmatch(r"[0-9.e+-]+", value):
                        continue
                    spelt = [f"{float(value):.6f}"] if "." in value or "e" in value else []
                    lists = ("pad", "stride", "dilation", "window")
                    spelt += [f"{value},{value}"] if key in lists and "," not in value else []
                    for other in (value, *spelt):
                        with when(f"{canonical.split()[0]} {key}={other}", use="deterministic"):
                            found = "deterministic" in _C.policy_for(canonical, "")
                        one_dimension = (
                            "," in other and len(canonical.split("x=")[1].split(",")) < 4
                        )
                        assert found or one_dimension, (canonical, key, other)
                        tried += 1
    assert tried > 100


def test_a_deleted_attribute_is_there_again_once_set_or_enabled_anew() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        del cudnn.conv_fwd_algo
        assert not hasattr(cudnn, "conv_fwd_algo")
        cudnn.conv_fwd_algo = 0
        assert cudnn.conv_fwd_algo == 0
        del cudnn.conv_fwd_algo
        with cudnn.flags(conv_fwd_algo=1):
            assert cudnn.conv_fwd_algo == 1
        del cudnn.conv_fwd_algo
    with enabled():
        assert cudnn.conv_fwd_algo == -1


def test_flags_may_be_all_that_pytorchs_switches_are_set_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudnn: Any = torch.backends.cudnn
    forbid = torch.backends.disable_global_flags
    with enabled():
        with monkeypatch.context() as patch:
            patch.setitem(forbid.__globals__, "__allow_nonbracketed_mutation_flag", False)
            with pytest.raises(RuntimeError, match="flags"):
                cudnn.benchmark = True
            with cudnn.flags(conv_fwd_algo=1, benchmark=True):
                assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (1, True)
        assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (-1, False)


def test_what_is_enabled_anew_goes_before_and_ends_with_its_block() -> None:
    with enabled("fwd=cpu:direct;softmax=cpu:online;compute=f64"):
        before = _C.enabled_policy()
        with pytest.raises(KeyError), enabling.enabled_anew("heuristic"):
            for family in ("conv", "softmax"):
                text = _C.resolved_policy("", family)
                assert Policy.parse(text, family).get("fwd") == "heuristic"
                assert "compute=f64" in text
            raise KeyError
        assert _C.enabled_policy() == before and is_enabled()


def test_of_rules_one_of_which_is_wrong_none_holds() -> None:
    problem = _C.canonical_problem("conv_fwd x=f32[1,2,5,5]:nchw w=f32[3,2,3,3]:nchw")
    before = _C.policy_for(problem, "")
    rules = {"conv_fwd q=1": "autotune", "conv_fwd": "cpu:im2col"}  # the last is the first made
    with pytest.raises(ValueError, match="rules: 'conv_fwd q=1' is 'autotune': .*no field"):
        torch_cudnn_ext.apply_rules(rules)
    assert _C.policy_for(problem, "") == before


class Wrapped(Tensor):
    """A tensor subclass that knows PyTorch's operators alone."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        make = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made = make(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(  # noqa: D105
        cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if function.namespace == "torch_cudnn_ext":
            raise NotImplementedError(f"{function} is not known")
        opened = tree_map_only(Wrapped, lambda t: t.inner, (arguments, keywords or {}))
        return tree_map_only(Tensor, Wrapped, function(*opened[0], **opened[1]))


@pytest.mark.parametrize("whose", ["input", "weight"])
def test_a_dispatch_mode_hands_our_operators_to_no_subclass(whose: str, device: str) -> None:
    x, w = images(device), torch.randn(4, 3, 3, 3, device=device)
    wanted = F.conv2d(x, w)
    given = {"input": x, "weight": w}
    given[whose] = Wrapped(given[whose])
    with enabled():
        for mode in (Seeing(), FlopCounterMode(display=False)):
            with mode:
                y = F.conv2d(**given)
            assert isinstance(y, Wrapped)
            torch.testing.assert_close(y.inner, wanted)
        with Seeing() as mode:
            F.conv2d(x, w)
        assert any(function.namespace == "torch_cudnn_ext" for function, _ in mode.met)


# --- what PyTorch records of a model ------------------------------------------------------------


def _operators_of(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_while_enabled_says_that_it_holds_no_pins(strict: bool) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    plain = torch.export.export
    with enabled("conv=cpu:im2col"):
        inside = torch.export.export
        with pytest.warns(UserWarning, match=r"torch.export: .*enabled.*convert\(model, policy="):
            program = torch.export.export(model, (x,), strict=strict)
        assert _operators_of(program)[0] == "aten.conv2d.default"
    assert torch.export.export is plain
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        inside(model, (x,), strict=strict)  # nothing is enabled any more
        ours_model = torch_cudnn_ext.convert(model, policy="conv=cpu:im2col")
        program = torch.export.export(ours_model, (x,), strict=strict)
    assert _operators_of(program)[0] == "torch_cudnn_ext.conv2d.default"
    program.module()(x)
    assert newest("conv_fwd").algorithm == "cpu:im2col" and newest("conv_fwd").why == "pinned"


def test_a_trace_while_enabled_says_that_it_holds_no_pins() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    with (
        enabled("conv=cpu:im2col"),
        pytest.warns(UserWarning, match=r"torch.jit.trace: .*enabled.*convert\(model, policy="),
    ):
        traced = torch.jit.trace(model, x)
    assert "torch_cudnn_ext" not in str(traced.inlined_graph)
