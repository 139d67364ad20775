"""``python -m torch_cudnn_ext profile | list | tune | explain | coverage | bench | info``."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import torch
import typer

from torch_cudnn_ext import _C, __version__, nn, tuning
from torch_cudnn_ext._policy_text import FOR_ALL, fields_of, only_fields, operators
from torch_cudnn_ext._workload.journal import Journal
from torch_cudnn_ext._workload.models import IMAGE_SIZE, MODEL_BATCH, load_model
from torch_cudnn_ext._workload.network import Workload, network_layers, nothing_found
from torch_cudnn_ext._workload.problems import (
    DTYPES,
    PASSES,
    Layer,
    check_passes,
    convolution_arguments,
    coupled_problems,
    is_inference,
    is_wanted,
    merge,
    read_problems,
    rewrite,
    shard,
    with_passes,
    with_proxies,
    without_batch,
)
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.analysis import tables as report
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.analysis.explain import explain
from torch_cudnn_ext.analysis.profile import (
    LayerProfile,
    Profile,
    Settings,
    list_layer,
    make_settings,
    measure_layers,
    profile_of_choices,
)
from torch_cudnn_ext.bench import layers as bench
from torch_cudnn_ext.bench import modules as bench_modules
from torch_cudnn_ext.bench import networks as bench_networks
from torch_cudnn_ext.bench.networks import NETWORK_BATCH
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import enabled_anew
from torch_cudnn_ext.policy import text_for_all
from torch_cudnn_ext.tuning.measure import (
    check_constraints_alone,
    check_knob_search,
    checked_device,
    fp32_switches,
)
from torch_cudnn_ext.tuning.store import MEASUREMENT_FIELDS, read_table
from torch_cudnn_ext.tuning.tune import problems_met
from torch_cudnn_ext.tuning.worker_pool import worker_pool

if TYPE_CHECKING:
    from collections.abc import Iterator


# How to load a network on a device, and what to measure of one: of its name, for these passes,
# under this field of a policy, on that device.
_Loader = Callable[[str], tuple[torch.nn.Module, Any]]
_Look = Callable[[str, _Loader, list[str], str, str], Workload]

T = TypeVar("T")
N = TypeVar("N", int, float)

INTERRUPTED = 130
MOST = 2**31 - 1  # of a whole number that an option takes
INFO_JOBS = 8  # each has a CUDA context, of half a GiB of the GPU's memory

# Any complaint about the command line; the class is click's, which some typers carry within.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Profile, list and compare the algorithms of cuDNN, of PyTorch and of the CPU.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torch_cudnn_ext {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


class Format(Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def _number(kind: Callable[[str], N], least: N) -> Callable[[str], N]:
    """Reads an option's number; typer's own complaint does not tell what came."""

    def read(text: str) -> N:
        with suppress(ValueError):
            if least <= (value := kind(text)) < math.inf:  # nor nan
                if kind is int and value > MOST:
                    raise typer.BadParameter(f"got {text!r}, wanted at most {MOST}")
                return value
        noun = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"got {str(text)!r}, wanted {noun}, {least} or more")

    return read


# What `bench --modules` takes.
_OF_MODULES = (
    "dtype",
    "channels_last",
    "device",
    "policy",
    "max_workspace",
    "deterministic",
    "allow_tf32",
    "format",
    "compiled",
)
# And `bench --networks`.
_OF_NETWORKS = (
    "dtype",
    "batch",
    "image_size",
    "channels_last",
    "device",
    "policy",
    "format",
    "jobs",
    "choices",
    "knob_search",
    "time_budget",
)

# What `tune` tells of each problem's best algorithm.
_TUNED_COLUMNS = (
    report.Column("problem", lambda r: r["problem"], False),
    report.ALGORITHM,
    report.Column("ms", lambda r: report.milliseconds(r["median_ms"]), True),
    report.Column("workspace", lambda r: report.bytes_text(r["workspace_bytes"]), True),
)

# Options that several commands take.
ProblemArgument = Annotated[
    str | None, typer.Argument(help="A problem line, in quotes.", show_default=False)
]
_MODEL = typer.Option(
    "--model", help="A network of torchvision, or module:callable that gives one."
)
ModelOption = Annotated[str | None, _MODEL]
RequiredModelOption = Annotated[str, _MODEL]
ProblemsOption = Annotated[
    str | None,
    typer.Option(
        "--problems",
        help="A file of problem lines, - for standard input, or a shipped one (resnet50). A line "
        "may end in the layers that have it and how often it occurs: # conv1, layer1.conv x2.",
    ),
]
PassesOption = Annotated[
    str | None,
    typer.Option(
        "--passes",
        help="fwd, bwd (all others), or passes by name: bwd_data,…; of a model fwd alone is "
        "inference, all else a training step.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="f64, f32, f16 or bf16; by default torchvision's networks are f32, and others are "
        "what they are.",
    ),
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        parser=_number(int, 1),
        metavar="N",
        help=f"Batch size; of a model's images {MODEL_BATCH} by default (bench --networks: "
        f"{NETWORK_BATCH}).",
    ),
]
ImageOption = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        parser=_number(int, 1),
        metavar="N",
        help=f"Height and width of a model's images; {IMAGE_SIZE} by default. Neither this nor "
        "--batch goes with a callable that gives inputs of other sizes.",
    ),
]
ChannelsLastOption = Annotated[
    bool, typer.Option("--channels-last", help="Lay tensors out channels-last.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", help="cpu, cuda or cuda:<index>; by default the GPU where there is one."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="A GPU that need not be there: what it accepts is listed. "
        f"{report.DEFAULT_TARGET} where there is no GPU and no --device.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        help="A policy text, of the operator that all problems are of; of several kinds, and of "
        "explain and bench --networks, as enable() takes it.",
    ),
]
WorkspaceOption = Annotated[
    str | None, typer.Option("--max-workspace", help="A cap: bytes, 64MiB, or 20% of the memory.")
]
DeterministicOption = Annotated[
    bool, typer.Option("--deterministic", help="Only deterministic algorithms.")
]
Tf32Option = Annotated[
    bool | None,
    typer.Option("--allow-tf32/--no-allow-tf32", help="TF32 for f32; by default as PyTorch."),
]
ShardOption = Annotated[
    str | None, typer.Option("--shard", help="Only the i-th of n parts: i/n, from 1/n to n/n.")
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", help="Keep finished problems in this file, and skip those in it."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        parser=_number(float, 0),
        metavar="S",
        help="Seconds a problem; 0: no limit. By default 2 on the CPU, 0 on a GPU; of bench "
        "--networks autotune's, or none with --jobs or --knob-search.",
    ),
]
KnobOption = Annotated[
    bool,
    typer.Option("--knob-search", help="Also search the knobs of the best engines, on a GPU."),
]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        parser=_number(int, 1),
        metavar="N",
        help="Processes that build side by side, and run and time in turns.",
    ),
]
AllOption = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Also what is excluded, unsupported or failed, and why. json and csv hold it always.",
    ),
]
TopOption = Annotated[
    int,
    typer.Option(
        "--top",
        parser=_number(int, 0),
        metavar="N",
        help="Rows a table, beside PyTorch's and the current one; 0: all. json and csv hold all.",
    ),
]


@app.command("profile")
def profile_command(
    context: typer.Context,
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    target: TargetOption = None,
    policy: PolicyOption = "",
    max_workspace: WorkspaceOption = None,
    deterministic: DeterministicOption = False,
    allow_tf32: Tf32Option = None,
    show_all: AllOption = False,
    top: TopOption = 20,
    shard_text: ShardOption = None,
    resume: ResumeOption = None,
    format: FormatOption = Format.table,
    time_budget: BudgetOption = None,
    knob_search: KnobOption = False,
    jobs: JobsOption = 1,
    choices: Annotated[
        str | None,
        typer.Option("--choices", help="Print what a file of choices holds; measure nothing."),
    ] = None,
) -> None:
    """Measure every algorithm on every distinct layer, and sum up."""
    if format in (Format.json, Format.csv):
        for name in ("show_all", "top"):
            _refuse(context, name, f"--format {format.value}, which holds every row")
    if choices is not None:
        _refuse_others(context, "choices", "problem", "show_all", "top", "format")
        _print_profile(_kept(choices, problem), format, show_all, top)
        return
    work = _workload(
        problem,
        model,
        problems,
        passes,
        dtype,
        batch,
        image_size,
        channels_last,
        policy,
        device,
        partial(_layers, stand_ins=target is not None or device is None),
    )
    settings = _settings(
        work.layers,
        device,
        target,
        policy,
        max_workspace,
        deterministic,
        allow_tf32,
        time_budget,
        knob_search,
    )
    layers = work.layers if settings.target is None else with_proxies(work.layers)
    layers = _shard(layers, shard_text)  # all of which are measured alike
    with report.ProgressBar() as bar:
        measured, end = _collect(measure_layers(layers, settings, _journal(resume), bar, jobs))
    result = _profile_of(measured, settings, model or problems, work)
    _print_profile(result, format, show_all, top)
    _finish(end, len(measured), len(layers))


def _kept(choices: str, problem: str | None) -> Profile:
    with _naming("--choices"):
        entries = read_table(choices)
        if not entries:
            raise ValueError(f"got {choices!r}, which holds no choices")
    if problem is not None:
        with _naming("problem line"):
            line = _C.canonical_problem(problem)
            entries = [entry for entry in entries if entry["problem"] == line]
            if not entries:
                raise ValueError(f"got {line!r}, which {choices} does not hold")
    return profile_of_choices(entries)


def _profile_of(
    layers: list[LayerProfile], settings: Settings, title: str | None, work: Workload
) -> Profile:
    return Profile(layers, settings, title or "", work.not_profiled, work.without_functions)


def _print_profile(result: Profile, format: Format, show_all: bool, top: int) -> None:
    if format in (Format.table, Format.markdown):
        extent = report.Extent(show_all, top, "--all", "--top 0")
        tables = report.profile_tables(result, extent)
        _print(report.tables_markdown(tables) if format is Format.markdown else tables)
    elif format is Format.json:
        typer.echo(result.to_json())
    elif format is Format.csv:
        typer.echo(result.to_csv(), nl=False)


@app.command("list")
def list_command(
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    target: TargetOption = None,
    policy: PolicyOption = "",
    max_workspace: WorkspaceOption = None,
    deterministic: DeterministicOption = False,
    allow_tf32: Tf32Option = None,
    format: FormatOption = Format.table,
) -> None:
    """List what supports a problem, with workspaces, and why the others do not; time nothing."""
    if device is not None and target is not None:
        raise typer.BadParameter(f"--target: got {target!r} with --device {device}, wanted one")
    work = _workload(
        problem, model, problems, passes, dtype, batch, image_size, channels_last, policy, device
    )
    settings = _settings(
        work.layers, device, target, policy, max_workspace, deterministic, allow_tf32
    )
    place = settings.device if settings.target is None else f"target:{settings.target}"
    settings = replace(settings, max_workspace_bytes=_C.workspace_cap(settings.policy, place))
    listed = [list_layer(layer, place, settings.policy) for layer in work.layers]
    result = _profile_of(listed, settings, model or problems, work)
    _print_profile(result, format, show_all=True, top=0)


@app.command("bench")
def bench_command(
    context: typer.Context,
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    policy: PolicyOption = "",
    max_workspace: WorkspaceOption = None,
    deterministic: DeterministicOption = False,
    allow_tf32: Tf32Option = None,
    shard_text: ShardOption = None,
    resume: ResumeOption = None,
    format: FormatOption = Format.table,
    time_budget: BudgetOption = None,
    knob_search: KnobOption = False,
    jobs: JobsOption = 1,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="Host time per call instead, on small problems.")
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Also the names of the GPU kernels of both sides.")
    ] = False,
    modules: Annotated[
        str | None,
        typer.Option(
            "--modules",
            help="Modules of torch.nn against the drop-ins instead: all, or words of their names "
            "(Pool,BatchNorm2d), or mixed, of other sizes. --dtype takes several: f32,f16.",
        ),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With --modules: torch.compile beside them.")
    ] = False,
    networks: Annotated[
        str | None,
        typer.Option(
            "--networks",
            help="Unmodified networks under enable() against eager PyTorch instead: names as "
            "--model takes them, with commas. --dtype takes several: f32,tf32,f16,bf16.",
        ),
    ] = None,
    choices: Annotated[
        str | None,
        typer.Option(
            "--choices",
            help="Of layers and --networks: a file of choices to begin with, and to add to.",
        ),
    ] = None,
) -> None:
    """Compare tuned algorithms with PyTorch's best, side by side.

    Single layers and modules are compared by the GPU's time, so tuning ranks by it there:
    --policy is "autotune;prefer=gpu_time" by default, of --networks "autotune". What it pins, or
    leaves to the heuristic, is compared instead of what tuning finds.
    """
    with _options():
        device = checked_device(device)
    with report.ProgressBar() as bar:
        if overhead:
            _refuse_others(context, "overhead", "device", "format")
            results, end = _collect(bench.measure_overhead(device, bar))
            total = len(bench.overhead_problems(device))
            output = bench.overhead_text(results, format.value)
            finished = len(results)
        elif modules is not None:
            _refuse_others(context, "modules", *_OF_MODULES)
            cases = _module_cases(modules, channels_last)
            words = ["f32", "f16"] if dtype is None else _words(dtype)
            dtypes = [_one_of("--dtype", word, ("f32", "f16", "bf16")) for word in words]
            text = _constrained(
                policy or bench.DEFAULT_POLICY, max_workspace, deterministic, allow_tf32
            )
            for family in dict.fromkeys(getattr(nn, case.module).family for case in cases):
                _check_policy(text, family)
            compared, end = _collect(
                bench_modules.compare_modules(
                    cases, dtypes, channels_last, device, text, compiled, bar
                )
            )
            output = bench_modules.comparison_text(compared, format.value)
            finished = len(compared)
            total = sum(len(case.passes) for case in cases) * len(dtypes)
        elif networks is not None:
            _refuse_others(context, "networks", *_OF_NETWORKS)
            words = ["f32"] if dtype is None else _words(dtype)
            precisions = [_one_of("--dtype", word, bench_networks.PRECISIONS) for word in words]
            names = _words(networks)
            for name in names:  # a wrong one is told at once
                _network(name, batch, image_size, None, channels_last, option="--networks")
            text = policy or "autotune"
            _check_policy(text)
            with _options():
                check_knob_search(knob_search, device)
            if choices is not None:
                _add_choices(choices)
            whole, end = _collect(
                bench_networks.compare_networks(
                    names,
                    precisions,
                    channels_last,
                    device,
                    text,
                    batch or NETWORK_BATCH,
                    image_size or IMAGE_SIZE,
                    bar,
                    jobs,
                    choices,
                    knob_search,
                    time_budget,
                )
            )
            output = bench_networks.comparison_text(whole, format.value)
            finished, total = len(whole), 2 * len(names) * len(precisions)
        else:
            if compiled:
                raise typer.BadParameter("--compiled: got it without --modules, wanted both")
            if kernels and device == "cpu":
                raise typer.BadParameter(
                    "--kernels: given on cpu, which runs no GPU kernels, wanted a GPU"
                )
            work = _workload(
                problem,
                model,
                problems,
                passes,
                dtype,
                batch,
                image_size,
                channels_last,
                policy,
                device,
            )
            source = "--model" if model else "--problems" if problems else "problem line"
            layers = _convolutions(work.layers, source)
            settings = _settings(
                layers,
                device,
                None,
                policy or bench.DEFAULT_POLICY,
                max_workspace,
                deterministic,
                allow_tf32,
                time_budget,
                knob_search,
            )
            layers = _shard(layers, shard_text)
            if choices is not None:
                if resume is not None and os.path.realpath(choices) == os.path.realpath(resume):
                    raise typer.BadParameter(
                        f"--choices: got {choices!r}, the file of --resume, wanted another"
                    )
                _add_choices(choices)
            comparisons, end = _collect(
                bench.compare_layers(
                    layers, settings, kernels, _journal(resume), bar, jobs, choices
                )
            )
            output = bench.comparison_text(comparisons, format.value)
            finished, total = len(comparisons), len(layers)
    _print(output)
    _finish(end, finished, total)


def _print(output: str | list[report.Table]) -> None:
    if isinstance(output, str):
        typer.echo(output.removesuffix("\n"))
    else:
        report.print_tables(output)


def _convolutions(layers: list[Layer], source: str) -> list[Layer]:
    """Those that PyTorch's convolutions pose; what else there is is told."""
    found = [layer for layer in layers if layer.problem.startswith("conv_")]
    others = [layer for layer in layers if layer not in found]
    ops = ", ".join(dict.fromkeys(layer.problem.split()[0] for layer in others))
    if not found:
        raise typer.BadParameter(f"{source}: got {ops}, wanted a convolution")
    with _naming(source):
        for layer in found:
            convolution_arguments(layer.problem)
    if others:
        typer.echo(
            f"left out {len(others)} of {len(layers)} problems, which are no convolutions: {ops}; "
            "--modules compares such",
            err=True,
        )
    return found


