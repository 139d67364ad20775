"""How a profile is shown: one list of columns, for the terminal, Markdown and HTML."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from .profiling import LayerProfile, Profile, Totals

WIDTH_WITHOUT_TERMINAL = 180

RECORD_FIELDS = (
    "problem",
    "names",
    "count",
    "device",
    "measured",
    "rank",
    "algorithm",
    "backend",
    "current",
    "median_ms",
    "spread_ms",
    "samples",
    "workspace_bytes",
    "tflops",
    "percent_of_peak",
    "vs_pytorch",
    "deterministic",
    "notes",
    "error",
    "status",
    "reason",
    "source",
    "build_ms",
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, and how a record fills the cell below it."""

    heading: str
    cell: Callable[[Record], str]
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Cells that are ready to be shown."""

    title: str
    columns: Sequence[Column]
    rows: list[list[str]]
    footer: str = ""


# Records.


def layer_records(profile: LayerProfile) -> list[Record]:
    """A flat dict for every measurement and for every listed algorithm of a layer."""
    return [*_measured_records(profile), *_listed_records(profile)]


def _base_record(profile: LayerProfile, row: Any) -> Record:
    record: Record = dict.fromkeys(RECORD_FIELDS)
    record.update({key: row[key] for key in RECORD_FIELDS if key in row})
    record.update(problem=profile.problem, names=list(profile.names), count=profile.count)
    return record


def _measured_records(profile: LayerProfile) -> list[Record]:
    baseline = profile.pytorch
    baseline_ms = baseline["median_ms"] if baseline is not None else None
    records = []
    rank = 0
    for row in profile.rows:
        record = _base_record(profile, row)
        record.update(device=profile.device, measured=profile.measured)
        record["current"] = row["algorithm"] == profile.current
        if row["status"] == "ok":
            rank += 1
            record["rank"] = rank
        median_ms = row["median_ms"]
        if median_ms:
            record["tflops"] = profile.flops / median_ms / 1e9
            if profile.floor_ms is not None:
                record["percent_of_peak"] = 100 * profile.floor_ms / median_ms
            if baseline_ms is not None:
                record["vs_pytorch"] = baseline_ms / median_ms
        records.append(record)
    return records


def _listed_records(profile: LayerProfile) -> list[Record]:
    records = []
    for row in profile.listed:
        record = _base_record(profile, row)
        record.update(device=profile.listed_for, measured=profile.problem, current=False)
        records.append(record)
    return records


# Cells.


def _number(key: str, digits: int) -> Callable[[Record], str]:
    return lambda record: "" if record[key] is None else f"{record[key]:.{digits}f}"


def bytes_text(count: int | None) -> str:
    """A number of bytes for people: ``0``, ``512 B``, ``1.5 KiB``, ``64 MiB``; ``?`` for None."""
    if count is None:
        return "?"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return "0" if count == 0 else f"{value:.1f}".removesuffix(".0") + f" {unit}"


def milliseconds(value: float | None) -> str:
    """A time with four significant digits; empty for None."""
    return "" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _time(record: Record) -> str:
    return milliseconds(record["median_ms"])


def _spread(record: Record) -> str:
    return "" if record["spread_ms"] is None else f"± {record['spread_ms']:.2g}"


def _ratio(record: Record) -> str:
    return "" if record["vs_pytorch"] is None else f"{record['vs_pytorch']:.2f}x"


def _yes_no(record: Record) -> str:
    return {True: "yes", False: "no", None: "?"}[record["deterministic"]]


def _status(record: Record) -> str:
    reason = " ".join((record["reason"] or "").split())
    return f"{record['status']}: {reason}" if reason else str(record["status"])


_WORKSPACE = Column("workspace", lambda record: bytes_text(record["workspace_bytes"]), right=True)
_DETERMINISTIC = Column("determ.", _yes_no)
_NOTES = Column("notes", lambda record: ", ".join(record["notes"]))
_STATUS = Column("status", _status)

MEASURED_COLUMNS = (
    Column("", lambda record: "*" if record["current"] else ""),
    Column("rank", lambda record: str(record["rank"] or ""), right=True),
    Column("algorithm", lambda record: str(record["algorithm"])),
    Column("ms", _time, right=True),
    Column("spread", _spread, right=True),
    _WORKSPACE,
    Column("TFLOP/s", _number("tflops", 3), right=True),
    Column("% peak", _number("percent_of_peak", 1), right=True),
    Column("vs PyTorch", _ratio, right=True),
    _DETERMINISTIC,
    _NOTES,
    Column("error", lambda r: "" if r["error"] is None else f"{r['error']:.1e}", right=True),
    _STATUS,
)
LISTED_COLUMNS = (
    Column("algorithm", lambda record: str(record["algorithm"])),
    _WORKSPACE,
    _DETERMINISTIC,
    _NOTES,
    Column("source", lambda record: str(record["source"])),
    _STATUS,
)


# Tables.


def layer_tables(profile: LayerProfile, show_all: bool, top: int) -> list[Table]:
    """The measured table of a layer and, where a target was listed, what that accepts."""
    tables = []
    where = [f"{profile.count}x"] if profile.count > 1 or profile.names else []
    where += [" ".join(profile.names)] if profile.names else []
    where += [f"({profile.note})"] if profile.note else []
    title = "  ".join([profile.problem, *where])
    if profile.rows:
        records = _measured_records(profile)
        place = f"measured on {profile.device}"
        if profile.measured != profile.problem:
            batch = profile.measured.partition("x=")[2].partition("[")[2].partition(",")[0]
            place += f" at batch {batch}"
        tables.append(_table(f"{title}\n{place}", MEASURED_COLUMNS, records, show_all, top))
    if profile.listed_for is not None:
        records = _listed_records(profile)
        accepted = sum(record["status"] == "ok" for record in records)
        head = f"{title}\n" if not profile.rows else ""
        head += f"{profile.listed_for} accepts {accepted} algorithms (listed, not timed)"
        tables.append(_table(head, LISTED_COLUMNS, records, show_all, top))
    return tables


def _table(
    title: str, columns: Sequence[Column], records: list[Record], show_all: bool, top: int
) -> Table:
    """Good rows up to ``top``; PyTorch's and the current choice always; the rest on request."""
    shown, hidden = [], 0
    others: dict[str, int] = {}
    good = 0
    for record in records:
        ok = record["status"] == "ok"
        good += ok
        always = record["current"] or (record["backend"] == "aten" and record["median_ms"])
        if always or show_all or (ok and (top == 0 or good <= top)):
            shown.append(record)
        elif ok:
            hidden += 1
        else:
            others[record["status"]] = others.get(record["status"], 0) + 1
    footer = []
    if any(record["current"] for record in shown):
        footer.append("* what the current policy runs")
    if hidden:
        footer.append(f"{hidden} more that work (--top 0 shows them)")
    if others:
        counts = ", ".join(f"{count} {status}" for status, count in others.items())
        footer.append(f"not shown: {counts} (--all shows them)")
    cells = [[column.cell(record) for column in columns] for record in shown]
    return Table(title, columns, cells, "; ".join(footer))


