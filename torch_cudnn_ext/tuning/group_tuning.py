"""Tuning by all ranks of a process group: each measures a part, and all get the same table.

Ranks whose devices have the same fingerprint work together; others tune apart, in the same call.
What one of them has already is taken from the first that has it. The other problems are split by
the time that they are expected to take. Every rank merges the same rows in the same way, then the
ranks compare the SHA-256 of the entries.
"""

from __future__ import annotations

import copy
import hashlib
import os
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning.agreement import alone, software
from torch_cudnn_ext.tuning.keeping import keep_others, store_path
from torch_cudnn_ext.tuning.store import held_rows, take_rows
from torch_cudnn_ext.tuning.store_rows import Row, check_entry, row_line

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.tuning.meeting import Meeting
    from torch_cudnn_ext.tuning.tasks import Task

    Rows: TypeAlias = list[Measurement]
    # Measures tasks, in order, by turns with the processes that have the same file as their lock.
    Measure: TypeAlias = Callable[[Sequence[Task], str], Iterable[Rows]]

# What a problem takes: building and checking its algorithms, and timed runs of each.
_RUNS = 30
_BUILD_S = {"cpu": 0.01, "gpu": 1.0}  # of an algorithm
_FLOPS_PER_S = {"cpu": 5e10, "gpu": 2e13}
_BYTES_PER_S = {"cpu": 1e10, "gpu": 2e12}


@dataclass(frozen=True)
class Plan:
    """What a rank asks for.

    Attributes:
        alike: What must be the same on all ranks, by the name of the argument.
        device: The fingerprint of its device.
        hardware: The machine and the device in it.
        folder: The machine and the folder of the tuning store.
        problems: Those that it needs, each with the SHA-256 of its entry if it is tuned.
        token: A text that no other plan has.
    """

    alike: dict[str, str]
    device: str
    hardware: str
    folder: str
    problems: dict[str, str | None]
    token: str


@dataclass(frozen=True)
class Share:
    """What a rank gives to the others.

    Attributes:
        entries: The rows of the tuning table of what it measured, and of what it had.
        rows: The rankings that it measured.
    """

    entries: dict[str, Row]
    rows: dict[str, Rows]


def tune_together(
    ranks: Meeting, model: Task, problems: Sequence[str], known: Iterable[str], measure: Measure
) -> dict[str, Rows]:
    """Tune the problems of all ranks; afterwards their tuning tables have the same entries of them.

    Args:
        ranks: The call that all ranks make.
        model: A task without a problem.
        problems: What this rank needs.
        known: Those of them that need not be measured.
        measure: Measures tasks.

    Returns:
        The rankings that were measured by the ranks of this device, the same on all of them.

    Raises:
        RuntimeError: A rank failed or has ended, the ranks have other settings or versions, or a
            rank's entry is wrong; on all ranks of the group.
    """
    with alone():
        return _Tuning(ranks, model, problems, known).run(measure)


