"""Measuring many problems, in this process or in several at a time.

Building an engine that is compiled at run time takes longer than timing it. Several processes build
at the same time, and a measurement lock lets one of them run and time its plans. Each process
holds some of the GPU's memory while it lives, so that a problem may lack memory which it would have
in a process alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._grammar import CONSTRAINTS
from torch_cudnn_ext._policy_text import fields_of
from torch_cudnn_ext.tuning.isolation import (
    check_isolate,
    is_isolated,
    isolated_pool,
    isolated_worker,
)
from torch_cudnn_ext.tuning.statistics import count_elsewhere
from torch_cudnn_ext.tuning.tasks import (
    Observers,
    Task,
    as_here,
    current_switches,
    measure_elsewhere,
    measure_here,
    obey_switches,
)
from torch_cudnn_ext.tuning.worker_pool import worker_pool

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.tuning.tasks import Measured

BASELINE = "aten:default"  # PyTorch's own kernel


class Progress(Protocol):
    """Told how far a long measurement is."""

    def problem(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` problems are finished; ``text`` is next."""

    def algorithm(self, done: int, total: int, text: str) -> None:
        """The same for the algorithms of one problem."""


@runtime_checkable
class ProgressOfResults(Progress, Protocol):
    """A `Progress` that is told of results, too."""

    def measured(self, rows: Sequence[Measurement]) -> None:
        """The measurements of one problem, best first."""


def no_algorithm(
    op: str, policy: str, failed: Iterable[tuple[str, Sequence[Measurement]]]
) -> RuntimeError:
    """The error for problems that no algorithm works for, with the reasons."""
    words = []
    for problem, rows in failed:
        reasons: dict[str, list[str]] = {}
        for row in rows:
            reasons.setdefault(row["reason"], []).append(row["algorithm"])
        told = (
            f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {reason}"
            for reason, names in reasons.items()
        )
        words.append(f"{problem}: {'; '.join(told)}")
    return RuntimeError(f"{op}: no algorithm works under {policy!r} for {'; nor for '.join(words)}")


def measure_tasks(
    tasks: Sequence[Task],
    jobs: int = 1,
    progress: Progress | None = None,
    isolate: str | None = None,
    lock: str = "",
) -> Iterator[list[Measurement]]:
    """Each task's measurements, best first, in the order of the tasks.

    Afterwards the tuning table of this process holds them; after an error or Ctrl-C it holds those
    that were finished. With several jobs, a problem that lacked memory is measured again once the
    others have ended.

    Args:
        tasks: The problems.
        jobs: How many processes build plans; with 1 it is this one, unless candidates are isolated.
        progress: Told of every problem, and with one job of every algorithm.
        isolate: Whether candidates are measured in a process that an algorithm may cost:
            ``"auto"``, ``"always"``, ``"never"``, or ``None`` for ``knobs.isolate``.
        lock: The file of a measurement lock that processes outside share; empty if there are none.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`, or ``isolate`` is no text.
        ValueError: ``jobs`` is no number or less than 1, or ``isolate`` is none of its values.
        RuntimeError: One of several processes was killed, or could not start; or more algorithms of
            a problem cost theirs than `isolation.MOST_LOST`.
    """
    check_jobs(jobs)
    check_progress(progress)
    check_isolate(isolate)
    isolated = any(is_isolated(task.device, isolate) for task in tasks)
    several = min(jobs, len(tasks)) > 1
    told = progress.algorithm if progress is not None else None
    if not several and not isolated:
        rows = (measure_here(task, Observers(told)) for task in tasks)
        with _measurement_lock(lock) if lock else nullcontext():
            yield from _with_progress(tasks, rows, progress)
        return
    whole = [as_here(task) for task in tasks]
    results = (
        _measure_in_processes(whole, jobs, isolated, lock)
        if several
        else _measure_one_by_one(whole, told, lock)
    )
    # A traceback that refers to the generator would keep it open.
    with closing(results):
        yield from _with_progress(tasks, results, progress)


