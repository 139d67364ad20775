"""Problems that nothing was tuned for: those of this process, and those that a store recorded.

The policy ``on_miss=record`` makes a call record its problem. The record is a file of problem lines
for each process, ``<host>-<pid>-<time>.problems``, in the store's folder of the device.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import append_lines
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.tuning.store_files import folder_name, new_name

SUFFIX = ".problems"
_TAKEN = f".taken{SUFFIX}"


@dataclass(frozen=True)
class UntunedProblem:
    """A problem that calls ran by the heuristic's decision.

    Attributes:
        problem: The problem line.
        device: ``cpu``, or a GPU such as ``cuda:0``.
        algorithm: What ran.
        why: Why that ran: ``"heuristic"``, or ``"heuristic: <reason>"``.
        calls: How many calls ran so.
        total_ms: How long the device takes for so many calls, if that was asked for and can be
            measured.
    """

    problem: str
    device: str
    algorithm: str
    why: str
    calls: int
    total_ms: float | None = None


def untuned(*, timed: bool = False) -> list[UntunedProblem]:
    """The problems that this process ran by the heuristic's decision, the most called first.

    A problem that was tuned since is left out, under whatever constraints. The lines serve `tune`,
    and as a file ``tune --problems``.

    Args:
        timed: Measure each algorithm that ran, and list the longest in all first.

    Raises:
        TypeError: ``timed`` is no bool.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(3, 7), 1, policy="tuned")
        >>> [(one.problem, one.why) for one in untuned() if "[3,7,1]" in one.problem]
        [('softmax_fwd x=f32[3,7,1]:nchw log=false', 'heuristic: nothing was tuned for it')]
    """
    check_flag("untuned", "timed", timed)
    known = {(entry["problem"], entry["device"]) for entry in _C.table_export()}
    calls: Counter[tuple[str, str, str, str]] = Counter()
    for record in _C.executed_decisions():
        is_guessed = record["why"].partition(":")[0] == "heuristic"
        place = record["problem"], _C.device_fingerprint(record["device"])
        if is_guessed and place not in known:
            what = record["problem"], record["device"], record["algorithm"], record["why"]
            calls[what] += record["calls"]
    found = [UntunedProblem(*what, count) for what, count in calls.most_common()]
    if not timed:
        return found
    found = [replace(one, total_ms=_total_ms(one)) for one in found]
    return sorted(found, key=lambda one: -1.0 if one.total_ms is None else one.total_ms)[::-1]


def _total_ms(one: UntunedProblem) -> float | None:
    rows = _C.measure(
        one.problem, one.device, algorithms=[one.algorithm], record=False, levels=False
    )
    ms = next((row["median_ms"] for row in rows if row["algorithm"] == one.algorithm), None)
    return None if ms is None else ms * one.calls


class Recorder:
    """Appends problem lines to the record of this process, each once."""

    def __init__(self, root: Path) -> None:
        """Take a store, which need not exist."""
        self.root = root
        self._names: dict[int, str] = {}  # by process: one may fork
        self._recorded: set[tuple[str, str]] = set()

    def record(self, problem: str, device: str) -> None:
        """Append a problem, which is in the file when this returns.

        Raises:
            OSError: It cannot be written.
        """
        if (problem, device) in self._recorded:
            return
        folder = self.root / folder_name(device)
        folder.mkdir(parents=True, exist_ok=True)
        name = self._names.setdefault(os.getpid(), new_name(SUFFIX))
        append_lines(folder / name, f"{problem}\n".encode())
        self._recorded.add((problem, device))


def take_recorded(root: Path, device: str) -> dict[Path, list[str]]:
    """The problem lines that a store recorded for a device, by file.

    Files are renamed before they are read, so that their processes write on in new ones. They stay
    until the caller removes them.

    Raises:
        OSError: The record cannot be read. A store that does not exist has none.
    """
    folder = root / folder_name(device)
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    taken = [path if path.name.endswith(_TAKEN) else _take(path) for path in files]
    return {path: path.read_text(errors="replace").splitlines() for path in taken}


def _take(path: Path) -> Path:
    return path.rename(path.with_name(f"{path.stem}-{time.time_ns()}{_TAKEN}"))
