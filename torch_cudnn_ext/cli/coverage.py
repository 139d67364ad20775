"""``coverage``: count the calls of a network that cuDNN computes."""

from __future__ import annotations

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.commands import Coverage
from torch_cudnn_ext._defaults import DEFAULT_TARGET
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.cli import checks, workload
from torch_cudnn_ext.cli.progress import ProgressBar


def coverage_command(context: typer.Context, given: Coverage) -> None:
    """Run ``coverage``."""
    known = (name for operator in _C.operators() for name in operator["backends"])
    checks.one_of("--backends", given.backends, dict.fromkeys(["cudnn", *known]))
    place = checks.place_of(given.device)
    if place == "cpu" and given.backends in ("cudnn", "graph", "legacy"):
        raise typer.BadParameter(
            f"--backends: got {given.backends!r} on cpu, where cuDNN runs nothing, wanted a GPU, "
            f"or aten or cpu; list --model {given.model} --target {DEFAULT_TARGET} lists what that "
            "GPU accepts"
        )
    with ProgressBar() as bar:
        bar.phase(f"running {given.model}")
        network, inputs = workload.load_network(given.model, given.tensors, place)
        with workload.network_errors(given.model):
            network.train(given.train)
            covered = coverage(
                network, inputs, backward=given.train, backends=given.backends, progress=bar
            )
    covered.print()
