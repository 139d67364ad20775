"""The problems that a command works on: of a line, a file of lines, or a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._defaults import IMAGE_SIZE, MODEL_BATCH
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._workload.models import load_model
from torch_cudnn_ext._workload.network import Workload, network_layers
from torch_cudnn_ext._workload.problems import (
    DTYPES,
    PASSES,
    Layer,
    check_passes,
    is_inference,
    merge,
    read_problems,
    rewrite,
    shard,
    with_passes,
    without_batch,
)
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.cli import checks
from torch_cudnn_ext.models.checks import eager_model

if TYPE_CHECKING:
    from collections.abc import Iterator

# Loads a network on a device, with its inputs.
Loader = Callable[[str], tuple[torch.nn.Module, Any]]
# The problems of a network, given its name and loader, passes, a policy's field and a device.
Tracer = Callable[[str, Loader, list[str], str, str], Workload]


def load_network(
    name: str, tensors: options.Tensors, device: str = "meta", option: str = "--model"
) -> tuple[torch.nn.Module, Any]:
    """The network that an option names, and its inputs."""
    _check_dtype(tensors.dtype)
    try:
        network, inputs = load_model(
            name,
            batch=tensors.batch or MODEL_BATCH,
            image_size=tensors.image_size or IMAGE_SIZE,
            dtype=tensors.dtype,
            channels_last=tensors.channels_last,
            device=device,
        )
    except (Exception, SystemExit) as error:  # a callable of the user's may raise any
        if isinstance(error, ValueError) and str(error).startswith("got "):
            raise typer.BadParameter(f"{option}: {error}") from error
        raise _raised(name, error) from error
    _check_followed(name, network, inputs, tensors)
    return network, inputs


def _check_followed(
    name: str, network: torch.nn.Module, inputs: object, asked: options.Tensors
) -> None:
    """Raise BadParameter for options that a callable's own network and inputs do not follow."""
    tensors = tensors_in(inputs)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    for option, wanted, found in (
        ("--batch", asked.batch, [shape[:1] for shape in shapes]),
        ("--image-size", asked.image_size, [shape[-2:] for shape in shapes]),
    ):
        if wanted is not None and {wanted} not in map(set, found):
            own = ", ".join("x".join(map(str, shape)) for shape in shapes)
            raise typer.BadParameter(
                f"{option}: got {wanted} with {name}, which gives inputs of its own ({own})"
            )
    tensors += [*network.parameters(), *network.buffers()]
    if asked.channels_last and not any(tensor.dim() in (4, 5) for tensor in tensors):
        raise typer.BadParameter(
            f"--channels-last: given with {name}, which has no tensor of 4 or 5 dimensions"
        )


@contextmanager
def network_errors(
    name: str,
) -> Iterator[None]:
    """An error of the network's run inside is one line that is no complaint about an option."""
    try:
        yield
    except typer.BadParameter:  # such as of the arguments of what runs it
        raise
    except (Exception, SystemExit) as error:
        # An error of this package about an argument is a complaint about its option.
        if said := re.match(r"(?:\w+: argument )?(model|passes|train): ", str(error)):
            message = str(error)[said.end() :].replace("train=False", "--inference")
            raise typer.BadParameter(f"--{said[1]}: {message}") from error
        # A generator, such as this one, cannot raise an error with a StopIteration as its cause.
        raise _raised(name, error) from (None if isinstance(error, StopIteration) else error)


def _raised(name: str, error: BaseException) -> RuntimeError:
    said = f": {error}" if str(error) else ""
    return RuntimeError(f"{name} raised {type(error).__name__}{said}")


def trace_layers(
    name: str, load: Loader, passes: list[str], compute: str, device: str, proxies: bool = False
) -> Workload:
    """The problems of a network's layers, traced on the meta device, or else on this one.

    With ``proxies`` on the CPU they have proxies, which it measures for a target.
    """

    def traced(place: str) -> Workload:
        network, inputs = load(place)
        with network_errors(name):
            network.train(not is_inference(passes))
            network = eager_model("model", network)
            on_cpu = device == "cpu"
            return network_layers(network, inputs, passes, compute, proxies=proxies and on_cpu)

    try:
        return traced("meta")
    except RuntimeError as error:
        on_meta = str(error)
    try:
        return traced(device)
    except RuntimeError as error:
        if str(error) == on_meta:
            raise
        raise RuntimeError(f"on the meta device {on_meta}; then on {device} {error}") from error


