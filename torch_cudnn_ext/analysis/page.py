"""Reports as pages of HTML, which need no network and no other file, and no script to be read.

The style is in ``report.css`` next to this file, and the script, which sorts and filters tables, in
``report.js``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch_cudnn_ext.analysis.html import table_html
from torch_cudnn_ext.analysis.tables import Column, Table


@dataclass(frozen=True)
class Section:
    """A part of a page: its heading, and its content as HTML."""

    heading: str
    content: str

    @property
    def anchor(self) -> str:
        """What links within the page call it."""
        return re.sub(r"\W+", "-", self.heading.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: What it is about.
        sentence: What there is to know first.
        sections: Its parts; those without content are left out.
        about: What the numbers are of; may be empty.
    """

    title: str
    sentence: str
    sections: Sequence[Section]
    about: str = ""

    def html(self) -> str:
        """The whole page."""
        parts = [section for section in self.sections if section.content]
        links = "".join(f'<a href="#{s.anchor}">{html.escape(s.heading)}</a>' for s in parts)
        body = "\n".join(
            f'<section id="{s.anchor}"><h2>{html.escape(s.heading)}</h2>\n{s.content}\n</section>'
            for s in parts
        )
        title = html.escape(self.title)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>\n{stylesheet()}</style></head>\n<body>\n"
            f'<header><h1>{title}</h1>\n<p class="lead">{html.escape(self.sentence)}</p>\n'
            f"{note(self.about)}</header>\n"
            f"<nav>{links}</nav>\n<main>\n{body}\n</main>\n"
            f"<script>\n{_file('report.js')}</script>\n</body></html>\n"
        )

    def frame(self) -> str:
        """The page within a page of a notebook, which keeps its own style."""
        return (
            f'<iframe title="{html.escape(self.title)}" srcdoc="{html.escape(self.html())}" '
            'style="width:100%;height:42rem;border:1px solid #8884;border-radius:6px" '
            'sandbox="allow-scripts allow-popups"></iframe>'
        )


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """The style of pages and of the pictures in them."""
    return _file("report.css")


def note(text: str) -> str:
    """A remark."""
    return f'<p class="note">{html.escape(text)}</p>' if text else ""


def replay_line(command: str) -> str:
    """A command or a line of code to copy."""
    return f'<div class="replay"><code>{html.escape(command)}</code></div>'


def sorted_table(table: Table, filter: bool = True) -> str:
    """A table with its notes, which the script can sort and, if asked for, filter."""
    classes = "sortable filterable" if filter and len(table.rows) > 1 else "sortable"
    notes = "".join(map(note, table.notes()))
    return table_html(table, classes) + notes


def environment(facts: Mapping[str, str], again: str, command: str) -> Section:
    """The last section: the environment, and the command that does it again if there is one."""
    replay = note(again) + replay_line(command) if command else ""
    return Section("Environment", facts_table(facts) + replay)


def facts_table(facts: Mapping[str, str]) -> str:
    """Names and values, such as those of an environment."""
    rows = [[name, value] for name, value in facts.items() if value]
    return table_html(Table("", (Column("what"), Column("value")), rows))