def summary_table(profile: Profile) -> Table:
    """Totals over the layers, weighted by how often each occurs."""
    cap = profile.settings.max_workspace_bytes
    headings = ["", "PyTorch", "heuristic's first", "best", "best vs PyTorch"]
    if cap is not None:
        headings.append(f"best within {bytes_text(cap)}")

    def cells(line: Totals) -> list[str]:
        ratio = ""
        if line.pytorch_ms is not None and line.best_ms:
            ratio = f"{line.pytorch_ms / line.best_ms:.2f}x"

        def total(name: str, value: float | None) -> str:
            return milliseconds(value) if value is not None else f"none for {line.missing[name]}"

        row = [
            line.label,
            total("pytorch", line.pytorch_ms),
            total("heuristic", line.heuristic_ms),
            total("best", line.best_ms),
            ratio,
        ]
        return row + ([total("capped", line.capped_ms)] if cap is not None else [])

    notes = []
    if any(layer.measured != layer.problem for layer in profile.layers):
        notes.append("cpu rows measured at batch 1: times of the CPU, not of the target")
    columns = [Column(heading, lambda _: "", right=i > 0) for i, heading in enumerate(headings)]
    count = sum(layer.count for layer in profile.layers)
    name = profile.title or "Summary"
    title = f"{name}: {len(profile.layers)} distinct problems, {count} calls, ms"
    return Table(title, columns, [cells(line) for line in profile.totals()], "; ".join(notes))


