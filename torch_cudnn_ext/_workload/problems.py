"""Problem lines: the layers that have them, their passes, files of them, and smaller proxies."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import read_lines
from torch_cudnn_ext._grammar import FORWARDS
from torch_cudnn_ext._policy_text import operator_info, passes_of
from torch_cudnn_ext.ops.family import family_of

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

PASSES = ("fwd", "bwd")
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
PROBLEM_FOLDER = Path(__file__).parent / "problem_files"
PROXY_BATCH = 1  # the batch size of a proxy, which the CPU measures for a target

_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,]+)\](?P<layout>:.*)?")
_CHANNELS = {"x": (1,), "w": (0, 1)}  # where a convolution has its channels
_MOST_CALLS = 10**9  # the largest count of one problem


@dataclass(frozen=True)
class Layer:
    """One distinct configuration: its problem line, the layers that have it, and their calls."""

    problem: str
    names: tuple[str, ...] = ()
    count: int = 1
    note: str = ""
    proxy: str = ""  # the smaller problem that the CPU measures for a target

    @property
    def measured(self) -> str:
        """The problem that is measured."""
        return self.proxy or self.problem


def merge(layers: Iterable[Layer]) -> list[Layer]:
    """Join layers of one problem: counts add up, names and notes are kept once, order stays.

    If notes differ, each names its layers.
    """
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(layer.problem, []).append(layer)
    return [_joined(group) for group in groups.values()]


def _joined(group: Sequence[Layer]) -> Layer:
    notes = dict.fromkeys(layer.note for layer in group)
    if len(notes) > 1:
        notes = dict.fromkeys(
            f"{' '.join(layer.names)}: {layer.note}" if layer.names else layer.note
            for layer in group
            if layer.note
        )
    return replace(
        group[0],
        names=tuple(dict.fromkeys(name for layer in group for name in layer.names)),
        count=sum(layer.count for layer in group),
        note="; ".join(note for note in notes if note),
    )


def rewrite(
    problem: str,
    *,
    op: str | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    channels_last: bool = False,
    channel_multiple: int = 1,
) -> str:
    """Change a problem line: another pass, dtype, batch size, layout or number of channels.

    Args:
        problem: A problem line.
        op: Its first word, such as ``conv_bwd_data``. Fields that only a forward has are left out
            of the other passes.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16`` for all tensors that had the dtype of the
            first; computed in f64 for f64, else in f32.
        batch: The batch size, of every tensor that has one.
        channels_last: Make images and their filters channels-last (``nhwc``). Matrices, rows and
            sequences have no such layout, and PyTorch makes the tensors of a convolution over one
            dimension of space contiguous.
        channel_multiple: Of a convolution of one group, round input and output channels up to a
            multiple of this.

    Returns:
        The canonical line.

    Raises:
        ValueError: The line is no problem, or the result is none; the message names the part that
            is wrong.
    """
    info = _C.problem_info(problem)
    family = family_of(info)
    first, *words = info["text"].split()
    fields = dict(word.split("=", 1) for word in words)
    batch_sizes = operator_info(family.name)["batch_sizes"] if batch is not None else {}
    images = family.images(info) if channels_last else ()
    for key, text in fields.items():
        match = _TENSOR.fullmatch(text)
        if match is None:
            continue
        sizes = match["sizes"].split(",")
        if key in batch_sizes:
            sizes[batch_sizes[key]] = str(batch)
        for place in _CHANNELS.get(key, ()) if channel_multiple > 1 else ():
            sizes[place] = str(math.ceil(int(sizes[place]) / channel_multiple) * channel_multiple)
        layout = ":nhwc" if key in images else match["layout"] or ""
        is_data = dtype is not None and match["dtype"] == info["dtype"]
        fields[key] = f"{dtype if is_data else match['dtype']}[{','.join(sizes)}]{layout}"
    if images:  # without the layout of an output
        fields = {key: text for key, text in fields.items() if not text.startswith(":")}
    if dtype is not None:
        fields.update({key: dtype for key, text in fields.items() if text == info["dtype"]})
        if "compute" in fields:
            fields["compute"] = "f64" if dtype == "f64" else "f32"
    if op is not None and op != first:
        first = op
        left_out = set(family.training_fields)
        if not op.endswith(FORWARDS):  # a backward is always one of training
            left_out |= {*family.forward_fields, "train"}
        fields = {key: text for key, text in fields.items() if key not in left_out}
    return _C.canonical_problem(" ".join([first, *(f"{k}={v}" for k, v in fields.items())]))


class ConvolutionArguments(NamedTuple):
    """The arguments of PyTorch's convolutions that are not tensors, in their order."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolution_arguments(problem: str) -> ConvolutionArguments:
    """The arguments that pose a convolution's problem line.

    Raises:
        ValueError: The line has a field that PyTorch's convolution does not know (activation,
            flipped kernel, accumulation).
    """
    info = _C.problem_info(problem)
    fields = dict(word.split("=", 1) for word in info["text"].split()[1:])
    unusual = sorted({"z", "act", "mode", "accumulate"} & fields.keys())
    if unusual:
        raise ValueError(
            f"problem: got {', '.join(unusual)} in {problem}, wanted none of them, which PyTorch's "
            "convolution does not have; profile takes them"
        )
    spatial = len(info["slots"]["x"]["sizes"]) - 2

    def numbers(key: str) -> list[int]:
        values = [int(part) for part in fields[key].split(",")]
        return values * spatial if len(values) == 1 else values

    return ConvolutionArguments(
        numbers("stride"), numbers("pad"), numbers("dilation"), int(fields["groups"])
    )


