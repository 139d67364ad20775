"""``explain``: what every layer of a network runs, and why."""

from __future__ import annotations

import typer

from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import Explain
from torch_cudnn_ext.analysis.explain import explain
from torch_cudnn_ext.analysis.tables import print_tables
from torch_cudnn_ext.cli import checks, running, workload
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.models.enable import enabled_anew

_SHOWN_CALLS = 20


def explain_command(context: typer.Context, given: Explain) -> None:
    """Run ``explain``."""
    running.check_report(given.report)
    place = checks.place_of(given.device)
    running.check_policy(given.policy)
    with ProgressBar() as bar:
        bar.phase(f"running {given.model}")
        network, inputs = workload.load_network(given.model, given.tensors, place)
        with enabled_anew(given.policy), workload.network_errors(given.model):
            explanation = explain(
                network, inputs, train=given.train, measure=given.measure, progress=bar
            )
    if given.format is options.Format.json:
        typer.echo(explanation.to_json())
    elif given.format is options.Format.markdown:
        typer.echo(str(explanation), nl=False)
    elif given.format is options.Format.csv:
        typer.echo(explanation.to_csv(), nl=False)
    else:
        print_tables(explanation.tables(0 if given.all_layers else _SHOWN_CALLS))
    running.write_report(given.report, lambda: explanation.to_html(running.replay_of(context)))