def _refuse_others(context: typer.Context, mode: str, *taken: str) -> None:
    """Refuse what was given on the command line and does nothing in this mode."""
    words = ", ".join(_option(context, name) for name in taken)
    for name in context.params:
        if name not in (mode, *taken):
            _refuse(context, name, f"--{mode}, which takes no more than {words}")


def _refuse(context: typer.Context, name: str, beside: str) -> None:
    """Refuse an option that was given on the command line, beside what leaves it nothing to do."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(f"{_as_given(context, name)} with {beside}")


def _as_given(context: typer.Context, name: str) -> str:
    """An option, and what came, as they are written on a command line."""
    value = context.params[name]
    if isinstance(value, bool):
        (param,) = (p for p in context.command.params if p.name == name)
        return f"{(param.opts if value else param.secondary_opts)[0]}: given"
    return f"{_option(context, name)}: got {value.value if isinstance(value, Enum) else value!r}"


def _option(context: typer.Context, name: str) -> str:
    if name == "problem":
        return "a problem line"
    return next(p.opts[0] for p in context.command.params if p.name == name)


def _module_cases(text: str, channels_last: bool) -> list[bench_modules.Case]:
    listed = bench_modules.MIXED if text == "mixed" else bench_modules.CASES
    cases = [case for case in listed if not channels_last or len(case.sizes) in (4, 5)]
    if text in ("all", "mixed"):
        return cases
    known = list(dict.fromkeys(case.module for case in cases))
    words = _words(text)
    if not all(word and any(word in name for name in known) for word in words):
        where = " with --channels-last" if channels_last else ""
        raise typer.BadParameter(
            f"--modules: got {text!r}{where}, wanted all, mixed or words of {', '.join(known)}"
        )
    return [case for case in cases if any(word in case.module for word in words)]


def _one_of(option: str, word: str, known: Iterable[str]) -> str:
    if word not in known:
        words = [*known]
        near = _C.nearest_words(word, words)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise typer.BadParameter(f"{option}: got {word!r}, wanted one of {', '.join(words)}{hint}")
    return word


@app.command("tune")
def tune_command(
    choices: Annotated[
        str, typer.Option("--choices", help="A file of choices, to begin with and to add to.")
    ],
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    policy: PolicyOption = "",
    max_workspace: WorkspaceOption = None,
    deterministic: DeterministicOption = False,
    allow_tf32: Tf32Option = None,
    shard_text: ShardOption = None,
    time_budget: BudgetOption = None,
    knob_search: KnobOption = False,
    jobs: JobsOption = 1,
    format: FormatOption = Format.table,
) -> None:
    """Measure ahead of use, and keep the rankings in a file for `tuning.import_table`.

    Of a network it is what a training step meets under enable("autotune"), calls by function too:
    it runs once on the device. With --passes fwd it infers; other passes are those of the lines.
    """
    work = _workload(
        problem,
        model,
        problems,
        passes,
        dtype,
        batch,
        image_size,
        channels_last,
        policy,
        device,
        _problems_met,
    )
    settings = _settings(
        work.layers,
        device,
        None,
        policy,
        max_workspace,
        deterministic,
        allow_tf32,
        time_budget,
        knob_search,
    )
    place, text = settings.device, settings.policy
    with _naming("--policy"):
        check_constraints_alone(text)
    lines = [layer.problem for layer in _shard(work.layers, shard_text)]
    _add_choices(choices)
    rows = partial(_C.tuned, device=place, policy=text, time_budget_s=settings.time_budget_s)
    left = [line for line in lines if rows(line) is None]
    known = len(lines) - len(left)
    footer = f"{known} of {len(lines)} problems were in {choices} before" if known else ""
    end: _End = None
    try:
        with report.ProgressBar() as bar:
            tuning.tune(
                left,
                device=place,
                policy=text,
                time_budget_s=settings.time_budget_s,
                knob_search=knob_search,
                jobs=jobs,
                progress=bar,
            )
    except KeyboardInterrupt as interrupt:
        end = interrupt
    finally:
        rankings = [(line, rows(line)) for line in lines]
        records = [{"problem": line, **ranking[0]} for line, ranking in rankings if ranking]
        title = f"tuned on {place}"
        data = {"best": records}
        try:
            tuning.merge_table(choices)
        finally:
            _print(
                report.formatted(
                    format.value,
                    data,
                    title,
                    _TUNED_COLUMNS,
                    records,
                    ("problem", *MEASUREMENT_FIELDS),
                    footer,
                )
            )
    _finish(end, len(records), len(lines))


def _add_choices(path: str) -> None:
    """Before anything is measured, so that what cannot be read or written is told at once."""
    with _naming("--choices"):
        tuning.merge_table(path)


@app.command("coverage")
def coverage_command(
    model: RequiredModelOption,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    dtype: DtypeOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    forward: Annotated[
        bool, typer.Option("--forward", help="Inference: the forward alone, in eval mode.")
    ] = False,
    backends: Annotated[
        str, typer.Option("--backends", help="cudnn, graph, legacy, aten or cpu.")
    ] = "cudnn",
) -> None:
    """Count the calls of a network that cuDNN computes, and the others by reason."""
    known = (name for operator in _C.operators() for name in operator["backends"])
    _one_of("--backends", backends, dict.fromkeys(["cudnn", *known]))
    with _options():
        place = checked_device(device)
    network, inputs = _network(model, batch, image_size, dtype, channels_last, place)
    with _running(model):
        network.train(not forward)
        covered = coverage(network, inputs, backward=not forward, backends=backends)
    covered.print()


@app.command("explain")
def explain_command(
    model: RequiredModelOption,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward.")] = False,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = None,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    policy: PolicyOption = "",
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time each algorithm that runs.")
    ] = True,
    format: FormatOption = Format.table,
) -> None:
    """Tell what every layer of an unmodified network runs, and why."""
    with _options():
        place = checked_device(device)
    _check_policy(policy)
    network, inputs = _network(model, batch, image_size, dtype, channels_last, place)
    with enabled_anew(policy), _running(model):
        explanation = explain(network, inputs, train=train, measure=measure)
    if format is Format.json:
        typer.echo(json.dumps([asdict(call) for call in explanation.calls], indent=2))
    elif format is Format.markdown:
        typer.echo(str(explanation), nl=False)
    elif format is Format.csv:
        typer.echo(explanation.to_csv(), nl=False)
    else:
        report.print_tables([explanation.table()])


@app.command("info")
def info_command(
    operators: Annotated[
        bool, typer.Option("--operators", help="The table of operators alone, as Markdown.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            parser=_number(int, 1),
            metavar="N",
            help="Processes that build every engine for a GPU; by default one a core, at most 8.",
        ),
    ] = None,
) -> None:
    """Print versions, libraries, devices, and the backends with their numbers of algorithms."""
    if operators:
        if jobs is not None:
            raise typer.BadParameter("--jobs: got it with --operators, which builds nothing")
        typer.echo(report.operators_markdown(), nl=False)
        return
    for name, version in {"torch_cudnn_ext": __version__, **_C.versions()}.items():
        typer.echo(f"{name:15} {version}")
    for path in _C.cudnn_files():
        typer.echo(f"{'libcudnn':15} {path}")
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    files = Path(__file__).parents[1].glob("devices/*.json")
    devices += [f"target:{file.stem}" for file in sorted(files)]
    for device in devices:
        typer.echo(f"{'device':15} {device}: {_C.device_fingerprint(device)}")
    typer.echo()
    gpu = checked_device()
    if gpu == "cpu":  # where nothing is compiled
        gpu, jobs = f"target:{report.DEFAULT_TARGET}", jobs or 1
    else:
        jobs = jobs or min(len(os.sched_getaffinity(0)), INFO_JOBS)
    work = [
        (example, op, rewrite(example, op=op), operator["backends"], gpu)
        for operator in _C.operators()
        for example in operator["examples"]
        for op in (f"{operator['family']}_{name}" for name in operator["passes"])
    ]
    counts: dict[str, list[list[str]]] = {}
    with report.ProgressBar() as bar:
        results = _spread(jobs, report.algorithm_counts, [count for _, *count in work])
        for done, (example, *_) in enumerate(work):
            bar.problem(done, len(work), example)
            counts.setdefault(example, []).extend(next(results))
    # A name is an engine of cuDNN's, or an algorithm; its options are knobs, or a math type.
    headings = ("op", "backend", "device", "names", "with options", "on this problem")
    columns = [report.Column(h, right=h in headings[3:5]) for h in headings]
    report.print_tables(
        report.Table(f"algorithms for {example.partition(' ')[2]}", columns, rows)
        for example, rows in counts.items()
    )


def _spread(jobs: int, function: Callable[..., T], work: list[list[Any]]) -> Iterator[T]:
    """What it gives for each, in their order, by so many processes; one is this one."""
    if jobs == 1:
        yield from starmap(function, work)
        return
    with worker_pool(jobs) as pool:
        for future in [pool.submit(function, *arguments) for arguments in work]:
            yield future.result()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


# What the options mean.


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """What is wrong inside is wrong with this option."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        # It may name itself, and the option does.
        text = str(error).removeprefix(f"{option.removeprefix('--')}: ")
        text = re.sub(r"^(problem|problem text|policy text|device): ", "", text)
        raise typer.BadParameter(f"{option}: {text}") from error


