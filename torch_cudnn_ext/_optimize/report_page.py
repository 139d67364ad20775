"""The page of what `optimize` did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_cudnn_ext.analysis.page import (
    Page,
    Section,
    environment,
    facts_table,
    sorted_table,
)
from torch_cudnn_ext.analysis.pictures import Bar, bars, figure, time_within
from torch_cudnn_ext.analysis.profile_page import versions
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, Table, milliseconds

if TYPE_CHECKING:
    from torch_cudnn_ext._optimize.report import OptimizationReport, ProblemRow

_COLUMNS = (
    Column("operator", whole=True, choice=True),
    Column("problem"),
    ALGORITHM,
    Column("ms", right=True),
    Column("PyTorch ms", right=True),
    Column("speed-up", right=True),
)

_WITHIN = "ms a call for all problems, by the bound of the workspace"


def report_page(report: OptimizationReport, replay: str) -> Page:
    """A report of `optimize` as a page; ``replay`` is the command or code that does it again."""
    ways = [
        Bar(way.value, None, ms, "now" if way.is_pytorchs else "best", milliseconds(ms))
        for way, ms in report.times_ms.items()
    ]
    points = report.pareto() if len(report.pareto()) > 1 else []
    problems = Table("", _COLUMNS, [_cells(row) for row in report.problems])
    sections = [
        Section("Ways to run", bars(ways, "ms a call; grey: PyTorch's layers")),
        Section("Time within a workspace", figure(time_within(points, _WITHIN), _WITHIN)),
        Section("What was done", facts_table(report.facts())),
        Section("Problems", sorted_table(problems) if report.problems else ""),
        environment(versions(), "To do this again:", replay),
    ]
    return Page(f"{report.network}, optimized", f"{report.sentence()}.", sections)


def _cells(row: ProblemRow) -> list[str]:
    operator, _, rest = row.problem.partition(" ")
    speedup = "" if row.pytorch_ms is None else f"{row.pytorch_ms / row.ms:.2f}x"
    times = milliseconds(row.ms), milliseconds(row.pytorch_ms)
    return [operator, rest, row.algorithm, *times, speedup]
