"""`optimize` for training: what its steps compute, what is refused, and what stays as it was."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from optimize_helpers import check_step, images, ran_ours, small_net
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torch_cudnn_ext as tce
from torch_cudnn_ext import OptimizationReport
from torch_cudnn_ext._optimize import training
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.training_model import TrainingModel
from torch_cudnn_ext._optimize.ways import samples_of
from torch_cudnn_ext.cli.app import main

OURS_IS_FASTER = [2.0, 1.0]


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of PyTorch's step and of ours, in place of measured ones; they may be changed."""
    made = [*OURS_IS_FASTER]

    def fake(calls: Sequence[Callable[[], Any]], device: str) -> list[list[float]]:
        for call in calls:
            call()
        return [[ms] * 3 for ms in made[: len(calls)]]

    monkeypatch.setattr(training, "samples_of", fake)
    return made


def trained(model: nn.Module, *args: Any, **options: Any) -> Any:
    return tce.optimize(model, args, train=True, time_budget_s=0.02, **options)


class Block(nn.Module):
    """A network of one of many kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.register_buffer("scale", torch.full((3, 1, 1), 2.0))
        self.shift = torch.ones(())  # a tensor that is not registered
        self.calls = 0

    def forward(self, x: Tensor, more: Any = None) -> Any:
        y = self.norm(self.conv(x))
        if self.kind == "twice":
            return self.norm(self.conv(torch.relu(y)))
        if self.kind == "in place":
            y += x.detach()
            return F.relu_(y) * self.scale
        if self.kind == "tuple":
            return y, (x, 3), [y.mean()]
        if self.kind == "dict":
            return {"loss": y.sum(), "y": OrderedDict(y=y * self.shift)}
        if self.kind == "branches":
            return y if x.mean() > 1e9 else y * 2
        if self.kind == "no gradient":
            return {"y": y, "seen": y.detach(), "count": torch.tensor(3)}
        if self.kind == "checkpoint":
            return checkpoint(lambda t: self.norm(self.conv(t)), y, use_reentrant=False)
        if self.kind == "counts":
            self.calls += 1
        if self.kind == "keeps":
            self.seen = y
        if self.kind == "new buffer":
            self.scale = self.scale * 2
        if self.kind == "written buffer":
            self.scale.mul_(0.5)
        if self.kind == "changes its input":
            x.mul_(2)
        return y * self.scale


@pytest.mark.parametrize(
    "kind",
    [
        "twice", "in place", "tuple", "dict", "branches", "no gradient", "checkpoint",
        "new buffer", "written buffer", "plain",
    ],
)  # fmt: skip
def test_a_step_gives_what_the_models_step_gives(kind: str, device: str) -> None:
    model = Block(kind).to(device)
    model.shift = model.shift.to(device)
    x = images(device=device).requires_grad_(kind in ("tuple", "plain"))
    fast = trained(model, x)
    assert ran_ours(fast, x)
    check_step(fast, model, x)
    check_step(fast, model, images(3, device))  # a size that is not tuned
    check_step(fast, model, x, None)


@pytest.mark.parametrize(("kind", "name"), [("counts", "calls"), ("keeps", "seen")])
def test_a_model_that_keeps_state_runs_its_own_code(kind: str, name: str) -> None:
    model, x = Block(kind), images()
    fast = trained(model, x)
    assert f"PyTorch's layers run, since its forward changes {name}" in str(fast.report)
    assert not ran_ours(fast, x) and [*fast.report.errors] == [Way.plain]
    with pytest.raises(ValueError, match="max_error: the least error"):
        trained(model, x, max_error=1e-12)
    assert model.calls == (1 if kind == "counts" else 0)


def test_what_is_tried_changes_nothing(device: str) -> None:
    model, x = nn.Sequential(small_net(), nn.Dropout(0.5)).to(device), images(device=device)
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    told = list[str]()
    model[0][0].weight.register_hook(lambda grad: told.append("hook"))
    x.requires_grad_()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    versions = [t._version for t in model.state_dict().values()]
    addresses = [t.data_ptr() for t in model.parameters()]
    classes = [type(m) for m in model.modules()]
    before = torch.get_rng_state(), random.getstate()
    fast = trained(model, x, layout="search")
    fast.report.way = Way.plain
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    for name, t in model.state_dict().items():
        assert torch.equal(t, state[name]), name
    assert versions == [t._version for t in model.state_dict().values()]
    assert [type(m) for m in model.modules()] == classes and x.grad is None and not told
    assert model[0][0].weight.grad is kept and all(p.requires_grad for p in model.parameters())
    # A layout that was asked for is that of the model's own filters, whose values stay.
    assert fast.report.layout == "channels_last"
    assert model[0][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert [t.data_ptr() for t in model.parameters()][1:] == addresses[1:]


def test_training_trains_the_model(device: str) -> None:
    model, x = small_net().to(device), images(4, device)
    other, target = copy.deepcopy(model), torch.tensor([0, 3, 1, 2], device=device)
    fast = trained(model, x, loss=lambda y: F.cross_entropy(y, target))
    assert all(a is b for a, b in zip(fast.parameters(), model.parameters(), strict=True))
    for network in (fast, other):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            for part in x.chunk(2):  # gradients of two calls are summed
                (F.cross_entropy(network(part), target[: len(part)]) / 2).backward()
            optimizer.step()
    assert int(model[1].num_batches_tracked) == 8
    for name, t in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], t, rtol=1e-3, atol=1e-4)


def test_layers_of_one_module_and_of_none() -> None:
    shared = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    fast = trained(model, images())
    check_step(fast, model, images())
    model = nn.Sequential(nn.ReLU(), nn.Flatten())  # nothing of this package
    x = images().requires_grad_()
    fast = trained(model, x)
    assert fast.report.note.endswith("since no layer of the model is one of this package")
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("layout", ["channels_last", "search"])
def test_code_that_does_not_run_in_a_layout(layout: Any) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).view(len(x), -1)

    model, x = Views(), images()
    fast = trained(model, x, layout=layout)
    if layout == "search":
        assert fast.report.layout == "contiguous" and fast.report.way is Way.optimized
        check_step(fast, model, x)
    else:
        assert "since ours raised RuntimeError: view size is not" in fast.report.note
        assert fast(x).shape == (2, 144) and model.conv.weight.is_contiguous()


def test_frozen_parameters_and_inputs_with_gradients() -> None:
    model = small_net()
    for p in model[:2].parameters():
        p.requires_grad_(False)
    model[1].eval()
    fast = trained(model, images())
    check_step(fast, model, images())
    assert model[0].weight.grad is None and not model[1].training
    assert not any(p.startswith("conv_bwd") for p in fast._recipe.problems)
    for p in model.parameters():
        p.requires_grad_(False)
    x = images().requires_grad_()
    fast = trained(model, x)  # as for an adversarial image
    check_step(fast, model, x)
    assert any(p.startswith("conv_bwd_data") for p in fast._recipe.problems)
    with pytest.raises(ValueError, match=r"train: no tensor of the model's output \(Tensor\) has"):
        trained(model, images())
    with torch.inference_mode(), pytest.raises(ValueError, match="train: nothing has a gradient"):
        trained(small_net(), images())


def test_a_forward_may_write_to_its_parameters() -> None:
    class Decays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.conv.weight.mul_(0.5)
            y: Tensor = self.conv(x)
            return y

    model, x = Decays(), images()
    weight = model.conv.weight.detach().clone()
    fast = trained(model, x)
    assert torch.equal(model.conv.weight, weight) and fast.report.errors[Way.optimized] < 1e-5
    check_step(fast, model, x)


def test_recurrent_networks(device: str) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Any]:
            y, state = self.lstm(x)
            return self.head(y[:, -1]), state

    model, x = Last().to(device), torch.randn(2, 5, 4, device=device)
    fast = trained(model, x)
    check_step(fast, model, x)
    with torch.no_grad():  # the module is told of new weights
        model.lstm.weight_ih_l0 = nn.Parameter(model.lstm.weight_ih_l0 * 2)
    check_step(fast, model, x)


def test_autocast(device: str) -> None:
    model, x = small_net().to(device), images(device=device)
    with torch.autocast(device, torch.bfloat16):
        fast = trained(model, x)
    assert any("conv_fwd x=bf16" in p for p in fast._recipe.problems)
    assert fast.report.errors[Way.optimized] < 0.5
    for dtype in (torch.bfloat16, None):
        with torch.autocast(device, dtype, enabled=dtype is not None):
            assert fast(x).dtype == (dtype or torch.float32)
    fast(x).sum().backward()
    assert model[0].weight.grad is not None and model[0].weight.grad.dtype == torch.float32


def test_pytorchs_way_is_kept_if_ours_loses(times: list[float]) -> None:
    model, x = small_net(), images()
    times.reverse()
    fast = trained(model, x, layout="channels_last")
    assert fast.report.way is Way.plain and not fast._twins
    assert "PyTorch's layers run, since ours took 2.000 times as long" in str(fast.report)
    assert model[0].weight.is_contiguous() and not ran_ours(fast, x)
    assert fast.report.layout == fast._recipe.layout == "keep"


def test_the_baseline_is_the_model_as_it_is() -> None:
    seen = set[tuple[bool, bool]]()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            last = torch.channels_last
            seen.add(
                (x.is_contiguous(memory_format=last),
                self.conv.weight.is_contiguous(memory_format=last))
            )  # fmt: skip
            y: Tensor = self.conv(x)
            return y

    fast = trained(Net(), images(), layout="channels_last")
    assert fast.report.way is Way.optimized and seen == {(False, False), (True, True)}


class AlsoCoarse(nn.Module):
    """A network with another output of few digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.net(x)
        return y, y.detach().bfloat16()


