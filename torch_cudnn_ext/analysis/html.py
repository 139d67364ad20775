"""Tables as Markdown and as HTML, and records in any of the formats."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from torch_cudnn_ext.analysis.records import Record, csv_text, result_json
from torch_cudnn_ext.analysis.tables import Column, Table

LONG = 24  # characters that a cell of a page holds without folding


def tables_markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    parts = []
    for table in tables:
        lines = []
        if table.columns:
            sides = ("---:" if column.right else "---" for column in table.columns)
            lines = [_markdown_line(c.heading for c in table.columns), _markdown_line(sides)]
        lines.extend(_markdown_line(row) for row in table.rows)
        title = "  \n".join(f"**{_escaped(part)}**" for part in table.title.split("\n") if part)
        # A note that begins with a star is no list.
        notes = map(_escaped, table.notes())
        below = ("\n" + (f"\\{note}" if note.startswith("*") else note) for note in notes)
        parts.append("\n".join([*([title, ""] if title else []), *lines, *below]))
    return "\n\n".join(parts) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    words = (" ".join(_escaped(cell).replace("|", "\\|").splitlines()) for cell in cells)
    return f"| {' | '.join(words)} |"


def _escaped(text: str) -> str:
    """A text that is no HTML."""
    return text.replace("<", "\\<")


def table_html(table: Table, classes: str = "") -> str:
    """The rows of a table as HTML, with classes for their cells.

    Numbers are of the class ``n``. What is not folded is of ``w``, or of ``long`` if that would be
    too wide. The cells of a column that has ``choice`` have their text as their class.
    """
    if not table.rows:
        return ""
    kinds = ["n" if column.right else "w" if column.whole else "" for column in table.columns]
    heads = [
        _cell("th", f"{kind} {'kind' * column.choice}", column.heading)
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    rows = [
        "".join(
            _cell("td", _classes(column, kind, cell), cell)
            for column, kind, cell in zip(table.columns, kinds, row, strict=True)
        )
        for row in table.rows
    ]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    named = f' class="{classes}"' if classes else ""
    return (
        f'<div class="scroll"><table{named}><thead><tr>{"".join(heads)}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _classes(column: Column, kind: str, cell: str) -> str:
    if column.whole and len(cell) > LONG:
        kind = "long"
    return f"{kind} {cell}" if column.choice and cell.isalpha() else kind


def _cell(tag: str, classes: str, text: str) -> str:
    named = f' class="{classes.strip()}"' if classes.strip() else ""
    return f"<{tag}{named}>{html.escape(text)}</{tag}>"


def formatted(
    format: str,
    data: dict[str, Any],
    title: str,
    columns: Sequence[Column],
    records: Sequence[Record],
    names: Sequence[str],
    footer: str,
    lists: Sequence[tuple[str, Sequence[str]]] = (),
) -> str | list[Table]:
    """Records as one table, as CSV with fields of these names, Markdown, or ``data`` as JSON."""
    if format == "json":
        return result_json(data)
    if format == "csv":
        return csv_text(records, names)
    rows = [[column.cell(record) for column in columns] for record in records]
    made = [Table(title, columns, rows, footer, lists)]
    return tables_markdown(made) if format == "markdown" else made
