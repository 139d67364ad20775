"""``python -m torch_cudnn_ext profile | list | explain | coverage | bench | info``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
import typer

from . import _C, bench, bench_modules, report
from .coverage import coverage
from .enabling import enabled
from .explaining import explain
from .profiling import (
    DEFAULT_TARGET,
    LayerProfile,
    Profile,
    Settings,
    list_layer,
    make_settings,
    measure_layers,
)
from .workload import (
    DTYPES,
    PASSES,
    Journal,
    Layer,
    Workload,
    check_passes,
    load_model,
    merge,
    network_layers,
    read_problems,
    rewrite,
    shard,
    with_passes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

INTERRUPTED = 130
MODEL_BATCH = 32
IMAGE_SIZE = 224

# Any complaint about the command line; the class is click's, which some typers carry within.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Profile, list and compare the algorithms of cuDNN, of PyTorch and of the CPU.",
)


class Format(Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


# Options that several commands take.
ProblemArgument = Annotated[
    str | None, typer.Argument(help="A problem line, in quotes.", show_default=False)
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="A network of torchvision, or module:callable that gives one."),
]
ProblemsOption = Annotated[
    str | None,
    typer.Option("--problems", help="A file of problem lines, or a shipped one (resnet50)."),
]
PassesOption = Annotated[
    str | None,
    typer.Option("--passes", help="fwd, bwd (all others), or passes by name: bwd_data,…"),
]
DtypeOption = Annotated[str | None, typer.Option("--dtype", help="f64, f32, f16 or bf16.")]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size.")]
ImageOption = Annotated[
    int, typer.Option("--image-size", min=1, help="Height and width of a model's images.")
]
ChannelsLastOption = Annotated[
    bool, typer.Option("--channels-last", help="Lay tensors out channels-last.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:<index>.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="A GPU that need not be there, such as h200.")
]
PolicyOption = Annotated[str, typer.Option("--policy", help="A policy text.")]
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
    typer.Option("--time-budget", min=0, help="Seconds a problem; 0: no limit. 2 on the CPU."),
]
KnobOption = Annotated[
    bool, typer.Option("--knob-search", help="Also search the knobs of the best engines.")
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Also what is excluded, unsupported or failed, and why.")
]
TopOption = Annotated[int, typer.Option("--top", min=0, help="Rows a table; 0: all.")]


@app.command("profile")
def profile_command(
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = IMAGE_SIZE,
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
) -> None:
    """Measure every algorithm on every distinct layer, and sum up."""
    settings = _settings(
        device, target, policy, max_workspace, deterministic, allow_tf32, time_budget, knob_search
    )
    work = _workload(
        problem, model, problems, passes, dtype, batch, image_size, channels_last, shard_text
    )
    layers = work.layers
    with report.ProgressBar() as bar:
        measured, interrupted = _collect(measure_layers(layers, settings, _journal(resume), bar))
    result = Profile(measured, settings, model or problems or "", work.not_profiled)
    if format is Format.table:
        result.print(show_all, top)
    elif format is Format.json:
        typer.echo(result.to_json())
    elif format is Format.csv:
        typer.echo(result.to_csv(), nl=False)
    else:
        typer.echo(result.to_markdown(show_all, top), nl=False)
    _finish(interrupted, len(measured), len(layers))


@app.command("list")
def list_command(
    problem: ProblemArgument = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
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
    settings = _settings(device, target, policy, None, deterministic, allow_tf32, None, False)
    constraints = settings.policy
    if max_workspace is not None:
        with _naming("--max-workspace"):
            constraints = _C.canonical_policy(f"{constraints};max_workspace={max_workspace}")
    work = _workload(problem, None, problems, passes, dtype, batch, IMAGE_SIZE, channels_last, None)
    place = settings.device if settings.target is None else f"target:{settings.target}"
    listed: list[LayerProfile] = [list_layer(layer, place, constraints) for layer in work.layers]
    result = Profile(listed, settings)
    if format is Format.table:
        result.print(show_all=True)
    elif format is Format.json:
        typer.echo(result.to_json())
    elif format is Format.csv:
        typer.echo(result.to_csv(), nl=False)
    else:
        typer.echo(result.to_markdown(show_all=True), nl=False)


@app.command("bench")
def bench_command(
    problem: ProblemArgument = None,
    model: ModelOption = None,
    problems: ProblemsOption = None,
    passes: PassesOption = None,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = IMAGE_SIZE,
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
            "(Pool,BatchNorm2d). --dtype takes several: f32,f16.",
        ),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With --modules: torch.compile beside them.")
    ] = False,
) -> None:
    """Compare tuned algorithms with PyTorch's best, side by side."""
    if device is None and not torch.cuda.is_available():
        device = "cpu"
    settings = _settings(
        device, None, policy, max_workspace, deterministic, allow_tf32, time_budget, knob_search
    )
    with report.ProgressBar() as bar:
        if overhead:
            results, interrupted = _collect(bench.measure_overhead(settings.device, bar))
            total = len(bench.overhead_problems(settings.device))
            output = bench.overhead_text(results, format.value)
            finished = len(results)
        elif modules is not None:
            cases = _module_cases(modules)
            dtypes = _words("dtype", dtype or "f32,f16", ("f32", "f16", "bf16"))
            layouts = [True] if channels_last else [False]
            compared, interrupted = _collect(
                bench_modules.compare_modules(
                    cases, dtypes, layouts, settings.device, policy or "autotune", compiled, bar
                )
            )
            output = bench_modules.comparison_text(compared, format.value)
            finished, total = len(compared), 2 * len(cases) * len(dtypes)
            if channels_last:
                total = finished  # cases without channels are left out
        else:
            work = _workload(
                problem,
                model,
                problems,
                passes,
                dtype,
                batch,
                image_size,
                channels_last,
                shard_text,
            )
            layers = [layer for layer in work.layers if layer.problem.startswith("conv_")]
            comparisons, interrupted = _collect(
                bench.compare_layers(layers, settings, kernels, _journal(resume), bar)
            )
            output = bench.comparison_text(comparisons, format.value)
            finished, total = len(comparisons), len(layers)
    if isinstance(output, str):
        typer.echo(output)
    else:
        report.print_tables(output)
    _finish(interrupted, finished, total)


