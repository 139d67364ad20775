"""Rewrites of an inference graph: layers that do nothing, batch norm, and epilogues."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.nn import Module
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from torch_cudnn_ext._optimize.tracing import IN_PLACE
from torch_cudnn_ext._torch_internals import layer_with_same_tensors
from torch_cudnn_ext.models.classes import counterparts, exchange, obstacle
from torch_cudnn_ext.ops.convolution_primitives import convolution

_FORWARD = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
_FUSABLE = (*_FORWARD, torch.nn.Linear)  # take in an activation; convolutions also a sum
_TRANSPOSED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
DROPOUTS = (
    torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d,
    torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout,
)  # fmt: skip
_NOTHING = (torch.nn.Identity, *DROPOUTS)
_DROPOUT_FUNCTIONS = (
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
)  # fmt: skip
# Modules, functions and methods of the activations that a convolution takes in.
_MODULES = {
    torch.nn.ReLU: "relu", torch.nn.ReLU6: "relu6", torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh", torch.nn.SiLU: "silu", torch.nn.GELU: "gelu",
}  # fmt: skip
_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu", F.relu_: "relu", torch.relu: "relu", torch.relu_: "relu", F.relu6: "relu6",
    F.sigmoid: "sigmoid", torch.sigmoid: "sigmoid", torch.sigmoid_: "sigmoid", F.tanh: "tanh",
    torch.tanh: "tanh", torch.tanh_: "tanh", F.silu: "silu", F.gelu: "gelu",
}  # fmt: skip
_METHODS = {f"{name}{end}": name for name in ("relu", "sigmoid", "tanh") for end in ("", "_")}
_COMPUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda y: y, "relu": torch.relu, "relu6": F.relu6, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "silu": F.silu, "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}  # fmt: skip
_NAME = "layer"  # the key of a node's meta that holds its layer's name in the model
_ADDS = (operator.add, operator.iadd, torch.add)
_IN_PLACE_ADDS = (operator.iadd, "add_")


@dataclass(frozen=True)
class Facts:
    """What the graph alone does not tell of a layer's name and a node.

    Attributes:
        is_matrix: Whether the result of a linear layer has two dimensions.
        adds_alike: Whether a sum adds two tensors of one shape and dtype.
    """

    is_matrix: Callable[[str, fx.Node], bool]
    adds_alike: Callable[[str, fx.Node], bool]


def facts_of_run() -> Facts:
    """What a run with `torch.fx.passes.shape_prop` left in the nodes."""

    def form(node: Any) -> tuple[Any, ...] | None:
        meta = node.meta.get("tensor_meta")
        return (meta.dtype, *meta.shape) if hasattr(meta, "shape") else None

    def adds_alike(_name: str, add: fx.Node) -> bool:
        forms = {form(node) for node in (add, *add.args)}
        return len(forms) == 1 and None not in forms

    return Facts(lambda _name, node: len(form(node) or ()) == 3, adds_alike)


def facts_of(done: Rewrites) -> Facts:
    """What a former rewriting of the same model found."""
    return Facts(lambda name, _node: name in done.folded, lambda name, _add: name in done.residual)


@dataclass
class Rewrites:
    """The names of the layers that were rewritten, as in the model.

    Attributes:
        removed: Layers that do nothing in inference.
        folded: Layers that took in a batch norm.
        activated: Convolutions and linear layers that took in an activation.
        residual: Convolutions that took in a sum, and an activation if one comes next.
    """

    removed: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    activated: list[str] = field(default_factory=list)
    residual: list[str] = field(default_factory=list)


class ConvolutionAdd(Module):
    """``activation(conv(x) + z)`` as one problem.

    Under autocast, and if ``z`` is broadcast, it computes the steps one by one. ``in_place`` says
    whether the sum is then computed in the result of the convolution, which keeps its dtype.
    """

    def __init__(self, conv: Any, activation: str, in_place: bool) -> None:
        super().__init__()
        self.conv, self.activation, self.in_place = conv, activation, in_place

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Compute it."""
        conv = self.conv
        geometry = (conv.stride, conv.padding, conv.dilation)
        is_batch = x.dim() == conv.weight.dim()
        is_alike = is_batch and z.shape == (x.shape[0], conv.out_channels, *self._pixels(x))
        if not is_alike or torch.is_autocast_enabled(x.device.type):
            y: Tensor = conv(x)
            return _COMPUTES[self.activation](y.add_(z) if self.in_place else y + z)
        options: dict[str, Any] = {"groups": conv.groups, "z": z, "beta": 1.0}
        options["activation"] = self.activation
        tensors = (x, conv.weight, conv.bias)
        result: Tensor = conv._selecting(convolution)(
            *tensors, *geometry, **options, policy=conv._running
        )
        return result

    def _pixels(self, x: Tensor) -> list[int]:
        conv = self.conv
        parts = zip(
            x.shape[2:], conv.kernel_size, conv.stride, conv.padding, conv.dilation, strict=True
        )
        return [
            (size + 2 * pad - dil * (kernel - 1) - 1) // step + 1
            for size, kernel, step, pad, dil in parts
        ]