@pytest.mark.parametrize("make", [small_net, AlsoCoarse])
def test_wrong_gradients_are_not_used(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TrainingModel.run

    def wrong(self: Any, way: Way, *args: Any) -> Any:
        y = run(self, way, *args)
        if way is Way.optimized:  # right results, whose gradients are too large
            first = y if isinstance(y, Tensor) else y[0]
            first.register_hook(lambda grad: grad * 1.01)
        return y

    monkeypatch.setattr(TrainingModel, "run", wrong)
    fast = trained(make(), images())
    assert fast.report.way is Way.plain
    assert "not used: optimized layers, since its error was 0.0" in fast.report.note
    with pytest.raises(ValueError, match="max_error: the least error"):
        trained(make(), images(), max_error=1e-12)


def test_inputs_are_layers_of_their_own() -> None:
    small, large = torch.tensor([1.0]), torch.tensor([100.0])
    assert training._scales(["weight", "input 0."], [small, large]) == [1.0, 100.0]
    assert training._scales(["a.weight", "a.bias"], [large, small]) == [100.0, 100.0]


def test_gradients_that_are_zero_but_for_rounding_are_no_errors() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Softmax(1)), images(4)
    fast = trained(model, x)
    assert fast.report.errors[Way.plain] < 1e-4 and fast.report.way is Way.optimized


