"""Tables: their columns and cells, what they show of a profile, and how they are printed."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from torch_cudnn_ext import _C
from torch_cudnn_ext._engine_knobs import knob_legend
from torch_cudnn_ext._policy_text import without_options
from torch_cudnn_ext._workload.problems import PROXY_BATCH
from torch_cudnn_ext.analysis.records import Record, listed_records, measured_records
from torch_cudnn_ext.tuning.measure import BASELINE
from torch_cudnn_ext.tuning.store_files import device_of

if TYPE_CHECKING:
    from rich.console import Console

    from torch_cudnn_ext.analysis.results import LayerProfile, Profile, Totals

# Wide enough for every table: a file or a pipe has no edge to wrap at.
WIDTH_WITHOUT_TERMINAL = 1000
LINE_LENGTH = 100  # of the lists below a table


@dataclass(frozen=True)
class Column:
    """A heading, and the function that makes a cell of a record.

    A narrow terminal folds cells, but neither those of a ``right`` column, which are numbers, nor
    those of a ``whole`` one. A page lets its reader filter by the cells of a ``choice`` column.
    """

    heading: str
    cell: Callable[[Record], str] = str
    right: bool = False
    whole: bool = False
    choice: bool = False


@dataclass(frozen=True)
class Table:
    """Cells that are ready to be shown."""

    title: str
    columns: Sequence[Column]
    rows: list[list[str]]
    footer: str = ""
    # Headed lists below the rows, such as a reason and the algorithms for which it holds.
    lists: Sequence[tuple[str, Sequence[str]]] = ()

    def notes(self) -> list[str]:
        """The lists, a line each, the footer, and the engine knobs."""
        lists = (f"{head}: {', '.join(names)}" for head, names in self.lists)
        return [*lists, *self.remarks()]

    def remarks(self) -> list[str]:
        """The footer and the engine knobs, as far as there are any."""
        return [note for note in (self.footer, self.engine_knobs()) if note]

    def engine_knobs(self) -> str:
        """The names of the engine knobs of the algorithms in the cells; empty without any."""
        legend = knob_legend(cell for row in self.rows for cell in row)
        return f"engine knobs: {legend}" if legend else ""


@dataclass(frozen=True)
class Extent:
    """How much of a profile is shown, and how its reader asks for the rest.

    Attributes:
        show_all: Also what is excluded, unsupported, failed or rejected, with the reasons.
        top: At most so many algorithms a table, in addition to PyTorch's and the current one; 0 is
            all.
        ask_for_all: The argument or option for ``show_all``.
        ask_for_more: The argument or option that shows all algorithms.
        listed_top: As ``top``, for what a target accepts if other algorithms were measured;
            ``None`` is ``top``.
        legend: Whether the words of the tables are explained.
        layers: At most so many problems, those with most to gain; 0 is all.
        ask_for_layers: The argument or option that shows all problems.
    """

    show_all: bool = False
    top: int = 0
    ask_for_all: str = "show_all=True"
    ask_for_more: str = "top=0"
    listed_top: int | None = None
    legend: bool = False
    layers: int = 0
    ask_for_layers: str = "all_layers=True shows them"

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if ``top`` is no number of rows."""
        if not isinstance(self.top, SupportsIndex) or isinstance(self.top, bool):
            raise TypeError(f"top: got {self.top!r} ({type(self.top).__name__}), wanted an integer")
        if self.top < 0:
            raise ValueError(f"top: got {self.top}, wanted at least 0 (0: all)")


# Cells.


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


def version_text(version: int) -> str:
    """The text of a version's number: ``9.19``, ``9.28.1``."""
    patch = f".{version % 100}" if version % 100 else ""
    return f"{version // 10000}.{version // 100 % 100}{patch}"


def _spread(record: Record) -> str:
    known = record["spread_ms"] is not None and record["samples"] > 1
    return f"± {record['spread_ms']:.2g}" if known else ""


def _energy(record: Record) -> str:
    energy, spread = record["energy_mj"], record["energy_spread_mj"]
    return "" if energy is None else f"{milliseconds(energy)} ± {spread or 0.0:.2g}"