@contextmanager
def _options() -> Iterator[None]:
    """An argument that is wrong inside is the option of its name."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        name, _, rest = str(error).partition(":")
        rest = re.sub("^ got True ", " given ", rest)  # a flag has no value there
        raise typer.BadParameter(f"--{name.replace('_', '-')}:{rest}") from error


def _network(
    name: str,
    batch: int | None,
    image_size: int | None,
    dtype: str | None,
    channels_last: bool,
    device: str = "meta",
    option: str = "--model",
) -> tuple[torch.nn.Module, Any]:
    """The network that an option names, and its inputs."""
    _check_dtype(dtype)
    try:
        network, inputs = load_model(
            name,
            batch=batch or MODEL_BATCH,
            image_size=image_size or IMAGE_SIZE,
            dtype=dtype,
            channels_last=channels_last,
            device=device,
        )
    except (Exception, SystemExit) as error:  # a callable of the user's may raise any
        if isinstance(error, ValueError) and str(error).startswith("got "):
            raise typer.BadParameter(f"{option}: {error}") from error
        raise _raised(name, error) from error
    _check_shapes(name, network, inputs, batch, image_size, channels_last)
    return network, inputs


def _check_shapes(
    name: str,
    network: torch.nn.Module,
    inputs: object,
    batch: int | None,
    image_size: int | None,
    channels_last: bool,
) -> None:
    """Refuse what a callable's own network and inputs do not follow."""
    tensors = tensors_in(inputs)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for size, wanted, found in (
        ("--batch", batch, [shape[:1] for shape in shapes]),
        ("--image-size", image_size, [shape[-2:] for shape in shapes]),
    ):
        if wanted is not None and {wanted} not in map(set, found):
            own = ", ".join("x".join(map(str, shape)) for shape in shapes)
            raise typer.BadParameter(
                f"{size}: got {wanted} with {name}, which gives inputs of its own ({own})"
            )
    tensors += [*network.parameters(), *network.buffers()]
    if channels_last and not any(tensor.dim() in (4, 5) for tensor in tensors):
        raise typer.BadParameter(
            f"--channels-last: given with {name}, which has no tensor of 4 or 5 dimensions"
        )


