"""The options that commands share, and the complaints about them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload import IMAGE_SIZE, MODEL_BATCH
from torch_cudnn_ext.analysis.settings import DEFAULT_TARGET
from torch_cudnn_ext.bench.networks import NETWORK_BATCH
from torch_cudnn_ext.tuning.measure import checked_device

if TYPE_CHECKING:
    from collections.abc import Iterator

N = TypeVar("N", int, float)

_MOST = 2**31 - 1  # the largest whole number that an option takes


class Format(Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


def _number(kind: Callable[[str], N], least: N) -> Callable[[str], N]:
    """The reader of an option's number, whose complaint tells what it got, unlike typer's own."""

    def read(text: str) -> N:
        with suppress(ValueError):
            if least <= (value := kind(text)) < math.inf:  # nor nan
                if kind is int and value > _MOST:
                    raise typer.BadParameter(f"got {text!r}, wanted at most {_MOST}")
                return value
        noun = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"got {str(text)!r}, wanted {noun}, {least} or more")

    return read


def count(name: str, least: int, help: str) -> Any:
    """An option that takes a whole number."""
    return typer.Option(name, parser=_number(int, least), metavar="N", help=help)


_MODEL = typer.Option(
    "--model", help="A network of torchvision, or module:callable that gives one."
)
Model = Annotated[str, _MODEL]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:<index>; by default the GPU if there is one."),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="A GPU that need not be there: what it accepts is listed. "
        f"{DEFAULT_TARGET} by default without a GPU and --device.",
    ),
]
PolicyText = Annotated[
    str,
    typer.Option(
        "--policy",
        help="A policy text of the problems' operator; for several kinds of operators, and for "
        "explain and bench --networks, as enable() takes it.",
    ),
]
Shard = Annotated[
    str | None, typer.Option("--shard", help="Only the i-th of n parts: i/n, from 1/n to n/n.")
]
Resume = Annotated[
    str | None,
    typer.Option("--resume", help="Keep finished problems in this file, and skip those in it."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


@dataclass(frozen=True)
class Source:
    """Where problems come from, and which of their passes are wanted."""

    problem: Annotated[
        str | None, typer.Argument(help="A problem line, in quotes.", show_default=False)
    ] = None
    model: Annotated[str | None, _MODEL] = None
    problems: Annotated[
        str | None,
        typer.Option(
            "--problems",
            help="A file of problem lines, - for standard input, or a shipped one (resnet50). A "
            "line may end in the layers that have it and how often it occurs: # conv1, "
            "layer1.conv x2.",
        ),
    ] = None
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            help="fwd, bwd (all others), or passes by name: bwd_data,…; of a model fwd alone is "
            "inference, all else a training step.",
        ),
    ] = None


@dataclass(frozen=True)
class Tensors:
    """The dtype, sizes and layout of a network's tensors, or of those of problem lines."""

    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="f64, f32, f16 or bf16; by default torchvision's networks are f32, and others "
            "are what they are.",
        ),
    ] = None
    batch: Annotated[
        int | None,
        count(
            "--batch",
            1,
            f"Batch size; of a model's images {MODEL_BATCH} by default (bench --networks: "
            f"{NETWORK_BATCH}).",
        ),
    ] = None
    image_size: Annotated[
        int | None,
        count(
            "--image-size",
            1,
            f"Height and width of a model's images; {IMAGE_SIZE} by default. Neither this nor "
            "--batch goes with a callable that gives inputs of other sizes.",
        ),
    ] = None
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Lay tensors out channels-last.")
    ] = False


@dataclass(frozen=True)
class Constraints:
    """A policy text, and constraints that are added to it."""

    policy: PolicyText = ""
    max_workspace: Annotated[
        str | None,
        typer.Option("--max-workspace", help="A cap: bytes, 64MiB, or 20% of the memory."),
    ] = None
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only deterministic algorithms.")
    ] = False
    allow_tf32: Annotated[
        bool | None,
        typer.Option("--allow-tf32/--no-allow-tf32", help="TF32 for f32; by default as PyTorch."),
    ] = None


@dataclass(frozen=True)
class Search:
    """How long and how widely to search, and in how many processes."""

    time_budget: Annotated[
        float | None,
        typer.Option(
            "--time-budget",
            parser=_number(float, 0),
            metavar="S",
            help="Seconds a problem; 0: no limit. By default 2 on the CPU, 0 on a GPU; of bench "
            "--networks autotune's, or none with --jobs or --knob-search.",
        ),
    ] = None
    knob_search: Annotated[
        bool,
        typer.Option(
            "--knob-search", help="Also search the engine knobs of the best engines, on a GPU."
        ),
    ] = False
    jobs: Annotated[
        int,
        count("--jobs", 1, "Processes that build side by side, and run and time in turns."),
    ] = 1


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes an option for each field of its parameters that are dataclasses."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))
            continue
        groups[parameter.name] = kind
        hint = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                one.name, parameter.KEYWORD_ONLY, default=one.default, annotation=hint[one.name]
            )
            for one in fields(kind)
        ]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def allow_only(context: typer.Context, mode: str, *taken: str) -> None:
    """Raise BadParameter for what was given on the command line and has no effect in this mode."""
    words = ", ".join(_option(context, name) for name in taken)
    for name in context.params:
        if name not in (mode, *taken):
            forbid(context, name, f"--{mode}, which takes no more than {words}")


def forbid(context: typer.Context, name: str, other: str) -> None:
    """Raise BadParameter if an option was given, which has no effect together with another."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter(f"{_as_given(context, name)} with {other}")


def _as_given(context: typer.Context, name: str) -> str:
    """An option and its value, as they are written on a command line."""
    value = context.params[name]
    if isinstance(value, bool):
        (param,) = (p for p in context.command.params if p.name == name)
        return f"{(param.opts if value else param.secondary_opts)[0]}: given"
    return f"{_option(context, name)}: got {value.value if isinstance(value, Enum) else value!r}"


def _option(context: typer.Context, name: str) -> str:
    if name == "problem":
        return "a problem line"
    return next(p.opts[0] for p in context.command.params if p.name == name)


def one_of(option: str, word: str, known: Iterable[str]) -> str:
    """The word, if it is known; else BadParameter with the nearest words."""
    if word not in known:
        words = [*known]
        near = _C.nearest_words(word, words)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise typer.BadParameter(f"{option}: got {word!r}, wanted one of {', '.join(words)}{hint}")
    return word


def words_of(text: str) -> list[str]:
    """The words of a text with commas."""
    return [word.strip() for word in text.split(",")]


@contextmanager
def errors_of(option: str) -> Iterator[None]:
    """Errors raised inside are complaints about this option."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        # The text may begin with a name of its own, which the option replaces.
        text = str(error).removeprefix(f"{option.removeprefix('--')}: ")
        text = re.sub(r"^(problem|problem text|policy text|device): ", "", text)
        raise typer.BadParameter(f"{option}: {text}") from error


@contextmanager
def errors_of_arguments() -> Iterator[None]:
    """Errors raised inside are complaints about the options named as the arguments they name."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        name, _, rest = str(error).partition(":")
        rest = re.sub("^ got True ", " given ", rest)  # a flag has no value on the command line
        raise typer.BadParameter(f"--{name.replace('_', '-')}:{rest}") from error


def place_of(device: str | None) -> str:
    """The device of ``--device``."""
    with errors_of_arguments():
        return checked_device(device)
