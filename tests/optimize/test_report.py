"""What a report of `optimize` tells, as text and as a page."""

from html import unescape
from pathlib import Path

import pytest
from helpers import LINE, OTHER

from torch_cudnn_ext import OptimizationReport
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.report import ProblemRow
from torch_cudnn_ext._optimize.rewriting import Rewrites


@pytest.fixture
def report() -> OptimizationReport:
    return OptimizationReport(
        "Net",
        Rewrites(),
        {"<head>": "it branches"},
        "keep",
        problems=[
            ProblemRow(LINE, "cpu:fft", 1.0, 1.5, 1, {0: 1.0}),
            ProblemRow(OTHER, "cpu:fft", 1.0, 3.0, 1, {0: 1.0}),
            ProblemRow(LINE, "x", 1.0, None, 1, {0: 1.0}),
        ],
        times_ms={Way.plain: 4.0, Way.optimized: 2.0},
        ratio=2.0,
        interval=(1.9, 2.1),
        errors={Way.plain: 2e-7, Way.optimized: 1e-7},
    )


def test_the_text_begins_with_the_gain(report: OptimizationReport) -> None:
    lines = str(report).splitlines()
    assert lines[0] == "optimize makes Net 2.00x (1.90 to 2.10) faster: 4 -> 2 ms"
    assert sum("conv_fwd" in line for line in lines) == 3
    short = report.text(1).splitlines()
    assert [line for line in short if "conv_fwd" in line] == [f"  {OTHER}  cpu:fft  1 ms (3 ms)"]
    assert short[-1] == "  2 more, with less to gain (--all-layers shows them)"
    report.note, report.way = "PyTorch's layers run, since ours took 1.1 times as long", Way.plain
    assert str(report).startswith(f"Net: {report.note}\n")
    report.note, report.times_ms = "", {}
    assert report.sentence() == "Net: not timed"


def test_time_within_a_workspace_is_drawn(report: OptimizationReport, tmp_path: Path) -> None:
    assert "Time within a workspace" not in report.to_html()  # which is one time for all
    report.problems[0] = ProblemRow(LINE, "cpu:fft", 1.0, 1.5, 2, {0: 1.5, 4096: 1.0})
    assert report.pareto() == [(0, 5.0), (4096, 4.0)]
    assert "Time within a workspace" in report.to_html()
    report.write_pareto(tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert "4 KiB: 4 ms" in text and "Net: the least time of a call" in text
    report.problems.clear()
    with pytest.raises(ValueError, match="pareto: got no times of problems, wanted"):
        report.write_pareto(tmp_path / "plot.svg")


def test_the_page_tells_the_same(report: OptimizationReport) -> None:
    page = unescape(report.to_html(replay="again"))
    for words in (report.sentence(), "not traced: <head>", "optimized layers", "again"):
        assert words in page
    assert page.count("<td") > 20 and "3.00x" in page
    assert "srcdoc=" in report._repr_html_()