def is_tuned_alone(info: "ProblemInfo") -> bool:
    """Whether a problem is tuned by itself, and not with the forward that it is coupled with."""
    return info["pass_name"] == "fwd" or not info["coupled"]


def coupled_problems(problem: str) -> list[str]:
    """The problems whose time is part of this one's: the backward of a coupled forward."""
    info = _C.problem_info(problem)
    return list(info["coupled"]) if info["pass_name"] == "fwd" else []


# Passes.


def check_passes(words: Sequence[str]) -> None:
    """Check that all words are ``fwd``, ``bwd`` (all passes but ``fwd``) or passes of a family.

    Raises:
        TypeError: ``words`` is no list of texts.
        ValueError: One of the words is none of these, or there is none.
    """
    if isinstance(words, str) or not isinstance(words, Sequence):  # letters are texts, too
        kind = type(words).__name__
        raise TypeError(f"passes: got {words!r} ({kind}), wanted a list of texts, such as ['fwd']")
    known = dict.fromkeys((*PASSES, *(name for op in _C.operators() for name in op["passes"])))
    if not words or any(word not in known for word in words):
        raise ValueError(f"passes: got {','.join(words)!r}, wanted some of {','.join(known)}")


def is_inference(passes: Sequence[str]) -> bool:
    """Whether a network that only infers has all of these passes."""
    return set(passes) <= {*FORWARDS}


def is_wanted(pass_name: str, words: Sequence[str]) -> bool:
    """Whether words as of `check_passes` name a pass."""
    return pass_name in words or (pass_name != "fwd" and "bwd" in words)


def with_passes(layers: Iterable[Layer], passes: Sequence[str]) -> list[Layer]:
    """Every layer once for each pass, in the order of the layers.

    If the layers hold several passes of a family, as those of a network do, the wanted ones among
    them are taken and no others are made. A forward is one of training or of inference. A family
    that has none of the passes is left out.

    Raises:
        TypeError: ``passes`` is no list of texts.
        ValueError: ``passes`` holds a word that is none (see `check_passes`), or nothing is left.
    """
    check_passes(passes)
    infos = [(layer, _C.problem_info(layer.problem)) for layer in layers]
    posed = [(layer, info["family"], info["pass_name"]) for layer, info in infos]
    present: dict[str, set[str]] = {}
    for _, family, own in posed:
        present.setdefault(family, set()).add("fwd" if own in FORWARDS else own)
    made = []
    for layer, family, own in posed:
        names = _named_passes(passes, family, own if own in FORWARDS else "fwd")
        if len(present[family]) > 1:
            names = [name for name in names if name == own]
        for name in names:
            made.append(replace(layer, problem=rewrite(layer.problem, op=f"{family}_{name}")))
    if not made:
        known = "; ".join(
            f"the lines of {family} are {','.join(sorted(names))}"
            if len(names) > 1
            else f"{family} has {','.join(passes_of(family))}"
            for family, names in present.items()
        )
        raise ValueError(f"passes: {known}, got {','.join(passes)!r}")
    return merge(made)


def _named_passes(words: Sequence[str], family: str, forward: str) -> list[str]:
    """The passes that words name, of a family whose forward is ``fwd`` or ``infer``."""
    every = passes_of(family)
    named = {"fwd": [forward], "bwd": [name for name in every if name not in FORWARDS]}
    wanted = (named.get(word, [word] if word in every else []) for word in words)
    return [*dict.fromkeys(name for names in wanted for name in names)]