def _status(record: Record) -> str:
    reason = " ".join((record["reason"] or "").split())
    status = str(record["status"])
    if status == _UNSTABLE:  # the legend says what that is
        return status
    # Reasons of constraints begin with it: "excluded by max_workspace", "excluded: may use TF32".
    if not reason or reason.startswith((f"{status} ", f"{status}: ")):
        return reason or status
    return f"{status}: {reason}"


def _number(heading: str, name: str, shown: Callable[[float], str]) -> Column:
    """A column of numbers; the cell of None is empty."""
    return Column(heading, lambda r: "" if r[name] is None else shown(r[name]), right=True)


_UNSTABLE = "unstable"
_OUT_OF_TIME = "not tried, as the time budget was used up"
_RANKED_BY = (
    "ranked by the longer of ms and host us (prefer=gpu_time: by ms, prefer=energy: by mJ), last "
    "what takes the GPU longer than PyTorch's own row"
)
ALGORITHM = Column("algorithm", lambda record: str(record["algorithm"]), whole=True)
_HOST = _number("host us", "host_ms", lambda ms: f"{ms * 1e3:.1f}")
_ENERGY = Column("mJ", _energy, right=True)
_PEAK = _number("% peak", "percent_of_peak", "{:.1f}".format)
_WORKSPACE = Column("workspace", lambda record: bytes_text(record["workspace_bytes"]), right=True)
_YES_NO = {True: "yes", False: "no", None: "?"}
_DETERMINISTIC = Column("determ.", lambda record: _YES_NO[record["deterministic"]], whole=True)
_NOTES = Column("notes", lambda record: ", ".join(record["notes"]))
_STATUS = Column("status", _status)

LISTED_ROWS = 5  # of what a target accepts, unless the user asks for more

# What a first reader must know, in the order of the columns.
LEGEND = (
    "* marks what the policy runs",
    "aten:default is PyTorch's own kernel",
    "graph and legacy are cuDNN's two interfaces",
    "graph:eng67/k2=1 is engine 67 with its engine knob 2 set to 1",
    "heuristic A #1 is the first choice of cuDNN's own heuristic A",
    "spread is half of the interquartile range",
    "workspace is memory in addition to the tensors",
    "% peak compares with the device's measured peaks",
    "determ. says whether results repeat bit by bit",
    "error is relative to a float64 reference",
    "excluded: a constraint or the device rules it out",
    "unsupported: the library refuses the problem",
    "unstable: too noisy to compare with PyTorch's own kernel",
    "needs a driver: cuDNN answers only on a GPU",
)

