"""Rows of stores and files: one line each, with the measurements of one problem on one device.

A row is an entry of the tuning table with the time, the software and a checksum. Rows are never
changed. Of several for the same device, problem and constraints the newest holds; of those of the
same time it is the one with the larger checksum. So the order in which stores are merged does not
matter.

What a command finished (`journal`) is a row too, with the command's settings as its constraints and
a result instead of measurements.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning.measure import check_constraints_alone, finite_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

FORMAT = 1  # grows when older versions cannot read what newer ones write
MOST_MS = 3.6e6  # a longer time than an hour is no measurement
_FIELDS = ("when", "device", "software", "problem", "constraints", "measurements")
_TEXT = rb'("(?:[^"\\]|\\.)*")'
_BEGINNING = b'{"sum": "'
_SUM_LENGTH = len('{"sum": "01234567", ')
_HEAD = re.compile(
    rb'\{"sum": "([0-9a-f]{8})", "format": (\d+), "when": "([^"\\]*)", "device": %s, '
    rb'"software": %s, "problem": %s, "constraints": %s, ' % ((_TEXT,) * 4)
)
_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_NOT_RUN = ("unsupported", "excluded", "needs a driver")
_NOT_TRIED = "not tried"  # how the reason begins of what a later tuning may measure
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
    "host_ms": (*_NUMBER, _NONE),
    "samples": (int,),
    "error": (*_NUMBER, _NONE),
    "build_ms": _NUMBER,
    "clock_low_mhz": (int, _NONE),
    "clock_high_mhz": (int, _NONE),
    "throttled": (list,),
    "energy_mj": (*_NUMBER, _NONE),
    "energy_spread_mj": (*_NUMBER, _NONE),
}
# What rows may lack: what earlier versions did not write, and what is left out if it is not known.
_EARLIER = ("host_ms",)
_LEFT_OUT = ("clock_low_mhz", "clock_high_mhz", "throttled", "energy_mj", "energy_spread_mj")

# A text of a row is compared as its file has it: a string of JSON, in ASCII.
Key: TypeAlias = tuple[bytes, bytes, bytes]  # device, problem, constraints


class DamagedRowError(ValueError):
    """A line is no row."""


class TornRowError(DamagedRowError):
    """A line is the beginning of a row: its writer was killed, or the disk was full."""


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
        software: The versions of PyTorch, CUDA and the driver, and the power that the GPU may
            take; empty if they are not known.
        entry: What the tuning table keeps.
    """

    when: str
    software: str
    entry: TableEntry

    @property
    def key(self) -> Key:
        """What the row is about."""
        return key_of(self.entry["device"], self.entry["problem"], self.entry["constraints"])

    @property
    def about(self) -> str:
        """The same as a text."""
        return " | ".join(self.entry[name] for name in ("problem", "device", "constraints"))

    def line(self) -> bytes:
        """The row as a line, with its end."""
        return row_line(self.entry, self.when, self.software, whole=True)


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
        words += [f"power limit {limit:.0f} W" for limit in _power_limits(device)]
    return ", ".join(words)


@cache
def _power_limits(device: str) -> list[float]:
    """How much power the first GPU with a fingerprint may take; nothing if it is not known."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (f"cuda:{i}" for i in range(count) if _C.device_fingerprint(f"cuda:{i}") == device)
    limits = (_C.device_state(place)["power_limit_w"] for place in found)
    return [*filter(None, limits)][:1]


def row_line(entry: TableEntry, when: str = "", software: str = "", whole: bool = False) -> bytes:
    """An entry as a line, with its end.

    It leaves out algorithms that are known to be unsupported or excluded without a run, unless it
    is to be ``whole``.
    """
    kept = [row for row in entry["measurements"] if whole or is_kept(row)]
    about = entry["device"], entry["problem"], entry["constraints"]
    written = [
        {name: value for name, value in row.items() if value or name not in _LEFT_OUT}
        for row in finite_rows(kept)
    ]
    return _line(when, software, about, {"measurements": written})


def result_line(about: tuple[str, str, str], result: dict[str, Any]) -> bytes:
    """A finished result as a line, with its end.

    Args:
        about: The device, the problem, and the command with its settings.
        result: What JSON can hold.
    """
    return _line(now_text(), software_of(about[0]), about, {"result": result})


def _line(when: str, software: str, about: tuple[str, str, str], content: dict[str, Any]) -> bytes:
    device, problem, constraints = about
    fields = {"format": FORMAT, "when": when, "device": device, "software": software}
    fields |= {"problem": problem, "constraints": constraints, **content}
    body = json.dumps(fields).encode()[1:]
    return b'{"sum": "%08x", %s\n' % (zlib.crc32(body), body)


def head_of(line: bytes, latest: bytes) -> Head:
    """The beginning of a line, less its end.

    Args:
        line: The line.
        latest: From `latest_text`.

    Raises:
        OtherFormatError: The row has another format.
        TornRowError: The line is the beginning of a row.
        DamagedRowError: The line is no row, was changed, or is of a time that has not come.
    """
    found = _HEAD.match(line)
    if found is None:
        raise _not_read(line)
    checksum, format_text, when, device, software, problem, constraints = found.groups()
    if int(checksum, 16) != zlib.crc32(line[_SUM_LENGTH:]):
        raise _not_read(line)
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
    entry = check_entry({name: fields[name] for name in _ENTRY_FIELDS})
    found = _HEAD.match(line)
    key = key_of(entry["device"], entry["problem"], entry["constraints"])
    if found is None or key != (found[4], found[6], found[7]):
        raise ValueError("got texts that are not canonical, or fields twice, wanted a row")
    for row in entry["measurements"]:
        for name in ("median_ms", "spread_ms", "host_ms", "build_ms"):
            value: Any = row[name]
            if value is not None and value > MOST_MS:
                raise ValueError(f"{name} is {value!r}, wanted at most {MOST_MS:.0f}")
    return Row(when, software, entry)


def heads_of(lines: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, Head, bytes]]:
    """Lines with their places, and what their beginnings tell; less those that were cut off.

    Raises:
        ValueError: A line is no row; the message begins with its place.
    """
    latest = latest_text()
    for where, line in lines:
        try:
            yield where, head_of(line, latest), line
        except TornRowError:
            continue
        except DamagedRowError as error:
            raise ValueError(f"{where}: {error}") from error


def holding(lines: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Of each key the line that holds, whatever their order; results are left out.

    The lines, without their ends, have their places. Raises as `heads_of`.
    """
    best: dict[Key, tuple[Head, str, bytes]] = {}
    for where, head, line in heads_of(lines):
        if not is_result(line):
            best[head.key] = max(best.get(head.key, (head, where, line)), (head, where, line))
    return [(where, line) for _, where, line in best.values()]


