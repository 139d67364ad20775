"""Tending a tuning store: merging, compacting, checking."""

import errno
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import LINE
from store_helpers import H200, WHEN, entry, measurement, read_all, summed

from torch_cudnn_ext import tuning
from torch_cudnn_ext.tuning import store_upkeep
from torch_cudnn_ext.tuning.store_files import SegmentWriter, device_folders, segments
from torch_cudnn_ext.tuning.store_rows import row_line
from torch_cudnn_ext.tuning.store_upkeep import compact, holding_rows, merge, summaries, verify

LATER = "2026-11-28T13:00:00.000000Z"


def line_of(ms: float, when: str = WHEN, device: str = H200, constraints: str = "") -> bytes:
    return row_line(entry(LINE, device, constraints, measurement(ms=ms)), when, "torch 2")


def made(root: Path, *lines: bytes, device: str = H200) -> Path:
    """A store with these rows, each in a segment of its own."""
    for line in lines:
        SegmentWriter(root).append(device, line)
    root.mkdir(exist_ok=True)
    return root


def test_merging_stores_gives_the_same_in_any_order(tmp_path: Path) -> None:
    lines = [
        line_of(ms, when, H200, constraints)
        for ms in (1, 2)
        for when in (WHEN, LATER, "")
        for constraints in ("", "deterministic")
    ]
    stores = [made(tmp_path / str(n), *random.sample(lines, 4)) for n in range(4)]
    found = []
    for number in range(3):
        target = tmp_path / f"target{number}"
        for source in random.sample(stores, len(stores)):
            merge(target, [source])
        assert merge(target, stores).added == 0
        compact(target)
        found.append(read_all(target))
    assert found[0] == found[1] == found[2] and not found[0][1]


def test_a_file_of_the_tuning_table_is_merged(tmp_path: Path) -> None:
    tuning.clear()
    tuning.tune(LINE, device="cpu", time_budget_s=0.05)
    assert tuning.export_table(tmp_path / "table.jsonl") == 1
    (one,) = tuning.entries()
    target = tmp_path / "store"
    assert merge(target, [tmp_path / "table.jsonl"]) == (1, 0, [])
    assert merge(target, [tmp_path / "table.jsonl"]) == (0, 1, [])
    (row,) = holding_rows(target)
    assert row.entry == one and row.when[:2] == "20"
    tuning.tune(LINE, device="cpu", time_budget_s=0.05)
    tuning.merge_table(tmp_path / "table.jsonl")
    with (tmp_path / "table.jsonl").open("a") as file:
        file.write('{"sum": "01234567", "for')  # of a writer that was killed
    assert merge(target, [tmp_path / "table.jsonl"]) == (1, 1, [])
    assert holding_rows(target)[0].when > row.when


def test_merging_leaves_out_what_is_no_row(tmp_path: Path) -> None:
    source = made(tmp_path / "source", line_of(1))
    ((path, _),) = segments(device_folders(source)[0]).items()
    poisoned = line_of(-1.0, LATER)
    newer = summed({"format": 2})
    path.write_bytes(line_of(1) + b"nonsense\n" + poisoned + newer + line_of(2)[:-9])
    done = merge(tmp_path / "target", [source])
    assert (done.added, done.known) == (1, 0)
    assert [text.split(": ")[0] for text in done.left_out] == [
        f"{path}, line {number}" for number in (2, 3, 4)
    ]
    assert "median_ms is -1.0" in done.left_out[1] and "format 2" in done.left_out[2]


def test_compacting_leaves_what_holds_and_what_it_cannot_read(tmp_path: Path) -> None:
    newer = summed({"format": 2})
    root = made(tmp_path / "s", line_of(1), line_of(2, LATER), newer, b"nonsense\n", line_of(3))
    assert compact(root, dry_run=True) == compact(root) == (3, 1, 1)
    assert len(segments(device_folders(root)[0])) == 1
    lines, damage = read_all(root)
    assert lines == [line_of(2, LATER).rstrip()] and "format 2" in damage[0]
    assert compact(root) == (1, 1, 0) and read_all(root) == (lines, damage)
    assert compact(root, lambda head: False) == (1, 0, 0)
    assert len(read_all(root)[1]) == 1


def test_a_compacting_process_that_is_killed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = made(tmp_path / "s", line_of(1), line_of(2, LATER, constraints="deterministic"))
    rows = read_all(root)
    for step in ("head_of", "new_name", "latest_text"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(store_upkeep, step, _interrupted)
            compact(root)
        assert read_all(root) == rows
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "unlink", _interrupted)
        compact(root)
    assert {*read_all(root)[0]} == {*rows[0]}
    assert compact(root) == (4, 2, 0) and read_all(root) == rows


def test_compacting_on_a_full_disk_says_where_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = made(tmp_path / "s", line_of(1), line_of(2, LATER, constraints="deterministic"))
    rows = read_all(root)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left") as error:
        patch.setattr(os, "fsync", full)
        compact(root)
    folder = device_folders(root)[0]
    assert str(error.value.filename).startswith(str(folder)), "the error names the place"
    assert {*folder.iterdir()} == {*segments(folder)}, "nothing half written stays"
    assert read_all(root) == rows


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


_WRITER = """
import os, sys
from pathlib import Path
from store_helpers import WHEN, entry
from torch_cudnn_ext.tuning.store_files import SegmentWriter
from torch_cudnn_ext.tuning.store_rows import row_line

writer = SegmentWriter(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    writer.append(sys.argv[2], row_line(entry(f"{os.getpid()} {number}", sys.argv[2]), WHEN))
    if number == 0:
        print("begun", flush=True)
"""


def test_writers_lose_no_row_while_others_compact(tmp_path: Path) -> None:
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    count, root = 100, tmp_path / "s"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, root, H200, str(count)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"

    def compacts() -> None:
        while any(writer.poll() is None for writer in writers):
            compact(root)
            time.sleep(random.uniform(0, 0.005))

    with ThreadPoolExecutor() as threads:
        for future in [threads.submit(compacts) for _ in range(2)]:
            future.result()
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.communicate()
    (found,) = summaries(root)
    assert (found.problems, found.damaged) == (3 * count, 0)


def test_every_row_is_checked(tmp_path: Path) -> None:
    root = made(tmp_path / "s", line_of(1), line_of(-1.0, LATER), b"nonsense\n")
    good, bad = verify(root)
    assert good == 1 and [one.line for one in bad] == [1, 1]
    texts = sorted(str(one.error) for one in bad)
    assert texts[0].startswith("got 'nonsense'") and texts[1].startswith("median_ms is -1.0")
    assert verify(tmp_path / "missing") == (0, [])


def test_a_summary_has_a_line_for_each_device(tmp_path: Path) -> None:
    root = made(tmp_path / "s", line_of(1), line_of(2, LATER), b"nonsense\n")
    cpu = entry()["device"]
    made(root, row_line(entry(), ""), device=cpu)
    first, second = summaries(root)
    assert first[:4] == (H200, 1, 2, 3) and first.newest == LATER and first.damaged == 1
    assert second[:4] == (cpu, 1, 1, 1) and second.newest == "" and second.bytes > 100
    (root / "empty" / "folder").mkdir(parents=True)
    assert ("empty/folder", 0, 0, 0, 0, "", 0) in summaries(root)
