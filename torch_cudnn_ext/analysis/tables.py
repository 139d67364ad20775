"""How a profile is shown: one list of columns, for the terminal, Markdown and HTML."""

from __future__ import annotations

import csv
import html
import io
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement as Width
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table as RichTable
from rich.text import Text

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext._policy_text import without_options
from torch_cudnn_ext._workload.problems import PROXY_BATCH
from torch_cudnn_ext.tuning.measure import BASELINE

if TYPE_CHECKING:
    from torch_cudnn_ext.analysis.profile import LayerProfile, Profile, Totals

# Wide enough for every table: a file or a pipe has no edge to wrap at.
WIDTH_WITHOUT_TERMINAL = 1000
DEFAULT_TARGET = "h200"  # a GPU that is not there
LINE_LENGTH = 100  # of the lists below a table

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
    "host_ms",
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
    "note",
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, and how a record fills the cell below it; a table of ready cells needs none.

    Where a terminal is narrow, cells are folded, but for numbers, which stand to the right, and
    what is to stay ``whole``.
    """

    heading: str
    cell: Callable[[Record], str] = str
    right: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Table:
    """Cells that are ready to be shown."""

    title: str
    columns: Sequence[Column]
    rows: list[list[str]]
    footer: str = ""
    # What has no cells of its own, such as a reason and the algorithms for which it holds.
    lists: Sequence[tuple[str, Sequence[str]]] = ()

    def notes(self) -> list[str]:
        """The lists, a line each, and the footer."""
        notes = [f"{head}: {', '.join(names)}" for head, names in self.lists]
        return [*notes, self.footer] if self.footer else notes


@dataclass(frozen=True)
class Extent:
    """How much of a profile is shown, and how its reader asks for the rest.

    Attributes:
        show_all: Also what is excluded, unsupported, failed or rejected, with the reasons.
        top: At most so many algorithms a table, beside PyTorch's and the current one; 0 is all.
        ask_for_all: What shows the former.
        ask_for_more: What shows all of the latter.
    """

    show_all: bool = False
    top: int = 0
    ask_for_all: str = "show_all=True"
    ask_for_more: str = "top=0"

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for what is no number of rows."""
        if not isinstance(self.top, SupportsIndex) or isinstance(self.top, bool):
            raise TypeError(f"top: got {self.top!r} ({type(self.top).__name__}), wanted an integer")
        if self.top < 0:
            raise ValueError(f"top: got {self.top}, wanted at least 0 (0: all)")


# Records.


def layer_records(profile: LayerProfile) -> list[Record]:
    """A flat dict for every measurement and for every listed algorithm of a layer."""
    return [*_measured_records(profile), *_listed_records(profile)]


def _base_record(profile: LayerProfile, row: Any) -> Record:
    record: Record = dict.fromkeys(RECORD_FIELDS)
    record.update({key: row[key] for key in RECORD_FIELDS if key in row})
    record.update(problem=profile.problem, names=list(profile.names), count=profile.count)
    record["note"] = profile.note
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


def field_names(kind: Any) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def csv_text(records: Sequence[Record], names: Sequence[str]) -> str:
    """Records as CSV, a line each below the names of their fields; lists are joined by "; "."""
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        cells = {k: "; ".join(v) if isinstance(v, list | tuple) else v for k, v in record.items()}
        writer.writerow(cells)
    return out.getvalue()


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


# Cells.


def _tflops(record: Record) -> str:
    return "" if record["tflops"] is None else f"{record['tflops']:#.3g}".removesuffix(".")


def _percent(record: Record) -> str:
    return "" if record["percent_of_peak"] is None else f"{record['percent_of_peak']:.1f}"


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
    known = record["spread_ms"] is not None and record["samples"] > 1
    return f"± {record['spread_ms']:.2g}" if known else ""


def _host(record: Record) -> str:
    return "" if record["host_ms"] is None else f"{record['host_ms'] * 1e3:.1f}"


def _ratio(record: Record) -> str:
    return "" if record["vs_pytorch"] is None else f"{record['vs_pytorch']:.2f}x"


def _yes_no(record: Record) -> str:
    return {True: "yes", False: "no", None: "?"}[record["deterministic"]]


def _status(record: Record) -> str:
    reason = " ".join((record["reason"] or "").split())
    status = str(record["status"])
    if not reason or reason.startswith(f"{status} "):  # "excluded by max_workspace"
        return reason or status
    return f"{status}: {reason}"


