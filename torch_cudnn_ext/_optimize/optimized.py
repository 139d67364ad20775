"""The modules that `optimize` makes."""

from __future__ import annotations

import os
from abc import abstractmethod
from functools import partial
from typing import Any, Self

import torch
from torch.nn import Module

from torch_cudnn_ext._optimize.compiled import Compiled, CompileError
from torch_cudnn_ext._optimize.forms import (
    UnknownForm,
    autocast_now,
    form_of,
    sizes_of,
    tensors_of,
)
from torch_cudnn_ext._optimize.graphs import CaptureError, Graphs
from torch_cudnn_ext._optimize.recipe import Recipe, Way
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext._workload.pytree import map_tensors


class OptimizedModel(Module):
    """A network made by `optimize`. It takes the model's arguments and gives its results.

    **For inference** it computes without gradients, with the weights that the model had. A CUDA
    graph serves one kind of inputs: their shapes, strides and dtypes, and the values of numbers and
    texts. The 8 graphs that were used last are kept. The tensors of the results are the caller's
    own. Calls of another form than the example's run PyTorch's layers: keyword arguments, other
    numbers of dimensions, dtypes or arguments, or another state of autocast. So do all calls after
    a move to another dtype or device.

    **For training** its parameters, buffers and modules are the model's: to train it is to train
    the model, and its state dict is the model's. The model itself stays as it is, except for the
    strides of its filters if the layout is another. Evaluation, and calls while a module that holds
    a layer of ours has hooks or was exchanged, run the model's own code.

    Attributes:
        report: What was done, and how fast it is.

    Example:
        >>> fast = torch_cudnn_ext.optimize(torch.nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8))
        >>> fast(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 8, 6, 6])
    """

    _recipe: Recipe
    report: OptimizationReport

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute what the model computes for these arguments."""
        return self.run(self.report.way, *args, **kwargs)

    @abstractmethod
    def run(self, way: Way, /, *args: Any, **kwargs: Any) -> Any:
        """The same, in one of the ways."""

    def pareto(self) -> list[tuple[int, float]]:
        """The least time for each bound of the workspace; see `OptimizationReport.pareto`."""
        return self.report.pareto()

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


class InferenceModel(OptimizedModel):
    """A network for inference."""

    def __init__(
        self,
        plain: Module,
        tuned: Module,
        untuned: Module,
        folded: Module,
        recipe: Recipe,
        report: OptimizationReport,
    ) -> None:
        """For `optimize` alone."""
        super().__init__()
        self._plain, self._tuned, self._untuned, self._folded = plain, tuned, untuned, folded
        self._recipe = recipe
        self._compiled = {Way.compiled: Compiled(folded), Way.mixed: Compiled(folded)}
        self._graphs = {way: Graphs(partial(self._compute, way)) for way in Way if way.in_graph}
        self._is_cast = False  # what was read of dtypes and devices may be in the graph
        self.report = report
        self.training = False

    def run(self, way: Way, /, *args: Any, **kwargs: Any) -> Any:
        """Compute it in one of the ways."""
        with torch.no_grad():
            try:
                return self._run(way, args, kwargs)
            except CompileError as error:
                self.report.torch_compile = str(error)
                self.report.way = self.report.way.uncompiled
                warn(f"optimize: calls run without torch.compile: {error}")
            return self._run(way, args, kwargs)

    def _run(self, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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

    def forget_graph(self, way: Way) -> None:
        """Free the memory of the graphs of a way."""
        if way.in_graph:
            self._graphs[way].clear()

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
        if self.report.torch_compile:
            way = way.uncompiled
        if way in (Way.plain, Way.plain_graph) or not self._is_as_traced(args, kwargs):
            return self._plain(*args, **kwargs)
        is_tuned = sizes_of(args) in self._recipe.shapes
        is_compiled = way.is_compiled and is_tuned and self._compiled[way.without_graph].takes(args)
        if way.is_pytorchs and not is_compiled:
            return self._plain(*args, **kwargs)
        ours = self._tuned if is_tuned else self._untuned
        network = self._compiled[way.without_graph] if is_compiled else ours
        return network(*map_tensors(self._recipe.in_layout, args), **kwargs)

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
                "that it was made of, or what optimize makes with train=True"
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