@dataclass
class _Work:
    """A graph, what is known of it, how often it calls each module, and what was rewritten.

    ``separate`` holds the names of convolutions that take in nothing.
    """

    graph: fx.GraphModule
    facts: Facts
    calls: dict[Module, int]
    done: Rewrites
    separate: Collection[str] = ()


def fold(graph: fx.GraphModule, facts: Facts) -> Rewrites:
    """Remove the layers that do nothing and fold batch norms, in place."""
    return _rewritten(_Work(graph, facts, _call_counts(graph), Rewrites()), _remove, _fold)


def fuse(
    graph: fx.GraphModule, facts: Facts, done: Rewrites, separate: Collection[str] = ()
) -> Rewrites:
    """Let layers take in sums and activations, in place, but those that are named.

    Args:
        graph: What `fold` made.
        facts: As for `fold`.
        done: What `fold` returned.
        separate: Names of convolutions in the model that take in nothing.

    Returns:
        What was done in all.
    """
    done = Rewrites([*done.removed], [*done.folded])
    return _rewritten(_Work(graph, facts, _call_counts(graph), done, separate), _fuse)


def _rewritten(work: _Work, *steps: Callable[[_Work, fx.Node], None]) -> Rewrites:
    plain_graph: Any = work.graph.graph
    for step in steps:
        for node in list(plain_graph.nodes):
            step(work, node)
    plain_graph.lint()
    work.graph.delete_all_unused_submodules()
    work.graph.recompile()
    return work.done


def _call_counts(graph: fx.GraphModule) -> dict[Module, int]:
    """How often each module is called, under whatever name."""
    counts: dict[Module, int] = {}
    for node in graph.graph.nodes:
        if (module := _module(graph, node)) is not None:
            counts[module] = counts.get(module, 0) + 1
    return counts


def _module(graph: fx.GraphModule, node: Any) -> Module | None:
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph.get_submodule(str(node.target))
    return None if "forward" in vars(module) else module  # it computes something else


def _remove(work: _Work, node: fx.Node) -> None:
    """Removes a layer that returns its input."""
    module = _module(work.graph, node)
    is_off = node.op == "call_function" and node.target in _DROPOUT_FUNCTIONS and _is_off(node)
    does_nothing = type(module) in _NOTHING and module is not None and not module.training
    if not (is_off or does_nothing) or not node.args or not isinstance(node.args[0], fx.Node):
        return
    node.replace_all_uses_with(node.args[0])
    work.graph.graph.erase_node(node)
    work.done.removed.append(str(node.target) if module is not None else node.name)


def _is_off(node: fx.Node) -> bool:
    """Whether a function of dropout is called with a literal ``training=False``."""
    given = node.kwargs.get("training", node.args[2] if len(node.args) > 2 else None)
    return given is False


