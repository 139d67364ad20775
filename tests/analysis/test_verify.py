"""Runs that show errata: what comes of them, whatever becomes of their process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis import reproduce, verify
from torch_cudnn_ext.analysis.reproduce import Outcome, Run
from torch_cudnn_ext.analysis.tables import print_tables

LINE = "conv_fwd x=f32[2,3,8,8]:nchw w=f32[4,3,3,3]:nchw"


def _row(**fields: Any) -> _C.Erratum:
    """A made-up row of PyTorch on the CPU."""
    row: Any = dict(_C.errata()[-1])
    row |= {"id": "made-up", "place": "CPU", "runs": [_shown("cpu:im2col")]}
    row |= {"state": "on", "remedy": "note", "backends": ["cpu"], **fields}
    made: _C.Erratum = row
    return made


def _shown(algorithm: str) -> _C.ErratumRun:
    return {"problem": LINE, "algorithm": algorithm, "inputs": ""}


def _outcome(code: str, time_limit_s: float = 60) -> Outcome:
    return verify.outcome_of([sys.executable, "-c", code], time_limit_s)


def test_a_process_tells_its_outcome_in_its_last_line() -> None:
    code = (
        "print('something')\n"
        f'print({reproduce.MARK!r} + \'{{"word": "wrong", "detail": "much"}}\')\n'
        "print('something else')"
    )
    assert _outcome(code) == Outcome("wrong", "much")


def test_a_process_that_ends_early_is_told_of() -> None:
    aborted = _outcome("import os; os.abort()")
    assert aborted == Outcome(reproduce.ENDED, "by SIGABRT")
    killed = _outcome(f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    assert killed == Outcome(reproduce.ENDED, "by SIGSEGV")
    raised = _outcome("raise ValueError('no such thing')")
    assert raised.word == reproduce.CANNOT_RUN and "no such thing" in raised.detail


def test_a_process_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    told = tmp_path / "child"
    child = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    start = time.monotonic()
    assert _outcome(code, 5) == Outcome(reproduce.HANGS, "no result in 5 s")
    assert time.monotonic() - start < 60
    pid = int(told.read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
            return
        time.sleep(0.1)
    pytest.fail("the child of the process that hung still runs")


def test_a_right_algorithm_is_not_seen_to_go_wrong() -> None:
    outcome = reproduce.reproduce(Run("made-up", LINE, "cpu:im2col", "", "cpu", ()))
    assert outcome.word == reproduce.NOT_SEEN and outcome.detail.startswith("error ")


def test_nan_that_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("made-up", LINE, "cpu:im2col", "nan", "cpu", ())
    assert reproduce.reproduce(run) == Outcome(reproduce.NOT_SEEN)
    monkeypatch.setattr(_C, "run", lambda *_: {"y": torch.zeros(2, 4, 6, 6)})
    lost = "288 of 288 elements of y are finite though they must not be"
    assert reproduce.reproduce(run) == Outcome(reproduce.WRONG, lost)


def test_one_element_of_the_data_may_be_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("made-up", LINE, "cpu:im2col", "one inf", "cpu", ())
    assert reproduce.reproduce(run) == Outcome(reproduce.NOT_SEEN)
    monkeypatch.setattr(_C, "run", lambda *_: {"y": torch.zeros(2, 4, 6, 6)})
    lost = "36 of 288 elements of y are finite though they must not be"  # 9 pixels, 4 channels
    assert reproduce.reproduce(run) == Outcome(reproduce.WRONG, lost)


def test_what_cannot_run_says_why() -> None:
    outcome = reproduce.reproduce(Run("made-up", LINE, "aten:nonsense", "", "cpu", ()))
    assert outcome.word == reproduce.CANNOT_RUN and "aten has no" in outcome.detail


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("CUDA error: an illegal memory access was encountered", reproduce.CONTEXT_LOST),
        ("CUDA error: misaligned address", reproduce.CONTEXT_LOST),
        ("graph:eng3: cudnnBackendExecute failed with CUDNN_STATUS", reproduce.FAILED),
        ("CUDA out of memory. Tried to allocate", reproduce.CANNOT_RUN),
    ],
)
def test_an_error_is_what_it_says(text: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(_C, "measure", fail)
    assert reproduce.reproduce(Run("made-up", LINE, "cpu:im2col", "", "cpu", ())).word == word


def test_a_rejected_result_is_told_in_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    tolerance = _C.tolerance(LINE, [])
    row = {"status": "rejected", "reason": "", "notes": [], "error": 2.5 * tolerance}
    monkeypatch.setattr(_C, "measure", lambda *_, **__: [row])
    outcome = reproduce.reproduce(Run("made-up", LINE, "cpu:im2col", "", "cpu", ()))
    assert outcome == Outcome(reproduce.WRONG, "error 2.5x the tolerance")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_margin_sees_what_is_written_around_a_tensor_and_in_its_gaps(dtype: torch.dtype) -> None:
    margin = reproduce.Margin([2, 3], [8, 2], dtype, "cpu")
    margin.tensor.fill_(1)
    assert margin.changed() == 0
    start = margin.tensor.storage_offset()
    for place in (start - 1, start + 1, start + 13):
        margin.tensor.as_strided([1], [1], place).fill_(1)
    assert margin.changed() == 3


def test_writes_outside_of_a_result_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _C.run

    def writes_past(problem: str, algorithm: str, tensors: Any, policy: str) -> Any:
        y = tensors["y"]
        y.as_strided([1], [1], y.storage_offset() + y.numel()).fill_(1)
        return run(problem, algorithm, tensors, policy)

    monkeypatch.setattr(_C, "run", writes_past)
    outcome = reproduce.reproduce(Run("made-up", LINE, "cpu:im2col", "", "cpu", ()))
    assert outcome == Outcome(reproduce.OUT_OF_BOUNDS, "1 elements outside of y are written")


def test_a_backward_in_margins_follows_its_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "rnn_bwd cell=lstm x=f32[4,3,8]:nchw hidden=16 proj=5 train=true"
    outcome = reproduce.reproduce(Run("made-up", problem, "aten:default", "", "cpu", ()))
    assert outcome.word == reproduce.NOT_SEEN, outcome
    run = _C.run

    def writes_past(problem: str, algorithm: str, tensors: Any, policy: str) -> Any:
        results = run(problem, algorithm, tensors, policy)
        if problem.startswith("rnn_bwd"):
            dx = tensors["dx"]
            dx.as_strided([2], [1], dx.storage_offset() + dx.numel()).fill_(1)
        return results

    monkeypatch.setattr(_C, "run", writes_past)
    outcome = reproduce.reproduce(Run("made-up", problem, "aten:default", "", "cpu", ()))
    assert outcome == Outcome(reproduce.OUT_OF_BOUNDS, "2 elements outside of dx are written")


@pytest.mark.parametrize(
    ("state", "word", "verdict"),
    [
        ("on", reproduce.WRONG, verify.AGREES),
        ("on", reproduce.HANGS, verify.AGREES),
        ("on", reproduce.NOT_SEEN, verify.CANDIDATE),
        ("on", reproduce.CANNOT_RUN, verify.UNKNOWN),
        ("on", verify.NEEDS_GPU, verify.UNKNOWN),
        ("fixed", reproduce.NOT_SEEN, verify.AGREES),
        ("fixed", reproduce.ENDED, verify.DISAGREES),
        ("not in this version", reproduce.WRONG, verify.DISAGREES),
    ],
)
def test_a_state_and_an_outcome_agree_or_not(state: str, word: str, verdict: str) -> None:
    assert verify.verdict_of(state, Outcome(word)) == verdict


def test_a_run_lifts_its_guard_and_those_that_hide_it() -> None:
    rows = {row["id"]: row for row in _C.errata()}
    row = rows["pool-bf16-average"]
    run = verify.run_of(row, row["runs"][0], "cuda", [*rows.values()])
    assert run.lifted[0] == "pool-bf16-average" and "pool-bf16-without-indices" in run.lifted
    assert not any(id.startswith(("conv", "pytorch")) for id in run.lifted)
    # What is left on is what a plan's tolerance needs.
    row = rows["conv-eng17-grouped-accuracy"]
    run = verify.run_of(row, row["runs"][0], "cuda", [*rows.values()])
    assert "conv-eng17-winograd" not in run.lifted


def test_rows_are_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Outcome(reproduce.HANGS, "5 s")
    outcomes = {"fails": Outcome(reproduce.WRONG, "much"), "hangs": hang, "slow": hang}
    rows = [
        _row(id="fails"),
        _row(id="hangs", state="fixed", evidence="hangs; H200"),
        _row(id="slow", evidence="wrong values; H200"),
        _row(id="elsewhere", place="GPU"),
        _row(id="unsafe", runs=[]),
    ]

    def made_up(command: list[str], limit: float) -> Outcome:
        assert limit == 5
        run = json.loads(command[-1])
        assert run["device"] == "cpu"
        return outcomes[run["id"]]

    monkeypatch.setattr(verify, "outcome_of", made_up)
    found = list(verify.verify_errata(rows, "cpu", 5))
    assert [(f.id, f.verdict) for f in found] == [
        ("fails", verify.AGREES),
        ("hangs", verify.DISAGREES),
        ("slow", verify.UNKNOWN),
        ("elsewhere", verify.UNKNOWN),
    ]
    table = verify.findings_table(found, rows)
    assert [row[2] for row in table.rows] == [
        "still wrong (much)",
        "still hangs (5 s)",
        "cannot run here (5 s)",
        "needs a GPU",
    ]
    assert table.lists == [("no single run shows", ["unsafe"])]
    assert "1 agrees, 0 candidate for fixed, 1 disagrees, 2 unknown" in table.footer
    print_tables([table])
    data = json.loads(verify.findings_json(found, "cpu"))
    assert data["errata"][0]["outcome"] == "wrong" and data["errata"][0]["detail"] == "much"
    assert data["errata"][0]["run"] == f"{LINE} cpu:im2col"
    assert set(data["versions"]) == {"cuDNN", "PyTorch"}


RIGHT, UNABLE = Outcome(reproduce.NOT_SEEN), Outcome(reproduce.CANNOT_RUN)
SHOWS = Outcome(reproduce.ENDED, "by SIGFPE")


@pytest.mark.parametrize(
    ("outcomes", "made", "wanted", "by"),
    [
        ([RIGHT, SHOWS, RIGHT], 2, SHOWS, "cpu:1"),
        ([UNABLE, SHOWS], 2, SHOWS, "cpu:1"),
        ([RIGHT, UNABLE, RIGHT], 3, UNABLE, "cpu:1"),  # that one might have shown it
        ([RIGHT, RIGHT], 2, RIGHT, "cpu:0"),
    ],
)
def test_a_row_is_not_seen_if_none_of_its_runs_shows_it(
    outcomes: list[Outcome],
    made: int,
    wanted: Outcome,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [_shown(f"cpu:{i}") for i in range(len(outcomes))]
    answers = iter(outcomes)
    monkeypatch.setattr(verify, "outcome_of", lambda *_: next(answers))
    (found,) = verify.verify_errata([_row(runs=runs)], "cpu", 5)
    assert (found.outcome, found.run) == (wanted, f"{LINE} {by}")
    assert len([*answers]) == len(outcomes) - made


def test_a_run_in_a_process_of_its_own_tells_what_came_out() -> None:
    row = _row(id="pytorch-cpu-grid-sample-nan")  # a run lifts a row that there is
    (found,) = verify.verify_errata([row], "cpu", 120)
    assert found.outcome.word == reproduce.NOT_SEEN, found
    assert found.verdict == verify.CANDIDATE and found.seconds > 0


def test_the_module_of_the_process_is_found_from_anywhere(tmp_path: Path) -> None:
    run = Run("made-up", LINE, "aten:nonsense", "", "cpu", ())
    command = verify.command_for(run)
    process = subprocess.run([*command[:3], "{}"], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode != 0
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        assert verify.outcome_of(command, 120).word == reproduce.CANNOT_RUN
    finally:
        os.chdir(here)