class _Tuning:
    """One `tune_together`. Every rank calls `Meeting.exchange` equally often."""

    def __init__(
        self, ranks: Meeting, model: Task, problems: Sequence[str], known: Iterable[str]
    ) -> None:
        """Exchange the plans."""
        self._ranks, self._model = ranks, model
        self._device = _C.device_fingerprint(model.device)
        kept = self._table(problems)
        hashes = {line: _sha(kept[line]) for line in known if line in kept}
        mine = Plan(
            {
                "policy": model.policy,
                "time_budget_s": repr(float(model.time_budget_s)),
                "knob_search": repr(model.knob_search),
            },
            self._device,
            f"{socket.gethostname()}/{_hardware(model.device)}",
            f"{socket.gethostname()}/{os.path.abspath(store_path() or '')}",
            {line: hashes.get(line) for line in problems},
            uuid.uuid4().hex,
        )
        # As texts, since another version may have other plans.
        self._check_alike("software", dict(enumerate(ranks.exchange(software()))))
        plans = ranks.exchange(mine)
        for what in mine.alike:
            self._check_alike(what, dict(enumerate(plan.alike[what] for plan in plans)))
        self._token = plans[0].token
        self._plans = {i: plan for i, plan in enumerate(plans) if plan.device == self._device}
        self._problems = [*dict.fromkeys(p for plan in self._plans.values() for p in plan.problems)]
        self._constraints = self._exchanged_constraints()

    def run(self, measure: Measure) -> dict[str, Rows]:
        """Measure this rank's part, merge what all measured, and compare."""
        owners = self._owners()
        measured = [line for line in self._problems if line not in owners]
        split = split_by_time(measured, [*self._plans], self._device)
        part = [line for line in split if split[line] == self._ranks.index]
        owned = [*part, *(p for p, owner in owners.items() if owner == self._ranks.index)]
        tasks = [replace(self._model, problem=line) for line in part]
        lock = self._lock_file()
        try:
            rows = dict(zip(part, measure(tasks, lock), strict=True))
            shares = self._ranks.exchange(Share(self._table(owned), rows))
        finally:
            if lock:
                Path(lock).unlink(missing_ok=True)
        owners |= split
        merged = self._merged([share.entries for share in shares], owners)
        # What was too noisy to be kept, or is not kept on this GPU: an entry from before, if any.
        left = self._ranks.exchange(self._table([p for p in measured if p not in merged]))
        merged |= self._merged(left)
        take_rows(merged.values())
        self._check_tables()
        self._keep(merged)
        return {line: shares[split[line]].rows[line] for line in measured}

    def _exchanged_constraints(self) -> dict[str, str]:
        """The constraints of each problem, which are the same on all ranks of this device."""
        mine = {
            line: _C.constraints_text(line, _C.policy_for(line, self._model.policy))
            for line in self._problems
        }
        theirs = self._ranks.exchange(mine)
        for line in self._problems:
            texts = {i: theirs[i][line] for i in self._plans}
            self._check_alike(f"constraints of {line}", texts)
        return mine

    def _owners(self) -> dict[str, int | None]:
        """The rank that gives what need not be measured: the first that has it.

        It is ``None`` if all have the same.
        """
        owners: dict[str, int | None] = {}
        for line in self._problems:
            hashes = {i: plan.problems.get(line) for i, plan in self._plans.items()}
            having = [i for i, value in hashes.items() if value is not None]
            if having:
                is_same = len(having) == len(hashes) and len({*hashes.values()}) == 1
                owners[line] = None if is_same else having[0]
        return owners

    def _lock_file(self) -> str:
        """The file of the lock of this rank's device; empty if no other rank has the device."""
        sharing = [i for i, p in self._plans.items() if p.hardware == self._mine.hardware]
        if len(sharing) == 1:
            return ""
        name = hashlib.sha256(f"{self._token}/{sharing}".encode()).hexdigest()[:16]
        return str(Path(tempfile.gettempdir(), f"torch_cudnn_ext-{os.getuid()}-{name}.lock"))

    def _merged(
        self,
        given: Sequence[Mapping[str, Row]],
        owners: Mapping[str, int | None] | None = None,
    ) -> dict[str, Row]:
        """The rows that ranks of this device gave; of several for one problem the first."""
        merged: dict[str, Row] = {}
        for index in self._plans:
            for line, row in given[index].items():
                try:
                    merged.setdefault(line, self._checked(line, row))
                    if owners is not None and owners.get(line) != index:
                        raise ValueError("another rank was to give it")
                except (ValueError, RuntimeError) as error:
                    raise RuntimeError(
                        f"{self._ranks.operation}: rank {self._ranks.ranks[index]} gave a wrong "
                        f"entry for {line!r:.200}: {error}"
                    ) from error
        return merged

    def _checked(self, line: str, row: Row) -> Row:
        found = check_entry(copy.deepcopy(row.entry))
        wanted = line, self._device, self._constraints.get(line)
        got = found["problem"], found["device"], found["constraints"]
        if got != wanted:
            raise ValueError(f"it is of {got}, wanted {wanted}")
        return Row(str(row.when), str(row.software), found)

    def _table(self, problems: Iterable[str]) -> dict[str, Row]:
        """The rows of the tuning table for these problems."""
        policy, wanted = self._model.policy, {}
        for line in problems:
            wanted[line] = _C.constraints_text(line, _C.policy_for(line, policy))
        return {
            row.entry["problem"]: row
            for row in held_rows()
            if row.entry["device"] == self._device
            and wanted.get(row.entry["problem"]) == row.entry["constraints"]
        }

    def _check_tables(self) -> None:
        """Raise RuntimeError if the entries of the ranks differ."""
        table = self._table(self._problems)
        mine = {line: _sha(table.get(line)) for line in sorted(self._problems)}
        theirs = self._ranks.exchange(mine)
        for line in mine:
            self._check_alike(f"entry of {line}", {i: theirs[i][line] for i in self._plans})

    def _keep(self, merged: Mapping[str, Row]) -> None:
        """Keep in the tuning store what others measured, once for all ranks that share it."""
        sharing = [i for i, p in self._plans.items() if p.folder == self._mine.folder]
        if sharing[0] == self._ranks.index:
            keep_others(merged.values())

    def _check_alike(self, what: str, texts: Mapping[int, str]) -> None:
        """Raise RuntimeError if ranks have different texts."""
        first = min(texts)
        for index in texts:
            if texts[index] != texts[first]:
                raise RuntimeError(
                    f"{self._ranks.operation}: {what}: got {texts[first]!r} on rank "
                    f"{self._ranks.ranks[first]} and {texts[index]!r} on rank "
                    f"{self._ranks.ranks[index]}, wanted the same on all ranks"
                )

    @property
    def _mine(self) -> Plan:
        return self._plans[self._ranks.index]


