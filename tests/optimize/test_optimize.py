"""Whole networks made for inference: what they compute, what is refused, and what is told."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import needs_cuda
from optimize_helpers import BUDGET, Block, trained_like
from torch import Tensor, nn

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize import optimized, search
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext.cli.app import main

Pair = namedtuple("Pair", ["first", "second"])


def check(fast: tce.OptimizedModel, model: nn.Module, *args: Any) -> None:
    """Both ways of our layers give what the model gives."""
    with torch.no_grad():
        wanted = model(*args)
    for way in (Way.optimized, Way.optimized_graph, fast.report.way):
        torch.testing.assert_close(fast.run(way, *args), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "residual"),
    [
        ("iadd", True),
        ("method", True),
        ("swapped", True),
        ("into the input", False),
        ("broadcast", False),
        ("twice", False),
        ("alpha", False),
    ],
)
def test_a_sum_and_relu_are_taken_in(kind: str, residual: bool, device: str) -> None:
    model = trained_like(Block(kind)).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    before = x.clone()
    fast = tce.optimize(model, x, **BUDGET)
    done = fast.report.rewrites
    assert done.folded == ["conv1", "conv2"] and done.activated == ["conv1"]
    assert done.residual == (["conv2"] if residual else [])
    check(fast, model, x)
    assert torch.equal(x, before)
    with torch.autocast(device, torch.bfloat16), torch.no_grad():
        for given in (x, x.bfloat16()):
            got, wanted = fast.run(Way.optimized, given), model(given)
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got.float(), wanted.float(), rtol=0.1, atol=0.2)


class Ends(nn.Module):
    """A convolution, a sum if one is asked for, and something that follows."""

    def __init__(self, end: Any, adds: bool) -> None:
        super().__init__()
        self.conv, self.end, self.adds = nn.Conv2d(4, 4, 3, padding=1), end, adds

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        return self.end(y + x if self.adds else y)


@pytest.mark.parametrize("adds", [False, True], ids=["alone", "sum"])
@pytest.mark.parametrize(
    ("end", "activation"),
    [
        (nn.ReLU6(), "relu6"),
        (nn.Sigmoid(), "sigmoid"),
        (torch.tanh, "tanh"),
        (lambda y: y.sigmoid(), "sigmoid"),
        (nn.SiLU(inplace=True), "silu"),
        (lambda y: F.silu(y), "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (lambda y: F.gelu(y, approximate="tanh"), "gelu_tanh"),
        (nn.Hardswish(), ""),
        (lambda y: F.relu(y, inplace=True) + y, ""),
        (lambda y: torch.sigmoid(torch.relu(y)), "relu"),
    ],
)
def test_activations_and_sums_are_taken_in(
    end: Any, activation: str, adds: bool, device: str
) -> None:
    model, x = Ends(end, adds).eval().to(device), torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    check(fast, model, x)
    done = fast.report.rewrites
    alone = ["conv"] if activation else []
    assert (done.residual, done.activated) == ((["conv"], []) if adds else ([], alone))
    problem = next(p for p in fast._recipe.problems if p.startswith("conv_fwd"))
    assert ("z=f32" in problem) == adds
    assert f" act={activation}" in problem if activation else " act=" not in problem


def test_bounds_of_the_error() -> None:
    errors = dict[Way, float]()
    for channels in range(4, 20):
        model = trained_like(nn.Sequential(nn.Conv1d(8, channels, 3), nn.BatchNorm1d(channels)))
        model, x = model.bfloat16(), torch.randn(4, 8, 32).bfloat16()
        errors = tce.optimize(model, x, **BUDGET).report.errors
        if len({*errors.values()}) == 2:  # folding rounds otherwise, most of the time
            break
    bound = sum(errors.values()) / 2
    fast = tce.optimize(model, x, max_error=bound, **BUDGET)
    assert errors[Way.plain] != errors[Way.optimized]
    worse = max(errors, key=errors.__getitem__)
    assert fast.report.way is min(errors, key=errors.__getitem__)
    assert f"not used: {worse.value}, since its error was" in fast.report.note
    assert {Way.plain, Way.optimized} >= fast.report.times_ms.keys() >= {Way.plain}


def test_an_activation_with_another_forward_is_not_taken_in() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU()).eval()
    model[1].forward = lambda y: y * 3
    fast = tce.optimize(model, torch.randn(1, 2, 8), **BUDGET)
    assert not fast.report.rewrites.activated
    check(fast, model, torch.randn(1, 2, 8))


def test_linear_layers_take_in_activations(device: str) -> None:
    layers = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4), nn.Hardswish(), nn.Linear(4, 5), nn.ReLU()
    model, x = nn.Sequential(*layers).eval().to(device), torch.randn(3, 2, 6, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    check(fast, model, x)
    check(fast, model, x.transpose(0, 1))
    assert fast.report.rewrites.activated == ["0", "4"]
    lines = [p for p in fast._recipe.problems if " act=" in p]
    assert len(lines) == 2 and "bias=true act=gelu" in lines[0] and "act=relu" in lines[1]


def test_the_model_is_not_changed(device: str) -> None:
    model = Block("iadd").to(device)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    classes = [type(m) for m in model.modules()]
    fast = tce.optimize(model, torch.randn(2, 4, 8, 8, device=device), **BUDGET)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert [type(m) for m in model.modules()] == classes
    for name, t in model.state_dict().items():
        assert torch.equal(t, state[name])
    mine = {t.data_ptr() for t in model.parameters()}
    assert not mine & {t.data_ptr() for t in fast.parameters()}


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()),
        (nn.ConvTranspose1d(3, 4, 3, bias=False), nn.BatchNorm1d(4)),
        (nn.ConvTranspose1d(3, 6, 3, groups=3), nn.BatchNorm1d(6)),
        (nn.Conv1d(3, 4, 3, padding_mode="reflect", padding=1), nn.BatchNorm1d(4), nn.ReLU()),
        (nn.Dropout(), nn.Identity(), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False)),
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, track_running_stats=False)),
        (nn.Conv1d(3, 4, 9), nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5)),
        (nn.Linear(9, 3), nn.BatchNorm1d(3)),  # over the second of three dimensions
        (nn.Conv1d(3, 4, 3), nn.Softmax(1), nn.BatchNorm1d(4)),
    ],
    ids=lambda layers: "-".join(type(one).__name__ for one in layers),
)
def test_folding(layers: tuple[nn.Module, ...], device: str) -> None:
    model = nn.Sequential(*layers)
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d) and layer.running_mean is not None:
            assert layer.running_var is not None
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    model = model.eval().to(device)
    x = torch.randn(2, 3, 9, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    check(fast, model, x)
    norms = [i for i, one in enumerate(layers) if isinstance(one, nn.BatchNorm1d)]
    before: Any = layers[norms[0] - 1]
    is_folded = not (
        getattr(before, "groups", 1) > 1
        or isinstance(before, nn.Softmax)
        or (isinstance(before, nn.Linear) and len(layers) == 2)
        or layers[norms[0]].running_mean is None
    )
    assert fast.report.rewrites.folded == ([str(norms[0] - 1)] if is_folded else [])
    assert fast.report.rewrites.removed == (
        ["0", "1"]
        if len(norms) == 1 and norms[0] == 3 and isinstance(layers[0], nn.Dropout)
        else []
    )


class Branches(nn.Module):
    """A module with control flow inside a network that can be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.first(x) if x.mean() > 0 else self.second(x)
        return result