# Batches.


def without_batch(problems: Sequence[str]) -> list[str]:
    """The problems whose batch cannot be told from their sizes.

    If all problems are of rows, the number of rows is the batch. In a network that has images, too,
    it may be a multiple of the batch.
    """
    infos = [_C.problem_info(problem) for problem in problems]
    has_rows = [family_of(info).has_rows(info) for info in infos]
    return [
        problem
        for problem, info, of_rows in zip(problems, infos, has_rows, strict=True)
        if not operator_info(info["family"])["batch_sizes"] or (of_rows and not all(has_rows))
    ]


def with_proxies(layers: Iterable[Layer]) -> list[Layer]:
    """Give every layer a proxy at a batch of one; if one of them has none, each is its own proxy.

    Proxies that a layer already has are dropped if one of a recurrent layer has fewer steps, or a
    single one: what was taken as the first sample of the inputs may have been a step.
    """
    layers = [*layers]
    if any(map(_may_be_one_step, layers)):
        layers = [replace(layer, proxy="") for layer in layers]
    untold = without_batch([layer.problem for layer in layers if not layer.proxy])

    def measured(layer: Layer) -> str:
        if untold:
            return layer.problem
        return layer.proxy or _at_batch(layer.problem, PROXY_BATCH)

    return [replace(layer, proxy=measured(layer)) for layer in layers]


def _may_be_one_step(layer: Layer) -> bool:
    """Whether a recurrent layer's proxy may be one of its steps with the whole batch."""
    if not layer.proxy:
        return False
    info, proxy = _C.problem_info(layer.problem), _C.problem_info(layer.proxy)
    if (steps := family_of(info).steps) is None:
        return False
    is_other = layer.proxy != _at_batch(layer.problem, PROXY_BATCH)
    return steps(proxy) != steps(info) or (steps(proxy) == 1 and is_other)


def _at_batch(problem: str, batch: int) -> str:
    """The line at another batch size, or itself if its sizes allow no other."""
    try:
        return rewrite(problem, batch=batch)
    except ValueError:
        return problem


# Files.


def read_problems(source: str | Path) -> list[Layer]:
    """Read a file of problem lines, or a shipped one by its name.

    The file ``-`` is standard input. If there is no file of that path, ``resnet50``,
    ``resnet50.txt`` and ``problems/resnet50.txt`` are the shipped one.

    A line may end in ``# name, name x3``: the layers that have this configuration, and how often
    it occurs. Empty lines and lines that start with ``#`` are skipped.

    Raises:
        ValueError: There is no such file, or a line is no problem (the message gives its number).
    """
    path = Path("/dev/stdin" if str(source) == "-" else source)
    if path.is_dir() or not path.exists():
        shipped = {file.stem: file for file in sorted(PROBLEM_FOLDER.glob("*.txt"))}
        name = str(path).removeprefix("problems/")
        path = shipped.get(name) or PROBLEM_FOLDER / name
        if path not in shipped.values():
            near = _C.nearest_words(name, list(shipped))
            raise ValueError(
                f"got {str(source)!r}, wanted a file of problem lines or one of "
                f"{', '.join(shipped)}{'; the nearest: ' if near else ''}{', '.join(near)}"
            )
    layers = []
    for number, line in enumerate(read_lines(path), 1):
        text, _, comment = line.partition("#")
        if text.strip():
            try:
                layers.append(_layer_of_line(text, comment))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    return merge(layers)


def _layer_of_line(text: str, comment: str) -> Layer:
    problem = _C.canonical_problem(text.strip())
    match = re.search(r"(?:^|[\s,])(x\d+)[\s,]*$", comment)
    listed = comment[: match.start()] if match else comment
    names = tuple(name for name in map(str.strip, listed.split(",")) if name)
    if match is None:
        return Layer(problem, names, max(1, len(names)))
    told = match[1]
    if not (len(told) <= len(f"x{_MOST_CALLS}") and 1 <= int(told[1:]) <= _MOST_CALLS):
        raise ValueError(f"got {told:.20}, wanted x1 to x{_MOST_CALLS}")
    return Layer(problem, names, int(told[1:]))


def shard(layers: Sequence[Layer], part: str) -> list[Layer]:
    """The ``i``-th of ``n`` parts (``"i/n"``, from ``1/n`` to ``n/n``), dealt out one by one.

    Raises:
        ValueError: ``part`` is no such text.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"got {part!r}, wanted i/n with i from 1 to n, such as 2/8")
    return list(layers[int(match[1]) - 1 :: int(match[2])])
