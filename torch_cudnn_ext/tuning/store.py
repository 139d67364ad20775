"""The tuning table, measured rankings in memory, and single files of it.

Each line of a file is a JSON object: the measurements of one problem on one device under one set of
constraints.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import check_path, naming, not_regular, read_text, resolved, write_text
from torch_cudnn_ext.tuning.measure import check_constraints_alone, finite_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry

_Key: TypeAlias = tuple[str, str, str]

_ENTRY_FIELDS = {"problem": str, "device": str, "constraints": str, "measurements": list}
_MOST = 2**63 - 1  # the largest count
_NUMBER, _NONE = (int, float), type(None)
# The fields of a measurement, in the order in which they are written.
MEASUREMENT_FIELDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "backend": (str,),
    "status": (str,),
    "reason": (str,),
    "workspace_bytes": (int, _NONE),
    "notes": (list,),
    "deterministic": (bool, _NONE),
    "source": (str,),
    "median_ms": (*_NUMBER, _NONE),
    "spread_ms": (*_NUMBER, _NONE),
    "host_ms": (*_NUMBER, _NONE),  # earlier versions did not write it
    "samples": (int,),
    "error": (*_NUMBER, _NONE),
    "build_ms": _NUMBER,
}

# By file, the lines of the entries that it held when this process last read or wrote it.
_held: dict[Path, dict[_Key, str]] = {}


def entries() -> list[TableEntry]:
    """What was measured or imported here, or found in the store when it was asked for.

    Each has the problem, the device, the constraints and the ranked measurements.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
        >>> len(entries())
        1
    """
    return _C.table_export()


def clear() -> None:
    """Forget every measurement in memory. The tuning store gives its own again if it is on.

    Example:
        >>> clear()
        >>> entries()
        []
    """
    _C.table_clear()


def reset() -> None:
    """Forget every measurement in memory and every plan, and release cached GPU memory.

    The plans of another thread, such as autograd's for a GPU, are dropped at its next call.
    """
    _C.table_clear()
    _C.plan_cache_clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def export_table(path: str | os.PathLike[str]) -> int:
    """Write the tuning table as JSON lines; after an error the file is as it was before.

    Returns:
        The number of entries.

    Raises:
        OSError: The file cannot be written, or is no regular file.

    Example:
        >>> count = export_table("tuning.jsonl")
        >>> import_table("tuning.jsonl") == count
        True
    """
    _check_replaceable(path)
    measured = entries()
    lines = _lines(measured)
    write_text(path, "".join(f"{line}\n" for line in lines.values()))
    _held[resolved(path)] = lines
    return len(measured)


def import_table(path: str | os.PathLike[str]) -> int:
    """Read what `export_table` wrote and add it to the tuning table.

    If both have a problem, the file's ranking replaces the table's. Entries of other devices and
    cuDNN versions are kept but not used here.

    Returns:
        The number of entries that were read.

    Raises:
        ValueError: A line is no entry (the message gives its number); nothing is changed then.
        OSError: The file cannot be read.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
        >>> count = export_table("tuning.jsonl")
        >>> clear()
        >>> import_table("tuning.jsonl")
        1
    """
    return _import(resolved(path), read_table(path))


def merge_table(path: str | os.PathLike[str]) -> int:
    """Merge the tuning table and a file: afterwards both hold what either held.

    If both have a problem, the table's ranking is kept. The file's is kept instead if the table's
    is the one that the file held when this process last read or wrote it. Processes that merge with
    one file wait for each other, so that no problem is lost. Their lock is a hidden file in the
    same folder, which is not removed.

    Returns:
        The number of entries.

    Raises:
        ValueError: As of `import_table`; the file is left as it was.
        OSError: It cannot be read or written, or is no regular file.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
        >>> merge_table("tuning.jsonl")
        1
    """
    _check_replaceable(path)
    target = resolved(path)
    with ExitStack() as stack:
        with naming(path):
            file = target.parent / f".{target.name}.lock"
            lock = os.open(file, os.O_RDONLY | os.O_CREAT, 0o666)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            theirs, held = read_table(path), _held.get(target, {})
            measured = entries()  # after the wait, in which other threads may tune
            lines = _lines(measured)
            _import(target, theirs)
            _C.table_import([e for e in measured if held.get(_key(e)) != lines[_key(e)]])
        return export_table(path)


def read_table(path: str | os.PathLike[str]) -> list[TableEntry]:
    """The entries of a file; of several for one key, the last. Raises as `import_table`."""
    return parse_table(read_text(path), os.fspath(path))


def parse_table(text: str, label: str) -> list[TableEntry]:
    """The entries of a file's text; of several for one key, the last.

    Raises:
        ValueError: A line is no entry; the message begins with ``label`` and the line's number.
    """
    entries: dict[_Key, TableEntry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = parse_entry(line)
        except ValueError as error:
            raise ValueError(f"{label}, line {number}: {error}") from error
        entries[_key(entry)] = entry
    return list(entries.values())


def _check_replaceable(path: str | os.PathLike[str]) -> None:
    """Check that a file can take the place of what is there.

    Raises:
        TypeError: ``path`` is no path.
        OSError: It is a folder, a device or a pipe.
    """
    check_path(path)
    place = Path(path)
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if place.exists() and not place.is_file():
        raise not_regular(path)


def _import(path: Path, read: list[TableEntry]) -> int:
    count = _C.table_import(read)
    now = _lines(entries())  # in the table's spelling
    _held[path] = {key: now[key] for key in map(_key, read)}
    return count


def _key(entry: TableEntry) -> _Key:
    return entry["problem"], entry["device"], entry["constraints"]


def _lines(entries: Iterable[TableEntry]) -> dict[_Key, str]:
    return {_key(one): entry_line(one) for one in entries}


def entry_line(entry: TableEntry) -> str:
    """An entry as a line of a file."""
    return json.dumps(entry | {"measurements": finite_rows(entry["measurements"])})


def parse_entry(line: str) -> TableEntry:
    """The entry of a line; ValueError if it is none."""
    return check_entry(_parsed(line))


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # many brackets exceed the recursion limit
        reason = getattr(error, "msg", error)
        raise ValueError(f"got {line[:60]!r}, wanted an entry as JSON ({reason})") from error


def check_entry(value: object) -> TableEntry:
    """The entry in canonical texts; ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, wanted an object")
    for name, kind in _ENTRY_FIELDS.items():
        if not isinstance(value.get(name), kind):
            raise ValueError(f"{name} is {value.get(name)!r}, wanted a {kind.__name__}")
    if unknown := sorted(value.keys() - _ENTRY_FIELDS.keys()):
        raise ValueError(f"got the unknown {_fields_text(unknown, _ENTRY_FIELDS)}")
    json.dumps(value, ensure_ascii=False).encode()  # raises for lone surrogates
    value = value | {"problem": _C.canonical_problem(value["problem"])}
    problem = _C.problem_info(value["problem"])
    constraints = _C.canonical_policy(value["constraints"], problem["family"])
    check_constraints_alone(constraints, "constraints")
    value["constraints"] = _C.constraints_text(value["problem"], constraints)
    rows = value["measurements"]
    if not rows:
        raise ValueError("measurements is [], wanted at least one")
    for row in rows:
        _check_measurement(row, problem["op"])
    repeated = [name for name, count in Counter(r["algorithm"] for r in rows).items() if count > 1]
    if repeated:
        raise ValueError(f"got several measurements of {', '.join(repeated)}, wanted one of each")
    return cast("TableEntry", value)


