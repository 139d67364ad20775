"""What is measured: problem lines and the layers that they stand for.

They come from one line, a file of lines, or a network's convolution calls. Nothing here knows of
algorithms or times.
"""

import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from . import _C

PASSES = ("fwd", "bwd_data", "bwd_filter")
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
PROBLEM_FOLDER = Path(__file__).parent / "problems"

_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,]+)\](?P<layout>:.*)?")
_FUSED_FORWARD_ONLY = ("bias", "z", "act")
# What the passes of a transposed convolution are, told by the primitive that each of them runs.
_TRANSPOSED = {"fwd": "bwd_data", "bwd_data": "fwd", "bwd_filter": "bwd_filter"}


@dataclass(frozen=True)
class Layer:
    """One distinct configuration: its problem line, who has it, and how often it occurs."""

    problem: str
    names: tuple[str, ...] = ()
    count: int = 1
    note: str = ""


def merge(layers: Iterable[Layer]) -> list[Layer]:
    """Join layers of one problem: counts add up, names and notes are kept once, order stays."""
    merged: dict[str, Layer] = {}
    for layer in layers:
        known = merged.get(layer.problem)
        if known is None:
            merged[layer.problem] = layer
            continue
        notes = dict.fromkeys(note for note in (known.note, layer.note) if note)
        merged[layer.problem] = replace(
            known,
            names=tuple(dict.fromkeys(known.names + layer.names)),
            count=known.count + layer.count,
            note="; ".join(notes),
        )
    return list(merged.values())


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
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16`` for all tensors; computed in f64 for f64, else
            in f32.
        batch: The first size of ``x``.
        channels_last: Lay all tensors out channels-last (``nhwc``).

    Returns:
        The canonical line.

    Raises:
        ValueError: The line is no problem; the message names the part that is wrong.
    """
    first, *words = _C.canonical_problem(problem).split()
    fields = dict(word.split("=", 1) for word in words)
    for role in ("x", "w"):
        match = _TENSOR.fullmatch(fields[role])
        if match is None:
            raise ValueError(f"problem: {role} is {fields[role]!r}, wanted dtype[sizes]:layout")
        sizes = match["sizes"].split(",")
        if role == "x" and batch is not None:
            sizes[0] = str(batch)
        layout = ":nhwc" if channels_last else match["layout"] or ""
        fields[role] = f"{dtype or match['dtype']}[{','.join(sizes)}]{layout}"
    if channels_last:
        fields.pop("y", None)
    if dtype is not None:
        fields["compute"] = "f64" if dtype == "f64" else "f32"
        fields.update({key: dtype for key in ("bias", "z") if key in fields})
    if op is not None and op != first:
        first = op
        for key in _FUSED_FORWARD_ONLY:
            fields.pop(key, None)
    return _C.canonical_problem(" ".join([first, *(f"{k}={v}" for k, v in fields.items())]))


def convolution_arguments(problem: str) -> dict[str, Any]:
    """``stride``, ``padding``, ``dilation`` (lists) and ``groups`` of a convolution's problem line.

    Raises:
        ValueError: The line holds what a plain convolution has not (fused bias, flipped kernel,
            accumulation).
    """
    info = _C.problem_info(problem)
    fields = dict(word.split("=", 1) for word in info["text"].split()[1:])
    unusual = sorted({*_FUSED_FORWARD_ONLY, "mode", "accumulate"} & fields.keys())
    if unusual:
        raise ValueError(f"problem: got {', '.join(unusual)} in {problem}, wanted none of them")
    spatial = len(info["slots"]["x"]["sizes"]) - 2

    def numbers(key: str) -> list[int]:
        values = [int(part) for part in fields[key].split(",")]
        return values * spatial if len(values) == 1 else values

    return {
        "stride": numbers("stride"),
        "padding": numbers("pad"),
        "dilation": numbers("dilation"),
        "groups": int(fields["groups"]),
    }


def with_passes(layers: Iterable[Layer], passes: Sequence[str]) -> list[Layer]:
    """Every layer once for each pass, in the order of the layers."""
    made = []
    for layer in layers:
        family = _C.problem_info(layer.problem)["family"]
        for pass_name in passes:
            made.append(replace(layer, problem=rewrite(layer.problem, op=f"{family}_{pass_name}")))
    return merge(made)


def read_problems(source: str | Path) -> list[Layer]:
    """Read a file of problem lines, or a shipped one by its name (``resnet50``).

    A line may end in ``# name, name x3``: the layers that have this configuration, and how often
    it occurs. Empty lines and lines that start with ``#`` are skipped.

    Raises:
        ValueError: There is no such file, or a line is no problem (the message gives its number).
    """
    path = Path(source)
    if not path.is_file():
        path = PROBLEM_FOLDER / f"{source}.txt"
    if not path.is_file():
        shipped = ", ".join(sorted(file.stem for file in PROBLEM_FOLDER.glob("*.txt")))
        raise ValueError(f"got {str(source)!r}, wanted a file of problem lines or one of {shipped}")
    layers = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text, _, comment = line.partition("#")
        if not text.strip():
            continue
        try:
            problem = _C.canonical_problem(text.strip())
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        words = comment.replace(",", " ").split()
        counted = bool(words) and re.fullmatch(r"x\d+", words[-1]) is not None
        count = int(words.pop()[1:]) if counted else max(1, len(words))
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


def convolution_layers(
    model: nn.Module, inputs: Any, passes: Sequence[str] = PASSES, policy: str | None = None
) -> list[Layer]:
    """The distinct convolution calls of one forward pass of a network.

    The model runs once, without gradients and in eval mode, so that its parameters and batch
    norm's statistics stay as they are. It and its inputs may be on the meta device: then nothing
    is computed. Under ``torch.autocast`` the convolutions are taken in autocast's dtype.

    Every pass asked for is listed for every layer, the input gradient of the first layer included.
    A pass is the layer's own: for ``nn.ConvTranspose*`` the forward is the problem
    ``conv_bwd_data`` and the gradient of its input ``conv_fwd``, and the layer's note says so.

    Args:
        model: Any module; its ``nn.Conv*`` and ``nn.ConvTranspose*`` are looked at.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        passes: Any of ``fwd``, ``bwd_data``, ``bwd_filter``.
        policy: A policy text; its ``compute`` field is part of the problems.

    Raises:
        ValueError: The model called no convolution, or ``passes`` holds another word.
    """
    unknown = [name for name in passes if name not in PASSES]
    if unknown or not passes:
        raise ValueError(f"passes: got {list(passes)!r}, wanted some of {', '.join(PASSES)}")
    convolutions = {m: name for name, m in model.named_modules() if isinstance(m, _ConvNd)}
    found: list[Layer] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        assert isinstance(module, _ConvNd)
        data = args[0] if args else kwargs["input"]
        if data.numel() > 0:
            found.extend(_layers_of_call(convolutions[module], module, data, out, passes, policy))

    handles = [m.register_forward_hook(record, with_kwargs=True) for m in convolutions]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            _call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    if not found:
        raise ValueError(f"model: {type(model).__name__} called no convolution on these inputs")
    return merge(found)


def _layers_of_call(
    name: str,
    module: _ConvNd,
    data: Tensor,
    output: Tensor,
    passes: Sequence[str],
    policy: str | None,
) -> list[Layer]:
    transposed = isinstance(module, _ConvTransposeNd)
    if transposed:
        x, padding = output, [int(value) for value in module.padding]
    else:
        x, padding = _padded(module, data)
    rank = module.weight.dim()
    layers = []
    for pass_name in passes:
        problem = _C.convolution_problem(
            f"conv_{_TRANSPOSED[pass_name] if transposed else pass_name}",
            _stand_in(x, rank, data),
            _stand_in(module.weight, rank, data),
            padding,
            list(module.stride),
            list(module.dilation),
            module.groups,
            policy,
        )
        note = f"{pass_name} of {type(module).__name__}" if transposed else ""
        layers.append(Layer(problem, (name,), 1, note))
    return layers


def _call(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, Mapping):
        model(**inputs)
    elif isinstance(inputs, tuple | list):
        model(*inputs)
    else:
        model(inputs)


def _stand_in(tensor: Tensor, rank: int, data: Tensor) -> Tensor:
    """A tensor without memory in place of one that a convolution of this rank meets."""
    device = data.device.type
    autocast = data.is_floating_point() and device != "meta" and torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else tensor.dtype
    if tensor.dim() < rank:  # unbatched
        tensor = tensor.unsqueeze(0)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _padded(module: _ConvNd, data: Tensor) -> tuple[Tensor, list[int]]:
    """The tensor that meets the convolution itself, and the padding that is left to do.

    As in PyTorch, other padding modes than zeros, and a 'same' padding that is not symmetrical,
    are done beforehand by ``F.pad``.
    """
    pads = list(module._reversed_padding_repeated_twice)[::-1]  # high, low of each dimension
    high, low = pads[0::2], pads[1::2]
    if module.padding_mode == "zeros":
        padding = [min(pair) for pair in zip(low, high, strict=True)]
    else:
        padding = [0] * len(low)
    extra = [a + b - 2 * p for a, b, p in zip(low, high, padding, strict=True)]
    if not any(extra):
        return data, padding
    sizes = list(data.shape)
    for i, more in enumerate(extra):
        sizes[i - len(extra)] += more
    format = torch.contiguous_format
    if data.dim() == 4 and data.is_contiguous(memory_format=torch.channels_last):
        format = torch.channels_last
    if data.dim() == 5 and data.is_contiguous(memory_format=torch.channels_last_3d):
        format = torch.channels_last_3d
    padded = torch.empty(sizes, dtype=data.dtype, device="meta", memory_format=format)
    return padded, padding


def load_model(
    name: str,
    *,
    batch: int = 32,
    image_size: int = 224,
    dtype: str = "f32",
    channels_last: bool = False,
) -> tuple[nn.Module, Any]:
    """A network on the meta device, with inputs for it: only its shapes are wanted.

    Args:
        name: A classification network of torchvision (``resnet18``), with random weights, or
            ``module:callable``, which gives a module or a pair of a module and its inputs.
        batch: Images of three channels, unless the callable gives inputs.
        image_size: Their height and width in pixels.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16``.
        channels_last: Whether the network and 4-D inputs are channels-last.

    Raises:
        ValueError: There is no such network.
    """
    if ":" in name:
        model, inputs = _model_of_callable(name)
    else:
        model, inputs = _torchvision_model(name), None
    torch_dtype = DTYPES[dtype]
    if inputs is None:
        inputs = torch.empty(batch, 3, image_size, image_size, device="meta")

    def place(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.to("meta", torch_dtype if value.is_floating_point() else value.dtype)
        if channels_last and value.dim() == 4:
            value = value.to(memory_format=torch.channels_last)
        return value

    model = model.to("meta", torch_dtype)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(inputs, Mapping):
        return model, {key: place(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return model, tuple(place(value) for value in inputs)
    return model, place(inputs)


def _torchvision_model(name: str) -> nn.Module:
    try:
        from torchvision import models
    except ImportError as error:
        raise ValueError(f"got {name!r}, which needs torchvision: {error}") from error
    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(
            f"got {name!r}, wanted module:callable or one of torchvision's: {', '.join(known)}"
        )
    with torch.device("meta"):
        model: nn.Module = models.get_model(name, weights=None)
    return model


def _model_of_callable(name: str) -> tuple[nn.Module, Any]:
    module_name, _, attribute = name.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), attribute)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"got {name!r}, wanted module:callable: {error}") from error
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(f"got {name!r}, which gave a {type(model).__name__}, wanted a module")
    return model, inputs


# Going on where a run stopped.


class Journal:
    """Finished work as JSON lines, one record a line, found again by its key.

    A last line that was cut off while it was written is dropped.

    Raises:
        ValueError: Another line is no record (the message gives its number).
    """

    def __init__(self, path: str | Path) -> None:
        """Read what is in the file, which need not exist."""
        self.path = Path(path)
        self._records: dict[str, dict[str, Any]] = {}
        text = self.path.read_text() if self.path.exists() else ""
        lines = text.split("\n")
        torn = lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self._records[entry["key"]] = entry["record"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}: got {line[:60]!r}, wanted a finished problem as "
                    f"JSON ({error})"
                ) from error
        if torn:
            self.path.write_text("".join(line + "\n" for line in lines))

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of this key, if it was finished before."""
        return self._records.get(key)

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep a record, on disk at once."""
        self._records[key] = record
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "record": record}) + "\n")
