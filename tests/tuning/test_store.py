"""Rankings in files: reading, merging, permissions and malformed files."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import LINE, OTHER
from store_helpers import changed, entry, fields_of, measurement, summed

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._files import append_lines
from torch_cudnn_ext.tuning import store, store_rows
from torch_cudnn_ext.tuning.store import read_rows
from torch_cudnn_ext.tuning.store_rows import Row, row_line
from torch_cudnn_ext.tuning.store_upkeep import holding_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry


def test_links_in_a_circle_are_no_file_of_choices(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    for function in (tuning.export_table, tuning.merge_table):
        with pytest.raises(OSError, match="symbolic links"):
            function(one)
    assert one.is_symlink() and other.is_symlink()


def test_choices_travel_through_a_file(tmp_path: Path) -> None:
    best = tuning.tune([LINE, OTHER], device="cpu")
    assert set(best) == {LINE, OTHER}
    assert all(row["status"] == "ok" for row in best.values())
    path = tmp_path / "choices.jsonl"
    before = tuning.entries()
    assert tuning.export_table(path) == len(before) == 2
    tuning.clear()
    assert tuning.entries() == []
    assert tuning.import_table(path) == 2
    by_problem = {entry["problem"]: entry for entry in tuning.entries()}
    assert by_problem == {entry["problem"]: entry for entry in before}
    chosen = _C.decide(LINE, "cpu", "autotune")
    assert chosen["algorithm"] == best[LINE]["algorithm"]
    assert chosen["why"] in ("tuned", "cached")
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]


def test_a_link_to_choices_stays_one(tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    shared, link = tmp_path / "shared" / "choices.jsonl", tmp_path / "link.jsonl"
    shared.parent.mkdir()
    shared.touch()
    link.symlink_to(shared)
    assert tuning.merge_table(link) == tuning.export_table(link) == 1
    assert link.is_symlink() and len(read_rows(shared)) == 1


def test_choices_are_read_with_and_without_the_host_s_time(tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu")
    (entry,) = before = tuning.entries()
    path = tmp_path / "choices.jsonl"
    for host_ms in (None, 0.25):
        for row in entry["measurements"]:
            row["host_ms"] = host_ms
        path.write_bytes(Row("", "", entry).line())
        tuning.clear()
        assert tuning.import_table(path) == 1
    assert tuning.entries() == before
    without = re.sub('"host_ms": [^,]*, ', "", path.read_text()[20:])
    path.write_text(changed("x" * 20 + without, str))
    assert tuning.import_table(path) == 1
    assert all(row["host_ms"] is None for row in tuning.entries()[0]["measurements"])


def row_of(entry: TableEntry, when: str) -> Row:
    return Row(when, "torch 2", entry)


def write(path: Path, *rows: Row) -> None:
    path.write_bytes(b"".join(row.line() for row in rows))


EARLY, LATE = "2001-01-01T00:00:00.000000Z", store_rows.latest_text().decode()


def test_a_merge_gives_both_the_newer_of_each(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune([LINE, OTHER], device="cpu", time_budget_s=0.1)
    assert tuning.merge_table(path) == tuning.merge_table(path) == 2
    rows = {row.entry["problem"]: row for row in read_rows(path)}
    assert all(EARLY < row.when < LATE and "torch" in row.software for row in rows.values())
    assert path.read_bytes().count(b"\n") == 2  # what is known is not written again
    best = [measurement("cpu:im2col", 0.5)]
    newer = row_of(rows[LINE].entry | {"measurements": best}, LATE)  # type: ignore[typeddict-item]
    older = row_of(rows[OTHER].entry | {"measurements": best}, EARLY)  # type: ignore[typeddict-item]
    write(path, newer, older)
    assert tuning.merge_table(path) == 2
    wanted = {LINE: newer.entry, OTHER: rows[OTHER].entry}
    assert {entry["problem"]: entry for entry in tuning.entries()} == wanted
    assert {row.entry["problem"]: row.entry for row in read_rows(path)} == wanted
    tuning.import_table(path)
    size = path.stat().st_size
    assert tuning.merge_table(path) == 2 and path.stat().st_size == size
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="line 1"):
        tuning.merge_table(path)
    assert path.read_text() == "nonsense"


def test_what_is_tuned_while_a_file_is_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    (row,) = read_rows(path)
    newer = row_of(row.entry | {"measurements": row.entry["measurements"][:1]}, LATE)

    def reads(path: Path) -> list[Row]:
        store.take_rows([newer])
        return [row]

    monkeypatch.setattr(store, "read_rows", reads)
    tuning.merge_table(path)
    assert tuning.entries() == [newer.entry] and read_rows(path)[0].entry == newer.entry


def test_a_store_in_a_folder_is_read_and_merged_with(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    assert tuning.merge_table(folder) == tuning.merge_table(folder) == 1
    (row,) = holding_rows(folder)
    tuning.clear()
    assert tuning.import_table(folder) == 1 and tuning.entries() == [row.entry]
    with pytest.raises(IsADirectoryError):
        tuning.export_table(folder)


def test_of_equal_keys_the_newest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    write(path, row_of(entry, LATE), row_of(entry, EARLY), row_of(entry, ""))
    assert [row.when for row in read_rows(path)] == [LATE]
    first = entry["measurements"][0]
    for wrong, reason in (
        ([first | {"backend": "graph"}], "backend is 'graph' of "),
        ([first] * 2, "several measurements of "),
    ):
        write(path, row_of(entry | {"measurements": wrong}, LATE))  # type: ignore[typeddict-item]
        with pytest.raises(ValueError, match=f"line 1: (got )?{reason}"):
            read_rows(path)


def test_a_number_that_is_none_is_no_other_ranking(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    first = entry["measurements"][0] | {"error": math.nan}
    store.take_rows([row_of(entry | {"measurements": [first]}, LATE)])  # type: ignore[typeddict-item]
    tuning.merge_table(path)
    assert "NaN" not in path.read_text()  # which is not JSON
    size = path.stat().st_size
    tuning.import_table(path)
    tuning.merge_table(path)
    assert path.stat().st_size == size


def test_processes_that_add_choices_at_once_lose_none(tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    path = tmp_path / "choices.jsonl"
    children = []
    for number in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            added = 0
            signal.alarm(60)  # rather than to wait for ever
            try:
                for i in range(50):
                    _C.table_import([entry | {"device": f"device {number} round {i}"}])
                    if i % 10 == 9:
                        added = tuning.merge_table(path)
            finally:
                os._exit(added == 0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(read_rows(path)) == 8 * 50 + 1  # what was there at the fork is one


@pytest.mark.parametrize("size", [1, 40, 300, -2])
def test_a_writer_that_is_killed_costs_its_row(tmp_path: Path, size: int) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    whole = path.read_bytes()
    other = tmp_path / "other.jsonl"
    other.write_bytes(whole + row_of(entry(), LATE).line()[:size])
    assert len(read_rows(other)) == 1
    tuning.tune(OTHER, device="cpu", time_budget_s=0.1)
    assert tuning.merge_table(other) == len(read_rows(other)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2"),
        ("[]", "line 2: got '\\[\\]', wanted a row"),
        (summed({"format": 9}).decode(), "line 2: the row has format 9"),
        (row_line({**entry(), "measurements": []}).decode(), r"line 2: measurements is \[\]"),
    ],
)
def test_a_malformed_file_changes_nothing(tmp_path: Path, line: str, message: str) -> None:
    tuning.tune(LINE, device="cpu")
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    path.write_text(path.read_text() + line.rstrip() + "\n")
    tuning.reset()
    with pytest.raises(ValueError, match=message):
        tuning.import_table(path)
    assert tuning.entries() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", 5),
        ("algorithm", None),
        ("backend", [1]),
        ("deterministic", "x"),
        ("samples", -1),
        ("samples", True),
        ("workspace_bytes", -1),
        ("workspace_bytes", 1.5),
        ("median_ms", "1"),
        ("median_ms", 10**400),
        ("spread_ms", float("nan")),
        ("build_ms", -1.0),
        ("notes", None),
        ("notes", [1]),
        ("workspace_bytes", 10**30),
        ("samples", 2**70),
        ("error", 10**400),
        ("status", "weird"),
    ],
)
def test_a_measurement_of_other_types_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    tuning.tune(LINE, device="cpu")
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    row = fields_of(path.read_bytes())
    row["measurements"][0][field] = value
    path.write_bytes(summed(row))
    tuning.reset()
    with pytest.raises(ValueError, match=f"line 1: {field} is .*, wanted one of "):
        tuning.import_table(path)
    assert tuning.entries() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"constraints": "', '"constraints": "foo=bar;'), "'foo' is unk"),
        (lambda text: text.replace('"source": "', '"source": "\\ud800', 1), "surrogates"),
        (lambda text: re.sub(r'"notes": \[.*?\]', '"notes": ["zork"]', text), "zork"),
        (lambda text: re.sub(r'"median_ms": [\d.e-]+', '"median_ms": null', text), "is null, want"),
    ],
)
def test_a_fault_is_told_with_its_line(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    tuning.tune(LINE, device="cpu", policy="backends=aten", time_budget_s=0.1)
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    text = path.read_text()
    path.write_text(f"{text}{changed(text, lambda body: change(body.replace(LINE, OTHER)))}")
    tuning.reset()
    for read in (tuning.import_table, tuning.merge_table, read_rows):
        with pytest.raises(ValueError, match=f"choices.jsonl, line 2: .*{message}"):
            read(path)
    assert tuning.entries() == []


def test_a_pipe_or_a_device_is_no_file_of_choices(tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, Path("/dev/null")):
        for write in (tuning.merge_table, tuning.export_table):
            with pytest.raises(OSError, match=f"Not a regular file: '{path}'"):
                write(path)
    assert pipe.is_fifo() and link.is_symlink() and not Path("/dev/null").is_file()
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", "link"}


@pytest.mark.parametrize("wrong", ["nonsense", "legacy:nonsense", "legacy:fft/k=1"])
def test_a_choice_of_no_such_algorithm_is_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.reset()
    _C.measure(LINE, "cpu", "", min_samples=1)
    tuning.export_table(path)
    whole = path.read_text()
    path.write_text(changed(whole, lambda text: text.replace('"cpu:direct"', json.dumps(wrong))))
    assert path.read_text() != whole
    with pytest.raises(ValueError, match=r"choices.jsonl, line 1: algorithm "):
        tuning.import_table(path)


def test_an_export_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    tuning.export_table(tmp_path / "choices.jsonl")
    (tmp_path / "other").touch()
    assert (tmp_path / "choices.jsonl").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_is_written_anew_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    path.touch(0o600)
    tuning.export_table(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unwritable_export_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    path.write_text("old\n")

    def refuse(source: str, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        tuning.export_table(path)
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]


_APPENDS = """
import sys
from store_helpers import WHEN, entry
from torch_cudnn_ext._files import append_lines
from torch_cudnn_ext.tuning.store_rows import row_line

