"""What is measured: problem lines and the layers that they stand for.

They come from one line, a file of lines, or a network's calls. Nothing here knows of algorithms or
times.
"""

import copy
import fcntl
import importlib
import json
import os
import re
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
    Set,
)
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import naming, not_regular, read_lines
from torch_cudnn_ext._functional_map import our_keywords, replacements
from torch_cudnn_ext._policy_text import operator_info, passes_of
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.convert import converted
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.ops._arguments import is_meta

PASSES = ("fwd", "bwd")
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
# Of images that a network of torchvision takes, where nothing else is said.
MODEL_BATCH, IMAGE_SIZE = 32, 224
FRAMES = 16  # of a video network's clips
PROBLEM_FOLDER = Path(__file__).parent / "problem_files"
LOOKING = "heuristic;on_unsupported=fallback"  # the policy of what runs only to be seen
STAND_IN_BATCH = 1  # where the CPU stands in for a GPU that is not there

T = TypeVar("T")
_TORN = b'{"key": "'  # how a line of a journal begins
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,]+)\](?P<layout>:.*)?")
_FORWARDS = ("fwd", "infer")  # in training, where the two differ, and in inference
# What forwards alone have, by family.
_FORWARD_ONLY = {"conv": ("bias", "z", "act"), "batch_norm": ("running", "z", "act")}


_MOST_CALLS = 10**9  # of one problem


@dataclass(frozen=True)
class Layer:
    """One distinct configuration: its problem line, who has it, and how often it occurs."""

    problem: str
    names: tuple[str, ...] = ()
    count: int = 1
    note: str = ""
    stand_in: str = ""  # the problem that the CPU measures where it stands in for a target

    @property
    def measured(self) -> str:
        """The problem that is measured."""
        return self.stand_in or self.problem


def merge(layers: Iterable[Layer]) -> list[Layer]:
    """Join layers of one problem: counts add up, names and notes are kept once, order stays.

    Where notes differ, each says whose it is.
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


# Problem lines.


def rewrite(
    problem: str,
    *,
    op: str | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    channels_last: bool = False,
) -> str:
    """Change a problem line: another pass, dtype, batch size or layout.

    Args:
        problem: A problem line.
        op: Its first word, such as ``conv_bwd_data``. Fields of the fused forward are left out of
            the other passes.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16`` for all tensors that had the dtype of the
            first; computed in f64 for f64, else in f32.
        batch: The batch size, of every tensor that has one.
        channels_last: Lay images and their filters out channels-last (``nhwc``); not matrices, rows
            and sequences, which have no such layout. Those of a convolution over one dimension of
            space PyTorch makes contiguous.

    Returns:
        The canonical line.

    Raises:
        ValueError: The line is no problem, or what is asked for makes none of it; the message names
            the part that is wrong.
    """
    info = _C.problem_info(problem)
    first, *words = info["text"].split()
    fields = dict(word.split("=", 1) for word in words)
    batch_sizes = operator_info(info["family"])["batch_sizes"] if batch is not None else {}
    images = _images(info, fields) if channels_last else set()
    for key, text in fields.items():
        match = _TENSOR.fullmatch(text)
        if match is None:
            continue
        sizes = match["sizes"].split(",")
        if key in batch_sizes:
            sizes[batch_sizes[key]] = str(batch)
        layout = ":nhwc" if key in images else match["layout"] or ""
        of_data = dtype is not None and match["dtype"] == info["dtype"]
        fields[key] = f"{dtype if of_data else match['dtype']}[{','.join(sizes)}]{layout}"
    if images:  # an output's own layout
        fields = {key: text for key, text in fields.items() if not text.startswith(":")}
    if dtype is not None:
        fields.update({key: dtype for key, text in fields.items() if text == info["dtype"]})
        if "compute" in fields:
            fields["compute"] = "f64" if dtype == "f64" else "f32"
    if op is not None and op != first:
        first = op
        forward_only = _FORWARD_ONLY.get(info["family"], ())
        for key in ("running",) if op == "batch_norm_infer" else forward_only:
            fields.pop(key, None)
        if not op.endswith(_FORWARDS):  # which trains, whatever the forward did
            fields.pop("train", None)
    return _C.canonical_problem(" ".join([first, *(f"{k}={v}" for k, v in fields.items())]))


def _images(info: Mapping[str, Any], fields: Mapping[str, str]) -> set[str]:
    """The fields of a problem that are laid out channels-last where a network's images are."""
    if info["family"] in ("pool", "batch_norm", "grid_sample") or fields.get("kind") == "instance":
        return {"x"}
    of_planes = info["family"] == "conv" and len(info["slots"]["x"]["sizes"]) > 3
    return set(fields) if of_planes else set()


class ConvolutionArguments(NamedTuple):
    """What PyTorch's convolutions take besides tensors, in their order."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolution_arguments(problem: str) -> ConvolutionArguments:
    """The arguments that pose a convolution's problem line.

    Raises:
        ValueError: The line holds what PyTorch's convolution has not (activation, flipped kernel,
            accumulation).
    """
    info = _C.problem_info(problem)
    fields = dict(word.split("=", 1) for word in info["text"].split()[1:])
    unusual = sorted({"z", "act", "mode", "accumulate"} & fields.keys())
    if unusual:
        raise ValueError(
            f"problem: got {', '.join(unusual)} in {problem}, wanted none of them, which PyTorch's "
            "convolution has not; profile takes them"
        )
    spatial = len(info["slots"]["x"]["sizes"]) - 2

    def numbers(key: str) -> list[int]:
        values = [int(part) for part in fields[key].split(",")]
        return values * spatial if len(values) == 1 else values

    return ConvolutionArguments(
        numbers("stride"), numbers("pad"), numbers("dilation"), int(fields["groups"])
    )


def check_passes(words: Sequence[str]) -> None:
    """Refuse what is neither ``fwd``, ``bwd`` (all passes but ``fwd``) nor the pass of a family.

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
    return set(passes) <= {*_FORWARDS}


def is_wanted(pass_name: str, words: Sequence[str]) -> bool:
    """Whether words as of `check_passes` hold a pass."""
    return pass_name in words or (pass_name != "fwd" and "bwd" in words)


