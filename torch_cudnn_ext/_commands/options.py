"""The options that commands share, and how a class of options becomes a command."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from torch_cudnn_ext._defaults import (
    DEFAULT_TARGET,
    DEVICES,
    IMAGE_SIZE,
    ISOLATE,
    MODEL_BATCH,
    NETWORK_BATCH,
    UNET_BATCH,
)
from torch_cudnn_ext._grammar import CONSTRAINTS, DTYPE_WORDS, FOR_ALL, FORWARDS, PASS_WORDS

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


def amount(name: str, least: float, help: str) -> Any:
    """An option that takes a number."""
    return typer.Option(name, parser=_number(float, least), metavar="X", help=help)


def words(*names: str) -> Callable[[], list[str]]:
    """The words that a shell completes a value with."""
    return lambda: [*names]


def option(default: Any, name: str, help: str, *names: str) -> Any:
    """A dataclass's field for an option, with the words of its value; see `callback_of`."""
    made = typer.Option(name, help=help, autocompletion=words(*names) if names else None)
    return field(default=default, metadata={"option": made})


def _count(default: int | None, name: str, help: str) -> Any:
    return field(default=default, metadata={"option": count(name, 1, help)})


_MODEL = ("--model", "A network of torchvision, or module:callable that gives one.")


def _names_in(folder: str, suffix: str) -> Callable[[], list[str]]:
    """The files of a folder of this package, as words for a shell."""
    root = Path(__file__).parents[1] / folder
    return lambda: sorted(file.stem for file in root.glob(f"*.{suffix}"))


