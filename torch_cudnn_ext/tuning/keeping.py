"""The tuning store of this process: rankings that are kept without a call, and found again.

``knobs.store`` names the folder, by default ``torch_cudnn_ext/tuning`` in the user's cache folder.
After it come the folders of ``knobs.store_shared`` and the rankings of this package, which are
never written. ``knobs.store_match`` says which rows serve a device. C++ asks `_find` if a problem
is to be tuned and the table in memory does not have it, `_problems` for similar ones, and gives
`_add` what was measured and `_record` what is not tuned. If an agreement of ranks holds, `_find`
and `_add` give what the ranks obey.

The folder of a device is read at the first question for it, and its rows are parsed as they are
asked for. A store that cannot be read or written costs one warning; tuning goes on without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext._files import STORE_VARIABLE, cache_folder
from torch_cudnn_ext._torch_internals import carry_in_compiler_caches, disable_dynamo
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.tuning.agreement import Agreement, current_agreement
from torch_cudnn_ext.tuning.shipped import SHIPPED, hardware_of_target
from torch_cudnn_ext.tuning.statistics import count, count_missed, renew_lock
from torch_cudnn_ext.tuning.store import note_origin, observe, take_newer
from torch_cudnn_ext.tuning.store_files import (
    FolderRows,
    Place,
    SegmentWriter,
    device_folders,
    device_of,
    difference,
    folder_name,
)
from torch_cudnn_ext.tuning.store_rows import (
    Key,
    Row,
    head_of,
    is_kept,
    key_of,
    latest_text,
    now_text,
    parse_row,
    quoted,
    row_line,
    software_of,
)
from torch_cudnn_ext.tuning.untuned import Recorder

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry
    from torch_cudnn_ext.tuning.agreement import Ranking


class Question(NamedTuple):
    """What a ranking is wanted for: canonical texts, and the fingerprint of a device."""

    problem: str
    device: str
    constraints: str

    @property
    def key(self) -> Key:
        """That of the rows that answer it exactly."""
        return key_of(self.device, self.problem, self.constraints)


def store_path() -> Path | None:
    """The folder that keeps what this process tunes; ``None`` if nothing is kept.

    Example:
        >>> knobs.store = "my_store"
        >>> store_path().name
        'my_store'
    """
    named = knobs._of_process("store")
    if named is not None:
        return Path(named) if named else None
    folder = cache_folder()
    if folder is None:
        _warn_once(f"there is no home folder, so nothing is kept; set {STORE_VARIABLE} to a folder")
        return None
    return folder / "tuning"


def store_paths() -> list[Path]:
    """The stores that rankings are found in: the user's, the shared ones, the shipped one.

    If the user's store is off, so is the shipped one.
    """
    own = store_path()
    shared = [*map(Path, knobs._of_process("store_shared"))]
    return shared if own is None else [own, *shared, SHIPPED]


class _Tier:
    """One store, read folder by folder. `_lock` guards it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[Path, FolderRows] = {}

    def rows(self, folder: Path, newest: bool = True) -> FolderRows:
        """The rows of a device's folder; if it was read before, ``newest`` reads what was added."""
        if not newest and folder in self._folders:
            return self._folders[folder]
        rows = self._folders.setdefault(folder, FolderRows(folder))
        try:
            rows.refresh()
        except OSError as error:
            _warn_unusable(self.root, f"cannot read {error.filename or folder}", error)
        if rows.damage:
            first, more = rows.damage[0], len(rows.damage) - 1
            others = f", and {more} more" if more else ""
            _warn_once(
                f"{first.path}, line {first.line}: {first.error}{others}; ignored (`python -m "
                "torch_cudnn_ext store verify` lists all)",
                (folder, "damage"),
            )
        return rows

    def all_rows(self) -> list[FolderRows]:
        """The rows of every device."""
        try:
            return [self.rows(folder) for folder in device_folders(self.root)]
        except OSError as error:
            _warn_unusable(self.root, f"cannot read {error.filename or self.root}", error)
            return []