@contextmanager
def _running(name: str, train: str = "--train", without: str = "no backward") -> Iterator[None]:
    """What a network raises when it runs is told in one line; it is no wrong argument."""
    try:
        yield
    except (Exception, SystemExit) as error:
        # What this package says of an argument is one, of the option that stands for it.
        options = {"model": "--model", "passes": "--passes", "train": train}
        if said := re.match(r"(?:\w+: argument )?(model|passes|train): ", str(error)):
            message = str(error)[said.end() :].replace("train=False", without)
            raise typer.BadParameter(f"{options[said[1]]}: {message}") from error
        # A generator, as this one, cannot raise what comes from a StopIteration.
        raise _raised(name, error) from (None if isinstance(error, StopIteration) else error)


def _raised(name: str, error: BaseException) -> RuntimeError:
    said = f": {error}" if str(error) else ""
    return RuntimeError(f"{name} raised {type(error).__name__}{said}")


def _settings(
    layers: list[Layer],
    device: str | None,
    target: str | None,
    policy: str,
    max_workspace: str | None,
    deterministic: bool,
    allow_tf32: bool | None,
    time_budget: float | None = None,
    knob_search: bool = False,
) -> Settings:
    """How to measure; a policy is of the one family that all layers are of, or as `enable`'s."""
    families = {_C.problem_info(layer.problem)["family"] for layer in layers}
    policy = _check_policy(policy, families.pop() if len(families) == 1 else "conv")
    _check_reaches(policy, {layer.problem.split()[0] for layer in layers})
    text = _constrained(policy, max_workspace, deterministic, allow_tf32)
    with _options():
        settings = make_settings(device, target, text, time_budget, None, knob_search)
    return settings


