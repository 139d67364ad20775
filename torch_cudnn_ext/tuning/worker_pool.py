"""Fresh processes that end with the one that started them, whatever they are doing then."""

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

T = TypeVar("T")


class Processes:
    """Runs functions in other processes, which see no Ctrl-C: this process ends them."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        """Take a pool that is empty still; its processes start as work is submitted."""
        self._pool = pool

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin ``work(*arguments)`` in the next process that is free.

        The future raises what the work raised: as a ``RuntimeError`` where that cannot be sent, or
        where SIGTERM ended the work.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(_run, work, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def processes(
    count: int,
    start: Callable[..., None] | None = None,
    *arguments: Any,
    grace_s: float = 0.0,
) -> Iterator[Processes]:
    """At most so many of them, until the block is left.

    Args:
        count: How many.
        start: What each calls first, with the arguments.
        arguments: They are sent to the processes.
        grace_s: Seconds that work gets to end by a ``KeyboardInterrupt``, where an error or Ctrl-C
            leaves the block or this process is killed; 0: none.

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
            yield Processes(pool)
        except BaseException as error:
            lifeline.send("end")
            # One that imports modules hears of nothing until then.
            killer = Timer(grace_s, _kill, [[*(pool._processes or {}).values()]])
            killer.daemon = True
            killer.start()
            after.callback(killer.cancel)
            after.callback(pool.shutdown)
            # What ends while it sends a result leaves a part of one. The pool waits for the rest,
            # unless nobody can write any more, nor this process itself.
            pool._result_queue._writer.close()  # type: ignore[attr-defined]
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


def _run(work: Callable[..., T], *arguments: Any) -> T:
    """``work(*arguments)``, which alone gets a ``KeyboardInterrupt``; SIGTERM ends what is idle."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return work(*arguments)
    except KeyboardInterrupt:
        # Raised as such by the process that waits for the result, it would look like Ctrl-C there.
        raise RuntimeError("a process that works for this one was ended by SIGTERM") from None
    except SystemExit as end:  # which would end the process, and nothing else
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
    wait([end])  # for a word, or until there is no parent
    if grace_s > 0:
        signal.pthread_kill(main_thread().ident or 0, signal.SIGTERM)
        time.sleep(grace_s)
    os._exit(1)