class _Store:
    """The user's store, the shared ones and the shipped one. `_lock` guards it."""

    def __init__(self, path: Path | None, paths: list[Path], match: str) -> None:
        self.setting = path, paths, match
        self.writer = SegmentWriter(path) if path is not None else None
        self.recorder = Recorder(path) if path is not None else None
        self._match = match
        self._missed: set[Question] = set()  # which were counted
        self._tiers = [*map(_Tier, paths)]

    def find(self, asked: Question) -> Ranking | None:
        """The ranking for a question, and the device and constraints if they are others.

        Counts what is found, and why nothing is.
        """
        if not self._tiers:
            return None
        reasons: set[str] = set()
        for place in self._places(asked, reasons):
            row = _row_at(place)
            if row is None:
                reasons.add("damaged")
                continue
            count("found")
            device, constraints = row.entry["device"], row.entry["constraints"]
            is_other = device != asked.device
            if not is_other:
                note_origin(row)
            under = "" if constraints == asked.constraints else constraints or "no constraints"
            return row.entry["measurements"], device if is_other else "", under
        reasons.add(_REASONS[-1])
        if asked not in self._missed:
            self._missed.add(asked)
            count_missed(next(reason for reason in _REASONS if reason in reasons))
        return None

    def holds(self, asked: Question, entry: TableEntry) -> bool:
        """Whether this is the user's store's own ranking for a question, or nothing is kept."""
        if self.writer is None:
            return True
        folder = self.writer.root / folder_name(asked.device)
        for place in self._tiers[0].rows(folder).places(asked.key):
            row = _row_at(place)
            if row is not None:
                return row_line(entry) == row_line(row.entry)
        return False

    def problems(self, device: str, constraints: str) -> list[str]:
        """The problems that have rows for a device under some constraints."""
        wanted, under = quoted(device), quoted(constraints)
        return [
            json.loads(key[1])
            for tier in self._tiers
            for key in tier.rows(tier.root / folder_name(device)).keys()
            if key[0] == wanted and key[2] == under
        ]

    def knows(self, row: Row) -> bool:
        """Whether the user's store has a row that is as new."""
        rows = self._tiers[0].rows(self._tiers[0].root / folder_name(row.entry["device"]))
        return any(place.head.when.decode() >= row.when for place in rows.places(row.key))

    def recorded(self, problem: str, constraints: str, hardware: str, version: str) -> Row | None:
        """The ranking of a problem on some hardware, whatever matches.

        Rows of a version of cuDNN come first, then the newest.
        """
        wanted = quoted(problem), quoted(constraints)
        found = [
            (device == f"{hardware}/{version}", rows.places(key)[0])
            for tier in self._tiers
            for rows in tier.all_rows()
            for key in rows.keys()
            if key[1:] == wanted and device_of(device := json.loads(key[0])).hardware == hardware
        ]
        rows = (_row_at(place) for _, place in sorted(found, reverse=True))
        return next(filter(None, rows), None)

    def _places(self, asked: Question, reasons: set[str]) -> Iterator[Place]:
        """Where rows are that serve, the best first. Adds why others do not."""
        software = quoted(software_of(asked.device))
        for tier in self._tiers:
            folder = tier.root / folder_name(asked.device)
            for newest in (False, True):
                for place in tier.rows(folder, newest).places(asked.key):
                    if self._match != "strict" or place.head.software == software:
                        yield place
                    else:
                        reasons.add("other software")
        for tier in self._tiers:
            for reason, place in _rows_near(asked, tier.all_rows()):
                is_strict = self._match == "strict"
                if is_strict and reason == _LOOSER and place.head.software != software:
                    reason = "other software"
                if reason in SERVING[self._match]:
                    yield place
                else:
                    reasons.add(reason)


_LOOSER = "looser constraints"  # which admit more: the ranking holds, less what is excluded
# Why there is no ranking; the first that applies is counted.
_REASONS = (
    "damaged",
    "other software",
    "other constraints",
    "other threads",
    "other cuDNN",
    "other device",
    "nothing known",
)
# What a row may differ in, by the setting of ``knobs.store_match``.
SERVING: dict[str, tuple[str, ...]] = {
    "strict": (_LOOSER,),
    "same_cudnn": (_LOOSER,),
    "same_gpu": (_LOOSER, "other threads", "other cuDNN"),
    "any": (_LOOSER, "other threads", "other cuDNN", "other device"),
}