def split_by_time(problems: Iterable[str], ranks: Sequence[int], device: str) -> dict[str, int]:
    """The rank that measures each problem, in the order in which to measure.

    The longest come first, so that no rank works on one at the end while the others wait. Each goes
    to the rank that has the least to do of its operator, since operators differ in the number of
    their algorithms. The order of the problems does not matter.

    Args:
        problems: Canonical lines.
        ranks: To whom they are given.
        device: The fingerprint of their device.
    """
    infos = {line: _C.problem_info(line) for line in problems}
    cost = {line: _expected_s(info["flops"], info["bytes"], device) for line, info in infos.items()}
    of_operator: dict[tuple[str, int], float] = {}
    in_all = dict.fromkeys(ranks, 0.0)
    split: dict[str, int] = {}
    for line in sorted(cost, key=lambda line: (infos[line]["op"], -cost[line], line)):
        op = infos[line]["op"]
        split[line] = min(ranks, key=lambda r: (of_operator.get((op, r), 0.0), in_all[r], r))
        place = op, split[line]
        of_operator[place] = of_operator.get(place, 0.0) + cost[line]
        in_all[split[line]] += cost[line]
    return {line: split[line] for line in sorted(split, key=lambda line: (-cost[line], line))}


def _expected_s(flops: float, bytes: float, device: str) -> float:
    """Seconds that an algorithm of a problem takes to be built and timed, roughly."""
    kind = "cpu" if device.startswith("cpu/") else "gpu"
    run_s = flops / _FLOPS_PER_S[kind] + bytes / _BYTES_PER_S[kind]
    return _BUILD_S[kind] + _RUNS * run_s


def _hardware(device: str) -> str:
    """Which of a machine's devices it is."""
    if device == "cpu":
        return device
    return str(torch.cuda.get_device_properties(torch.device(device)).uuid)


def _sha(row: Row | None) -> str:
    """The SHA-256 of a row's entry; of none a word."""
    return hashlib.sha256(row_line(row.entry, whole=True)).hexdigest() if row else "none"
