"""Drift: whether the rankings of a tuning store still hold, after an upgrade or a change of clocks.

The winner of each problem is timed again, with the runner-up and PyTorch's own kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C
from torch_cudnn_ext._defaults import DRIFT_TOLERANCE
from torch_cudnn_ext._policy_text import fields_of
from torch_cudnn_ext.tuning.measure import BASELINE, Progress, measure_tasks
from torch_cudnn_ext.tuning.store_diff import cost_ms, is_beyond_noise, timed
from torch_cudnn_ext.tuning.store_files import device_of
from torch_cudnn_ext.tuning.store_rows import Row
from torch_cudnn_ext.tuning.tasks import Task, fp32_switches

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

FAULTS = ("gone", "wrong", "slower", "new leader")  # verdicts that a row does not hold with
_LEAD = 0.03  # by which another algorithm must be faster: less is a tie in rankings


@dataclass(frozen=True)
class Drift:
    """What became of one row.

    Attributes:
        problem: The problem line.
        device: The fingerprint of the row, which may name another cuDNN or number of threads.
        constraints: The constraints.
        algorithm: The row's winner.
        verdict: ``"same"``; ``"gone"``: it does not run any more; ``"wrong"``: its result is;
            ``"new leader"``: the runner-up or PyTorch's own kernel is faster; ``"slower"`` and
            ``"faster"``: than it was, by more than the tolerance and the noise; ``"unclear"``:
            other work disturbed the measurement.
        reason: Why it is gone or wrong, or the new leader.
        was_ms: Its time in the row, in ms.
        now_ms: Its time now; ``None`` if it does not run.
    """

    problem: str
    device: str
    constraints: str
    algorithm: str
    verdict: str
    reason: str
    was_ms: float
    now_ms: float | None


def rows_to_time(rows: Sequence[Row], device: str) -> list[Row]:
    """The rows of a device's hardware whose winner can be timed, of each problem the newest.

    Args:
        rows: Rows that hold.
        device: ``cpu`` or ``cuda:<index>``.
    """
    here = device_of(_C.device_fingerprint(device)).hardware
    newest: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row.when):
        if device_of(row.entry["device"]).hardware == here and timed(row):
            newest[row.entry["problem"], row.entry["constraints"]] = row
    return [newest[key] for key in sorted(newest)]


def drift(
    rows: Sequence[Row],
    device: str,
    *,
    tolerance: float = DRIFT_TOLERANCE,
    time_budget_s: float = 0.0,
    progress: Progress | None = None,
) -> Iterator[Drift]:
    """Time the winners of rows again, and tell what became of them.

    Args:
        rows: From `rows_to_time`.
        device: ``cpu`` or ``cuda:<index>``.
        tolerance: By which share a time may differ from the row's.
        time_budget_s: Seconds a problem; 0 is no limit.
        progress: As for `tune`.
    """
    for number, row in enumerate(rows):
        if progress is not None:
            progress.problem(number, len(rows), row.entry["problem"])
        with _tf32_of(row):
            (now,) = measure_tasks([_task(row, device, time_budget_s)])
        yield _compared(row, now, tolerance)


def _task(row: Row, device: str, time_budget_s: float) -> Task:
    names = [m["algorithm"] for m in timed(row)]
    algorithms = dict.fromkeys([*names[:2], *(name for name in names if name == BASELINE)])
    constraints = row.entry["constraints"]
    if not _allows_tf32(row):  # PyTorch's switches may allow it
        constraints = ";".join(filter(None, [constraints, "allow_tf32=false"]))
    return Task(row.entry["problem"], device, constraints, time_budget_s, algorithms=(*algorithms,))


def _allows_tf32(row: Row) -> bool:
    return any(part in ("allow_tf32", "allow_tf32=true") for part in _parts(row))


def _parts(row: Row) -> list[str]:
    return fields_of(row.entry["constraints"])


@contextmanager
def _tf32_of(row: Row) -> Iterator[None]:
    """Let PyTorch's own kernel compute as it did for the row."""
    switches = fp32_switches()
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if _allows_tf32(row) else "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def _compared(row: Row, now: Sequence[Measurement], tolerance: float) -> Drift:
    before = timed(row)[0]
    name = before["algorithm"]
    found = next((m for m in now if m["algorithm"] == name), None)

    def told(verdict: str, reason: str = "") -> Drift:
        entry = row.entry
        runs = found is not None and found["median_ms"] is not None
        return Drift(
            entry["problem"], entry["device"], entry["constraints"], name, verdict, reason,
            cost_ms(before, row), cost_ms(found, row) if found is not None and runs else None,
        )  # fmt: skip

    if found is None or found["status"] not in ("ok", "unstable", "rejected"):
        return told("gone", found["reason"] if found is not None else "it is not known here")
    if found["status"] == "rejected":
        return told("wrong", found["reason"])
    if found["status"] == "unstable":
        return told("unclear", found["reason"])
    rivals = [m for m in now if m["status"] == "ok"]
    if "prefer=memory" in _parts(row):
        most_bytes = found["workspace_bytes"] or 0
        rivals = [m for m in rivals if (m["workspace_bytes"] or 0) <= most_bytes]
    if "prefer=energy" in _parts(row):
        most_mj = found["energy_mj"] or 0.0
        rivals = [m for m in rivals if m is found or 0 < (m["energy_mj"] or 0.0) <= most_mj]
    leader = min(rivals, key=lambda m: cost_ms(m, row))
    first_ms, old_ms, now_ms = (cost_ms(m, row) for m in (leader, before, found))
    if first_ms * (1 + _LEAD) < now_ms and is_beyond_noise(leader, found, row):
        return told("new leader", f"{leader['algorithm']} takes {first_ms:.4g} ms")
    differs = is_beyond_noise(before, found, row)
    if differs and now_ms > old_ms * (1 + tolerance):
        return told("slower")
    if differs and now_ms < old_ms / (1 + tolerance):
        return told("faster")
    return told("same")
