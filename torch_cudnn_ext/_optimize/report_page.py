"""The page of what `optimize` did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_cudnn_ext._optimize.recipe import PLAIN
from torch_cudnn_ext.analysis.page import (
    Page,
    Section,
    facts_table,
    note,
    replay_line,
    sorted_table,
)
from torch_cudnn_ext.analysis.pictures import Bar, bars
from torch_cudnn_ext.analysis.profile_page import versions
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, Table, milliseconds

if TYPE_CHECKING:
    from torch_cudnn_ext._optimize.optimized import OptimizationReport

_COLUMNS = (
    Column("operator", whole=True, choice=True),
    Column("problem"),
    ALGORITHM,
    Column("ms", right=True),
    Column("PyTorch ms", right=True),
    Column("speed-up", right=True),
)


def report_page(report: OptimizationReport, replay: str) -> Page:
    """A report of `optimize` as a page; ``replay`` is the command or code that does it again."""
    ways = [
        Bar(way.value, None, ms, "now" if way in PLAIN else "best", milliseconds(ms))
        for way, ms in report.times_ms.items()
    ]
    done = report.rewrites
    facts = {
        "runs": report.way.value,
        "why": report.note,
        "layout": report.layout,
        "no CUDA graph": report.cuda_graph,
        "batch norms folded": str(len(done.folded)),
        "convolutions with ReLU": str(len(done.activated)),
        "convolutions with sum and ReLU": str(len(done.residual)),
        "layers removed": str(len(done.removed)),
        **{f"not traced: {name or 'the model'}": why for name, why in report.whole.items()},
    }
    if report.error is not None and report.plain_error is not None:
        facts["largest error"] = f"{report.error:.2g}; of PyTorch: {report.plain_error:.2g}"
    problems = Table("", _COLUMNS, [_row(*problem) for problem in report.problems])
    again = note("To do this again:") + replay_line(replay) if replay else ""
    sections = [
        Section("Ways to run", bars(ways, "ms a call; grey: PyTorch's layers")),
        Section("What was done", facts_table(facts)),
        Section("Problems", sorted_table(problems) if report.problems else ""),
        Section("Environment", facts_table(versions()) + again),
    ]
    return Page(f"{report.network}, optimized", f"{report.sentence()}.", sections)


def _row(problem: str, algorithm: str, ours: float | None, plain: float | None) -> list[str]:
    operator, _, rest = problem.partition(" ")
    speedup = f"{plain / ours:.2f}x" if ours and plain is not None else ""
    return [operator, rest, algorithm, milliseconds(ours), milliseconds(plain), speedup]