MEASURED_COLUMNS = (
    Column("", lambda record: "*" if record["current"] else "", whole=True),
    Column("rank", lambda record: str(record["rank"] or ""), right=True),
    ALGORITHM,
    Column("ms", lambda record: milliseconds(record["median_ms"]), right=True),
    Column("spread", _spread, right=True),
    _HOST,
    _ENERGY,
    _WORKSPACE,
    _number("TFLOP/s", "tflops", lambda value: f"{value:#.3g}".removesuffix(".")),
    _PEAK,
    _number("vs PyTorch", "vs_pytorch", "{:.2f}x".format),
    _DETERMINISTIC,
    _NOTES,
    _number("error", "error", "{:.1e}".format),
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
    """The measured table of a layer and, if a target was listed, what that accepts."""
    title = profile.problem
    where = [" ".join(filter(None, profile.names))] if any(profile.names) else []
    where += [f"({profile.note})"] if profile.note else []
    where += [f"{profile.count} calls"] if profile.count > 1 else []
    if where:
        title += "\n" + ", ".join(where)
    tables = []
    if profile.rows:
        records = measured_records(profile)
        table = _table(f"{title}\n{place_of(profile)}", MEASURED_COLUMNS, records, extent)
        if profile.current_error:
            error = ("the current policy runs none of them", [profile.current_error])
            table = replace(table, lists=[error, *table.lists])
        tables.append(table)
    if profile.listed_for is not None:
        records = listed_records(profile)
        head = f"{title}\n" if not profile.rows else ""
        head += f"{profile.listed_for} accepts {_accepted(records)}"
        if profile.rows and extent.listed_top is not None:
            extent = replace(extent, top=extent.listed_top)
        tables.append(_table(head, LISTED_COLUMNS, records, extent))
    return tables


def place_of(profile: LayerProfile) -> str:
    """Where a layer was measured, at which clocks, and when if it was recorded in a store."""
    low, high, _ = clocks_of(profile)
    clocks = f", SM clock {low} MHz" if low == high else f", SM clock {low} to {high} MHz"
    return f"{_place_of(profile)}{clocks if low else ''}"


def clocks_of(profile: LayerProfile) -> tuple[int, int, list[str]]:
    """The lowest and highest clock in MHz while a layer was timed, and why it was held down.

    The clocks are 0 if they are not known.
    """
    rows = [row for row in profile.rows if row.get("clock_low_mhz")]  # earlier versions had none
    low = min((row["clock_low_mhz"] or 0 for row in rows), default=0)
    high = max((row["clock_high_mhz"] or 0 for row in rows), default=0)
    return low, high, [*dict.fromkeys(reason for row in rows for reason in row["throttled"])]


def recorded_text(fingerprint: str, days: Iterable[str]) -> str:
    """Where and on which days measurements were recorded."""
    device = device_of(fingerprint)
    name = device.hardware.partition("/")[0]
    version = device.version if device.cudnn is None else version_text(device.cudnn)
    return f"recorded on {name} with cuDNN {version} on {' and '.join(sorted({*days}))}"


def _place_of(profile: LayerProfile) -> str:
    if profile.recorded:
        return recorded_text(profile.device, [profile.recorded])
    batch = f" at batch {PROXY_BATCH}" if profile.measured != profile.problem else ""
    return f"measured on {profile.device}{batch}"


def _accepted(records: Sequence[Record]) -> str:
    """The number of algorithms, and on the next lines each name with its number of variants."""
    names: dict[str, Counter[str]] = {}
    for record in records:
        if record["status"] == "ok":
            name = without_options(record["algorithm"]).partition(":")[2]
            names.setdefault(record["backend"], Counter())[name] += 1
    accepted = sum(count.total() for count in names.values())
    lines = [f"{plural(accepted, 'algorithm')} (listed, not timed)"]
    unknown = sum(record["status"] == "needs a driver" for record in records)
    if not accepted and unknown:  # none of those that can be told without a GPU
        return f"what only a driver can tell: {plural(unknown, 'algorithm')} need one"
    for backend, counts in names.items():
        each = (n + (f" x{count}" if count > 1 else "") for n, count in counts.most_common())
        lines.append(f"{backend}: {', '.join(each)}")
    return "\n".join(lines)


def _table(title: str, columns: Sequence[Column], records: list[Record], extent: Extent) -> Table:
    """A table of the rows that ``extent`` admits, and always of PyTorch's and the current one."""
    shown, good, hidden = [], 0, 0
    by_reason: dict[str, list[str]] = {}
    not_shown: Counter[str] = Counter()
    for record in records:
        ok = record["status"] in ("ok", _UNSTABLE)
        good += ok
        # Nothing is known of it but its status and the reason.
        empty = not ok and record["workspace_bytes"] is None and record["error"] is None
        if record["current"] or (record["algorithm"] == BASELINE and record["median_ms"]):
            shown.append(record)
        elif ok and (extent.top == 0 or good <= extent.top):
            shown.append(record)
        elif ok:
            hidden += 1
        elif extent.show_all and empty:
            by_reason.setdefault(_status(record), []).append(record["algorithm"])
        elif extent.show_all:
            shown.append(record)
        else:
            not_shown[_OUT_OF_TIME if _is_out_of_time(record) else record["status"]] += 1
    footer = []
    if all(record["percent_of_peak"] is None for record in shown):
        columns = [column for column in columns if column is not _PEAK]
    if all(record["energy_mj"] is None for record in shown):
        columns = [column for column in columns if column is not _ENERGY]
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
    lists = [(reason, _named(names, records)) for reason, names in by_reason.items()]
    return Table(title, columns, cells, "; ".join(footer), lists)


def _is_out_of_time(row: Mapping[str, Any]) -> bool:
    reason: str = row["reason"]
    return row["status"] == "excluded" and reason.startswith(_C.OUT_OF_TIME)


def _named(algorithms: Sequence[str], records: Sequence[Record]) -> list[str]:
    """The algorithms, and ``all 32 of legacy`` instead if a whole backend is among them."""
    everything = Counter(record["backend"] for record in records)
    here = Counter(name.partition(":")[0] for name in algorithms)
    whole = {b for b, count in here.items() if count == everything[b] and count > 1}
    single = [name for name in algorithms if name.partition(":")[0] not in whole]
    return [f"all {here[backend]} of {backend}" for backend in here if backend in whole] + single


def summary_table(profile: Profile) -> Table:
    """Totals over the layers, weighted by how often each occurs.

    A proxy tells nothing of how a target compares with PyTorch, and gets no ratio.
    """
    cap = profile.settings.max_workspace_bytes
    for_target = any(layer.listed_for is not None and layer.rows for layer in profile.layers)
    # A tuning table does not tell what the heuristic would run.
    has_heuristic = any(layer.heuristic is not None for layer in profile.layers)
    headings = ["", "PyTorch", *["heuristic's first"] * has_heuristic, "best"]
    headings += ["best vs PyTorch"] * (not for_target)
    if cap is not None:
        headings.append(f"best within {bytes_text(cap)}")

    def cells(line: Totals) -> list[str]:
        ratio = ""
        if line.pytorch_ms is not None and line.best_ms:
            ratio = f"{line.pytorch_ms / line.best_ms:.2f}x"
        row = [line.label, _total(line, "pytorch")]
        row += [_total(line, "heuristic")] if has_heuristic else []
        row += [_total(line, "best"), *[ratio] * (not for_target)]
        return row + ([_total(line, "capped")] if cap is not None else [])

    notes = []
    if profile.is_mixed:
        notes.append("no totals: of several devices, or of one problem under several constraints")
    if for_target:
        smaller = any(layer.measured != layer.problem for layer in profile.layers)
        batch = f" at batch {PROXY_BATCH}" if smaller else ""
        notes.append(f"measured on the CPU{batch}: not the target's times")
    missing = sum(not layer.recorded for layer in profile.layers)
    if 0 < missing < len(profile.layers):
        are = "is" if missing == 1 else "are"
        notes.append(f"{plural(missing, 'problem')} {are} not recorded, and not in the sums")
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
    return Table(title, columns, rows, "; ".join(notes), not_profiled(profile))


def _total(line: Totals, name: str) -> str:
    value = getattr(line, f"{name}_ms")
    if value is None:
        return f"none for {line.missing[name]}"
    share = f" ({line.shares[name]:.0%})" if name in line.shares else ""
    return milliseconds(value) + share


def plural(count: int, word: str) -> str:
    """A number of things, such as ``2 calls``."""
    return f"{count} {word}" + ("s" if count != 1 else "")


def not_profiled(profile: Profile) -> list[tuple[str, Sequence[str]]]:
    """The calls that were not profiled, with the reason, as lists of a table."""
    if not profile.not_profiled:
        return []
    calls = [f"{name} x{count}" for name, count in profile.not_profiled.items()]
    functions = "no function that ops takes"
    if profile.without_functions:
        functions = f"nor any function, since with ours it raised {profile.without_functions}"
    return [(f"not profiled: no layer that convert exchanges, {functions}", calls)]


# Output.


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables to standard output; only a terminal limits the length of lines."""
    from rich.console import Console

    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = None if terminal else WIDTH_WITHOUT_TERMINAL
    out = Console(width=width, highlight=False, markup=False, emoji=False)
    if out.width < 1:  # COLUMNS may say so
        out.width = WIDTH_WITHOUT_TERMINAL
    for table in tables:
        out.print(table.title, style="bold", soft_wrap=True)
        if table.rows:
            _print_rows(table, out)
        for head, names in table.lists:
            out.print(f"{head}:", soft_wrap=True)
            out.print(_indented(names), style="dim", soft_wrap=True)
        for note in table.remarks():
            out.print(note, style="dim", soft_wrap=True)
        out.print()


def _print_rows(table: Table, out: Console) -> None:
    from rich.cells import cell_len
    from rich.measure import Measurement as Width
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(table.columns):
        whole = column.right or column.whole
        cells = (column.heading, *(row[i] for row in table.rows))
        grid.add_column(
            column.heading,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=whole,
            # By itself rich keeps only words together.
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