def _check_policy(text: str, family: str = "conv") -> str:
    """The text for all families; refuses one that only a module of convolution can keep."""
    with _naming("--policy"):
        text = text_for_all(text, family)
        _C.resolved_policy(text, family)
    return text


def _check_reaches(policy: str, ops: set[str]) -> None:
    """Refuses a policy all of whose choices are for operators that are not there."""
    words = {field.partition("=")[0] for field in fields_of(policy)}
    chosen = words & operators().keys()
    if chosen and not chosen & ops and not words & {*FOR_ALL}:
        listed, there = ", ".join(sorted(chosen)), ", ".join(sorted(ops))
        raise typer.BadParameter(f"--policy: got a choice for {listed}, wanted one for {there}")


def _constrained(
    policy: str, max_workspace: str | None, deterministic: bool, allow_tf32: bool | None
) -> str:
    """A policy text with what the other options add."""
    words = [policy] if policy else []
    for name, wanted in (("deterministic", deterministic or None), ("allow_tf32", allow_tf32)):
        said = _C.policy_fields(only_fields(policy, (name,))).get(name)
        if None not in (wanted, said) and wanted != said:
            raise typer.BadParameter(
                f"--policy: got {name}={str(said).lower()} together with "
                f"--{'' if wanted else 'no-'}{name.replace('_', '-')}, wanted one of them"
            )
    if max_workspace is not None:
        cap = _field("max_workspace", max_workspace)
        with _naming("--policy"):  # the stricter one
            words.append(_C.merged_policy(cap, only_fields(policy, ("max_workspace",))))
    # This process is ours: PyTorch's own switches follow, so that its row keeps the constraints.
    if deterministic:
        words.append("deterministic")
        torch.backends.cudnn.deterministic = True
    if allow_tf32 is not None:
        words.append(f"allow_tf32={str(allow_tf32).lower()}")
        for switch in fp32_switches():
            switch.fp32_precision = "tf32" if allow_tf32 else "ieee"
    return ";".join(words)


