"""``bench``: tuned algorithms compared with PyTorch's best."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import typer

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import Bench, Mode
from torch_cudnn_ext._defaults import IMAGE_SIZE
from torch_cudnn_ext._workload.problems import Layer, convolution_arguments
from torch_cudnn_ext.analysis.bench_page import bench_page
from torch_cudnn_ext.analysis.profile_page import versions
from torch_cudnn_ext.analysis.result_files import parse_results
from torch_cudnn_ext.analysis.tables import Table
from torch_cudnn_ext.bench import compiled, layers, modules, networks, overhead
from torch_cudnn_ext.bench.rounds import DEFAULT_POLICY
from torch_cudnn_ext.cli import checks, running, workload
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.tuning.measure import check_knob_search

# What is compared, the text of what was finished, and how many there are.
_Comparison = tuple[Iterable[Any], Callable[[list[Any], str], str | list[Table]], int]


def bench_command(context: typer.Context, given: Bench) -> None:
    """Run ``bench``."""
    source, tensors, constraints = given.source, given.tensors, given.constraints
    mode, search, resume, format = given.mode, given.search, given.resume, given.format
    running.check_report(given.report)
    place, before = checks.place_of(given.device), tuning.statistics()
    with ProgressBar() as bar:
        compared: _Comparison
        if mode.overhead:
            total = len(overhead.overhead_cases(place))
            compared = overhead.measure_overhead(place, bar), overhead.overhead_text, total
        elif mode.modules is not None:
            compared = _modules(mode.modules, mode.compiled, tensors, place, constraints, bar)
        elif mode.networks is not None:
            policy = constraints.policy or "autotune"
            compared = _networks(mode, tensors, place, policy, search, bar)
        else:
            if mode.kernels and place == "cpu":
                raise typer.BadParameter(
                    "--kernels: given on cpu, which runs no GPU kernels, wanted a GPU"
                )
            bar.phase(running.first_phase(source))
            found = workload.from_options(source, tensors, constraints.policy, place).layers
            name = "--model" if source.model else "--problems" if source.problems else ""
            found = _convolutions(found, name or "problem line")
            ranked = replace(constraints, policy=constraints.policy or DEFAULT_POLICY)
            settings = running.settings_of(found, place, None, ranked, search)
            part = workload.only_shard(found, given.shard_text)
            _merge_table(mode.table)
            journal, jobs = running.journal_of(resume), search.jobs
            results = layers.compare_layers(
                part, settings, mode.kernels, journal, bar, jobs, mode.table
            )
            compared = results, layers.comparison_text, len(part)
        items, text, total = compared
        shows = format is options.Format.table  # other formats hold results alone
        show = (lambda one: bar.print_row(text([one], "table"))) if shows else None
        finished, end = running.collect(items, show)
        output = text(finished, format.value)
    running.print_output(output)
    if not (mode.overhead or mode.networks):  # these measure in other ways, or processes
        running.print_measured(format, before)

    def report() -> str:
        tables = text(finished, "table")
        items = parse_results(str(text(finished, "json")), "bench").items.values()
        facts = {"device": _C.device_fingerprint(place), **versions()}
        replay = running.replay_of(context)
        return bench_page([*items], cast("list[Table]", tables), facts, replay).html()

    running.write_report(given.report, report)
    running.finish(end, len(finished), total)


def _modules(
    text: str,
    with_compiled: bool,
    tensors: options.Tensors,
    device: str,
    constraints: options.Constraints,
    bar: ProgressBar,
) -> _Comparison:
    with checks.errors_of("--modules"):
        cases = modules.select_cases(text, tensors.channels_last)
    dtypes = checks.words_of("f32,f16" if tensors.dtype is None else tensors.dtype)
    for dtype in dtypes:
        checks.one_of("--dtype", dtype, ("f32", "f16", "bf16"))
    policy = running.constrained(constraints.policy or DEFAULT_POLICY, constraints)
    for family in dict.fromkeys(case.family for case in cases):
        running.check_policy(policy, family)
    compared = modules.compare_modules(
        cases, dtypes, tensors.channels_last, device, policy, with_compiled, bar
    )
    total = sum(len(case.passes) for case in cases) * len(dtypes)
    return compared, modules.comparison_text, total


def _networks(
    mode: Mode,
    tensors: options.Tensors,
    device: str,
    policy: str,
    search: options.Search,
    bar: ProgressBar,
) -> _Comparison:
    precisions = checks.words_of("f32" if tensors.dtype is None else tensors.dtype)
    for precision in precisions:
        checks.one_of("--dtype", precision, networks.PRECISIONS)
    names = checks.words_of(mode.networks or "")
    for name in names:  # complains of a wrong one at once
        workload.load_network(name, replace(tensors, dtype=None), option="--networks")
    running.check_policy(policy)
    with checks.errors_of_arguments():
        check_knob_search(search.knob_search, device)
    _merge_table(mode.table)
    settings = networks.NetworkSettings(
        channels_last=tensors.channels_last,
        device=device,
        policy=policy,
        batch=tensors.batch,
        image_size=tensors.image_size or IMAGE_SIZE,
        jobs=search.jobs,
        knob_search=search.knob_search,
        time_budget_s=search.time_budget,
    )
    total = 2 * len(names) * len(precisions)
    if mode.compiled:
        both = compiled.compare_compiled(names, precisions, settings, bar, mode.table)
        return both, compiled.comparison_text, total
    compared = networks.compare_networks(names, precisions, settings, bar, mode.table)
    return compared, networks.comparison_text, total


def _convolutions(found: list[Layer], source: str) -> list[Layer]:
    """The problems that are PyTorch's convolutions; what is left out is told."""
    kept = [layer for layer in found if layer.problem.startswith("conv_")]
    others = [layer.problem for layer in found if layer not in kept]
    if not kept:
        raise typer.BadParameter(f"{source}: got {workload.ops_of(others)}, wanted a convolution")
    with checks.errors_of(source):
        for layer in kept:
            convolution_arguments(layer.problem)
    if others:
        typer.echo(
            f"left out {len(others)} of {len(found)} problems, which are no convolutions: "
            f"{workload.ops_of(others)}; --modules compares such",
            err=True,
        )
    return kept


def _merge_table(path: str | None) -> None:
    if path is not None:
        running.merge_file(path)
