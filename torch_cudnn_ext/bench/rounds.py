"""Timing in turns: samples of both sides, their medians, and the interval of their ratio.

Each round times every side once, so that a change of the machine's speed affects all sides alike.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext._timing import event_ms, host_ms
from torch_cudnn_ext._torch_internals import occupy_gpu
from torch_cudnn_ext.analysis.tables import Column, milliseconds

DEFAULT_POLICY = "autotune;prefer=gpu_time"  # GPU times are compared
ROUNDS = 31
LEAST_ROUNDS = 11
ROUNDS_S = 1.5  # no round after the least ones starts later
RESAMPLES = 1000
MAX_REPETITIONS = 5  # timed runs of a GPU's sample, whose median counts
REPETITIONS_MS = 1.0  # the time that these runs fill at most
FLUSH_BYTES = 2**28  # several times the L2 cache of any GPU
HEAD_START_CYCLES = 200_000  # some 0.1 ms in which the host gets ahead of the GPU
TARGET_RATIO = 0.97  # if the interval ends below, as many rounds again are timed

Runner = Callable[[Callable[[], Any]], Any]

# The columns that comparisons of layers, modules and networks share.
TIME_COLUMNS = (
    Column("ms", lambda r: milliseconds(r["ours_ms"]), True),
    Column("PyTorch ms", lambda r: milliseconds(r["pytorch_ms"]), True),
)
SETTING_COLUMN = Column("PyTorch's best", lambda r: r["pytorch_setting"])
RATIO_COLUMNS = (
    Column("ratio", lambda r: f"{r['ratio']:.3f}", True),
    Column("95 %", lambda r: f"{r['ratio_low']:.3f} .. {r['ratio_high']:.3f}", True),
)


def samplers(
    sides: Sequence[tuple[Callable[[], object], Runner]], device: str
) -> list[Callable[[], float]]:
    """For each side a function that times it once, in ms; this warms the sides up."""
    for work, runner in sides:
        runner(work)  # PyTorch chooses its plan here, and keeps it
    if not device.startswith("cuda"):
        return [partial(runner, partial(host_ms, work)) for work, runner in sides]
    once_ms = min(runner(partial(event_ms, work)) for work, runner in sides for _ in range(3))
    repetitions = max(1, min(MAX_REPETITIONS, round(REPETITIONS_MS / max(once_ms, 1e-3))))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    return [partial(runner, partial(_cold_ms, work, flush, repetitions)) for work, runner in sides]


def _cold_ms(work: Callable[[], object], flush: Tensor, repetitions: int) -> float:
    """The median GPU time of some runs, each with a cold L2 cache, without the host's time.

    A head start and every flush keep the GPU busy, so that the host enqueues a run before the GPU
    reaches it. If the host is too late, all runs are repeated with a longer head start.
    """
    for attempt in range(4):
        occupy_gpu(HEAD_START_CYCLES * 4**attempt)
        times, in_time = [], True
        for _ in range(repetitions):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            flush.zero_()
            start.record()
            work()
            end.record()
            in_time = in_time and not start.query()  # type: ignore[no-untyped-call]
            times.append((start, end))
        end.synchronize()
        if in_time:
            break
    return float(statistics.median(start.elapsed_time(end) for start, end in times))


@dataclass(frozen=True)
class Rounds:
    """The result of timing in turns; ``ratio`` is PyTorch's time by ours."""

    medians: list[float]
    winner: int  # the index of PyTorch's better side
    ratio: float
    low: float
    high: float

    def fields(self) -> dict[str, Any]:
        """The fields of all comparisons."""
        ours_ms, pytorch_ms = self.medians[0], self.medians[self.winner]
        ratios = {"ratio": self.ratio, "ratio_low": self.low, "ratio_high": self.high}
        return {"ours_ms": ours_ms, "pytorch_ms": pytorch_ms, **ratios}


def samples(
    timers: Sequence[Callable[[], float]], most: int, at_most_s: float
) -> list[list[float]]:
    """Each side's times in so many rounds at most; the sides take turns at being first."""
    times: list[list[float]] = [[] for _ in timers]
    began = time.perf_counter()
    for turn in range(most):
        if turn >= LEAST_ROUNDS and time.perf_counter() - began > at_most_s:
            break
        for i in range(len(timers)):
            side = (turn + i) % len(timers)
            times[side].append(timers[side]())
    return times


def compare_samples(times: Sequence[Sequence[float]]) -> Rounds:
    """The result of each side's times; the first side is ours."""
    medians = [*map(statistics.median, times)]
    winner = min(range(1, len(medians)), key=medians.__getitem__)
    ratios = [b / a for a, b in zip(times[0], times[winner], strict=True)]
    low, high = bootstrap_interval(ratios)
    return Rounds(medians, winner, statistics.median(ratios), low, high)


def compare_sides(timers: Sequence[Callable[[], float]]) -> Rounds:
    """Time the sides, of which the first is ours, and twice as often if ours comes out slower."""
    times = samples(timers, ROUNDS, ROUNDS_S)
    result = compare_samples(times)
    if result.high >= TARGET_RATIO:
        return result
    more = samples(timers, ROUNDS, ROUNDS_S)
    return compare_samples([a + b for a, b in zip(times, more, strict=True)])


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the median (Efron, "Bootstrap methods", 1979)."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]
