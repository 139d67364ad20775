"""What ``help TOPIC`` prints: one screen each, made of the grammar and of `Policy`'s docstring."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch_cudnn_ext._grammar import (
    ALGORITHM,
    ALGORITHMS,
    CONSTRAINTS,
    CONVOLUTION_FIELDS,
    POLICY_TEXT,
    PROBLEM_LINE,
    PROBLEM_PARTS,
    SELECTED,
    SELECTIONS,
)

_MOST_COLUMNS = 100
_MOST_IN_NAMES = 26  # columns; the meaning of a longer name begins on the next line


def policy_topic() -> str:
    """How a policy is written, and its fields."""
    described = arguments_of(_docstring_of_policy())
    fields = {
        name: f"{_head_of(described[name])}: {wanted}" for name, (_, wanted) in CONSTRAINTS.items()
    }
    return _page(
        "A policy says how algorithms are chosen. Its fields are separated by ;",
        [POLICY_TEXT],
        SELECTED,
        SELECTIONS,
        ALGORITHM,
        ["  ".join(ALGORITHMS)],
        "Constraints limit what may be chosen:",
        fields,
        "`list` shows the algorithms of a problem, `info --operators` the families, and `profile` "
        "what each algorithm costs.",
    )


def problem_topic() -> str:
    """How a problem line is written."""
    return _page(
        "A problem line says what is computed:",
        _wrapped(PROBLEM_LINE, indent=2),
        "Its parts:",
        PROBLEM_PARTS,
        f"Fields of a convolution. {CONVOLUTION_FIELDS}",
        "`info --operators` shows the families, `list` what supports a problem. An error names "
        "the part of a line that is wrong. `--problems FILE` takes a file of lines, and "
        "`torch_cudnn_ext.trace` writes one of a model's calls.",
    )


TOPICS: dict[str, Callable[[], str]] = {"policy": policy_topic, "problem": problem_topic}


def arguments_of(docstring: str) -> dict[str, str]:
    """The arguments that a docstring describes, each in one line of Markdown."""
    text = inspect.cleandoc(docstring).partition("Args:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.M)
    return {name: markdown_of(words) for name, words in found}


def markdown_of(text: str) -> str:
    """A text of reStructuredText as one line of Markdown."""
    return re.sub(r"`+([^`]*)`+", r"`\1`", " ".join(text.split()))


def _docstring_of_policy() -> str:
    """The docstring of `Policy`, read without an import, which would need PyTorch."""
    tree = ast.parse((Path(__file__).parents[1] / "policy.py").read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Policy")
    return ast.get_docstring(found) or ""


def _head_of(text: str) -> str:
    """The first sentence of a text, up to its first colon."""
    return re.split(r"[:.](?: |$)", text, maxsplit=1)[0]


def _page(*parts: str | list[str] | Mapping[str, str]) -> str:
    """Paragraphs, examples (lists) and tables of names and meanings (mappings)."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines += ["", *_wrapped(part)]
        else:
            lines += _rows(part) if isinstance(part, Mapping) else (f"  {one}" for one in part)
    return "\n".join(lines[1:]).replace("`", "")


def _rows(meanings: Mapping[str, str]) -> Iterable[str]:
    longest = max(len(name.replace("`", "")) for name in meanings)
    width = min(longest, _MOST_IN_NAMES)
    for name, meaning in meanings.items():
        shown = name.replace("`", "")
        rest = _wrapped(meaning, width + 4)
        if len(shown) > width:
            yield f"  {shown}"
        else:
            yield f"  {shown:{width}}  {rest.pop(0)}"
        for line in rest:
            yield " " * (width + 4) + line


def _wrapped(text: str, indent: int = 0) -> list[str]:
    columns = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    return textwrap.wrap(
        text.replace("`", ""),
        max(columns - indent, 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
