"""What every layer of a model runs, and why."""

import copy
import gc
import json
import operator
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import newest
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import torch_cudnn_ext
from torch_cudnn_ext import enabled, explain, is_enabled, knobs, ops, pinned, trace, tuning, when
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext._timing import kernel_names
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import read_problems
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.analysis.profile import profile_model
from torch_cudnn_ext.analysis.roofline import _measured_peaks, _products_in_tf32, measured_peaks
from torch_cudnn_ext.cli import main

PIN = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}


class Net(nn.Module):
    """Layers, a function call, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.soft = nn.Softmax(1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.conv(x)).relu_()
        x = self.twice(self.twice(x))
        x = nn.functional.conv2d(x, self.twice.weight)
        return {"out": self.soft(x)}


@pytest.fixture
def net(device: str) -> Net:
    """A small model."""
    return Net().to(device)


def images(device: str) -> Tensor:
    return torch.randn(2, 3, 6, 6, device=device)


def test_every_call_in_order_with_its_layer(net: Net, device: str) -> None:
    explanation = explain(net, images(device), measure=False)
    ours = [
        (call.layer, call.op)
        for call in explanation.calls
        if call.op.startswith(("conv", "softmax"))
    ]
    assert ours == [
        ("conv", "conv_fwd"),
        ("twice", "conv_fwd"),
        ("twice", "conv_fwd"),
        ("", "conv_fwd"),
        ("soft", "softmax_fwd"),
    ]
    first = explanation.calls[0]
    assert first.kind == "Conv2d"
    assert first.problem.startswith("conv_fwd x=f32[2,3,6,6]:nchw w=f32[4,3,3,3]:nchw pad=1")
    assert first.why == "heuristic"
    assert not is_enabled()


def test_backward_is_attributed_to_its_layer(net: Net, device: str) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    calls = explain(net, images(device), train=True, measure=False).calls
    backward = sorted((call.layer, call.op) for call in calls if "bwd" in call.op)
    conv = ["conv_bwd_data", "conv_bwd_filter"]
    assert [pair for pair in backward if pair[1].startswith(("conv", "softmax"))] == [
        *(("", op) for op in conv),
        ("conv", "conv_bwd_filter"),
        ("soft", "softmax_bwd"),
        *(("twice", op) for op in conv for _ in range(2)),
    ]
    assert {call.kind for call in calls if call.layer == ""} == {"Net"}
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in net.parameters())
    assert net.training


class NormAct(nn.BatchNorm2d):
    """Calls a layer of its own behind what it computes itself."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.act = nn.Softmax(1)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = self.act(super().forward(input))
        return out


def test_backward_of_what_is_before_an_inner_layer_is_the_outer_ones(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4)).to(device)
    calls = explain(model, images(device), train=True, measure=False).calls
    assert [(call.layer, call.op) for call in calls] == [
        ("0", "conv_fwd"),
        ("1", "batch_norm_fwd"),
        ("1.act", "softmax_fwd"),
        ("1.act", "softmax_bwd"),
        ("1", "batch_norm_bwd"),
        ("0", "conv_bwd_filter"),
    ]


class KeepsAside(nn.Module):
    """A layer reads what its own code computed for another, not by an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.inner = nn.Softmax(1)
        self.side = Reads(self)
        self.kept = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.inner(F.conv2d(x, self.weight))
        out: Tensor = self.side(x.mean())
        return out


class Reads(nn.Module):
    """Reads from the module that owns it."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = [owner]

    def forward(self, x: Tensor) -> Tensor:
        kept: Any = self.owner[0].kept
        return F.softmax(kept * x, 1)


def test_backward_of_what_came_before_a_layer_is_not_its_own(device: str) -> None:
    calls = explain(KeepsAside().to(device), images(device), train=True, measure=False).calls
    assert [(call.layer, call.op) for call in calls if call.op.endswith(("_bwd", "filter"))] == [
        ("side", "softmax_bwd"),
        ("inner", "softmax_bwd"),
        ("", "conv_bwd_filter"),
    ]


def test_why(net: Net, device: str) -> None:
    pin, x = PIN[device], images(device)
    with pinned(net, {"tw*": f"fwd={pin}"}), when("conv_fwd x=*[2,3,6,6]*", use="aten:default"):
        why = {call.layer: (call.algorithm, call.why) for call in explain(net, x).calls}
    assert why["conv"] == ("aten:default", 'pinned by when("conv_fwd x=*[2,3,6,6]*")')
    assert why["twice"][0].startswith(pin)
    assert why["twice"][1] == "pinned by 'tw*'"
    with enabled("autotune" if device == "cpu" else "autotune;backends=legacy,aten"):
        calls = explain(net, x, measure=False).calls
    chosen = {call.why for call in calls if call.op}
    assert chosen and chosen <= {"tuned", "cached"}


