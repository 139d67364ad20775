"""A bound on the memory of a call: how it is measured, and which ways it excludes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from conftest import needs_cuda
from optimize_helpers import BUDGET, small_net
from torch import nn

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize import memory, training, ways
from torch_cudnn_ext._optimize.options import Options
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.training_model import TrainingModel

PEAKS = {Way.plain: 100, Way.optimized: 300}


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Peaks of a GPU, by way, in place of measured ones; the devices that were asked."""
    asked = list[str]()

    def fake(call: Callable[[], Any], forget: Callable[[], Any], device: str) -> int:
        asked.append(device)
        call()
        forget()
        first, *others = call.args  # type: ignore[attr-defined]
        is_ours = isinstance(first, TrainingModel) or Way.optimized in (first, *others)
        return PEAKS[Way.optimized if is_ours else Way.plain]

    for module in (ways, training):
        monkeypatch.setattr(module, "peak_bytes", fake)
    monkeypatch.setattr(Options, "most_bytes", lambda self, device: self.peak_memory)
    return asked


@pytest.mark.parametrize("train", [False, True])
def test_ways_above_the_bound_do_not_run(train: bool, peaks: list[str]) -> None:
    options = BUDGET | {"train": train}
    model, x = nn.Sequential(nn.Conv1d(2, 2, 3), nn.ReLU()), torch.randn(2, 2, 8)
    fast = tce.optimize(model, x, peak_memory=299, **options)
    report = fast.report
    assert report.way is Way.plain and report.peak_bytes == PEAKS and peaks == ["cpu", "cpu"]
    assert "not used: optimized layers, since its peak is 300 B, and peak_memory" in report.note
    assert "peak memory: 100 B (PyTorch's layers), 300 B (optimized layers)" in str(report)
    assert fast(x).shape == (2, 2, 6)
    within = tce.optimize(model, x, peak_memory=300, **options).report
    assert within.peak_bytes == PEAKS and "not used" not in within.note
    with pytest.raises(ValueError, match=r"peak_memory: got 99 bytes, wanted at least 100, the"):
        tce.optimize(model, x, peak_memory=99, **options)
    assert not tce.optimize(model, x, **options).report.peak_bytes  # nobody asked


def test_ours_runs_if_pytorchs_is_above(peaks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(calls: list[Any], device: str) -> list[list[float]]:
        return [[1.0] * 3, [2.0] * 3]

    monkeypatch.setattr(training, "samples_of", fake)
    monkeypatch.setitem(PEAKS, Way.plain, 1000)
    report = tce.optimize(
        small_net(), torch.randn(2, 3, 8, 8), peak_memory=400, **BUDGET, train=True
    ).report
    assert report.way is Way.optimized and report.ratio == 0.5
    assert report.sentence() == (
        "Sequential: 2.00 times as long as with PyTorch's layers, 1 -> 2 ms: not used: PyTorch's "
        "layers, since its peak is 1000 B, and peak_memory is 400 B"
    )


@pytest.mark.parametrize("train", [False, True])
def test_there_is_no_such_measurement_on_the_cpu(train: bool) -> None:
    model, x = nn.Conv1d(2, 2, 3), torch.randn(1, 2, 8)
    with pytest.raises(ValueError, match="peak_memory: got '1GiB' for a model on cpu, wanted one"):
        tce.optimize(model, x, peak_memory="1GiB", train=train)
    with pytest.raises(ValueError, match="peak_memory: got '1 Gigabyte', wanted bytes as an int"):
        tce.optimize(model, x, peak_memory="1 Gigabyte", train=train)
    with pytest.raises(TypeError, match=r"peak_memory: got 2.5 \(float\), wanted bytes"):
        tce.optimize(model, x, peak_memory=2.5, train=train)  # type: ignore[arg-type]


def test_a_peak_is_that_of_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an allocator that is made up: what the first call keeps is not counted."""
    now = {"held": 1000, "most": 1000}

    def allocates(size: int) -> None:
        now["held"] += size
        now["most"] = max(now.values())

    def call() -> None:
        if now["held"] < 1050:  # a workspace that is kept for all calls
            allocates(50)
        allocates(7)  # a gradient, which stays
        allocates(30)
        allocates(-30)

    def resets() -> None:
        now["most"] = now["held"]

    for name, value in {
        "device": lambda device: nullcontext(), "synchronize": lambda: None,
        "memory_allocated": lambda: now["held"], "max_memory_allocated": lambda: now["most"],
        "reset_peak_memory_stats": resets,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    assert memory.peak_bytes(call, lambda: allocates(-7), "cuda:0") == 37


@needs_cuda
@pytest.mark.parametrize("train", [False, True])
def test_peaks_on_a_gpu(train: bool) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU()).cuda(), torch.randn(8, 3, 64, 64)
    options = BUDGET | {"train": train}
    report = tce.optimize(model, x.cuda(), peak_memory="20%", **options).report
    assert min(report.peak_bytes.values()) >= 8 * 64 * 62 * 62 * 4
    with pytest.raises(ValueError, match="peak_memory: got 1000 bytes, wanted at least"):
        tce.optimize(model, x.cuda(), peak_memory=1000, **options)
