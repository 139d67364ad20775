"""Measuring in processes that a bad algorithm may cost.

An algorithm of a cuDNN that was not verified may write out of bounds, which costs a process its GPU
context, may never end, or may end the process. Measured in a process of its own it costs a row:
``failed: context lost``, ``failed: hung for 120 s`` or ``failed: the process was ended by
SIGSEGV``. It becomes a local erratum (`torch_cudnn_ext.tuning.local_errata`), and the problem is
measured again without it.

``knobs.isolate`` and the argument ``isolate`` say where candidates are measured. With ``auto`` it
is in another process if the device is a GPU that was not verified with the loaded cuDNN, with
``always`` on any device, and with ``never`` in this process. The other process does not import the
main module, so that a script needs no ``if __name__ == "__main__":``. It has memory of its own on
the GPU.

A program may set the limits below, which are attributes of this module.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_executable
from queue import SimpleQueue
from threading import RLock
from typing import TYPE_CHECKING, Any

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext._files import ERRATA_VARIABLE
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.tuning import local_errata
from torch_cudnn_ext.tuning.isolated_process import CONTEXT_LOST, Request, Step, StepFile, serve
from torch_cudnn_ext.tuning.statistics import count_elsewhere
from torch_cudnn_ext.tuning.tasks import Task, current_switches
from torch_cudnn_ext.tuning.worker_pool import interrupts_blocked

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.tuning.tasks import Measured

    ToldAlgorithm = Callable[[int, int, str], None]

STEP_LIMIT_S = 120.0  # that an algorithm may take to be built, to be checked, or for a sample
START_LIMIT_S = 600.0  # that a process may take to import PyTorch
IDLE_S = 60.0  # after which a process that has nothing to measure ends, and frees its GPU memory
MOST_LOST = 20  # algorithms of one problem
_POLL_S = 0.1
_ENDING_S = 60.0  # that a process may take to end once it has closed its connection
_STOPPED = "the process that measures for this one was stopped"
_OF_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # somebody ended the process


class _LostError(Exception):
    """A process ended while it measured.

    Attributes:
        step: What it did then.
        what: What happened.
        is_erratum: Whether the algorithm is to blame at any time.
    """

    def __init__(self, step: Step, what: str, is_erratum: bool = True) -> None:
        super().__init__(what)
        self.step, self.what, self.is_erratum = step, what, is_erratum


class IsolatedWorker:
    """A process that measures for this one. It starts when it is needed, and again when it is lost.

    It is of one thread at a time, except for `stop`.
    """

    def __init__(self, lock: str = "") -> None:
        """Take the file of the measurement lock; empty if no other process measures."""
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._steps: StepFile
        self._file = -1
        self._is_stopped = False

    def measure(
        self,
        task: Task,
        fingerprint: str,
        switches: Mapping[str, Any],
        progress: ToldAlgorithm | None = None,
    ) -> Measured:
        """Measure a task; an algorithm that costs the process has failed.

        Args:
            task: What to measure, as this process has it (`as_here`).
            fingerprint: That of its device.
            switches: Those of `current_switches`.
            progress: Told of algorithms as they are tried.

        Raises:
            RuntimeError: The process cannot start or was killed, or too many algorithms cost it.
        """
        failed: dict[str, str] = {}
        while True:
            errata = local_errata.known_rows()
            request = Request(task, self._lock, switches, errata, failed)
            try:
                measured = self._ask(request, progress)
            except _LostError as lost:
                self.close()
                algorithm = lost.step.algorithm
                if not algorithm or algorithm in failed:
                    raise RuntimeError(
                        f"{task.problem}: {lost.what} while it ran no algorithm"
                    ) from lost
                failed[algorithm] = lost.what
                if lost.is_erratum:
                    local_errata.add(fingerprint, task.problem, algorithm, lost.what)
            except BaseException:
                self.close()
                raise
            else:
                break
            if len(failed) > MOST_LOST:
                raise RuntimeError(
                    f"{task.problem}: given up, since {len(failed)} algorithms cost the process "
                    f"that measured them: {_texts(failed)}"
                )
        if failed:
            warn(
                f"{task.problem}: measuring it cost a process of its own for {_texts(failed)}. "
                "`python -m torch_cudnn_ext info --errata` lists what is not tried again"
            )
        return measured

    def stop(self) -> None:
        """Let `measure` raise soon, on whatever thread it is, and start no more processes."""
        self._is_stopped = True

    def kill(self) -> None:
        """End the process, whatever thread waits for it."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process and wait until it has ended."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._process is not None:
            self._process = None
            self._connection.close()
            os.close(self._file)

    def _ask(self, request: Request, progress: ToldAlgorithm | None) -> Measured:
        """Send a request and wait for its answer; to a new process if an idle one ended."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._is_stopped:
            raise RuntimeError(_STOPPED)
        if self._process is None:
            self._start()
        before = self._steps.read().count
        try:
            with suppress(OSError):  # what ended is seen below
                self._connection.send(request)
            answer = self._wait(before, progress)
        except _LostError as lost:
            # It ended because it was idle, just before the request came.
            if lost.step.count != before or self._status() != 0:
                raise
            self._forget()
            return self._ask(request, progress)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._file = os.memfd_create("torch_cudnn_ext_steps")
        self._connection, self._steps = ours, StepFile(self._file)
        path = [entry for entry in sys.path if isinstance(entry, str)]
        code = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from {serve.__module__} import serve; "
            f"serve({theirs.fileno()}, {self._file}, {os.getpid()}, {IDLE_S})"
        )
        # It obeys the switches that come with requests, and this process tells of errata.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCH_CUDNN_EXT_")}
        try:
            with theirs, interrupts_blocked():
                self._process = subprocess.Popen(
                    [os.fsdecode(get_executable()), "-W", "ignore", "-c", code],
                    env={**environment, ERRATA_VARIABLE: ""},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), self._file),
                )
        except OSError as error:
            ours.close()
            os.close(self._file)
            raise RuntimeError(f"cannot start a process to measure in: {error}") from error

    def _wait(self, before: int, progress: ToldAlgorithm | None) -> Measured | Exception:
        """The answer. Raises `_LostError` if the process ends, or hangs and is killed."""
        seen = self._steps.read()
        waited, last = 0.0, time.monotonic()
        while True:
            is_answered = self._connection.poll(_POLL_S)
            now = time.monotonic()
            waited += min(now - last, 1.0)  # this process, and the other with it, may have stopped
            last, step = now, self._steps.read()
            if progress is not None and step.progress != seen.progress:
                progress(*step.progress)
            if step.count != seen.count:
                seen, waited = step, 0.0
            if is_answered:
                break
            if self._is_stopped:
                raise RuntimeError(_STOPPED)
            if self._status() is not None and not self._connection.poll():
                raise self._lost(before)
            is_started = seen.count > before
            limit = STEP_LIMIT_S if is_started else START_LIMIT_S
            if waited > limit and (seen.algorithm or not is_started):
                raise _LostError(seen if is_started else Step(before), f"hung for {limit:g} s")
        try:
            answer: Measured | Exception = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._lost(before) from error
        return answer

    def _status(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _lost(self, before: int) -> _LostError:
        """What to raise for a process that ended or is about to."""
        assert self._process is not None
        step = self._steps.read()
        if step.count == before:  # it did not begin
            step = Step(before)
        try:
            status = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return _LostError(step, f"the process did not end within {_ENDING_S:g} s")
        if status == CONTEXT_LOST:
            return _LostError(step, "context lost")
        if status >= 0:
            return _LostError(step, f"the process ended with exit code {status}")
        ended_by = signal.Signals(-status)
        what = f"the process was ended by {ended_by.name}"
        if ended_by == signal.SIGKILL:
            return _LostError(step, f"{what}, as for want of memory", is_erratum=False)
        if ended_by in _OF_OTHERS:
            raise RuntimeError(f"{what}, which measured for this one")
        return _LostError(step, what)


def _texts(failed: Mapping[str, str], shown: int = 3) -> str:
    words = [f"{algorithm} ({what})" for algorithm, what in failed.items()]
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more


class IsolatedPool:
    """Processes that measure at the same time."""

    def __init__(self, workers: list[IsolatedWorker], threads: ThreadPoolExecutor) -> None:
        """Take as many threads as workers: each thread watches one process."""
        self._free: SimpleQueue[IsolatedWorker] = SimpleQueue()
        for worker in workers:
            self._free.put(worker)
        self._threads = threads
        self._switches = current_switches()

    def submit(self, task: Task) -> Future[Measured]:
        """Begin to measure a task in the next process that is free."""
        return self._threads.submit(self._measure, task, _C.device_fingerprint(task.device))

    def _measure(self, task: Task, fingerprint: str) -> Measured:
        worker = self._free.get()
        try:
            return worker.measure(task, fingerprint, self._switches)
        finally:
            self._free.put(worker)


@contextmanager
def isolated_pool(count: int, lock: str) -> Iterator[IsolatedPool]:
    """At most so many processes, which share a measurement lock, until the block is left."""
    workers = [IsolatedWorker(lock) for _ in range(count)]
    threads = ThreadPoolExecutor(count)
    try:
        yield IsolatedPool(workers, threads)
    finally:
        for worker in workers:
            worker.stop()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


@contextmanager
def isolated_worker(lock: str = "") -> Iterator[IsolatedWorker]:
    """One process until the block is left, with the file of a measurement lock or none."""
    worker = IsolatedWorker(lock)
    try:
        yield worker
    finally:
        worker.close()


def check_isolate(isolate: str | None) -> None:
    """Raise ValueError if it does not say where candidates are measured; ``None`` is the knob."""
    if isolate is not None:
        knobs.check_isolate("isolate", isolate)


def is_isolated(device: str, isolate: str | None = None) -> bool:
    """Whether candidates for a device are measured in another process; ``None`` is the knob."""
    return _C.is_isolated(device, knobs._of_process("isolate") if isolate is None else isolate)


class _CallWorker:
    """The process that measures for calls that tune, one problem after another."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._worker: IsolatedWorker | None = None
        self._is_busy = False

    def measure(self, task: Task) -> Measured:
        with self._lock:
            if self._is_busy:
                raise RuntimeError(
                    "a call tunes inside of another one that tunes, which a signal interrupted"
                )
            self._is_busy = True
            try:
                self._worker = self._worker or IsolatedWorker()
                fingerprint = _C.device_fingerprint(task.device)
                return self._worker.measure(task, fingerprint, current_switches())
            finally:
                self._is_busy = False

    def end(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker.kill()


_of_calls = _CallWorker()


def _measure_for_call(
    problem: str,
    device: str,
    policy: str,
    time_budget_s: float,
    min_samples: int,
    prunes: bool,
) -> list[Measurement]:
    """What C++ asks for if a call tunes and isolation is on; a RuntimeError leaves it untuned."""
    task = Task(problem, device, policy, time_budget_s, min_samples=min_samples, prunes=prunes)
    rows, _ = _of_calls.measure(task)
    count_elsewhere(rows)
    return rows


def _forget_after_fork() -> None:
    """The process belongs to the parent, and the lock may be held by a thread that is not here."""
    global _of_calls
    _of_calls = _CallWorker()


def install() -> None:
    """Let calls that tune measure as ``knobs.isolate`` says."""
    _C.set_isolated_measure(_measure_for_call)
    os.register_at_fork(after_in_child=_forget_after_fork)
    atexit.register(lambda: _of_calls.end())