def test_what_enable_pinned_of_several_families_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LogSoftmax(1))
    with enabled("conv=autotune;softmax=cpu:online;fwd=cpu:fft"):
        calls = explain(model, images("cpu"), measure=False).calls
    assert [call.why for call in calls] == ["pinned by enable()"] * 2


def test_calls_behind_one_that_raised_are_of_their_layers() -> None:
    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.wrong, self.right = (nn.Conv2d(n, 3, 1) for n in (3, 5, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = F.conv2d(x, self.before.weight)
            try:
                x = self.wrong(x)
            except RuntimeError:
                x = self.right(x)
            return torch.softmax(x, 1)

    model = nn.Sequential(Trying(), nn.Conv2d(3, 2, 1))
    with enabled():
        calls = explain(model, images("cpu"), measure=False).calls
    assert [call.layer for call in calls if call.op] == ["0", "0.right", "0", "1"]


def test_what_pinned_a_pass_is_named_and_nothing_else() -> None:
    conv, x = nn.Conv2d(3, 4, 3), images("cpu")

    def why(model: nn.Module, x: Tensor = x) -> list[str]:
        return [call.why for call in explain(model, x, train=True, measure=False).calls]

    model = nn.Sequential(conv)
    with pinned(model, {"0": "bwd_filter=cpu:fft"}), enabled("fwd=cpu:im2col"):
        assert why(model) == ["pinned by enable()", "pinned by '0'"]
    with pinned(model, {"0": "fwd=cpu:fft", "*": "bwd_filter=cpu:im2col;fwd=autotune"}):
        assert why(model) == ["pinned by '0'", "pinned by '*'"]
    with pinned(model, {"0": "bwd_filter=cpu:fft"}), knobs.flags(conv_fwd_algo="cpu:fft"):
        assert why(model) == ["pinned by knobs.flags()", "pinned by '0'"]
    with pinned(model, {"0": "max_workspace=1GiB"}), when("conv_bwd_filter", use="cpu:fft"):
        assert why(model) == ["heuristic", 'pinned by when("conv_bwd_filter")']
    knobs.conv_fwd_algo = "cpu:im2col"
    assert why(model)[0] == "pinned by knobs.conv_fwd_algo"
    with knobs.flags(conv_fwd_algo="cpu:fft"):
        assert why(model)[0] == "pinned by knobs.flags()"
    knobs.reset()
    assert why(ours.Conv2d(3, 4, 3, policy="fwd=cpu:fft"))[0] == "pinned by the module's policy"
    rnn = nn.LSTM(6, 4)
    with knobs.flags(rnn_algo="cpu:unrolled"):
        assert why(rnn, x[0])[0] == "pinned by knobs.flags()"
    with pinned(rnn, {"": "rnn=cpu:unrolled"}):
        assert why(rnn, x[0])[0] == "pinned by ''"


class ChoosesItself(nn.Module):
    """Calls an operator with a policy of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.softmax(x, 1, policy="cpu:online")


def test_a_policy_of_the_call_is_not_told_to_be_another_s() -> None:
    for policy in (None, "softmax=cpu:three_pass"):
        with enabled(policy):
            (call,) = explain(ChoosesItself(), images("cpu"), measure=False).calls
        assert (call.algorithm, call.why) == ("cpu:online", "pinned")


def test_times_and_workspaces(net: Net, device: str) -> None:
    explanation = explain(net, images(device))
    for call in explanation.calls:
        assert (call.ms is not None and call.ms > 0) == bool(call.op)
        assert (call.workspace_bytes is not None) == bool(call.op)
        assert bool(call.pytorch) == bool(call.op)
    conv = " ".join(explanation.calls[0].pytorch)
    assert "aten::mkldnn_convolution" in conv if device == "cpu" else "aten::" not in conv
    assert not any(call.pytorch for call in explain(net, images(device), measure=False).calls)
    text = str(explanation)
    assert "| twice | Conv2d | conv_fwd |" in text
    assert "calls ran operators of this package" in text
    assert explanation.to_csv().startswith("layer,kind,op,problem,algorithm,why")
    data = json.loads(explanation.to_json())
    assert data["schema"] == 1 and data["sentence"] == explanation.sentence()
    assert [call["problem"] for call in data["calls"]] == [c.problem for c in explanation.calls]


def test_a_policy_that_excludes_pytorchs_kernel(device: str) -> None:
    model = nn.Sequential(nn.MaxPool2d(2)).to(device)
    with enabled("max_workspace=0"):
        (call,) = explain(model, images(device)).calls
    assert call.op == "pool_fwd" and call.ms is not None and call.pytorch == ()


def test_what_pytorch_runs_in_a_backward_that_reads_its_forward(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)).to(device)
    explanation = explain(model, images(device), train=True)
    pool = next(call for call in explanation.calls if call.op == "pool_bwd")
    assert any("max_pool" in name for name in pool.pytorch)
    table = explanation.table()
    noted = [row[2] for row in table.rows if row[5].endswith("*")]
    assert noted == ["pool_fwd"] and "* with its backward" in table.footer
    assert "*" not in explain(model, images(device)).table().footer


def test_the_longest_of_many_short_operators_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [SimpleNamespace(key=f"op{i}", self_cpu_time_total=100 + i) for i in range(20)]
    profiler = nullcontext(SimpleNamespace(key_averages=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: profiler)
    assert kernel_names(list, operator.call, "cpu") == ["op19"]


def test_what_did_not_take_our_way_says_why() -> None:
    model = nn.Sequential(nn.Softmax(1))
    x = torch.randn(2, 3)
    forward_ad: Any = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        explanation = explain(model, dual, measure=False)
    (call,) = explanation.calls
    assert (call.layer, call.op, call.algorithm) == ("0", "", "")
    assert "forward-mode AD" in call.why
    assert explanation.share == 0


def test_a_compiled_model_is_explained_layer_by_layer(net: Net, device: str) -> None:
    compiled = torch.compile(net, backend="eager")
    plain = [(c.layer, c.op) for c in explain(net, images(device), measure=False).calls]
    calls = explain(compiled, images(device), measure=False).calls
    assert [(c.layer, c.op) for c in calls] == plain


@pytest.mark.parametrize("train", [False, True])
def test_a_compiled_layer_is_explained(train: bool) -> None:
    model = nn.Sequential(torch.compile(nn.Conv2d(3, 4, 3), backend="eager"), nn.Softmax(1))
    calls = explain(model, torch.randn(1, 3, 5, 5), train=train, measure=False).calls
    assert [c.op for c in calls][:2] == ["conv_fwd", "softmax_fwd"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_of_torchscript_is_refused(inside: bool) -> None:
    scripted = torch.jit.trace(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5))
    model = nn.Sequential(scripted) if inside else scripted
    with pytest.raises(TypeError, match="explain: argument model: .*TorchScript"):
        explain(model, torch.randn(1, 3, 5, 5))


@pytest.mark.parametrize("run", [explain, trace, profile_model, tuning.tune_model])
def test_train_is_a_flag(run: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="argument train: got 3 .int., wanted a bool"):
        run(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5), train=3)


def test_a_model_that_fails_leaves_nothing_behind(net: Net, device: str) -> None:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    with pytest.raises(RuntimeError):
        explain(net, torch.randn(2, 5, 6, 6, device=device))
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    assert net.training
    assert not is_enabled()
    with pytest.raises(ValueError, match="gradient"):
        explain(nn.ReLU(), torch.randn(3), train=True)


@pytest.mark.parametrize("train", [False, True])
def test_what_a_layer_chose_once_is_what_it_is_said_to_run(train: bool) -> None:
    layer, x = ours.Conv2d(3, 4, 3, policy="guess_once"), images("cpu")
    with knobs.flags(backends="cpu"):
        layer(x).sum().backward()
    layer(x)
    (runs,) = {call.algorithm for call in explain(layer, x, measure=False, train=train).calls}
    assert runs == newest("conv_fwd").algorithm and runs.startswith("cpu:")


def test_a_name_may_hold_the_end_of_a_line(tmp_path: Path) -> None:
    model = nn.ModuleDict({"i\nj": nn.Conv2d(3, 4, 3)})
    model.forward = lambda x: model["i\nj"](x)  # type: ignore[method-assign]
    trace(model, images("cpu"), tmp_path / "net.txt", train=False)
    assert [layer.names for layer in read_problems(tmp_path / "net.txt")] == [("i_j",)]


@pytest.mark.parametrize("pinning", [True, False], ids=["pinned", "converted"])
def test_dropout_of_ours_is_explained_and_draws_nothing(pinning: bool, device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Flatten(0, 1), nn.Flatten(1))
    model = model.append(nn.GRU(36, 4, 2, dropout=0.5)).to(device)
    if pinning:
        torch_cudnn_ext.apply_pins(model, {"*": "heuristic"})
    else:
        torch_cudnn_ext.convert(model)
    x = torch.randn(2, 3, 8, 8, device=device)
    state_of = torch.cuda.get_rng_state if device == "cuda" else torch.get_rng_state
    before = state_of()
    calls = explain(model, x, train=True).calls
    assert {"dropout_fwd", "dropout_bwd", "rnn_bwd"} <= {call.op for call in calls}
    assert all(call.pytorch for call in calls if call.op.startswith("dropout"))
    assert torch.equal(before, state_of())


class Carrying(nn.Module):
    """Keeps its state, and the graph of it, between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.state = self.same = torch.zeros(())
        self.states = [self.state]
        self.pair = (self.state, 1)

    def forward(self, x: Tensor) -> Tensor:
        assert self.state is self.same
        self.state = self.same = torch.sigmoid(self.conv(x) + self.states[-1].mul_(0.5))
        self.states.append(self.state + self.pair[0])
        self.pair = (self.state, 1)
        return self.states[-1]


@pytest.mark.parametrize(
    "look",
    [
        lambda model, x: explain(model, x, train=True, measure=False),
        lambda model, x: trace(model, x),
        lambda model, x: profile_model(model, x, time_budget_s=0.01),
    ],
    ids=["explain", "trace", "profile_model"],
)
def test_a_graph_that_a_model_carries_on_is_left(look: Callable[..., Any], device: str) -> None:
    model = Carrying().to(device)
    x = torch.randn(2, 3, 8, 8, device=device)
    model.states = [torch.zeros(2, 3, 8, 8, device=device)]
    loss = model(x).sum()
    state, states = model.state, [*model.states]
    look(model, x)
    assert model.state is model.same is model.pair[0] is state
    assert all(a is b for a, b in zip(model.states, states, strict=True))
    loss.backward()
    assert model.conv.weight.grad is not None


def test_a_model_that_converts_itself_does_so_again(device: str) -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.ready = False

        def forward(self, x: Tensor) -> Tensor:
            if not self.ready:
                torch_cudnn_ext.convert(self, policy="aten:default")
                self.ready = True
            out: Tensor = self.conv(x)
            return out

    model, x = First().to(device), torch.randn(1, 3, 8, 8, device=device)
    assert explain(model, x, measure=False).calls[0].why == "pinned by the module's policy"
    assert type(model.conv) is nn.Conv2d and not model.ready
    model(x)
    assert newest("conv_fwd").why == "pinned"


def test_layers_that_give_indices_are_told_apart(device: str) -> None:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 3, 1), nn.MaxPool2d(2, return_indices=True)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.pool(self.conv(x))[0]
            return out

    model = Pools().to(device)
    calls = explain(model, torch.randn(1, 3, 4, 4, device=device), measure=False).calls
    (why,) = [call.why for call in calls if call.layer == "pool"]
    assert why == "it gives indices, which PyTorch's kernels alone do"


def test_trace_writes_what_profile_reads(net: Net, device: str, tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    lines = trace(net, images(device), path)
    assert path.read_text().splitlines() == lines
    layers = {layer.problem: layer for layer in read_problems(path)}
    assert len(layers) == len(lines)
    twice = [layer for layer in layers.values() if layer.names == ("twice",)]
    assert {layer.count for layer in twice if "conv_fwd" in layer.problem} == {2}
    assert any(problem.startswith("conv_bwd_data") for problem in layers)
    assert not any("bwd" in line for line in trace(net, images(device), train=False))
    odd = nn.Sequential()
    odd.add_module("a, b\n", nn.Softmax(1))
    trace(odd, torch.randn(2, 3, device=device), path, train=False)
    assert [layer.names for layer in read_problems(path)] == [("a_b",)]


def test_resnet18_takes_our_way(device: str) -> None:
    model = torchvision.models.resnet18().to(device)
    calls = explain(model, torch.randn(2, 3, 64, 64, device=device), measure=False).calls
    convolutions = {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    assert {call.layer for call in calls if call.op == "conv_fwd"} == convolutions


def test_command_line(capsys: pytest.CaptureFixture[str], device: str) -> None:
    arguments = ["explain", "--model", "resnet18", "--device", device, "--batch", "1"]
    arguments += ["--image-size", "32", "--no-measure", "--inference"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "layer4.1.conv2" in out
    assert "conv_fwd" in out
    assert main([*arguments, "--format", "json", "--policy", "fwd=aten:default"]) == 0
    assert '"algorithm": "aten:default"' in capsys.readouterr().out
    assert main([*arguments, "--policy", "fwd=nonsense"]) == 2
    assert "--policy" in capsys.readouterr().err
    assert main(["explain", "--model", "no_such_net"]) == 2


def test_recording_costs_nothing_when_off(net: Net, device: str) -> None:
    explain(net, images(device), measure=False)
    net(images(device))
    recorded: list[Any] = torch_cudnn_ext._C.recorded()
    assert recorded == []


def test_nothing_of_a_run_stays_in_memory(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)).to(device)
    seen: list[weakref.ref[Any]] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: seen.extend(map(weakref.ref, (module, output)))
    )
    explain(model, images(device), train=True, measure=False)
    hook.remove()
    del model
    gc.collect()
    assert len(seen) == 6 and all(one() is None for one in seen)


class Hidden(nn.Module):
    """Reaches modules by closures, lists and attributes, and keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.teacher = [nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))]
        self.block = lambda x: self.norm(self.conv(x))
        self.state, self.sizes = torch.zeros(()), [0]
        self.nested, self.calls, self.moves = {"seen": [0]}, torch.zeros(()), True
        self.itself = [weakref.proxy(self)]

    def forward(self, x: Tensor) -> Tensor:
        self.state = x.mean()
        self.sizes.append(len(x))
        self.nested["seen"].append(1)
        if self.moves:
            self.calls.add_(1)
            with torch.no_grad():
                self.teacher[0][1].weight.mul_(0.9)
        y: Tensor = self.teacher[0](self.block(x))
        return y


@pytest.mark.parametrize("ask", [explain, trace, torch_cudnn_ext.profile_model])
def test_what_a_model_reaches_otherwise_stays(ask: Any) -> None:
    model = Hidden()
    modules = [model, model.teacher[0]]
    before = [copy.deepcopy(module.state_dict()) for module in modules]
    heard: list[Tensor] = []
    for parameter in (p for module in modules for p in module.parameters()):
        parameter.register_post_accumulate_grad_hook(heard.append)
    model.moves = ask is not torch_cudnn_ext.profile_model  # which keeps no values but buffers'
    state = model.state
    kept = [*model.nested["seen"], *model.sizes]
    loss = (model.conv.weight.sum() * model.norm.running_mean).sum()  # a graph that saves a buffer
    keywords: dict[str, Any] = {"train": True}
    keywords |= {"time_budget_s": 0.01} if ask is torch_cudnn_ext.profile_model else {}
    keywords |= {"measure": False} if ask is explain else {}
    asked = ask(model, torch.randn(2, 3, 6, 6), **keywords)
    for module, values in zip(modules, before, strict=True):
        assert all(torch.equal(values[name], t) for name, t in module.state_dict().items())
        assert all(p.grad is None for p in module.parameters())
    assert model.state is state and [*model.nested["seen"], *model.sizes] == kept
    assert model.calls == 0 and not heard
    loss.backward()
    if ask is explain:
        assert {"conv", "norm"} <= {call.layer for call in asked.calls}


def test_frozen_layers_are_traced_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    model[1].eval()
    x = torch.randn(2, 3, 6, 6)
    ops = [line.split()[0] for line in trace(model, x)]
    assert "batch_norm_infer" in ops and "batch_norm_fwd" not in ops
    assert not model[1].training and model.training
    model.eval()
    assert "batch_norm_fwd" in [line.split()[0] for line in trace(model, x)]
    assert not model.training


def test_a_packed_sequence_is_one_input() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    assert trace(nn.LSTM(4, 5), packed)[0].startswith("rnn_fwd cell=lstm")


class Counting(nn.Module):
    """Counts its calls in two ways, and doubles its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anew", torch.zeros(()))
        self.register_buffer("within", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.anew = self.anew + 1
        self.within.add_(1)
        return 2 * x


@pytest.mark.parametrize("train", [False, True])
def test_buffers_inputs_and_the_random_state_stay(train: bool) -> None:
    model = nn.Sequential(Counting(), nn.Conv2d(3, 4, 3), nn.Dropout())
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    leaf = torch.randn(2, 3, 6, 6, requires_grad=True)
    result = leaf * 1
    state = torch.get_rng_state()
    for x in (leaf, result):
        explain(model, {"input": x}, train=train, measure=False)
        trace(model, x)
    coverage(model, leaf, backends="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert buffer is before[name][0] and torch.equal(buffer, before[name][1])
    assert leaf.grad is None
    result.sum().backward()  # its graph is there still


def test_what_had_nothing_to_compute_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout())
    calls = explain(model, torch.randn(0, 3, 6, 6), measure=False).calls
    assert [call.why for call in calls] == ["it had nothing to compute"] * 2
    calls = explain(model, torch.randn(2, 3, 6, 6), measure=False).calls
    assert calls[-1].why == "it had nothing to compute"


def test_buffers_that_stay_are_not_written() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), images("cpu")
    loss = model(x).sum()
    explain(model, x, measure=False)
    loss.backward()  # reads the buffers, as they were then
    model[1].register_buffer("shared", torch.ones(1).expand(4))
    explain(model, x, measure=False)
    with torch.inference_mode():
        made_there = nn.BatchNorm2d(3).eval()
    explain(made_there, x, measure=False)


@pytest.mark.parametrize("ask", [explain, trace])
def test_a_training_step_in_inference_mode_is_refused(ask: Any) -> None:
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match="train: nothing has a gradient in inference mode"),
    ):
        ask(nn.Conv2d(3, 4, 3), images("cpu"), train=True)
    with pytest.raises(TypeError, match=f"{ask.__name__}: argument train: got 'no'"):
        ask(nn.Conv2d(3, 4, 3), images("cpu"), train="no")


