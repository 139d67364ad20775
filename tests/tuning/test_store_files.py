"""Files of the tuning store: writers that are killed, damage, and folders that cannot be used."""

import gzip
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_helpers import H200, WHEN, entry, read_all

from torch_cudnn_ext.tuning.store_files import (
    FolderRows,
    SegmentWriter,
    device_folders,
    device_of,
    folder_name,
    retire,
    segments,
)
from torch_cudnn_ext.tuning.store_rows import row_line
from torch_cudnn_ext.tuning.store_upkeep import compact

CPU = "cpu/A CPU (R) @ 2/3 GHz/1 thread"
WRITERS = 8


@pytest.mark.parametrize(
    ("fingerprint", "folder", "device"),
    [
        (H200, "NVIDIA-H200-sm90-132/cudnn-9.19.0", ("NVIDIA H200/sm90/132sm", "cudnn91900")),
        (CPU, "cpu-A-CPU-R-2-3-GHz/1-thread", ("cpu/A CPU (R) @ 2/3 GHz", "1 thread")),
        ("..", "unknown/unknown", ("..", "")),
        ("../..", "unknown/unknown", ("..", "..")),
    ],
)
def test_a_device_has_a_folder(fingerprint: str, folder: str, device: tuple[str, str]) -> None:
    assert folder_name(fingerprint) == folder and device_of(fingerprint) == device
    assert device_of(CPU).kind == "cpu" and device_of(H200).kind == "gpu"


def line_of(number: int) -> bytes:
    return row_line(entry(f"problem {number}", CPU), WHEN)


def rows_of(root: Path) -> FolderRows:
    rows = FolderRows(root / folder_name(CPU))
    rows.refresh()
    return rows


def test_a_process_has_a_segment_for_each_device(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "new" / "store")
    for number in range(3):
        writer.append(CPU, line_of(number))
    writer.append(H200, row_line(entry("p", H200), WHEN))
    assert [len(segments(folder)) for folder in device_folders(writer.root)] == [1, 1]
    (path,) = segments(writer.root / folder_name(CPU))
    assert f"-{os.getpid()}-" in path.name and path.read_bytes().count(b"\n") == 3
    rows = rows_of(writer.root)
    writer.append(CPU, line_of(4))
    rows.refresh()
    assert len(rows.keys()) == 4 and not rows.damage


def test_a_line_that_is_cut_off_at_any_byte_is_skipped_in_silence(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.append(CPU, line_of(0))
    (path,) = segments(tmp_path / folder_name(CPU))
    whole, last = path.read_bytes(), line_of(1)
    for size in range(len(last)):
        path.write_bytes(whole + last[:size])
        rows = rows_of(tmp_path)
        assert (len(rows.keys()), rows.damage) == (1, [])
    path.write_bytes(whole + last)
    assert len(rows_of(tmp_path).keys()) == 2


def test_damaged_lines_are_told_and_the_others_are_read(tmp_path: Path) -> None:
    folder = tmp_path / folder_name(CPU)
    folder.mkdir(parents=True)
    flipped = bytearray(line_of(1))
    flipped[200] ^= 4
    data = [line_of(0), b"nonsense\n", bytes(flipped), b"\n", b"\0" * 9 + b"\n", line_of(2)]
    (folder / "a.jsonl").write_bytes(b"".join(data))
    (folder / "foreign.txt").write_text("no rows\n")
    (folder / "b.jsonl").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "c.jsonl").symlink_to("nowhere")
    rows = rows_of(tmp_path)
    assert len(rows.keys()) == 2
    assert [one.line for one in rows.damage] == [2, 3, 5]
    assert {one.path.name for one in rows.damage} == {"a.jsonl"}


def test_a_segment_that_was_cut_short_is_read_anew(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    for number in range(2):
        writer.append(CPU, line_of(number))
    rows = rows_of(tmp_path)
    (path,) = segments(rows.folder)
    path.write_bytes(line_of(0))
    rows.refresh()
    assert len(rows.keys()) == 1


def test_a_compressed_segment_is_read_and_never_appended_to(tmp_path: Path) -> None:
    folder = tmp_path / folder_name(CPU)
    folder.mkdir(parents=True)
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(line_of(0) + b"nonsense\n" + line_of(1)))
    writer = SegmentWriter(tmp_path)
    writer.append(CPU, line_of(2))
    rows = rows_of(tmp_path)
    assert [len(place.read()) for place in rows.all_places()] == [len(line_of(0)) - 1] * 3
    assert [(one.path, one.line) for one in rows.damage] == [(path, 2)]
    rows.refresh()
    assert len([*rows.all_places()]) == 3
    path.write_bytes(gzip.compress(b"".join(map(line_of, range(4, 9)))))
    rows.refresh()
    assert (len(rows.keys()), rows.damage) == (6, [])
    assert compact(tmp_path) == (6, 6, 0)
    assert len(rows_of(tmp_path).keys()) == 6 and not path.exists()


