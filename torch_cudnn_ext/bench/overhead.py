"""The host time of an operator's call, compared with PyTorch's."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_cudnn_ext._timing import current
from torch_cudnn_ext._torch_internals import tree_leaves
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.tables import Column, Table
from torch_cudnn_ext.bench.overhead_cases import Case, cases
from torch_cudnn_ext.bench.rounds import samples
from torch_cudnn_ext.models.enable import enabled
from torch_cudnn_ext.tuning.measure import Progress, check_progress

ROUNDS = 31
CALLS = 100  # so few that the GPU's queue is never full
# A policy that says what holds without it, so that both calls run the same algorithm.
POLICY = "heuristic"
DTYPES = {"f32": torch.float32, "f16": torch.float16}
_DOORS = ("pytorch_us", "ops_us", "policy_us", "torch_nn_us", "nn_us", "enabled_us")
FORWARD, TRAINING = "fwd", "fwd+bwd"


@dataclass
class Overhead:
    """Host time per call of one operator, in microseconds, through each door.

    Attributes:
        operator: The operator's name.
        dtype: The type of its tensors.
        passes: ``fwd`` without gradients, or ``fwd+bwd``.
        pytorch_us: PyTorch's function.
        ops_us: The function of `ops`.
        policy_us: The same with a policy text.
        torch_nn_us: The module of ``torch.nn``.
        nn_us: The module of `nn`.
        enabled_us: PyTorch's function under `enable`.
        spread: The largest half interquartile range of these times, as a share of the median.
    """

    operator: str
    dtype: str
    passes: str
    pytorch_us: float
    ops_us: float
    policy_us: float
    torch_nn_us: float
    nn_us: float
    enabled_us: float
    spread: float

    def ratios(self) -> dict[str, float]:
        """Our times by PyTorch's."""
        return {
            "ops_ratio": self.ops_us / self.pytorch_us,
            "policy_ratio": self.policy_us / self.pytorch_us,
            "nn_ratio": self.nn_us / self.torch_nn_us,
            "enabled_ratio": self.enabled_us / self.pytorch_us,
        }


def overhead_cases(device: str) -> list[tuple[str, str, str]]:
    """The operator, the dtype and the passes of each result of `measure_overhead`."""
    names = [case.name for case in cases("cpu", torch.float32)]
    dtypes = DTYPES if device.startswith("cuda") else ["f32"]
    return [
        (name, dtype, passes)
        for dtype in dtypes
        for passes in (FORWARD, TRAINING)
        for name in names
    ]


def measure_overhead(device: str, progress: Progress | None = None) -> Iterator[Overhead]:
    """Host time per call of small problems, with warm caches and through every door.

    The doors are PyTorch's function, the function of `ops`, the same with a policy text, the
    modules of ``torch.nn`` and of `nn`, and PyTorch's function under `enable`. They take turns, and
    each time is a median over rounds. Nothing waits for the GPU. On the CPU all times include the
    arithmetic, and only float32 is measured.

    Args:
        device: ``cpu`` or ``cuda[:i]``.
        progress: Told of every operator.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
    """
    check_progress(progress)
    rows = overhead_cases(device)
    made: dict[str, dict[str, Case]] = {}
    for done, (name, dtype, passes) in enumerate(rows):
        if progress is not None:
            progress.problem(done, len(rows), f"{name} {dtype} {passes}")
        with current(device):
            if dtype not in made:
                made[dtype] = {case.name: case for case in cases(device, DTYPES[dtype])}
            times = _times_of(made[dtype][name], passes, device)
        medians = dict(zip(_DOORS, map(statistics.median, times), strict=True))
        yield Overhead(name, dtype, passes, **medians, spread=max(map(_spread, times)))


def _times_of(case: Case, passes: str, device: str) -> list[list[float]]:
    """The times of all doors, in the order of `_DOORS`."""
    is_training = passes == TRAINING
    doors: list[Callable[[], Any]] = [
        lambda: case.theirs(*case.arguments),
        lambda: case.ours(*case.arguments),
        lambda: case.ours(*case.arguments, policy=POLICY),
        lambda: case.their_module(*case.inputs),
        lambda: case.our_module(*case.inputs),
    ]
    loops = [_loop_us(_with_backward(door) if is_training else door, device) for door in doors]
    theirs = loops[0]

    def under_enable() -> float:
        with enabled():
            return theirs()

    sides = [*loops, under_enable]
    with torch.set_grad_enabled(is_training):
        for side in sides:
            side()  # warms caches
        return samples(sides, ROUNDS, math.inf)


def _with_backward(call: Callable[[], Any]) -> Callable[[], None]:
    """A call and its backward, from the first result."""
    gradient = torch.ones_like(tree_leaves(call())[0])

    def run() -> None:
        tree_leaves(call())[0].backward(gradient)

    return run


def _spread(times: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _loop_us(work: Callable[[], object], device: str) -> Callable[[], float]:
    """A function that gives the host microseconds a call; it starts with an empty GPU queue."""

    def loop() -> float:
        work()  # warms the caches under this policy
        _wait(device)
        began = time.perf_counter()
        for _ in range(CALLS):
            work()
        return (time.perf_counter() - began) * 1e6 / CALLS

    return loop


def _times(heading: str, name: str) -> Column:
    return Column(heading, lambda r: f"{r[name]:.2f}", True)


def _ratio(heading: str, name: str) -> Column:
    return Column(heading, lambda r: f"{r[name]:.3f}", True)


_RATIO_WORDS = {
    "ops_ratio": "ops/F",
    "policy_ratio": "policy/F",
    "nn_ratio": "nn/torch.nn",
    "enabled_ratio": "enable/F",
}
COLUMNS = (
    Column("operator", lambda r: r["operator"], whole=True),
    Column("dtype", lambda r: r["dtype"]),
    Column("passes", lambda r: r["passes"]),
    _times("F us", "pytorch_us"),
    _times("ops us", "ops_us"),
    _times("policy us", "policy_us"),
    _times("torch.nn us", "torch_nn_us"),
    _times("nn us", "nn_us"),
    _times("enable us", "enabled_us"),
    *(_ratio(word, name) for name, word in _RATIO_WORDS.items()),
    Column("spread", lambda r: f"{r['spread']:.1%}", True),
)


def overhead_text(results: Sequence[Overhead], format: str) -> str | list[Table]:
    """Host times in a format; see `formatted`. The footer has the ratios' geometric means."""
    records = [dataclasses.asdict(r) | r.ratios() for r in results]
    lines = []
    for dtype, passes in dict.fromkeys((r["dtype"], r["passes"]) for r in records):
        rows = [r for r in records if (r["dtype"], r["passes"]) == (dtype, passes)]
        means = [
            f"{word} {statistics.geometric_mean(row[name] for row in rows):.3f}"
            for name, word in _RATIO_WORDS.items()
        ]
        lines.append(f"geometric means of {dtype} {passes}: {', '.join(means)}")
    fields, title = [*field_names(Overhead), *_RATIO_WORDS], "host time per call"
    footer = "\n".join(lines)
    return formatted(format, {"overhead": records}, title, COLUMNS, records, fields, footer)