def test_control_flow_is_kept(device: str) -> None:
    model = nn.Sequential(Branches(), nn.BatchNorm2d(4), nn.ReLU()).eval().to(device)
    x = torch.rand(2, 3, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    assert list(fast.report.whole) == ["0"] and "0" in fast.report.cuda_graph
    check(fast, model, x)
    check(fast, model, -x)
    whole = tce.optimize(Branches().eval().to(device), x, **BUDGET)
    assert list(whole.report.whole) == [""] and "not traced: the model" in str(whole.report)


class Odd(nn.Module):
    """A network whose results are of many kinds, with a layer that is called twice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor, scale: float = 2.0) -> Any:
        y = self.norm(self.conv(self.norm(self.conv(x)))) * scale
        if self.kind == "dict":
            return {"y": y, "x": x}
        if self.kind == "ordered":
            return OrderedDict([("y", [y, (x, 3)])])
        if self.kind == "named":
            return Pair(y, None)
        if self.kind == "random":
            return y + torch.rand(3, 1, 1).to(y)
        return y + torch.arange(3.0).to(y)[:, None, None]


@pytest.mark.parametrize("kind", ["dict", "ordered", "named", "constant"])
def test_results_have_the_models_containers(kind: str, device: str) -> None:
    model = trained_like(Odd(kind)).to(device)
    x = torch.randn(2, 3, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.rewrites.folded == [] and not fast.report.whole  # the layer is shared
    wanted, got = model(x), fast(x)
    assert type(got) is type(wanted)
    check(fast, model, x)
    check(fast, model, torch.randn(3, 3, 5, 6, device=device))
    torch.testing.assert_close(fast(x, scale=3.0), model(x, scale=3.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast(x, 4.0), model(x, 4.0), rtol=1e-4, atol=1e-4)


class Changes(nn.Module):
    """A network that changes tensors that are still read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.conv = kind, nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = kept = self.conv(x)
        z = x * 1
        if self.kind == "iadd":
            y += z
        elif self.kind == "imul":
            y *= z
        elif self.kind == "method":
            y.add_(z)
        elif self.kind == "relu":
            F.relu(y, inplace=True)
        elif self.kind == "layer":
            nn.ReLU(inplace=True)(y)
        elif self.kind == "item":
            y[:, 0] = 0
        elif self.kind == "input of the convolution":
            z += 1
            y = self.conv(z)
            z.zero_()
            kept = y
            y = F.relu(y + z)
        elif self.kind == "size":
            n = x.shape[0]
            n += 1
            y = y * n
        return y.relu() + kept


@pytest.mark.parametrize(
    "kind",
    [
        "iadd", "imul", "method", "relu", "layer", "item", "input of the convolution", "size",
    ],
)  # fmt: skip
def test_changes_in_place_stay(kind: str, device: str) -> None:
    model = Changes(kind).to(device)
    x = torch.randn(2, 3, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    assert bool(fast.report.whole) is (kind in ("item", "layer"))
    check(fast, model, x)


def test_random_tensors_of_a_forward_are_no_constants() -> None:
    model = trained_like(Odd("random"))
    x = torch.randn(2, 3, 8, 8)
    state = torch.get_rng_state()
    fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.whole == {"": "its forward makes random tensors"}
    assert not torch.equal(fast(x), fast(x))
    torch.set_rng_state(state)
    first = fast(x)
    torch.set_rng_state(state)
    assert torch.equal(fast(x), first)


@pytest.mark.parametrize("layout", ["keep", "contiguous", "channels_last", "search"])
def test_layouts(layout: Any, device: str) -> None:
    model = trained_like(Block("iadd")).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, layout=layout, **BUDGET)
    check(fast, model, x)
    check(fast, model, x.to(memory_format=torch.channels_last))
    assert fast.report.layout in (
        (layout,) if layout != "search" else ("contiguous", "channels_last")
    )
    if fast.report.layouts:
        return  # see test_layouts.py
    lines = [p for p in fast._recipe.problems if p.startswith("conv")]
    wanted = {"contiguous": "nchw", "channels_last": "nhwc"}.get(fast.report.layout, "nchw")
    assert lines and all(f":{wanted} w=" in line for line in lines)


class Conv(nn.Conv2d):
    """A layer that only is made in another way, as torchvision's `Conv3DSimple`."""

    def __init__(self) -> None:
        super().__init__(4, 4, 3, padding=1)

    @staticmethod
    def cost() -> int:
        return 1


class Padded(Conv):
    """A layer that computes something else."""

    def _conv_forward(self, x: Tensor, *args: Any) -> Tensor:
        return super()._conv_forward(x, *args) + 1


def scaled() -> nn.Module:
    """A layer whose weight is a property of its class."""
    return nn.utils.parametrizations.weight_norm(Conv())


@pytest.mark.parametrize("conv", [Conv, Padded, scaled])
def test_a_subclass_is_a_layer_if_it_computes_nothing_else(conv: Any, device: str) -> None:
    model = trained_like(nn.Sequential(conv(), nn.BatchNorm2d(4), nn.ReLU())).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.rewrites.folded == ["0"] * (conv is Conv)
    assert fast.report.rewrites.activated == ["0"] * (conv is Conv)
    assert type(model[0]).__name__ != "Conv2d"
    check(fast, model, x)


def test_complex_layers_and_hooks(device: str) -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3, dtype=torch.complex64)).to(device)
    x = torch.randn(1, 2, 8, dtype=torch.complex64, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    torch.testing.assert_close(fast.run(Way.optimized, x), model(x))
    model = nn.Sequential(nn.Conv1d(2, 2, 3))
    model[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="model: got hooks of 0.*wanted a model without hooks"):
        tce.optimize(model, torch.randn(1, 2, 8))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layout": "nhwc"}, "layout: got 'nhwc', wanted one of keep, contiguous"),
        ({"on_new_shape": "guess"}, "on_new_shape: got 'guess', wanted one of heuristic"),
        ({"max_error": 0}, "max_error: got 0, wanted a positive number"),
        ({"max_error": 1e-12}, "max_error: the least error of the results is .*, wanted at most"),
        ({"policy": "conv_fwd=cpu:direct"}, "policy: got the selection"),
        ({"jobs": 0}, "jobs: got 0, wanted 1 or more"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tce.optimize(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8), **(BUDGET | given))


def test_inputs_that_are_no_arguments() -> None:
    with pytest.raises(TypeError, match="argument inputs: got dict, wanted a tensor or a tuple"):
        tce.optimize(nn.Conv1d(2, 2, 3), {"input": torch.randn(1, 2, 8)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="argument inputs: got no tensor"):
        tce.optimize(nn.Conv1d(2, 2, 3), (1,))
    with pytest.raises(TypeError, match="argument model"):
        tce.optimize("model", torch.zeros(1))  # type: ignore[arg-type]


def test_other_sizes_run_untuned_or_are_tuned(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3)).eval().to(device)
    for word, why in (("heuristic", "heuristic"), ("autotune", "tuned")):
        fast = tce.optimize(
            model, torch.randn(2, 4, 8, 8, device=device), on_new_shape=word, **BUDGET
        )
        fast.run(Way.optimized, torch.randn(2, 4, 8, 8, device=device))
        decision = tce.last_decision("conv_fwd")
        assert decision is not None and decision.why.startswith(("cached", "unstable"))
        fast.run(Way.optimized, torch.randn(3, 4, 9, 7, device=device))
        decision = tce.last_decision("conv_fwd")
        assert decision is not None and decision.why.startswith((why, "unstable"))
        assert "3,4,9,7" in decision.problem


def test_it_is_for_inference_alone() -> None:
    fast = tce.optimize(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8), **BUDGET)
    assert not fast(torch.randn(1, 2, 8, requires_grad=True)).requires_grad
    assert fast.eval() is fast
    with pytest.raises(RuntimeError, match=r"OptimizedModel.train: .* for inference"):
        fast.train()


