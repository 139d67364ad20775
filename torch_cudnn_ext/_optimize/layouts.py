"""The layout of each layer: together they take the least time, conversions between them included.

The layers and the tensors between them are a graph. A cut of this graph splits the layers into
those that compute contiguous tensors and those that compute channels-last ones. Its cost is the
time of all layers in their layouts, plus the time of all conversions between the two parts. The
cheapest cut is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.fx.passes.shape_prop import TensorMetadata
from torch.nn import Parameter

from torch_cudnn_ext._defaults import LAYOUTS
from torch_cudnn_ext._optimize.rewriting import name_of
from torch_cudnn_ext._workload.models import in_channels_last
from torch_cudnn_ext._workload.problems import DTYPES

_, CONTIGUOUS, CHANNELS_LAST = LAYOUTS
_LEAST_GAIN = 0.01  # of the layers' time; less is not worth another network
_WORDS = {dtype: word for word, dtype in DTYPES.items()}


@dataclass(frozen=True)
class LayerTimes:
    """Milliseconds that a layer takes in a call of the network, in each layout."""

    contiguous: float
    channels_last: float


def total(times: Mapping[str, LayerTimes]) -> LayerTimes:
    """The times of all layers together."""
    contiguous = sum(one.contiguous for one in times.values())
    return LayerTimes(contiguous, sum(one.channels_last for one in times.values()))


def may_gain(times: Mapping[str, LayerTimes]) -> bool:
    """Whether it is faster to run each layer in its faster layout, conversions left out."""
    best = sum(min(one.contiguous, one.channels_last) for one in times.values())
    whole = total(times)
    return best < min(whole.contiguous, whole.channels_last) * (1 - _LEAST_GAIN)


def conversions(network: fx.GraphModule) -> list[str]:
    """The problem lines of converting each result of a network to another layout."""
    lines = map(_conversion, network.graph.nodes)
    return [*dict.fromkeys(filter(None, lines))]


def cheapest_layouts(
    network: fx.GraphModule,
    layout: str,
    times: Mapping[str, LayerTimes],
    conversion_ms: Mapping[str, float],
) -> dict[str, str]:
    """The layout of each layer with which the network takes the least time.

    Args:
        network: A rewritten network, in which `torch.fx.passes.shape_prop` noted the tensors.
        layout: That of the network's inputs.
        times: Of layers, by their names in the model.
        conversion_ms: The times of `conversions`.
    """
    import networkx  # takes a while

    cut = networkx.DiGraph()
    for name, time in times.items():
        # A layer that is contiguous is cut off from the other end.
        cut.add_edge(_layer(name), CHANNELS_LAST, capacity=time.contiguous)
        cut.add_edge(CONTIGUOUS, _layer(name), capacity=time.channels_last)
    for node in network.graph.nodes:
        problem = _conversion(node)
        if not problem:
            continue
        here = _vertex(node, times)
        if node.op == "placeholder":  # an edge without a capacity is never cut
            cut.add_edge(*((layout, here) if layout == CONTIGUOUS else (here, layout)))
        users = {_vertex(user, times) for user in node.users if user.op != "output"} - {here}
        # A tensor is converted once, for all that want it otherwise.
        to, back = ("to", node.name), ("back", node.name)
        for user in users:
            cut.add_edge(here, to, capacity=conversion_ms[problem])
            cut.add_edge(to, user)
            cut.add_edge(user, back)
            cut.add_edge(back, here, capacity=conversion_ms[problem])
    _, (near, _) = networkx.minimum_cut(cut, CONTIGUOUS, CHANNELS_LAST)
    return {name: CONTIGUOUS if _layer(name) in near else CHANNELS_LAST for name in times}


def lay_out(network: fx.GraphModule, layout: str, layouts: Mapping[str, str]) -> None:
    """Give layers their layouts, in place: their filters, and their inputs in each call.

    Args:
        network: A rewritten network. Filters in another layout become tensors of its own.
        layout: That of the network's inputs.
        layouts: Of layers, by their names in the model.
    """
    graph: Any = network.graph
    given: dict[fx.Node, set[str]] = {}  # the layouts that a result may have
    converted: dict[tuple[fx.Node, str], fx.Node] = {}
    for node in list(graph.nodes):
        inputs = node.all_input_nodes
        wanted = layouts.get(name_of(node)) if node.op == "call_module" else None
        if wanted is None:
            given[node] = {one for node in inputs for one in given[node]} or {layout}
            continue
        given[node] = {wanted}
        for module in network.get_submodule(str(node.target)).modules():
            for name, tensor in module.named_parameters(recurse=False):
                laid_out = in_layout(tensor.data, wanted)
                if laid_out.stride() != tensor.stride():
                    setattr(module, name, Parameter(laid_out, requires_grad=False))
        for one in inputs:
            if given[one] != {wanted}:
                if (one, wanted) not in converted:
                    with graph.inserting_after(one):
                        converted[one, wanted] = graph.call_function(in_layout, (one, wanted))
                node.replace_input_with(one, converted[one, wanted])
    graph.lint()
    network.recompile()


def in_layout(value: Any, layout: str) -> Any:
    """A tensor of images or filters in a layout, and anything else as it is."""
    if not isinstance(value, Tensor) or value.dim() not in (4, 5):
        return value
    return value.contiguous() if layout == CONTIGUOUS else in_channels_last(value)


def _layer(name: str) -> tuple[str, str]:
    return "layer", name


def _vertex(node: fx.Node, times: Mapping[str, LayerTimes]) -> tuple[str, str]:
    """A layer has one layout, also if it is called twice, and so one vertex."""
    is_layer = node.op == "call_module" and name_of(node) in times
    return _layer(name_of(node)) if is_layer else ("node", node.name)


def _conversion(node: fx.Node) -> str:
    """The problem line of converting a node's result; empty if it has no layout."""
    meta = node.meta.get("tensor_meta")
    if not isinstance(meta, TensorMetadata):
        return ""
    if len(meta.shape) not in (4, 5) or meta.dtype not in _WORDS or 0 in meta.shape:
        return ""
    sizes = ",".join(map(str, meta.shape))
    return f"transform_fwd x={_WORDS[meta.dtype]}[{sizes}]:nchw y=:nhwc"