def _fold(work: _Work, node: fx.Node) -> None:
    """Puts a batch norm into the layer before it."""
    norm: Any = _module(work.graph, node)
    if type(norm) not in _NORMS or norm.training or norm.running_mean is None:
        return
    if len(node.args) != 1 or node.kwargs:
        return
    before: Any = node.args[0]
    layer: Any = _module(work.graph, before)
    if layer is None or work.calls[layer] != 1 or len(before.users) != 1 or len(before.args) != 1:
        return
    is_transposed = type(layer) in _TRANSPOSED
    if type(layer) in _FORWARD or (is_transposed and layer.groups == 1):
        channels = layer.out_channels
    elif type(layer) is torch.nn.Linear and work.facts.is_matrix(name_of(before), before):
        channels = layer.out_features
    else:
        return
    if channels != norm.num_features or not layer.weight.is_floating_point():
        return
    folded: Any = _folded(layer, norm, is_transposed)
    if not all(bool(t.isfinite().all()) for t in folded.parameters()):
        return  # beyond the range of the dtype
    _set(work.graph, before, folded)
    node.replace_all_uses_with(before)
    work.graph.graph.erase_node(node)
    work.done.folded.append(name_of(before))


def _folded(layer: Any, norm: Any, is_transposed: bool) -> Module:
    """The layer with the batch norm in it, computed in float64 and rounded once."""
    wide, wide_norm = copy.deepcopy(layer).double(), copy.deepcopy(norm).double()
    if isinstance(layer, torch.nn.Linear):
        fused: Module = fuse_linear_bn_eval(wide, wide_norm)
    else:
        fused = fuse_conv_bn_eval(wide, wide_norm, is_transposed)
    return fused.to(layer.weight.dtype).requires_grad_(False)


def _fuse(work: _Work, node: fx.Node) -> None:
    """Makes a convolution and what follows it one problem: a sum, an activation, or both."""
    graph = work.graph
    activation = _activation_of(graph, node)
    if activation is None:
        return
    if activation == "identity" and len(node.users) == 1 and _activates(graph, *node.users):
        return  # the activation comes with both
    before = node if activation == "identity" else node.all_input_nodes[0]
    if before is not node and len(before.users) != 1:
        return
    found, other = before, None
    if _is_add(before):
        found, other = _summand(graph, before, work.calls)
        if found is None or not work.facts.adds_alike(name_of(found), before):
            return
    conv = None if name_of(found) in work.separate else _fusable(graph, found, work.calls)
    if conv is None or len(found.users) != 1 or _changes_between(graph, found, node, before):
        return
    arguments: tuple[fx.Node, ...] = (found.args[0],)  # type: ignore[assignment]
    layer: Any
    if other is None:
        layer = _exchanged(conv)
        layer.activation = activation
        work.done.activated.append(name_of(found))
    else:
        if not isinstance(conv.padding, tuple) or conv.padding_mode != "zeros":
            return
        in_place = before.target in _IN_PLACE_ADDS
        layer = ConvolutionAdd(_exchanged(conv), activation, in_place)
        arguments = (*arguments, other)
        work.done.residual.append(name_of(found))
    _set(graph, found, layer)
    with graph.graph.inserting_before(node):
        fused = graph.graph.call_module(str(found.target), arguments)
    fused.meta = {**node.meta, _NAME: found.meta[_NAME]}
    node.replace_all_uses_with(fused)
    for unused in dict.fromkeys((node, before, found)):
        graph.graph.erase_node(unused)


def _activation_of(graph: fx.GraphModule, node: fx.Node) -> str | None:
    """What a node computes of the result before it; ``identity`` is a sum."""
    if _is_add(node):
        return "identity"
    if len(node.all_input_nodes) != 1 or not node.args:
        return None
    given: Any = node.kwargs
    if node.op == "call_module":
        module = _module(graph, node)
        if module is None:
            return None
        name, given = _MODULES.get(type(module)), vars(module)
    elif node.op == "call_function":
        name = _FUNCTIONS.get(node.target)
    else:
        name = _METHODS.get(str(node.target)) if node.op == "call_method" else None
    if name == "gelu":
        name = {"none": "gelu", "tanh": "gelu_tanh"}.get(given.get("approximate", "none"))
    return name


