"""Calls that all ranks of a process group make together, and end together.

Each rank comes to an exchange when it is ready, which may take long: the others measure meanwhile.
So ranks first wait for each other in the c10d store, where an error on one rank reaches all others,
and where one that never comes is missed. Only if all are there, they exchange objects, in a group
of gloo of their own. The training's groups are left alone.

A program may set the limit below, which is an attribute of this module.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from torch import distributed as dist

from torch_cudnn_ext._torch_internals import (
    PrefixStore,
    Store,
    default_store,
    gather_bytes,
    gloo_group,
)

if TYPE_CHECKING:
    from torch_cudnn_ext.tuning.measure import Progress

    Group: TypeAlias = dist.ProcessGroup | str | None

T = TypeVar("T")

WAIT_LIMIT_S = 1800.0  # that ranks wait while no rank of the group comes or measures
_WORLD = "world"
_ALL_HERE = "all ranks are here"
_SIGN_S = 1.0  # between two signs of life of a rank that measures
_LONGEST_PAUSE_S = 1.0  # between two looks at the store


@dataclass
class _Members:
    """The ranks of a group, of which this is one.

    Attributes:
        default: The store of the default process group.
        ranks: Their ranks in the default process group.
        index: The place of this rank among them.
        calls: How many calls they made together.
        gloo: The group in which they exchange objects, once there is one.
        is_busy: Whether such a call runs.
    """

    default: Store
    ranks: tuple[int, ...]
    index: int
    calls: int = 0
    gloo: dist.ProcessGroup | None = None
    is_busy: bool = False


_members: dict[tuple[int, ...], _Members] = {}  # by their ranks


class Meeting:
    """One call that all ranks of a group make.

    Attributes:
        operation: The function that is called.
        ranks: The ranks in the default process group.
        index: The place of this rank among them.
    """

    def __init__(self, operation: str, members: _Members) -> None:
        """Begin the next call of these members."""
        members.calls += 1
        self.operation, self.ranks, self.index = operation, members.ranks, members.index
        self._members = members
        name = hashlib.sha256(repr(self.ranks).encode()).hexdigest()
        self._store = PrefixStore(f"torch_cudnn_ext/meeting/{name}", members.default)
        self._call = f"call {members.calls}"
        self._phase = 0
        self._last_sign = 0.0

    def exchange(self, value: T) -> list[T]:
        """The values of all ranks, in their order.

        Raises:
            RuntimeError: Another rank failed, or did not come in time.
        """
        data = pickle.dumps(value)
        self._phase += 1
        lacking = f"{self._call}/{self._phase}/ranks without gloo"
        if self._members.gloo is None:
            self._store.add(lacking, 1)
        self._gather()
        try:
            group = self._members.gloo
            if group is None or self._store.add(lacking, 0) > 0:  # if one has none, all make one
                group = self._members.gloo = self._new_group()
            return [pickle.loads(text) for text in gather_bytes(group, data)]
        except Exception as error:
            self._members.gloo = None
            ranks = ", ".join(map(str, self.ranks))
            raise RuntimeError(
                f"{self.operation}: the ranks {ranks} could not exchange what they measured; one "
                f"of them has ended, or cannot be reached by gloo ({error})"
            ) from error

    def _new_group(self) -> dist.ProcessGroup:
        store = PrefixStore(f"{self._call}/{self._phase}/gloo", self._store)
        limit = timedelta(seconds=WAIT_LIMIT_S)
        return gloo_group(store, self.index, len(self.ranks), limit)

    def show_life(self) -> None:
        """Tell the other ranks that this one measures.

        Raises:
            RuntimeError: One of them failed meanwhile.
        """
        now = time.monotonic()
        if now >= self._last_sign + _SIGN_S:
            self._last_sign = now
            self._store.add(f"{self._call}/signs", 1)
            self._check_end(self._phase + 1)

    def fail(self, reason: str) -> None:
        """Let the other ranks raise an error."""
        text = f"rank {self.ranks[self.index]}: {reason}"
        for phase in (self._phase, self._phase + 1):
            self._store.compare_set(self._end_of(phase), "", text)

    def _gather(self) -> None:
        """Wait until all ranks came to this phase."""
        end, here = self._end_of(self._phase), f"{self._call}/{self._phase}/here"
        self._store.set(f"{here}/{self.index}", "")
        if self._store.add(here, 1) == len(self.ranks):
            self._store.compare_set(end, "", _ALL_HERE)
        signs, limit, pause = -1, 0.0, 0.005
        while not self._check_end(self._phase):
            newest = self._store.add(f"{self._call}/signs", 0) + self._store.add(here, 0)
            if newest != signs:
                signs, limit = newest, time.monotonic() + WAIT_LIMIT_S
            elif time.monotonic() > limit:
                missing = [
                    str(rank)
                    for index, rank in enumerate(self.ranks)
                    if not self._store.check([f"{here}/{index}"])
                ]
                text = f"no sign of rank {', '.join(missing)} for {WAIT_LIMIT_S:g} s"
                self._store.compare_set(end, "", text)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _check_end(self, phase: int) -> bool:
        """Whether all ranks came to a phase; raises RuntimeError if one failed before."""
        end = self._end_of(phase)
        if not self._store.check([end]):
            return False
        text = self._store.get(end).decode(errors="replace")
        if text != _ALL_HERE:
            raise RuntimeError(f"{self.operation}: {text}")
        return True

    def _end_of(self, phase: int) -> str:
        return f"{self._call}/{phase}/end"


class Signs:
    """Progress of a rank that also tells the other ranks that it measures."""

    def __init__(self, meeting: Meeting, told: Progress | None) -> None:
        """Take the call that all ranks make, and who else is told."""
        self._meeting, self._told = meeting, told

    def problem(self, done: int, total: int, text: str) -> None:
        """Tell of a problem."""
        self._meeting.show_life()
        if self._told is not None:
            self._told.problem(done, total, text)

    def algorithm(self, done: int, total: int, text: str) -> None:
        """Tell of an algorithm."""
        self._meeting.show_life()
        if self._told is not None:
            self._told.algorithm(done, total, text)


@contextmanager
def meeting(operation: str, group: Group) -> Iterator[Meeting | None]:
    """The call that the ranks of a group make in the block; ``None`` without a group.

    An error that leaves the block on one rank is raised on all others, where they wait.

    Args:
        operation: The function that is called.
        group: A process group, or ``"world"``; or ``None``.

    Raises:
        TypeError: ``group`` is none of these.
        ValueError: There is no default process group, or this rank is not in the group.
        RuntimeError: A call for the same group runs, or gloo is not available.
    """
    if group is None:
        yield None
        return
    members = _members_of(operation, group)
    if members.is_busy:
        raise RuntimeError(f"{operation}: called while a call for the same group runs")
    members.is_busy = True
    try:
        met = Meeting(operation, members)
        try:
            yield met
        except BaseException as error:
            with suppress(RuntimeError):  # the store may have ended with the rank that has it
                met.fail(f"{type(error).__name__}: {error}")
            raise
    finally:
        members.is_busy = False


def _members_of(operation: str, group: object) -> _Members:
    outside = dist.GroupMember.NON_GROUP_MEMBER
    wanted = f"wanted a process group that has this rank, or {_WORLD!r}"
    if group == outside:
        raise ValueError(f"{operation}: group: got one without this rank, {wanted}")
    if isinstance(group, str) and group != _WORLD:
        raise ValueError(f"{operation}: group: got {group!r:.60}, {wanted}")
    if not isinstance(group, str | dist.ProcessGroup):
        kind = type(group).__name__
        raise TypeError(f"{operation}: group: got {group!r:.60} ({kind}), {wanted}")
    if not dist.is_initialized():
        raise ValueError(
            f"{operation}: group: got {group!r:.60} without a default process group, wanted "
            "torch.distributed.init_process_group to be called before"
        )
    if not dist.is_gloo_available():
        raise RuntimeError(f"{operation}: group: this PyTorch has no gloo, by which ranks exchange")
    ranks = tuple(dist.get_process_group_ranks(None if isinstance(group, str) else group))
    default = default_store()
    found = _members.get(ranks)
    if found is None or found.default is not default:  # the process group was made anew
        found = _members[ranks] = _Members(default, ranks, ranks.index(dist.get_rank()))
    return found