def test_dropout_is_not_part_of_the_check(device: str) -> None:
    model = nn.Sequential(small_net(), nn.Dropout(0.5), nn.Linear(5, 2)).to(device)
    fast = trained(model, images(device=device))
    assert fast.report.errors[Way.plain] < 1e-3
    torch.manual_seed(1)
    assert not torch.equal(fast(images(device=device)), fast(images(device=device)))


def test_dropout_of_other_layers_is_not_part_of_the_check() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.5)
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.lstm(x)[0]
            y = self.attention(y, y, y)[0]
            return y

    model = Net()
    fast = trained(model, torch.randn(3, 2, 4), max_error=1e-2)
    assert fast.report.errors[Way.plain] < 1e-3
    assert {one.lstm.dropout for one in (model, *fast.twins)} == {0.5}  # type: ignore[union-attr]


def test_networks_whose_errors_are_not_known() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(x)
            return y * (torch.rand_like(y) > 0.5)  # others in float64

    class Single(Drops):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("no such dtype")
            y: Tensor = self.conv(x)
            return y

    draws = "the errors are not known, since its forward draws random numbers"
    report = trained(Drops(), images()).report
    assert report.errors == {} and report.way is Way.optimized and draws in str(report)
    with pytest.raises(ValueError, match=f"max_error: {draws}; wanted none"):
        trained(Drops(), images(), max_error=1.0)
    with pytest.raises(ValueError, match=r"run in float64 \(TypeError: no such dtype\); wanted"):
        trained(Single(), images(), max_error=1.0)


def test_steps_write_nothing_of_the_users_loss() -> None:
    class Criterion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5)

        def forward(self, y: Tensor) -> Tensor:
            decay = sum(p.square().sum() for p in model.parameters())
            return (self.norm(y) * scale).square().mean() + decay

    model, criterion = small_net(), Criterion()
    scale = nn.Parameter(torch.ones(5))
    scale.grad = kept = torch.ones(5)
    for loss in (criterion, lambda y: criterion(y)):
        count = int(criterion.norm.num_batches_tracked)
        trained(model, images(), loss=loss)
        assert scale.grad is kept and criterion.norm.weight.grad is None
        assert all(p.grad is None for p in model.parameters())
        assert loss is not criterion or int(criterion.norm.num_batches_tracked) == count