def profile_tables(profile: Profile, show_all: bool, top: int) -> list[Table]:
    """Every table of a profile, the summary last where anything was measured."""
    tables = [t for layer in profile.layers for t in layer_tables(layer, show_all, top)]
    if any(layer.rows for layer in profile.layers):
        tables.append(summary_table(profile))
    return tables


# Output.


def console() -> Console:
    """Standard output, wide enough for the tables where it is no terminal."""
    return Console(
        width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False
    )


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables to standard output."""
    out = console()
    for table in tables:
        rich_table = RichTable(box=None, pad_edge=False, header_style="bold")
        for column in table.columns:
            rich_table.add_column(
                column.heading, justify="right" if column.right else "left", overflow="fold"
            )
        for row in table.rows:
            rich_table.add_row(*row)
        out.print(table.title, style="bold", soft_wrap=True)
        out.print(rich_table)
        if table.footer:
            out.print(table.footer, style="dim", soft_wrap=True)
        out.print()


def tables_markdown(tables: Iterable[Table]) -> str:
    """Tables as Markdown."""
    parts = []
    for table in tables:
        lines = [_markdown_line(column.heading for column in table.columns)]
        lines.append(_markdown_line("---:" if column.right else "---" for column in table.columns))
        lines.extend(_markdown_line(row) for row in table.rows)
        title = "  \n".join(f"**{part}**" for part in table.title.split("\n"))
        parts.append("\n".join([title, "", *lines, *(["", table.footer] * bool(table.footer))]))
    return "\n\n".join(parts) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def tables_html(tables: Iterable[Table]) -> str:
    """Tables as HTML."""
    parts = []
    for table in tables:
        head = "".join(f"<th>{html.escape(column.heading)}</th>" for column in table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in table.rows
        )
        parts.append(
            f"<p><b>{html.escape(table.title)}</b></p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table><p>{html.escape(table.footer)}</p>"
        )
    return "\n".join(parts)


def print_profile(profile: Profile, show_all: bool, top: int) -> None:
    """Print a profile to standard output."""
    print_tables(profile_tables(profile, show_all, top))


def profile_markdown(profile: Profile, show_all: bool, top: int) -> str:
    """A profile as Markdown."""
    return tables_markdown(profile_tables(profile, show_all, top))


def profile_html(profile: Profile) -> str:
    """A profile as HTML, for notebooks."""
    return tables_html(profile_tables(profile, show_all=False, top=0))


class ProgressBar:
    """A bar on standard error for problems and their algorithms; nothing where it is no terminal.

    Use as a context manager.
    """

    def __init__(self) -> None:
        """Make the bar; it is shown on entering."""
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            disable=not sys.stderr.isatty(),
        )
        self._problems = self._bar.add_task("problems", total=None)
        self._algorithms = self._bar.add_task("", total=None)

    def __enter__(self) -> ProgressBar:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._bar.stop()

    def problem(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` problems are finished; ``text`` is next."""
        self._bar.update(self._problems, completed=done, total=total, description=text[:70])

    def algorithm(self, done: int, total: int, text: str) -> None:
        """The same for the algorithms of one problem."""
        self._bar.update(self._algorithms, completed=done, total=total, description=text[:70])