def with_passes(layers: Iterable[Layer], passes: Sequence[str]) -> list[Layer]:
    """Every layer once for each pass, in the order of the layers.

    Of a family that the layers hold several passes of, as those of a network do, the ones that are
    wanted are taken, and no others are made; a forward is one in training or in inference. A family
    that has none of them is left out.

    Raises:
        TypeError: ``passes`` is no list of texts.
        ValueError: ``passes`` holds a word that is none (see `check_passes`), or nothing is left.
    """
    check_passes(passes)
    infos = [(layer, _C.problem_info(layer.problem)) for layer in layers]
    posed = [(layer, info["family"], info["pass_name"]) for layer, info in infos]
    met: dict[str, set[str]] = {}
    for _, family, own in posed:
        met.setdefault(family, set()).add("fwd" if own in _FORWARDS else own)
    made = []
    for layer, family, own in posed:
        names = _names_of(passes, family, own if own in _FORWARDS else "fwd")
        if len(met[family]) > 1:
            names = [name for name in names if name == own]
        for name in names:
            made.append(replace(layer, problem=rewrite(layer.problem, op=f"{family}_{name}")))
    if not made:
        known = "; ".join(
            f"the lines of {family} are {','.join(sorted(names))}"
            if len(names) > 1
            else f"{family} has {','.join(passes_of(family))}"
            for family, names in met.items()
        )
        raise ValueError(f"passes: {known}, got {','.join(passes)!r}")
    return merge(made)


def _names_of(passes: Sequence[str], family: str, forward: str) -> list[str]:
    """The passes that words name, of a family whose forward is ``fwd`` or ``infer``."""
    every = passes_of(family)
    named = {"fwd": [forward], "bwd": [name for name in every if name not in _FORWARDS]}
    wanted = (named.get(word, [word] if word in every else []) for word in passes)
    return [*dict.fromkeys(name for names in wanted for name in names)]


def without_batch(problems: Sequence[str]) -> list[str]:
    """The problems whose sizes do not tell their batch.

    Rows are the batch where there is nothing but rows; beside images, they are more than it.
    """

    def is_of_rows(problem: str) -> bool:
        return problem.startswith("softmax_") or " kind=layer" in problem or " kind=rms" in problem

    def has_batch(problem: str) -> bool:
        return bool(operator_info(_C.problem_info(problem)["family"])["batch_sizes"])

    only_rows = all(map(is_of_rows, problems))
    return [
        problem
        for problem in problems
        if not has_batch(problem) or (is_of_rows(problem) and not only_rows)
    ]


def read_problems(source: str | Path) -> list[Layer]:
    """Read a file of problem lines, or a shipped one by its name.

    The file ``-`` is standard input. Where there is no file of that path, ``resnet50``,
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
        if not text.strip():
            continue
        try:
            problem = _C.canonical_problem(text.strip())
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        match = re.search(r"(?:^|[\s,])(x\d+)[\s,]*$", comment)
        listed = comment[: match.start()] if match else comment
        words = [name for name in map(str.strip, listed.split(",")) if name]
        count = max(1, len(words))
        if match:
            told = match[1]
            if not (len(told) <= len(f"x{_MOST_CALLS}") and 1 <= int(told[1:]) <= _MOST_CALLS):
                raise ValueError(
                    f"{path}, line {number}: got {told:.20}, wanted x1 to x{_MOST_CALLS}"
                )
            count = int(told[1:])
        layers.append(Layer(problem, tuple(words), count))
    return merge(layers)


def shard(layers: Sequence[Layer], part: str) -> list[Layer]:
    """The ``i``-th of ``n`` parts (``"i/n"``, from ``1/n`` to ``n/n``), dealt out one by one.

    Raises:
        ValueError: ``part`` is no such text.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"got {part!r}, wanted i/n with i from 1 to n, such as 2/8")
    return list(layers[int(match[1]) - 1 :: int(match[2])])


# Networks.


@dataclass
class Workload:
    """What a network computes in one pass forward and one backward.

    Attributes:
        layers: The distinct problems of this package's operators. What was called by function has
            the name of the calling module with the function's, ``features.relu()``.
        not_profiled: How often anything else was called, by its name.
        without_functions: What the network raised with our functions, where none of them is among
            the layers for that reason.
    """

    layers: list[Layer]
    not_profiled: dict[str, int]
    without_functions: str = ""