def test_copies_and_pickles(device: str) -> None:
    model = trained_like(Block("iadd")).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    for again in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        check(again, model, x)
        assert again.report.rewrites == fast.report.rewrites


def test_layers_keep_their_own_policies(device: str) -> None:
    layer = tce.nn.Conv2d(3, 4, 3, policy="aten:default")
    model = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(4, 4, 3)).to(device)
    tce.apply_pins(model, {"2": "aten:default"})
    x = torch.randn(2, 3, 8, 8, device=device)
    fast = tce.optimize(model, x, **BUDGET)
    ours = [m for m in fast._tuned.modules() if isinstance(m, tce.nn.Tunable)]
    assert all(str(m.policy).startswith("fwd=aten:default;bwd_data=aten:default") for m in ours)
    check(fast, model, x)


def test_ours_does_not_run_if_it_is_slower_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU()).eval(), torch.randn(1, 2, 8)

    def slower(self: Any, way: Way, *args: Any) -> Any:
        import time

        time.sleep(0.02 if way is Way.optimized else 0)
        return run(self, way, *args)

    run = optimized.InferenceModel.run
    with monkeypatch.context() as patch:
        patch.setattr(optimized.InferenceModel, "run", slower)
        fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.way is Way.plain and "times as long" in str(fast.report)

    def wrong(self: Any, way: Way, *args: Any) -> Any:
        return run(self, way, *args) + (0 if way.is_pytorchs else 1)

    with monkeypatch.context() as patch:
        patch.setattr(optimized.InferenceModel, "run", wrong)
        fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.way is Way.plain and "not used: optimized layers, since its error" in str(
        fast.report
    )
    torch.testing.assert_close(fast(x), model(x))


