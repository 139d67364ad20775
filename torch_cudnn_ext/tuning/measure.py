"""Measuring many problems, in this process or in several at a time.

Building an engine that is compiled at run time takes longer than timing it. Several processes build
at the same time, and a measurement lock lets one of them run and time its plans. Each process
holds some of the GPU's memory while it lives, so that a problem may lack memory which it would have
in a process alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext._policy_text import CONSTRAINTS, fields_of
from torch_cudnn_ext.tuning.worker_pool import WorkerPool, worker_pool

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

    _Measured = tuple[list[Measurement], list[TableEntry]]

BASELINE = "aten:default"  # PyTorch's own kernel
GPU_MIN_SAMPLES = 11


class Progress(Protocol):
    """Told how far a long measurement is."""

    def problem(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` problems are finished; ``text`` is next."""

    def algorithm(self, done: int, total: int, text: str) -> None:
        """The same for the algorithms of one problem."""


@dataclass(frozen=True)
class Task:
    """One problem to measure, and how.

    ``time_budget_s`` 0 is no limit. If ``algorithms`` names none, all are measured and the tuning
    table keeps their ranking; else it keeps nothing.
    """

    problem: str
    device: str
    policy: str
    time_budget_s: float = 0.0
    knob_search: bool = False
    min_samples: int = GPU_MIN_SAMPLES
    algorithms: tuple[str, ...] = ()


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
    tasks: Sequence[Task], jobs: int = 1, progress: Progress | None = None
) -> Iterator[list[Measurement]]:
    """Each task's measurements, best first, in the order of the tasks.

    Afterwards the tuning table of this process holds them; after an error or Ctrl-C it holds those
    that were finished. With several jobs, a problem that lacked memory is measured again once the
    others have ended.

    Args:
        tasks: The problems.
        jobs: How many processes build plans; with 1 it is this one.
        progress: Told of every problem, and with one job of every algorithm.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: ``jobs`` is no number or less than 1.
        RuntimeError: One of several processes was killed, or could not start.
    """
    check_jobs(jobs)
    check_progress(progress)
    if min(jobs, len(tasks)) <= 1:
        yield from _with_progress(tasks, (_measure(task, progress) for task in tasks), progress)
        return
    whole = [_as_here(task) for task in tasks]
    # A traceback that refers to the generator would keep it open.
    with closing(_measure_in_processes(whole, jobs)) as results:
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
def _locked_workers(count: int) -> Iterator[WorkerPool]:
    """Processes that share a measurement lock with each other and with this process."""
    with TemporaryDirectory() as folder:
        lock = str(Path(folder, "measurement.lock"))
        _C.set_measurement_lock(lock)
        try:
            with worker_pool(count, _start, lock, _switches()) as pool:
                yield pool
        finally:
            _C.set_measurement_lock("")


def _with_progress(
    tasks: Sequence[Task], results: Iterator[list[Measurement]], progress: Progress | None
) -> Iterator[list[Measurement]]:
    for done, task in enumerate(tasks):
        if progress is not None:
            progress.problem(done, len(tasks), task.problem)
        yield next(results)


def _measure(task: Task, progress: Progress | None = None) -> list[Measurement]:
    return _C.measure(
        task.problem,
        task.device,
        task.policy,
        algorithms=list(task.algorithms),
        time_budget_s=task.time_budget_s,
        knob_search=task.knob_search,
        min_samples=task.min_samples,
        progress=progress.algorithm if progress is not None else None,
    )


def _as_here(task: Task) -> Task:
    """The task with all levels of policy and the current GPU of this process at this moment."""
    policy = _C.policy_for(task.problem, task.policy)
    device = f"cuda:{torch.cuda.current_device()}" if task.device == "cuda" else task.device
    return replace(task, policy=policy, device=device)


def _measure_in_processes(
    tasks: Sequence[Task], jobs: int
) -> Generator[list[Measurement], None, None]:
    """In order; a task that lacks memory is measured again by a process alone, at the end."""
    with _locked_workers(min(jobs, len(tasks))) as pool:
        left = [(task, pool.submit(_measure_elsewhere, task)) for task in tasks]
        try:
            while left and not _lacks_memory(left[0][1].result()[0]):
                yield _imported(left.pop(0)[1])
            for _, future in left:
                future.result()
        finally:
            for _, future in left:  # those that were finished before others
                is_whole = future.done() and future.exception() is None
                if is_whole and not _lacks_memory(future.result()[0]):
                    _C.table_import(future.result()[1])
    for task, future in left:
        rows = future.result()[0]
        if _lacks_memory(rows):
            with _locked_workers(1) as pool:
                rows = _imported(pool.submit(_measure_elsewhere, task))
        yield rows


def _imported(future: Future[_Measured]) -> list[Measurement]:
    rows, entries = future.result()
    _C.table_import(entries)
    return rows


def _lacks_memory(rows: Sequence[Measurement]) -> bool:
    return any(_C.OUT_OF_MEMORY in row["reason"] for row in rows)


def finite_rows(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows as JSON has them, with ``None`` for an error that is not finite."""
    return [
        row if row["error"] is None or math.isfinite(row["error"]) else {**row, "error": None}
        for row in rows
    ]


def fp32_switches() -> list[Any]:
    """PyTorch's switches whose ``fp32_precision`` says whether float32 may be TF32."""
    cudnn: Any = torch.backends.cudnn
    return [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]


# In the other processes.


def _switches() -> dict[str, Any]:
    """The settings that PyTorch's own kernels obey."""
    return {
        "backends": [getattr(place, name) for place, name in _backend_switches()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "knobs": {"verbose": knobs.verbose},
    }


def _backend_switches() -> list[tuple[Any, str]]:
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    products: Any = torch.backends.cuda.matmul
    return [
        *((cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        (mkldnn, "enabled"),
        (products, "allow_fp16_reduced_precision_reduction"),
        (products, "allow_bf16_reduced_precision_reduction"),
        (products, "allow_fp16_accumulation"),
        *((switch, "fp32_precision") for switch in fp32_switches()),
    ]


def _start(lock: str, switches: dict[str, Any]) -> None:
    _C.set_measurement_lock(lock)
    _C.set_knobs("", **switches["knobs"])  # the tasks' policies hold those of the environment
    _C.set_workspace_reserve([])  # the environment's is for one process
    torch.set_num_threads(switches["threads"])
    torch.use_deterministic_algorithms(switches["deterministic"], warn_only=switches["warn_only"])
    for (place, name), value in zip(_backend_switches(), switches["backends"], strict=True):
        setattr(place, name, value)


def _measure_elsewhere(task: Task) -> _Measured:
    _C.table_clear()
    try:
        return _measure(task), _C.table_export()
    finally:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # for the other processes