@pytest.mark.parametrize("ask", [explain, network_layers, coverage], ids=lambda ask: ask.__name__)
def test_what_modules_remember_of_a_call_stays(ask: Any) -> None:
    once = ours.Conv2d(3, 4, 3, policy="time_once").eval()
    arguments = {"passes": ["fwd"]} if ask is network_layers else {}
    arguments |= {"backends": "cpu"} if ask is coverage else {}
    ask(once, images("cpu"), **arguments)
    assert once._once == ("fwd", "bwd_data", "bwd_filter")
    rnn, x = ours.GRU(4, 4, remember_states=True), torch.randn(3, 2, 4)
    ask(rnn, x, **arguments)
    assert rnn._states == ()
    rnn(x)
    (state,) = rnn._states
    ask(rnn, x, **arguments)
    assert rnn._states[0] is state


def test_backward_of_a_model_that_cannot_be_copied() -> None:
    layer, x = nn.Conv2d(3, 4, 3), images("cpu")
    prune.l1_unstructured(layer, "weight", 0.5)
    layer(x)
    calls = explain(layer, x, train=True, measure=False).calls
    assert [call.op for call in calls if call.op] == ["conv_fwd", "conv_bwd_filter"]
    assert all(p.grad is None for p in layer.parameters())


class Uncopied(nn.Module):
    """A layer beside what `copy.deepcopy` refuses."""

    def __init__(self, beside: object) -> None:
        super().__init__()
        self.conv, self.beside = nn.Conv2d(3, 4, 3), beside

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


