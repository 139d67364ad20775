"""Choices by the name of a layer, in models that stay as they are.

    >>> pins = {"layer1.*.conv2": Policy(fwd="winograd_nonfused"), "*": "autotune"}
    >>> with pinned(model, pins):
    ...     model(images).sum().backward()

A pin holds whether or not `enable` was called. It is kept as text in the layer's ``__dict__``: it
is copied and pickled with the layer, is no part of ``state_dict``, and what ``torch.compile`` made
follows when it changes. The method of the layer's class that runs the operator looks for it; once
the last pin is taken back, the class is PyTorch's own again.
"""

import difflib
import fnmatch
import inspect
import json
import re
import sys
import threading
import tomllib
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn as torch_nn

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext.enabling import rule_text
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.policy import Policy, PolicyLike, merge_texts, policy_text

Pins = Mapping[str, PolicyLike]

_MARK = "_torch_cudnn_ext_pin"
_STATE = ("_running", "_once")  # what methods of `Tunable` classes read of an instance
_LAYERS, _PROBLEMS = "layers", "problems"  # tables of a file

_OURS: dict[type, type[Tunable]] = {
    ours.replaces: ours
    for ours in vars(nn).values()
    if isinstance(ours, type) and issubclass(ours, Tunable) and hasattr(ours, "replaces")
}

_lock = threading.RLock()
_marks: "weakref.WeakSet[Pin]" = weakref.WeakSet()
_undo: list[tuple[type, str, Any]] = []  # class, attribute, what its __dict__ held (or _ABSENT)
_ABSENT = object()


