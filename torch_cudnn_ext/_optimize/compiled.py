"""The network for ``torch.compile``: our layers where they are faster, and Inductor's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import fx
from torch.nn import Module

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext._optimize.forms import UnknownForm, content_of, reason_of
from torch_cudnn_ext._optimize.rewriting import name_of, names_of_targets
from torch_cudnn_ext.nn.activated import Activated
from torch_cudnn_ext.ops.decision import last_decision
from torch_cudnn_ext.ops.family import family_named

MAX_KINDS = 4  # of arguments; torch.compile gives up at 8


class CompileError(RuntimeError):
    """A network cannot be compiled."""


class Compiled:
    """A module that ``torch.compile`` compiles at its first call.

    Attributes:
        module: The module.
    """

    def __init__(self, module: Module) -> None:
        """Nothing is compiled yet."""
        self.module = module
        self._call: Callable[..., Any] | None = None
        self._kinds: set[Any] = set()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which compile anew."""
        return {"module": self.module, "_call": None, "_kinds": set()}

    def takes(self, args: tuple[Any, ...]) -> bool:
        """Whether such arguments are compiled: a few kinds, since each is compiled anew."""
        try:
            kind = content_of(args)
        except UnknownForm:
            return False
        if len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
        return kind in self._kinds

    def __call__(self, *args: Any) -> Any:
        """Compute what the module computes.

        Raises:
            CompileError: It cannot be compiled.
            Exception: What the module itself raises.
        """
        if self._call is None:
            self._call = torch.compile(self.module, fullgraph=True, dynamic=False)
        try:
            return self._call(*args)
        except Exception as error:
            self.module(*args)  # what the arguments are to blame for is raised here
            raise CompileError(reason_of(error)) from error


class LayerChoice(NamedTuple):
    """What a layer ran in one call.

    Attributes:
        layer: The layer's name in the model.
        algorithm: The algorithm.
        is_fused: Whether one kernel computes the convolution and what it took in.
    """

    layer: str
    algorithm: str
    is_fused: bool


def choices_of(
    network: fx.GraphModule, call: Callable[[], Any], options: tuple[str, str, float]
) -> list[LayerChoice]:
    """What the layers of a rewritten network run in a call, of the families that stay ours.

    Args:
        network: The network.
        call: Calls it.
        options: The device, the constraints and the time budget of its tuning.
    """
    found: list[LayerChoice] = []

    def note(name: str, families: set[str], *_: object) -> None:
        ran = last_decision()
        if ran is not None and _C.problem_info(ran.problem)["family"] in families:
            rows = _C.tuned(ran.problem, *options) or []
            notes = [row["notes"] for row in rows if row["algorithm"] == ran.algorithm]
            found.append(LayerChoice(name, ran.algorithm, any("fused" in n for n in notes)))

    hooks = []
    for node in network.graph.nodes:
        if node.op == "call_module":
            module = network.get_submodule(str(node.target))
            families = {one.family for one in module.modules() if stays_ours(one)}
            if families:
                hooks.append(module.register_forward_hook(partial(note, name_of(node), families)))
    try:
        call()
    finally:
        for hook in hooks:
            hook.remove()
    return found


def stays_ours(layer: Module) -> TypeGuard[nn.Tunable]:
    """Whether a layer of this package may be part of a compiled network."""
    is_fused = isinstance(layer, Activated) and layer.activates
    return is_fused or (
        isinstance(layer, nn.Tunable) and family_named(layer.family).gains_over_compiler
    )


def targets_of(network: fx.GraphModule, layers: Iterable[str]) -> set[str]:
    """The names in a rewritten network of the modules that stand for layers of the model."""
    wanted = set(layers)
    return {target for target, name in names_of_targets(network).items() if name in wanted}
