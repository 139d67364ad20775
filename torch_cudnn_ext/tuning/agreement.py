"""Ranks that decide alike if they first meet a problem inside a step.

A miss uses no collective operation, since other ranks may not have the problem. It uses the c10d
store through which the ranks found each other, which has an operation that compares and sets a
value. One rank claims a problem, measures it and publishes its ranking. The others wait, each for
a limited time. A rank whose time is over publishes that the heuristic's algorithm is to run. All
obey what was published first, also a rank that measured and comes late. So a rank that died while
it measured costs one wait.

A rank that has the ranking, in its tuning store, publishes it at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Self, TypeAlias

import torch
from torch import distributed as dist

from torch_cudnn_ext._torch_internals import PrefixStore, Store, default_store
from torch_cudnn_ext.tuning.measure import finite_rows
from torch_cudnn_ext.tuning.store_rows import check_entry

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

    # Measurements, with the device and the constraints that they are of, each empty if it is what
    # was asked for.
    Ranking: TypeAlias = tuple[list[Measurement], str, str]

_LONGEST_PAUSE_S = 0.1  # between two looks at what was published

_active: list[Agreement] = []  # the newest is the last
_here = local()  # of each thread: whether it agrees with nobody now


class Agreement:
    """The agreement of `agree`, which holds until `end` or the end of its ``with`` block.

    Example:
        >>> agreement = Agreement(torch.distributed.HashStore())
        >>> agreement.end()
    """

    def __init__(self, store: Store | None = None, timeout_s: float = 120.0) -> None:
        """Check the arguments and make it hold."""
        _check_timeout(timeout_s)
        self._store = PrefixStore("torch_cudnn_ext/agree", _checked_store(store))
        self._timeout_s = timeout_s
        self._name = uuid.uuid4().hex
        self._process = os.getpid()
        here = software()
        there = self._first("software", here)
        if there != here:
            raise RuntimeError(f"agree: got {here} here and {there} on another rank, wanted one")
        _active.append(self)

    def end(self) -> None:
        """End the agreement. Decisions that were made stay as they are.

        Raises:
            ValueError: It was ended before.
        """
        if self not in _active:
            raise ValueError("end: the agreement was ended before")
        _active.remove(self)

    def __enter__(self) -> Self:
        """Return the agreement, which holds already."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the agreement, unless the block has done so."""
        if self in _active:
            self.end()

    def find(
        self, asked: tuple[str, str, str], look: Callable[[], Ranking | None]
    ) -> Ranking | str | None:
        """What the ranks obey for a problem, if that is settled or this rank knows a ranking.

        Args:
            asked: Problem, fingerprint of the device, and constraints, as canonical texts.
            look: Gives the ranking that this rank knows.

        Returns:
            A ranking; or a text if the heuristic's algorithm runs, which says why; or ``None`` if
            nothing is published and this rank knows nothing.

        Raises:
            RuntimeError: The store of ``torch.distributed`` failed.
        """
        published = self._published(asked)
        if published is None:
            known = look()
            if known is None:
                return None
            published = self._publish(asked, _ranking_text(*known))
        return _obeyed(asked, published)

    def claim(self, asked: tuple[str, str, str]) -> Ranking | str | None:
        """Ask to measure a problem: ``None`` if this rank is to do so, else as of `find`.

        Waits for the rank that measures it.
        """
        if self._first(_key(asked, "claim"), self._name) == self._name:
            return None
        return _obeyed(asked, self._wait(asked))

    def add(self, entry: TableEntry) -> Ranking | str | None:
        """Publish what this rank measured; ``None`` if the ranks obey it, else as of `find`."""
        asked = entry["problem"], entry["device"], entry["constraints"]
        mine = _ranking_text(entry["measurements"], "", "")
        first = self._publish(asked, mine)
        return None if first == mine else _obeyed(asked, first)

    def give_up(self, asked: tuple[str, str, str]) -> Ranking | str:
        """Publish that this rank's measurement came to nothing; what all obey, as of `find`."""
        reason = "its measurement came to nothing on the rank that claimed it"
        return _obeyed(asked, self._publish(asked, json.dumps({"heuristic": reason})))

    def is_first_to_keep(self, asked: tuple[str, str, str], folder: str) -> bool:
        """Whether no other process of this machine keeps the ranking in that folder."""
        place = hashlib.sha256(f"{socket.gethostname()}:{folder}".encode()).hexdigest()
        return self._first(_key(asked, f"kept in {place}"), self._name) == self._name

    def is_here(self) -> bool:
        """Whether this process made the agreement: one that was forked must not use its store."""
        return self._process == os.getpid()

    def _wait(self, asked: tuple[str, str, str]) -> str:
        """What is published first, in the end by this rank."""
        # Ctrl-C would not end the store's own wait, and other threads could not use the store.
        end, pause = time.monotonic() + self._timeout_s, 0.005
        while (published := self._published(asked)) is None:
            left = end - time.monotonic()
            if left <= 0:
                reason = f"no ranking came from another rank within {self._timeout_s:g} s"
                return self._publish(asked, json.dumps({"heuristic": reason}))
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return published

    def _published(self, asked: tuple[str, str, str]) -> str | None:
        """What was published first; ``None`` if nothing was."""
        key = _key(asked, "result")
        with _store_errors():
            return self._store.get(key).decode() if self._store.check([key]) else None

    def _publish(self, asked: tuple[str, str, str], text: str) -> str:
        """Publish a text unless there is one; returns that which was first."""
        return self._first(_key(asked, "result"), text)

    def _first(self, key: str, value: str) -> str:
        """Set a value unless there is one; returns that which is there."""
        with _store_errors():
            return self._store.compare_set(key, "", value).decode()