Model = Annotated[str, typer.Option(_MODEL[0], help=_MODEL[1])]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="cpu, cuda or cuda:<index>; by default the GPU if there is one.",
        autocompletion=words(*DEVICES),
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="A GPU that need not be there: what it accepts is listed. "
        f"{DEFAULT_TARGET} by default without a GPU and --device.",
        autocompletion=_names_in("devices", "json"),
    ),
]
_POLICY = (
    "--policy",
    "A policy text. If all problems are of one family, its words are for that family; otherwise, "
    "and for networks, it is as enable() takes it.",
    *FOR_ALL[:2],
    *CONSTRAINTS,
)
_TRAIN = (
    "--train/--inference",
    "Of a model: a training step, or the forward alone in eval mode. By default a training step.",
)
Train = Annotated[bool, typer.Option(_TRAIN[0], help=_TRAIN[1], show_default=False)]
PolicyText = Annotated[
    str, typer.Option(_POLICY[0], help=_POLICY[1], autocompletion=words(*_POLICY[2:]))
]
Isolate = Annotated[
    str | None,
    typer.Option(
        "--isolate",
        metavar="WHEN",
        help="Measure in a process that a bad algorithm may cost: always, never, or auto, on a GPU "
        "that was not verified. By default as TORCH_CUDNN_EXT_ISOLATE says, or auto.",
        autocompletion=words(*ISOLATE),
    ),
]
Shard = Annotated[
    str | None, typer.Option("--shard", help="Only the i-th of n parts: i/n, from 1/n to n/n.")
]
Resume = Annotated[
    str | None,
    typer.Option("--resume", help="Keep finished problems in this file, and skip those in it."),
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report", metavar="FILE", help="Also write a page of HTML that needs no other file."
    ),
]
AllLayers = Annotated[
    bool,
    typer.Option("--all-layers", help="All layers, and not only those that matter most."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print.")]


@dataclass(frozen=True)
class Source:
    """Where problems come from, and which of their passes are wanted."""

    problem: str | None = field(
        default=None,
        metadata={"option": typer.Argument(help="A problem line, in quotes.", show_default=False)},
    )
    model: str | None = option(None, *_MODEL)
    problems: str | None = field(
        default=None,
        metadata={
            "option": typer.Option(
                "--problems",
                help="A file of problem lines, - for standard input, or a shipped one (resnet50). "
                "A line may end in the layers that have it and how often it occurs: # conv1, "
                "layer1.conv x2.",
                autocompletion=_names_in("_workload/problem_files", "txt"),
            )
        },
    )
    passes: str | None = option(
        None,
        "--passes",
        "Only these: fwd, bwd (all others), or passes by name: bwd_data,…",
        *PASS_WORDS,
    )
    train: bool | None = option(None, *_TRAIN)

    def check(self, **others: bool) -> None:
        """Raise BadParameter unless problems come from one place; others are flags of a command."""
        values = (self.problem, self.model, self.problems)
        sources: dict[str, object] = dict(
            zip(("a problem line", "--model", "--problems"), values, strict=True)
        )
        sources |= {f"--{name.replace('_', '-')}": on or None for name, on in others.items()}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise typer.BadParameter(
                f"got {' and '.join(given) or 'none of them'}, wanted one of {', '.join(sources)}"
            )
        if self.train is not None:
            self._check_train("--train" if self.train else "--inference")

    def _check_train(self, flag: str) -> None:
        if self.model is None:
            raise typer.BadParameter(f"{flag}: given without --model, wanted it, or --passes alone")
        words = [word.strip() for word in (self.passes or "").split(",")]
        if self.passes is not None and self.train == ({*words} <= {*FORWARDS}):
            wanted = "a backward, or --inference" if self.train else " or ".join(FORWARDS)
            raise typer.BadParameter(f"--passes: got {self.passes!r} with {flag}, wanted {wanted}")


@dataclass(frozen=True)
class Tensors:
    """The dtype, sizes and layout of a network's tensors, or of those of problem lines."""

    dtype: str | None = option(
        None,
        "--dtype",
        "f64, f32, f16 or bf16; by default torchvision's networks are f32, and others keep "
        "their types.",
        *DTYPE_WORDS,
    )
    batch: int | None = _count(
        None,
        "--batch",
        f"Batch size; of a model's images {MODEL_BATCH} by default (bench --networks: "
        f"{NETWORK_BATCH}, of unet {UNET_BATCH}).",
    )
    image_size: int | None = _count(
        None,
        "--image-size",
        f"Height and width of a model's images; {IMAGE_SIZE} by default. Leave this and --batch "
        "out for a callable that gives its own inputs.",
    )
    channels_last: bool = option(False, "--channels-last", "Lay tensors out channels-last.")


@dataclass(frozen=True)
class Constraints:
    """A policy text, and constraints that are added to it."""

    policy: str = option("", *_POLICY)
    max_workspace: str | None = option(
        None, "--max-workspace", "A cap: bytes, 64MiB, or 20% of the memory."
    )
    deterministic: bool = option(False, "--deterministic", "Only deterministic algorithms.")
    allow_tf32: bool | None = option(
        None, "--allow-tf32/--no-allow-tf32", "TF32 for f32; by default as PyTorch."
    )


@dataclass(frozen=True)
class Search:
    """How long and how widely to search, and in how many processes."""

    time_budget: float | None = field(
        default=None,
        metadata={
            "option": typer.Option(
                "--time-budget",
                parser=_number(float, 0),
                metavar="S",
                help="Seconds a problem; 0: no limit. By default 2 on the CPU and 0 on a GPU. "
                "bench --networks has the limits of autotune instead, and none with --jobs or "
                "--knob-search.",
            )
        },
    )
    knob_search: bool = option(
        False, "--knob-search", "Also search the engine knobs of the best engines, on a GPU."
    )
    jobs: int = _count(1, "--jobs", "Processes that build side by side, and run and time in turns.")


class Command:
    """What one command takes; its docstring is the command's help.

    A subclass is a dataclass. Its fields are options, and dataclasses of options.
    """

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for what is wrong and can be seen without PyTorch."""

    def answer(self, context: typer.Context) -> str | None:
        """What is printed, if the command needs no PyTorch; by default None."""
        return None


def callback_of(
    kind: type[Command], run: Callable[[typer.Context, Command], None]
) -> Callable[..., None]:
    """The function that typer calls for a command, which has one parameter for each option.

    Args:
        kind: What the command takes.
        run: Gets that, once it is checked, unless it is a command that needs no PyTorch.
    """
    hints = get_type_hints(kind, include_extras=True)
    groups: dict[str, Any] = {name: one for name, one in hints.items() if is_dataclass(one)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]

    def add(owner: type, name: str) -> None:
        (one,) = (one for one in fields(owner) if one.name == name)
        hint = get_type_hints(owner, include_extras=True)[name]
        if "option" in one.metadata:
            hint = Annotated[hint, one.metadata["option"]]
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=hint))

    for name in hints:
        if name in groups:
            for one in fields(groups[name]):
                add(groups[name], one.name)
        else:
            add(kind, name)

    def call(*, context: typer.Context, **values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{one.name: values.pop(one.name) for one in fields(group)})
        given = kind(**values)
        given.check(context)
        answer = given.answer(context)
        if answer is None:
            run(context, given)
        else:
            typer.echo(answer)

    call.__doc__ = kind.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def check_isolate(isolate: str | None) -> None:
    """Raise BadParameter if ``--isolate`` has none of its values."""
    if isolate is not None and isolate not in ISOLATE:
        wanted = ", ".join(map(repr, ISOLATE))
        raise typer.BadParameter(f"--isolate: got {isolate!r}, wanted one of {wanted}")


def allow_only(context: typer.Context, mode: str, *taken: str) -> None:
    """Raise BadParameter for what was given on the command line and has no effect in this mode."""
    words = ", ".join(_option(context, name) for name in taken)
    limit = f"takes no more than {words}" if taken else "takes no more"
    for name in context.params:
        if name not in (mode, *taken):
            forbid(context, name, f"--{mode}, which {limit}")


def forbid_all_layers(context: typer.Context, format: Format) -> None:
    """Raise BadParameter if ``--all-layers`` was given with a format that holds all of them."""
    if format in (Format.json, Format.csv):
        forbid(context, "all_layers", f"--format {format.value}, which holds all layers")


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
    if name == "arguments":
        return "an argument"
    return next(p.opts[0] for p in context.command.params if p.name == name)