def _field(name: str, value: str) -> str:
    """One field of a policy text, from the option of its name."""
    option = f"--{name.replace('_', '-')}"
    if ";" in value:
        raise typer.BadParameter(f"{option}: got {value!r}, wanted one value, without ';'")
    with _naming(option):
        _C.canonical_policy(f"{name}={value}")
    return f"{name}={value}"


def _layers(
    name: str,
    load: _Loader,
    passes: list[str],
    compute: str,
    device: str,
    stand_ins: bool = False,
) -> Workload:
    """What a network's layers compute, seen on the meta device, or on this one if that fails.

    With what the CPU measures instead for a target, where it may be asked to.
    """
    stand_ins = stand_ins and device == "cpu"

    def seen(place: str) -> Workload:
        network, inputs = load(place)
        with _running(name):
            network.train(not is_inference(passes))
            network = eager_model("model", network)
            return network_layers(network, inputs, passes, compute, proxies=stand_ins)

    try:
        return seen("meta")
    except RuntimeError as error:
        on_meta = str(error)
    try:
        return seen(device)
    except RuntimeError as error:
        if str(error) == on_meta:
            raise
        raise RuntimeError(f"on the meta device {on_meta}; then on {device} {error}") from error


def _problems_met(
    name: str, load: _Loader, passes: list[str], compute: str, device: str
) -> Workload:
    """What a network meets under `enable`, as `tuning.tune_model` tunes it."""
    network, inputs = load(device)
    infers = is_inference(passes)
    with _running(name, "--model" if passes == [*PASSES] else "--passes", "--passes fwd"):
        met = problems_met(network, inputs, train=not infers, policy=compute)
        every = infers and "fwd" in passes  # what is called then is its forward

        def wanted(problem: str) -> bool:  # itself, or a backward that is tuned with it
            infos = map(_C.problem_info, [problem, *coupled_problems(problem)])
            return any(is_wanted(info["pass_name"], passes) for info in infos)

        lines = [problem for problem in met if every or wanted(problem)]
        if not lines:
            led = [one for problem in met for one in (problem, *coupled_problems(problem))]
            raise ValueError(nothing_found(network, passes, led))
    return Workload([Layer(line) for line in lines], {})