def agree(store: Store | None = None, *, timeout_s: float = 120.0) -> Agreement:
    """Let all ranks run the same algorithm if a problem is first met inside a step.

    Without it each rank measures such a problem for itself, and noise may let them choose
    differently. With it one rank measures and the others of the same device wait for its ranking,
    without a collective operation.

    It is about what calls would measure. A rank that has a ranking in memory, or whose policy does
    not measure in calls (``tuned``, ``on_miss``), runs what it has; `tune` with ``group`` gives all
    ranks the same. What `tune` measures meanwhile is published like a call's ranking.

    All ranks call this before their first step. It holds for all threads until the ``with`` block
    or `Agreement.end` ends it. Of several the newest holds.

    If no ranking comes in time, or the measurement was too noisy or failed, all ranks run the
    heuristic's algorithm for this problem as long as the store lives.

    Args:
        store: A store of ``torch.distributed`` that all ranks share; by default that of the default
            process group.
        timeout_s: Seconds that a rank waits for another one to measure a problem.

    Raises:
        TypeError: ``store`` is no store of ``torch.distributed``.
        ValueError: ``timeout_s`` is no number of seconds, or there is no store and no default
            process group.
        RuntimeError: Another rank has another version of this package or of PyTorch.

    Example:
        >>> with agree(torch.distributed.HashStore(), timeout_s=60):
        ...     y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
    """
    return Agreement(store, timeout_s)


def current_agreement() -> Agreement | None:
    """The agreement that holds on this thread."""
    if not _active or getattr(_here, "is_alone", False):
        return None
    return _active[-1] if _active[-1].is_here() else None


@contextmanager
def alone() -> Iterator[None]:
    """Let this thread neither ask other ranks nor tell them anything."""
    before = getattr(_here, "is_alone", False)
    _here.is_alone = True
    try:
        yield
    finally:
        _here.is_alone = before


def software() -> str:
    """What must be the same on all ranks that agree, other than what the fingerprint holds."""
    version = sys.modules[__name__.partition(".")[0]].__version__
    return f"torch_cudnn_ext {version} with PyTorch {torch.__version__}"


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"agree: the store of torch.distributed failed: {error}") from error


def _check_timeout(timeout_s: float) -> None:
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < math.inf:  # nor nan
        raise ValueError(f"timeout_s: got {timeout_s!r:.60}, wanted more than 0 seconds")


def _checked_store(store: object) -> Store:
    if store is None:
        if not dist.is_initialized():
            raise ValueError(
                "store: got None without a default process group, wanted a store of "
                "torch.distributed, or torch.distributed.init_process_group to be called before"
            )
        return default_store()
    if not isinstance(store, Store):
        kind = type(store).__name__
        raise TypeError(f"store: got {store!r:.60} ({kind}), wanted a store of torch.distributed")
    return store


def _key(asked: tuple[str, str, str], what: str) -> str:
    return f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()}/{what}"


def _ranking_text(rows: list[Measurement], of_device: str, of_constraints: str) -> str:
    fields = {"device": of_device, "constraints": of_constraints}
    return json.dumps({"measurements": finite_rows(rows), **fields})


def _obeyed(asked: tuple[str, str, str], published: str) -> Ranking | str:
    """What was published, as `Agreement.find` returns it. Depends on nothing else."""
    problem, device, constraints = asked
    try:
        value = json.loads(published)
        if "heuristic" in value:
            return str(value["heuristic"])
        fields = {"problem": problem, "device": device, "constraints": constraints}
        entry = check_entry({**fields, "measurements": value["measurements"]})
        return entry["measurements"], str(value["device"]), str(value["constraints"])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        return f"what another rank published is no ranking ({error})"
