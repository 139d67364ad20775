"""The problems of a network, from one traced run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._grammar import FORWARDS
from torch_cudnn_ext._torch_internals import FakeTensor
from torch_cudnn_ext._workload.model_state import own_tensors
from torch_cudnn_ext._workload.problems import (
    PASSES,
    PROXY_BATCH,
    Layer,
    check_passes,
    is_inference,
    is_wanted,
    merge,
    with_proxies,
)
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in
from torch_cudnn_ext._workload.running import (
    DRY_RUN_POLICY,
    check_gradient_mode,
    detached,
    dry_run,
)
from torch_cudnn_ext._workload.tracer import CallTracer, MetaError, TracedCall
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.convert import converted


@dataclass
class Workload:
    """What a network computes in one pass forward and one backward.

    Attributes:
        layers: The distinct problems of this package's operators. A function that a module calls
            has the module's name with its own, ``features.relu()``.
        not_profiled: How often anything else was called, by its name.
        without_functions: The error that the network raised with our functions. If there is one,
            no function is among the layers.
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
    proxies: bool = False,
) -> Workload:
    """The distinct problems of one forward pass of a network, and of its backward.

    The model runs once forward, in the mode that it is in (training or not). If `passes` has more
    than inference has, it also runs backward, from gradients of ones. During the run its layers,
    pinned ones included, and the functions of `torch.nn.functional` that `ops` has are exchanged
    for this package's. Afterwards its pins, buffers and gradients, the random state, and inputs and
    parameters that were written to are restored. What PyTorch's other functions call in turn, such
    as the products of attention, is not traced. If the model raises an error with our functions,
    for example because it writes to a tensor that ours saved, it runs with PyTorch's.

    Each call is then posed again, forward and backward, on tensors of the same form and with the
    gradients that arrived, to list its problems. That computes nothing. If the model and its inputs
    are on the meta device, the run computes nothing either.

    A gradient that the backward does not compute is not listed, whatever `passes` says. Such are
    the gradients of inputs and parameters that require none, for example the first layer's input.
    If no output of the model has a gradient, every layer is assumed to have all of its gradients,
    in its output's layout. A pass is the layer's own: for ``nn.ConvTranspose*`` the forward is the
    problem ``conv_bwd_data`` and the gradient of its input is ``conv_fwd``, and the layer's note
    says so. A backward that needs its own forward's algorithm is measured with that forward, and
    not listed in addition.

    Args:
        model: Any module.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        passes: ``fwd``, ``bwd`` for all others, or passes by their names (``bwd_filter``).
        policy: A policy text; its ``compute`` field is part of the problems.
        proxies: Also trace the first sample of the batch, for smaller problems to measure. Every
            layer is its own proxy if one of them has none.

    Raises:
        TypeError: ``passes`` is no list of texts.
        ValueError: The model called no operator or has none of the passes, it or its inputs are
            fake, or ``passes`` holds another word.
        RuntimeError: The model is on the meta device and uses autocast, or poses problems by
            values, such as lengths.
    """
    check_passes(passes)
    backward = not is_inference(passes)
    if backward:
        check_gradient_mode()
    if any(isinstance(t, FakeTensor) for t in tensors_in((own_tensors(model), inputs))):
        raise ValueError(
            "model: got one that is fake, or whose inputs are, wanted data, or the meta device"
        )
    run = _traced(model, inputs, backward)
    small = _traced_first(model, inputs, backward, run) if proxies else []
    found: list[Layer] = []
    declined: Counter[str] = Counter()
    others: list[Layer] = []
    with pushed(policy or ""):
        for call, place in run.distinct_calls():
            try:
                layers = _layers_of_call(call, passes)
                others += [] if layers or found else _layers_of_call(call, PASSES)
            except (RuntimeError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                declined[f"{call.function} ({reason})"] += call.names.total()
            else:
                found += _paired(layers, small[place], passes) if small else layers
    if not found:
        lines = [layer.problem for layer in others]
        called = [*run.others][:5]
        raise ValueError(nothing_found(model, passes, lines, [*declined][:3], called))
    if proxies:
        found = with_proxies(found)
    counts = dict((run.others + declined).most_common())
    return Workload(merge(found), counts, run.without_functions)


@dataclass
class _TracedRun:
    """The calls of one run of a network, in order."""

    calls: list[TracedCall]
    others: Counter[str]
    without_functions: str

    def distinct_calls(self) -> list[tuple[TracedCall, int]]:
        """Equal calls once, each with the place of the first of them."""
        distinct: dict[str, tuple[TracedCall, int]] = {}
        for place, call in enumerate(self.calls):
            arguments = call.arguments, sorted(call.keywords.items())
            gradients = sorted((call.gradients or {}).items())
            key = repr((str(call.function), arguments, call.autocast, gradients))
            known, first = distinct.setdefault(key, (call, place))
            if known is not call:
                distinct[key] = replace(known, names=known.names + call.names), first
        return [*distinct.values()]


def _traced(model: nn.Module, inputs: Any, backward: bool) -> _TracedRun:
    try:
        return _traced_with(model, inputs, backward, functions=True)
    except MetaError:
        raise
    except Exception as error:  # such as of a write to a tensor that our function saved
        run = _traced_with(model, inputs, backward, functions=False)
        words = " ".join(str(error).partition("\n")[0].split())
        return replace(run, without_functions=f"{type(error).__name__}: {words}")


def _traced_with(model: nn.Module, inputs: Any, backward: bool, functions: bool) -> _TracedRun:
    tracer = CallTracer(model, functions=functions)
    # The policy is one that runs whatever knobs pin or exclude.
    with converted(model, DRY_RUN_POLICY), dry_run(), tracer.naming_modules():
        has_backward = tracer.run(inputs, backward)
    if not has_backward:
        for call in tracer.calls:
            call.gradients = None
    return _TracedRun(tracer.calls, tracer.others, "")


def _traced_first(
    model: nn.Module, inputs: Any, backward: bool, whole: _TracedRun
) -> list[TracedCall]:
    """The same calls on the first sample of the batch; none if there is no telling."""
    batches = {t.shape[:1] for t in tensors_in(inputs)}
    if batches == {(PROXY_BATCH,)}:
        return whole.calls
    if len(batches) != 1 or () in batches:
        return []
    first = map_tensors(
        lambda t: t[:PROXY_BATCH].detach().requires_grad_(t.requires_grad), detached(inputs)
    )
    try:
        small = _traced(model, first, backward)
    except Exception:  # a network that takes no batch of one may raise any error
        return []
    is_same = [call.function for call in small.calls] == [call.function for call in whole.calls]
    return small.calls if is_same else []


def _paired(layers: list[Layer], small: TracedCall, passes: Sequence[str]) -> list[Layer]:
    """The layers of a call with the problems of the same call on one sample as their proxies."""
    first: list[Layer] = []
    with suppress(RuntimeError, ValueError):
        first = _layers_of_call(small, passes)
    if [one.problem.split()[0] for one in layers] != [one.problem.split()[0] for one in first]:
        return layers
    return [replace(layer, proxy=one.problem) for layer, one in zip(layers, first, strict=True)]


def _layers_of_call(call: TracedCall, passes: Sequence[str]) -> list[Layer]:
    forward_lines, backward_lines = call.problems(with_backward=not is_inference(passes))
    layers = []
    first_pass: dict[str, str] = {}
    lines = [(line, False) for line in forward_lines] + [(line, True) for line in backward_lines]
    for line, of_backward in lines:
        info = _C.problem_info(line)
        family, name = info["family"], info["pass_name"]
        # A transposed convolution's forward is bwd_data, and so the gradient of its input is fwd.
        first = first_pass.setdefault(family, name)
        own = {first: "fwd", "fwd": first}.get(name, name)
        if of_backward and own == "fwd":  # the gradients of a product are two more products
            own = "bwd"
        with_forward = "fwd" in passes and set(info["coupled"]) & set(forward_lines)
        wanted = is_wanted(own, passes) or (name == "infer" and name in passes)
        if not wanted or (of_backward and with_forward):
            continue
        note = f"{own} of {call.kind}" if first not in FORWARDS else ""
        if not of_backward and info["coupled"]:
            note = "with its backward"
        layers.append(Layer(line, tuple(call.names), call.names.total(), note))
    return layers


def nothing_found(
    model: nn.Module,
    passes: Sequence[str] = (),
    others: Iterable[str] = (),
    declined: Iterable[str] = (),
    called: Iterable[str] = (),
) -> str:
    """Why a network has none of the passes: it has only others, or no operator of this package.

    The text tells which calls were declined, and why, or what else was called.
    """
    name = type(model).__name__
    if names := dict.fromkeys(_C.problem_info(line)["pass_name"] for line in others):
        return (
            f"passes: got {','.join(passes)!r}, wanted some that {name} meets on these inputs, "
            f"{','.join(names)}; inputs have a gradient if they require one"
        )
    told = f"; declined were {'; '.join(declined)}" if declined else ""
    if not told and called:
        told = f"; it called {', '.join(called)}; trace() sees what PyTorch's functions call, too"
    return f"model: {name} called no operator of this package on these inputs{told}"