@pytest.mark.parametrize("beside", [threading.Lock(), (i for i in "ab")], ids=["lock", "iterator"])
def test_backward_of_a_model_with_what_cannot_be_copied(beside: object) -> None:
    model, x = Uncopied(beside), images("cpu")
    calls = explain(model, x, train=True, measure=False).calls
    assert [call.op for call in calls if call.op] == ["conv_fwd", "conv_bwd_filter"]
    assert all(p.grad is None for p in model.parameters())
    assert len(trace(model, x)) == 2


@dataclass
class Answer:
    """Of a model, as libraries have it."""

    scores: Tensor
    hidden: list[Tensor]
    kind: type = Tensor


class Answers(nn.Module):
    """Gives a dataclass, as one of its layers does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scores()

    def forward(self, x: Tensor) -> Answer:
        answer: Answer = self.inner(x)
        return Answer(torch.zeros(()), [answer.scores])


class Scores(nn.Module):
    """Calls a function."""

    def forward(self, x: Tensor) -> Answer:
        return Answer(F.softmax(x, 1), [])


def test_outputs_may_be_dataclasses() -> None:
    model, x = Answers(), images("cpu").requires_grad_()
    calls = explain(model, x, train=True, measure=False).calls
    assert [(c.layer, c.op) for c in calls] == [("inner", "softmax_fwd"), ("inner", "softmax_bwd")]
    assert len(trace(model, x)) == 2
    assert coverage(model, x, backends="cpu").backward
    assert x.grad is None


class Checkpointed(nn.Module):
    """Computes one of its layers again in the backward, as PyTorch did it first."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(3, 4, 3)
        self.within = nn.Conv2d(4, 4, 3)
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.within, self.before(x) * self.scale, use_reentrant=True)