def _workload(
    problem: str | None,
    model: str | None,
    problems: str | None,
    passes: str | None,
    dtype: str | None,
    batch: int | None,
    image_size: int | None,
    channels_last: bool,
    policy: str,
    device: str | None,
    look: _Look = _layers,
) -> Workload:
    """What to measure; of a network, what `look` sees."""
    sources = {"a problem line": problem, "--model": model, "--problems": problems}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            f"got {' and '.join(given) or 'none of them'}, wanted one of {', '.join(sources)}"
        )
    wanted = _passes(passes)
    _check_dtype(dtype)
    if model is not None:
        with _options():
            place = checked_device(device)
        load = partial(_network, model, batch, image_size, dtype, channels_last)
        # Problems hold this alone of a policy; what else it says may depend on their families.
        with _naming("--policy"):
            compute = _C.canonical_policy(only_fields(policy, ("compute",)))
        return look(model, load, wanted or [*PASSES], compute, place)
    if image_size is not None:
        raise typer.BadParameter(f"--image-size: got {image_size} without --model, wanted both")
    with _naming("--problems" if problems is not None else "problem line"):
        if problems is not None:
            layers = read_problems(problems)
            if not layers:
                raise ValueError(f"got {problems!r}, wanted at least one problem line in it")
        else:
            assert problem is not None
            layers = [Layer(_C.canonical_problem(problem))]
    with _naming("--policy"):
        if compute := _C.canonical_policy(only_fields(policy, ("compute",))):
            raise ValueError(f"got {compute!r} with problem lines, which say it themselves")
    changes = {"--dtype": dtype, "--batch": batch, "--channels-last": channels_last or None}
    options = ", ".join(name for name, value in changes.items() if value is not None)
    changed = []
    untold = without_batch([layer.problem for layer in layers]) if batch is not None else []
    for layer in layers:
        told = None if layer.problem in untold else batch
        try:
            line = rewrite(layer.problem, dtype=dtype, batch=told, channels_last=channels_last)
        except ValueError as error:
            raise typer.BadParameter(f"{options}: got {layer.problem!r}: {error}") from error
        changed.append(replace(layer, problem=line))
    layers = changed
    ops = ", ".join(dict.fromkeys(layer.problem.split()[0] for layer in layers))
    if len(untold) == len(layers):
        raise typer.BadParameter(f"--batch: got {batch} with {ops}, wanted problems with a batch")
    if untold:
        left = ", ".join(dict.fromkeys(problem.split()[0] for problem in untold))
        typer.echo(f"--batch: sizes tell none, left as it is: {left}", err=True)
    if channels_last and not any(":nhwc" in layer.problem for layer in layers):
        raise typer.BadParameter(
            f"--channels-last: given with {ops}, none of whose tensors it lays out"
        )
    with _naming("--passes"):
        return Workload(with_passes(layers, wanted) if wanted else merge(layers), {})


