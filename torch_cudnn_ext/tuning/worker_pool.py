"""New processes that end with the one that started them, whatever they are doing."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread, Timer, main_thread
from typing import Any, TypeVar

from torch_cudnn_ext._torch_internals import close_results, processes_of

T = TypeVar("T")


class WorkerPool:
    """Runs functions in other processes. These ignore Ctrl-C: this process ends them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        """Take a pool without processes; they start as work is submitted."""
        self._pool = pool

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin ``work(*arguments)`` in the next process that is free.

        The future raises what the work raised. It raises a ``RuntimeError`` instead if that error
        cannot be sent, or if SIGTERM ended the work.
        """
        with interrupts_blocked():
            return self._pool.submit(run_work, work, *arguments)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C on this thread, and in the processes that start inside the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_pool(
    count: int,
    start: Callable[..., None] | None = None,
    *arguments: Any,
    grace_s: float = 0.0,
) -> Iterator[WorkerPool]:
    """At most so many processes, until the block is left.

    Args:
        count: How many.
        start: What each process calls first, with the arguments.
        arguments: They are sent to the processes.
        grace_s: Seconds that work gets to end by a ``KeyboardInterrupt`` if an error or Ctrl-C
            leaves the block, or if this process is killed; 0: none.

    Raises:
        RuntimeError: One of them was killed, or could not start.
    """
    context = get_context("spawn")
    end, lifeline = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _start, (end, grace_s, start, arguments))
    with ExitStack() as after:
        after.enter_context(end)
        after.enter_context(lifeline)
        after.enter_context(pool)
        try:
            yield WorkerPool(pool)
        except BaseException as error:
            lifeline.send("end")
            # A process that still imports modules reacts to nothing before it is killed.
            killer = Timer(grace_s, _kill, [processes_of(pool)])
            killer.daemon = True
            killer.start()
            after.callback(killer.cancel)
            after.callback(pool.shutdown)
            # A process that ends while it sends a result leaves a part of one. The pool waits for
            # the rest, unless nobody can write any more, this process included.
            close_results(pool)
            if not isinstance(error, BrokenProcessPool):
                raise
            raise RuntimeError(
                "a process that works for this one has ended. Either it was killed, as for want of "
                "memory, or it could not import the main module: a script measures under "
                '`if __name__ == "__main__":`'
            ) from error


def _kill(started: Iterable[BaseProcess]) -> None:
    for process in started:
        process.kill()


def _start(
    end: Connection,
    grace_s: float,
    start: Callable[..., None] | None,
    arguments: tuple[Any, ...],
) -> None:
    Thread(target=_end_with_parent, args=(end, grace_s), daemon=True).start()
    if start is not None:
        start(*arguments)


def run_work(work: Callable[..., T], *arguments: Any) -> T:
    """``work(*arguments)``: SIGTERM interrupts it, and ends a process that is idle."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return work(*arguments)
    except KeyboardInterrupt:
        # The process that waits for the result would take it for a Ctrl-C of its own.
        raise RuntimeError("a process that works for this one was ended by SIGTERM") from None
    except SystemExit as end:  # it would end the process, and the future would never get a result
        raise RuntimeError(f"SystemExit: {end}") from end
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_with_parent(end: Connection, grace_s: float) -> None:
    wait([end])  # until the parent sends a word or ends
    if grace_s > 0:
        signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)
        time.sleep(grace_s)
    os._exit(1)
