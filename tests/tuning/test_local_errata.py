"""The file of local errata: where it is, how it is read, and how lines are added."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import ERRATA_VARIABLE
from torch_cudnn_ext.cli import main
from torch_cudnn_ext.tuning import local_errata

CPU = _C.device_fingerprint("cpu")
ROW = {
    "device": CPU,
    "torch": torch.__version__,
    "problem": LINE,
    "algorithm": "cpu:direct",
    "what": "context lost",
    "when": "2026-11-28T12:00:00+00:00",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file, which does not exist yet."""
    path = tmp_path / "errata.jsonl"
    monkeypatch.setenv(ERRATA_VARIABLE, str(path))
    local_errata.load()
    yield path
    monkeypatch.undo()
    local_errata.load()


def status(algorithm: str = "cpu:direct", problem: str = LINE) -> Any:
    (row,) = (r for r in _C.candidates(problem, "cpu") if r["algorithm"] == algorithm)
    return row["status"]


def test_the_file_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ERRATA_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert local_errata.errata_path() == Path("/somewhere/torch_cudnn_ext/errata.jsonl")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert local_errata.errata_path() == Path("/home/someone/.cache/torch_cudnn_ext/errata.jsonl")
    monkeypatch.setenv(ERRATA_VARIABLE, "/elsewhere/file")
    assert local_errata.errata_path() == Path("/elsewhere/file")
    monkeypatch.setenv(ERRATA_VARIABLE, "")
    assert local_errata.errata_path() is None


def test_what_is_added_is_unsupported_until_it_is_forgotten(file: Path) -> None:
    assert status() == "ok"
    local_errata.add(CPU, LINE, "cpu:direct", "context lost")
    assert status() == "unsupported" and status(problem=OTHER) == "ok"
    with pytest.raises(RuntimeError, match="cpu:direct cannot run: context lost when it was"):
        _C.decide(LINE, "cpu", "fwd=cpu:direct")
    local_errata.add(CPU, LINE, "cpu:direct", "context lost")
    (line,) = file.read_text().splitlines()
    assert {**json.loads(line), "when": ""} == {**ROW, "when": ""}
    local_errata.load()
    assert status() == "unsupported"
    file.unlink()
    local_errata.load()
    assert status() == "ok"


@pytest.mark.parametrize("changed", [{"device": "another GPU"}, {"torch": "2.9.0"}])
def test_what_is_of_another_device_or_pytorch_is_kept_and_not_used(
    changed: dict[str, str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({**ROW, **changed}) + "\n")
    local_errata.load()
    assert status() == "ok"
    assert main(["info", "--errata", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)[-1]
    assert shown == {"id": "local", "state": "not here", **ROW, **changed}


BROKEN = (
    ("nonsense", "Expecting value"),
    ('["a list"]', r"got \['a list'\], wanted an object with device, torch, problem, algorithm"),
    (json.dumps({**ROW, "what": 3}), "what: got 3, wanted a text"),
    (json.dumps({**ROW, "problem": "conv_fwd x=?"}), "problem"),
    (json.dumps(ROW)[:40], "Unterminated|delimiter|Expecting"),
)


@pytest.mark.parametrize(("line", "complaint"), BROKEN)
def test_a_broken_line_is_one_warning(file: Path, line: str, complaint: str) -> None:
    others = [json.dumps({**ROW, "algorithm": name}) for name in ("cpu:im2col", "cpu:direct")]
    file.write_text(f"{others[0]}\n\n{line}\n{others[1]}")
    match = f"local errata: {re.escape(str(file))}, line 3: .*({complaint}).*; the line is ignored"
    with pytest.warns(UserWarning, match=match) as warned:
        local_errata.load()
    assert len(warned) == 1
    assert status("cpu:im2col") == status("cpu:direct") == "unsupported"


def test_a_file_that_cannot_be_read_or_written_is_a_warning(file: Path) -> None:
    file.mkdir()
    with pytest.warns(UserWarning, match=f"cannot read {file}: Not a regular file; none are"):
        local_errata.load()
    with pytest.warns(UserWarning, match="cpu:direct is remembered in this process alone: .*Is a"):
        local_errata.add(CPU, LINE, "cpu:direct", "context lost")
    assert status() == "unsupported"


def test_the_import_reads_the_file(file: Path) -> None:
    file.write_text(f"{json.dumps(ROW)}\nbroken\n")
    code = f"from torch_cudnn_ext import _C; _C.decide({LINE!r}, 'cpu', 'fwd=cpu:direct')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{file}, line 2: Expecting value" in done.stderr
    assert "cpu:direct cannot run: context lost when it was measured here" in done.stderr
    assert f"(local erratum of 2026-11-28 in {file}; without it the" in done.stderr


def test_lines_of_many_writers_stay_whole(file: Path) -> None:
    file.write_text("broken")  # as by a process that was killed
    with ThreadPoolExecutor(8) as threads:
        for n in range(40):
            threads.submit(local_errata.add, CPU, LINE, f"cpu:a{n}", "hung for 120 s")
    lines = [line for line in file.read_text().splitlines() if line]
    assert lines[0] == "broken" and len(lines) == 41
    assert {json.loads(line)["algorithm"] for line in lines[1:]} == {f"cpu:a{n}" for n in range(40)}
