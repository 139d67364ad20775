"""The memory that a call of a network takes on a GPU, and a bound on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext.analysis.tables import bytes_text


def peak_bytes(call: Callable[[], object], forget: Callable[[], object], device: str) -> int:
    """What the allocator hands out at most during a call, in addition to what was there before.

    Args:
        call: Runs the network.
        forget: Frees what an earlier call left that the next one makes again, such as gradients and
            a CUDA graph.
        device: The GPU.
    """
    with torch.cuda.device(device):
        call()  # what is made once for all calls is made here
        forget()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def ways_within_peak(report: OptimizationReport, peaks: dict[Way, int], most: int) -> list[Way]:
    """The ways whose peaks are within a bound; the report tells the others.

    Raises:
        ValueError: None is.
    """
    report.peak_bytes = peaks
    right = [way for way, peak in peaks.items() if peak <= most]
    if not right:
        least = min(peaks, key=peaks.__getitem__)
        raise ValueError(
            f"peak_memory: got {most} bytes, wanted at least {peaks[least]}, the smallest peak "
            f"seen ({least.value})"
        )
    for way, peak in peaks.items():
        if way not in right:
            report.add_note(
                f"not used: {way.value}, since its peak is {bytes_text(peak)}, and peak_memory is "
                f"{bytes_text(most)}"
            )
    return right