class Pin:
    """What a pinned layer carries: its policy, and the patterns that it came from.

    While one is alive, the classes of ``torch.nn`` look for pins; so it does when it is copied or
    unpickled with its layer.
    """

    def __init__(self, text: str, patterns: tuple[str, ...]) -> None:
        """Make the classes look for pins."""
        self.text, self.patterns = text, patterns
        with _lock:
            _marks.add(self)
            _patch()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is made anew."""
        return Pin, (self.text, self.patterns)


def apply_pins(model: torch_nn.Module, pins: Pins) -> None:
    """Pin layers by name, in place of all pins that the model had.

    Args:
        model: A module. Its own code and its parameters are left as they are.
        pins: By pattern, a policy: its text, a `Policy`, or a mapping of its keywords. A pattern is
            a glob over names as ``named_modules`` gives them, in which ``*`` crosses dots, or a
            regular expression for a whole name behind ``re:``. Where several match one layer, what
            an earlier one says holds. A pattern pins those layers of which its policy speaks: one
            that names algorithms of convolution leaves softmax alone.

    Raises:
        TypeError: A policy has a type that stands for none.
        ValueError: A pattern matches no layer, or none that its policy fits; then nothing changes.
    """
    model = _unwrapped(model)
    found = _resolve(model, pins)
    with _lock:
        _replace(model, {module: Pin(*pin) for module, pin in found.items()})


def clear_pins(model: torch_nn.Module) -> None:
    """Take all pins of a model back."""
    with _lock:
        _replace(_unwrapped(model), {})


@contextmanager
def pinned(model: torch_nn.Module, pins: Pins) -> Iterator[None]:
    """`apply_pins` inside a ``with`` block; behind it the model has the pins that it had before.

    A backward keeps to the pins of its forward.

    Raises:
        TypeError: A policy has a type that stands for none.
        ValueError: A pattern matches no layer, or none that its policy fits.
    """
    model = _unwrapped(model)
    before = {m: vars(m)[_MARK] for m in model.modules() if _MARK in vars(m)}
    apply_pins(model, pins)
    try:
        yield
    finally:
        with _lock:
            _replace(model, before)


def pin_of(module: torch_nn.Module) -> Pin | None:
    """The pin that a layer carries."""
    return vars(module).get(_MARK)


# Files.


def save_pins(path: str | Path, pins: Pins, rules: Mapping[str, PolicyLike] | None = None) -> None:
    """Write pins of layers, and rules by problem, to a TOML file, in their order.

    Args:
        path: Where; what is there is replaced.
        pins: As `apply_pins` takes them.
        rules: As `apply_rules` takes them.

    Raises:
        TypeError: A policy has a type that stands for none.
    """
    lines = [
        "# Algorithms of layers by name; of two that match, the upper one holds.",
        f"[{_LAYERS}]",
    ]
    for pattern, policy in pins.items():
        family = policy.family if isinstance(policy, Policy) else "conv"
        text = policy_text(policy, family) or ""
        if family != "conv":  # in a file nothing tells the family of a single "fwd"
            text = _C.canonical_policy(text, family, "conv")
        lines.append(f"{_toml_string(pattern)} = {_toml_string(text)}")
    if rules:
        lines += ["", "# And by problem, likewise.", f"[{_PROBLEMS}]"]
        lines += [
            f"{_toml_string(matcher)} = {_toml_string(rule_text(matcher, use))}"
            for matcher, use in rules.items()
        ]
    Path(path).write_text("\n".join(lines) + "\n")


def load_pins(path: str | Path) -> dict[str, str]:
    """Read the pins of layers that `save_pins`, or a person, wrote.

    Returns:
        Policy texts by pattern, in the order of the file.

    Raises:
        ValueError: The file is no TOML, has an unknown table, or a value that is no policy; the
            message names the line and the key. Its rules are checked as well.
    """
    return _load(path)[_LAYERS]


def load_rules(path: str | Path) -> dict[str, str]:
    """Read the rules by problem that `save_pins`, or a person, wrote, for `apply_rules`.

    Returns:
        Policy texts by matcher, in the order of the file.

    Raises:
        ValueError: As of `load_pins`.
    """
    return _load(path)[_PROBLEMS]


def _load(path: str | Path) -> dict[str, dict[str, str]]:
    """Both tables of a file, checked."""
    text = Path(path).read_text()
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    found: dict[str, dict[str, str]] = {_LAYERS: {}, _PROBLEMS: {}}
    for name, table in tables.items():
        if name not in found or not isinstance(table, dict):
            raise ValueError(
                f"{path}, line {_line_of(text, name)}: got the key {name!r}, "
                f"wanted [{_LAYERS}] and [{_PROBLEMS}] alone"
            )
        for key, value in table.items():
            place = f"{path}, line {_line_of(text, key)}: {key!r}"
            if not isinstance(value, str):
                raise ValueError(f"{place} is {value!r}, wanted a policy text in quotes")
            try:
                if name == _PROBLEMS:
                    _C.check_rule(key, value)
                else:
                    _fitting_families(value)
                    _compiled(key)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            found[name][key] = value
    return found


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _line_of(text: str, key: str) -> int:
    """The line that a key begins, as it may be spelled; 1 where it cannot be told."""
    spellings = (f"{_toml_string(key)}", f"'{key}'", f"[{key}", f"[[{key}", key)
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(spellings):
            return number
    return 1


# Which layers a pattern means, and what for.


def _resolve(
    model: torch_nn.Module, pins: Pins
) -> dict[torch_nn.Module, tuple[str, tuple[str, ...]]]:
    """The policy text of every pinned layer, with the patterns behind it."""
    layers = {name: m for name, m in model.named_modules() if standing_for(m) is not None}
    found: dict[torch_nn.Module, tuple[str, tuple[str, ...]]] = {}
    for pattern, policy in pins.items():
        matches = _compiled(pattern)
        chosen = {name: m for name, m in layers.items() if matches(name)}
        if not chosen:
            _raise_no_match(pattern, model, layers)
        fitting = False
        reasons: list[str] = []
        for name, module in chosen.items():
            ours = standing_for(module)
            assert ours is not None
            try:
                text = _text_for(policy, ours)
            except ValueError as error:
                reasons.append(f"{name} is a layer of {ours.family}: {error}")
                continue
            _check_reached(name, module, ours)
            fitting = True
            stronger, patterns = found.get(module, ("", ()))
            found[module] = (merge_texts(text, stronger, ours.family), (*patterns, pattern))
        if not fitting:
            raise ValueError(f"pins: {pattern!r} is {policy!r}, which fits no layer: {reasons[0]}")
    return found


def _compiled(pattern: str) -> Any:
    """A predicate on names."""
    try:
        text = pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern)
        return re.compile(text).fullmatch
    except re.error as error:
        raise ValueError(f"pins: {pattern!r} is no regular expression: {error}") from error


def _raise_no_match(
    pattern: str, model: torch_nn.Module, layers: Mapping[str, torch_nn.Module]
) -> None:
    matches = _compiled(pattern)
    for name, module in model.named_modules():
        if matches(name) and name:
            kinds = ", ".join(sorted(cls.__name__ for cls in _OURS))
            raise ValueError(
                f"pins: {pattern!r} matches {name!r}, a {type(module).__name__}, which has no "
                f"algorithms to choose, wanted one of {kinds}"
            )
    near = difflib.get_close_matches(pattern.removeprefix("re:"), list(layers), n=5, cutoff=0.4)
    raise ValueError(
        f"pins: {pattern!r} matches no layer of this {type(model).__name__}; "
        + (f"near misses: {', '.join(near)}" if near else f"it has {', '.join(list(layers)[:8])}")
    )


def _text_for(policy: PolicyLike, ours: type[Tunable]) -> str:
    """The canonical text for a layer of this kind; ValueError where it does not speak of it."""
    family = ours.family
    text = _C.canonical_policy(policy_text(policy, family) or "", family)
    keys = [part.partition("=")[0] for part in text.split(";") if part]
    others = [key for key in keys if key in _operators() and not key.startswith(f"{family}_")]
    if others and not any(key in ours._passes() for key in keys):
        raise ValueError(f"the policy is for {', '.join(others)}")
    return text


def _fitting_families(text: str) -> list[str]:
    """The families of which a policy text can be read; ValueError where it is none."""
    families, reason = [], None
    for family in dict.fromkeys(ours.family for ours in _OURS.values()):
        try:
            _C.canonical_policy(text, family)
            families.append(family)
        except ValueError as error:
            reason = reason or error
    if reason is not None and not families:
        raise reason
    return families


def _operators() -> list[str]:
    return [f"{op['family']}_{name}" for op in _C.operators() for name in op["passes"]]


def standing_for(module: torch_nn.Module) -> type[Tunable] | None:
    """The class of ours that stands for a layer's own; ``None`` where there is none."""
    if isinstance(module, Tunable):
        return type(module)
    return next((_OURS[cls] for cls in type(module).__mro__ if cls in _OURS), None)


