"""Tuning stores: reading, merging, permissions and malformed files."""

import fcntl
import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import LINE, OTHER

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext.analysis.profile import profile_of_table
from torch_cudnn_ext.tuning.store import read_table


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("deterministic; max_workspace=65536KiB", "max_workspace=64MiB;deterministic"),
        ("deterministic=false", ""),
    ],
)
def test_constraints_of_kept_choices_may_be_spelled_otherwise(
    tmp_path: Path, written: str, read: str
) -> None:
    file = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.05)
    tuning.export_table(file)
    entry = json.loads(file.read_text()) | {"constraints": written}
    file.write_text(json.dumps(entry) + "\n")
    tuning.clear()
    assert tuning.import_table(file) == tuning.merge_table(file) == 1
    assert [entry["constraints"] for entry in tuning.entries()] == [read]
    file.write_text(json.dumps(entry | {"constraints": "fwd=cpu:fft"}) + "\n")
    with pytest.raises(ValueError, match="line 1: constraints: got the selection 'fwd=cpu:fft'"):
        tuning.import_table(file)


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
    assert link.is_symlink() and len(read_table(shared)) == 1


def test_choices_are_read_with_and_without_the_host_s_time(tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu")
    (entry,) = before = tuning.entries()
    path = tmp_path / "choices.jsonl"
    for row in entry["measurements"]:
        del row["host_ms"]  # type: ignore[misc]
    path.write_text(json.dumps(entry))
    tuning.clear()
    assert tuning.import_table(path) == 1
    assert all(row["host_ms"] is None for row in tuning.entries()[0]["measurements"])
    for row in entry["measurements"]:
        row["host_ms"] = 0.25
    path.write_text(json.dumps(entry))
    assert tuning.import_table(path) == 1
    assert tuning.entries() == before
    entry["measurements"][0]["host_ms"] = "fast"  # type: ignore[typeddict-item]
    path.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="host_ms is 'fast', wanted one of"):
        tuning.import_table(path)


def test_a_file_of_choices_keeps_what_others_added(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    assert tuning.merge_table(path) == 1
    (ours,) = tuning.entries()
    tuning.clear()
    tuning.tune([LINE, OTHER], device="cpu", time_budget_s=0.1)
    theirs = {entry["problem"]: entry for entry in tuning.entries()}
    tuning.export_table(path)
    tuning.clear()
    _C.table_import([ours])
    assert tuning.merge_table(path) == 2
    tuning.clear()
    tuning.import_table(path)
    found = {entry["problem"]: entry for entry in tuning.entries()}
    assert found == {LINE: ours, OTHER: theirs[OTHER]}
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="line 1"):
        tuning.merge_table(path)
    assert path.read_text() == "nonsense"


def test_what_is_tuned_while_a_file_is_waited_for_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    (entry,) = tuning.entries()
    newer = entry | {"measurements": entry["measurements"][:1]}

    def waits(*_: Any) -> None:
        _C.table_import([newer])

    monkeypatch.setattr(fcntl, "flock", waits)
    tuning.merge_table(path)
    assert read_table(path) == tuning.entries() == [newer]


def test_of_equal_entries_the_last_is_read(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    older = entry | {"measurements": entry["measurements"][:1]}
    path.write_text(f"{json.dumps(older)}\n{json.dumps(entry)}\n")
    assert read_table(path) == [entry]
    for wrong, reason in (
        ([entry["measurements"][0] | {"backend": "graph"}], "backend is 'graph' of "),
        (entry["measurements"][:1] * 2, "several measurements of "),
    ):
        path.write_text(json.dumps(entry | {"measurements": wrong}))
        with pytest.raises(ValueError, match=f"line 1: (got )?{reason}"):
            read_table(path)


def test_what_others_measured_anew_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    (entry,) = read_table(path)
    entry["measurements"][0]["median_ms"] = 1e-6  # as another process measured it
    path.write_text(json.dumps(entry) + "\n")
    tuning.tune(OTHER, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    newer = {kept["problem"]: kept for kept in read_table(path)}
    assert newer.keys() == {LINE, OTHER} and newer[LINE] == entry
    _C.table_import([entry | {"measurements": [entry["measurements"][0] | {"error": math.nan}]}])
    tuning.merge_table(path)
    assert "NaN" not in path.read_text()  # which is not JSON
    path.write_text(json.dumps(entry) + "\n")
    tuning.merge_table(path)
    assert entry in read_table(path)  # what is not a number is no other ranking
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    assert entry not in read_table(path)  # what is measured here is newer still
    (tmp_path / "others.jsonl").write_text(json.dumps(entry) + "\n")
    tuning.import_table(tmp_path / "others.jsonl")
    tuning.merge_table(path)
    assert entry in read_table(path)  # of another file: this table's


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
                mine = [entry | {"device": f"device {number} round {i}"} for i in range(50)]
                _C.table_import(mine)
                added = tuning.merge_table(path)
            finally:
                os._exit(added == 0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(read_table(path)) == 8 * 51 - 7  # what was there at the fork is one


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2"),
        ("[]", "line 2: got list, wanted an object"),
        ('{"problem": 1}', "line 2: problem is 1, wanted a str"),
        ('{"problem": "x", "device": "", "constraints": "", "measurements": []}', "line 2"),
        (
            json.dumps({"problem": LINE, "device": "", "constraints": "", "measurements": []}),
            r"line 2: measurements is \[\], wanted at least one",
        ),
    ],
)
def test_a_malformed_file_changes_nothing(tmp_path: Path, line: str, message: str) -> None:
    tuning.tune(LINE, device="cpu")
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    path.write_text(path.read_text() + line + "\n")
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
    entry = json.loads(path.read_text().splitlines()[0])
    entry["measurements"][0][field] = value
    path.write_text(json.dumps(entry) + "\n")
    tuning.reset()
    with pytest.raises(ValueError, match=f"line 1: {field} is .*, wanted one of "):
        tuning.import_table(path)
    assert tuning.entries() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "[" * 100_000, "recursion"),
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
    path.write_text((text := path.read_text()) + change(text))
    tuning.reset()
    for read in (tuning.import_table, tuning.merge_table, read_table):
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


def test_a_choice_of_no_such_algorithm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.reset()
    _C.measure(LINE, "cpu", "", min_samples=1)
    tuning.export_table(path)
    whole = path.read_text()
    for wrong in ("nonsense", "legacy:nonsense", "legacy:fft/k=1"):
        path.write_text(whole.replace('"cpu:direct"', json.dumps(wrong)))
        assert path.read_text() != whole
        with pytest.raises(ValueError, match=r"choices.jsonl, line 1: algorithm "):
            tuning.import_table(path)


def test_a_choice_s_problem_may_be_spelt_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.reset()
    _C.measure(LINE, "cpu", "", min_samples=1)
    tuning.export_table(path)
    path.write_text(path.read_text().replace("pad=1 ", "pad=1,1 "))
    (entry,) = read_table(path)
    assert "pad=1,1" in path.read_text()
    assert entry["problem"] == _C.canonical_problem(LINE)
    (layer,) = profile_of_table([entry]).layers
    assert layer.problem == entry["problem"]


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
