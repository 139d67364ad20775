"""The networks that `optimize` makes of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from inspect import isdatadescriptor
from typing import Any, cast

import torch
from torch.fx import GraphModule
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import Module

from torch_cudnn_ext import nn
from torch_cudnn_ext._optimize.compiled import targets_of
from torch_cudnn_ext._optimize.forms import form_of, reason_of
from torch_cudnn_ext._optimize.layouts import lay_out
from torch_cudnn_ext._optimize.optimized import InferenceModel
from torch_cudnn_ext._optimize.recipe import Recipe
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._optimize.rewriting import Facts, Rewrites, fold, fuse
from torch_cudnn_ext._optimize.tracing import CHANGES, Traced, change_of, state_of, trace_model
from torch_cudnn_ext._policy_text import own_text
from torch_cudnn_ext._torch_internals import has_forward_hooks, registered_names, version_of
from torch_cudnn_ext._workload.model_state import copied
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.classes import counterpart, exchange
from torch_cudnn_ext.models.convert import conversion_steps, convert
from torch_cudnn_ext.ops.family import Family, family_named
from torch_cudnn_ext.policy import text_for_all


def plain_copy(function: str, model: Module) -> Module:
    """A copy of the model for inference.

    Raises:
        TypeError: As `optimize`.
        ValueError: As `optimize`.
    """
    model = model_without_hooks(function, model, has_forward_hooks)
    return copied(model).eval().requires_grad_(False)


def model_without_hooks(
    function: str, model: Module, has_hooks: Callable[[Module], bool]
) -> Module:
    """The eager model.

    Raises:
        TypeError: As `optimize`.
        ValueError: As `optimize`.
    """
    model = eager_model(function, model)
    for name, module in model.named_modules():
        if has_hooks(module):
            raise ValueError(
                f"model: got hooks of {name or 'the model'}, which a rewritten "
                "network would not call as before; wanted a model without hooks"
            )
    return model


def digest_of(model: Module) -> str:
    """Of the classes of a model's modules and the shapes of its tensors."""
    lines = [
        f"{name} {type(one).__name__} {one.extra_repr()}" for name, one in model.named_modules()
    ]
    lines += [f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def changed_by_run(plain: Module, args: tuple[Any, ...], train: bool = False) -> str:
    """What of a model its forward changes; empty if nothing.

    In training these are its attributes alone: parameters and buffers may be set and written to.

    Raises:
        ValueError: It changes its inputs.
    """
    before, tensors = state_of(plain, not train), tensors_in(args)
    versions, form = [version_of(t) for t in tensors], form_of(args)
    with torch.set_grad_enabled(train):
        plain(*args)
    if form != form_of(args) or versions != [version_of(t) for t in tensors]:
        raise ValueError(
            "model: got one that changes its inputs, wanted one that does not, since a CUDA graph "
            "and another layout read copies"
        )
    changed = change_of(before, state_of(plain, not train))
    return f"{CHANGES} {changed}" if changed else ""


def make_network(
    plain: Module, recipe: Recipe, facts: Facts, example: tuple[Any, ...], state: str
) -> InferenceModel:
    """The network, before anything is tuned; without an example for the facts of a recipe.

    ``state`` says what of the model its forward changes.
    """
    own = copied(plain)
    _drop_subclasses(own)
    traced = Traced(own, {"": state}) if state else trace_model(own)
    if traced.graph is not None and example:
        try:
            with torch.no_grad():
                run_with_shapes: Any = ShapeProp
                run_with_shapes(traced.graph).propagate(*example)
        except Exception as error:  # the graph is not right for an argument that is no tensor
            traced = Traced(copied(plain), {"": reason_of(error)})
    folded, graph = traced.module, traced.graph
    rewrites = Rewrites() if graph is None else fold(graph, facts)
    for tensor in (*folded.parameters(), *folded.buffers()):
        tensor.data = recipe.in_layout(tensor.data)
    tuned = folded if graph is None else _sharing_copy(folded)
    if isinstance(tuned, GraphModule):
        rewrites = fuse(tuned, facts, rewrites)
        lay_out(tuned, recipe.layout, recipe.layouts)
    convert(tuned, exclude=is_left)
    recipe.untraced = traced.whole.get("", "")
    # A model has one state.
    untuned = tuned if recipe.untraced.startswith(CHANGES) else _sharing_copy(tuned)
    set_policies(tuned.modules(), recipe.tuned_policy)
    set_policies(untuned.modules(), recipe.untuned_policy)
    report = OptimizationReport(type(plain).__name__, rewrites, traced.whole, recipe.layout)
    report.layouts = recipe.layouts
    report.torch_compile = _reason_against_compiling(recipe, traced)
    return InferenceModel(plain, tuned, untuned, folded, recipe, report)


def _drop_subclasses(model: Module) -> None:
    """Turn a layer into one of ``torch.nn`` where its subclass changes no computation."""
    for module in model.modules():
        own, ours = type(module), counterpart(type(module))
        base = own if ours is None else ours.replaces
        added = {
            k: v for cls in own.__mro__[: own.__mro__.index(base)] for k, v in vars(cls).items()
        }
        read = {*dir(base), *vars(module), *registered_names(module)} - vars(_Subclass).keys()
        # Of a property the name alone does not tell whether the parent reads it.
        if added and not added.keys() & read and not any(map(isdatadescriptor, added.values())):
            exchange(module, base)


class _Subclass(Module):
    """What every class has that computes nothing else than its parent."""

    attribute: int

    def __init__(self) -> None:
        super().__init__()


def _sharing_copy(network: Module) -> Module:
    """A copy that holds the same tensors."""
    return copied(network, {id(t): t for t in (*network.parameters(), *network.buffers())})


def _reason_against_compiling(recipe: Recipe, traced: Traced) -> str:
    if not recipe.torch_compile:
        return "torch_compile=False"
    if traced.graph is None and not traced.whole:
        return "the model is one layer"
    if any(isinstance(one, torch.nn.RNNBase) for one in traced.module.modules()):
        return "torch.compile takes no recurrent networks"
    return f"{names_text(traced.whole)} was not traced" if traced.whole else ""


def names_text(whole: Iterable[str]) -> str:
    """The names of modules in a sentence."""
    return ", ".join(name or "the model" for name in whole)


def make_mixed_network(fast: InferenceModel, facts: Facts) -> GraphModule:
    """The network to be compiled, as the recipe says, with the rest left to Inductor."""
    recipe, network = fast._recipe, cast("GraphModule", _sharing_copy(fast._folded))
    fuse(network, facts, fast.report.rewrites, recipe.separate)
    lay_out(network, recipe.layout, recipe.layouts)
    left = targets_of(network, recipe.left)
    convert(network, exclude=lambda name, module: name in left or _is_compiled(module))
    set_policies(network.modules(), recipe.tuned_policy)
    return network


def is_left(_name: str, module: Module) -> bool:
    """Whether a layer stays PyTorch's: it is complex or quantised, or ours is not faster."""
    if any(not t.is_floating_point() for t in module.parameters(recurse=False)):
        return True
    return any(not family.gains for family in _families_of(module))


def _is_compiled(module: Module) -> bool:
    """Whether a layer is left to Inductor."""
    is_slower = any(not family.gains_over_compiler for family in _families_of(module))
    return is_slower or is_left("", module)


def _families_of(module: Module) -> list[Family]:
    """The family of what a layer would become; none of a module that holds others."""
    steps = conversion_steps(module) if next(module.children(), None) is None else []
    return [
        family_named(s.becomes.family)
        for s in steps
        if s.becomes and issubclass(s.becomes, nn.Tunable)
    ]


def new_training_report(model: Module, recipe: Recipe) -> OptimizationReport:
    """A report of a network in which nothing is rewritten, captured or compiled."""
    name, off = type(model).__name__, "train=True"
    return OptimizationReport(name, Rewrites(), {}, recipe.layout, off, off, train=True)


def set_policies(modules: Iterable[Module], text: str) -> None:
    """Set the policy of all layers that have none of their own."""
    for layer in modules:
        if isinstance(layer, nn.Tunable) and not layer._draws and layer.policy is None:
            layer.policy = own_text(text_for_all(text), layer.family)