def network_layers(
    model: nn.Module,
    inputs: Any,
    passes: Sequence[str] = PASSES,
    policy: str | None = None,
    *,
    stand_ins: bool = False,
) -> Workload:
    """The distinct problems of one forward pass of a network, and of its backward.

    The model runs once, forward and, where `passes` has more than inference has, backward from
    gradients of ones, in the mode that it is in (training or not), with its layers, pinned ones
    too, and the functions of `torch.nn.functional` that `ops` has, exchanged for this package's for
    that while; its pins, its buffers, its gradients, PyTorch's random state, and inputs and
    parameters that are written to stay as they are. What those functions call in turn, attention's
    products say, is not seen; and where it raises with ours, such as one that writes to what ours
    keep for a gradient, and PyTorch's do not, none of them is. It and its inputs may be on the meta
    device: then nothing is computed. Each call is then posed again, forward and backward, on
    tensors of the same form, gradients as they arrived, to see its problems; that computes nothing
    either.

    What the backward does not meet is not listed, whatever passes are asked for: the gradient of
    inputs and parameters that require none, such as the first layer's input. Where no output of the
    model has a gradient, every layer is taken to have all of its own, in its output's layout. A
    pass is the layer's own: for ``nn.ConvTranspose*`` the forward is the problem
    ``conv_bwd_data`` and the gradient of its input ``conv_fwd``, and the layer's note says so. A
    backward that only its own forward's algorithm can serve is measured with that forward, and not
    listed beside it.

    Args:
        model: Any module.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        passes: ``fwd``, ``bwd`` for all others, or passes by their names (``bwd_filter``).
        policy: A policy text; its ``compute`` field is part of the problems.
        stand_ins: Look at the first of the batch alone, too, for problems to measure instead; all
            stand in for themselves where that cannot be told of each.

    Raises:
        TypeError: ``passes`` is no list of texts.
        ValueError: The model called no operator or met none of the passes, it or its inputs are
            fake, or ``passes`` holds another word.
        RuntimeError: The model is on the meta device, and there is autocast within it, or it poses
            problems by values, such as lengths.
    """
    check_passes(passes)
    backward = not is_inference(passes)
    if backward:
        check_gradient_mode()
    if any(isinstance(t, FakeTensor) for t in tensors_in((own_tensors(model), inputs))):
        raise ValueError(
            "model: got one that is fake, or whose inputs are, wanted data, or the meta device"
        )
    look = _looked(model, inputs, backward)
    small = _looked_at_one(model, inputs, backward, look) if stand_ins else []
    found: list[Layer] = []
    refused: Counter[str] = Counter()
    others: list[Layer] = []
    with pushed(policy or ""):
        for call, place in look.calls():
            try:
                layers = _layers_of_call(call, passes)
                others += [] if layers or found else _layers_of_call(call, PASSES)
            except (RuntimeError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                refused[f"{call.function} ({reason})"] += call.names.total()
            else:
                found += _paired(layers, small[place], passes) if small else layers
    if not found:
        lines = [layer.problem for layer in others]
        called = [*look.others][:5]
        raise ValueError(nothing_found(model, passes, lines, [*refused][:3], called))
    if stand_ins:
        found = with_stand_ins(found)
    counts = dict((look.others + refused).most_common())
    return Workload(merge(found), counts, look.without_functions)


@dataclass
class _Look:
    """What one run of a network called, in order."""

    seen: list["_Seen"]
    others: Counter[str]
    without_functions: str

    def calls(self) -> list[tuple["_Seen", int]]:
        """Equal calls once, each with the place of its first."""
        distinct: dict[str, tuple[_Seen, int]] = {}
        for place, call in enumerate(self.seen):
            arguments = call.arguments, sorted(call.keywords.items())
            gradients = sorted((call.gradients or {}).items())
            key = repr((str(call.function), arguments, call.autocast, gradients))
            known, first = distinct.setdefault(key, (call, place))
            if known is not call:
                distinct[key] = replace(known, names=known.names + call.names), first
        return [*distinct.values()]


def _looked(model: nn.Module, inputs: Any, backward: bool) -> _Look:
    try:
        return _looked_with(model, inputs, backward, functions=True)
    except MetaError:
        raise
    except Exception as error:  # such as of a write to what ours keep for a gradient
        look = _looked_with(model, inputs, backward, functions=False)
        words = " ".join(str(error).partition("\n")[0].split())
        return replace(look, without_functions=f"{type(error).__name__}: {words}")


def _looked_with(model: nn.Module, inputs: Any, backward: bool, functions: bool) -> _Look:
    watch = Watch(model, functions=functions)
    # A knob may pin what cannot run, or leave no backend.
    with converted(model, LOOKING), looking(), watch.names():
        went_back = run_watched(model, inputs, backward, watch)
    if not went_back:
        for call in watch.seen:
            call.gradients = None
    return _Look(watch.seen, watch.others, "")


def run_watched(model: nn.Module, inputs: Any, backward: bool, watch: "Watch") -> bool:
    """Run a network, which stays as it was, and its backward; whether there was one to run."""
    with kept_as_it_was(model, inputs), watch.below.kept, torch.set_grad_enabled(backward):
        # On this thread alone, also on a GPU: `watch` is of one thread.
        with watch, torch.autograd.set_multithreading_enabled(False):
            with watch.below:
                output = call_model(model, detached(inputs))
            return backward and go_back(output)


def _looked_at_one(model: nn.Module, inputs: Any, backward: bool, whole: _Look) -> list["_Seen"]:
    """The same calls over the first of the batch, or none where that cannot be told."""
    batches = {t.shape[:1] for t in tensors_in(inputs)}
    if batches == {(STAND_IN_BATCH,)}:
        return whole.seen
    if len(batches) != 1 or () in batches:
        return []
    first = _with_each_tensor(
        lambda t: t[:STAND_IN_BATCH].detach().requires_grad_(t.requires_grad), detached(inputs)
    )
    try:
        small = _looked(model, first, backward)
    except Exception:  # a network may raise any where it takes no batch of one
        return []
    same = [call.function for call in small.seen] == [call.function for call in whole.seen]
    return small.seen if same else []


def _paired(layers: list[Layer], small: "_Seen", passes: Sequence[str]) -> list[Layer]:
    """Layers of a call, with those of the same call over one of the batch, where it has them."""
    first: list[Layer] = []
    with suppress(RuntimeError, ValueError):
        first = _layers_of_call(small, passes)
    if [one.problem.split()[0] for one in layers] != [one.problem.split()[0] for one in first]:
        return layers
    return [replace(layer, stand_in=one.problem) for layer, one in zip(layers, first, strict=True)]


def with_stand_ins(layers: Iterable[Layer]) -> list[Layer]:
    """What is measured of each: at a batch of one where each can be, else all as they are.

    Where a recurrent network would run over fewer steps, or over one, the first of the inputs may
    have been a step and not a sample.
    """
    layers = [*layers]
    if any(map(_may_be_of_a_step, layers)):
        layers = [replace(layer, stand_in="") for layer in layers]
    untold = without_batch([layer.problem for layer in layers if not layer.stand_in])

    def measured(layer: Layer) -> str:
        if untold:
            return layer.problem
        return layer.stand_in or _at_batch(layer.problem, STAND_IN_BATCH)

    return [replace(layer, stand_in=measured(layer)) for layer in layers]


def _may_be_of_a_step(layer: Layer) -> bool:
    """Whether a recurrent network's stand-in may be one of its steps, whole."""
    if not (layer.stand_in and layer.problem.startswith("rnn")):
        return False
    steps = _steps(layer.stand_in)
    is_other = layer.stand_in != _at_batch(layer.problem, STAND_IN_BATCH)
    return steps != _steps(layer.problem) or (steps == 1 and is_other)


def _steps(problem: str) -> int:
    """Over how many steps a recurrent network runs."""
    slots = _C.problem_info(problem)["slots"]
    steps: int = slots.get("batch_sizes", slots["x"])["sizes"][0]
    return steps


def _at_batch(problem: str, batch: int) -> str:
    """The line at another batch size, or itself where its sizes bear no other."""
    try:
        return rewrite(problem, batch=batch)
    except ValueError:
        return problem


def looking() -> AbstractContextManager[None]:
    """Nothing is tuned meanwhile: what runs is run to see its problems."""
    return _on(_C.set_model_tracing)


def recording() -> AbstractContextManager[None]:
    """``_C.recorded`` tells meanwhile what this thread runs, and autograd's threads for it."""
    return _on(_C.set_recording)


@contextmanager
def _on(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(False)


def check_gradient_mode() -> None:
    """ValueError in inference mode."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "train: nothing has a gradient in inference mode, wanted another mode, or train=False"
        )


def nothing_found(
    model: nn.Module,
    passes: Sequence[str] = (),
    others: Iterable[str] = (),
    refused: Iterable[str] = (),
    called: Iterable[str] = (),
) -> str:
    """Why a network has none of these passes: others alone, or no operator of this package.

    With the calls that were refused, and why, or what else was called.
    """
    name = type(model).__name__
    if names := dict.fromkeys(_C.problem_info(line)["pass_name"] for line in others):
        return (
            f"passes: got {','.join(passes)!r}, wanted some that {name} meets on these inputs, "
            f"{','.join(names)}; inputs have a gradient where they require one"
        )
    told = f"; refused were {'; '.join(refused)}" if refused else ""
    if not told and called:
        told = f"; it called {', '.join(called)}; trace() sees what PyTorch's functions call, too"
    return f"model: {name} called no operator of this package on these inputs{told}"


@dataclass(frozen=True)
class _Form:
    """What a tensor is but for its values; integers, which may be lengths, keep those.

    ``may_want_gradient`` goes by what it is to its operator, ``wants_gradient`` by what it was to
    autograd when it came.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    may_want_gradient: bool
    wants_gradient: bool
    is_result: bool  # written in place, and that is all that the operator gives
    values: tuple[int, ...] | None

    def tensor(self, with_gradient: bool) -> Tensor:
        made = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device)
        if self.values is not None:
            return made.copy_(torch.tensor(self.values, dtype=self.dtype).reshape(self.sizes))
        if not self.dtype.is_floating_point:
            return made.zero_()
        return made.requires_grad_(with_gradient)


class _Fresh(torch.autograd.Function):
    """A new tensor that has a leaf's gradient, and may be written in place; nothing is copied."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, form: _Form) -> Tensor:
        return form.tensor(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def is_function(name: str) -> bool:
    """Whether a layer's name is that of a function called, which no pin reaches."""
    return name.endswith("()")


def function_name(module: str, function: str) -> str:
    """What a function is called by that a module calls."""
    return f"{module}.{function}()".lstrip(".")


class MetaError(RuntimeError):
    """What autocast makes of a network, or values, the meta device does not tell."""


@dataclass
class _Seen:
    """Equal calls of one operator, and the modules that made them.

    ``gradients`` are those that arrived, by the place of their result; ``None`` where there was no
    backward. ``kind`` is the class of the first module.
    """

    function: OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    autocast: tuple[str, torch.dtype] | None
    names: Counter[str]
    kind: str
    gradients: dict[int, _Form] | None = field(default_factory=dict)


@dataclass
class _Running:
    """A module or function that is running, and whether it is this package's."""

    name: str
    kind: str
    is_ours: bool = False
    in_forward: bool = True  # and not in a hook

    @property
    def runs_ours(self) -> bool:
        """Whether what is called now is called by this package."""
        return self.is_ours and self.in_forward


# By which our functions refuse what they do not take; other errors are of what they call.
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError)