def test_autocasts_copies_are_no_part_of_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = list[str]()
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: cleared.append("cleared"))
    step = training._Step((images(),), None, "cpu")
    step.forget_gradients(small_net())
    assert cleared == ["cleared"]


def test_losses() -> None:
    seen = list[Any]()

    def loss(output: Any) -> Tensor:
        seen.append(output)
        result: Tensor = output["y"].square().mean()
        return result

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 3)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"y": self.conv(x)}

    fast = trained(Net(), images(), loss=loss)
    assert seen and fast.report.way is Way.optimized
    for wrong, told in (
        (lambda y: y["y"], r"loss: gave a tensor of sizes \[2, 2, 6, 6\] with a gradient"),
        (lambda y: 3.0, "loss: gave float, wanted a tensor of one element"),
        (lambda y: y["y"].detach().sum(), r"loss: gave a tensor of sizes \[\] without a gradient"),
    ):
        with pytest.raises(ValueError, match=told):
            trained(Net(), images(), loss=wrong)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"cuda_graph": True}, ValueError, "cuda_graph: got True with train=True, wanted False"),
        ({"torch_compile": True}, ValueError, "torch_compile: got True with train=True"),
        ({"loss": 3}, TypeError, r"loss: got 3 \(int\), wanted a function or None"),
        ({"train": 1}, ValueError, "train: got 1, wanted True or False"),
        ({"train": False, "loss": sum}, ValueError, "loss: got one with train=False, wanted None"),
        ({"layout": "nhwc"}, ValueError, "layout: got 'nhwc', wanted one of keep"),
    ],
)
def test_arguments_that_are_refused(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        tce.optimize(small_net(), images(), **{"train": True, **options})


def test_models_that_are_refused() -> None:
    for register in ("forward_pre_hook", "full_backward_hook"):
        model = small_net()
        getattr(model[0], f"register_{register}")(lambda *_: None)
        with pytest.raises(ValueError, match="model: got hooks of 0, which a rewritten network"):
            trained(model, images())
    with pytest.raises(ValueError, match="model: got one that changes its inputs"):
        trained(Block("changes its input"), images())


def test_a_recipe_makes_the_network_again(tmp_path: Path, device: str) -> None:
    model, x = small_net().to(device), images(device=device)
    fast = trained(model, x, layout="search")
    fast.save(tmp_path / "net.tce")
    held = len(fast._recipe.problems)
    tce.tuning.clear()
    other = copy.deepcopy(model)
    other[0].weight.data = other[0].weight.data.contiguous()
    again: Any = tce.load_optimized(tmp_path / "net.tce", other)
    assert len(tce.tuning.entries()) == held and again._recipe == fast._recipe
    check_step(again, other, x)
    assert len(tce.tuning.entries()) == held
    assert other[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert again.report.train and again.report.sentence() == "Sequential: not timed"
    with pytest.raises(ValueError, match="was made of another network than this Conv2d"):
        tce.load_optimized(tmp_path / "net.tce", nn.Conv2d(3, 3, 3))
    text = (tmp_path / "net.tce").read_text()
    (tmp_path / "net.tce").write_text(text.replace("train = true", "train = 1"))
    with pytest.raises(ValueError, match="train is 1, wanted true or false"):
        tce.load_optimized(tmp_path / "net.tce", other)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train_net.py").write_text(
        "import torch\ndef make():\n    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3),"
        " torch.nn.BatchNorm2d(4), torch.nn.ReLU())\n    return net, torch.randn(2, 3, 8, 8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(training, "samples_of", samples_of)
    arguments = ["optimize", "--model", "train_net:make", "--device", "cpu", "--train"]
    assert main([*arguments, "--time-budget", "0.02", "--save", str(tmp_path / "net.tce")]) == 0
    out = capsys.readouterr().out
    assert "timed: a training step, forward and backward" in out and "batch_norm_bwd" in out
    assert "train = true" in (tmp_path / "net.tce").read_text()
    assert main([*arguments, "--cuda-graph"]) == 2
    assert "--cuda-graph: given with train=True, wanted False" in capsys.readouterr().err


def test_reports_say_what_was_timed() -> None:
    report: OptimizationReport = trained(small_net(), images()).report
    assert report.sentence().startswith("optimize makes Sequential 2.00x (2.00 to 2.00) faster")
    assert "no CUDA graph: train=True\nnot compiled: train=True" in str(report)
    assert report.pareto() and "a training step" in report.to_html()