_HOST = Column("host us", _host, right=True)
_OUT_OF_TIME = "not tried, as the time budget was used up"
_RANKED_BY = (
    "ranked by the longer of ms and host us (prefer=gpu_time: by ms), last what takes the GPU "
    "longer than PyTorch's own row"
)
ALGORITHM = Column("algorithm", lambda record: str(record["algorithm"]), whole=True)
_WORKSPACE = Column("workspace", lambda record: bytes_text(record["workspace_bytes"]), right=True)
_DETERMINISTIC = Column("determ.", _yes_no)
_NOTES = Column("notes", lambda record: ", ".join(record["notes"]))
_STATUS = Column("status", _status)

MEASURED_COLUMNS = (
    Column("", lambda record: "*" if record["current"] else ""),
    Column("rank", lambda record: str(record["rank"] or ""), right=True),
    ALGORITHM,
    Column("ms", _time, right=True),
    Column("spread", _spread, right=True),
    _HOST,
    _WORKSPACE,
    Column("TFLOP/s", _tflops, right=True),
    Column("% peak", _percent, right=True),
    Column("vs PyTorch", _ratio, right=True),
    _DETERMINISTIC,
    _NOTES,
    Column("error", lambda r: "" if r["error"] is None else f"{r['error']:.1e}", right=True),
    _STATUS,
)
LISTED_COLUMNS = (
    ALGORITHM,
    _WORKSPACE,
    _DETERMINISTIC,
    _NOTES,
    Column("source", lambda record: str(record["source"])),
    _STATUS,
)


# Tables.


def layer_tables(profile: LayerProfile, extent: Extent) -> list[Table]:
    """The measured table of a layer and, where a target was listed, what that accepts."""
    title = profile.problem
    where = [" ".join(filter(None, profile.names))] if any(profile.names) else []
    where += [f"({profile.note})"] if profile.note else []
    where += [f"{profile.count} calls"] if profile.count > 1 else []
    if where:
        title += "\n" + ", ".join(where)
    tables = []
    if profile.rows:
        place = f"measured on {profile.device}"
        if profile.measured != profile.problem:
            place += f" at batch {PROXY_BATCH}"
        records = _measured_records(profile)
        table = _table(f"{title}\n{place}", MEASURED_COLUMNS, records, extent)
        if profile.refusal:
            lists = [("the current policy runs none of them", [profile.refusal]), *table.lists]
            table = replace(table, lists=lists)
        tables.append(table)
    if profile.listed_for is not None:
        records = _listed_records(profile)
        head = f"{title}\n" if not profile.rows else ""
        head += f"{profile.listed_for} accepts {_accepted(records)}"
        tables.append(_table(head, LISTED_COLUMNS, records, extent))
    return tables


def _accepted(records: Sequence[Record]) -> str:
    """How many algorithms, and below it each name with its number of configurations."""
    names: dict[str, Counter[str]] = {}
    for record in records:
        if record["status"] == "ok":
            name = without_options(record["algorithm"]).partition(":")[2]
            names.setdefault(record["backend"], Counter())[name] += 1
    lines = [f"{sum(count.total() for count in names.values())} algorithms (listed, not timed)"]
    for backend, counts in names.items():
        each = (n + (f" x{count}" if count > 1 else "") for n, count in counts.most_common())
        lines.append(f"{backend}: {', '.join(each)}")
    return "\n".join(lines)


def _table(title: str, columns: Sequence[Column], records: list[Record], extent: Extent) -> Table:
    """Good rows up to a number; PyTorch's and the current choice always; the rest on request."""
    shown, hidden = [], 0
    refused: dict[str, list[str]] = {}
    not_shown: Counter[str] = Counter()
    good = 0
    for record in records:
        ok = record["status"] == "ok"
        good += ok
        # Nothing is known of it but why it was refused.
        empty = not ok and record["workspace_bytes"] is None and record["error"] is None
        if record["current"] or (record["algorithm"] == BASELINE and record["median_ms"]):
            shown.append(record)
        elif ok and (extent.top == 0 or good <= extent.top):
            shown.append(record)
        elif ok:
            hidden += 1
        elif extent.show_all and empty:
            refused.setdefault(_status(record), []).append(record["algorithm"])
        elif extent.show_all:
            shown.append(record)
        else:
            not_shown[_OUT_OF_TIME if _is_out_of_time(record) else record["status"]] += 1
    footer = []
    if all(record["host_ms"] is None for record in shown):
        columns = [column for column in columns if column is not _HOST]
    else:
        footer.append(_RANKED_BY)
    if any(record["current"] for record in shown):
        footer.append("* what the current policy runs")
    if hidden:
        footer.append(f"{hidden} more that work ({extent.ask_for_more} shows them)")
    if not_shown:
        counts = ", ".join(f"{count} {status}" for status, count in not_shown.items())
        footer.append(f"not shown: {counts} ({extent.ask_for_all} shows them)")
    cells = [[column.cell(record) for column in columns] for record in shown]
    groups = [(reason, _named(names, records)) for reason, names in refused.items()]
    return Table(title, columns, cells, "; ".join(footer), groups)


