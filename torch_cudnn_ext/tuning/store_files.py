"""The files of a tuning store.

A store is a folder with a folder for each device, ``<gpu>-sm90-132/cudnn-9.19.0`` or
``cpu-<model>/2-threads``. In there every process that measures has a file of its own, a *segment*
(``<host>-<pid>-<time>.jsonl``), to which it appends rows. So writers need no lock, and a process
that is killed loses at most the row that it was writing: a last line without an end is skipped.

Compacting replaces segments while their processes may write on. It renames a segment before it
reads it. A writer looks after each write whether its file still has its name. If not, the row may
have come too late, and the writer writes it again, to a new file.

A segment may be compressed (``.jsonl.gz``), as those that come with the package are. No process
appends to such a one.
"""

from __future__ import annotations

import errno
import functools
import gzip
import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch_cudnn_ext._files import append_once, check_path, read_lines
from torch_cudnn_ext.tuning.store_rows import DamagedRowError, Head, Key, head_of, latest_text

SUFFIX = ".jsonl"
_COMPRESSED = f"{SUFFIX}.gz"
_RETIRED = f".retired{SUFFIX}"


class Device(NamedTuple):
    """A device by its fingerprint.

    Attributes:
        hardware: GPU model, compute capability and number of multiprocessors; or the CPU's model.
        version: ``cudnn91900``, or the number of threads of a CPU.
    """

    hardware: str
    version: str

    @property
    def kind(self) -> str:
        """``cpu`` or ``gpu``."""
        return "cpu" if self.hardware.startswith("cpu/") else "gpu"

    @property
    def cudnn(self) -> int | None:
        """The number of a GPU's cuDNN: 91900."""
        number = re.fullmatch(r"cudnn(\d+)", self.version)
        return int(number[1]) if number is not None else None


class Place(NamedTuple):
    """Where a row is. Of two places with one key the larger holds."""

    head: Head
    path: Path
    offset: int
    length: int

    def read(self) -> bytes:
        """The line; raises OSError if it is no longer there."""
        return segment_data(self.path, self.offset, self.length)


class Damage(NamedTuple):
    """A line that is no row."""

    path: Path
    line: int
    error: DamagedRowError


def device_of(fingerprint: str) -> Device:
    """The parts of a fingerprint; of a text that is none the version is empty."""
    hardware, _, version = fingerprint.rpartition("/")
    return Device(hardware, version) if hardware else Device(fingerprint, "")


def difference(asked: str, found: str) -> str | None:
    """In what a device differs from the one asked for, by their fingerprints.

    Returns:
        ``""``: in nothing; ``"other cuDNN"``, on a CPU ``"other threads"``; ``"other device"``; or
        ``None`` if one is a CPU and the other a GPU.
    """
    here, there = device_of(asked), device_of(found)
    if there.kind != here.kind:
        return None
    if there.hardware != here.hardware:
        return "other device"
    version = "other threads" if here.kind == "cpu" else "other cuDNN"
    return "" if there == here else version


def folder_name(fingerprint: str) -> str:
    """The folder of a device, relative to the store."""
    device = device_of(fingerprint)
    hardware, version = device
    if (number := device.cudnn) is not None:
        version = f"cudnn-{number // 10000}.{number // 100 % 100}.{number % 100}"
        hardware = re.sub(r"/sm(\d+)/(\d+)sm$", r"-sm\1-\2", hardware)
    return f"{_name(hardware)}/{_name(version)}"