def _module_cases(words: str) -> list[bench_modules.Case]:
    chosen = [
        case
        for case in bench_modules.CASES
        if words == "all" or any(word in case.module for word in words.split(","))
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(case.module for case in bench_modules.CASES))
        raise typer.BadParameter(
            f"got {words!r}, wanted all or some of {known}", None, None, "--modules"
        )
    return chosen


def _words(option: str, text: str, known: tuple[str, ...]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise typer.BadParameter(
                f"got {text!r}, wanted some of {', '.join(known)}", None, None, f"--{option}"
            )
    return words


@app.command("coverage")
def coverage_command(
    model: Annotated[str, typer.Option("--model", help="As of profile.")],
    batch: BatchOption = None,
    image_size: ImageOption = IMAGE_SIZE,
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
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place != "cpu" and not torch.cuda.is_available():
        raise typer.BadParameter(f"--device: got {place!r}, but PyTorch finds no CUDA device")
    with _naming("--model"):
        network, inputs = load_model(
            model,
            batch=batch or MODEL_BATCH,
            image_size=image_size,
            dtype=_dtype(dtype),
            channels_last=channels_last,
            device=place,
        )
    network.train(not forward)
    coverage(network, inputs, backward=not forward, backends=backends).print()


@app.command("explain")
def explain_command(
    model: Annotated[
        str,
        typer.Option(
            "--model", help="A network of torchvision, or module:callable that gives one."
        ),
    ],
    train: Annotated[bool, typer.Option("--train", help="Forward and backward.")] = False,
    dtype: DtypeOption = None,
    batch: BatchOption = None,
    image_size: ImageOption = IMAGE_SIZE,
    channels_last: ChannelsLastOption = False,
    device: DeviceOption = None,
    policy: PolicyOption = "",
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time every distinct algorithm.")
    ] = True,
    format: FormatOption = Format.table,
) -> None:
    """Tell what every layer of an unmodified network runs, and why."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype is not None and dtype not in DTYPES:
        raise typer.BadParameter(f"--dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)}")
    with _naming("--model"):
        network, inputs = load_model(
            model,
            batch=batch or MODEL_BATCH,
            image_size=image_size,
            dtype=dtype or "f32",
            channels_last=channels_last,
            device=device,
        )
    with _naming("--policy"):
        _C.canonical_policy(policy)
    with enabled(policy):
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
) -> None:
    """Print versions, libraries, devices, and the backends with their numbers of algorithms."""
    if operators:
        typer.echo(report.operators_markdown(), nl=False)
        return
    for name, version in _C.versions().items():
        typer.echo(f"{name:15} {version}")
    for path in _C.cudnn_files():
        typer.echo(f"{'libcudnn':15} {path}")
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    devices += [f"target:{file.stem}" for file in _device_files()]
    for device in devices:
        typer.echo(f"{'device':15} {device}: {_C.device_fingerprint(device)}")
    typer.echo()
    report.print_tables(
        _algorithm_counts(operator, example)
        for operator in _C.operators()
        for example in operator["examples"]
    )


def _algorithm_counts(operator: dict[str, Any], example: str) -> report.Table:
    """How many algorithms each backend has and how many of them take one common problem."""
    gpu = "cuda" if torch.cuda.is_available() else f"target:{DEFAULT_TARGET}"
    rows = []
    for pass_name in operator["passes"]:
        op = f"{operator['family']}_{pass_name}"
        for device in ("cpu", gpu):
            found = _C.candidates(rewrite(example, op=op), device)
            for backend in operator["backends"]:
                here = [c for c in found if c["backend"] == backend]
                states = Counter(c["status"] for c in here)
                if states["ok"] or states["needs a driver"]:
                    names = {c["algorithm"].partition("/")[0] for c in here}
                    words = ", ".join(f"{count} {state}" for state, count in states.items())
                    rows.append([op, backend, device, str(len(names)), str(len(here)), words])
    # A name is an engine of cuDNN's, or an algorithm; its options are knobs, or a math type.
    headings = ("op", "backend", "device", "names", "with options", "on this problem")
    columns = [report.Column(h, lambda _: "", right=h in headings[3:5]) for h in headings]
    return report.Table(f"algorithms for {example.partition(' ')[2]}", columns, rows)


def _device_files() -> list[Path]:
    return sorted((Path(__file__).parent / "devices").glob("*.json"))


# What the options mean.


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """What is wrong inside is wrong with this option."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _settings(
    device: str | None,
    target: str | None,
    policy: str,
    max_workspace: str | None,
    deterministic: bool,
    allow_tf32: bool | None,
    time_budget: float | None,
    knob_search: bool,
) -> Settings:
    words = [policy] if policy else []
    with _naming("--policy"):
        _C.canonical_policy(policy)
    if max_workspace is not None:
        with _naming("--max-workspace"):
            _C.canonical_policy(f"max_workspace={max_workspace}")
        words.append(f"max_workspace={max_workspace}")
    # This process is ours: PyTorch's own switches follow, so that its row keeps the constraints.
    if deterministic:
        words.append("deterministic")
        torch.backends.cudnn.deterministic = True
    if allow_tf32 is not None:
        words.append(f"allow_tf32={str(allow_tf32).lower()}")
        conv = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        conv.fp32_precision = "tf32" if allow_tf32 else "ieee"
    if target is not None:
        with _naming("--target"):
            _C.device_fingerprint(f"target:{target}")
    try:
        return make_settings(device, target, ";".join(words), time_budget, None, knob_search)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(f"--{error}".replace("_", "-", 1)) from error


