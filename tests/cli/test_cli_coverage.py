"""The command `coverage`."""

import pytest
from cli_helpers import Capture

from torch_cudnn_ext.cli import main


def test_coverage(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["coverage", "--model", "resnet18", "--device", "cpu", "--batch", "2"]
    assert main([*command, "--image-size", "32", "--backends", "cpu", "--inference"]) == 0
    out = capsys.readouterr().out
    assert "conv 20 20 100.0%" in " ".join(out.split())
    assert "conv, " not in out
    assert out.startswith("calls, forward\n")


def test_coverage_counts_what_is_left_to_pytorch_by_reason(capsys: Capture, networks: str) -> None:
    command = ["coverage", "--model", f"{networks}:functions", "--device", "cpu", "--inference"]
    assert main([*command, "--backends", "legacy"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith(("conv ", "all "))] == [
        ["conv", "1", "0", "0.0%"],
        ["all", "3", "0", "0.0%"],
    ]
    assert "conv, 1 call:\n    cuDNN runs on CUDA devices only\n" in shown
