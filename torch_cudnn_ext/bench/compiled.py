"""Whole networks under ``torch.compile``, with and without `enable`.

Each side has a process of its own, in which it compiles once: enabling drops what was compiled.
The processes take turns on the device, sample by sample. Untuned, ours is compared with PyTorch's
default, ``torch.backends.cudnn.benchmark=False``. Tuned, it is compared with the better of the two
settings.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from torch_cudnn_ext import tuning
from torch_cudnn_ext._grammar import CONSTRAINTS
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.tables import Column, Table, milliseconds
from torch_cudnn_ext.bench import networks, rounds
from torch_cudnn_ext.bench.networks import GRACE_S, WARM_STEPS, NetworkSettings
from torch_cudnn_ext.models.enable import enable
from torch_cudnn_ext.tuning.measure import Progress
from torch_cudnn_ext.tuning.worker_pool import worker_pool

PLAIN, PLAIN_BENCHMARK, UNTUNED, TUNED = range(4)  # the sides


@dataclass
class CompiledComparison:
    """One compiled network in one setting.

    ``batch`` is the first size of its first tensor, ``None`` if it takes none.
    The ratios are PyTorch's time by ours, above 1 if ours is faster, with 95 % intervals.
    """

    network: str
    batch: int | None
    precision: str
    layout: str
    mode: str  # "train" or "infer"
    pytorch_ms: float
    pytorch_benchmark_ms: float
    untuned_ms: float
    tuned_ms: float
    untuned_ratio: float
    untuned_low: float
    untuned_high: float
    tuned_ratio: float
    tuned_low: float
    tuned_high: float


def compare_compiled(
    names: Sequence[str],
    precisions: Sequence[str],
    settings: NetworkSettings,
    progress: Progress | None = None,
    table: str | Path | None = None,
) -> Iterator[CompiledComparison]:
    """Compare network by network, inference and a training step.

    Args:
        names: As `load_model` takes them.
        precisions: Of `networks.PRECISIONS`; half types by autocast.
        settings: How to compare. The untuned side keeps the constraints of the policy only.
        progress: Told of every network, precision and mode.
        table: A file of the tuning table to begin with, if it exists, and to add to.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: ``jobs`` is less than 1.
        RuntimeError: A network raised something, or its process was killed.
    """
    work = [*product(names, precisions, ("infer", "train"))]
    yield from networks.each_compared(_compare, work, settings, progress, table)


def _compare(
    network: str, precision: str, mode: str, settings: NetworkSettings, table: Path
) -> CompiledComparison:
    one = (network, precision, mode, settings, table)
    with ExitStack() as processes:
        pools = [processes.enter_context(worker_pool(1, grace_s=GRACE_S)) for _ in range(4)]
        # The tuned side begins when the device is idle.
        begun = [
            pools[side].submit(_begin, side, *one) for side in (PLAIN, PLAIN_BENCHMARK, UNTUNED)
        ]
        batch = [future.result() for future in begun][0]
        pools[TUNED].submit(_begin, TUNED, *one).result()
        for pool in pools:
            pool.submit(_set_pace, settings.device).result()

        def sampler(side: int) -> Callable[[], float]:
            return lambda: pools[side].submit(_sample).result()

        times = rounds.samples([*map(sampler, range(4))], rounds.ROUNDS, rounds.ROUNDS_S)
    untuned = rounds.compare_samples([times[UNTUNED], times[PLAIN]])
    tuned = rounds.compare_samples([times[TUNED], times[PLAIN], times[PLAIN_BENCHMARK]])
    medians = [*map(statistics.median, times)]
    return CompiledComparison(
        network=network,
        batch=batch,
        precision=precision,
        layout="nhwc" if settings.channels_last else "nchw",
        mode=mode,
        pytorch_ms=medians[PLAIN],
        pytorch_benchmark_ms=medians[PLAIN_BENCHMARK],
        untuned_ms=medians[UNTUNED],
        tuned_ms=medians[TUNED],
        untuned_ratio=untuned.ratio,
        untuned_low=untuned.low,
        untuned_high=untuned.high,
        tuned_ratio=tuned.ratio,
        tuned_low=tuned.low,
        tuned_high=tuned.high,
    )


@dataclass
class _Side:
    """What a side's process keeps between its turns."""

    step: Callable[[], None] | None = None
    sampler: Callable[[], float] | None = None


_here = _Side()


def _begin(
    side: int, network: str, precision: str, mode: str, settings: NetworkSettings, table: Path
) -> int | None:
    """Compile and warm up a side in its process, and tune if it is the tuned one."""
    subject = networks.subject_of(side == PLAIN_BENCHMARK, network, precision, mode, settings)
    if side == UNTUNED:
        enable(only_fields(settings.policy, (*CONSTRAINTS,)))
    if side == TUNED:
        if table.exists():
            tuning.import_table(table)
        enable(settings.policy)
    compiled: Any = torch.compile(subject.model)
    step = partial(networks.run_step, compiled, subject.inputs, subject.train, subject.autocast)
    try:
        if side == TUNED:
            subject.tune(settings)
        for _ in range(WARM_STEPS):
            step()
    finally:
        if side == TUNED:
            tuning.merge_table(table)
    _here.step = step
    return subject.batch()


def _set_pace(device: str) -> None:
    """Find how many steps a sample takes, while no other process works."""
    assert _here.step is not None
    _here.sampler = networks.timer_of(_here.step, nullcontext, device)


def _sample() -> float:
    assert _here.sampler is not None
    return _here.sampler()


def _ratio(name: str) -> tuple[Column, Column]:
    return (
        Column(f"{name} ratio", lambda r: f"{r[f'{name}_ratio']:.3f}", True),
        Column("95 %", lambda r: f"{r[f'{name}_low']:.3f} .. {r[f'{name}_high']:.3f}", True),
    )


COLUMNS = (
    *networks.SUBJECT_COLUMNS,
    Column("compile ms", lambda r: milliseconds(r["pytorch_ms"]), True),
    Column("benchmark=True ms", lambda r: milliseconds(r["pytorch_benchmark_ms"]), True),
    Column("enable() ms", lambda r: milliseconds(r["untuned_ms"]), True),
    Column("tuned ms", lambda r: milliseconds(r["tuned_ms"]), True),
    *_ratio("untuned"),
    *_ratio("tuned"),
)


def comparison_text(comparisons: Sequence[CompiledComparison], format: str) -> str | list[Table]:
    """Comparisons in a format; see `formatted`."""
    records = [dataclasses.asdict(comparison) for comparison in comparisons]
    means = {
        name: statistics.geometric_mean(ratios)
        for name in ("untuned", "tuned")
        if (ratios := [record[f"{name}_ratio"] for record in records])
    }
    footer = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    title, names = "torch.compile with and without enable()", field_names(CompiledComparison)
    data = {"comparisons": records, "geometric_means": means}
    return formatted(
        format, data, title, COLUMNS, records, names, f"geometric means: {footer}" if means else ""
    )