def test_a_damaged_compressed_segment_is_named(tmp_path: Path) -> None:
    folder = tmp_path / folder_name(CPU)
    folder.mkdir(parents=True)
    path = folder / "a.jsonl.gz"
    whole = gzip.compress(line_of(0))
    for data in (whole[:-9], b"nonsense", whole[:20] + b"damage" + whole[26:]):
        path.write_bytes(data)
        with pytest.raises(OSError, match="no gzip file") as raised:
            rows_of(tmp_path)
        assert raised.value.filename == str(path)


def test_a_row_is_written_again_if_its_segment_was_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path)
    writer.append(CPU, line_of(0))
    (path,) = segments(tmp_path / folder_name(CPU))
    write = os.write

    def retires_first(file: int, data: bytes) -> int:
        monkeypatch.undo()
        (retired := retire(path)) and retired.unlink()  # as compacting does
        return write(file, data)

    monkeypatch.setattr(os, "write", retires_first)
    writer.append(CPU, line_of(1))
    assert read_all(tmp_path) == ([line_of(1).rstrip()], [])
    (again,) = segments(tmp_path / folder_name(CPU))
    retired = retire(again)
    assert retired is not None and retire(retired) == retired and retire(again) is None
    assert read_all(tmp_path) == ([line_of(1).rstrip()], [])


_LIMITED = """
import resource, signal, sys
from torch_cudnn_ext.tuning.store_files import SegmentWriter

line, root = sys.stdin.buffer.read(), sys.argv[1]
writer = SegmentWriter(__import__("pathlib").Path(root))
resource.setrlimit(resource.RLIMIT_FSIZE, (len(line) * 5 // 2, resource.RLIM_INFINITY))
for number in range(4):
    try:
        writer.append(sys.argv[2], line)
    except OSError as error:
        print(number, error.strerror)
"""


def test_a_full_disk_costs_the_row_that_does_not_fit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, tmp_path, CPU],
        input=line_of(0),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert done.stdout == b"2 File too large\n"
    lines, damage = read_all(tmp_path)
    assert lines == [line_of(0).rstrip()] * 3 and not damage


_WRITER = """
import sys
from pathlib import Path

from store_helpers import WHEN, entry
from torch_cudnn_ext.tuning.store_files import SegmentWriter
from torch_cudnn_ext.tuning.store_rows import row_line

CPU = sys.argv[1]
children = []
for root in sys.stdin:
    import os
    ready, tell = os.pipe()
    if pid := os.fork():
        os.close(tell)
        print(pid, flush=True)
        while data := os.read(ready, 65536):
            os.write(1, data)
        os.waitpid(pid, 0)
        os.close(ready)
        print("ended", flush=True)
        continue
    writer = SegmentWriter(Path(root.strip()))
    for number in range(10**9):
        writer.append(CPU, row_line(entry(f"{os.getpid()} {number}", CPU), WHEN))
        os.write(tell, b"%d\\n" % number)
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_writers_lose_no_row_that_was_written(tmp_path: Path, rounds: int) -> None:
    path = [*sys.path, str(Path(__file__).parents[1])]
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, CPU],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
        )
        for _ in range(WRITERS)
    ]
    try:
        for number in range(rounds):
            check_killed(servers, tmp_path / str(number))
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def check_killed(servers: list[subprocess.Popen[bytes]], root: Path) -> None:
    """Each server's child writes to one store; all are killed, and what they wrote is there."""
    for server in servers:
        assert server.stdin is not None
        server.stdin.write(f"{root}\n".encode())
        server.stdin.flush()
    pids = [int(server.stdout.readline()) for server in servers if server.stdout is not None]
    time.sleep(random.uniform(0, 0.04))
    for pid in random.sample(pids, len(pids)):
        os.kill(pid, signal.SIGKILL)
    lines, damage = read_all(root)  # of some, while the others end
    acknowledged = set()
    for pid, server in zip(pids, servers, strict=True):
        assert server.stdout is not None
        while (said := server.stdout.readline()) != b"ended\n":
            acknowledged.add(f"{pid} {int(said)}")
    lines, damage = read_all(root)
    problems = [line.split(b'"problem": "')[1].split(b'"')[0].decode() for line in lines]
    assert acknowledged <= {*problems} and len({*problems}) == len(problems)
    assert not damage and len(problems) <= len(acknowledged) + WRITERS
