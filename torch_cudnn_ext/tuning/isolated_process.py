"""A process that measures for another one, and that a bad algorithm may cost.

`torch_cudnn_ext.tuning.isolation` starts it. It imports this package and not the main module.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning.tasks import Observers, Task, measure_elsewhere, obey_switches
from torch_cudnn_ext.tuning.worker_pool import run_work

if TYPE_CHECKING:
    from torch_cudnn_ext.tuning.tasks import Measured

CONTEXT_LOST = 91  # the exit code of a process that lost its GPU context


@dataclass(frozen=True)
class Request:
    """A task, and what the process that asks for it has set and knows.

    Attributes:
        task: What to measure.
        lock: The file of the measurement lock; empty if no other process measures.
        switches: Those of `current_switches`.
        errata: Those of `local_errata.known_rows`.
        failed: Algorithms that cost a process that measured this task, and what happened.
    """

    task: Task
    lock: str
    switches: Mapping[str, Any]
    errata: list[tuple[str, str, str, str]]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """How far the process is.

    Attributes:
        count: Grows with every step.
        algorithm: What is built or run; empty if that is none.
        progress: How many algorithms are finished, how many there are, and the next one.
    """

    count: int = 0
    algorithm: str = ""
    progress: tuple[int, int, str] = (0, 0, "")


class StepFile:
    """The newest step, in a file that two processes have open."""

    def __init__(self, file: int) -> None:
        """Take an open file, which is empty at first."""
        self._file = file
        self._newest = Step()

    def write(self, **changes: Any) -> None:
        """Begin the next step."""
        before = self._newest
        fields = {"algorithm": before.algorithm, "progress": before.progress, **changes}
        self._newest = Step(before.count + 1, **fields)
        line = json.dumps([self._newest.count, self._newest.algorithm, self._newest.progress])
        os.pwrite(self._file, line.encode() + b"\n", 0)  # what a longer one left comes after it

    def read(self) -> Step:
        """The step that the other process wrote last; of one that is half written, the one read."""
        line, _, _ = os.pread(self._file, 1 << 16, 0).partition(b"\n")
        try:
            count, algorithm, progress = json.loads(line)
            self._newest = Step(count, algorithm, tuple(progress))
        except ValueError:
            pass  # the writer is at it
        return self._newest


def serve(connection: int, steps: int, parent: int, idle_s: float) -> None:
    """Measure what comes, until nothing came for so many seconds or the parent has ended.

    Args:
        connection: An open end of a `multiprocessing.Pipe`, for requests and answers.
        steps: An open file for `StepFile`.
        parent: The id of the process at the other ends.
        idle_s: The seconds.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    told, requests = StepFile(steps), Connection(connection)
    while requests.poll(idle_s):
        try:
            request: Request = requests.recv()
        except EOFError:
            break
        told.write(algorithm="")
        requests.send(_answer(request, told))
    os._exit(0)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _answer(request: Request, told: StepFile) -> Measured | Exception:
    """The measurements, or the error that measuring raises; ends if the GPU context is lost."""
    device = request.task.device
    if device != "cpu":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            return RuntimeError(
                f"the process that measures for this one cannot use {device}: {error}"
            )
    answer: Measured | Exception
    try:
        answer = run_work(_measured, request, told)
    except Exception as error:
        answer = error
    _end_if_lost(device)
    return answer


def _measured(request: Request, told: StepFile) -> Measured:
    def before_run(algorithm: str) -> None:
        _end_if_lost(request.task.device)  # the step before is to blame
        told.write(algorithm=algorithm)

    def progress(*step: Any) -> None:
        told.write(progress=step)

    obey_switches(request.lock, dict(request.switches))
    _C.set_local_errata(request.errata)
    return measure_elsewhere(request.task, Observers(progress, before_run, request.failed))


def _end_if_lost(device: str) -> None:
    """End the process if the GPU raises on and on."""
    if device == "cpu":
        return
    for _ in range(2):  # the first may tell of an error that is over
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            continue
        return
    os._exit(CONTEXT_LOST)
