"""``store``: show and tend the tuning store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer

from torch_cudnn_ext import tuning
from torch_cudnn_ext._commands.store import Action, Store
from torch_cudnn_ext.analysis.html import formatted, tables_markdown
from torch_cudnn_ext.analysis.records import csv_text
from torch_cudnn_ext.analysis.tables import (
    ALGORITHM,
    Column,
    Table,
    bytes_text,
    milliseconds,
    plural,
)
from torch_cudnn_ext.cli import checks, running
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.tuning import store_upkeep
from torch_cudnn_ext.tuning.shipped import winners
from torch_cudnn_ext.tuning.store_diff import Difference, StoreDiff, diff
from torch_cudnn_ext.tuning.store_drift import FAULTS, Drift, drift, rows_to_time
from torch_cudnn_ext.tuning.store_rows import MEASUREMENT_FIELDS, Head, Row, quoted, time_text

_CPU_BUDGET_S = 2.0  # for a problem, as of tune
_MOST_LINES = 20  # of damaged lines and missing problems that are printed


def store_command(context: typer.Context, given: Store) -> None:
    """Run ``store``."""
    if given.action is Action.diff:
        _diff(given)
        return
    root = Path(given.store) if given.store is not None else tuning.store_path()
    if root is None:
        raise typer.BadParameter("--store: not given, and the tuning store is off")
    if given.store is not None and given.action is not Action.merge:
        _check_store("--store", root)
    _RUN[given.action](given, root)


def _check_store(label: str, root: Path) -> None:
    if not root.is_dir():
        raise typer.BadParameter(f"{label}: got {str(root)!r}, wanted the folder of a store")


def _path(given: Store, root: Path) -> None:
    typer.echo(str(root))


def _ls(given: Store, root: Path) -> None:
    found = store_upkeep.summaries(root)
    columns = [
        Column("device", lambda r: r["device"]),
        Column("problems", lambda r: str(r["problems"]), True),
        Column("rows", lambda r: str(r["rows"]), True),
        Column("files", lambda r: str(r["segments"]), True),
        Column("size", lambda r: bytes_text(r["bytes"]), True),
        Column("newest", lambda r: _day(r["newest"]), True),
        Column("damaged", lambda r: str(r["damaged"] or ""), True),
    ]
    records = [one._asdict() for one in found]
    footer = f"{plural(sum(one.problems for one in found), 'problem')} in {root}."
    running.print_output(
        formatted(
            given.format.value, {"path": str(root), "devices": records}, "the tuning store",
            columns, records, store_upkeep.FolderSummary._fields, footer,
        )
    )  # fmt: skip


def _show(given: Store, root: Path) -> None:
    rows = store_upkeep.holding_rows(root, (given.arguments or [""])[0])
    if given.format.value in ("json", "csv"):
        records = [{**_about(row), "measurements": row.entry["measurements"]} for row in rows]
        if given.format.value == "json":
            running.print_output(formatted("json", {"rows": records}, "", [], [], [], ""))
        else:
            lines = [{**_about(row), **one} for row in rows for one in row.entry["measurements"]]
            names = ("problem", "device", "constraints", "when", "software", *MEASUREMENT_FIELDS)
            running.print_output(csv_text(lines, names))
    else:
        tables = [_ranking(row) for row in rows]
        is_markdown = given.format.value == "markdown"
        running.print_output(tables_markdown(tables) if is_markdown else tables)
        typer.echo(f"{plural(len(rows), 'ranking')} in {root}")
    if not rows:
        raise typer.Exit(1)


def _about(row: Row) -> dict[str, Any]:
    entry = row.entry
    return {
        "problem": entry["problem"],
        "device": entry["device"],
        "constraints": entry["constraints"],
        "when": row.when,
        "software": row.software,
    }


def _ranking(row: Row) -> Table:
    columns = [
        ALGORITHM,
        Column("ms", lambda r: milliseconds(r["median_ms"]), True),
        Column("spread", lambda r: milliseconds(r["spread_ms"]), True),
        Column("workspace", lambda r: bytes_text(r["workspace_bytes"]), True),
        Column("status", lambda r: r["status"]),
        Column("reason", lambda r: r["reason"]),
    ]
    words = [row.entry["device"], row.entry["constraints"], _day(row.when), row.software]
    cells = [[column.cell({**one}) for column in columns] for one in row.entry["measurements"]]
    return Table(row.entry["problem"], columns, cells, "; ".join(filter(None, words)))


def _merge(given: Store, root: Path) -> None:
    sources = given.arguments or []
    for source in sources:
        if not Path(source).exists():
            raise typer.BadParameter(f"merge: got {source!r}, which does not exist")
    done = store_upkeep.merge(root, sources, winners if given.winners else None)
    typer.echo(f"{plural(done.added, 'row')} added to {root}, {done.known} known or older")
    _finish_lines(done.left_out, "left out")


def _verify(given: Store, root: Path) -> None:
    good, bad = store_upkeep.verify(root)
    typer.echo(f"{plural(good, 'row')} of {root} can be read")
    _finish_lines([f"{one.path}, line {one.line}: {one.error}" for one in bad], "no row")


def _finish_lines(lines: list[str], what: str) -> None:
    """Print lines that are no rows; exit code 1 if there are any."""
    for line in lines[:_MOST_LINES]:
        typer.echo(f"{what}: {line}")
    if len(lines) > _MOST_LINES:
        typer.echo(f"and {len(lines) - _MOST_LINES} more")
    if lines:
        raise typer.Exit(1)


def _prune(given: Store, root: Path) -> None:
    oldest, wanted = "", quoted(given.containing or "")[1:-1]
    if given.older_than is not None:
        oldest = time_text(datetime.now(UTC) - timedelta(days=given.older_than))

    def is_dropped(head: Head) -> bool:
        """Whether a row is as old as asked for, and has the text."""
        is_old = given.older_than is None or head.when.decode() < oldest
        texts = (head.device, head.software, head.problem)
        return is_old and any(wanted in text for text in texts)

    _compacted(given, root, lambda head: not is_dropped(head))


def _compact(given: Store, root: Path) -> None:
    _compacted(given, root, lambda head: True)


def _compacted(given: Store, root: Path, keeps: Callable[[Head], bool]) -> None:
    done = store_upkeep.compact(root, keeps, given.dry_run)
    verb = "would be kept" if given.dry_run else "are kept"
    damaged = f"; {plural(done.damaged, 'damaged line')} dropped" if done.damaged else ""
    typer.echo(f"{done.kept} of {plural(done.rows, 'row')} in {root} {verb}{damaged}")


def _diff(given: Store) -> None:
    first, second = map(Path, given.arguments or [])
    for root in (first, second):
        _check_store("diff", root)
    found = diff(first, second)
    records = [asdict(one) for one in found.different]
    columns = [
        Column("problem", lambda r: r["problem"]),
        Column("A", lambda r: r["first"][0], whole=True),
        Column("B", lambda r: r["second"][0], whole=True),
        Column("A/B in A", lambda r: _ratio(r["ratios"][0]), True),
        Column("A/B in B", lambda r: _ratio(r["ratios"][1]), True),
        Column("beyond noise", lambda r: "yes" if r["is_beyond_noise"] else ""),
        Column("device", lambda r: r["device"]),
        Column("constraints", lambda r: r["constraints"]),
    ]
    names = [*Difference.__dataclass_fields__]
    running.print_output(
        formatted(
            given.format.value, asdict(found), "different decisions", columns, records, names,
            _summary(found),
        )
    )  # fmt: skip
    if found.different or found.only_first or found.only_second:
        raise typer.Exit(1)


def _summary(found: StoreDiff) -> str:
    beyond = sum(one.is_beyond_noise for one in found.different)
    return (
        f"{found.same} decided alike, {len(found.different)} differently ({beyond} beyond the "
        f"noise), {len(found.only_first)} only in A, {len(found.only_second)} only in B. A/B: the "
        "time of A's algorithm divided by that of B's, as either store measured them."
    )


def _drift(given: Store, root: Path) -> None:
    device = checks.place_of(given.device)
    rows = rows_to_time(store_upkeep.holding_rows(root, given.containing or ""), device)
    budget_s = _CPU_BUDGET_S if device == "cpu" else 0.0
    with ProgressBar() as bar:
        drifts = drift(
            rows,
            device,
            tolerance=given.tolerance,
            time_budget_s=budget_s,
            progress=bar,
        )
        found, end = running.collect(drifts)
    columns = [
        Column("problem", lambda r: r["problem"]),
        ALGORITHM,
        Column("verdict", lambda r: r["verdict"]),
        Column("was ms", lambda r: milliseconds(r["was_ms"]), True),
        Column("now ms", lambda r: milliseconds(r["now_ms"]), True),
        Column("reason", lambda r: r["reason"]),
        Column("device", lambda r: r["device"]),
        Column("constraints", lambda r: r["constraints"]),
    ]
    records = [asdict(one) for one in found]
    shown = [record for record in records if record["verdict"] != "same"]
    counts = Counter(one.verdict for one in found)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    footer = f"{plural(len(found), 'problem')} of {root} on {device}: {words or 'none'}."
    data = {"path": str(root), "device": device, "drift": records}
    if given.format.value == "csv":
        shown = records
    running.print_output(
        formatted(
            given.format.value, data, "drift", columns, shown, [*Drift.__dataclass_fields__], footer
        )
    )  # fmt: skip
    running.finish(end, len(found), len(rows))
    if any(one.verdict in FAULTS for one in found):
        raise typer.Exit(1)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _day(when: str) -> str:
    """The date and the minute of a row's time."""
    return when[:16].replace("T", " ")


_RUN: dict[Action, Callable[[Store, Path], None]] = {
    Action.path: _path,
    Action.ls: _ls,
    Action.show: _show,
    Action.merge: _merge,
    Action.verify: _verify,
    Action.prune: _prune,
    Action.compact: _compact,
    Action.drift: _drift,
}