def test_what_is_computed_again_in_the_backward_is_seen() -> None:
    model, x = Checkpointed(), images("cpu")
    calls = explain(model, x, train=True, measure=False).calls
    assert [(call.layer, call.op) for call in calls] == [
        ("before", "conv_fwd"),
        *[("within", "conv_fwd")] * 2,
        ("within", "conv_bwd_data"),
        ("within", "conv_bwd_filter"),
        ("before", "conv_bwd_filter"),
    ]
    lines = [line.partition("  #")[0] for line in trace(model, x)]
    assert set(lines) == {call.problem for call in calls}
    assert set(tuning.tune_model(model, x, time_budget_s=0.02)) == set(lines)
    assert coverage(model, x, backends="cpu").families["conv"].calls == len(calls)


def test_gradients_stay_and_nobody_hears_of_others() -> None:
    model, x = Checkpointed(), images("cpu").requires_grad_()
    heard: list[Tensor] = []
    leaves = [x, model.scale, *model.parameters()]
    for leaf in leaves:
        leaf.grad = torch.ones_like(leaf)
        leaf.register_post_accumulate_grad_hook(heard.append)
    before = [leaf.grad for leaf in leaves]
    coverage(model, x, backends="cpu")
    network_layers(model, x)
    explain(model, x, train=True, measure=False)
    prune.l1_unstructured(model.before, "weight", 0.5)  # it cannot be copied now
    model.before(x)
    explain(model, x, train=True, measure=False)
    assert all(leaf.grad is one for leaf, one in zip(leaves, before, strict=True))
    assert all(torch.equal(leaf.grad, torch.ones_like(leaf)) for leaf in leaves)
    assert heard == []
    model(x).sum().backward()
    assert heard