def _check_measurement(row: Any, op: str) -> None:
    """Check one measurement, and make its algorithm's text canonical."""
    if not isinstance(row, dict) or not MEASUREMENT_FIELDS.keys() - {"host_ms"} <= row.keys():
        wanted = ", ".join(MEASUREMENT_FIELDS)
        raise ValueError(f"got the measurement {row!r}, wanted {wanted}")
    if unknown := sorted(row.keys() - MEASUREMENT_FIELDS.keys()):
        fields = _fields_text(unknown, MEASUREMENT_FIELDS)
        raise ValueError(f"got a measurement with the unknown {fields}")
    for name, kinds in MEASUREMENT_FIELDS.items():
        _check_field(name, row.get(name), kinds)
    row["algorithm"] = _C.canonical_algorithm(row["algorithm"], op)
    if row["backend"] != row["algorithm"].partition(":")[0]:
        raise ValueError(f"backend is {row['backend']!r} of {row['algorithm']}")
    _C.check_measurement(row)


def _fields_text(unknown: list[str], known: Iterable[str]) -> str:
    words = [*known]
    near = [word for name in unknown for word in _C.nearest_words(name, words)]
    hint = f" (the nearest: {', '.join(dict.fromkeys(near))})" if near else ""
    return f"fields {', '.join(unknown)}{hint}, wanted {', '.join(words)}"


def _check_field(name: str, value: object, kinds: tuple[type, ...]) -> None:
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if isinstance(value, list):
        fits = fits and all(isinstance(item, str) for item in value)
    most = sys.float_info.max if float in kinds else _MOST
    if isinstance(value, int | float):
        # An algorithm may have an error that is not finite.
        is_error = name == "error" and isinstance(value, float) and not math.isfinite(value)
        fits = fits and (is_error or 0 <= value <= most)
    if not fits:
        wanted = ", ".join("null" if kind is _NONE else kind.__name__ for kind in kinds)
        extent = f", from 0 to {most}" if int in kinds else ""
        raise ValueError(f"{name} is {value!r:.60}, wanted one of {wanted}{extent}")
