"""Settings of a measurement: what is checked, and with which message."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import LINE
from torch import nn

from torch_cudnn_ext import profile, profile_model, tuning
from torch_cudnn_ext.analysis.profile import profile_of_table
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.bench.layers import compare_layers
from torch_cudnn_ext.bench.modules import compare_modules
from torch_cudnn_ext.bench.networks import NetworkSettings, compare_networks
from torch_cudnn_ext.bench.overhead import measure_overhead
from torch_cudnn_ext.tuning.measure import checked_device


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="device: got 'tpu', wanted"):
        make_settings("tpu")
    with pytest.raises(ValueError, match="wanted one"):
        make_settings("cuda", "h200")
    with pytest.raises(ValueError, match="time_budget_s: got -1"):
        make_settings("cpu", time_budget_s=-1)
    with pytest.raises(ValueError, match="time_budget_s: got nan"):
        make_settings("cpu", time_budget_s=float("nan"))
    with pytest.raises(ValueError, match="time_budget_s: got '1', wanted seconds"):
        make_settings("cpu", time_budget_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_budget_s: got '1', wanted seconds"):
        tuning.tune(LINE, device="cpu", time_budget_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="jobs: got '2', wanted 1 or more"):
        tuning.tune(LINE, device="cpu", jobs="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"problems: got 1 \(int\), wanted problem lines"):
        tuning.tune([1], device="cpu")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="jobs: got True, wanted 1 or more"):
        tuning.tune([LINE], device="cpu", jobs=True)
    with pytest.raises(ValueError, match="jobs: got True, wanted 1 or more"):
        next(compare_networks(["resnet18"], ["f32"], NetworkSettings(False, "cpu", jobs=True)))


def _never_run() -> nn.Module:
    model = nn.Linear(1, 1)

    def fail(*_: object) -> None:
        raise AssertionError("it ran")

    model.register_forward_pre_hook(fail)
    return model


@pytest.mark.parametrize(
    "measure",
    [
        lambda progress: profile(LINE, device="cpu", progress=progress),
        lambda progress: profile_model(_never_run(), torch.ones(1), progress=progress),
        lambda progress: tuning.tune_model(_never_run(), torch.ones(1), progress=progress),
        lambda progress: next(compare_layers([], make_settings(), progress=progress)),
        lambda progress: tuning.tune(LINE, device="cpu", progress=progress),
        lambda progress: next(measure_overhead("cpu", progress)),
        lambda progress: next(compare_modules([], ["f32"], False, "cpu", progress=progress)),
        lambda progress: next(
            compare_networks(["resnet18"], ["f32"], NetworkSettings(False, "cpu"), progress)
        ),
    ],
)
def test_progress_that_cannot_be_told(measure: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"progress: got 3 \(int\), wanted an object with the meth"):
        measure(3)
    with pytest.raises(
        TypeError, match=r"progress: got namespace\(.*\) \(SimpleNamespace\), wanted"
    ):
        measure(SimpleNamespace(problem=1, algorithm=2))


def test_a_device_is_checked_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (checked_device(), checked_device("cuda:1")) == ("cuda", "cuda:1")
    assert checked_device(torch.device("cpu")) == "cpu"
    with pytest.raises(RuntimeError, match="device: got 'cuda:2', but PyTorch finds 2 CUDA dev"):
        checked_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert checked_device() == "cpu"
    with pytest.raises(RuntimeError, match="device: got 'cuda', but PyTorch finds no CUDA device"):
        tuning.tune(LINE, device="cuda")
    with pytest.raises(ValueError, match="device: got 'gpu', wanted 'cpu', 'cuda' or"):
        tuning.tune(LINE, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_cuda_is_refused_and_h200_is_the_target() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device"):
        make_settings("cuda")
    settings = make_settings()
    assert (settings.device, settings.target) == ("cpu", "h200")
    assert make_settings("cpu").target is None


def test_a_share_of_no_device_s_memory_is_refused() -> None:
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    kept = profile_of_table(tuning.entries())
    assert kept.best(max_workspace="1GiB") == kept.best()
    with pytest.raises(ValueError, match="max_workspace: got '20%' for what a file kept"):
        kept.best(max_workspace="20%")


def test_knobs_are_searched_on_a_gpu_alone() -> None:
    for function in (profile, tuning.tune):
        with pytest.raises(ValueError, match=r"knob_search: got True on cpu, .* wanted a GPU"):
            function(LINE, device="cpu", knob_search=True)


def test_energy_is_measured_on_a_gpu_alone() -> None:
    with pytest.raises(ValueError, match=r"^energy: got True on cpu, .* wanted a GPU"):
        profile(LINE, device="cpu", energy=True)
    with pytest.raises(TypeError, match="energy"):
        profile(LINE, device="cpu", energy="yes")  # type: ignore[arg-type]
