"""Policies of layers by name, in models that stay as they are.

    >>> pins = {"layer1.*.conv2": Policy(fwd="winograd_nonfused"), "*": "autotune"}
    >>> with pinned(model, pins):
    ...     model(images).sum().backward()

A pin holds whether or not `enable` was called. A pinned layer has a hidden class of this package.
That is a subclass of the layer's own class, with its name. Without the pin, the layer has its own
class again. The pin is copied and pickled with the layer and is no part of ``state_dict``.
Code that ``torch.compile`` made obeys a change of pins. No other module of the process is touched.
"""

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn as torch_nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import check_mapping, foreign_operators, passes_of, value_of
from torch_cudnn_ext._torch_internals import disable_dynamo
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.models.checks import unwrapped_model
from torch_cudnn_ext.models.classes import (
    Pin,
    Pinned,
    all_or_none,
    class_with_pin,
    class_without_pin,
    counterpart,
    counterparts,
    exchange,
    obstacle,
    settle_fast_paths,
)
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.policy import PolicyLike, as_policy, check_named_pins, naming_policy

Pins: TypeAlias = Mapping[str, PolicyLike]  # by pattern


def apply_pins(model: torch_nn.Module, pins: Pins) -> None:
    """Pin layers by name, in place of all pins that the model had.

    Fast paths of ``torch.nn.TransformerEncoder`` are disabled as by `convert`.

    A pin of ``guess_once`` or ``time_once`` selects anew after its layer is copied, unpickled,
    moved or cast, as modules of `nn` do; a copy of a parametrized layer keeps its first algorithm.

    No other thread may run the model meanwhile. A bound ``forward`` that was taken from a layer
    before keeps the layer's former class.

    Args:
        model: A module. Its own code and its parameters are left as they are.
        pins: By pattern, a policy: its text, a `Policy`, or a mapping of its keywords. A pattern is
            a glob over names as ``named_modules`` gives them: ``*`` stands for any text, dots too,
            ``?`` for any character, ``[0-3]`` for one of these and ``[!0-3]`` for any other. If
            several patterns match one layer, what an earlier one says holds. A pattern pins the
            layers that its policy selects for: one that names algorithms of convolution leaves
            softmax alone. Layers that would not obey, such as subclasses with a ``forward`` of
            their own, are left out with a warning.

    Raises:
        TypeError: ``model`` is no module, ``pins`` no mapping, a pattern no text, or a policy has a
            type that stands for none.
        ValueError: A pattern matches no layer, or none that its policy fits and that would obey.
            Nothing is changed then.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
        >>> apply_pins(model, {"0": "fwd=cpu:im2col"})
        >>> y = model(torch.randn(1, 3, 8, 8))
        >>> last_decision("conv_fwd").algorithm
        'cpu:im2col'
        >>> clear_pins(model)
    """
    inner = unwrapped_model("apply_pins", model)
    _replace([*inner.modules()], _resolve(model, inner, pins))


def clear_pins(model: torch_nn.Module) -> None:
    """Remove all pins of a model.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
        >>> apply_pins(model, {"0": "autotune"})
        >>> clear_pins(model)
        >>> type(model[0]) is torch.nn.Conv2d
        True
    """
    _replace([*unwrapped_model("clear_pins", model).modules()], {})


@contextmanager
def pinned(model: torch_nn.Module, pins: Pins) -> Iterator[None]:
    """`apply_pins` for a ``with`` block, after which the model has its former pins.

    This includes layers that were taken out of the model inside the block. A layer that was
    converted inside has no pin. A backward obeys the pins of its forward; what a checkpoint
    recomputes after the block has none.

    Blocks may end in any order: the pins of a block that began later stay in force.

    Raises:
        TypeError: As `apply_pins`.
        ValueError: As `apply_pins`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
        >>> with pinned(model, {"0": "fwd=cpu:im2col"}):
        ...     y = model(torch.randn(1, 3, 8, 8))
        >>> last_decision("conv_fwd").algorithm
        'cpu:im2col'
    """
    inner = unwrapped_model("pinned", model)
    inside = _resolve(model, inner, pins)
    block = _Block({m: pin_of(m) for m in inner.modules()}, inside)
    _blocks.append(block)
    try:
        _replace(block.before, inside)
        yield
    finally:
        try:
            _end(block, inner)
        except KeyboardInterrupt:  # the pins of the block must not stay
            _end(block, inner)
            raise
        finally:
            _blocks.remove(block)