def _workload(
    problem: str | None,
    model: str | None,
    problems: str | None,
    passes: str | None,
    dtype: str | None,
    batch: int | None,
    image_size: int,
    channels_last: bool,
    shard_text: str | None,
) -> Workload:
    sources = {"a problem line": problem, "--model": model, "--problems": problems}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            f"got {' and '.join(given) or 'none of them'}, wanted one of {', '.join(sources)}"
        )
    wanted = _passes(passes)
    _dtype(dtype)
    if model is not None:
        with _naming("--model"):
            network, inputs = load_model(
                model,
                batch=batch or MODEL_BATCH,
                image_size=image_size,
                dtype=_dtype(dtype),
                channels_last=channels_last,
            )
            network.train(wanted != ["fwd"])
            work = network_layers(network, inputs, wanted or PASSES)
    else:
        with _naming("--problems" if problems is not None else "problem line"):
            if problems is not None:
                layers = read_problems(problems)
            else:
                assert problem is not None
                layers = [Layer(_C.canonical_problem(problem))]
            layers = [
                Layer(
                    rewrite(layer.problem, dtype=dtype, batch=batch, channels_last=channels_last),
                    layer.names,
                    layer.count,
                    layer.note,
                )
                for layer in layers
            ]
            work = Workload(with_passes(layers, wanted) if wanted else merge(layers), {})
    if shard_text is not None:
        with _naming("--shard"):
            work.layers = shard(work.layers, shard_text)
    return work


def _dtype(text: str | None) -> str:
    if text is not None and text not in DTYPES:
        raise typer.BadParameter(f"--dtype: got {text!r}, wanted one of {', '.join(DTYPES)}")
    return text or "f32"


def _passes(text: str | None) -> list[str]:
    passes = [] if text is None else [word.strip() for word in text.split(",")]
    if text is not None:
        try:
            check_passes(passes)
        except ValueError as error:
            raise typer.BadParameter(f"--{error}") from error
    return passes


def _journal(path: str | None) -> Journal | None:
    if path is None:
        return None
    with _naming("--resume"):
        return Journal(path)


def _collect(items: Iterable[T]) -> tuple[list[T], bool]:
    """What could be finished, and whether Ctrl-C came."""
    finished: list[T] = []
    try:
        for item in items:
            finished.append(item)
    except KeyboardInterrupt:
        return finished, True
    return finished, False


def _finish(interrupted: bool, finished: int, total: int) -> None:
    if interrupted:
        typer.echo(f"interrupted: {finished} of {total} problems were finished", err=True)
        raise typer.Exit(INTERRUPTED)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; wrong input is one line on standard error, and exit code 2."""
    command: Callable[..., int | None] = typer.main.get_command(app)
    try:
        return command(arguments, prog_name="torch_cudnn_ext", standalone_mode=False) or 0
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _UsageError as error:
        message = error.format_message().removeprefix("Invalid value: ")
        typer.echo(f"error: {_one_line(message)}", err=True)
        return 2
    except (RuntimeError, ValueError) as error:
        typer.echo(f"error: {_one_line(str(error))}", err=True)
        return 1


def _one_line(message: str) -> str:
    return " ".join(message.split())


if __name__ == "__main__":
    sys.exit(main())