for number in range(10**9):
    append_lines(sys.argv[1], row_line(entry(device=f"{sys.argv[2]} {number}"), WHEN))
    print(number, flush=True)
"""


def test_what_was_appended_outlives_writers_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    search = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    kept: list[str] = []
    for turn in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", _APPENDS, path, f"{turn}-{number}"],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(3)
        ]
        for number, writer in enumerate(writers):
            assert writer.stdout is not None and writer.stdout.readline() == "0\n"
            time.sleep(random.uniform(0, 0.02))
            writer.kill()
            said, _ = writer.communicate()
            kept += [f"{turn}-{number} {one}" for one in ["0", *said.splitlines()]]
        with path.open("ab") as file:  # and as if one was cut off each time
            file.write(row_line(entry())[: random.randrange(1, 600)])
    found = {row.entry["device"] for row in read_rows(path)}
    assert found >= {*kept} and len(found) <= len(kept) + 9


def test_a_flipped_bit_changes_no_ranking(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    rows = [row_of(entry(LINE), EARLY), row_of(entry(OTHER), LATE)]
    write(path, *rows)
    whole = path.read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        with suppress(ValueError):
            assert all(row in rows for row in read_rows(path))


def test_rows_are_appended_to_the_file_that_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    write(path, row_of(entry(LINE), EARLY))
    writes = os.write

    def replaced_first(file: int, data: bytes) -> int:
        monkeypatch.undo()
        other = tmp_path / "other"
        write(other, row_of(entry(LINE), LATE))
        other.replace(path)  # as an export does
        return writes(file, data)

    monkeypatch.setattr(os, "write", replaced_first)
    append_lines(path, row_of(entry(OTHER), EARLY).line())
    assert {row.entry["problem"]: row.when for row in read_rows(path)} == {LINE: LATE, OTHER: EARLY}
