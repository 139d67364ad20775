"""``profile``: measure every algorithm on every distinct layer."""

from __future__ import annotations

from functools import partial

import typer

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._commands.commands import Profile
from torch_cudnn_ext._workload.problems import with_proxies
from torch_cudnn_ext.analysis.profile import measure_layers, profile_of_table
from torch_cudnn_ext.analysis.results import Profile as LayersProfile
from torch_cudnn_ext.analysis.summary import SHOWN_LAYERS
from torch_cudnn_ext.analysis.tables import LISTED_ROWS
from torch_cudnn_ext.cli import checks, running, workload
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.tuning.store import read_rows


def profile_command(context: typer.Context, given: Profile) -> None:
    """Run ``profile``."""
    show_all, top, format = given.show_all, given.top, given.format
    running.check_report(given.report)
    layers_shown = 0 if given.all_layers else SHOWN_LAYERS

    def report(result: LayersProfile) -> None:
        replay = running.replay_of(context)
        running.write_report(given.report, lambda: result.to_html(show_all, top, replay))

    if given.table is not None:
        kept = _profile_of_file(given.table, given.source.problem)
        running.print_profile(kept, format, show_all, top, layers=layers_shown)
        report(kept)
        return
    source, search, isolate = given.source, given.search, given.isolate
    device, target, constraints = given.device, given.target, given.constraints
    trace = partial(workload.trace_layers, proxies=target is not None or device is None)
    with ProgressBar() as bar:
        bar.phase(running.first_phase(source))
        work = workload.from_options(source, given.tensors, constraints.policy, device, trace)
    settings = running.settings_of(work.layers, device, target, constraints, search, given.energy)
    layers = work.layers if settings.target is None else with_proxies(work.layers)
    before = tuning.statistics()
    # After proxies are found, so that all shards measure alike.
    layers = workload.only_shard(layers, given.shard_text)
    journal = running.journal_of(given.resume)
    with ProgressBar() as bar:
        results = measure_layers(layers, settings, journal, bar, search.jobs, isolate)
        measured, end = running.collect(results)
    result = running.profile_of(measured, settings, source, work)
    source_of_top = context.get_parameter_source("top")
    is_asked = source_of_top is not None and source_of_top.name == "COMMANDLINE"
    listed_top = None if show_all or is_asked else LISTED_ROWS
    running.print_profile(result, format, show_all, top, listed_top, layers_shown)
    running.print_measured(format, before)
    report(result)
    running.finish(end, len(measured), len(layers))


def _profile_of_file(path: str, problem: str | None) -> LayersProfile:
    with checks.errors_of("--table"):
        entries = [row.entry for row in read_rows(path)]
        if not entries:
            raise ValueError(f"got {path!r}, which holds no rankings")
    if problem is not None:
        with checks.errors_of("problem line"):
            line = _C.canonical_problem(problem)
            entries = [entry for entry in entries if entry["problem"] == line]
            if not entries:
                raise ValueError(f"got {line!r}, which {path} does not hold")
    return profile_of_table(entries)