@needs_cuda
def test_graphs_are_kept_by_kind_and_their_results_are_the_callers() -> None:
    model = trained_like(Block("iadd")).cuda()
    x = torch.randn(2, 4, 8, 8, device="cuda")
    fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.cuda_graph == "" and Way.optimized_graph in fast.report.times_ms
    first = fast.run(Way.optimized_graph, x)
    kept = first.clone()
    fast.run(Way.optimized_graph, x + 1)
    assert torch.equal(first, kept)
    for batch in range(1, 12):
        check(fast, model, torch.randn(batch, 4, 8, 8, device="cuda"))
    with torch.autocast("cuda", torch.bfloat16):
        assert fast.run(Way.optimized_graph, x).dtype == torch.bfloat16
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a caller's own
        y = fast.run(Way.optimized_graph, x)
    graph.replay()
    torch.testing.assert_close(y, first, rtol=1e-4, atol=1e-4)
    double = fast.double()
    torch.testing.assert_close(double(x.double()), model.double()(x.double()))


class Counts(nn.Module):
    """A network whose forward changes an attribute, and reads one that tracing does not see."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls, self.conv = kind, 0, nn.Conv1d(2, 2, 3)
        self.kept: Any = None
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "counts":
            self.calls += 1
            return self.conv(x) * self.calls
        if self.kind == "keeps":
            self.kept = x
        if self.kind == "buffer":
            self.total = self.total + x.sum()
        if self.kind == "asks" and not isinstance(x, Tensor):
            return self.conv(x) * 2
        y: Tensor = self.conv(x)
        return y


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("counts", "its forward changes calls"),
        ("keeps", "its forward changes kept"),
        ("buffer", "its forward changes total"),
        ("asks", None),
    ],
)
def test_code_that_a_trace_would_lose(kind: str, why: str | None) -> None:
    model, x = Counts(kind), torch.randn(1, 2, 8)
    fast = tce.optimize(model, x, **BUDGET)
    if why is None:
        assert fast.report.way is Way.plain and "its error was" in fast.report.note
    else:
        assert why in fast.report.whole[""]
    assert model.calls == 0 and model.kept is None and model.total == 0
    if kind != "counts":
        torch.testing.assert_close(fast(x), model(x))


class Waits(nn.Module):
    """What no CUDA graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.nonzero(x > 0).shape[0]


