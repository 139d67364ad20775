"""The module that trains a model: whose state it is, and when the model's own code runs."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from optimize_helpers import check_step as check
from optimize_helpers import images, ran_ours, small_net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize.making import digest_of, new_training_report
from torch_cudnn_ext._optimize.options import NewShape, Options
from torch_cudnn_ext._optimize.training_model import TrainingModel


def made(model: nn.Module, x: torch.Tensor, on_new_shape: NewShape = "heuristic") -> TrainingModel:
    """What `optimize` makes if ours is faster, without tuning."""
    options = Options(True, None, None, "keep", None, None, on_new_shape, None, None)
    (recipe,) = options.recipes((x,), digest_of(model))
    return TrainingModel(model, recipe, new_training_report(model, recipe))


def test_its_state_is_the_models(device: str) -> None:
    model, x = small_net().to(device), images(device=device)
    fast = made(model, x)
    assert [*fast.state_dict()] == [*model.state_dict()]
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert [*fast.children()] == [*model.children()]
    state = {name: t + 1 for name, t in model.state_dict().items()}
    fast.load_state_dict(state)
    check(fast, model, x)
    fast.load_state_dict({k: t.clone() for k, t in state.items()}, assign=True)
    assert torch.equal(model[0].weight, state["0.weight"])
    check(fast, model, x)
    model.load_state_dict({k: t * 0.5 if t.is_floating_point() else t for k, t in state.items()})
    check(fast, model, x)
    whole = nn.Sequential(fast, nn.Linear(5, 2).to(device))
    assert "0.0.weight" in whole.state_dict()
    whole.load_state_dict(copy.deepcopy(whole.state_dict()))
    fast.double()
    assert model[0].weight.dtype == torch.float64
    check(fast, model, x.double())
    fast.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_is_one_layer() -> None:
    lstm = nn.LSTM(3, 2)
    fast = made(lstm, torch.randn(4, 2, 3))
    fast.double()
    check(fast, lstm, torch.randn(4, 2, 3, dtype=torch.float64))
    fast.load_state_dict({name: t.clone() + 1 for name, t in lstm.state_dict().items()})
    check(fast, lstm, torch.randn(4, 2, 3, dtype=torch.float64))


def test_modes_are_the_models() -> None:
    model, x = small_net(), images()
    fast = made(model, x)
    assert fast.training and ran_ours(fast, x)
    assert fast.eval() is fast and not model.training and not model[1].training
    assert not ran_ours(fast, x)  # for inference `optimize` makes another network
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=0)
    model.train()
    assert fast.training and ran_ours(fast, x)
    model[1].eval()  # a batch norm that is frozen
    check(fast, model, x)
    count = int(model[1].num_batches_tracked)
    fast(x)
    assert int(model[1].num_batches_tracked) == count
    nn.Sequential(fast).eval()
    assert not model.training and not model[0].training


@pytest.mark.parametrize("change", ["hook", "backward hook", "module", "pin", "convert"])
def test_a_model_that_was_changed_runs_its_own_code(change: str) -> None:
    model, x = small_net(), images()
    fast = made(model, x)
    told = list[str]()
    if change == "hook":
        handle = model[0].register_forward_hook(lambda *_: told.append("forward"))
    elif change == "backward hook":
        handle = model[0].register_full_backward_hook(lambda *_: told.append("backward"))
    elif change == "module":
        model[5] = nn.Linear(64, 2)
    elif change == "pin":
        tce.apply_pins(model, {"0": "fwd=cpu:im2col"})
    else:
        tce.convert(model)
    y = fast(x.requires_grad_())
    y.sum().backward()
    assert y.shape == (2, 2 if change == "module" else 5)
    if "hook" in change:
        assert told == [change.split()[0] if change != "hook" else "forward"]
        assert not ran_ours(fast, x)
        handle.remove()
        assert ran_ours(fast, x)
    elif change == "pin":
        fast(x)
        assert tce.last_decision("conv_fwd").algorithm == "cpu:im2col"  # type: ignore[union-attr]


def test_layers_of_the_user_keep_their_policies_and_pins() -> None:
    model: Any = nn.Sequential(tce.nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    model[0].policy = "fwd=cpu:im2col"
    tce.apply_pins(model, {"1": "fwd=cpu:im2col"})
    before = [type(m) for m in model], [getattr(m, "policy", None) for m in model]
    fast = made(model, images())
    assert before == ([type(m) for m in model], [getattr(m, "policy", None) for m in model])
    twin: Any = fast._twins[True].network
    assert twin[0].policy == model[0].policy and twin[1] is model[1]
    assert "fwd=tuned" in twin[2].policy
    check(fast, model, images())


def test_modules_without_layers_are_the_models_own() -> None:
    model, x = nn.Sequential(small_net(), nn.Dropout(0.0)), images()
    fast = made(model, x)
    twin: Any = fast._twins[True].network
    assert twin[1] is model[1] and twin[0][2] is model[0][2] and twin[0][0] is not model[0][0]
    model[1].p = 1.0  # such as a schedule does
    assert float(fast(x).detach().abs().max()) == 0


def _train_as_rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    other, x = copy.deepcopy(model), images(4)
    fast = made(model, x[:2])
    assert ran_ours(fast, x)
    distributed = DistributedDataParallel(fast)
    for _ in range(2):
        distributed.zero_grad()
        distributed(x.chunk(2)[rank]).square().mean().backward()
    other(x).square().mean().backward()  # of all ranks' images
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    torch.distributed.destroy_process_group()


def test_ranks_sum_their_gradients(tmp_path: Path) -> None:
    mp.spawn(_train_as_rank, (f"file://{tmp_path}/store",), nprocs=2)  # type: ignore[no-untyped-call]


class Meter:
    """Counts calls."""

    count = 0


class KeepsNested(nn.Module):
    """A network whose state is in containers and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.stats, self.meter = nn.Conv2d(3, 4, 3), {"means": list[float]()}, Meter()
        self.layers, self.run = [self.conv], self.compute

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers[0](x)
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.run(x)
        self.stats["means"].append(float(y.detach().mean()))
        self.meter.count += 1
        return y


