"""Comparing what two tuning stores decide."""

from pathlib import Path

from helpers import LINE, OTHER
from store_helpers import H200, WHEN, entry, measurement

from torch_cudnn_ext.tuning.store_diff import diff
from torch_cudnn_ext.tuning.store_files import SegmentWriter
from torch_cudnn_ext.tuning.store_rows import row_line


def store(root: Path, **rankings: list[dict[str, object]]) -> Path:
    """A store with rankings, by "line", "other" and "deterministic"."""
    problems = {"line": (LINE, ""), "other": (OTHER, ""), "strict": (LINE, "deterministic")}
    for name, rows in rankings.items():
        problem, constraints = problems[name]
        SegmentWriter(root).append(H200, row_line(entry(problem, H200, constraints, *rows), WHEN))
    return root


def test_decisions_are_compared_by_the_times_of_both(tmp_path: Path) -> None:
    fast, slow = measurement("aten:default", 1.0), measurement("cpu:fft", 2.0)
    near = measurement("aten:folded", 1.01)
    a = store(tmp_path / "a", line=[fast, slow], other=[fast, near], strict=[fast])
    b = store(tmp_path / "b", line=[{**slow, "median_ms": 0.5}, fast], other=[near])
    found = diff(a, b)
    assert (found.same, len(found.different)) == (0, 2)
    assert found.only_first == [(LINE, H200, "deterministic")] and found.only_second == []
    by_problem = {one.problem: one for one in found.different}
    line, other = by_problem[LINE], by_problem[OTHER]
    assert (line.first, line.second) == (("aten:default", 1.0), ("cpu:fft", 0.5))
    assert line.ratios == (0.5, 2.0) and line.is_beyond_noise
    assert other.ratios[1] is None and not other.is_beyond_noise
    assert diff(a, a).same == 3 and not diff(a, a).different


def test_only_times_within_a_store_are_compared(tmp_path: Path) -> None:
    fast = measurement("aten:default", 1.0)
    a = store(tmp_path / "a", line=[fast])
    b = store(tmp_path / "b", line=[{**fast, "median_ms": 9.0}])
    assert diff(a, b).same == 1 and diff(a, tmp_path / "none").only_first