@needs_cuda
def test_what_cannot_be_captured_runs_without_a_graph() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Waits()).cuda().eval()
    x = torch.randn(2, 3, 8, 8, device="cuda")
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        fast = tce.optimize(model, x, **BUDGET)
    assert fast.report.cuda_graph and "no CUDA graph" in str(fast.report)
    check(fast, model, x)
    # The generator and the stream are as before.
    assert torch.rand(2, device="cuda").max() < 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_networks_of_torchvision(name: str, device: str) -> None:
    model = trained_like(torchvision.models.get_model(name, weights=None)).to(device)
    size = 64 if device == "cuda" else 32
    x = torch.randn(2, 3, size, size, device=device)
    fast = tce.optimize(model, x, time_budget_s=0.02, torch_compile=False)
    with torch.no_grad():
        wanted = model(x)
    for way in (Way.optimized, Way.optimized_graph):
        error = (fast.run(way, x) - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-3
    assert not fast.report.whole and fast.report.rewrites.folded
    assert fast.report.errors[Way.optimized] < 1e-3


def test_a_recipe_makes_the_network_again(tmp_path: Path, device: str) -> None:
    model = trained_like(Block("iadd")).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, policy="max_workspace=1MiB", **BUDGET)
    file = tmp_path / "block.tce"
    fast.save(file)
    held = len(tce.tuning.entries())
    tce.tuning.clear()
    again = tce.load_optimized(file, model)
    assert len(tce.tuning.entries()) == held
    check(again, model, x)
    assert len(tce.tuning.entries()) == held
    assert again.report.rewrites == fast.report.rewrites and again.report.way is fast.report.way
    other = trained_like(Block("iadd")).to(device)
    other.conv1.weight.data.mul_(2)
    check(tce.load_optimized(file, other), other, x)
    with pytest.raises(ValueError, match="was made of another network"):
        tce.load_optimized(file, Block("twice").to(device))
    with pytest.raises(ValueError, match="was made of another network"):
        tce.load_optimized(file, nn.Conv2d(4, 4, 3))


def test_maxima_run_without_workspace(device: str) -> None:
    model = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2)).eval()
    x = torch.randn(4, 8, 20, 20, device=device)
    fast = tce.optimize(model, x, policy="max_workspace=0", **BUDGET)
    check(fast, model, x)
    assert all(min(row.by_workspace) == 0 for row in fast.report.problems)


def test_time_against_workspace(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 5)).eval()
    x = torch.randn(4, 8, 20, 20, device=device)
    fast = tce.optimize(model.to(device), x, **BUDGET)
    points, rows = fast.pareto(), fast.report.problems
    assert [*points] == sorted(points) and len({ms for _, ms in points}) == len(points)
    assert points[-1][1] <= sum(row.calls * row.ms for row in rows) + 1e-9
    assert all(a[1] > b[1] for a, b in zip(points, points[1:], strict=False))
    assert [row.calls for row in rows] == [1, 1]
    least = min(r["workspace_bytes"] or 0 for e in tce.tuning.entries() for r in e["measurements"])
    assert points[0][0] >= least >= 0