def test_nested_state_is_the_models() -> None:
    model, x = KeepsNested(), images()
    fast = tce.optimize(model, x, train=True, time_budget_s=0.02)
    assert not model.stats["means"] and not model.meter.count
    fast = made(model, x)
    assert ran_ours(fast, x)  # also by a list of layers and a method in an attribute
    assert len(model.stats["means"]) == model.meter.count == 1


def test_copies_and_pickles_train_models_of_their_own() -> None:
    model, x = small_net(), images()
    fast = made(model, x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.model is not model and ran_ours(other, x)
        assert {id(p) for p in other.parameters()} == {id(p) for p in other.model.parameters()}
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
        check(other, other.model, x)
        other.eval()
        assert model.training and not other.model.training
    check(fast, model, x)


def test_other_sizes_are_not_tuned() -> None:
    model, x = small_net(), images()
    fast = made(model, x)
    fast._recipe.shapes = []
    held = len(tce.tuning.entries())
    fast(x)
    fast(images(5))
    assert len(tce.tuning.entries()) == held


def test_calls_measure_nothing_unless_asked() -> None:
    x = images()
    tce.tuning.reset()
    before = tce.tuning.statistics().timed_runs
    made(small_net(), x)(x)
    assert tce.tuning.statistics().timed_runs == before
    made(small_net(), x, "autotune")(x)
    assert tce.tuning.statistics().timed_runs > before


@pytest.mark.parametrize("train", [False, True])
def test_functions_that_a_forward_calls_are_pytorchs(train: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.weight = nn.Conv2d(3, 4, 3), nn.Parameter(torch.ones(4, 4, 5, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.conv2d(self.conv(x), self.weight)
            return torch.softmax(y @ torch.ones(2, 2), 1)

    report = tce.optimize(Net(), images(), train=train, time_budget_s=0.02).report
    assert report.problems and all("w=f32[4,3,3,3]" in row.problem for row in report.problems)