def _is_out_of_time(row: Mapping[str, Any]) -> bool:
    reason: str = row["reason"]
    return row["status"] == "excluded" and reason.startswith(_C.OUT_OF_TIME)


def _named(algorithms: Sequence[str], records: Sequence[Record]) -> list[str]:
    """The algorithms, or ``all 32 of legacy`` where a whole backend is among them."""
    everything = Counter(record["backend"] for record in records)
    here = Counter(name.partition(":")[0] for name in algorithms)
    whole = {b for b, count in here.items() if count == everything[b] and count > 1}
    single = [name for name in algorithms if name.partition(":")[0] not in whole]
    return [f"all {here[backend]} of {backend}" for backend in here if backend in whole] + single


def summary_table(profile: Profile) -> Table:
    """Totals over the layers, weighted by how often each occurs."""
    cap = profile.settings.max_workspace_bytes
    # Rankings that were kept tell nothing of the heuristic.
    untuned = any(layer.heuristic is not None for layer in profile.layers)
    headings = ["", "PyTorch", *["heuristic's first"] * untuned, "best", "best vs PyTorch"]
    if cap is not None:
        headings.append(f"best within {bytes_text(cap)}")

    def cells(line: Totals) -> list[str]:
        ratio = ""
        if line.pytorch_ms is not None and line.best_ms:
            ratio = f"{line.pytorch_ms / line.best_ms:.2f}x"

        def total(name: str, value: float | None) -> str:
            if value is None:
                return f"none for {line.missing[name]}"
            share = f" ({line.shares[name]:.0%})" if name in line.shares else ""
            return milliseconds(value) + share

        row = [
            line.label,
            total("pytorch", line.pytorch_ms),
            *([total("heuristic", line.heuristic_ms)] if untuned else []),
            total("best", line.best_ms),
            ratio,
        ]
        return row + ([total("capped", line.capped_ms)] if cap is not None else [])

    notes = []
    if profile.is_mixed:
        notes.append("no totals: of several devices, or of one problem under several constraints")
    if any(layer.listed_for is not None and layer.rows for layer in profile.layers):
        smaller = any(layer.measured != layer.problem for layer in profile.layers)
        batch = f" at batch {PROXY_BATCH}" if smaller else ""
        notes.append(f"measured on the CPU{batch}: not the target's times")
    untried = sum(_is_out_of_time(row) for layer in profile.layers for row in layer.rows)
    if untried:
        notes.append(f"{plural(untried, 'algorithm')} {_OUT_OF_TIME}")
    lines = profile.totals()
    if any(line.shares for line in lines):
        notes.append("in brackets: the share of all passes")
    columns = [Column(heading, right=i > 0) for i, heading in enumerate(headings)]
    count = sum(layer.count for layer in profile.layers)
    name = profile.title or "Summary"
    title = f"{name}: {plural(len(profile.layers), 'problem')}, {plural(count, 'call')}, ms"
    rows = [cells(line) for line in lines]
    return Table(title, columns, rows, "; ".join(notes), _not_profiled(profile))


def plural(count: int, word: str) -> str:
    """A number of things, such as ``2 calls``."""
    return f"{count} {word}" + ("s" if count != 1 else "")


def profile_tables(profile: Profile, extent: Extent) -> list[Table]:
    """Every table of a profile, the summary last where anything was measured."""
    tables = [t for layer in profile.layers for t in layer_tables(layer, extent)]
    if any(layer.rows for layer in profile.layers):
        tables.append(summary_table(profile))
    elif lists := _not_profiled(profile):
        tables.append(Table(f"{profile.title or 'Summary'}: not listed", [], [], "", lists))
    return tables


def _not_profiled(profile: Profile) -> list[tuple[str, Sequence[str]]]:
    if not profile.not_profiled:
        return []
    calls = [f"{name} x{count}" for name, count in profile.not_profiled.items()]
    functions = "no function that ops takes"
    if profile.without_functions:
        functions = f"nor any function, since with ours it raised {profile.without_functions}"
    return [(f"not profiled: no layer that convert exchanges, {functions}", calls)]


