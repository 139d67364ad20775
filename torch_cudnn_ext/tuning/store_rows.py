"""Rows of the tuning store: one line each, with the measurements of one problem on one device.

A row is an entry of the tuning table, less the algorithms that are known to be unsupported or
excluded without a run, and with the time, the software and a checksum. Rows are never changed. Of
several for the same device, problem and constraints the newest holds; of those of the same time it
is the one with the larger checksum. So the order in which stores are merged does not matter.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from torch_cudnn_ext.tuning.measure import finite_rows
from torch_cudnn_ext.tuning.store import check_entry

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

FORMAT = 1  # grows when older versions cannot read what newer ones write
MOST_MS = 3.6e6  # a longer time than an hour is no measurement
_FIELDS = ("when", "device", "software", "problem", "constraints", "measurements")
_TEXT = rb'("(?:[^"\\]|\\.)*")'
_SUM_LENGTH = len('{"sum": "01234567", ')
_HEAD = re.compile(
    rb'\{"sum": "([0-9a-f]{8})", "format": (\d+), "when": "([^"\\]*)", "device": %s, '
    rb'"software": %s, "problem": %s, "constraints": %s, ' % ((_TEXT,) * 4)
)
_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_NOT_RUN = ("unsupported", "excluded", "needs a driver")
_NOT_TRIED = "not tried"  # how the reason begins of what a later tuning may measure

# A text of a row is compared as its file has it: a string of JSON, in ASCII.
Key: TypeAlias = tuple[bytes, bytes, bytes]  # device, problem, constraints


class DamagedRowError(ValueError):
    """A line is no row."""


class OtherFormatError(DamagedRowError):
    """A line is a row of another format, which another version of this package wrote."""


class Head(NamedTuple):
    """What the beginning of a line tells. Of two heads with one key the larger holds."""

    when: bytes
    sum: bytes
    device: bytes
    software: bytes
    problem: bytes
    constraints: bytes

    @property
    def key(self) -> Key:
        """What the row is about."""
        return self.device, self.problem, self.constraints


@dataclass(frozen=True)
class Row:
    """A row that was read.

    Attributes:
        when: The time of the measurement in ISO 8601, of UTC; empty if it is not known.
        software: The versions of PyTorch, CUDA and the driver; empty if they are not known.
        entry: What the tuning table keeps.
    """

    when: str
    software: str
    entry: TableEntry


def quoted(text: str) -> bytes:
    """A text as rows have it."""
    return json.dumps(text).encode()


def key_of(device: str, problem: str, constraints: str) -> Key:
    """What a row is about, of canonical texts."""
    return quoted(device), quoted(problem), quoted(constraints)


def now_text() -> str:
    """The present time, as a row has it."""
    return time_text(datetime.now(UTC))


def latest_text() -> bytes:
    """The largest time that a row may have: clocks of machines differ, by less than a day."""
    return time_text(datetime.now(UTC) + timedelta(days=1)).encode()


def software_of(device: str) -> str:
    """The software, other than cuDNN, that times on a device depend on."""
    words = [f"torch {torch.__version__}"]
    if not device.startswith("cpu/"):
        words += [f"CUDA {torch.version.cuda}", f"driver {_driver_version()}"]
    return ", ".join(words)


def row_line(entry: TableEntry, when: str = "", software: str = "") -> bytes:
    """An entry as a line, with its end."""
    kept = [row for row in entry["measurements"] if _is_kept(row)]
    fields: dict[str, Any] = {"format": FORMAT, "when": when}
    fields |= {"device": entry["device"], "software": software, "problem": entry["problem"]}
    fields |= {"constraints": entry["constraints"], "measurements": finite_rows(kept)}
    body = json.dumps(fields).encode()[1:]
    return b'{"sum": "%08x", %s\n' % (zlib.crc32(body), body)


def head_of(line: bytes, latest: bytes) -> Head:
    """The beginning of a line, less its end.

    Args:
        line: The line.
        latest: From `latest_text`.

    Raises:
        OtherFormatError: The row has another format.
        DamagedRowError: The line is no row, was changed, or is of a time that has not come.
    """
    found = _HEAD.match(line)
    if found is None:
        raise _not_read(line)
    checksum, format_text, when, device, software, problem, constraints = found.groups()
    if int(checksum, 16) != zlib.crc32(line[_SUM_LENGTH:]):
        raise DamagedRowError("the line was changed, its checksum differs")
    if int(format_text) != FORMAT:
        raise _other_format(format_text)
    if when > latest:
        raise DamagedRowError(f"when: got {when.decode(errors='replace')!r:.40}, which is to come")
    return Head(when, checksum, device, software, problem, constraints)


def parse_row(line: bytes) -> Row:
    """The row of a line whose head was read.

    Raises:
        ValueError: A field is missing or impossible: an algorithm that the operator does not have,
            or a time that is negative, no number or longer than `MOST_MS`.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:  # many brackets exceed the recursion limit
        raise ValueError("got too many brackets, wanted a row") from error
    if missing := [name for name in _FIELDS if name not in fields]:
        raise ValueError(f"got no {', '.join(missing)}, wanted a row")
    when, software = fields["when"], fields["software"]
    if not isinstance(when, str) or (when and not _WHEN.fullmatch(when)):
        raise ValueError(f"when: got {when!r:.60}, wanted a time such as {now_text()}")
    if not isinstance(software, str):
        raise ValueError(f"software: got {software!r:.60}, wanted a text")
    names = ("problem", "device", "constraints", "measurements")
    entry = check_entry({name: fields[name] for name in names})
    found = _HEAD.match(line)
    key = key_of(entry["device"], entry["problem"], entry["constraints"])
    if found is None or key != (found[4], found[6], found[7]):
        raise ValueError("got texts that are not canonical, or fields twice, wanted a row")
    for row in entry["measurements"]:
        for name in ("median_ms", "spread_ms", "host_ms", "build_ms"):
            value: Any = row.get(name)
            if value is not None and value > MOST_MS:
                raise ValueError(f"{name} is {value!r}, wanted at most {MOST_MS:.0f}")
    return Row(when, software, entry)


def holding(lines: Iterable[bytes]) -> dict[Key, bytes]:
    """Of several lines for one key the one that holds, whatever their order.

    The lines are whole rows without their ends.
    """
    best: dict[Key, tuple[Head, bytes]] = {}
    latest = latest_text()
    for line in lines:
        head = head_of(line, latest)
        best[head.key] = max(best.get(head.key, (head, line)), (head, line))
    return {key: line for key, (_, line) in best.items()}


def _is_kept(row: Measurement) -> bool:
    return row["status"] not in _NOT_RUN or row["reason"].startswith(_NOT_TRIED)


def _not_read(line: bytes) -> DamagedRowError:
    """Why a line has no head that this version knows."""
    try:
        fields = json.loads(line)
        checksum, number = fields["sum"], fields["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return DamagedRowError(f"got {line[:40].decode(errors='replace')!r}, wanted a row")
    if checksum == f"{zlib.crc32(line[_SUM_LENGTH:]):08x}" and number != FORMAT:
        return _other_format(str(number).encode())
    return DamagedRowError("the line was changed, its checksum differs")


def _other_format(number: bytes) -> OtherFormatError:
    got = number[:20].decode(errors="replace")
    return OtherFormatError(f"the row has format {got}, this version reads format {FORMAT}")


def time_text(time: datetime) -> str:
    """A time of UTC, as a row has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _driver_version() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return found[0] if found else "unknown"