def _rows_near(asked: Question, folders: Iterable[FolderRows]) -> list[tuple[str, Place]]:
    """Rows of the problem, on the CPU or on GPUs as asked for, that differ in one more thing.

    Each has the reason why it does not answer the question exactly. Rows of the same hardware come
    first, then the newest.
    """
    _, problem, constraints = asked.key
    family = _C.problem_info(asked.problem)["family"]
    found = []
    for rows in folders:
        for key in rows.keys():
            if key[1] != problem or key == asked.key:
                continue
            other = difference(asked.device, json.loads(key[0]))
            if other is None or (other and key[2] != constraints):
                continue
            reason = other or _reason_of_constraints(json.loads(key[2]), asked.constraints, family)
            found.append((other != "other device", rows.places(key)[0], reason))
    return [(reason, place) for _, place, reason in sorted(found, reverse=True)]


def _reason_of_constraints(known: str, asked: str, family: str) -> str:
    """Why a ranking under other constraints serves, or does not."""
    try:
        return _LOOSER if _C.admits_all_of(known, asked, family) else "other constraints"
    except ValueError:  # a text that is none
        return "damaged"


_lock = RLock()  # guards _store and _warned
_store: _Store | None = None
_warned: set[object] = set()


def _current() -> _Store:
    """The store that the knobs name."""
    global _store
    setting = store_path(), store_paths(), str(knobs._of_process("store_match"))
    if _store is None or _store.setting != setting:
        _store = _Store(*setting)
    return _store


def _look(asked: Question) -> Ranking | None:
    """What the stores know, as `_Store.find`."""
    with _lock:
        return _current().find(asked)


def recorded_row(problem: str, target: str, policy: str) -> Row | None:
    """The ranking that a store has of a problem on a target's hardware.

    Args:
        problem: A canonical problem line.
        target: A GPU that need not be there, such as ``h200``.
        policy: A policy text of the problem's family; the row is one of its constraints.
    """
    hardware = hardware_of_target(target)
    if hardware is None:
        return None
    constraints = _C.constraints_text(problem, policy)
    version = f"cudnn{_C.versions()['cudnn']}"
    with _lock:
        row = _current().recorded(problem, constraints, hardware, version)
    if row is not None:
        count("found")
    return row


def _keep(entry: TableEntry) -> None:
    """Add a row to the store."""
    row = Row(now_text(), software_of(entry["device"]), entry)
    note_origin(row)
    with _lock:
        _write(row, _current().writer)


def _write(row: Row, writer: SegmentWriter | None) -> None:
    """Add a row to the user's store if there is one, and something ran."""
    if writer is None or not any(map(is_kept, row.entry["measurements"])):
        return
    try:
        writer.append(row.entry["device"], row_line(row.entry, row.when, row.software))
    except OSError as error:
        count("not_kept")
        _warn_unusable(writer.root, f"cannot write to {writer.root}", error)
    else:
        count("kept")


def _load_artifact(line: bytes) -> None:
    """Take a ranking that ``torch.compiler.load_cache_artifacts`` loads."""
    try:
        head_of(line, latest_text())
        row = parse_row(line)
    except (ValueError, RuntimeError) as error:
        _warn_once(f"an artifact of torch.compiler: {error}; ignored", _load_artifact)
        return
    take_newer(row)
    with _lock:
        store = _current()
        if store.writer is not None and not store.knows(row):
            _write(row, store.writer)


def keep_others(rows: Iterable[Row]) -> None:
    """Keep what other ranks measured, unless the store has it: ranks may share it."""
    with _lock:
        for row in rows:
            entry = row.entry
            asked = Question(entry["problem"], entry["device"], entry["constraints"])
            if not _current().holds(asked, entry):
                note_origin(row)
                _write(row, _current().writer)


