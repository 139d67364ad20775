"""The pages of measurements, made of ``benchmarks/*.json``: one for each GPU and date."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FIELDS: dict[str, type] = {
    "gpu": str,
    "date": str,
    "software": str,
    "conditions": list,
    "results": list,
}
OPTIONAL: dict[str, type] = {"repeat": list, "notes": list, "columns": list, "rows": list}
NON_BREAKING_HYPHEN = "\u2011"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown; a `|` in a cell stays in its cell.

    Raises:
        ValueError: A row has another number of cells than there are columns.
    """
    lines = [columns, ["---"] * len(columns), *rows]
    for row in lines:
        if len(row) != len(columns):
            raise ValueError(f"got the row {row!r}, wanted {len(columns)} cells")
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def read(file: Path) -> dict[str, Any]:
    """What a file of measurements holds.

    Raises:
        ValueError: A field is missing, is unknown, or has another type.
    """
    data: dict[str, Any] = json.loads(file.read_text())
    check(data, FIELDS, {}, file.name)
    for result in data["results"]:
        check(result, {"title": str, "text": list}, OPTIONAL, f"{file.name}, {result.get('title')}")
    return data


def check(
    data: dict[str, Any], wanted: dict[str, type], optional: dict[str, type], where: str
) -> None:
    """Raises ValueError for what is missing, unknown, or of another type."""
    for name, kind in (wanted | optional).items():
        if (name in wanted or name in data) and not isinstance(data.get(name), kind):
            raise ValueError(f"{where}: {name} is {data.get(name)!r}, wanted a {kind.__name__}")
    if unknown := data.keys() - wanted.keys() - optional.keys():
        raise ValueError(f"{where}: got the unknown {sorted(unknown)}, wanted {[*wanted]}")


def pages() -> dict[str, str]:
    """The text of each page by its path under docs."""
    files = sorted(BENCHMARKS.glob("*.json"), reverse=True)
    made = {f"measurements/generated/{file.stem}.md": page(read(file)) for file in files}
    rows = [
        [
            f"[{data['date']}](generated/{file.stem}.md)",
            data["gpu"],
            ", ".join(result["title"] for result in data["results"]),
        ]
        for file in files
        for data in [read(file)]
    ]
    made["measurements/generated/list.txt"] = markdown_table(["date", "device", "results"], rows)
    return made


def page(data: dict[str, Any]) -> str:
    """One page."""
    return "\n".join(_lines(data)) + "\n"


def _lines(data: dict[str, Any]) -> Iterator[str]:
    yield f"# {data['gpu']}, {data['date'].replace('-', NON_BREAKING_HYPHEN)}"
    yield ""
    yield f"Measured with {data['software']}."
    yield ""
    yield from (f"- {condition}" for condition in data["conditions"])
    for result in data["results"]:
        yield f"\n## {result['title']}\n"
        yield "\n\n".join(result["text"])
        if "rows" in result:
            yield "\n" + markdown_table(result["columns"], result["rows"])
        if "notes" in result:
            yield "\n" + "\n".join(f"- {note}" for note in result["notes"])
        if "repeat" in result:
            yield "\nTo repeat it:\n"
            yield "```console"
            yield from (f"$ {command}" for command in result["repeat"])
            yield "```"
