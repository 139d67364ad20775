"""Networks that ``torch.compile`` compiles, with our layers where tuning found something faster."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import needs_cuda
from optimize_helpers import BUDGET, Block, trained_like
from torch import Tensor, nn

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize import compiled, optimize
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.rewriting import ConvolutionAdd
from torch_cudnn_ext.nn import Conv2d

COMPILES = {**BUDGET, "torch_compile": True}
COMPILED = (Way.compiled, Way.compiled_graph, Way.mixed, Way.mixed_graph)


def network(fast: tce.OptimizedModel) -> nn.Module:
    return fast._compiled[Way.mixed].module


def called(module: Any) -> list[type]:
    """The classes of the layers that a network calls, in order."""
    nodes = [node for node in module.graph.nodes if node.op == "call_module"]
    return [type(module.get_submodule(node.target)) for node in nodes]


def check_calls(fast: tce.OptimizedModel, model: nn.Module, *args: Any) -> None:
    with torch.no_grad():
        wanted = model(*args)
    for way in COMPILED:
        torch.testing.assert_close(fast.run(way, *args), wanted, rtol=1e-4, atol=1e-4)


def check(fast: tce.OptimizedModel, model: nn.Module, *args: Any) -> None:
    check_calls(fast, model, *args)
    assert not fast.report.torch_compile


def test_inductor_compiles_what_lies_between(device: str) -> None:
    model = trained_like(Block("iadd")).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **COMPILES)
    check(fast, model, x)
    assert {Way.compiled, Way.mixed} <= fast.report.times_ms.keys()
    assert {Way.plain, Way.optimized, Way.compiled, Way.mixed} == fast.report.errors.keys()
    text = str(fast.report)
    assert "  optimized layers and torch.compile: " in text and "(torch.compile)" in text


@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("kept", ["all", "fused alone", "none"])
def test_a_layer_is_ours_if_tuning_found_something_faster(
    kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    def choices(module: Any, call: Any, options: Any) -> list[compiled.LayerChoice]:
        found = choices_of(module, call, options)
        assert {one.layer for one in found} == {"conv1", "conv2"}
        algorithm = "aten:default" if kept == "none" else "graph:eng0"
        is_fused = [kept == "all", kept != "none"]
        return [compiled.LayerChoice(f"conv{i + 1}", algorithm, is_fused[i]) for i in range(2)]

    choices_of = compiled.choices_of
    monkeypatch.setattr(optimize, "choices_of", choices)
    model, x = trained_like(Block("iadd")).to(device), torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **COMPILES)
    check(fast, model, x)
    ran = called(network(fast))
    if kept == "all":  # both take in what follows
        assert ran == [Conv2d, ConvolutionAdd] and not fast._recipe.separate
    elif kept == "fused alone":  # the first takes in nothing and stays ours
        assert ran == [Conv2d, nn.ReLU, ConvolutionAdd]
        assert fast._recipe.separate == ["conv1"] and not fast._recipe.left
    else:
        assert ran == [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU]
        assert sorted(fast._recipe.left) == ["conv1", "conv2"]
    fast.save(tmp_path / "block.tce")
    again = tce.load_optimized(tmp_path / "block.tce", model)
    assert again.report.left == fast.report.left == fast._recipe.left
    assert ("PyTorch's where compiled: conv" in str(again.report)) is (kept == "none")


@pytest.mark.usefixtures("dynamo_alone")
def test_recipes_copies_and_other_calls(tmp_path: Path, device: str) -> None:
    model = trained_like(Block("swapped")).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, **COMPILES)
    fast.save(tmp_path / "block.tce")
    again = tce.load_optimized(tmp_path / "block.tce", model)
    assert again._recipe == fast._recipe
    assert called(network(again)) == called(network(fast))
    check(again, model, x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        check(other, model, x)
    larger = torch.randn(3, 4, 9, 8, device=device)
    check_calls(fast, model, larger)  # such sizes are not compiled
    assert fast._compiled[Way.mixed]._call is not None


def test_what_cannot_be_compiled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Tensor:
        raise RuntimeError("there is no compiler\nat all")

    monkeypatch.setattr("torch.compile", lambda *_, **__: fails)
    model, x = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU()).eval(), torch.randn(1, 2, 8)
    with pytest.warns(UserWarning, match="calls run without torch.compile: there is no compiler"):
        fast = tce.optimize(model, x, **COMPILES)
    assert "not compiled: there is no compiler" in str(fast.report)
    assert not fast.report.way.is_compiled
    assert {Way.plain, Way.optimized} == fast.report.errors.keys() == fast.report.times_ms.keys()
    check_calls(fast, model, x)


@pytest.mark.usefixtures("dynamo_alone")
def test_errors_of_arguments_and_many_kinds_of_them() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3), nn.ReLU()).eval()
    x = torch.zeros(3, 5, dtype=torch.int64)
    fast = copy.deepcopy(tce.optimize(model, x, **COMPILES))
    for _ in range(2):
        with pytest.raises(IndexError):
            fast.run(Way.mixed, x + 99)
        assert not fast.report.torch_compile
        check(fast, model, x)
    for width in range(5, 20):
        check(fast, model, torch.zeros(3, width, dtype=torch.int64)[:, :5])
    assert len(fast._compiled[Way.mixed]._kinds) == compiled.MAX_KINDS


def test_a_layer_and_a_recurrent_network_are_not_compiled() -> None:
    fast = tce.optimize(nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8), **COMPILES)
    assert fast.report.torch_compile == "the model is one layer"
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 3))
    fast = tce.optimize(model, torch.randn(2, 3, 4), **COMPILES)
    assert fast.report.torch_compile == "torch.compile takes no recurrent networks"
    assert "not compiled: torch.compile takes no" in str(fast.report)


def test_it_is_off_on_the_cpu_and_for_what_is_not_traced() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    x = torch.randn(1, 2, 8)
    told = tce.optimize(nn.Conv1d(2, 2, 3), x, **BUDGET).report.torch_compile
    assert told == "the inputs are not on a GPU"
    fast = tce.optimize(Branches(), x, **COMPILES)
    assert fast.report.torch_compile == "the model was not traced"
    with pytest.raises(ValueError, match="torch_compile: got 1, wanted True, False or None"):
        tce.optimize(nn.Conv1d(2, 2, 3), x, torch_compile=1)  # type: ignore[arg-type]


@needs_cuda
def test_on_a_gpu_it_is_compiled_by_itself() -> None:
    model = trained_like(Block("iadd")).cuda()
    fast = tce.optimize(model, torch.randn(2, 4, 8, 8, device="cuda"), time_budget_s=0.2)
    assert Way.mixed_graph in fast.report.times_ms