def parse_rows(lines: Iterable[tuple[str, bytes]]) -> list[Row]:
    """The rows that hold, of lines with their places.

    Raises:
        ValueError: A line is no row, or holds and is impossible; the message begins with its place.
    """
    rows = []
    for where, line in holding(lines):
        try:
            rows.append(parse_row(line))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{where}: {error}") from error
    return rows


def is_result(line: bytes) -> bool:
    """Whether a line whose head was read holds a finished result instead of measurements."""
    found = _HEAD.match(line)
    return found is not None and line.startswith(b'"result": ', found.end())


def is_not_tried(row: Measurement) -> bool:
    """Whether a measurement was left for a later tuning."""
    return row["status"] in _NOT_RUN and row["reason"].startswith(_NOT_TRIED)


def is_kept(row: Measurement) -> bool:
    """Whether a row of a store has the measurement."""
    return row["status"] not in _NOT_RUN or is_not_tried(row)


def _not_read(line: bytes) -> DamagedRowError:
    """Why a line has no head that this version knows."""
    try:
        fields = json.loads(line)
        checksum, number = fields["sum"], fields["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        is_begun = bool(line) and line.startswith(_BEGINNING[: len(line)])
        if is_begun and isinstance(error, json.JSONDecodeError):
            if not line.endswith(b"}") or error.pos >= len(line):
                return TornRowError("the line was cut off")
        got = line[:40].decode(errors="replace")
        return DamagedRowError(f"got {got!r}, wanted a row of the tuning store")
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


# Checking.


def check_entry(value: object) -> TableEntry:
    """The entry in canonical texts; ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, wanted an object")
    for name, kind in _ENTRY_FIELDS.items():
        if not isinstance(value.get(name), kind):
            raise ValueError(f"{name} is {value.get(name)!r}, wanted a {kind.__name__}")
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
    may_lack = {*_EARLIER, *_LEFT_OUT}
    if not isinstance(row, dict) or not MEASUREMENT_FIELDS.keys() - may_lack <= row.keys():
        wanted = ", ".join(MEASUREMENT_FIELDS)
        raise ValueError(f"got the measurement {row!r}, wanted {wanted}")
    if unknown := sorted(row.keys() - MEASUREMENT_FIELDS.keys()):
        near = [word for name in unknown for word in _C.nearest_words(name, [*MEASUREMENT_FIELDS])]
        hint = f" (the nearest: {', '.join(dict.fromkeys(near))})" if near else ""
        raise ValueError(
            f"got a measurement with the unknown fields {', '.join(unknown)}{hint}, wanted "
            f"{', '.join(MEASUREMENT_FIELDS)}"
        )
    for name in may_lack - row.keys():
        row[name] = [] if list in MEASUREMENT_FIELDS[name] else None
    for name, kinds in MEASUREMENT_FIELDS.items():
        _check_field(name, row[name], kinds)
    row["algorithm"] = _C.canonical_algorithm(row["algorithm"], op)
    if row["backend"] != row["algorithm"].partition(":")[0]:
        raise ValueError(f"backend is {row['backend']!r} of {row['algorithm']}")
    _C.check_measurement(row)


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
