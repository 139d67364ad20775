"""``optimize``: the fastest version of a network."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import cast

import typer

from torch_cudnn_ext._commands.commands import Optimize
from torch_cudnn_ext._optimize.optimize import optimize
from torch_cudnn_ext._optimize.options import Layout
from torch_cudnn_ext.analysis.picture_file import check_picture
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.tables import Column, Table, bytes_text, milliseconds, print_tables
from torch_cudnn_ext.cli import checks, running, workload
from torch_cudnn_ext.cli.progress import ProgressBar

_SHOWN_PROBLEMS = 20


def optimize_command(context: typer.Context, given: Optimize) -> None:
    """Run ``optimize``."""
    running.check_report(given.report)
    running.check_report(given.pareto, "--pareto")
    running.check_report(given.save, "--save")
    if given.pareto is not None:
        with checks.errors_of("--pareto"):
            check_picture(given.pareto)
    place = checks.place_of(given.device)
    text = running.constrained(running.check_policy(given.constraints.policy), given.constraints)
    with ProgressBar() as bar:
        bar.phase(f"loading {given.model}")
        network, inputs = workload.load_network(given.model, given.tensors, place)
    if isinstance(inputs, Mapping):
        raise typer.BadParameter(
            f"--model: got {given.model}, which gives keyword arguments, wanted a tensor or a tuple"
        )
    search = given.search
    with checks.errors_of_arguments():
        settings = make_settings(place, None, text, search.time_budget, None, search.knob_search)
    arguments = signature(optimize).parameters
    with (
        ProgressBar() as bar,
        workload.network_errors(given.model),
        checks.errors_of_arguments(arguments),
    ):
        bar.phase(f"running {given.model}")
        fast = optimize(
            network,
            tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,),
            policy=text,
            train=given.train,
            layout=cast("Layout", given.layout),
            cuda_graph=given.cuda_graph,
            torch_compile=given.torch_compile,
            max_error=given.max_error,
            peak_memory=given.peak_memory,
            time_budget_s=settings.time_budget_s,
            knob_search=settings.knob_search,
            jobs=search.jobs,
            progress=bar,
        )
    typer.echo(fast.report.text(0 if given.all_layers else _SHOWN_PROBLEMS))
    running.write_report(given.report, lambda: fast.report.to_html(running.replay_of(context)))
    if given.save is not None:
        with checks.errors_of("--save"):
            fast.save(given.save)
    if given.pareto is not None and not fast.pareto():
        typer.echo(
            "--pareto: nothing is drawn, since no problem of the network has a time", err=True
        )
    elif given.pareto is not None:
        rows = [[bytes_text(size), milliseconds(ms)] for size, ms in fast.pareto()]
        columns = (Column("workspace", right=True), Column("ms a call", right=True))
        print_tables([Table("The least time within a workspace", columns, rows)])
        with checks.errors_of("--pareto"):
            fast.report.write_pareto(given.pareto)