def _shard(layers: list[Layer], text: str | None) -> list[Layer]:
    if text is None:
        return layers
    with _naming("--shard"):
        part = shard(layers, text)
    if not part:
        typer.echo(f"shard {text} holds none of {len(layers)} problems", err=True)
    return part


def _check_dtype(text: str | None) -> None:
    if text is not None:
        _one_of("--dtype", text, DTYPES)


def _passes(text: str | None) -> list[str]:
    passes = [] if text is None else _words(text)
    if text is not None:
        with _options():
            check_passes(passes)
    return passes


def _journal(path: str | None) -> Journal | None:
    if path is None:
        return None
    with _naming("--resume"):
        return Journal(path)


_End = KeyboardInterrupt | OSError | RuntimeError | ValueError | None


def _collect(items: Iterable[T]) -> tuple[list[T], _End]:
    """What could be finished, and what came then.

    Raises:
        OSError, RuntimeError, ValueError: Nothing was finished.
    """
    finished: list[T] = []
    try:
        for item in items:
            finished.append(item)
    except KeyboardInterrupt as end:
        return finished, end
    except (OSError, RuntimeError, ValueError) as end:
        if not finished:
            raise
        return finished, end
    return finished, None


def _finish(end: _End, finished: int, total: int) -> None:
    if isinstance(end, KeyboardInterrupt):
        raise typer.Abort(f"{finished} of {total} problems were finished")
    if end is not None:
        raise end


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; wrong input is one line on standard error, and exit code 2."""
    command: Callable[..., int | None] = typer.main.get_command(app)
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        for argument in arguments:
            if not _is_text(argument):
                raise typer.BadParameter(f"got the argument {argument!r}, wanted UTF-8")
        status = command(arguments, prog_name="torch_cudnn_ext", standalone_mode=False) or 0
        if status == INTERRUPTED:  # what some typers make of Ctrl-C
            raise KeyboardInterrupt
        return status
    except (typer.Abort, KeyboardInterrupt) as end:
        typer.echo(": ".join(["interrupted", *map(str, end.args)]), err=True)
        return INTERRUPTED
    except _UsageError as error:
        # As in our own complaints: --option: what came, what was wanted.
        message = re.sub(r"^Invalid value(?: for '([^']*)')?: ", r"\1: ", error.format_message())
        choice = r"^(--\S+: )(?:Value error, )?('[^']*') is not one of (.*?)\.?$"
        message = re.sub(choice, r"\1got \2, wanted one of \3", message)
        typer.echo(f"error: {_one_line(message.removeprefix(': '))}", err=True)
        return 2
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        typer.echo(f"error: {_one_line(str(error) or 'out of memory')}", err=True)
        return 1


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_line(message: str) -> str:
    said, _, _ = message.partition("Exception raised from ")  # PyTorch's C++ frames come next
    return " ".join(said.split())


def script() -> NoReturn:
    """Run the command line as a process of its own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of batch schedulers: as Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone
    with suppress(OSError):  # as python -m does; a folder that was removed has no name
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    arguments = sys.argv[1:]
    del sys.argv[1:]  # a network's own module may read them
    sys.exit(main(arguments))