@disable_dynamo("the tuning store is read")
def _find(problem: str, device: str, constraints: str) -> Ranking | str | None:
    """What C++ asks for: a ranking, why the heuristic's algorithm runs, or ``None``."""
    if device.startswith("target:"):
        return None
    asked, agreement = Question(problem, device, constraints), current_agreement()
    if agreement is None:
        return _look(asked)
    return _kept(asked, agreement, agreement.find(asked, lambda: _look(asked)))


@disable_dynamo("ranks agree")
def _claim(problem: str, device: str, constraints: str) -> Ranking | str | None:
    """What C++ calls before a call measures; what to obey instead, or ``None``."""
    asked, agreement = Question(problem, device, constraints), current_agreement()
    return None if agreement is None else _kept(asked, agreement, agreement.claim(asked))


def _kept(
    asked: Question, agreement: Agreement, found: Ranking | str | None
) -> Ranking | str | None:
    """What ranks obey, which is kept in the store if it is a ranking of what was asked for."""
    path = store_path()
    if isinstance(found, tuple) and not any(found[1:]) and path is not None:
        if agreement.is_first_to_keep(asked, os.path.abspath(path)):
            # The store of the ranks does not tell when it was measured.
            entry: Any = {**asked._asdict(), "measurements": found[0]}
            keep_others([Row("", "", entry)])
    return found


@disable_dynamo("ranks agree")
def _give_up(problem: str, device: str, constraints: str) -> Ranking | str | None:
    """What C++ calls if that measurement came to nothing; as `_claim`."""
    agreement = current_agreement()
    return agreement.give_up((problem, device, constraints)) if agreement is not None else None


@disable_dynamo("the tuning store is written")
def _add(entry: TableEntry) -> Ranking | str | None:
    """What C++ calls when a problem was measured; what to obey instead, or ``None``."""
    agreement = current_agreement()
    other = agreement.add(entry) if agreement is not None else None
    if other is None:
        _keep(entry)
    return other


@disable_dynamo("the tuning store is read")
def _problems(device: str, constraints: str) -> list[str]:
    """The problems that have a ranking for a device under some constraints."""
    with _lock:
        store = _current()
        return store.problems(device, constraints)


@disable_dynamo("the tuning store is written")
def _record(problem: str, device: str, _constraints: str) -> None:
    """What C++ calls for a problem that nothing was tuned for, if the policy says so."""
    if device.startswith("target:"):
        return
    with _lock:
        recorder = _current().recorder
        if recorder is None:
            _warn_once("on_miss=record: there is no store, so nothing is recorded")
            return
        try:
            recorder.record(problem, device)
        except OSError as error:
            _warn_unusable(recorder.root, f"cannot write to {recorder.root}", error)


def _row_at(place: Place) -> Row | None:
    """The row at a place; ``None``, with a warning, if it is impossible."""
    try:
        return parse_row(place.read())
    except FileNotFoundError:  # it was compacted since: the newest rows are read next
        return None
    except OSError as error:
        _warn_unusable(place.path, f"cannot read {place.path}", error)
    except (ValueError, RuntimeError) as error:
        _warn_once(f"{place.path}: {error}; the row is ignored", place)
    return None


def _warn_unusable(store: Path, what: str, error: OSError) -> None:
    _warn_once(f"{what}: {error.strerror}; this process goes on without", store)


def _warn_once(message: str, about: object = None) -> None:
    """Warn, once of each subject; that is the message unless it is named."""
    subject = about if about is not None else message
    if subject not in _warned:
        _warned.add(subject)
        warn(f"tuning store: {message}")


def _forget_after_fork() -> None:
    """The lock may be held by a thread that is not here."""
    global _lock
    _lock = RLock()
    renew_lock()


def install() -> None:
    """Let rankings be kept, and found again; PyTorch's caches of compiled code carry them."""
    _C.set_tuning_store(
        {
            "find": _find,
            "add": _add,
            "problems": _problems,
            "record": _record,
            "claim": _claim,
            "give_up": _give_up,
        }
    )
    carry = carry_in_compiler_caches("torch_cudnn_ext", _load_artifact)
    observe(lambda row: carry(row.about, row_line(row.entry, row.when, row.software).rstrip()))
    os.register_at_fork(after_in_child=_forget_after_fork)
