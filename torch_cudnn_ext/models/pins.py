"""Choices by the name of a layer, in models that stay as they are.

    >>> pins = {"layer1.*.conv2": Policy(fwd="winograd_nonfused"), "*": "autotune"}
    >>> with pinned(model, pins):
    ...     model(images).sum().backward()

A pin holds whether or not `enable` was called. A pinned layer is of a hidden class of this
package's, which goes by the name of its own and is a subclass of it; without the pin it is of its
own class again. The pin is copied and pickled with the layer, is no part of ``state_dict``, and
what ``torch.compile`` made follows when it changes. No other module of the process is touched.
"""

import fnmatch
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn as torch_nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import read_text, write_text
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.models.convert import (
    Pinned,
    all_or_none,
    class_with_pin,
    class_without_pin,
    counterpart,
    counterparts,
    exchange,
    obstacle,
    settle_fast_paths,
    unwrapped_model,
)
from torch_cudnn_ext.models.enable import check_rule, rule_text
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.policy import (
    Policy,
    PolicyLike,
    check_mapping,
    check_named_pins,
    naming_policy,
    others_spoken_of,
    passes_of,
    plain_text,
)

Pins: TypeAlias = Mapping[str, PolicyLike]  # by pattern

_LAYERS, _PROBLEMS = "layers", "problems"  # tables of a file
_MOST_PARTS = 64  # of a key in a file


@dataclass(frozen=True)
class Pin:
    """What a pinned layer carries.

    Attributes:
        text: Its policy.
        patterns: The pattern that each choice of a pass (``fwd``) came from.
    """

    text: str
    patterns: Mapping[str, str]


def apply_pins(model: torch_nn.Module, pins: Pins) -> None:
    """Pin layers by name, in place of all pins that the model had.

    ``torch.nn.TransformerEncoderLayer`` and ``TransformerEncoder`` with pinned layers are kept from
    their fast paths, which would not call these. Give the outermost of these: an encoder around the
    model is not seen, and may hand its layers nested tensors, which they then cannot take. A pin of
    ``guess_once`` or ``time_once`` chooses anew when its layer is copied, unpickled, moved or cast,
    as modules of `nn` do; a copy of a parametrized layer keeps what was chosen.

    No other thread may run the model meanwhile, and a bound ``forward`` that was taken of a layer
    before is of the class that it had.

    Args:
        model: A module. Its own code and its parameters are left as they are.
        pins: By pattern, a policy: its text, a `Policy`, or a mapping of its keywords. A pattern is
            a glob over names as ``named_modules`` gives them: ``*`` stands for any text, dots too,
            ``?`` for any character, ``[0-3]`` for one of these and ``[!0-3]`` for any other. Where
            several match one layer, what an earlier one says holds. A pattern pins those layers of
            which its policy speaks: one that names algorithms of convolution leaves softmax alone.
            Layers that would not obey, such as subclasses with a ``forward`` of their own, are left
            out with a warning.

    Raises:
        TypeError: ``model`` is no module, ``pins`` no mapping, a pattern no text, or a policy has a
            type that stands for none.
        ValueError: A pattern matches no layer, or none that its policy fits and that would obey;
            then nothing changes.
    """
    inner = unwrapped_model("apply_pins", model)
    _replace([*inner.modules()], _resolve(model, inner, pins))


def clear_pins(model: torch_nn.Module) -> None:
    """Take all pins of a model back."""
    _replace([*unwrapped_model("clear_pins", model).modules()], {})


