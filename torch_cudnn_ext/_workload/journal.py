"""Finished work on disk, so that a run can go on where an earlier one stopped."""

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from torch_cudnn_ext._files import naming, not_regular

T = TypeVar("T")

_BEGINNING = b'{"key": "'  # of every record's line


def _checksum(key: str, record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps([key, record]).encode())


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class Journal:
    """Finished work as JSON lines, one record a line, found again by its key.

    Several processes may add to one file. A last line that was cut off while it was written is
    dropped. Each record has a checksum, since nothing else would show that it was edited.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: A line is no record (the message gives its number), and not the beginning of one
            that was cut off. The file is left as it was.
    """

    def __init__(self, path: str | Path) -> None:
        """Read what is in the file, which need not exist."""
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        with self._locked_file() as file:
            self._read(file)

    @contextmanager
    def _locked_file(self) -> Iterator[BinaryIO]:
        if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise not_regular(self.path)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: BinaryIO) -> None:
        """Take the records, and cut off a last line that is not whole."""
        file.seek(0)
        *lines, last = file.read().split(b"\n")
        if last and (_is_json(last) or not last.startswith(_BEGINNING[: len(last)])):
            lines.append(last)
        for number, line in enumerate(lines, 1):
            if line.strip():
                self._take(line, number)
        if last and last in lines:
            file.write(b"\n")
        elif last:
            file.truncate(file.tell() - len(last))

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line.decode())
            if not isinstance(entry["record"], dict):
                raise TypeError(f"its record is {entry['record']!r:.60}")
            if "sum" in entry:  # other versions wrote none
                if entry["sum"] != _checksum(entry["key"], entry["record"]):
                    raise ValueError("it was changed after it was written")
                self._records[entry["key"]] = entry["record"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            got = line.decode(errors="replace")[:60]
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{self.path}, line {number}: got {got!r}, wanted a finished problem as "
                f"JSON ({why})"
            ) from error

    def get(self, key: str, kind: Callable[..., T]) -> T | None:
        """What ``kind`` makes of the fields of a record, or ``None`` if there is no such record.

        A record with other fields, such as another version's, does not count.
        """
        record = self._records.get(key)
        try:
            return None if record is None else kind(**record)
        except TypeError:
            return None

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, on disk at once.

        Raises:
            OSError: The file cannot be written.
            ValueError: The file ends in a line that is neither a record nor the beginning of one.
        """
        self._records[key] = record
        entry = {"key": key, "sum": _checksum(key, record), "record": record}
        with naming(self.path), self._locked_file() as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # another process was killed while it wrote
                    self._read(file)
            file.write(json.dumps(entry).encode() + b"\n")
