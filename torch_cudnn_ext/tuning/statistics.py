"""How much this process measured, and what it found in the tuning store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement


@dataclass(frozen=True)
class Statistics:
    """What happened since the process began.

    Attributes:
        measured: Problems that were measured, by this process or for it.
        timed_runs: Timed runs of algorithms on these problems.
        found: Problems whose ranking was found in the tuning store.
        kept: Rows that were added to the tuning store.
        not_kept: Rows that could not be written to it.
        missed: Problems that the store had no ranking for when it was first asked, by reason:
            ``"nothing known"``, ``"other constraints"``, ``"other cuDNN"`` (on a CPU ``"other
            threads"``), ``"other device"``, ``"other software"`` or ``"damaged"``.
    """

    measured: int
    timed_runs: int
    found: int
    kept: int
    not_kept: int
    missed: dict[str, int]


_lock = Lock()  # guards what follows
_counts: Counter[str] = Counter()
_missed: Counter[str] = Counter()


def statistics() -> Statistics:
    """How much this process measured, and what it found in the tuning store.

    A process that finds all its problems in the store measures nothing.

    Example:
        >>> before = statistics().measured
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
        >>> statistics().measured - before
        1
    """
    here = _C.measure_counts()
    with _lock:
        return Statistics(
            here["problems"] + _counts["measured"],
            here["timed_runs"] + _counts["timed_runs"],
            _counts["found"],
            _counts["kept"],
            _counts["not_kept"],
            dict(_missed),
        )


def renew_lock() -> None:
    """Called after a fork: another thread of the parent may hold the lock."""
    global _lock
    _lock = Lock()


def count(what: str) -> None:
    """Count what was ``found``, ``kept`` or ``not_kept``."""
    with _lock:
        _counts[what] += 1


def count_missed(reason: str) -> None:
    """Count a problem that the store has no ranking for."""
    with _lock:
        _missed[reason] += 1


def count_elsewhere(rows: Iterable[Measurement]) -> None:
    """Count a problem that another process measured for this one."""
    with _lock:
        _counts["measured"] += 1
        _counts["timed_runs"] += sum(row["samples"] for row in rows)
