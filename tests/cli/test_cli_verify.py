"""The command `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Capture

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis import reproduce, verify
from torch_cudnn_ext.analysis.reproduce import Outcome
from torch_cudnn_ext.cli import main

ON_CPU = "pytorch-cpu-conv-unwritten"


def _answer(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(verify, "outcome_of", lambda *_: Outcome(word, "so"))


def test_the_findings_are_a_table_and_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    _answer(monkeypatch, reproduce.WRONG)
    file = tmp_path / "found.json"
    assert main(["verify", "--errata", "--device", "cpu", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    found = json.loads(file.read_text())["errata"]
    for row in _C.errata():
        assert (row["id"] in [f["id"] for f in found]) == bool(row["runs"])
        assert row["id"] in shown
    assert "needs a GPU" in shown and "still wrong (so)" in shown
    (one,) = (f for f in found if f["id"] == ON_CPU)
    assert one["outcome"] == "wrong" and one["verdict"] == verify.AGREES


@pytest.mark.parametrize(
    ("word", "cudnn", "code"),
    [
        (reproduce.NOT_SEEN, 92801, 0),
        (reproduce.WRONG, 92801, 1),
        (reproduce.WRONG, 91900, 0),
        (reproduce.NOT_SEEN, 91900, 0),
    ],
)
def test_the_exit_code_says_whether_a_fixed_defect_is_seen(
    word: str, cudnn: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(monkeypatch, word)
    monkeypatch.setattr("torch_cudnn_ext.cli.checks.place_of", lambda _: "cuda")
    monkeypatch.setattr(_C, "capability", lambda _: 90)
    monkeypatch.setattr(_C, "device_fingerprint", lambda _: "a GPU")
    _C.override_library_version("cuDNN", cudnn)
    try:
        assert main(["verify", "--errata", "--only", "pool-max-infinite"]) == code
    finally:
        _C.override_library_version("cuDNN", 0)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--errata: not given"),
        (["--errata", "--only", "conv-eng81"], "--only: got 'conv-eng81', wanted one of"),
        (["--errata", "--time-limit", "0"], "got '0', wanted a whole number, 1 or more"),
        (["--errata", "--device", "tpu"], "--device: got 'tpu'"),
    ],
)
def test_wrong_input_is_told_in_a_line(
    arguments: list[str], complaint: str, capsys: Capture
) -> None:
    assert main(["verify", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and complaint in shown.err and shown.err.count("\n") == 1
