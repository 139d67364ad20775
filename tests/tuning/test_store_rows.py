"""Rows of the tuning store: what they keep, which of several holds, and what is refused."""

import itertools
import json
import math
import random
import zlib
from typing import Any

import pytest
from helpers import LINE
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import H200, WHEN, entry, fields_of, measurement, summed

from torch_cudnn_ext.tuning.store_rows import (
    FORMAT,
    DamagedRowError,
    OtherFormatError,
    head_of,
    holding,
    latest_text,
    now_text,
    parse_row,
    quoted,
    row_line,
    software_of,
)

LATEST = latest_text()


def test_a_row_holds_what_ran_and_what_was_not_tried() -> None:
    rows = [
        measurement(error=math.inf, status="rejected"),
        measurement("cpu:fft", status="unsupported", reason="too small", median_ms=None),
        measurement("cpu:im2col", status="excluded", reason="cuDNN runs on CUDA devices only"),
        measurement("cpu:direct", status="excluded", reason="not tried: the time budget of 1 s"),
    ]
    line = row_line(entry("", None, "", *rows), WHEN, "torch 2")
    kept = json.loads(line)["measurements"]
    assert [row["algorithm"] for row in kept] == ["aten:default", "cpu:direct"]
    assert kept[0]["error"] is None and line.endswith(b"}\n") and line.count(b"\n") == 1


def test_a_row_is_read_as_it_was_written() -> None:
    written = entry()
    line = row_line(written, now_text(), software_of(written["device"])).rstrip()
    head, row = head_of(line, LATEST), parse_row(line)
    assert row.entry == written
    assert row.software.startswith("torch ") and "CUDA" not in row.software
    assert "CUDA" in software_of(H200) and "driver" in software_of(H200)
    key = tuple(quoted(written[name]) for name in ("device", "problem", "constraints"))  # type: ignore[literal-required]
    assert head.key == key and head.when.decode() == row.when


def test_every_flipped_bit_is_found() -> None:
    line = row_line(entry(), WHEN).rstrip()
    for index in range(len(line)):
        changed = bytearray(line)
        changed[index] ^= 1 << random.randrange(8)
        with pytest.raises(DamagedRowError):
            head_of(bytes(changed), LATEST)


def test_clocks_and_energy_are_written_where_they_are_known() -> None:
    known = {
        "clock_low_mhz": 1755, "clock_high_mhz": 1980, "throttled": ["power cap"],
        "energy_mj": 41.5, "energy_spread_mj": 0.25,
    }  # fmt: skip
    unknown = dict.fromkeys(known) | {"throttled": []}
    for fields in (known, unknown):
        line = row_line(entry("", None, "", measurement(**fields)) | {"problem": LINE}, WHEN)
        (read,) = parse_row(line.rstrip()).entry["measurements"]
        assert {name: read[name] for name in known} == fields  # type: ignore[literal-required]
        assert (b"clock" in line) == (b"energy" in line) == (fields is known)


@pytest.mark.parametrize("number", [0, FORMAT + 1, 10**30])
def test_rows_of_other_formats_are_told_from_damaged_ones(number: int) -> None:
    fields = fields_of(row_line(entry(), WHEN)) | {"format": number}
    for changed in (fields, {"format": number, "other": ["fields"]}):
        with pytest.raises(OtherFormatError, match=f"format {str(number)[:20]}.*reads format 1"):
            head_of(summed(changed).rstrip(), LATEST)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b"1", b'"sum"', b'{"sum": 1, "format": 1}', b"[" * 100_000,
     b'{"sum": "00000000"}', b"\xff\xfe", b"\0" * 50],
)  # fmt: skip
def test_foreign_lines_are_no_rows(line: bytes) -> None:
    with pytest.raises(DamagedRowError) as caught:
        head_of(line, LATEST)
    assert type(caught.value) is DamagedRowError


