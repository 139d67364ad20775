"""The module that `optimize` makes."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import (
    UnknownForm,
    autocast_now,
    form_of,
    sizes_of,
    tensors_of,
)
from torch_cudnn_ext._optimize.graphs import CaptureError, Graphs
from torch_cudnn_ext._optimize.recipe import PLAIN, Recipe, Way
from torch_cudnn_ext._optimize.report_page import report_page
from torch_cudnn_ext._optimize.rewriting import Rewrites
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext._workload.pytree import map_tensors


@dataclass
class OptimizationReport:
    """What `optimize` did with a network.

    Attributes:
        network: The model's class.
        rewrites: The layers that were removed, folded and fused.
        whole: Modules whose code was not traced, by name (``""`` is the model), and why. Their
            layers are exchanged one by one.
        layout: The layout of images and filters.
        cuda_graph: Why there is no CUDA graph; empty if there is one.
        problems: A row for each problem: its line, its algorithm, the algorithm's time, and the
            time of PyTorch's kernel. Times are in milliseconds; ``None`` means not measured.
        times_ms: The median time of a call, for each way that was timed.
        way: The way that runs.
        ratio: How many times as fast as PyTorch the network is: the time of the fastest way with
            PyTorch's layers, divided by the time of the way that runs.
        interval: The 95 % interval of ``ratio``.
        error: The largest error of the optimized layers' results, relative to the largest element
            of the results in float64; ``None`` if the network does not run in float64.
        plain_error: The same of PyTorch's layers.
        note: Why PyTorch's layers run, if they do.
    """

    network: str
    rewrites: Rewrites
    whole: dict[str, str]
    layout: str
    cuda_graph: str = ""
    problems: list[tuple[str, str, float | None, float | None]] = field(default_factory=list)
    times_ms: dict[Way, float] = field(default_factory=dict)
    way: Way = Way.optimized
    ratio: float = 1.0
    interval: tuple[float, float] = (1.0, 1.0)
    error: float | None = None
    plain_error: float | None = None
    note: str = ""

    def sentence(self) -> str:
        """How much faster the network is, with the 95 % interval, or why it is not."""
        if not self.times_ms or self.note:
            return f"{self.network}: {self.note or 'not timed'}"
        low, high = self.interval
        plain = [ms for way, ms in self.times_ms.items() if way in PLAIN]
        return (
            f"optimize makes {self.network} {self.ratio:.2f}x ({low:.2f} to {high:.2f}) faster: "
            f"{min(plain):.4g} -> {self.times_ms[self.way]:.4g} ms"
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

    def text(self, most: int = 0) -> str:
        """The report as text.

        Args:
            most: At most so many problems, those with most to gain over PyTorch's kernels; 0 is
                all, in their order.
        """
        done = self.rewrites
        lines = [self.sentence(), f"runs: {self.way.value}"]
        lines += [f"  {way.value}: {ms:.4g} ms" for way, ms in self.times_ms.items()]
        counts = [
            (len(done.folded), "batch norms folded"),
            (len(done.activated), "convolutions with ReLU"),
            (len(done.residual), "convolutions with sum and ReLU"),
            (len(done.removed), "layers removed"),
        ]
        told = ", ".join(f"{count} {text}" for count, text in counts if count)
        lines.append(f"{told or 'nothing folded or fused'}; layout: {self.layout}")
        lines += [f"not traced: {name or 'the model'}: {why}" for name, why in self.whole.items()]
        if self.cuda_graph:
            lines.append(f"no CUDA graph: {self.cuda_graph}")
        if self.error is not None and self.plain_error is not None:
            lines.append(f"largest error: {self.error:.2g}; of PyTorch: {self.plain_error:.2g}")
        shown = self.problems
        if 0 < most < len(shown):
            shown = sorted(shown, key=lambda row: (row[2] or math.inf) - (row[3] or 0.0))[:most]
        for problem, algorithm, ours, plain in shown:
            times = "" if ours is None or plain is None else f"  {ours:.4g} ms ({plain:.4g} ms)"
            lines.append(f"  {problem}  {algorithm}{times}")
        if hidden := len(self.problems) - len(shown):
            lines.append(f"  {hidden} more, with less to gain (--all-layers shows them)")
        return "\n".join(lines)


class OptimizedModel(Module):
    """A network for inference, made by `optimize`.

    It takes the model's arguments and gives results of the model's types. It computes without
    gradients, with the weights that the model had.

    A CUDA graph serves one kind of inputs: their shapes, strides and dtypes, and the values of
    numbers and texts. The 8 graphs that were used last are kept. The tensors of the results are the
    caller's own.

    Calls of another form than the example's run PyTorch's layers: keyword arguments, other numbers
    of dimensions, dtypes or arguments, or another state of autocast. So do all calls after a move
    to another dtype or device.

    Attributes:
        report: What was done, and how fast it is.

    Example:
        >>> fast = torch_cudnn_ext.optimize(torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8))
        >>> fast(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 8, 6, 6])
    """

    def __init__(
        self,
        plain: Module,
        tuned: Module,
        untuned: Module,
        recipe: Recipe,
        report: OptimizationReport,
    ) -> None:
        """For `optimize` alone."""
        super().__init__()
        self._plain, self._tuned, self._untuned = plain, tuned, untuned
        self._recipe = recipe
        self._graphs = {way: Graphs(partial(self._compute, way)) for way in Way if way.in_graph}
        self._is_cast = False  # what was read of dtypes and devices may be in the graph
        self.report = report
        self.training = False

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute what the model computes for these arguments."""
        return self.run(self.report.way, *args, **kwargs)

    def run(self, way: Way, /, *args: Any, **kwargs: Any) -> Any:
        """The same, in one of the ways."""
        with torch.no_grad():
            if way.in_graph and self._may_be_captured(args, kwargs):
                try:
                    return self._graphs[way](*args)
                except (UnknownForm, torch.OutOfMemoryError):
                    pass  # this call runs without a graph
                except CaptureError as error:
                    self.report.cuda_graph = str(error)
                    for graphs in self._graphs.values():
                        graphs.clear()
                    warn(f"optimize: calls run without a CUDA graph: {error}")
            return self._compute(way, *args, **kwargs)

    def _forget_graphs(self) -> None:
        """Free the memory of the graphs of ways that do not run."""
        for way, graphs in self._graphs.items():
            if way is not self.report.way:
                graphs.clear()

    def _may_be_captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.report.cuda_graph or not self._is_as_traced(args, kwargs):
            return False
        tensors = tensors_of(args)
        is_on_gpu = bool(tensors) and all(t.is_cuda for t in tensors)
        return is_on_gpu and not torch.cuda.is_current_stream_capturing()

    def _compute(self, way: Way, /, *args: Any, **kwargs: Any) -> Any:
        """Compute it without a graph. What was traced holds for the example's form alone."""
        if way in (Way.plain, Way.plain_graph) or not self._is_as_traced(args, kwargs):
            return self._plain(*args, **kwargs)
        module = self._tuned if sizes_of(args) in self._recipe.shapes else self._untuned
        return module(*map_tensors(self._recipe.in_layout, args), **kwargs)

    def _is_as_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether what was traced is what the model does; its own code does it for all calls."""
        if self._recipe.untraced:
            return True
        is_form = not kwargs and form_of(args) == self._recipe.form
        return is_form and not self._is_cast and autocast_now() == self._recipe.autocast

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation.

        Raises:
            RuntimeError: ``mode`` is true.
        """
        if mode:
            raise RuntimeError(
                "OptimizedModel.train: the network was optimized for inference; train the model "
                "that it was made of"
            )
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        for graphs in self._graphs.values():
            graphs.clear()
        before = self._places()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._is_cast |= before != self._places()
        return self

    def _places(self) -> list[tuple[Any, ...]]:
        tensors = (*self._plain.parameters(), *self._plain.buffers())
        return [(t.dtype, t.device) for t in tensors]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a recipe for `load_optimized`: what was done and measured, without weights.

        Raises:
            TypeError: ``path`` is no path.
            OSError: The file cannot be written.
        """
        report = self.report
        self._recipe.write(path, report.network, report.way, report.rewrites)

    def extra_repr(self) -> str:
        """The way that runs."""
        return self.report.way.value
