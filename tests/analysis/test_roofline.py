"""Measured peaks of a device."""

import pytest
import torch
from helpers import LINE

from torch_cudnn_ext import _C, profile
from torch_cudnn_ext.analysis.roofline import _measured_peaks, measured_peaks


def test_profiling_leaves_the_random_state_as_it_is() -> None:
    _measured_peaks.cache_clear()  # they are measured once a process
    state = torch.get_rng_state()
    profile(LINE, device="cpu", time_budget_s=0.05)
    assert torch.equal(torch.get_rng_state(), state)


def test_peaks_are_of_the_device_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = measured_peaks("cpu", "f32", allow_tf32=False)
    assert measured_peaks("cpu", "f32", allow_tf32=False) is now
    monkeypatch.setattr(_C, "device_fingerprint", lambda device: f"{device} of more threads")
    assert measured_peaks("cpu", "f32", allow_tf32=False) is not now


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_cpu_s_peak_in_half_types_is_at_least_that_of_float32(dtype: str) -> None:
    _measured_peaks.cache_clear()
    floats = measured_peaks("cpu", "f32", allow_tf32=False)
    halves = measured_peaks("cpu", dtype, allow_tf32=False)
    assert halves.flops_per_second > 0.5 * floats.flops_per_second  # the rest is noise
