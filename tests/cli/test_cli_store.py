"""The command `store`."""

import json
from pathlib import Path

import pytest
from cli_helpers import Capture, json_of
from helpers import LINE, OTHER
from store_helpers import H200, WHEN, entry, measurement, read_all

from torch_cudnn_ext import knobs
from torch_cudnn_ext.cli import main
from torch_cudnn_ext.tuning.store_files import SegmentWriter, device_folders, segments
from torch_cudnn_ext.tuning.store_rows import row_line

OLD = "2020-01-01T00:00:00.000000Z"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of the knobs, with two problems, one of them twice."""
    root = tmp_path / "store"
    knobs.store = root
    writer = SegmentWriter(root)
    for when, problem, algorithm in ((WHEN, LINE, "cpu:fft"), (OLD, LINE, "aten:default"),
                                     (OLD, OTHER, "aten:default")):  # fmt: skip
        row = entry(problem, H200, "", measurement(algorithm))
        writer.append(H200, row_line(row, when, "torch 2"))
    return root


def said(capsys: Capture, code: int, *arguments: str) -> str:
    """What a command prints, with single blanks; it ends with this code."""
    assert main(["store", *arguments]) == code
    captured = capsys.readouterr()
    return " ".join((captured.err if code == 2 else captured.out).split())


def test_the_folder_is_printed(capsys: Capture, store: Path) -> None:
    assert said(capsys, 0, "path") == str(store)
    assert said(capsys, 0, "path", "--store", str(store.parent)) == str(store.parent)
    knobs.store = ""
    assert "--store: not given, and the tuning store is off" in said(capsys, 2, "path")


def test_what_is_kept_is_listed(capsys: Capture, store: Path) -> None:
    assert "2 problems in" in (text := said(capsys, 0, "ls")) and "2026-11-28 12:00" in text
    (device,) = json_of(capsys, "store", "ls")["devices"]
    assert (device["device"], device["problems"], device["rows"]) == (H200, 2, 3)
    knobs.store = store / "missing"
    assert "0 problems in" in said(capsys, 0, "ls")


def test_rankings_are_shown(capsys: Capture, store: Path) -> None:
    assert "2 rankings in" in (text := said(capsys, 0, "show")) and "cpu:fft" in text
    (row,) = json_of(capsys, "store", "show", "pad=1")["rows"]
    assert row["problem"] == LINE and row["when"] == WHEN
    assert "cpu:fft" in str(row["measurements"])
    assert said(capsys, 0, "show", "H200", "--format", "csv").count("aten:default") == 1
    assert "| algorithm" in said(capsys, 0, "show", "--format", "markdown")
    assert "0 rankings" in said(capsys, 1, "show", "nothing like this")


def test_stores_are_merged(capsys: Capture, store: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    arguments = ["merge", str(store), "--store", target]
    # The older of two rows counts as added only if it comes first.
    assert f"2 rows added to {target}, 1 known or older" in said(capsys, 0, *arguments)
    assert "0 rows added" in said(capsys, 0, *arguments)
    damaged = tmp_path / "damaged"
    damaged.write_text("nonsense\n")
    assert f"left out: {damaged}, line 1: got 'nonsense'" in said(capsys, 1, "merge", str(damaged))
    assert "merge: got 'none', which does not exist" in said(capsys, 2, "merge", "none")
    assert "merge: got nothing, wanted stores" in said(capsys, 2, "merge")


def test_every_row_is_checked(capsys: Capture, store: Path) -> None:
    assert f"3 rows of {store} can be read" in said(capsys, 0, "verify")
    ((path, _),) = segments(device_folders(store)[0]).items()
    with path.open("ab") as file:
        file.write(b"nonsense\n" * 30)
    text = said(capsys, 1, "verify")
    assert f"no row: {path}, line 4: got 'nonsense'" in text and "and 10 more" in text


def test_a_store_is_compacted_and_pruned(capsys: Capture, store: Path) -> None:
    assert "2 of 3 rows in" in said(capsys, 0, "compact", "--dry-run")
    assert len(read_all(store)[0]) == 3
    assert "2 of 3 rows in" in said(capsys, 0, "compact")
    assert len(read_all(store)[0]) == 2
    assert "2 of 2 rows" in said(capsys, 0, "prune", "--containing", "A100")
    assert "1 of 2 rows" in said(capsys, 0, "prune", "--containing", "pad=0", "--dry-run")
    assert "2 of 2 rows" in said(capsys, 0, "prune", "--containing", 'ü"')
    assert "1 of 2 rows" in said(capsys, 0, "prune", "--older-than", "1000")
    assert "0 of 1 row " in said(capsys, 0, "prune", "--containing", "H200")


def test_stores_are_compared(capsys: Capture, store: Path, tmp_path: Path) -> None:
    assert "2 decided alike, 0 differently" in said(capsys, 0, "diff", str(store), str(store))
    other = tmp_path / "other"
    rows = [measurement("aten:default"), measurement("cpu:fft", 3.0)]
    SegmentWriter(other).append(H200, row_line(entry(LINE, H200, "", *rows), WHEN))
    text = said(capsys, 1, "diff", str(store), str(other))
    assert "0 decided alike, 1 differently (1 beyond the noise), 1 only in A" in text
    assert "; 1.0" in said(capsys, 1, "diff", str(store), str(other), "--format", "csv")
    assert main(["store", "diff", str(store), str(other), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["different"][0]["ratios"] == [None, 3.0]


def test_drift_is_found(capsys: Capture, store: Path) -> None:
    assert "0 problems of" in said(capsys, 0, "drift", "--device", "cpu")
    softmax = "softmax_fwd x=f32[4,64,1]:nchw log=false"
    for algorithm, problem in (("cpu:nothing", LINE), ("aten:default", softmax)):
        row = entry(problem, None, "", measurement(algorithm, 1000.0))
        SegmentWriter(store).append(row["device"], row_line(row, WHEN, "torch 2"))
    text = said(capsys, 1, "drift", "--device", "cpu")
    assert "2 problems of" in text and "1 gone" in text and "1 faster" in text
    assert "1 faster." in said(capsys, 0, "drift", "--device", "cpu", "--containing", "softmax")
    assert main(["store", "drift", "--device", "cpu", "--format", "json"]) == 1
    verdicts = [one["verdict"] for one in json.loads(capsys.readouterr().out)["drift"]]
    assert verdicts == ["gone", "faster"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", "Missing argument"),
        ("frob", "action: got 'frob', wanted one of 'path', 'ls', 'show'"),
        ("ls x", "an argument: got ['x'] with ls, which does not take it"),
        ("show a b", "show: got 2 texts, wanted one or none"),
        ("compact --older-than 3", "--older-than: got 3 with compact"),
        ("ls --dry-run", "--dry-run: given with ls"),
        ("verify --format json", "--format: got 'json' with verify"),
        ("prune", "prune: wanted --older-than or --containing"),
        ("prune --older-than 0", "--older-than: got '0', wanted a whole number, 1 or more"),
        ("prune --older-than 99999999", "--older-than: got 99999999, wanted at most 36500 days"),
        ("diff a", "diff: got ['a'], wanted two stores"),
        ("diff a b", "diff: got 'a', wanted the folder of a store"),
        ("diff a b --store c", "--store: given with diff"),
        ("ls --device cpu", "--device: got 'cpu' with ls"),
        ("drift --device gpu", "--device: got 'gpu', wanted 'cpu', 'cuda'"),
        ("drift --tolerance -1", "--tolerance: got '-1', wanted a number, 0 or more"),
        ("ls --store nowhere", "--store: got 'nowhere', wanted the folder of a store"),
    ],
)
def test_what_an_action_does_not_take_is_named(
    capsys: Capture, store: Path, arguments: str, wanted: str
) -> None:
    assert wanted in said(capsys, 2, *arguments.split())
