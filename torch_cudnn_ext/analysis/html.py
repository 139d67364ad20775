"""Tables as Markdown and as HTML, and records in any of the formats."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch_cudnn_ext.analysis.records import Record, csv_text
from torch_cudnn_ext.analysis.tables import Column, Table


def tables_markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    parts = []
    for table in tables:
        lines = []
        if table.columns:
            sides = ("---:" if column.right else "---" for column in table.columns)
            lines = [_markdown_line(c.heading for c in table.columns), _markdown_line(sides)]
        lines.extend(_markdown_line(row) for row in table.rows)
        title = "  \n".join(f"**{part}**" for part in table.title.split("\n") if part)
        # A note that begins with a star is no list.
        below = ("\n" + (f"\\{note}" if note.startswith("*") else note) for note in table.notes())
        parts.append("\n".join([*([title, ""] if title else []), *lines, *below]))
    return "\n\n".join(parts) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    words = (" ".join(cell.replace("|", "\\|").splitlines()) for cell in cells)
    return f"| {' | '.join(words)} |"


def tables_html(tables: Iterable[Table]) -> str:
    """Tables as HTML."""
    parts = []
    for table in tables:
        head = "".join(f"<th>{html.escape(column.heading)}</th>" for column in table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in table.rows
        )
        below = "<br>".join(html.escape(note) for note in table.notes())
        title = html.escape(table.title).replace("\n", "<br>")
        parts.append(
            f"<p><b>{title}</b></p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table><p>{below}</p>"
        )
    return "\n".join(parts)


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
        return json.dumps(data, indent=1)
    if format == "csv":
        return csv_text(records, names)
    rows = [[column.cell(record) for column in columns] for record in records]
    made = [Table(title, columns, rows, footer, lists)]
    return tables_markdown(made) if format == "markdown" else made