def from_options(
    source: options.Source,
    tensors: options.Tensors,
    policy: str,
    device: str | None,
    trace: Tracer = trace_layers,
) -> Workload:
    """The problems that the options name; ``trace`` finds those of a network."""
    passes = [] if source.passes is None else checks.words_of(source.passes)
    if source.passes is not None:
        with checks.errors_of_arguments():
            check_passes(passes)
    _check_dtype(tensors.dtype)
    if source.model is None:
        return _of_lines(source, tensors, passes, policy)
    place = checks.place_of(device)
    load = partial(load_network, source.model, tensors)
    # Problems hold no other field of a policy; whether the others fit may depend on the problems.
    with checks.errors_of("--policy"):
        compute = _C.canonical_policy(only_fields(policy, ("compute",)))
    asked = passes or (["fwd"] if source.train is False else [*PASSES])
    return trace(source.model, load, asked, compute, place)


def _of_lines(
    source: options.Source, tensors: options.Tensors, passes: list[str], policy: str
) -> Workload:
    """The problems of a line or of a file, changed as the options say."""
    if tensors.image_size is not None:
        raise typer.BadParameter(
            f"--image-size: got {tensors.image_size} without --model, wanted both"
        )
    with checks.errors_of("--problems" if source.problems is not None else "problem line"):
        if source.problems is not None:
            layers = read_problems(source.problems)
            if not layers:
                raise ValueError(f"got {source.problems!r}, wanted at least one problem line in it")
        else:
            assert source.problem is not None
            layers = [Layer(_C.canonical_problem(source.problem))]
    with checks.errors_of("--policy"):
        if compute := _C.canonical_policy(only_fields(policy, ("compute",))):
            raise ValueError(f"got {compute!r} with problem lines, which say it themselves")
    layers = _changed(layers, tensors)
    with checks.errors_of("--passes"):
        return Workload(with_passes(layers, passes) if passes else merge(layers), {})


def _changed(layers: list[Layer], tensors: options.Tensors) -> list[Layer]:
    """The problems with another dtype, batch size or layout."""
    dtype, batch, channels_last = tensors.dtype, tensors.batch, tensors.channels_last
    changes = {"--dtype": dtype, "--batch": batch, "--channels-last": channels_last or None}
    changed_by = ", ".join(name for name, value in changes.items() if value is not None)
    no_batch = without_batch([layer.problem for layer in layers]) if batch is not None else []
    changed = []
    for layer in layers:
        size = None if layer.problem in no_batch else batch
        try:
            line = rewrite(layer.problem, dtype=dtype, batch=size, channels_last=channels_last)
        except ValueError as error:
            raise typer.BadParameter(f"{changed_by}: got {layer.problem!r}: {error}") from error
        changed.append(replace(layer, problem=line))
    ops = ops_of(layer.problem for layer in changed)
    if len(no_batch) == len(changed):
        raise typer.BadParameter(f"--batch: got {batch} with {ops}, wanted problems with a batch")
    if no_batch:
        typer.echo(f"--batch: sizes tell none, left as it is: {ops_of(no_batch)}", err=True)
    if channels_last and not any(":nhwc" in layer.problem for layer in changed):
        raise typer.BadParameter(
            f"--channels-last: given with {ops}, none of whose tensors it lays out"
        )
    return changed


def ops_of(problems: Iterable[str]) -> str:
    """The operators and passes of problem lines, each once."""
    return ", ".join(dict.fromkeys(problem.split()[0] for problem in problems))


def only_shard(layers: list[Layer], text: str | None) -> list[Layer]:
    """The part of the problems that ``--shard`` names."""
    if text is None:
        return layers
    with checks.errors_of("--shard"):
        part = shard(layers, text)
    if not part:
        typer.echo(f"shard {text} holds none of {len(layers)} problems", err=True)
    return part


def _check_dtype(text: str | None) -> None:
    if text is not None:
        checks.one_of("--dtype", text, DTYPES)