def checked_device(device: str | torch.device | None = None) -> str:
    """``cpu``, ``cuda`` or ``cuda:<index>``; by default the GPU if there is one.

    Raises:
        ValueError: ``device`` is none of these.
        RuntimeError: PyTorch finds no such CUDA device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return "cuda" if count else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", str(device))
    if match is None:
        raise ValueError(f"device: got {str(device)!r}, wanted 'cpu', 'cuda' or 'cuda:<index>'")
    if match[0] != "cpu" and int(match[1] or 0) >= count:
        found = f"{count or 'no'} CUDA device{'s' * (count > 1)}"
        raise RuntimeError(f"device: got {match[0]!r}, but PyTorch finds {found}")
    return match[0]


def check_time_budget(time_budget_s: float) -> None:
    """Raise ValueError if it is no number of seconds."""
    is_number = isinstance(time_budget_s, int | float) and not isinstance(time_budget_s, bool)
    if not is_number or not 0 <= time_budget_s < math.inf:  # nor nan
        raise ValueError(f"time_budget_s: got {time_budget_s!r}, wanted seconds, 0 for no limit")


def check_knob_search(knob_search: bool, device: str) -> None:
    """Raise ValueError if it is no bool, or asked for on the CPU."""
    if not isinstance(knob_search, bool):
        raise ValueError(f"knob_search: got {knob_search!r}, wanted True or False")
    if knob_search and device == "cpu":
        raise ValueError(
            "knob_search: got True on cpu, whose algorithms have no knobs, wanted a GPU"
        )


def check_constraints_alone(policy: str, argument: str = "policy") -> None:
    """Raise ValueError if a policy chooses an algorithm: tuning measures all that it admits."""
    for part in fields_of(policy):
        is_constraint = part.partition("=")[0] in CONSTRAINTS
        if not is_constraint and not part.endswith(("autotune", "time_on_shape_change")):
            raise ValueError(
                f"{argument}: got the selection {part!r}, wanted constraints alone, or autotune"
            )


def check_jobs(jobs: int) -> None:
    """Raise ValueError if it is no number of processes."""
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise ValueError(f"jobs: got {jobs!r}, wanted 1 or more")


def check_progress(progress: object) -> None:
    """Raise TypeError if it lacks a method of `Progress`."""
    told = [getattr(progress, name, None) for name in ("problem", "algorithm")]
    if progress is not None and not all(map(callable, told)):
        raise TypeError(
            f"progress: got {progress!r:.60} ({type(progress).__name__}), wanted an object with "
            "the methods problem(done, total, text) and algorithm(done, total, text)"
        )


@contextmanager
def _measurement_lock(path: str) -> Iterator[None]:
    """This process measures by turns with those that have the same file."""
    _C.set_measurement_lock(path)
    try:
        yield
    finally:
        _C.set_measurement_lock("")


@contextmanager
def _locked_workers(
    count: int, isolated: bool = False, lock: str = ""
) -> Iterator[Callable[[Task], Future[Measured]]]:
    """Gives a function that measures a task in another process.

    The processes share a measurement lock with each other and with this process.
    """
    with TemporaryDirectory() as folder, ExitStack() as stack:
        lock = lock or str(Path(folder, "measurement.lock"))
        stack.enter_context(_measurement_lock(lock))
        if isolated:
            yield stack.enter_context(isolated_pool(count, lock)).submit
        else:
            pool = stack.enter_context(worker_pool(count, obey_switches, lock, current_switches()))
            yield lambda task: pool.submit(measure_elsewhere, task)


def _with_progress(
    tasks: Sequence[Task], results: Iterator[list[Measurement]], progress: Progress | None
) -> Iterator[list[Measurement]]:
    for done, task in enumerate(tasks):
        if progress is not None:
            progress.problem(done, len(tasks), task.problem)
        rows = next(results)
        if isinstance(progress, ProgressOfResults):
            progress.measured(rows)
        yield rows


def _measure_one_by_one(
    tasks: Sequence[Task], told: Callable[[int, int, str], None] | None, lock: str
) -> Generator[list[Measurement], None, None]:
    """In order, by one process that an algorithm may cost."""
    switches = current_switches()
    with isolated_worker(lock) as worker:
        for task in tasks:
            fingerprint = _C.device_fingerprint(task.device)
            yield _keep(worker.measure(task, fingerprint, switches, told))


def _measure_in_processes(
    tasks: Sequence[Task], jobs: int, isolated: bool, lock: str
) -> Generator[list[Measurement], None, None]:
    """In order; a task that lacks memory is measured again by a process alone, at the end."""
    with _locked_workers(min(jobs, len(tasks)), isolated, lock) as submit:
        left = [(task, submit(task)) for task in tasks]
        try:
            while left and not _lacks_memory(left[0][1].result()[0]):
                yield _keep(left.pop(0)[1].result())
            for _, future in left:
                future.result()
        finally:
            for _, future in left:  # those that were finished before others
                is_whole = future.done() and future.exception() is None
                if is_whole and not _lacks_memory(future.result()[0]):
                    _keep(future.result())
    for task, future in left:
        rows = future.result()[0]
        if _lacks_memory(rows):
            with _locked_workers(1, isolated, lock) as submit:
                rows = _keep(submit(task).result())
        yield rows


def _keep(measured: Measured) -> list[Measurement]:
    """Add what another process measured to the tuning table."""
    rows, entries = measured
    _C.table_import(entries, measured=True)
    count_elsewhere(rows)
    return rows


def _lacks_memory(rows: Sequence[Measurement]) -> bool:
    return any(_C.OUT_OF_MEMORY in row["reason"] for row in rows)


def finite_rows(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows as JSON has them, with ``None`` for an error that is not finite."""
    return [
        row if row["error"] is None or math.isfinite(row["error"]) else {**row, "error": None}
        for row in rows
    ]