def _name(text: str) -> str:
    """A text as the name of a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:100] or "unknown"


def device_folders(root: Path) -> list[Path]:
    """The folders of a store that hold segments.

    Raises:
        OSError: The store cannot be read. One that does not exist is empty.
    """
    return [inner for outer in _folders(root) for inner in _folders(outer)]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def segments(folder: Path) -> dict[Path, int]:
    """The segments of a folder with their sizes in bytes.

    Raises:
        OSError: The folder cannot be read. One that does not exist has no segments.
    """
    try:
        with os.scandir(folder) as entries:
            suffixes = SUFFIX, _COMPRESSED
            files = [one for one in entries if one.name.endswith(suffixes) and one.is_file()]
            return {Path(entry.path): entry.stat().st_size for entry in sorted(files, key=_order)}
    except FileNotFoundError:
        return {}


def segment_data(path: Path, offset: int = 0, length: int | None = None) -> bytes:
    """What is in a segment, from an offset on.

    Raises:
        OSError: It cannot be read, or was compressed and is damaged.
    """
    if _is_compressed(path):
        end = None if length is None else offset + length
        return _unpacked(path, path.stat().st_mtime_ns)[offset:end]
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


@functools.lru_cache(maxsize=1)
def _unpacked(path: Path, _changed_ns: int) -> bytes:
    """What is in a compressed segment that was changed at this time."""
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EIO, f"no gzip file: {error}", os.fspath(path)) from error


def _is_compressed(path: Path) -> bool:
    return path.name.endswith(_COMPRESSED)


def lines_of(source: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
    """The lines of a store's folder or of a file, each with its place, less empty ones.

    A last line without an end is left out of a store, in whose segments it is half written.

    Raises:
        TypeError: ``source`` is no path.
        OSError: The store or the file cannot be read.
        ValueError: The file is no text.
    """
    check_path(source)
    path = Path(source)
    if path.is_dir():
        files = [file for folder in device_folders(path) for file in segments(folder)]
        read = [(file, segment_data(file).split(b"\n")[:-1]) for file in files]
    else:
        read = [(path, [line.encode() for line in read_lines(path)])]
    for file, lines in read:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{file}, line {number}", line


def _order(entry: os.DirEntry[str]) -> str:
    return entry.name


class FolderRows:
    """The rows of one folder. Not for several threads at a time.

    Attributes:
        damage: Lines that are no rows.
    """

    def __init__(self, folder: Path) -> None:
        """Take a folder, which need not exist; `refresh` reads it."""
        self.folder = folder
        self.damage: list[Damage] = []
        self._places: dict[Key, list[Place]] = {}
        # The bytes and lines of each segment; of a compressed one the file's.
        self._read: dict[Path, tuple[int, int]] = {}

    def refresh(self) -> None:
        """Read what was added since the last time.

        Raises:
            OSError: The folder or a segment cannot be read. What was read before is known.
        """
        found = segments(self.folder)
        if any(_is_replaced(path, read, found) for path, (read, _) in self._read.items()):
            self._places, self._read, self.damage = {}, {}, []  # it was compacted
        latest = latest_text()
        for path, size in found.items():
            if size > self._read.get(path, (0, 0))[0]:
                self._take(path, size, latest)

    def places(self, key: Key) -> list[Place]:
        """The rows about a key; that which holds is the first."""
        return sorted(self._places.get(key, []), reverse=True)

    def keys(self) -> list[Key]:
        """What there are rows about."""
        return [*self._places]

    def all_places(self) -> Iterator[Place]:
        """All rows, also those that do not hold."""
        for places in self._places.values():
            yield from places

    def _take(self, path: Path, size: int, latest: bytes) -> None:
        offset, number = self._read.get(path, (0, 0))
        try:
            data = segment_data(path, offset)
        except FileNotFoundError:  # it was compacted just now
            return
        *lines, _ = data.split(b"\n")  # what comes after the last end is half written
        for line in lines:
            number += 1
            if line:
                try:
                    head = head_of(line, latest)
                except DamagedRowError as error:
                    self.damage.append(Damage(path, number, error))
                else:
                    place = Place(head, path, offset, len(line))
                    self._places.setdefault(head.key, []).append(place)
            offset += len(line) + 1
        self._read[path] = size if _is_compressed(path) else offset, number


def _is_replaced(path: Path, read: int, found: Mapping[Path, int]) -> bool:
    """Whether a segment was replaced or removed after so many bytes of it were read."""
    size = found.get(path, -1)
    return size < read or (_is_compressed(path) and size != read)


class SegmentWriter:
    """Appends rows to the segments of this process."""

    def __init__(self, root: Path) -> None:
        """Take a store, which need not exist."""
        self.root = root
        self._paths: dict[tuple[str, int], Path] = {}  # by folder and process: one may fork

    def append(self, fingerprint: str, line: bytes) -> None:
        """Append a row for a device; it is in the file when this returns.

        Raises:
            OSError: It cannot be written.
        """
        key = folder_name(fingerprint), os.getpid()
        folder = self.root / key[0]
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            if key not in self._paths:
                self._paths[key] = folder / new_name()
            path = self._paths[key]
            try:
                if append_once(path, line):
                    return
            except OSError:
                del self._paths[key]  # its last line may be half written; the next row begins anew
                raise
            del self._paths[key]


def new_name(suffix: str = SUFFIX) -> str:
    """The name of a new segment of this process, or of another file."""
    return f"{_name(socket.gethostname())[:40]}-{os.getpid()}-{time.time_ns()}{suffix}"


def retire(path: Path) -> Path | None:
    """Rename a segment if it has a writer, who begins another one; ``None`` if it is gone."""
    if path.name.endswith(_RETIRED) or _is_compressed(path):
        return path
    target = path.with_name(f"{path.name.removesuffix(SUFFIX)}-{time.time_ns()}{_RETIRED}")
    try:
        path.rename(target)
    except FileNotFoundError:
        return None
    return target