def test_coverage_goes_back_to_inputs() -> None:
    pool, x = nn.MaxPool2d(2), images("cpu")
    result = coverage(pool, x, backends="cpu")
    assert result.families["pool"].calls == 1 and not result.backward
    result = coverage(pool, x.requires_grad_(), backends="cpu")
    assert result.families["pool"].calls == 2 and result.backward
    assert x.grad is None


def test_a_model_that_calls_nothing() -> None:
    explanation = explain(nn.Identity(), torch.randn(2, 3))
    assert explanation.calls == [] and explanation.share == 0
    assert "0 of 0 calls" in str(explanation)
    assert trace(nn.Identity(), torch.randn(2, 3), train=False) == []


def test_other_threads_calls_are_not_the_models(net: Net, device: str) -> None:
    explained = [
        torch_cudnn_ext.explain(net, torch.randn(2, 3, 8, 8, device=device), measure=False)
    ]
    done = threading.Event()
    x = torch.randn(4, 4, device=device)

    def other() -> None:
        while not done.is_set():
            torch.softmax(x, -1)

    thread = threading.Thread(target=other)
    with torch_cudnn_ext.enabled():
        thread.start()
        try:
            inputs = torch.randn(2, 3, 8, 8, device=device)
            explained.append(torch_cudnn_ext.explain(net, inputs, measure=False))
        finally:
            done.set()
            thread.join()
    first, second = ([(call.layer, call.op) for call in one.calls] for one in explained)
    assert first == second