def test_calls_are_counted_in_the_run_that_finds_the_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced = list[nn.Module]()

    def traces(network: nn.Module, *args: Any, **options: Any) -> Any:
        traced.append(network)
        return described_calls(network, *args, **options)

    described_calls = search.described_calls
    monkeypatch.setattr(search, "described_calls", traces)
    conv = nn.Conv2d(3, 3, 3, padding=1)
    model, x = nn.Sequential(conv, conv, nn.Softmax(1)).eval(), torch.randn(2, 3, 8, 8)
    fast = tce.optimize(model, x, layout="search", **BUDGET)
    assert len(traced) == 2  # one a layout
    assert [row.calls for row in fast.report.problems] == [2, 1]


def test_operators_that_are_ours_are_no_baseline() -> None:
    for train in (False, True):
        with (
            tce.enabled(),
            pytest.raises(RuntimeError, match="is nothing to compare"),
        ):
            tce.optimize(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8), train=train, **BUDGET)


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    fast = tce.optimize(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8), **BUDGET)
    file = tmp_path / "conv.tce"
    fast.save(file)
    text = file.read_text()
    bad = [
        text[: len(text) // 2], "", text.replace("format = 3", "format = 2"),
        text.replace('"keep"', '"nhwc"'), text.replace('"heuristic"', "3"),
        text.replace("folded = [", 'folded = [3, "x"'), text.replace('policy = "', 'policy = "x;'),
        text.replace("cuda_graph = true", "cuda_graph = 1"), text + "more = 1\n",
        text.replace("rankings = [", 'rankings = ["{}",'), "rewrites = 3",
        text.replace("[layouts]", '[layouts]\n"0" = "nhwc"'),
    ]  # fmt: skip
    for wrong in bad:
        file.write_text(wrong)
        with pytest.raises(ValueError, match=r"conv.tce: got no recipe, wanted what .*save wrote"):
            tce.load_optimized(file, nn.Conv1d(2, 2, 3))
    with pytest.raises(OSError, match="missing.tce"):
        tce.load_optimized(tmp_path / "missing.tce", nn.Conv1d(2, 2, 3))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_net.py").write_text(
        "import torch\ndef make():\n    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3),"
        " torch.nn.BatchNorm2d(4), torch.nn.ReLU())\n    return net, torch.randn(2, 3, 8, 8)\n"
        "class Large(torch.nn.Module):\n    def forward(self, x):\n"
        "        raise RuntimeError('CUDA out of memory: 3 GiB')\n"
        "def large():\n    return Large(), torch.randn(2, 3)\n"
        "def small():\n    return torch.nn.ReLU(), torch.randn(2, 3)\n"
    )
    file, plot = tmp_path / "net.tce", tmp_path / "plot.svg"
    arguments = ["optimize", "--model", "own_net:make", "--device", "cpu", "--save", str(file)]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert main([*arguments, "--time-budget", "0.2", "--pareto", str(plot)]) == 0
        out = capsys.readouterr().out
        assert "batch norms folded: 1\n" in out and "activations taken in: 1\n" in out
        assert "The least time within a workspace" in out
        assert plot.read_text().startswith("<svg xmlns=")
        assert main([*arguments, "--pareto", "plot.pdf"]) == 2
        assert "--pareto: got 'plot.pdf', wanted a name that ends in" in capsys.readouterr().err
        assert 'way = "' in file.read_text()
        assert main([*arguments, "--pareto", str(tmp_path / "no" / "p.svg")]) == 2
        assert "which is no folder, wanted a file" in capsys.readouterr().err
        arguments[2] = "own_net:small"
        assert main([*arguments, "--pareto", str(tmp_path / "other.svg")]) == 0
        assert "--pareto: nothing is drawn, since" in capsys.readouterr().err
        arguments[2] = "own_net:large"
        for mode in ("--inference", "--train"):
            assert main([*arguments, mode]) == 1
            said = "own_net:large raised RuntimeError: CUDA out of memory: 3 GiB"
            assert said in capsys.readouterr().err
        assert main([*arguments, "--layout", "x"]) == 2
        assert "--layout: got 'x', wanted one of keep" in capsys.readouterr().err
