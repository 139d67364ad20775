"""``explain``: what every layer of a network runs, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from torch_cudnn_ext.analysis.explain import explain
from torch_cudnn_ext.analysis.tables import print_tables
from torch_cudnn_ext.cli import options, running, workload
from torch_cudnn_ext.models.enable import enabled_anew


@options.with_options
def explain_command(
    *,
    model: options.Model,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward.")] = False,
    tensors: options.Tensors,
    device: options.Device = None,
    policy: options.PolicyText = "",
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time each algorithm that runs.")
    ] = True,
    format: options.FormatOption = options.Format.table,
) -> None:
    """Tell what every layer of an unmodified network runs, and why."""
    place = options.place_of(device)
    running.check_policy(policy)
    network, inputs = workload.load_network(model, tensors, place)
    with enabled_anew(policy), workload.network_errors(model):
        explanation = explain(network, inputs, train=train, measure=measure)
    if format is options.Format.json:
        typer.echo(json.dumps([asdict(call) for call in explanation.calls], indent=2))
    elif format is options.Format.markdown:
        typer.echo(str(explanation), nl=False)
    elif format is options.Format.csv:
        typer.echo(explanation.to_csv(), nl=False)
    else:
        print_tables([explanation.table()])