def poisoned(**fields: Any) -> dict[str, Any]:
    """A row's fields; some fields of its measurement are changed."""
    return fields_of(row_line(entry("", None, "", measurement(**fields)), WHEN)) | {
        "problem": entry()["problem"]
    }


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (poisoned(algorithm="cpu:"), "algorithm"),
        (poisoned(algorithm="graph:eng" + "9" * 30, backend="graph"), "eng"),
        (poisoned(median_ms=-1.0), "median_ms is -1.0"),
        (poisoned(median_ms=math.nan), "median_ms is nan"),
        (poisoned(median_ms=math.inf), "median_ms is inf"),
        (poisoned(median_ms=1e300), "median_ms is 1e.300, wanted at most 3600000"),
        (poisoned(median_ms=10**400), "median_ms is 1000"),
        (poisoned(median_ms=None), "median_ms of aten:default is null"),
        (poisoned(median_ms="1"), "median_ms is '1'"),
        (poisoned(host_ms=-0.1), "host_ms is -0.1"),
        (poisoned(samples=-1), "samples is -1"),
        (poisoned(energy_mj=-1.0), "energy_mj is -1.0"),
        (poisoned(clock_low_mhz=1.5), "clock_low_mhz is 1.5"),
        (poisoned(throttled=[3]), "throttled is"),
        (poisoned(samples=2**70), "samples is"),
        (poisoned(workspace_bytes=-5), "workspace_bytes is -5"),
        (poisoned(status="best"), "status"),
        (poisoned(notes=["magic"]), "magic"),
        (poisoned(backend="cpu"), "backend is 'cpu' of aten:default"),
        ({**poisoned(), "problem": "nonsense"}, "nonsense"),
        ({**poisoned(), "constraints": "fwd=cpu:fft"}, "selection"),
        ({**poisoned(), "when": "yesterday"}, "when: got 'yesterday'"),
        ({**poisoned(), "software": 3}, "software: got 3"),
        ({**poisoned(), "problem": f" {LINE}"}, "not canonical"),
        ({**poisoned(), "measurements": []}, "measurements is"),
        ({**poisoned(), "measurements": [measurement(), measurement()]}, "several"),
        ({name: value for name, value in poisoned().items() if name != "device"}, "no device"),
    ],
)  # fmt: skip
def test_impossible_rows_are_refused(fields: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        parse_row(summed(fields).rstrip())


@pytest.mark.parametrize(
    "again", [b'"when": 5', b'"software": 5', b'"problem": "p"', b'"device": ""']
)
def test_a_field_that_occurs_twice_is_refused(again: bytes) -> None:
    body = row_line(entry(), WHEN).rstrip()[20:-1] + b", " + again + b"}"
    line = b'{"sum": "%08x", %s' % (zlib.crc32(body), body)
    head_of(line, LATEST)
    with pytest.raises(ValueError):
        parse_row(line)


def test_a_row_of_a_time_to_come_does_not_hold() -> None:
    with pytest.raises(DamagedRowError, match="when: got '9999-.*to come"):
        head_of(row_line(entry(), "9999-01-01T00:00:00.000000Z").rstrip(), LATEST)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]),
    st.sampled_from(["graph:eng99999", "graph:eng0/k2=999999", "legacy:fft/math=magic", "cpu:x"]),
)  # fmt: skip


@given(st.sampled_from([*measurement()]), _VALUES, st.binary(max_size=3), st.integers(0, 600))
def test_no_line_raises_another_error(name: str, value: Any, junk: bytes, at: int) -> None:
    fields = poisoned() | {"measurements": [measurement() | {name: value}]}
    try:
        parse_row(summed(fields).rstrip())
    except ValueError:
        pass
    line = summed(fields).rstrip()
    for changed in (line[:at] + junk + line[at:], line[:at] + junk + line[at + len(junk) :]):
        body = changed[20:]
        for one in (changed, b'{"sum": "%08x", %s' % (zlib.crc32(body), body)):
            try:
                head_of(one, LATEST)
                parse_row(one)
            except ValueError:
                pass


_LINES = st.lists(
    st.builds(
        lambda ms, minute, constraints: row_line(
            entry("p", "cpu/c/1 thread", constraints, measurement(ms=ms)),
            f"2026-11-28T12:0{minute}:00.000000Z" if minute else "",
        ).rstrip(),
        st.integers(1, 3),
        st.integers(0, 2),
        st.sampled_from(["", "deterministic"]),
    ),
    max_size=6,
)


@given(_LINES, _LINES, _LINES)
def test_merging_is_commutative_associative_and_idempotent(
    one: list[bytes], two: list[bytes], three: list[bytes]
) -> None:
    def merged(*stores: list[bytes]) -> list[bytes]:
        lines = (("", line) for line in itertools.chain(*stores))
        return sorted(line for _, line in holding(lines))

    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) == merged(one) == merged(merged(one))


def test_the_newest_row_holds() -> None:
    lines = [
        ("", row_line(entry("p", "cpu/c/1 thread", "", measurement(ms=ms)), when).rstrip())
        for ms, when in ((1, ""), (2, WHEN), (3, "2026-11-28T11:59:59.999999Z"))
    ]
    assert holding(lines) == [lines[1]]