def test_what_has_no_data_is_refused() -> None:
    model = nn.Conv2d(3, 4, 3, device="meta")
    x = torch.randn(1, 3, 8, 8, device="meta")
    with pytest.raises(ValueError, match="model: got .* no data .* profile_model takes the meta"):
        torch_cudnn_ext.explain(model, x)
    with FakeTensorMode(), pytest.raises(ValueError, match="no data"):
        torch_cudnn_ext.trace(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))


def test_a_look_inside_a_look_ends_nothing() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            torch_cudnn_ext.explain(nn.Softmax(1), torch.randn(2, 3), measure=False)
            result: Tensor = self.second(x)
            return result

    explained = torch_cudnn_ext.explain(Outer(), torch.randn(1, 3, 8, 8), measure=False)
    assert [(call.layer, call.op) for call in explained.calls] == [
        ("first", "conv_fwd"),
        ("second", "conv_fwd"),
    ]


def test_a_trace_tunes_nothing(net: Net, device: str) -> None:
    tuning.reset()
    with torch_cudnn_ext.enabled("autotune"):
        assert torch_cudnn_ext.trace(net, torch.randn(2, 3, 8, 8, device=device))
    assert tuning.entries() == []


class Merging(nn.Linear):
    """Has other weights in eval mode, as adapters of low rank do."""

    def train(self, mode: bool = True) -> "Merging":
        if self.training != mode:
            self.weight.requires_grad_(mode)
            with torch.no_grad():
                self.weight += -1 if mode else 1
        return super().train(mode)


@pytest.mark.parametrize("ask", [torch_cudnn_ext.explain, torch_cudnn_ext.profile_model])
def test_a_mode_that_does_more_is_taken_back(ask: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), Merging(16, 2))
    before = model[2].weight.detach().clone()
    x = torch.randn(1, 3, 4, 4)
    ask(model, x, train=False)
    assert model.training and model[2].weight.requires_grad
    torch.testing.assert_close(model[2].weight.detach(), before)