def _activates(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is an activation that a convolution takes in."""
    return _activation_of(graph, node) not in (None, "identity")


def _exchanged(layer: Any) -> Module:
    """A copy of a layer of ``torch.nn`` as one of this package, with the same tensors."""
    ours = layer_with_same_tensors(layer)
    exchange(ours, counterparts()[type(layer)])
    return ours


def _fusable(graph: fx.GraphModule, node: Any, calls: dict[Module, int]) -> Any:
    layer = _module(graph, node)
    if type(layer) not in _FUSABLE or layer is None or len(node.args) != 1 or node.kwargs:
        return None
    is_kept = obstacle(layer, counterparts()[type(layer)]) or not layer.weight.is_floating_point()  # type: ignore[operator]
    # A folded layer is new, and called once.
    return None if is_kept or calls.get(layer, 1) != 1 else layer


def _is_add(node: fx.Node) -> bool:
    if node.op == "call_function":
        is_add = node.target in _ADDS
    else:
        is_add = node.op == "call_method" and node.target in ("add", "add_")
    are_nodes = len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args)
    return is_add and are_nodes and not node.kwargs and node.args[0] is not node.args[1]


def _summand(graph: fx.GraphModule, add: fx.Node, calls: dict[Module, int]) -> tuple[Any, Any]:
    """The convolution of a sum that can take in the other summand, and that one."""
    first, second = add.args
    pairs = [(first, second)]
    # What is added in place to a tensor that others hold changes theirs.
    if add.target not in _IN_PLACE_ADDS:
        pairs.append((second, first))
    fitting = [
        p
        for p in pairs
        if type(_fusable(graph, p[0], calls)) in _FORWARD and len(p[0].users) == 1  # type: ignore[union-attr]
    ]
    if len(fitting) == 2 and fitting[0][0] < fitting[1][0]:  # type: ignore[operator]
        fitting.reverse()  # the later one
    return fitting[0] if fitting else (None, None)


def _changes_between(
    graph: fx.GraphModule, first: fx.Node, last: fx.Node, ignored: fx.Node
) -> bool:
    """Whether a node between two others may change a tensor in place; one node is ignored."""
    node = first.next
    while node is not last:
        if node is not ignored and not _is_pure(graph, node):
            return True
        node = node.next
    return False


def _is_pure(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is known to change no tensor in place."""
    if node.op in ("placeholder", "get_attr"):
        return True
    if node.op == "call_module":
        module = _module(graph, node)
        is_layer = type(module).__module__.startswith(("torch.nn.", "torch_cudnn_ext."))
        return is_layer and not getattr(module, "inplace", False)
    name = getattr(node.target, "__name__", str(node.target))
    if name.endswith("_") or node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
        return False
    if node.op == "call_method":
        return True
    home = getattr(node.target, "__module__", None) or ""
    if home == "_operator":
        return name not in ("setitem", "delitem", *IN_PLACE)
    # An `inplace` may be given by position.
    return home in ("torch", "torch.nn.functional", "torch._C._nn") and True not in node.args


def _set(graph: fx.GraphModule, node: fx.Node, module: Module) -> None:
    """Makes a node call a new module; others may use the one that it called, or its tensors."""
    node.meta[_NAME] = name_of(node)
    target, count = f"optimized_{name_of(node).replace('.', '_')}", 0
    while hasattr(graph, name := f"{target}_{count}" if count else target):
        count += 1
    graph.add_submodule(name, module)
    node.target = name


def name_of(node: fx.Node) -> str:
    """The name in the model of the layer that a node calls."""
    return str(node.meta.get(_NAME, node.target))


def names_of_targets(network: Module) -> dict[str, str]:
    """The modules that a graph calls, with the names in the model; none if it is no graph."""
    if not isinstance(network, fx.GraphModule):
        return {}
    calls = [node for node in network.graph.nodes if node.op == "call_module"]
    return {str(node.target): name_of(node) for node in calls}
