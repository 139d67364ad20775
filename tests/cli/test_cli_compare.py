"""The command `compare`."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Capture, json_of
from helpers import LINE

from torch_cudnn_ext.cli import main


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two results of `tune`; the second is slower."""
    row = {"algorithm": "aten:default", "status": "ok", "reason": "", "spread_ms": 0.0}
    names = []
    for name, ms in (("a.json", 1.0), ("b.json", 1.5)):
        best = [{"problem": LINE, **row, "median_ms": ms, "samples": 11}]
        (tmp_path / name).write_text(json.dumps({"best": best}))
        names.append(str(tmp_path / name))
    return names[0], names[1]


def test_the_exit_code_tells_what_is_slower(files: tuple[str, str], capsys: Capture) -> None:
    assert main(["compare", *files]) == 1
    out = capsys.readouterr().out
    assert out.startswith("b.json is 1.50x (1.50 to 1.50) slower than a.json (1 -> 1.5 ms for 1")
    assert "\nslower " in out
    assert main(["compare", *files, "--tolerance", "0.6"]) == 0
    assert "\nslower " not in capsys.readouterr().out
    assert main(["compare", *files[::-1]]) == 0
    assert main(["compare", files[0], files[0], "--all"]) == 0
    assert "\nsame " in capsys.readouterr().out


def test_formats_and_a_report(files: tuple[str, str], capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", *files, "--format", "json", "--report", str(page)]) == 1
    assert json.loads(capsys.readouterr().out)["changes"][0]["verdict"] == "slower"
    assert "1.50x (1.50 to 1.50) slower" in page.read_text()
    assert main(["compare", *files, "--format", "markdown"]) == 1
    assert "| slower |" in capsys.readouterr().out
    assert main(["compare", *files, "--format", "csv"]) == 1
    assert capsys.readouterr().out.startswith("verdict,subject,")


def test_what_a_command_writes_is_read(capsys: Capture, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "profile.json": json_of(capsys, "profile", LINE, "--device", "cpu", "--time-budget", "1"),
        "tune.json": json_of(
            capsys, "tune", LINE, "--device", "cpu", "--table", str(tmp_path / "table.jsonl")
        ),
    }
    for name, value in values.items():
        (tmp_path / name).write_text(json.dumps(value))
    for name in (*values, "table.jsonl"):
        assert main(["compare", str(tmp_path / name), str(tmp_path / name)]) == 0, name
        assert "neither faster nor slower" in capsys.readouterr().out


def test_wrong_arguments(files: tuple[str, str], capsys: Capture, tmp_path: Path) -> None:
    for arguments, said in (
        ([files[0]], "Missing argument 'after'"),
        ([files[0], "none.json"], "No such file or directory: 'none.json'"),
        ([*files, "--tolerance", "x"], "--tolerance: got 'x', wanted a number, 0 or more"),
        ([*files, "--report", str(tmp_path)], "a folder, wanted a file"),
        ([*files, "--report", "none/page.html"], "in 'none', which is no folder, wanted a file"),
    ):
        assert main(["compare", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and said in error
