"""Comparing what two tuning stores decide."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch_cudnn_ext._policy_text import fields_of
from torch_cudnn_ext.tuning.store_rows import Row
from torch_cudnn_ext.tuning.store_upkeep import holding_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement


@dataclass(frozen=True)
class Difference:
    """A problem for which two stores decide differently.

    Attributes:
        problem: The problem line.
        device: The fingerprint of the device.
        constraints: The constraints.
        first: The algorithm that the first store decides for, with its time in ms.
        second: The same of the second store.
        ratios: By how much the first store's algorithm takes longer than the second's, in the
            measurements of either store; ``None`` if one of the two was not timed there.
        is_beyond_noise: Whether the times of the two differ by more than both their spreads in
            at least one store.
    """

    problem: str
    device: str
    constraints: str
    first: tuple[str, float]
    second: tuple[str, float]
    ratios: tuple[float | None, float | None]
    is_beyond_noise: bool


@dataclass(frozen=True)
class StoreDiff:
    """How two stores differ.

    Attributes:
        same: Problems for which both decide alike.
        different: Problems for which they do not.
        only_first: Keys (problem, device, constraints) that the second store does not have.
        only_second: The same of the first store.
    """

    same: int
    different: list[Difference]
    only_first: list[tuple[str, str, str]]
    only_second: list[tuple[str, str, str]]


def diff(first: Path, second: Path) -> StoreDiff:
    """Compare what two stores decide; raises OSError if one cannot be read."""
    one, two = _by_key(first), _by_key(second)
    common = sorted(one.keys() & two.keys())
    found = [_difference(one[key], two[key]) for key in common]
    different = [difference for difference in found if difference is not None]
    return StoreDiff(
        len(common) - len(different),
        different,
        sorted(one.keys() - two.keys()),
        sorted(two.keys() - one.keys()),
    )


def _by_key(root: Path) -> dict[tuple[str, str, str], Row]:
    entries = ((row.entry, row) for row in holding_rows(root))
    return {(e["problem"], e["device"], e["constraints"]): row for e, row in entries}


def _difference(first: Row, second: Row) -> Difference | None:
    """How two rows about the same differ; ``None`` if they decide alike."""
    rows = [{m["algorithm"]: m for m in timed(row)} for row in (first, second)]
    names = [next(iter(timed), "") for timed in rows]
    if names[0] == names[1]:
        return None
    pairs = [(timed.get(names[0]), timed.get(names[1])) for timed in rows]
    cost = partial(cost_ms, row=first)
    ratios = [cost(a) / cost(b) if a and b and cost(b) > 0 else None for a, b in pairs]
    beyond = any(a and b and is_beyond_noise(a, b, first) for a, b in pairs)
    entry = first.entry
    chosen = [
        (name, cost(timed[name]) if name else 0.0) for name, timed in zip(names, rows, strict=True)
    ]
    return Difference(
        entry["problem"], entry["device"], entry["constraints"], chosen[0], chosen[1],
        (ratios[0], ratios[1]), beyond,
    )  # fmt: skip


def timed(row: Row) -> list[Measurement]:
    """The measurements of the algorithms that ran and are right, the best first."""
    return [m for m in row.entry["measurements"] if m["status"] == "ok"]


def cost_ms(measured: Measurement, row: Row) -> float:
    """The time that a measurement of a row, or like one of it, is ranked by."""
    is_gpu_time = "prefer=gpu_time" in fields_of(row.entry["constraints"])
    host_ms = 0.0 if is_gpu_time else measured["host_ms"] or 0.0
    return max(measured["median_ms"] or 0.0, host_ms)


def is_beyond_noise(one: Measurement, other: Measurement, row: Row) -> bool:
    """Whether two times differ by more than both spreads."""
    noise = (one["spread_ms"] or 0.0) + (other["spread_ms"] or 0.0)
    return abs(cost_ms(one, row) - cost_ms(other, row)) > noise
