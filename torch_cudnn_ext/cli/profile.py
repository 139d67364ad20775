"""``profile``: measure every algorithm on every distinct layer."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload.problems import with_proxies
from torch_cudnn_ext.analysis.profile import measure_layers, profile_of_table
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.cli import options, running, workload
from torch_cudnn_ext.tuning.store import read_table

LISTED_ROWS = 5  # of what a target accepts, unless the user asks for more


@options.with_options
def profile_command(
    *,
    context: typer.Context,
    source: options.Source,
    tensors: options.Tensors,
    device: options.Device = None,
    target: options.Target = None,
    constraints: options.Constraints,
    show_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also what is excluded, unsupported or failed, and why. json and csv hold it "
            "always.",
        ),
    ] = False,
    top: Annotated[
        int,
        options.count(
            "--top",
            0,
            "Rows a table, in addition to PyTorch's and the current one; 0: all. json and csv "
            "hold all.",
        ),
    ] = 20,
    shard_text: options.Shard = None,
    resume: options.Resume = None,
    format: options.FormatOption = options.Format.table,
    search: options.Search,
    isolate: options.Isolate = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Print a file of the tuning table; measure nothing."),
    ] = None,
) -> None:
    """Measure every algorithm on every distinct layer, and sum up."""
    if format in (options.Format.json, options.Format.csv):
        for name in ("show_all", "top"):
            options.forbid(context, name, f"--format {format.value}, which holds every row")
    if table is not None:
        options.allow_only(context, "table", "problem", "show_all", "top", "format")
        running.print_profile(_profile_of_file(table, source.problem), format, show_all, top)
        return
    options.check_isolation(isolate)
    trace = partial(workload.trace_layers, proxies=target is not None or device is None)
    work = workload.from_options(source, tensors, constraints.policy, device, trace)
    settings = running.settings_of(work.layers, device, target, constraints, search)
    layers = work.layers if settings.target is None else with_proxies(work.layers)
    # After proxies are found, so that all shards measure alike.
    layers = workload.only_shard(layers, shard_text)
    journal = running.journal_of(resume)
    with running.ProgressBar() as bar:
        results = measure_layers(layers, settings, journal, bar, search.jobs, isolate)
        measured, end = running.collect(results)
    result = running.profile_of(measured, settings, source, work)
    source_of_top = context.get_parameter_source("top")
    is_asked = source_of_top is not None and source_of_top.name == "COMMANDLINE"
    listed_top = None if show_all or is_asked else LISTED_ROWS
    running.print_profile(result, format, show_all, top, listed_top)
    running.finish(end, len(measured), len(layers))


def _profile_of_file(path: str, problem: str | None) -> Profile:
    with options.errors_of("--table"):
        entries = read_table(path)
        if not entries:
            raise ValueError(f"got {path!r}, which holds no rankings")
    if problem is not None:
        with options.errors_of("problem line"):
            line = _C.canonical_problem(problem)
            entries = [entry for entry in entries if entry["problem"] == line]
            if not entries:
                raise ValueError(f"got {line!r}, which {path} does not hold")
    return profile_of_table(entries)
