"""The command `coverage`."""

from pkgutil import resolve_name

import pytest
from cli_helpers import Capture

from torch_cudnn_ext.analysis import coverage
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
    network, inputs = resolve_name(f"{networks}:functions")()
    coverage(network.eval(), inputs, backward=False, backends="legacy").print()
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith(("conv ", "all "))] == [
        ["conv", "1", "0", "0.0%"],
        ["all", "3", "0", "0.0%"],
    ]
    assert "conv, 1 call:\n    cuDNN runs on CUDA devices only\n" in shown


@pytest.mark.parametrize("backends", ["cudnn", "graph", "legacy"])
def test_coverage_by_cudnn_is_refused_on_the_cpu(
    capsys: Capture, networks: str, backends: str
) -> None:
    command = ["coverage", "--model", f"{networks}:conv", "--device", "cpu"]
    assert main([*command, "--backends", backends]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --backends: got {backends!r} on cpu, where cuDNN runs nothing")
    if backends == "cudnn":  # the default
        assert main(command) == 2
        assert capsys.readouterr().err == error
