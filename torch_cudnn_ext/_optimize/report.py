"""What `optimize` did with a network."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.report_page import report_page
from torch_cudnn_ext._optimize.rewriting import Rewrites
from torch_cudnn_ext.analysis.picture_file import check_picture, write_picture
from torch_cudnn_ext.analysis.pictures import time_within
from torch_cudnn_ext.analysis.tables import bytes_text


@dataclass(frozen=True)
class ProblemRow:
    """What was found for a problem. Times are in milliseconds.

    Attributes:
        problem: Its line.
        algorithm: The algorithm that runs.
        ms: The algorithm's time.
        pytorch_ms: The time of PyTorch's kernel; ``None`` if it was not measured.
        calls: How often a call of the network computes it; 0 if only the compiled one does.
        by_workspace: The time of the fastest algorithm that needs no more bytes of workspace.
    """

    problem: str
    algorithm: str
    ms: float
    pytorch_ms: float | None
    calls: int
    by_workspace: dict[int, float]


@dataclass
class OptimizationReport:
    """What `optimize` did with a network.

    Attributes:
        network: The model's class.
        rewrites: The layers that were removed, folded and fused.
        whole: Modules whose code was not traced, by name (``""`` is the model), and why. Their
            layers are exchanged one by one.
        layout: The layout of images and filters.
        layouts: The layout of layers, by name, if they do not all compute in ``layout``.
        cuda_graph: Why there is no CUDA graph; empty if there is one.
        torch_compile: Why ``torch.compile`` compiles nothing; empty if it does.
        left: Layers that are PyTorch's in the version that is compiled.
        problems: What was found for each problem.
        times_ms: The median time of a call, for each way that was timed.
        way: The way that runs.
        ratio: How many times as fast as PyTorch the network is: the time of the fastest way with
            PyTorch's layers (``torch.compile`` is one), divided by the time of the way that runs.
        interval: The 95 % interval of ``ratio``.
        errors: For each way, without and with CUDA graphs together, the largest error of a tensor
            of the results, relative to the largest element of that tensor in float64. For training
            see ``max_error`` of `optimize`. Empty if the network does not run in float64 or draws
            random numbers.
        peak_bytes: For each way, the most memory that a call has taken, if `optimize` was given
            ``peak_memory``.
        note: Why PyTorch's layers run, if they do, and which results were too far off.
        train: Whether the network is for training; a call is then a step, forward and backward.
    """

    network: str
    rewrites: Rewrites
    whole: dict[str, str]
    layout: str
    cuda_graph: str = ""
    torch_compile: str = ""
    left: list[str] = field(default_factory=list)
    problems: list[ProblemRow] = field(default_factory=list)
    times_ms: dict[Way, float] = field(default_factory=dict)
    way: Way = Way.optimized
    ratio: float = 1.0
    interval: tuple[float, float] = (1.0, 1.0)
    errors: dict[Way, float] = field(default_factory=dict)
    peak_bytes: dict[Way, int] = field(default_factory=dict)
    note: str = ""
    train: bool = False
    layouts: dict[str, str] = field(default_factory=dict)

    def add_note(self, text: str) -> None:
        """Add to ``note``."""
        self.note = "; ".join(filter(None, (self.note, text)))

    def sentence(self) -> str:
        """How much faster the network is, with the 95 % interval, or why it is not."""
        if not self.times_ms or self.way.is_pytorchs:
            return f"{self.network}: {self.note or 'not timed'}"
        low, high = self.interval
        plain = min(ms for way, ms in self.times_ms.items() if way.is_pytorchs)
        if high < 1:
            return (
                f"{self.network}: {1 / self.ratio:.2f} times as long as with PyTorch's layers, "
                f"{plain:.4g} -> {self.times_ms[self.way]:.4g} ms: {self.note}"
            )
        if low <= 1:
            return f"{self.network}: as fast as with PyTorch's layers, {plain:.4g} ms"
        return (
            f"optimize makes {self.network} {self.ratio:.2f}x ({low:.2f} to {high:.2f}) faster: "
            f"{plain:.4g} -> {self.times_ms[self.way]:.4g} ms"
        )

    def __str__(self) -> str:
        """The report as text, with all problems."""
        return self.text()

    def to_html(self, replay: str = "") -> str:
        """The report as one page of HTML that needs no other file and no network.

        Args:
            replay: The command or code that does this again, for the reader to copy.
        """
        return report_page(self, replay).html()

    def _repr_html_(self) -> str:
        return report_page(self, "").frame()

    def facts(self) -> dict[str, str]:
        """What was done, by heading; without what does not apply."""
        done, ours = self.rewrites, "of ours, not used: " if self.way.is_pytorchs else ""
        peaks = [f"{bytes_text(peak)} ({way.value})" for way, peak in self.peak_bytes.items()]
        errors = [f"{error:.2g} ({way.value})" for way, error in self.errors.items()]
        facts = {
            "runs": self.way.value,
            "timed": "a training step, forward and backward" if self.train else "",
            f"{ours}layout": self.layout,
            f"{ours}other layout": ", ".join(
                n for n, v in self.layouts.items() if v != self.layout
            ),
            f"{ours}layers removed": str(len(done.removed) or ""),
            f"{ours}batch norms folded": str(len(done.folded) or ""),
            f"{ours}activations taken in": str(len(done.activated) or ""),
            f"{ours}sums taken in": str(len(done.residual) or ""),
            **{f"not traced: {name or 'the model'}": why for name, why in self.whole.items()},
            "no CUDA graph": self.cuda_graph,
            "not compiled": self.torch_compile,
            "PyTorch's where compiled": ", ".join(self.left),
            "note": self.note if not self.way.is_pytorchs else "",
            "peak memory": ", ".join(peaks),
            "largest errors": ", ".join(errors),
        }
        return {heading: fact for heading, fact in facts.items() if fact}

    def text(self, most: int = 0) -> str:
        """The report as text.

        Args:
            most: At most so many problems, those with most to gain over PyTorch's kernels; 0 is
                all, in their order.
        """
        lines = [self.sentence()]
        lines += [f"  {way.value}: {ms:.4g} ms" for way, ms in self.times_ms.items()]
        lines += [f"{heading}: {fact}" for heading, fact in self.facts().items()]
        shown = self.problems
        if 0 < most < len(shown):
            shown = sorted(shown, key=lambda row: row.ms - (row.pytorch_ms or row.ms))[:most]
        for row in shown:
            plain = "" if row.pytorch_ms is None else f" ({row.pytorch_ms:.4g} ms)"
            lines.append(f"  {row.problem}  {row.algorithm}  {row.ms:.4g} ms{plain}")
        if hidden := len(self.problems) - len(shown):
            lines.append(f"  {hidden} more, with less to gain (--all-layers shows them)")
        return "\n".join(lines)

    def write_pareto(self, path: str | os.PathLike[str]) -> None:
        """Draw the least time for each bound of the workspace.

        Args:
            path: The file: ``.svg``, or ``.png`` if cairosvg is installed.

        Raises:
            TypeError: ``path`` is no path.
            ValueError: Its name ends otherwise, cairosvg is not installed, or `pareto` is empty.
            OSError: The file cannot be written.

        Example:
            >>> fast = optimize(torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8))
            >>> fast.report.write_pareto("pareto.svg")
        """
        check_picture(path)
        if not (points := self.pareto()):
            raise ValueError("pareto: got no times of problems, wanted a network that was tuned")
        write_picture(path, time_within(points, f"{self.network}: the least time of a call"))

    def pareto(self) -> list[tuple[int, float]]:
        """The least time for each bound of the workspace, as the problems were timed.

        Workspaces are not alive at the same time, so a bound holds for each problem and for the
        network. The times are those of the problems alone, without what lies between them.

        Returns:
            Bytes and milliseconds a call of the network, the smallest bound first; a larger bound
            is left out if it makes nothing faster. Empty after `load_optimized`, which times
            nothing.

        Example:
            >>> fast = optimize(torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8))
            >>> fast.pareto()[0][0]
            0
        """
        rows = [row for row in self.problems if row.calls]
        points: list[tuple[int, float]] = []
        for size in sorted({size for row in rows for size in row.by_workspace}):
            within = [[ms for at, ms in row.by_workspace.items() if at <= size] for row in rows]
            if all(within):
                total = sum(row.calls * min(times) for row, times in zip(rows, within, strict=True))
                if not points or total < points[-1][1]:
                    points.append((size, total))
        return points
