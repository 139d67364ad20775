"""The graph of a model, by ``torch.fx``; what cannot be traced stays one node of the graph."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.immutable_collections import immutable_dict
from torch.nn import Module

from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.nn.tunable import Tunable

_CONSTANT = "_tensor_constant"  # what torch.fx calls a tensor that a forward makes


class _UntraceableError(Exception):
    """A module below the root cannot be traced."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason_of(error)


class _Tracer(fx.Tracer):
    def __init__(self, whole: dict[str, str]) -> None:
        super().__init__()
        self._whole = whole

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        is_whole = module_qualified_name in self._whole
        is_layer = isinstance(m, Tunable | torch.jit.ScriptModule)
        return is_whole or is_layer or super().is_leaf_module(m, module_qualified_name)

    def create_arg(self, a: Any) -> Any:
        """An argument or result of a node. A mapping stays of its class, which must be known."""
        if isinstance(a, dict) and type(a) not in (dict, immutable_dict):
            if type(a) is not OrderedDict:
                raise TypeError(f"it makes a {type(a).__name__}")
            return super().create_arg(
                self.create_proxy("call_function", OrderedDict, ([*a.items()],), {})
            )
        return super().create_arg(a)

    def call_module(self, m: Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UntraceableError:
            raise
        except Exception as error:  # of the module's own code, on values that are not tensors
            raise _UntraceableError(self.path_of_module(m), error) from error


@dataclass
class Traced:
    """A module that computes what a model does, and what of the model is not in its graph.

    Attributes:
        module: A graph, or the model itself if its own ``forward`` cannot be traced.
        whole: Names of modules that are one node, ``""`` for the model itself, and why.
    """

    module: Module
    whole: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> fx.GraphModule | None:
        """The graph, if there is one."""
        return self.module if isinstance(self.module, fx.GraphModule) else None


def reason_of(error: Exception) -> str:
    """The first line of an error's text, or its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def trace_model(model: Module) -> Traced:
    """Trace a model that nobody else uses. Its layers become those of the graph."""
    gpus = sorted({t.get_device() for t in model.parameters() if t.is_cuda})
    with torch.random.fork_rng(gpus):
        return _trace(model)


def _trace(model: Module) -> Traced:
    whole: dict[str, str] = {}
    while True:
        try:
            graph = _graph_of(model, whole)
            break
        except _UntraceableError as error:
            whole[error.name] = error.reason
        except Exception as error:  # of the model's own forward
            return Traced(model, {"": reason_of(error)})
    constants = _constants(model, graph)
    again = _constants(model, _graph_of(model, whole))
    if not all(_equal(a, b) for a, b in zip(constants, again, strict=True)):
        return Traced(model, {"": "its forward makes random tensors"})
    return Traced(fx.GraphModule(model, graph), whole)


def _graph_of(model: Module, whole: dict[str, str]) -> fx.Graph:
    for name in [n for n in vars(model) if n.startswith(_CONSTANT)]:
        delattr(model, name)
    return _Tracer(whole).trace(model)


def _constants(model: Module, graph: fx.Graph) -> list[Tensor]:
    names = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    found = [getattr(model, n, None) for n in names if n.startswith(_CONSTANT)]
    return [copy.copy(t) for t in tensors_in(found)]


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
