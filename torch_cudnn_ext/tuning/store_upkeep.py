"""Tending a tuning store: what is in it, checking, merging, compacting and pruning."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch_cudnn_ext._files import write_bytes
from torch_cudnn_ext.tuning.store_files import (
    Damage,
    FolderRows,
    Place,
    SegmentWriter,
    device_folders,
    lines_of,
    new_name,
    retire,
    segment_data,
    segments,
)
from torch_cudnn_ext.tuning.store_rows import (
    DamagedRowError,
    Head,
    Key,
    OtherFormatError,
    Row,
    TornRowError,
    head_of,
    is_result,
    latest_text,
    parse_row,
)


class FolderSummary(NamedTuple):
    """What the folder of a device holds.

    Attributes:
        device: The fingerprint; the folder's name if it has no rows.
        problems: Problems with their constraints.
        rows: Rows, also those that a newer one replaces.
        segments: Files.
        bytes: Of these files.
        newest: The time of the newest row; empty if it is not known.
        damaged: Lines that are no rows.
    """

    device: str
    problems: int
    rows: int
    segments: int
    bytes: int
    newest: str
    damaged: int


class FolderHeads(NamedTuple):
    """The rows in the folder of a device by what their beginnings tell."""

    device: str
    heads: list[Head]


def heads_by_device(root: Path) -> list[FolderHeads]:
    """All rows of a store; raises OSError if it cannot be read."""
    found: dict[bytes, list[Head]] = {}
    for rows in _all_folders(root):
        for place in rows.all_places():
            found.setdefault(place.head.device, []).append(place.head)
    return [FolderHeads(json.loads(device), heads) for device, heads in sorted(found.items())]


def summaries(root: Path) -> list[FolderSummary]:
    """What a store holds, by device; raises OSError if it cannot be read."""
    found = []
    for rows in _all_folders(root):
        files = segments(rows.folder)
        heads = [place.head for place in rows.all_places()]
        devices = {row.entry["device"] for row in _rows_at(_holding(rows)[:1])}
        found.append(
            FolderSummary(
                next(iter(devices), os.fspath(rows.folder.relative_to(root))),
                len(rows.keys()),
                len(heads),
                len(files),
                sum(files.values()),
                max((head.when for head in heads), default=b"").decode(),
                len(rows.damage),
            )
        )
    return found


def holding_rows(root: Path, containing: str = "") -> list[Row]:
    """The rows of a store that hold, of devices, software and problems with a text in them.

    What is damaged or impossible is left out; `verify` tells of it. Raises OSError.
    """
    rows = [row for folder in _all_folders(root) for row in _rows_at(_holding(folder))]
    return [
        row
        for row in rows
        if any(containing in text for text in (row.entry["problem"], row.entry["device"]))
        or containing in row.software
    ]


def verify(root: Path) -> tuple[int, list[Damage]]:
    """How many rows of a store are good, and the lines that are not; raises OSError."""
    good, bad = 0, []
    for rows in _all_folders(root):
        bad += rows.damage
        for place in rows.all_places():
            try:
                parse_row(place.read())
                good += 1
            except FileNotFoundError:  # compacted just now
                continue
            except (ValueError, RuntimeError) as error:
                data = _data(place.path)[: place.offset]
                bad.append(Damage(place.path, data.count(b"\n") + 1, DamagedRowError(str(error))))
    return good, sorted(bad, key=lambda one: one[:2])


# Merging.


class Merged(NamedTuple):
    """What a merge did.

    Attributes:
        added: Rows that hold in the store now.
        known: Rows that the store had, or had newer ones for.
        left_out: Lines that are no rows, with the file.
    """

    added: int
    known: int
    left_out: list[str]


def merge(
    root: Path,
    sources: Iterable[str | os.PathLike[str]],
    change: Callable[[Row], Row] | None = None,
) -> Merged:
    """Add the rows of other stores or of files to a store.

    Of two rows for the same device, problem and constraints the newer holds.

    Args:
        root: The store.
        sources: Folders of stores, or files.
        change: What is added for a row that was read; by default the row.

    Raises:
        OSError: A source cannot be read, or the store not be written.
        ValueError: A file is no text.
    """
    writer = SegmentWriter(root)
    held = {key: place.head for key, place in _holding_places(root).items()}
    added, known, left_out = 0, 0, []
    for where, line in (one for source in sources for one in lines_of(source)):
        try:
            head = head_of(line, latest_text())
            if is_result(line):
                continue
            row = parse_row(line)
            if change is not None:
                line = change(row).line().removesuffix(b"\n")
                head = head_of(line, latest_text())
        except TornRowError:
            continue
        except (ValueError, RuntimeError) as error:
            left_out.append(f"{where}: {error}")
            continue
        if head.key in held and held[head.key] >= head:
            known += 1
            continue
        writer.append(row.entry["device"], line + b"\n")
        held[head.key] = head
        added += 1
    return Merged(added, known, left_out)


# Compacting.


class Compacted(NamedTuple):
    """What compacting did, or would do.

    Attributes:
        rows: How many rows there were.
        kept: How many are left.
        damaged: Lines that were no rows, and are gone.
    """

    rows: int
    kept: int
    damaged: int


def compact(
    root: Path, keeps: Callable[[Head], bool] = lambda head: True, dry_run: bool = False
) -> Compacted:
    """Leave the rows that hold, in one segment a device.

    Processes may write to the store meanwhile. If this one is killed, every row is still there.
    Rows of other formats stay as they are.

    Args:
        root: The store.
        keeps: Whether a row that holds is kept.
        dry_run: Only count.

    Raises:
        OSError: The store cannot be read or written.
    """
    total = Compacted(0, 0, 0)
    for folder in device_folders(root):
        paths = [*segments(folder)]
        if not dry_run:
            paths = [retired for path in paths if (retired := retire(path)) is not None]
        done = _compact_folder(folder, paths, keeps, dry_run)
        total = Compacted(*(a + b for a, b in zip(total, done, strict=True)))
    return total


def _compact_folder(
    folder: Path, paths: list[Path], keeps: Callable[[Head], bool], dry_run: bool
) -> Compacted:
    """Compact segments that no process writes to any more.

    If another process compacts the folder too, it reads some of them as well. Its file has their
    rows when they are gone.
    """
    best: dict[Key, tuple[Head, bytes]] = {}
    others: list[bytes] = []
    rows = damaged = 0
    latest = latest_text()
    for path in paths:
        for line in filter(None, _data(path).split(b"\n")[:-1]):
            try:
                head = head_of(line, latest)
            except OtherFormatError:
                others.append(line)
            except DamagedRowError:
                damaged += 1
            else:
                rows += 1
                best[head.key] = max(best.get(head.key, (head, line)), (head, line))
    kept = [line for _, (head, line) in sorted(best.items()) if keeps(head)]
    if not dry_run:
        if lines := kept + others:
            write_bytes(folder / new_name(), b"".join(line + b"\n" for line in lines))
        for path in paths:
            path.unlink(missing_ok=True)
    return Compacted(rows, len(kept), damaged)


# Reading.


def _data(path: Path) -> bytes:
    """What is in a file; nothing if it was compacted just now."""
    try:
        return segment_data(path)
    except FileNotFoundError:
        return b""


def _all_folders(root: Path) -> Iterator[FolderRows]:
    for folder in device_folders(root):
        rows = FolderRows(folder)
        rows.refresh()
        yield rows


def _holding(rows: FolderRows) -> list[Place]:
    return [rows.places(key)[0] for key in sorted(rows.keys())]


def _holding_places(root: Path) -> dict[Key, Place]:
    return {place.head.key: place for rows in _all_folders(root) for place in _holding(rows)}


def _rows_at(places: Iterable[Place]) -> Iterator[Row]:
    """The rows at places, less impossible ones."""
    for place in places:
        try:
            yield parse_row(place.read())
        except (ValueError, RuntimeError, FileNotFoundError):
            continue