@contextmanager
def pinned(model: torch_nn.Module, pins: Pins) -> Iterator[None]:
    """`apply_pins` inside a ``with`` block; behind it the model has the pins that it had before.

    So have layers that were taken out of it inside. One that was converted inside has no pin. A
    backward keeps to the pins of its forward; what a checkpoint computes again behind the block has
    none.

    Blocks may end in any order: the pins of one that began later go on to hold.

    Raises:
        TypeError: As `apply_pins`.
        ValueError: As `apply_pins`.
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
        except KeyboardInterrupt:  # its pins are not to stay
            _end(block, inner)
            raise
        finally:
            _blocks.remove(block)


@dataclass(eq=False)
class _Block:
    """What modules carried before a block of `pinned`, and the pins of the block."""

    before: dict[torch_nn.Module, Pin | None]
    inside: dict[torch_nn.Module, Pin]


_blocks: list[_Block] = []  # those that have not ended, the oldest first


def _end(block: _Block, model: torch_nn.Module) -> None:
    """Put back what was before a block, at once or at the end of the next one of that layer."""
    later = _blocks[_blocks.index(block) + 1 :]
    modules = {*model.modules()}
    pins: dict[torch_nn.Module, Pin | None] = {}
    for module in modules | block.before.keys():
        over = next((other for other in later if module in other.before), None)
        left = over.before[module] if over else pin_of(module)
        # Not what was taken out and, as part of another model, pinned anew.
        if module in modules or left is block.inside.get(module):
            (over.before if over else pins)[module] = block.before.get(module)
    _replace(pins, {module: pin for module, pin in pins.items() if pin is not None})


def pin_of(module: torch_nn.Module) -> Pin | None:
    """The pin that a layer carries."""
    pin: Pin | None = module._pin if isinstance(module, Pinned) else None
    return pin


# Files.


def save_pins(path: str | Path, pins: Pins, rules: Mapping[str, PolicyLike] | None = None) -> None:
    """Write pins of layers, and rules by problem, to a TOML file, in their order.

    Args:
        path: Where; what is there is replaced, and on an error stays.
        pins: As `apply_pins` takes them.
        rules: As `apply_rules` takes them.

    Raises:
        TypeError: ``pins`` or ``rules`` is no mapping, or a policy has a type that stands for none.
        ValueError: A pattern or a policy is none that `load_pins` would take; nothing is written.
        OSError: The file cannot be written.
    """
    _check_pins(pins)
    if rules is not None:
        check_mapping("rules", rules, "matchers to policies")
    lines = [
        "# Algorithms of layers by name; of two that match, the upper one holds.",
        f"[{_LAYERS}]",
    ]
    for pattern, policy in pins.items():
        if isinstance(policy, Policy):  # in a file nothing tells the family of a single "fwd"
            text = _C.canonical_policy(policy.text, policy.family, "conv")
        else:
            with naming_policy("pins", pattern, policy):
                text = plain_text(policy, "conv") or ""
        lines.append(_line("pins", _LAYERS, pattern, text))
    if rules:
        lines += ["", "# And by problem, likewise.", f"[{_PROBLEMS}]"]
        for matcher, use in rules.items():
            with naming_policy("rules", matcher, use):
                text = rule_text(matcher, use)
            lines.append(_line("rules", _PROBLEMS, matcher, text))
    write_text(path, "\n".join(lines) + "\n")


def load_pins(path: str | Path) -> dict[str, str]:
    """Read the pins of layers that `save_pins`, or a person, wrote.

    Returns:
        Policy texts by pattern, in the order of the file.

    Raises:
        ValueError: The file is no TOML, has an unknown table, or a value that is no policy; the
            message names the line and the key. Its rules are checked as well.
        OSError: The file cannot be read.
    """
    return _load(path)[_LAYERS]


def load_rules(path: str | Path) -> dict[str, str]:
    """Read the rules by problem that `save_pins`, or a person, wrote, for `apply_rules`.

    Returns:
        Policy texts by matcher, in the order of the file.

    Raises:
        ValueError: As of `load_pins`.
        OSError: As of `load_pins`.
    """
    return _load(path)[_PROBLEMS]


def _load(path: str | Path) -> dict[str, dict[str, str]]:
    """Both tables of a file, checked."""
    text = read_text(path)
    lines = _lines_of_keys(text, path)
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # also of a number of very many digits
        number, line = _line_of_mistake(text, error)
        raise ValueError(f"{path}, line {number}: got {line!r}, wanted TOML: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: got tables or lists too deep to be read, wanted TOML") from error
    found: dict[str, dict[str, str]] = {_LAYERS: {}, _PROBLEMS: {}}
    for name, table in tables.items():
        if name not in found or not isinstance(table, dict):
            raise ValueError(
                f"{path}, line {_line_of(lines, name)}: got the key {name!r}, "
                f"wanted [{_LAYERS}] and [{_PROBLEMS}] alone"
            )
        for key, value in table.items():
            try:
                _check_value(key, value)
                _check_line(name, key, value)
            except ValueError as error:
                number = _line_of(lines, name, key)
                raise ValueError(f"{path}, line {number}: {key!r}: {error}") from error
            found[name][key] = value
    return found


def _check_value(key: str, value: object) -> None:
    if isinstance(value, dict):
        whole = ".".join([key, *_first_keys(value)])
        raise ValueError(
            "got a table, wanted a policy text in quotes, such as 'fwd=heuristic', and of a name "
            f"with dots quotes around it: {whole!r}"
        )
    if not isinstance(value, str):
        raise ValueError(f"got {value!r}, wanted a policy text in quotes")


def _line(argument: str, table: str, key: str, text: str) -> str:
    """A line of a file; ValueError, which names the argument, where it would be none."""
    line = f"{_toml_string(key)} = {_toml_string(text)}"
    try:
        line.encode()  # no lone surrogates
        _check_line(table, key, text)
    except ValueError as error:
        raise ValueError(f"{argument}: {key!r}: {error}") from error
    return line


def _check_line(table: str, key: str, text: str) -> None:
    """ValueError where a line of a file would be none."""
    if table == _PROBLEMS:
        check_rule(key, text)
    else:
        _check_fits_some(text)
        _matcher(key)


def _first_keys(table: Any) -> list[str]:
    """What follows of a dotted key that made a table."""
    keys = []
    while isinstance(table, dict) and table:
        key, table = next(iter(table.items()))
        keys.append(key)
    return keys


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


# What TOML is made of, as far as it tells where keys stand. Nothing in it goes back over text.
_PART = re.compile(
    r"""(?P<blank>[ \t\r]++|\#[^\n]*+)
    | (?P<text>\"\"\"(?:[^"\\]++|\\.|"(?!""))*+"{0,5}+
    | '''(?:[^']++|'(?!''))*+'{0,5}+
    | "(?:[^"\\\n]++|\\.)*+"?+
    | '[^'\n]*+'?+)
    | (?P<word>[\w-]++)
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def _lines_of_keys(text: str, path: str | Path) -> dict[tuple[str, ...], int]:
    """The lines at which tables and keys, as written, begin, of what may not be TOML after all.

    Raises:
        ValueError: A key has very many parts, for which TOML's parser would take very long.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: list[str] = []
    key: list[str] = []
    number, depth, is_value, is_header = 1, 0, False, False
    for part in _PART.finditer(text):
        kind, found = part.lastgroup, part[0]
        if found == "\n" and depth == 0:
            if is_header:
                table = key
            key, is_value, is_header = [], False, False
        elif is_value:
            depth = max(0, depth + (found in ("[", "{")) - (found in ("]", "}")))
        elif found == "[" and not key:
            is_header, table = True, []
        elif kind in ("text", "word"):
            key.append(found)
            if len(key) > _MOST_PARTS:
                raise ValueError(
                    f"{path}, line {number}: got a key of more than {_MOST_PARTS} parts, "
                    "wanted names with dots in quotes"
                )
            whole = (*table, *key)
            for end in range(len(table) + 1, len(whole) + 1):
                lines.setdefault(whole[:end], number)
        elif found == "=":
            is_value = True
        number += found.count("\n")
    return lines


def _line_of(lines: Mapping[tuple[str, ...], int], *keys: str) -> int:
    """The line at which what these keys lead to begins, or else what they begin with."""
    for written, number in lines.items():
        if len(written) == len(keys) and tuple(map(_key_of, written)) == keys:
            return number
    return _line_of(lines, *keys[:-1])


def _key_of(written: str) -> str:
    """What a bare or quoted part of a key means."""
    (key,) = tomllib.loads(f"{written} = 0")
    return key


def _line_of_mistake(text: str, error: ValueError) -> tuple[int, str]:
    """The number and the text of the line that TOML's parser stopped at."""
    lines = text.rstrip().split("\n")
    place = re.search(r"at line (\d+)", str(error))
    number = min(int(place[1]), len(lines)) if place else len(lines)
    return number, lines[number - 1].strip()


# Which layers a pattern means, and what for.


def _resolve(
    wrapped: torch_nn.Module, model: torch_nn.Module, pins: Pins
) -> dict[torch_nn.Module, Pin]:
    """Every pinned layer's pin.

    Names are those of the model; where a pattern matches none of these, of what wraps it.
    """
    _check_pins(pins)
    prefix = "".join(name + "." for name, m in wrapped.named_modules() if m is model and name)
    # Under all its names, where it has several.
    modules = model.named_modules(remove_duplicate=False)
    layers = {name: m for name, m in modules if standing_for(m) is not None}
    found: dict[torch_nn.Module, Pin] = {}
    for pattern, policy in pins.items():
        with naming_policy("pins", pattern, policy):
            check_named_pins(policy)
        # What is a layer's very name means it, whatever else it could be read as.
        matches = pattern.__eq__ if pattern in layers else _matcher(pattern)
        chosen: dict[torch_nn.Module, str] = {}
        for before in ("", prefix):
            for name, module in layers.items() if not chosen else ():
                if matches(before + name):
                    chosen.setdefault(module, name)
        if not chosen:
            _raise_no_match(pattern, model, layers)
        fitting = False
        reasons: list[str] = []
        of_others: list[str] = []
        unreached: list[str] = []
        for module, name in chosen.items():
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
            except ValueError as error:  # another layer may take it
                why = error.__cause__
                known = of_others if isinstance(why, _OfOthersError) else reasons
                known.append(f"{name} is a layer of {ours.family}: {why}")
                continue
            if reason := _out_of_reach(module, ours):
                unreached.append(f"{name!r} is a {type(module).__name__} {reason}")
                continue
            fitting = True
            stronger = found.get(module, Pin("", {}))
            merged = _C.policy_with_level(stronger.text, text, ours.family)
            holding = Policy._unchecked(merged, ours.family)
            here = [name for name in passes_of(ours.family) if holding.get(name)]
            patterns = {name: stronger.patterns.get(name, pattern) for name in here}
            found[module] = Pin(merged, patterns)
        if not fitting:
            reason = [*unreached, *reasons, *of_others][0]
            raise ValueError(f"pins: {pattern!r} is {policy!r}, which fits no layer: {reason}")
        if unreached:
            warn(
                f"pins: {pattern!r} leaves out {len(unreached)} of {len(chosen)} layers: "
                f"{unreached[0]}"
            )
    return found


def _check_pins(pins: Pins) -> None:
    check_mapping("argument pins", pins, "patterns to policies")
    for pattern in pins:
        if not isinstance(pattern, str):
            raise TypeError(
                f"argument pins: got the pattern {pattern!r} ({type(pattern).__name__}), "
                "wanted a text"
            )


def _matcher(pattern: str) -> Callable[[str], object]:
    """A predicate on names; what ``fnmatch`` makes of a glob does not go back."""
    if pattern.startswith("re:"):  # which may take for ever
        raise ValueError(
            f"pins: {pattern!r:.80} is a regular expression, wanted a glob, such as "
            "'layer[12].*.conv?'"
        )
    _C.check_length("pins: pattern", pattern)
    return re.compile(fnmatch.translate(pattern)).fullmatch


def _raise_no_match(
    pattern: str, model: torch_nn.Module, layers: Mapping[str, torch_nn.Module]
) -> None:
    matches = _matcher(pattern)
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


def _text_for(policy: PolicyLike, ours: type[Tunable]) -> str:
    """The canonical text for a layer of this kind; ValueError where it does not speak of it."""
    family = ours.family
    text = ours._checked(policy).text
    others = others_spoken_of(text, family)
    if others:
        raise _OfOthersError(f"the policy is for {', '.join(others)}")
    return text


class _OfOthersError(ValueError):
    """A policy speaks of other families of operators."""


def _check_fits_some(text: str) -> None:
    """ValueError where a policy text can be read for no family of operators."""
    check_named_pins(text)
    reasons: dict[str, ValueError] = {}
    for ours in counterparts().values():
        try:
            _text_for(text, ours)
            return
        except ValueError as error:
            reasons[ours.family] = error
    # All reasons are too many: one of a family that knows the key, that is spoken of, and of
    # convolution, in that order.
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


def standing_for(module: torch_nn.Module) -> type[Tunable] | None:
    """The class of ours that stands for a layer's own; ``None`` where there is none."""
    if isinstance(module, Tunable) and not isinstance(module, Pinned):
        return type(module)
    return counterpart(type(module))


def _out_of_reach(module: torch_nn.Module, ours: type[Tunable]) -> str:
    """Why the layer's own code would not obey a pin, and what else to do; empty where it would."""
    if isinstance(module, Tunable) and not isinstance(module, Pinned):
        return "of torch_cudnn_ext with a policy of its own, wanted: set its attribute policy"
    reason = obstacle(module, ours)
    if reason:
        return f"that would not obey a pin: {reason}, wanted: when() for its problems"
    return ""


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="pins change the classes of layers"
)
def _replace(modules: Collection[torch_nn.Module], pins: Mapping[torch_nn.Module, Pin]) -> None:
    """Make these the pins of the modules, and no others."""
    # All classes first: one that cannot be made leaves every module as it is.
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