class Watch(TorchFunctionMode):
    """Sees the calls of this package's operators, before autograd and autocast do.

    With `functions` those of `ops` run in the place of PyTorch's that the network calls, where they
    take the arguments.
    """

    def __init__(self, model: nn.Module, *, functions: bool = False) -> None:
        super().__init__()
        self.others: Counter[str] = Counter()
        self._model = model
        self._buffers = {id(buffer) for buffer in model.buffers()}
        self.seen: list[_Seen] = []
        self._exchanged = replacements() if functions else {}
        self._inside = [_Running("", type(model).__name__)]
        self.below = _WatchOthers(self.others, model)

    @contextmanager
    def names(self) -> Iterator[None]:
        """Know which module is running."""
        handles = []
        for name, module in self._model.named_modules():
            entry = _Running(name, type(module).__name__, isinstance(module, Tunable))

            def enter(*_: Any, entry: _Running = entry) -> None:
                self._inside.append(replace(entry, in_forward=False))

            handles += [
                module.register_forward_pre_hook(enter, prepend=True),
                # What other hooks call is the network's.
                module.register_forward_pre_hook(lambda *_: self._in_forward(True)),
                module.register_forward_hook(lambda *_: self._in_forward(False), prepend=True),
                module.register_forward_hook(lambda *_: self._leave(), always_call=True),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _in_forward(self, value: bool) -> None:
        self._inside[-1].in_forward = value

    def _leave(self) -> None:
        self._inside.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take note of a call of ours."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace != "torch_cudnn_ext":
            ours = self._exchanged.get(func)
            # Neither what ours call of PyTorch's, nor of tensors that see to their functions.
            is_plain = {Tensor, nn.Parameter}.issuperset(types)
            if ours is None or not is_plain or self._inside[-1].runs_ours:
                return func(*args, **kwargs)
            leaves = tree_leaves((args, kwargs))
            # A sample of vmap's tells neither the sizes nor the gradients of all.
            if not any(map(_is_floating, leaves)) or any(map(_is_wrapped, leaves)):
                return func(*args, **kwargs)
            return self._ours_or(func, ours, args, kwargs)
        call, results = self._note(func, args, kwargs)
        with self.below.silent():
            output = func(*args, **kwargs)
        for place, result in enumerate([*results, *tensors_in(output)]):
            if result.requires_grad:
                note = partial(self._note_gradient, call, place)
                result.register_hook(note)  # type: ignore[no-untyped-call]
        return output

    def _ours_or(
        self, func: Any, ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = len(self.seen)
        name = function_name(self._inside[-1].name, ours.__name__)
        self._inside.append(_Running(name, ours.__name__, is_ours=True))
        try:
            with self:
                return ours(*args, **our_keywords(kwargs), policy=LOOKING)
        except MetaError:
            raise
        except _REFUSALS:  # what it does not take is PyTorch's
            del self.seen[known:]
        finally:
            self._inside.pop()
        return func(*args, **kwargs)

    def _note_gradient(self, call: _Seen, place: int, gradient: Tensor | None) -> None:
        if gradient is not None and call.gradients is not None:
            call.gradients[place] = self._forms(gradient, is_state=False, is_result=False)

    def _note(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Seen, list[Tensor]]:
        """The call that is about to run, and what of its arguments will be its results."""
        written = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
        names = [argument.name for argument in func._schema.arguments]
        # Beside a result, what is written is a state, such as running statistics.
        results = set() if func._schema.returns else written
        states = written - results
        forms = tuple(
            self._forms(value, name in states, name in results)
            for name, value in zip(names, args, strict=False)
        )
        keywords = {
            name: self._forms(value, name in states, name in results)
            for name, value in kwargs.items()
        }
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if any(name.endswith("lengths") and is_meta(value) for name, value in given.items()):
            raise MetaError("tensors of the meta device have no values, which lengths are")
        autocast = self._autocast([*args, *kwargs.values()])
        inside = self._inside[-1]
        name = inside.name
        if not inside.runs_ours:  # neither a layer's call, which has its name, nor a function's
            name = function_name(name, func._schema.name.partition("::")[2])
        call = _Seen(func, forms, keywords, autocast, Counter([name]), inside.kind)
        self.seen.append(call)
        return call, tensors_in([value for name, value in given.items() if name in results])

    def _forms(self, value: Any, is_state: bool, is_result: bool) -> Any:
        def form(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            known = not item.is_floating_point() and not item.is_meta
            return _Form(
                tuple(item.shape),
                tuple(item.stride()),
                item.dtype,
                torch.device("cpu") if item.is_meta else item.device,
                item.is_floating_point() and not is_state and id(item) not in self._buffers,
                item.requires_grad and torch.is_grad_enabled(),
                is_result,
                tuple(item.flatten().tolist()) if known else None,
            )

        return tree_map(form, value)

    @staticmethod
    def _autocast(arguments: Sequence[Any]) -> tuple[str, torch.dtype] | None:
        for item in tree_leaves(arguments):
            if not isinstance(item, Tensor):
                continue
            if item.is_meta:
                is_on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
                if is_on and item.is_floating_point():
                    raise MetaError("tensors of the meta device do not obey autocast")
            elif torch.is_autocast_enabled(device := item.device.type):
                return device, torch.get_autocast_dtype(device)
        return None


class _WatchOthers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes and is none of this package's operators.

    Parameters that these write to, such as an embedding's with ``max_norm``, are put back at the
    end of `kept`.
    """

    def __init__(self, counts: Counter[str], model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts
        self._is_silent = False
        self._parameters: defaultdict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter in model.parameters():
            if not is_lazy(parameter) and _is_plain(parameter):
                self._parameters[_memory(parameter)].append(parameter)
        self.kept = ExitStack()

    def _keep(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the values of parameters that are about to be written, at the first time."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for t in tensors_in(value):
                if _is_plain(t) and (written := self._parameters.pop(_memory(t), [])):
                    self.kept.enter_context(values_kept(written))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """What is called now belongs to an operator of this package."""
        before, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            self._keep(func, args, kwargs or {})
        computes = not func.is_view and any(map(_is_floating, tree_leaves(args)))
        computes = computes and not func._schema.name.startswith(("aten::empty", "prim::"))
        if computes and not self._is_silent and func.namespace != "torch_cudnn_ext":
            self._counts[f"{func.namespace}.{func._schema.name.partition('::')[2]}"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def kept_as_it_was(model: nn.Module, inputs: Any = ()) -> Iterator[None]:
    """What a run changes is put back.

    The random state; attributes, and what Python's containers among them hold; buffers, inputs and
    other tensors there also by value, but no parameters; gradients, none of which is there
    meanwhile, and nothing hears that one was accumulated; what requires one. Also of modules that
    attributes hold unregistered.
    """
    modules = modules_of(model)
    states = [(module, type(module), dict(vars(module))) for module in modules]
    # Parameters are the module's own business: FSDP exchanges them as they come and go.
    held = [
        (container, copy.copy(container))
        for container in _containers_in(
            value
            for _, _, before in states
            for name, value in before.items()
            if name != "_parameters"
        )
    ]
    own = own_tensors(model)
    leaves = [t for t in own if t.is_leaf]
    try:
        with (
            values_kept(t for t in own if not isinstance(t, nn.Parameter)),
            values_kept(tensors_in(inputs)),
            gradients_kept([t for t in leaves if t.requires_grad]),
            wishes_kept(leaves),
            torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        ):
            _cut_off([*map(vars, modules), *(container for container, _ in held)])
            yield
    finally:
        for module, cls, before in states:
            ours = isinstance(module, Tunable) or issubclass(cls, Tunable)
            if ours and type(module) is not cls:  # it converted itself
                object.__setattr__(module, "__class__", cls)
            now = vars(module)
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update(before)
        for container, before in held:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(before)
            else:
                container.update(before)


class _Start(torch.autograd.Function):
    """Where the graph of a tensor begins that is no leaf, so that it may be written into."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, wish: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def _cut_off(containers: Iterable[Any]) -> None:
    """Tensors in containers lose their graphs, through which their owner may go back later."""
    cut: dict[int, Tensor] = {}
    wish = torch.zeros((), requires_grad=True)

    def without(value: Any) -> Any:
        if isinstance(value, Tensor) and not value.is_leaf:
            if id(value) not in cut:
                with torch.enable_grad():
                    cut[id(value)] = _Start.apply(value.detach(), wish)  # type: ignore[no-untyped-call]
            return cut[id(value)]
        if isinstance(value, tuple):
            items = [without(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    for container in containers:
        if isinstance(container, set):
            continue
        items = container.items() if isinstance(container, Mapping) else enumerate(container)
        for key, value in list(items):
            new = without(value)
            if new is not value:
                container[key] = new


@contextmanager
def values_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Tensors are put back where their values, sizes or dtypes have changed.

    A graph that saved one before may still go back.
    """
    with ExitStack() as stack:
        for t in tensors:
            if not (t.is_meta or isinstance(t, FakeTensor) or _is_freed(t)):
                stack.callback(_put_back, t, t.data, _copied(t), _version(t))
        yield


def _is_plain(t: Tensor) -> bool:
    return not (t.is_nested or t.layout != torch.strided or is_traceable_wrapper_subclass(t))


def _memory(t: Tensor) -> int:
    """Which memory holds it."""
    return int(t.untyped_storage()._cdata)


def _is_freed(t: Tensor) -> bool:
    """Whether its memory was taken away, as FSDP does between calls."""
    return _is_plain(t) and t.numel() > 0 and t.untyped_storage().nbytes() == 0


def _copied(t: Tensor) -> Tensor:
    try:
        return t.detach().clone()
    except torch.OutOfMemoryError:
        return t.detach().cpu()


def _put_back(t: Tensor, data: Tensor, value: Tensor, version: int | None) -> None:
    with torch.inference_mode(t.is_inference()), torch.no_grad():
        _put_value_back(t, data, value, version)
    if version is not None and _version(t) != version:
        torch._C._autograd._unsafe_set_version_counter((t,), (version,))


def _put_value_back(t: Tensor, data: Tensor, value: Tensor, version: int | None) -> None:
    was_written = _version(t) != version
    if not _is_plain(t):
        if was_written:  # which have no torch.equal
            t.copy_(value)
        return
    if _is_freed(t):
        return
    is_other = _memory(t) != _memory(data)
    if is_other or t.shape != data.shape or t.dtype != data.dtype:
        t.data = data
    for dim, stride in enumerate(t.stride()):
        if stride == 0 and t.shape[dim] > 1:  # one element, seen often
            t, value = t.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    try:
        differs = t.device != value.device or not torch.equal(t, value)
    except (RuntimeError, TypeError):  # dtypes and subclasses that cannot be compared
        differs = was_written
    if differs:
        t.copy_(value)


@contextmanager
def wishes_kept(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Which leaves require a gradient is put back.

    So is that they are leaves, where something was computed into them, but for views and what these
    are of.
    """
    wishes = [(leaf, leaf.requires_grad) for leaf in leaves if leaf.is_leaf]
    try:
        yield
    finally:
        viewed = {id(leaf._base) for leaf, _ in wishes if leaf._is_view()}
        for leaf, wish in wishes:
            if not leaf.is_leaf and not leaf._is_view() and id(leaf) not in viewed:
                leaf.detach_()
            if leaf.is_leaf and leaf.requires_grad != wish:
                leaf.requires_grad_(wish)


@contextmanager
def gradients_kept(leaves: Sequence[Tensor]) -> Iterator[None]:
    """For a while leaves have no gradients, and nothing hears that one is accumulated."""
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    hooks = [(t, h) for t in leaves if (h := t._post_accumulate_grad_hooks)]
    try:
        for leaf in leaves:
            leaf.grad = None
        for leaf, _ in hooks:
            leaf._post_accumulate_grad_hooks = {}
        yield
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient
        for leaf, heard_by in hooks:
            leaf._post_accumulate_grad_hooks = heard_by


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The model, its modules, and those that are in attributes' containers."""
    modules = {id(model): model}
    left = [model]
    while left:
        module = left.pop()
        for one in (*module.children(), *_found_in(vars(module), nn.Module)):
            if id(one) not in modules:
                modules[id(one)] = one
                left.append(one)
    return [*modules.values()]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """A model's own and those that its attributes hold, each once."""
    return [*{id(t): t for t in tensors_in([vars(one) for one in modules_of(model)])}.values()]


def _containers_in(values: Iterable[Any]) -> list[Any]:
    """Those of Python's that can change, among these and in them."""
    found: dict[int, Any] = {}
    left = [*values]
    while left:
        container = left.pop()
        if id(container) in found:
            continue
        if type(container) in (list, dict, set, deque, OrderedDict, defaultdict, Counter):
            found[id(container)] = container
        elif not isinstance(container, tuple):
            continue
        left += container.values() if isinstance(container, dict) else container
    return [*found.values()]


def leaves_behind(outputs: Iterable[Tensor]) -> list[Tensor]:
    """The leaves whose gradients a backward of these accumulates."""
    outputs = [*outputs]
    leaves = [t for t in outputs if t.is_leaf]
    nodes: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    known = set(nodes)
    for node in nodes:  # which grows
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        found = {after for after, _ in node.next_functions if after is not None} - known
        nodes += found
        known |= found
    return leaves


def _version(t: Tensor) -> int | None:
    """How often it was written to, where PyTorch counts that."""
    return None if t.is_inference() else t._version


@contextmanager
def in_mode(model: nn.Module, train: bool) -> Iterator[None]:
    """For a while a model is in training mode, or in eval mode.

    Where it is so already, its layers stay as they are, which may differ (frozen batch norms).
    """
    modes = {module: module.training for module in model.modules()}
    if model.training == train:
        yield
        return
    with wishes_kept([*model.parameters()]):  # train() may freeze some
        try:
            model.train(train)
            yield
        finally:
            model.train(modes[model])  # which may do more than say so
            for module, mode in modes.items():
                module.training = mode


def led_problems(problem: str) -> list[str]:
    """The problems whose time is in this one's: of a coupled forward, those of its backward."""
    info = _C.problem_info(problem)
    return list(info["coupled"]) if info["pass_name"] == "fwd" else []


def _layers_of_call(call: _Seen, passes: Sequence[str]) -> list[Layer]:
    backward = not is_inference(passes)
    forward_lines, backward_lines = _posed(call, backward)
    layers = []
    first_pass: dict[str, str] = {}
    lines = [(line, False) for line in forward_lines] + [(line, True) for line in backward_lines]
    for line, of_backward in lines:
        info = _C.problem_info(line)
        family, name = info["family"], info["pass_name"]
        # A transposed convolution's forward is bwd_data, and so the gradient of its input is fwd.
        first = first_pass.setdefault(family, name)
        own = {first: "fwd", "fwd": first}.get(name, name)
        if of_backward and own == "fwd":  # such as a product's gradients, two more products
            own = "bwd"
        with_forward = "fwd" in passes and set(info["coupled"]) & set(forward_lines)
        wanted = is_wanted(own, passes) or (name == "infer" and name in passes)
        if not wanted or (of_backward and with_forward):
            continue
        note = f"{own} of {call.kind}" if first not in _FORWARDS else ""
        if not of_backward and info["coupled"]:
            note = "with its backward"
        layers.append(Layer(line, tuple(call.names), call.names.total(), note))
    return layers


def _posed(call: _Seen, backward: bool) -> tuple[list[str], list[str]]:
    """The problem lines of a call, and of its backward."""
    leaves: list[Tensor] = []
    results: list[Tensor] = []

    def realised(item: Any) -> Any:
        if not isinstance(item, _Form):
            return item
        wanted = item.may_want_gradient if call.gradients is None else item.wants_gradient
        leaves.append(item.tensor(backward and wanted))
        if not item.is_result:
            return leaves[-1]
        results.append(_Fresh.apply(leaves[-1], item))  # type: ignore[no-untyped-call]
        return results[-1]

    def run_forward() -> None:
        results.extend(tensors_in(call.function(*arguments, **keywords)))

    def run_backward() -> None:
        outputs = {i: t for i, t in enumerate(results) if t.requires_grad}
        if call.gradients is None:
            gradients = {i: torch.empty_like(t) for i, t in outputs.items()}
        else:
            gradients = {i: form.tensor(False) for i, form in call.gradients.items()}
        arrived = [i for i in outputs if i in gradients]
        inputs = with_gradients(leaves)
        if arrived and inputs:
            torch.autograd.grad(
                [outputs[i] for i in arrived],
                inputs,
                [gradients[i] for i in arrived],
                allow_unused=True,
            )

    device, dtype = call.autocast or ("cpu", None)
    # On this thread alone, also on a GPU: a dry run is a thread's own.
    with (
        torch.autocast(device, dtype, enabled=call.autocast is not None),
        torch.set_grad_enabled(backward),
        torch.autograd.set_multithreading_enabled(False),
    ):
        arguments, keywords = tree_map(realised, (call.arguments, call.keywords))
        forward_lines = _C.problems_posed_by(run_forward)
        return forward_lines, _C.problems_posed_by(run_backward) if backward else []


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_wrapped(value: Any) -> bool:
    """Whether a transform of `torch.func` wraps it."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """A model on a tensor, a tuple of positional arguments, or a mapping of keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    packed = isinstance(inputs, nn.utils.rnn.PackedSequence)  # a tuple, which stands for one
    if isinstance(inputs, tuple | list) and not packed:
        return model(*inputs)
    return model(inputs)


def detached(inputs: Any) -> Any:
    """The inputs as leaves of a graph of their own, so that the caller's get no gradient."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    return _with_each_tensor(lambda t: t.detach().requires_grad_(t.requires_grad), inputs)


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested containers: Python's, dataclasses, and what pytrees know."""
    return _found_in(values, Tensor)


def _found_in(values: Any, kind: type[T]) -> list[T]:
    found: list[T] = []
    seen: dict[int, Any] = {}

    def look(value: Any) -> None:
        if issubclass(type(value), kind):  # a weak proxy is no module, though it says so
            found.append(value)
        elif (items := _items(value)) and id(value) not in seen:  # it may hold itself
            seen[id(value)] = value
            for item in items.values():
                look(item)

    look(values)
    return found


_PLAIN = (str, bytes, bytearray, memoryview, range, int, float, complex, type, type(None))


def _items(value: Any) -> dict[Any, Any]:
    """What a container holds; empty for what is none."""
    if isinstance(value, _PLAIN):
        return {}
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, Sequence | Set):
        return dict(enumerate(value))
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if is_dataclass(value):
        names = [one.name for one in fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    leaves = tree_leaves(value)
    return {} if any(leaf is value for leaf in leaves) else dict(enumerate(leaves))


def _with_each_tensor(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Containers like these, which hold what `function` makes of each tensor.

    What holds no tensor stays the same object.
    """
    made: dict[int, tuple[Any, Any]] = {}

    def through(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if id(value) in made:  # it holds itself
            return made[id(value)][1]
        if not tensors_in(value):
            return value
        if isinstance(value, tuple) and not hasattr(value, "n_sequence_fields"):
            return tuple.__new__(type(value), map(through, value))  # also one with names
        if isinstance(value, set | frozenset):
            return type(value)(map(through, value))
        items = _items(value)
        has_keys = isinstance(value, MutableMapping | MutableSequence)
        if has_keys or isinstance(value, SimpleNamespace) or is_dataclass(value):
            copied = copy.copy(value)
            made[id(value)] = value, copied
            for name, item in items.items():
                if (other := through(item)) is item:
                    continue
                if has_keys:
                    copied[name] = other
                else:
                    object.__setattr__(copied, name, other)  # also of a frozen one
            return copied
        if isinstance(value, Mapping):
            return {name: through(item) for name, item in items.items()}
        return tree_map_only(Tensor, function, value)

    return through(values)


def with_gradients(values: Any) -> list[Tensor]:
    """The tensors in nested containers that have a gradient, or want one."""
    return [t for t in tensors_in(values) if t.requires_grad]


def go_back(output: Any) -> bool:
    """Run the backward of all that a model gave, of ones; whether there was one."""
    outputs = tuple(with_gradients(output))
    if outputs:
        with gradients_kept(leaves_behind(outputs)):
            # Not torch.autograd.backward: it hides from modes what is computed again in it.
            torch.autograd.Variable._execution_engine.run_backward(
                outputs,
                tuple(torch.ones_like(t) for t in outputs),
                False,  # retain_graph
                False,  # create_graph
                (),  # inputs: all of them
                allow_unreachable=True,
                accumulate_grad=True,
            )
    return bool(outputs)


def sum_of_outputs(output: Any) -> Tensor:
    """A loss: the sum of all that a model gave that has a gradient."""
    tensors = with_gradients(output)
    if not tensors:
        raise ValueError(
            f"train: no tensor of the model's output ({type(output).__name__}) has a gradient, "
            "wanted at least one, or train=False"
        )
    return torch.stack([t.float().sum() for t in tensors]).sum()


def load_model(
    name: str,
    *,
    batch: int = MODEL_BATCH,
    image_size: int = IMAGE_SIZE,
    dtype: str | None = None,
    channels_last: bool = False,
    device: str = "meta",
) -> tuple[nn.Module, Any]:
    """A network and inputs for it, by default on the meta device: only its shapes are wanted.

    One with lazy layers runs once before, where it was made.

    Args:
        name: A network of torchvision that takes images (``resnet18``), with random weights, or
            ``module:callable``, which gives a module or a pair of a module and its inputs.
        batch: Images of three channels, unless the callable gives inputs.
        image_size: Their height and width in pixels.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16``, of the network and its inputs. By default
            torchvision's are f32, and what a callable gives keeps its own.
        channels_last: Whether what the network and its inputs have of 4-D and 5-D tensors is
            channels-last.
        device: Where they are; elsewhere than on the meta device their values are random.

    Raises:
        ValueError: There is no such network.
    """
    frames: tuple[int, ...] = ()
    if ":" in name:
        model, inputs = _model_of_callable(name)
    else:
        (model, frames), inputs = _torchvision_model(name, device), None
        dtype = dtype or "f32"
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)}")
    torch_dtype = None if dtype is None else DTYPES[dtype]
    has_lazy_layers = any(map(is_lazy, (*model.parameters(), *model.buffers())))
    if inputs is None:
        place = None if has_lazy_layers else device
        inputs = torch.randn(batch, 3, *frames, image_size, image_size, device=place)
        inputs = inputs.to(next(filter(_is_floating, model.parameters()), inputs).dtype)
    if has_lazy_layers:  # which would lose that they are when moved to the meta device
        with torch.no_grad():
            call_model(model, inputs)

    def placed(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, torch_dtype if _is_floating(tensor) else None)
        return in_channels_last(tensor) if channels_last else tensor

    model = model.to(device, torch_dtype)
    if channels_last:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = in_channels_last(tensor.data)
    return model, _with_each_tensor(placed, inputs)


def in_channels_last(tensor: Tensor) -> Tensor:
    """A 4-D or 5-D tensor channels-last, and any other as it is."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=formats.get(tensor.dim(), torch.preserve_format))


def _torchvision_model(name: str, device: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The model, and the sizes of an input between its channels and its height."""
    try:
        from torchvision import models
    except ImportError as error:
        raise ValueError(f"got {name!r}, which needs torchvision: {error}") from error
    # How each kind takes images, and what keeps it from loading weights.
    kinds: list[tuple[Any, tuple[int, ...], dict[str, None]]] = [
        (models, (), {}),
        (models.segmentation, (), {"weights_backbone": None}),
        (models.video, (FRAMES,), {}),
    ]
    known = []
    for module, frames, arguments in kinds:
        names = models.list_models(module=module)
        known += names
        if name in names:
            with torch.device(device):
                return models.get_model(name, weights=None, **arguments), frames
    wanted = _C.wanted_words(name, known, "torchvision.models.list_models()")
    raise ValueError(f"got {name!r}, wanted module:callable or one of torchvision's: {wanted}")


def _model_of_callable(name: str) -> tuple[nn.Module, Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ValueError(f"got {name!r}, wanted module:callable")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"got {name!r}, wanted module:callable: {error}") from error
    if not callable(make):
        raise ValueError(f"got {name!r}, a {type(make).__name__}, wanted module:callable")
    if isinstance(make, nn.Module):
        raise ValueError(f"got {name!r}, a {type(make).__name__}, wanted what makes a module")
    made = make()
    if isinstance(made, tuple) and len(made) != 2:
        raise ValueError(
            f"got {name!r}, which gave {len(made)} values, wanted a module, or a module and its "
            "inputs"
        )
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(f"got {name!r}, which gave a {type(model).__name__}, wanted a module")
    return model, inputs


# Going on where a run stopped.


def _checksum(key: str, record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps([key, record]).encode())


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class Journal:
    """Finished work as JSON lines, one record a line, found again by its key.

    Several processes may add to one file. A last line that was cut off while it was written is
    dropped. Each record has a checksum: nothing else would find that one was edited.

    Raises:
        OSError: The file cannot be read, or not be written.
        ValueError: Another line is no record (the message gives its number), nor is the last one
            the beginning of one. The file is left as it was.
    """

    def __init__(self, path: str | Path) -> None:
        """Read what is in the file, which need not exist."""
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        with self._file() as file:
            self._read(file)

    @contextmanager
    def _file(self) -> Iterator[BinaryIO]:
        """The file, which others leave alone meanwhile."""
        if self.path.exists() and not (self.path.is_file() or self.path.is_dir()):
            raise not_regular(self.path)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _read(self, file: BinaryIO) -> None:
        """Take the records, and cut off a line that is not whole."""
        file.seek(0)
        *lines, torn = file.read().split(b"\n")
        if torn and (_is_json(torn) or not torn.startswith(_TORN[: len(torn)])):
            lines.append(torn)
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line.decode())
                if not isinstance(entry["record"], dict):
                    raise TypeError(f"its record is {entry['record']!r:.60}")
                if "sum" in entry:  # else another version's
                    if entry["sum"] != _checksum(entry["key"], entry["record"]):
                        raise ValueError("it was changed after it was written")
                    self._records[entry["key"]] = entry["record"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                got = line.decode(errors="replace")[:60]
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                raise ValueError(
                    f"{self.path}, line {number}: got {got!r}, wanted a finished problem as "
                    f"JSON ({why})"
                ) from error
        if torn and torn in lines:
            file.write(b"\n")
        elif torn:
            file.truncate(file.tell() - len(torn))

    def get(self, key: str, kind: Callable[..., T]) -> T | None:
        """What ``kind`` makes of the fields of a record, if it was finished before.

        A record with other fields, such as another version's, was not.
        """
        record = self._records.get(key)
        try:
            return None if record is None else kind(**record)
        except TypeError:
            return None

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, on disk at once.

        Raises:
            OSError: The file cannot be written.
            ValueError: It ends in what is no record, nor the beginning of one.
        """
        self._records[key] = record
        entry = {"key": key, "sum": _checksum(key, record), "record": record}
        with naming(self.path), self._file() as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # of a process that was killed since
                    self._read(file)
            file.write(json.dumps(entry).encode() + b"\n")
