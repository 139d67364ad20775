"""What tests of the command line share."""

import json

import pytest

from torch_cudnn_ext.bench import networks, rounds
from torch_cudnn_ext.cli import main

Capture = pytest.CaptureFixture[str]


def json_of(capsys: Capture, *arguments: str) -> dict[str, list[dict[str, object]]]:
    assert main([*arguments, "--format", "json"]) == 0
    result: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return result


def compare_here_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has ``bench --networks`` start no process, and time one round."""
    monkeypatch.setattr(networks, "_in_fresh_process", networks._compare)
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    monkeypatch.setattr(networks, "SAMPLE_MS", 0.1)
