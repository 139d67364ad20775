"""Pins of layers, and rules by problem, as TOML files.

A file has two tables of policy texts: ``[layers]`` by pattern of names, ``[problems]`` by matcher.
Errors name the line of the file.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import read_text, toml_string, write_text
from torch_cudnn_ext._policy_text import check_mapping
from torch_cudnn_ext.models.enable import check_rule, rule_text
from torch_cudnn_ext.models.pins import Pins, check_fits_some, check_patterns, name_matcher
from torch_cudnn_ext.policy import Policy, PolicyLike, naming_policy, plain_text

_LAYERS, _PROBLEMS = "layers", "problems"  # tables of a file
_MOST_PARTS = 64  # of a key in a file


def save_pins(path: str | Path, pins: Pins, rules: Mapping[str, PolicyLike] | None = None) -> None:
    """Write pins of layers, and rules by problem, to a TOML file, in their order.

    Args:
        path: The file; it is replaced, or stays as it is after an error.
        pins: As `apply_pins` takes them.
        rules: As `apply_rules` takes them.

    Raises:
        TypeError: ``pins`` or ``rules`` is no mapping, or a policy has a type that stands for none.
        ValueError: `load_pins` would not take a pattern or a policy; nothing is written.
        OSError: The file cannot be written.

    Example:
        >>> save_pins("pins.toml", {"0": "autotune"}, {"softmax_fwd log=false": "cpu:online"})
        >>> load_pins("pins.toml")
        {'0': 'autotune'}
    """
    check_patterns(pins)
    if rules is not None:
        check_mapping("rules", rules, "matchers to policies")
    lines = [
        "# Algorithms of layers by name; of two that match, the upper one holds.",
        f"[{_LAYERS}]",
    ]
    for pattern, policy in pins.items():
        if isinstance(policy, Policy):  # a file does not tell the family of a plain "fwd"
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
    """Read the pins of layers from a TOML file, which `save_pins` or a person wrote.

    Returns:
        Policy texts by pattern, in the order of the file.

    Raises:
        ValueError: The file is no TOML, has an unknown table, or a value that is no policy; the
            message names the line and the key. The rules of the file are checked as well.
        OSError: The file cannot be read.

    Example:
        >>> save_pins("pins.toml", {"layer1.*": "autotune"})
        >>> load_pins("pins.toml")
        {'layer1.*': 'autotune'}
    """
    return _load(path)[_LAYERS]


def load_rules(path: str | Path) -> dict[str, str]:
    """Read the rules by problem from a TOML file, for `apply_rules`.

    Returns:
        Policy texts by matcher, in the order of the file.

    Raises:
        ValueError: As `load_pins`.
        OSError: As `load_pins`.

    Example:
        >>> save_pins("pins.toml", {}, {"softmax_fwd log=false": "cpu:online"})
        >>> list(load_rules("pins.toml"))
        ['softmax_fwd log=false']
    """
    return _load(path)[_PROBLEMS]


def _load(path: str | Path) -> dict[str, dict[str, str]]:
    """Both tables of a file, checked."""
    text = read_text(path)
    lines = _lines_of_keys(text, path)
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # also for a number of very many digits
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
        parts = [key]
        part: Any = value
        while isinstance(part, dict) and part:  # TOML reads a key with dots as nested tables
            first, part = next(iter(part.items()))
            parts.append(first)
        raise ValueError(
            "got a table, wanted a policy text in quotes, such as 'fwd=heuristic', and of a name "
            f"with dots quotes around it: {'.'.join(parts)!r}"
        )
    if not isinstance(value, str):
        raise ValueError(f"got {value!r}, wanted a policy text in quotes")


def _line(argument: str, table: str, key: str, text: str) -> str:
    """A line of a file; ValueError, which names the argument, if `load_pins` would not take it."""
    line = f"{toml_string(key)} = {toml_string(text)}"
    try:
        line.encode()  # raises for lone surrogates
        _check_line(table, key, text)
    except ValueError as error:
        raise ValueError(f"{argument}: {key!r}: {error}") from error
    return line


def _check_line(table: str, key: str, text: str) -> None:
    """Raise ValueError for a key or text that the table does not take."""
    if table == _PROBLEMS:
        check_rule(key, text)
    else:
        check_fits_some(text)
        name_matcher(key)


# Line numbers, which tomllib does not give.

# The tokens of TOML that tell where keys stand. Possessive quantifiers keep the search linear.
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
    """The line at which each table and key, as written, begins; the text may be invalid TOML.

    Raises:
        ValueError: A key has very many parts, which TOML's parser would read very slowly.
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
    """The line at which a table or key begins, or else the table that it is in."""
    for written, number in lines.items():
        if len(written) == len(keys) and tuple(map(_key_of, written)) == keys:
            return number
    return _line_of(lines, *keys[:-1])


def _key_of(written: str) -> str:
    """The meaning of a bare or quoted part of a key."""
    (key,) = tomllib.loads(f"{written} = 0")
    return key


def _line_of_mistake(text: str, error: ValueError) -> tuple[int, str]:
    """The number and the text of the line that TOML's parser stopped at."""
    lines = text.rstrip().split("\n")
    place = re.search(r"at line (\d+)", str(error))
    number = min(int(place[1]), len(lines)) if place else len(lines)
    return number, lines[number - 1].strip()