@dataclass(eq=False)
class _Block:
    """The pins that modules had before a block of `pinned`, and the pins of the block."""

    before: dict[torch_nn.Module, Pin | None]
    inside: dict[torch_nn.Module, Pin]


_blocks: list[_Block] = []  # the blocks that have not ended, the oldest first


def _end(block: _Block, model: torch_nn.Module) -> None:
    """Restore the pins before a block, now or at the end of the next block of the same layer."""
    later = _blocks[_blocks.index(block) + 1 :]
    modules = {*model.modules()}
    pins: dict[torch_nn.Module, Pin | None] = {}
    for module in modules | block.before.keys():
        over = next((other for other in later if module in other.before), None)
        left = over.before[module] if over else pin_of(module)
        # A layer that was taken out and pinned anew in another model keeps that pin.
        if module in modules or left is block.inside.get(module):
            (over.before if over else pins)[module] = block.before.get(module)
    _replace(pins, {module: pin for module, pin in pins.items() if pin is not None})


def pin_of(module: torch_nn.Module) -> Pin | None:
    """The pin that a layer carries."""
    return module._pin if isinstance(module, Pinned) else None


def standing_for(module: torch_nn.Module) -> type[Tunable] | None:
    """The class of this package that stands for a layer's own; ``None`` if there is none."""
    if isinstance(module, Tunable) and not isinstance(module, Pinned):
        return type(module)
    return counterpart(type(module))


# The layers that a pattern matches.


def _resolve(
    wrapped: torch_nn.Module, model: torch_nn.Module, pins: Pins
) -> dict[torch_nn.Module, Pin]:
    """The pin of every pinned layer.

    Patterns match names in the model. A pattern that matches none of these matches names in what
    wraps the model.
    """
    check_patterns(pins)
    prefix = "".join(name + "." for name, m in wrapped.named_modules() if m is model and name)
    modules = model.named_modules(remove_duplicate=False)  # all names of a layer
    layers = {name: m for name, m in modules if standing_for(m) is not None}
    found: dict[torch_nn.Module, Pin] = {}
    for pattern, policy in pins.items():
        with naming_policy("pins", pattern, policy):
            check_named_pins(policy)
        # A pattern that is exactly a layer's name is no glob.
        matches = pattern.__eq__ if pattern in layers else name_matcher(pattern)
        matching: dict[torch_nn.Module, str] = {}
        for before in ("", prefix):
            for name, module in layers.items() if not matching else ():
                if matches(before + name):
                    matching.setdefault(module, name)
        if not matching:
            _raise_no_match(pattern, model, layers)
        _pin_layers(found, pattern, policy, matching)
    return found


def _pin_layers(
    found: dict[torch_nn.Module, Pin],
    pattern: str,
    policy: PolicyLike,
    matching: Mapping[torch_nn.Module, str],
) -> None:
    """Add one pattern's policy, below the pins found so far, to the layers that it fits.

    Raises:
        ValueError: It fits no layer.
    """
    fits = False
    reasons: list[str] = []
    of_others: list[str] = []
    unreached: list[str] = []
    for module, name in matching.items():
        ours = standing_for(module)
        assert ours is not None
        if isinstance(module, NonDynamicallyQuantizableLinear):
            reasons.append(
                f"{name} is a {type(module).__name__}, whose parameters are read by the "
                "attention around it, which does not call it"
            )
            continue
        try:
            with naming_policy("pins", pattern, policy):
                text = _text_for(policy, ours)
        except ValueError as error:  # the policy may fit another layer
            why = error.__cause__
            known = of_others if isinstance(why, _OfOthersError) else reasons
            known.append(f"{name} is a layer of {ours.family}: {why}")
            continue
        if reason := _out_of_reach(module, ours):
            unreached.append(f"{name!r} is a {type(module).__name__} {reason}")
            continue
        fits = True
        stronger = found.get(module, Pin("", {}))
        merged = _C.policy_with_level(stronger.text, text, ours.family)
        patterns = {
            pass_name: stronger.patterns.get(pass_name, pattern)
            for pass_name in passes_of(ours.family)
            if value_of(merged, pass_name)
        }
        found[module] = Pin(merged, patterns)
    if not fits:
        reason = [*unreached, *reasons, *of_others][0]
        raise ValueError(f"pins: {pattern!r} is {policy!r}, which fits no layer: {reason}")
    if unreached:
        warn(
            f"pins: {pattern!r} leaves out {len(unreached)} of {len(matching)} layers: "
            f"{unreached[0]}"
        )