def _check_reached(name: str, module: torch_nn.Module, ours: type[Tunable]) -> None:
    """ValueError where the layer's own code would not look for a pin."""
    if isinstance(module, Tunable):
        raise ValueError(
            f"pins: {name!r} is a {type(module).__name__} of torch_cudnn_ext, which has a policy "
            "of its own, wanted: set its attribute policy"
        )
    method = _method(ours.replaces)
    for cls in type(module).__mro__:
        if cls is ours.replaces:
            return
        if {"forward", method} & vars(cls).keys():
            raise ValueError(
                f"pins: {name!r} is a {type(module).__name__}, whose forward is its own and would "
                "not see a pin, wanted: when() for its problems"
            )


def _unwrapped(model: torch_nn.Module) -> torch_nn.Module:
    """The module inside what ``torch.compile`` made, or inside DistributedDataParallel."""
    parallel = (torch_nn.parallel.DistributedDataParallel, torch_nn.DataParallel)
    while True:
        if "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        elif isinstance(model, parallel):
            model = model.module
        else:
            return model


# Making layers obey.


def _replace(model: torch_nn.Module, pins: Mapping[torch_nn.Module, Pin]) -> None:
    """Make these the pins of the model, and no others."""
    for module in model.modules():
        if _MARK in vars(module):
            for name in (_MARK, *_STATE):
                vars(module).pop(name, None)
    for module, pin in pins.items():
        ours = standing_for(module)
        assert ours is not None
        vars(module).update(_state_for(ours, pin.text), **{_MARK: pin})
    _unpatch_if_unused()


def _state_for(ours: type[Tunable], text: str) -> dict[str, Any]:
    """What an instance of our class keeps of this policy."""
    probe = ours.__new__(ours)
    torch_nn.Module.__init__(probe)
    probe.policy = text
    return {name: getattr(probe, name) for name in _STATE if hasattr(probe, name)}


def _method(plain: type) -> str:
    """The method of PyTorch's class that runs the operator."""
    return "_conv_forward" if "_conv_forward" in vars(plain) else "forward"


def _patch() -> None:
    if _undo:
        return
    for plain, ours in _OURS.items():
        name = _method(plain)
        own: dict[str, Any] = {name: _looking_for_pins(getattr(plain, name), getattr(ours, name))}
        for cls in ours.__mro__:
            if cls.__module__.startswith(__package__ or ""):
                for key in vars(cls):
                    if key.startswith("_") and not key.endswith("__") and not hasattr(plain, key):
                        own.setdefault(key, inspect.getattr_static(ours, key))
        for key, value in own.items():
            _undo.append((plain, key, vars(plain).get(key, _ABSENT)))
            setattr(plain, key, value)
    _forget_compiled()


def _unpatch_if_unused() -> None:
    if len(_marks) > 0 or not _undo:
        return
    for plain, name, before in reversed(_undo):
        if before is _ABSENT:
            delattr(plain, name)
        else:
            setattr(plain, name, before)
    _undo.clear()
    _forget_compiled()


def _looking_for_pins(plain: Any, ours: Any) -> Any:
    # An attribute of the class, so that torch.compile guards what it read there.
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._running is None:
            return plain(self, *args, **kwargs)
        return ours(self, *args, **kwargs)

    return forward


def _forget_compiled() -> None:
    """What was compiled while the classes were others does not look for pins, or does in vain."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
