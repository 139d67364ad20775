"""The module that `optimize` makes for training, and the model's own code with our layers."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any, Self

from torch.nn import Module

from torch_cudnn_ext import nn
from torch_cudnn_ext._optimize.forms import autocast_now, form_of, sizes_of
from torch_cudnn_ext._optimize.making import is_left, set_policies
from torch_cudnn_ext._optimize.optimized import OptimizedModel
from torch_cudnn_ext._optimize.recipe import Recipe, Way
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._torch_internals import (
    has_hooks,
    own_modules,
    share_children,
    share_tensors,
)
from torch_cudnn_ext._workload.model_state import modules_of, own_tensors
from torch_cudnn_ext._workload.pytree import instances_in, map_tensors
from torch_cudnn_ext.models.classes import Pinned
from torch_cudnn_ext.models.convert import conversion_steps, convert


class Twin:
    """A model's own code with layers of this package, on the model's tensors.

    Modules that hold none of these layers are the model's own. All others are copies, whose
    parameters, buffers and other attributes are the model's objects.

    Attributes:
        network: The code.
    """

    def __init__(self, model: Module, policy: str) -> None:
        """Layers that have no policy of their own get this one."""
        steps = conversion_steps(model, exclude=is_left)
        ours = {step.module for step in steps if step.becomes is not None}
        ours |= {m for m in model.modules() if isinstance(m, nn.Tunable)}
        ours -= {m for m in model.modules() if isinstance(m, Pinned)}
        kept = {m for m in modules_of(model) if ours.isdisjoint(m.modules())}
        twins = _twins_of([m for m in modules_of(model) if m not in kept])
        self._pairs = [
            (module, type(module), dict(own_modules(module)), twins[module])
            for module in model.modules()
            if module in twins
        ]
        network = twins.get(model, model)
        self.network = convert(network, exclude=is_left) if ours else network
        set_policies((twin for *_, twin in self._pairs), policy)

    @property
    def has_layers(self) -> bool:
        """Whether there is a layer of this package."""
        return bool(self._pairs)

    def follow(self) -> bool:
        """Bring the layers' modes up to date; false if the twin is not the model's any more."""
        for module, kind, children, twin in self._pairs:
            if type(module) is not kind or own_modules(module) != children or has_hooks(module):
                return False
            vars(twin)["training"] = module.training
        return True


def _twins_of(modules: list[Module]) -> dict[Module, Module]:
    """Shallow copies of modules, which hold each other in place of those.

    What is not copied, such as a list that a forward appends to, is the model's.
    """
    twins = {module: object.__new__(type(module)) for module in modules}
    memo: dict[int, Any] = {id(module): twin for module, twin in twins.items()}
    memo |= {id(t): t for module in modules for t in own_tensors(module)}
    memo |= {id(one): one for module in modules for one in modules_of(module) if one not in twins}
    for module, twin in twins.items():
        attributes = vars(twin)
        for name, value in vars(module).items():
            held = value.__self__ if isinstance(value, MethodType) else value
            is_held = any(one in twins for one in instances_in(held, Module))
            attributes[name] = copy.deepcopy(value, memo) if is_held else value
    return twins


class TrainingModel(OptimizedModel):
    """A network for training."""

    _model: Module

    def __init__(self, model: Module, recipe: Recipe, report: OptimizationReport) -> None:
        """For `optimize` alone. The model's filters get the recipe's layout."""
        super().__init__()
        vars(self)["_model"] = model  # which is not a child: the keys of the state are the model's
        share_tensors(self, model)
        share_children(self, model)
        self._recipe, self.report = recipe, report
        self._twins: dict[bool, Twin] = {}
        if report.way is Way.optimized:
            for tensor in model.parameters():
                tensor.data = recipe.in_layout(tensor.data)
            policies = {True: recipe.tuned_policy, False: recipe.untuned_policy}
            self._twins = {is_tuned: Twin(model, text) for is_tuned, text in policies.items()}

    @property
    def model(self) -> Module:
        """The model that it trains."""
        return self._model

    @property
    def has_layers(self) -> bool:
        """Whether a layer of it can be one of this package."""
        return self._twins[False].has_layers

    @property
    def twins(self) -> list[Module]:
        """The model's code with layers of this package."""
        return [twin.network for twin in self._twins.values()]

    @property
    def untuned(self) -> Module:
        """The model's code with layers of this package, for sizes that are not tuned."""
        return self._twins[False].network

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self._model.training if "_model" in vars(self) else True

    @training.setter
    def training(self, mode: bool) -> None:
        if "_model" in vars(self):
            self._model.training = mode

    def run(self, way: Way, /, *args: Any, **kwargs: Any) -> Any:
        """Compute it in one of the ways."""
        if way is Way.optimized and self._twins and self._model.training:
            twin = self._twins[self._is_as_tuned(args, kwargs)]
            if twin.follow():
                in_layout = self._recipe.in_layout
                return twin.network(*map_tensors(in_layout, args), **map_tensors(in_layout, kwargs))
        return self._model(*args, **kwargs)

    def _is_as_tuned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        recipe = self._recipe
        is_form = not kwargs and form_of(args) == recipe.form and sizes_of(args) in recipe.shapes
        return is_form and autocast_now() == recipe.autocast

    def train(self, mode: bool = True) -> Self:
        """Put the model into training mode, or into evaluation."""
        self._model.train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._model._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the model's state."""
        return self._model.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._model._load_from_state_dict(*args)
