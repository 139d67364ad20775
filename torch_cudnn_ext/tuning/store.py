"""The tuning table, measured rankings in memory, and stores and files that hold it.

Rankings are written to files as rows of the tuning store (`store_rows`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import append_lines, check_path, not_regular, write_text
from torch_cudnn_ext.tuning.store_files import SegmentWriter, lines_of
from torch_cudnn_ext.tuning.store_rows import Key, Row, key_of, parse_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry

_origins: dict[Key, tuple[str, str]] = {}  # when and with what software a ranking was measured
_observers: list[Callable[[Row], None]] = []


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
    _origins.clear()


def reset() -> None:
    """Forget every measurement in memory and every plan, and release cached GPU memory.

    The plans of another thread, such as autograd's for a GPU, are dropped at its next call.
    """
    clear()
    _C.plan_cache_clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def export_table(path: str | os.PathLike[str]) -> int:
    """Write the tuning table to a file; after an error the file is as it was before.

    The file holds rows of the tuning store, which ``store merge`` adds to a store.

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
    rows = held_rows()
    write_text(path, b"".join(row.line() for row in rows).decode())
    return len(rows)


def import_table(path: str | os.PathLike[str]) -> int:
    """Read rankings and add them to the tuning table.

    If both have a problem, the file's ranking replaces the table's. Entries of other devices and
    cuDNN versions are kept but not used here.

    Args:
        path: A file of `export_table`, `merge_table` or ``--table``, or the folder of a store.

    Returns:
        The number of entries that were read.

    Raises:
        ValueError: A line is no row (the message gives its number); nothing is changed then.
        OSError: The file cannot be read.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="autotune")
        >>> count = export_table("tuning.jsonl")
        >>> clear()
        >>> import_table("tuning.jsonl")
        1
    """
    rows = read_rows(path)
    take_rows(rows)
    return len(rows)


def merge_table(path: str | os.PathLike[str]) -> int:
    """Merge the tuning table and a file: afterwards both hold what either held.

    If both have a problem, the newer ranking holds. Rows are only appended to the file, so that
    several processes of one machine may merge with it at the same time. Processes of several
    machines merge with the folder of a store, where each has files of its own.

    Args:
        path: A file, which need not exist, or the folder of a store.

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
    check_path(path)
    is_store = Path(path).is_dir()
    if not is_store:
        append_lines(path, b"")  # complains of what is no regular file
    theirs = {row.key: row for row in read_rows(path)}
    ours = {row.key: row for row in held_rows()}  # after reading, while other threads may tune
    take_rows(row for row in theirs.values() if _is_news(row, ours))
    news = [row for row in ours.values() if _is_news(row, theirs)]
    if is_store:
        writer = SegmentWriter(Path(path))
        for row in news:
            writer.append(row.entry["device"], row.line())
    else:
        append_lines(path, b"".join(row.line() for row in news))
    return len({*theirs, *ours})


def _is_news(row: Row, known: dict[Key, Row]) -> bool:
    return row.key not in known or row.when > known[row.key].when


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rankings of a file or a store, of each key the newest. Raises as `import_table`."""
    return parse_rows(lines_of(path))


def take_rows(rows: Iterable[Row]) -> None:
    """Add rows to the tuning table, in place of what it has for the same keys."""
    taken = list(rows)
    _C.table_import([row.entry for row in taken])
    for row in taken:
        note_origin(row)


def take_newer(row: Row) -> None:
    """Add a row to the tuning table unless that has one which is as new."""
    if row.key not in _origins or row.when > _origins[row.key][0]:
        take_rows([row])


def held_rows() -> list[Row]:
    """The tuning table as rows; of entries without a known origin the time is empty."""
    return [Row(*_origins.get(_key(entry), ("", "")), entry) for entry in entries()]


def note_origin(row: Row) -> None:
    """Remember where a ranking of the table is from, and tell the observers of it."""
    _origins[row.key] = row.when, row.software
    for observer in _observers:
        observer(row)


def observe(observer: Callable[[Row], None]) -> None:
    """Have a function called with every ranking that is measured, found or imported."""
    _observers.append(observer)


def _key(entry: TableEntry) -> Key:
    return key_of(entry["device"], entry["problem"], entry["constraints"])


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
