"""``coverage``: count the calls of a network that cuDNN computes."""

from __future__ import annotations

from typing import Annotated

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.cli import options, workload


@options.with_options
def coverage_command(
    *,
    model: options.Model,
    tensors: options.Tensors,
    device: options.Device = None,
    forward: Annotated[
        bool, typer.Option("--forward", help="Inference: the forward alone, in eval mode.")
    ] = False,
    backends: Annotated[
        str, typer.Option("--backends", help="cudnn, graph, legacy, aten or cpu.")
    ] = "cudnn",
) -> None:
    """Count the calls of a network that cuDNN computes, and the others by reason."""
    known = (name for operator in _C.operators() for name in operator["backends"])
    options.one_of("--backends", backends, dict.fromkeys(["cudnn", *known]))
    place = options.place_of(device)
    network, inputs = workload.load_network(model, tensors, place)
    with workload.network_errors(model):
        network.train(not forward)
        covered = coverage(network, inputs, backward=not forward, backends=backends)
    covered.print()