def check_patterns(pins: Pins) -> None:
    """Raise TypeError if pins are no mapping, or a pattern is no text."""
    check_mapping("argument pins", pins, "patterns to policies")
    for pattern in pins:
        if not isinstance(pattern, str):
            raise TypeError(
                f"argument pins: got the pattern {pattern!r} ({type(pattern).__name__}), "
                "wanted a text"
            )


def name_matcher(pattern: str) -> Callable[[str], object]:
    """A predicate on names. A glob is matched without backtracking, unlike a regular expression.

    Raises:
        ValueError: The pattern is a regular expression, or too long.
    """
    if pattern.startswith("re:"):
        raise ValueError(
            f"pins: {pattern!r:.80} is a regular expression, wanted a glob, such as "
            "'layer[12].*.conv?'"
        )
    _C.check_length("pins: pattern", pattern)
    return re.compile(fnmatch.translate(pattern)).fullmatch


def _raise_no_match(
    pattern: str, model: torch_nn.Module, layers: Mapping[str, torch_nn.Module]
) -> None:
    matches = name_matcher(pattern)
    for name, module in model.named_modules():
        if matches(name) and name:
            kinds = ", ".join(sorted(cls.__name__ for cls in counterparts()))
            cls = type(module)
            raise ValueError(
                f"pins: {pattern!r} matches {name!r}, a {cls.__module__}.{cls.__qualname__}, which "
                f"has no algorithms to choose, wanted one of torch.nn's {kinds}"
            )
    known = [name or "'', itself" for name in list(layers)[:8]]
    near = _C.nearest_words(pattern, list(layers))
    raise ValueError(
        f"pins: {pattern!r} matches no layer of this {type(model).__name__}; "
        + (f"the nearest: {', '.join(near)}" if near else f"it has {', '.join(known) or 'none'}")
        + "; all: its named_modules()"
    )


# The policies that fit a layer.


class _OfOthersError(ValueError):
    """A policy selects for other operator families alone."""


def _text_for(policy: PolicyLike, ours: type[Tunable]) -> str:
    """The canonical text for a layer; ValueError if the policy does not select for its family."""
    text = as_policy(policy, ours.family).text
    others = foreign_operators(text, ours.family)
    if others:
        raise _OfOthersError(f"the policy is for {', '.join(others)}")
    return text


def check_fits_some(text: str) -> None:
    """Raise ValueError for a policy text that fits no operator family."""
    check_named_pins(text)
    reasons: dict[str, ValueError] = {}
    for ours in counterparts().values():
        try:
            _text_for(text, ours)
            return
        except ValueError as error:
            reasons[ours.family] = error
    # One reason is told: preferably of a family that knows the key, else of one that the policy
    # selects for, else of convolution.
    family = min(
        reasons,
        key=lambda one: (
            "is unknown" in str(reasons[one]),
            isinstance(reasons[one], _OfOthersError),
            one != "conv",
        ),
    )
    raise ValueError(
        f"{text!r} is no policy for layers of {', '.join(reasons)}; for {family}: {reasons[family]}"
    )


def _out_of_reach(module: torch_nn.Module, ours: type[Tunable]) -> str:
    """Why a layer's own code would not obey a pin, and what to do instead; empty if it would."""
    if isinstance(module, Tunable) and not isinstance(module, Pinned):
        return "of torch_cudnn_ext with a policy of its own, wanted: set its attribute policy"
    reason = obstacle(module, ours)
    if reason:
        return f"that would not obey a pin: {reason}, wanted: when() for its problems"
    return ""


@disable_dynamo("pins change the classes of layers")
def _replace(modules: Collection[torch_nn.Module], pins: Mapping[torch_nn.Module, Pin]) -> None:
    """Make these the pins of the modules, and no others."""
    # All classes are made first: an error then leaves every module as it is.
    without = {m: class_without_pin(m) for m in modules if isinstance(m, Pinned) and m not in pins}
    with_pin = {
        m: class_with_pin(m)
        for m in pins
        if isinstance(m, Pinned) or not isinstance(m, Tunable)  # not converted since it was pinned
    }
    with all_or_none([*without, *with_pin]):
        for module, cls in (without | with_pin).items():
            exchange(module, cls)
        for module in with_pin:
            assert isinstance(module, Pinned)
            module.obey(pins[module])
    settle_fast_paths(modules)
