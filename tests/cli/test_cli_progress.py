"""What commands tell while they run: bars on a terminal, and lines elsewhere."""

import io
import sys
import time
from typing import Any

import pytest
import torch
from cli_helpers import Capture
from helpers import LINE, PROBLEM

from torch_cudnn_ext import _C, explain, tuning
from torch_cudnn_ext.analysis import coverage
from torch_cudnn_ext.cli import main, progress
from torch_cudnn_ext.cli.progress import ProgressBar, ProgressState, duration_text
from torch_cudnn_ext.tuning.measure import ProgressOfResults


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _terminal(monkeypatch: pytest.MonkeyPatch) -> _Terminal:
    """Standard error as a terminal of 200 columns."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    made = _Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def _measurement(algorithm: str, ms: float | None) -> Any:
    return {"algorithm": algorithm, "median_ms": ms}


def test_the_time_left_follows_from_what_is_finished() -> None:
    state = ProgressState(begun=100.0, known=2, problems=(4, 12))
    assert state.left_s(120.0) == 80.0  # 2 in 20 s, and 8 are left
    state.algorithms = (1, 2)
    assert state.left_s(125.0) == 75.0  # 2.5 in 25 s, and 7.5 are left
    assert state.line(125.0) == "4 of 12 problems, 1 of 2 algorithms of the next; about 1 min left"
    assert ProgressState().left_s(1.0) is None and ProgressState().line(1.0) == ""
    assert ProgressState(begun=0.0, problems=(3, 3)).left_s(1.0) is None
    assert ProgressState(begun=0.0, problems=(0, 3)).left_s(1.0) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (90, "2 min"), (3599, "1 h 0 min"), (4800, "1 h 20 min")],
)
def test_times_are_told_for_people(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_terminal_shows_the_problem_the_time_left_and_the_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = _terminal(monkeypatch)
    with ProgressBar() as bar:
        bar.phase("running resnet50")
        bar.refresh()
        bar.problem(0, 3, "conv_fwd x=f32[1,2,3,4]")
        bar.measured([_measurement("graph:eng1", 1.0), _measurement("aten:default", 2.0)])
        bar.measured([_measurement("aten:default", None)])
        bar.problem(1, 3, "conv_fwd x=f32[5,6,7,8]")
        bar.algorithm(1, 7, "graph:eng4/k2=1")
        bar.refresh()
    shown = terminal.getvalue()
    for text in ("running resnet50", "conv_fwd x=f32[5,6,7,8]", "1/3", "graph:eng4/k2=1", "1/7"):
        assert text in shown
    assert " left, 2.00x so far" in shown


def test_what_is_no_terminal_gets_a_line_now_and_then(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert progress.LINE_EVERY_S == 60
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.02)
    told = ""
    with ProgressBar() as bar:
        bar.problem(1, 4, "conv_fwd x")
        deadline = time.monotonic() + 60
        while "\n" not in told and time.monotonic() < deadline:
            time.sleep(0.02)
            told += capsys.readouterr().err
    assert told.startswith("1 of 4 problems; conv_fwd x\n") or "; conv_fwd x\n" in told


def test_short_commands_tell_nothing_where_there_is_no_terminal(capsys: Capture) -> None:
    assert main(["list", PROBLEM, "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""


def test_nothing_known_is_no_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.01)
    with ProgressBar() as bar:
        time.sleep(0.1)
        bar.phase("running")
    assert "\n\n" not in f"\n{capsys.readouterr().err}"


@pytest.mark.parametrize("reason", ["json", "terminal"])
def test_bench_prints_each_row_once(
    reason: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = _terminal(monkeypatch)
    command = ["bench", PROBLEM, "--device", "cpu", "--time-budget", "0.1"]
    if reason == "json":
        command += ["--format", "json"]
    else:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(command) == 0
    assert "problem  " not in errors.getvalue() and capsys.readouterr().out


def test_bench_prints_rows_as_they_finish(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch)
    command = ["bench", PROBLEM, "--device", "cpu", "--time-budget", "0.1"]
    assert main(command) == 0
    shown = terminal.getvalue()
    assert shown.index("problem  ") < shown.index(_C.canonical_problem(PROBLEM))
    assert _C.canonical_problem(PROBLEM) in capsys.readouterr().out


def test_a_tuning_tells_its_measurements() -> None:
    class Told:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def problem(self, done: int, total: int, text: str) -> None: ...

        def algorithm(self, done: int, total: int, text: str) -> None: ...

        def measured(self, rows: Any) -> None:
            self.rows.append(rows)

    told = Told()
    assert isinstance(told, ProgressOfResults)
    tuning.tune([LINE], device="cpu", time_budget_s=0.1, progress=told)
    ((first, *_),) = told.rows
    assert {row["algorithm"] for row in told.rows[0]} > {"aten:default"}
    assert first["median_ms"] is not None


def test_explain_and_coverage_tell_every_problem() -> None:
    class Told:
        def __init__(self) -> None:
            self.problems: list[tuple[int, int, str]] = []

        def problem(self, done: int, total: int, text: str) -> None:
            self.problems.append((done, total, text.split()[0]))

        def algorithm(self, done: int, total: int, text: str) -> None: ...

    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Softmax(1))
    told, x = Told(), torch.randn(1, 2, 5, 5)
    explain(model, x, progress=told)
    assert told.problems == [(0, 2, "conv_fwd"), (1, 2, "softmax_fwd")]
    told.problems.clear()
    coverage(model.eval(), x, backward=False, backends="aten", progress=told)
    assert told.problems == [(0, 2, "conv_fwd"), (1, 2, "softmax_fwd")]
    for function in (explain, coverage):
        with pytest.raises(TypeError, match="progress: got 3"):
            function(model, x, progress=3)  # type: ignore[operator]
