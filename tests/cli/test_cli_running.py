"""Output, progress and interruptions of all commands."""

import io
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from cli_helpers import Capture
from helpers import LINE, PROBLEM
from rich.console import Console

from torch_cudnn_ext import tuning
from torch_cudnn_ext._commands.options import Format
from torch_cudnn_ext.analysis.tables import Column, Table, _print_rows
from torch_cudnn_ext.cli import main, running


@pytest.mark.parametrize("option", ["--resume", "--table"])
def test_what_was_measured_is_printed_where_the_disk_is_full(
    option: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "lines.txt", tmp_path / "kept"
    smaller = LINE.replace("x=f32[2,", "x=f32[1,")
    file.write_text(f"{LINE}\n{smaller}\n")
    command = "profile" if option == "--resume" else "tune"
    arguments = [command, "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*arguments, option, str(kept)]) == 0
    size = kept.stat().st_size
    kept.unlink()
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
        tuning.clear()
        assert main([*arguments, option, str(kept)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    shown = capsys.readouterr()
    assert LINE in shown.out and f"File too large: '{kept}'" in shown.err


def test_output_that_cannot_hold_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_cudnn_ext", "profile", PROBLEM, "--device", "cpu"]
    command += ["--time-budget", "0.1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    closed = ["bash", "-c", '"$@" >&-', "bash", *command]
    done = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr


def test_interrupted_where_nothing_is_kept(
    capsys: Capture, networks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_cudnn_ext.cli.explain.explain", interrupt)
    assert main(["explain", "--model", f"{networks}:conv", "--device", "cpu"]) == 130
    shown = capsys.readouterr()
    assert (shown.out, shown.err.strip()) == ("", "interrupted")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_what_was_finished(sent: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    lines = [PROBLEM.replace("x=f32[2", f"x=f32[{n}") for n in range(1, 400)]
    file.write_text("\n".join(lines))
    finished = tmp_path / "finished.jsonl"
    command = [sys.executable, "-m", "torch_cudnn_ext", "profile", "--problems", str(file)]
    command += ["--device", "cpu", "--resume", str(finished)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells start what runs in the background with the signal ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if finished.exists() and finished.read_text().count("\n") >= 2:
                break
            time.sleep(0.05)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: " in err and "of 399 problems were finished" in err
    assert "Traceback" not in err
    assert lines[0] in out and "best vs PyTorch" in out


def test_a_profile_that_was_killed_goes_on(tmp_path: Path) -> None:
    file, finished = tmp_path / "lines.txt", tmp_path / "finished.jsonl"
    file.write_text("\n".join(PROBLEM.replace("x=f32[2", f"x=f32[{n}") for n in range(1, 9)))
    command = [sys.executable, "-m", "torch_cudnn_ext", "profile", "--problems", str(file)]
    command += ["--device", "cpu", "--time-budget", "0.1", "--resume", str(finished)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if finished.exists() and finished.read_bytes().count(b"\n") >= 2:
                break
            time.sleep(0.01)
        process.kill()
    kept = finished.read_bytes().count(b"\n")
    for left in (8 - kept, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"\nMeasured {left} problem" in done.stdout


def test_what_was_measured_keeps_its_capitals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        running, "measured_text", lambda before: "measured 1; misses: 1 other cuDNN"
    )
    running.print_measured(Format.table, tuning.statistics())
    assert capsys.readouterr().out == "Measured 1; misses: 1 other cuDNN.\n"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_numbers_are_whole_on_narrow_terminals(width: int) -> None:
    columns = [Column("", right=False, whole=True)]
    columns += [Column(h, right=True) for h in ("PyTorch", "heuristic's first", "best")]
    table = Table("", columns, [["max pooling", "12345 (86%)", "1", "123.45"]])
    out = io.StringIO()
    _print_rows(table, Console(width=width, file=out))
    shown = out.getvalue()
    for word in ("max pooling", "12345 (86%)", "123.45", "heuristic's first"):
        assert word in shown
