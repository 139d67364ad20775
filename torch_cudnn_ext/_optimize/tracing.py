"""The graph of a model, by ``torch.fx``; what cannot be traced stays one node of the graph."""

from __future__ import annotations

import inspect
import operator
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.immutable_collections import immutable_dict
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import autocast_now, reason_of
from torch_cudnn_ext._torch_internals import version_of
from torch_cudnn_ext._workload.model_state import preserve_model_state
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.models.classes import counterparts
from torch_cudnn_ext.nn.tunable import Tunable

CHANGES = "its forward changes"  # and a name: the reason of a model that keeps state
_CONSTANT = "_tensor_constant"  # what torch.fx calls a tensor that a forward makes
IN_PLACE = (
    "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift",
    "isub", "itruediv", "ixor",
)  # fmt: skip


class _UntraceableError(BaseException):
    """A module below the root cannot be traced; code of a forward does not catch it."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.reason = reason_of(error)


class _Proxy(fx.Proxy):
    """A proxy on which ``y += x`` stays in place; to torch.fx it is ``y = y + x``."""


def _in_place(name: str) -> Callable[[_Proxy, Any], Any]:
    function = getattr(operator, name)

    def method(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


for _name in IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(fx.Tracer):
    def __init__(self, whole: dict[str, str] | None = None) -> None:
        super().__init__()
        self._whole = whole or {}
        self._modes = _modes()

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        is_whole = module_qualified_name in self._whole
        is_layer = isinstance(m, Tunable | torch.jit.ScriptModule)
        return is_whole or is_layer or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The proxy of a node."""
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node of the graph, which holds no context manager."""
        if _modes() != self._modes:
            raise TypeError("it changes autocast or the gradient mode")
        return super().create_node(*args, **kwargs)

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
        if self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)  # an error is the parent's
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # of the module's own code, on values that are not tensors
            raise _UntraceableError(name, error) from error


@dataclass
class Traced:
    """A module that computes what a model does, and what of the model is not in its graph.

    Attributes:
        module: A graph, or the model itself if its own ``forward`` is not traced.
        whole: Names of modules whose code is not traced, ``""`` for the model itself, and why.
    """

    module: Module
    whole: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> fx.GraphModule | None:
        """The graph, if there is one."""
        return self.module if isinstance(self.module, fx.GraphModule) else None


def trace_model(model: Module) -> Traced:
    """Trace a model.

    The graph holds the model's own layers, so the caller uses the model for nothing else.
    """
    if isinstance(model, Tunable) or type(model) in counterparts():
        return Traced(model)  # a layer
    if "forward" in vars(model):
        return Traced(model, {"": "its forward was replaced"})
    kinds = {p.kind for p in inspect.signature(type(model).forward).parameters.values()}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY} <= kinds:
        return Traced(model, {"": "its forward has *args and keyword-only arguments"})
    with torch.no_grad(), preserve_model_state(model), same_random_numbers():
        return _trace(model)


def _trace(model: Module) -> Traced:
    before, whole = state_of(model), dict[str, str]()
    while True:
        try:
            graph = _graph_of(model, whole)
            break
        except _UntraceableError as error:
            whole[error.name] = error.reason
        except Exception as error:  # of the model's own forward
            return Traced(model, {"": reason_of(error)})
    if changed := change_of(before, state_of(model)):
        return Traced(model, {"": f"{CHANGES} {changed}"})
    constants = _constants(model, graph)
    try:
        again = _graph_of(model, whole)
        same = str(again) == str(graph) and all(map(_equal, constants, _constants(model, again)))
    except (Exception, _UntraceableError):  # it takes another way now
        same = False
    if not same:
        return Traced(model, {"": "its forward makes random tensors"})
    try:
        return Traced(fx.GraphModule(model, graph), whole)
    except Exception as error:  # the graph is no Python code
        return Traced(model, {"": reason_of(error)})


def _graph_of(model: Module, whole: dict[str, str]) -> fx.Graph:
    for name in [n for n in vars(model) if n.startswith(_CONSTANT)]:
        delattr(model, name)
    graph = _Tracer(whole).trace(model)
    for node in graph.nodes:
        node.type = None  # an annotation that is a text cannot be pickled
    return graph


def _constants(model: Module, graph: fx.Graph) -> list[Tensor]:
    names = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
    found = [getattr(model, n, None) for n in names if n.startswith(_CONSTANT)]
    return [t for t in found if isinstance(t, Tensor)]


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def _modes() -> tuple[Any, ...]:
    """What a forward may set for the operators that it calls."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_now()


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Python's own random numbers are as if the block had not run."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


# What a forward may change: (module, attribute) -> the value, its elements if it is a container,
# and the versions of the tensors in it.
_State = dict[tuple[str, str], tuple[Any, list[Any], list[int | None]]]


def state_of(model: Module, with_tensors: bool = True) -> _State:
    """The attributes, parameters and buffers of a model, to be compared later.

    Without tensors these are the attributes alone, and to write to a tensor is no change.
    """
    found: _State = {}
    for name, module in model.named_modules():
        items = dict(vars(module))
        tensors = [items.pop(key) for key in ("_parameters", "_buffers", "_modules")]
        if with_tensors:
            items |= {key: value for held in tensors for key, value in held.items()}
        for key, value in items.items():
            if not key.startswith(_CONSTANT):
                versions = [version_of(t) for t in tensors_in(value)] if with_tensors else []
                found[name, key] = value, list(_elements(value)), versions
    return found


def change_of(before: _State, after: _State) -> str:
    """The name of an attribute that changed; empty if none did."""
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None or not _is_same(old, new):
            return ".".join(filter(None, key))
    return ""


def _is_same(old: tuple[Any, list[Any], Any], new: tuple[Any, list[Any], Any]) -> bool:
    elements = len(old[1]) == len(new[1]) and all(map(operator.is_, old[1], new[1]))
    return old[0] is new[0] and elements and old[2] == new[2]


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | set | deque) else ()