# Output.


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables to standard output; what is no terminal gets lines as long as they need be."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = None if terminal else WIDTH_WITHOUT_TERMINAL
    out = Console(width=width, highlight=False, markup=False, emoji=False)
    if out.width < 1:  # as COLUMNS may say
        out.width = WIDTH_WITHOUT_TERMINAL
    for table in tables:
        out.print(table.title, style="bold", soft_wrap=True)
        if table.rows:
            _print_rows(table, out)
        for head, names in table.lists:
            out.print(f"{head}:", soft_wrap=True)
            out.print(_indented(names), style="dim", soft_wrap=True)
        if table.footer:
            out.print(table.footer, style="dim", soft_wrap=True)
        out.print()


def _print_rows(table: Table, out: Console) -> None:
    grid = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(table.columns):
        whole = column.right or column.whole
        cells = (column.heading, *(row[i] for row in table.rows))
        grid.add_column(
            column.heading,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=whole,
            # Rich itself keeps no more together than a word.
            min_width=max(map(cell_len, cells)) if whole else None,
        )
    for row in table.rows:
        grid.add_row(*row)
    least = Width.get(out, out.options.update(width=WIDTH_WITHOUT_TERMINAL), grid).minimum
    width = max(out.width, least)
    lines = out.render_lines(grid, out.options.update(width=width), pad=False)
    for line in lines:
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        text.rstrip()
        out.print(text, soft_wrap=True)


def _indented(words: Sequence[str]) -> str:
    return textwrap.fill(
        ", ".join(words),
        LINE_LENGTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


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
        # No footer is a list.
        below = ("\n" + (f"\\{note}" if note.startswith("*") else note) for note in table.notes())
        parts.append("\n".join([*([title, ""] if title else []), *lines, *below]))
    return "\n\n".join(parts) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return (
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").splitlines()) for cell in cells) + " |"
    )


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


def operators_markdown() -> str:
    """The table of operators of the README.

    The graph API's engines are those that an H200 may run on some of the common problems, listed
    without one; the classic API's algorithms those that it names.
    """
    headings = ["operator", "modules", "cuDNN's entry points", "cuDNN's algorithms"]
    headings += ["on the CPU", "dtypes", "layouts", "limits"]
    modules: dict[str, list[str]] = {}
    for name in nn.__all__:
        cls = getattr(nn, name)
        if "replaces" in vars(cls):
            modules.setdefault(cls.family, []).append(name)
    lines = [_markdown_line(headings), _markdown_line("---" for _ in headings)]
    target = f"target:{DEFAULT_TARGET}"
    for op in _C.operators():
        family = op["family"]
        examples = [_C.canonical_problem(example) for example in op["examples"]]
        by_pass = {}
        on_cpu: set[str] = set()
        for name in op["passes"]:
            problems = [line.replace(f"{family}_fwd", f"{family}_{name}", 1) for line in examples]
            counts = {b: _algorithms(problems, target, b) for b in ("graph", "legacy")}
            by_pass[name] = ", ".join(f"{b} {len(names)}" for b, names in counts.items() if names)
            on_cpu.update(_algorithms(problems, "cpu", "cpu"))
        cells = [", ".join(modules.get(family, [])), op["entry_points"]]
        cells += ["; ".join(f"{name}: {text or 'none'}" for name, text in by_pass.items())]
        cells += [", ".join(sorted(on_cpu)), op["dtypes"], op["layouts"], op["limits"]]
        lines.append(_markdown_line([f"`{family}`", *cells]))
    return "\n".join(lines) + "\n"


def _algorithms(problems: list[str], device: str, backend: str) -> set[str]:
    """The names of a backend's algorithms but for those that refuse every one of the problems."""
    return {
        without_options(row["algorithm"]).partition(":")[2]
        for problem in problems
        for row in _C.candidates(problem, device)
        if row["backend"] == backend and row["status"] != "unsupported"
    }


def algorithm_counts(op: str, problem: str, backends: list[str], gpu: str) -> list[list[str]]:
    """How many algorithms each backend has, on the CPU and there, and how many take the problem."""
    rows = []
    for device in ("cpu", gpu):
        found = _C.candidates(problem, device)
        for backend in backends:
            here = [c for c in found if c["backend"] == backend]
            states = Counter(c["status"] for c in here)
            if states["ok"] or states["needs a driver"]:
                names = {without_options(c["algorithm"]) for c in here}
                words = ", ".join(f"{count} {state}" for state, count in states.items())
                rows.append([op, backend, device, str(len(names)), str(len(here)), words])
    return rows


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
            console=Console(stderr=True, emoji=False),
            transient=True,
            redirect_stdout=False,
            disable=sys.stderr is None or not sys.stderr.isatty(),
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