class Odd(nn.Module):
    """With buffers of other layouts, and what is found in no container of pytrees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("edges", torch.eye(4).to_sparse())
        self.register_buffer("rows", torch.eye(4).to_sparse_csr())
        self.extra = SimpleNamespace(scale=torch.ones(1, requires_grad=True))
        self.ring: list[Any] = []
        self.ring.append(self.ring)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.softmax(self.layer(torch.sparse.mm(self.edges, x)), 1)
        return result * self.extra.scale


@pytest.mark.parametrize("ask", [torch_cudnn_ext.explain, torch_cudnn_ext.profile_model, coverage])
def test_sparse_buffers_and_rings_are_no_trouble(ask: Any) -> None:
    model = Odd()
    ask(model, torch.randn(4, 4))
    assert model.extra.scale.grad is None and model.layer.weight.grad is None
    assert torch.equal(model.edges.to_dense(), torch.eye(4))


def test_a_profile_of_the_users_own_goes_on(net: Net, device: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=device)
    with torch.profiler.profile() as profiler:
        explained = torch_cudnn_ext.explain(net, x)
    assert explained.calls and profiler.events()


def test_coverage_says_what_is_pinned() -> None:
    x = torch.randn(1, 3, 8, 8)
    with torch_cudnn_ext.when("conv_fwd", use="cpu:im2col"):
        covered = coverage(nn.Conv2d(3, 4, 3), x, backward=False, backends="aten")
    exceptions = covered.families["conv"].exceptions
    assert list(exceptions) == ["it is pinned, or its layer has a policy of its own"]
    assert covered.share("pool") == 0


def test_measured_peaks_leave_the_switch_of_products_alone() -> None:
    backends: Any = torch.backends
    before = backends.fp32_precision
    try:
        backends.fp32_precision = "ieee"
        _measured_peaks.cache_clear()
        measured_peaks("cpu", "f32", False)
        with _products_in_tf32(True):
            assert backends.cuda.matmul.fp32_precision == "tf32"
        backends.fp32_precision = "tf32"
        assert backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        backends.fp32_precision = before


def test_every_call_that_pytorch_runs_counts() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.line = nn.Conv1d(4, 4, 1), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            for _ in range(3):
                x = self.line(x)
            return x

    with enabled():
        explanation = explain(Loop(), torch.randn(2, 4, 8), measure=False)
    assert explanation.share == 1 / 4
    assert "1 of 4 calls ran operators of this package" in str(explanation)


def test_no_table_of_hooks_keeps_ours(net: Net, device: str) -> None:
    of_all = vars(nn.modules.module)
    names = [name for name in of_all if name.startswith("_global_") and "hooks" in name]
    before = {name: {**of_all[name]} for name in names if isinstance(of_all[name], dict)}
    assert len(before) > 4
    explain(net, images(device), train=True, measure=False)
    with pytest.raises(RuntimeError):
        explain(net, torch.randn(1, 2, 3), measure=False)
    assert {name: {**of_all[name]} for name in before} == before


def test_all_hear_of_their_gradients_behind_a_look() -> None:
    model, x = nn.Conv2d(3, 4, 3), images("cpu").requires_grad_()
    heard: list[Tensor] = []
    leaves = [x, *model.parameters()]
    for leaf in leaves:
        leaf.register_post_accumulate_grad_hook(heard.append)
    network_layers(model, x)
    coverage(model, x, backends="cpu")
    assert heard == []
    model(x).sum().backward()
    assert {id(leaf) for leaf in heard} == {id(leaf) for leaf in leaves}


def test_sparse_buffers_are_put_back() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("sparse", torch.eye(3).to_sparse())

        def forward(self, x: Tensor) -> Any:
            self.get_buffer("sparse").mul_(2)
            return self.conv(x)

    model = Doubling()
    explain(model, images("cpu"), measure=False)
    network_layers(model, images("cpu"))
    assert torch.equal(model.get_buffer("sparse").to_dense(), torch.eye(3))


def test_sharded_parameters_come_and_go_as_fsdp_has_it(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = torch.randn(2, 3, 6, 6)
        expected = model.eval()(x)
        for train in (False, True):
            assert explain(model, x, train=train, measure=False).calls
            torch.testing.assert_close(model(x), expected)
    finally:
        dist.destroy_process_group()


def test_named_tuples_hold_positional_arguments() -> None:
    class Pair(NamedTuple):
        a: Tensor
        b: Tensor

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.add(self.conv(a), self.conv(b))

    x = torch.randn(2, 3, 6, 6)
    assert len(explain(Two(), Pair(x, x), measure=False).calls) == 2


class Writing(nn.Module):
    """Freezes a layer in `train`, and writes to tensors of its own in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.head = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1)
        self.calls, self.total = [torch.zeros(2)], torch.zeros(())
        self.base = torch.zeros(4)
        self.part, self.mask = self.base[:2], torch.full((1, 1), torch.nan).expand(4, 4)

    def train(self, mode: bool = True) -> "Writing":
        super().train(mode)
        if mode:
            self.frozen.requires_grad_(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0].add_(1)
        self.total.add_(self.head.weight.sum())  # which is no leaf then
        self.part.add_(self.head.weight.sum())
        result: Tensor = self.head(self.frozen(x))
        return result


@pytest.mark.parametrize(
    "ask",
    [torch_cudnn_ext.explain, torch_cudnn_ext.trace, torch_cudnn_ext.profile_model],
)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_what_requires_gradients_and_what_a_forward_writes_are_put_back(
    ask: Any, train: bool, training: bool
) -> None:
    model = Writing()
    model.training = training
    ask(model, torch.ones(1, 3, 4, 4), train=train)
    assert model.training == training and all(p.requires_grad for p in model.parameters())
    assert model.calls[0].tolist() == [0, 0] and model.total == 0
    assert model.total.is_leaf and not model.total.requires_grad
    assert model.base.tolist() == [0] * 4 and model.mask.isnan().all()
    model(torch.ones(1, 3, 4, 4))
