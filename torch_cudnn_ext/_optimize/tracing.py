"""The graph of a model, by ``torch.fx``; what cannot be traced stays one node of the graph."""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.immutable_collections import immutable_dict
from torch.nn import Module

from torch_cudnn_ext._torch_internals import registered_buffers
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.nn.tunable import Tunable

_CONSTANT = "_tensor_constant"  # what torch.fx calls a tensor that a forward makes


class _UntraceableError(Exception):
    """A module below the root cannot be traced."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason_of(error)


_IN_PLACE = (
    "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift",
    "isub", "itruediv", "ixor",
)  # fmt: skip


class _Proxy(fx.Proxy):
    """A proxy on which ``y += x`` stays in place; to torch.fx it is ``y = y + x``."""


def _in_place(name: str) -> Callable[[_Proxy, Any], Any]:
    function = getattr(operator, name)

    def method(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in _IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    def __init__(self, whole: dict[str, str] | None = None) -> None:
        super().__init__()
        self._whole = whole or {}

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        is_whole = module_qualified_name in self._whole
        is_layer = isinstance(m, Tunable | torch.jit.ScriptModule)
        return is_whole or is_layer or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The proxy of a node."""
        return _Proxy(node, self)

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
        name = self.path_of_module(m)
        try:
            return super().call_module(m, forward, args, kwargs)
        except _UntraceableError:
            raise
        except Exception as error:  # of the module's own code, on values that are not tensors
            raise _UntraceableError(name, error) from error


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
    attributes = _attributes(model)
    while True:
        try:
            graph = _graph_of(model, whole)
            break
        except _UntraceableError as error:
            whole[error.name] = error.reason
        except Exception as error:  # of the model's own forward
            return Traced(model, {"": reason_of(error)})
    if changed := _put_back(model, attributes):
        return Traced(model, {"": f"its forward changes {changed}"})
    constants = _constants(model, graph)
    again = _constants(model, _graph_of(model, whole))
    if not all(_equal(a, b) for a, b in zip(constants, again, strict=True)):
        return Traced(model, {"": "its forward makes random tensors"})
    return Traced(fx.GraphModule(model, graph), whole)


def _graph_of(model: Module, whole: dict[str, str]) -> fx.Graph:
    for name in [n for n in vars(model) if n.startswith(_CONSTANT)]:
        delattr(model, name)
    graph = _Tracer(whole).trace(model)
    for node in graph.nodes:
        node.type = None  # an annotation that is a text cannot be pickled
    return graph


# Attributes of modules, and what the dictionaries of tensors among them hold.
_Attributes = dict[Module, tuple[dict[str, Any], dict[str, Any]]]


def _attributes(model: Module) -> _Attributes:
    return {m: (dict(vars(m)), dict(registered_buffers(m))) for m in model.modules()}


def _put_back(model: Module, attributes: _Attributes) -> str:
    """The name of an attribute that a forward changed; all are as before then."""
    found = ""
    names = {module: name for name, module in model.named_modules()}
    for module, (values, buffers) in attributes.items():
        for now, before in ((vars(module), values), (registered_buffers(module), buffers)):
            changed = [
                key
                for key in now.keys() | before.keys()
                if not key.startswith(_CONSTANT) and now.get(key, now) is not before.get(key, now)
            ]
            if changed:
                found = f"{names[module]}.{changed[0]}".lstrip(".")
                now.clear()
                now.update(before)
    return found


def _constants(model: Module, graph: fx.Graph) -> list[Tensor]:
    names = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    found = [getattr(model, n, None) for n in names if n.startswith(_CONSTANT)]
    return [copy.copy(t) for t in tensors_in(found)]


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
