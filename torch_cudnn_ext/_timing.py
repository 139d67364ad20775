"""How long work takes on the host and on the GPU, and which kernels it runs."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch


def current(device: str) -> AbstractContextManager[object]:
    """Make a GPU the current one, so that events record on its streams; nothing on the CPU."""
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


def event_ms(work: Callable[[], object]) -> float:
    """GPU milliseconds of what ``work`` puts on the current stream of the current GPU."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def host_ms(work: Callable[[], object]) -> float:
    """Host milliseconds of ``work``."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def kernel_names(
    work: Callable[[], object], runner: Callable[[Callable[[], object]], object], device: str
) -> list[str]:
    """What one call runs, the longest first.

    On a GPU these are its kernels; on the CPU the operators that took a tenth of the time or more,
    and at least one.
    """
    activity = torch.profiler.ProfilerActivity
    if not device.startswith("cuda"):
        if not torch.cuda.is_available():  # else the profiler prints that it finds no GPU
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with torch.profiler.profile(activities=[activity.CPU], acc_events=True) as profiler:
            runner(work)
        times = {e.key: e.self_cpu_time_total for e in profiler.key_averages()}
        longest = sorted(times, key=lambda name: -times[name])
        large = [name for name in longest if times[name] >= sum(times.values()) / 10]
        return large or longest[:1]
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[activity.CUDA], acc_events=True) as profiler:
        runner(work)
        torch.cuda.synchronize(device)
    events = [e for e in profiler.key_averages() if e.device_type.name == "CUDA"]
    return [e.key for e in sorted(events, key=lambda e: -e.self_device_time_total)]
