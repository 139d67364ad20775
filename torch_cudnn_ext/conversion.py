"""Exchange a network's layers for those of this package, and back.

    convert(model)                      # every layer that has a counterpart in torch_cudnn_ext.nn
    convert(model, policy="autotune", exclude=lambda name, module: name.startswith("head"))
    convert(model, to="torch")          # back: policies are dropped, all else stays
    for step in conversion_steps(model):
        print(step.name, step.becomes, step.reason)

A layer is exchanged by changing its class in place. The module stays the object that it was, with
its parameters, buffers, hooks, attributes and training flag; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch.nn.utils.parametrize import is_parametrized

from . import nn
from .policy import Policy, PolicyLike, as_policy

Model = TypeVar("Model", bound=torch.nn.Module)
Side = Literal["cudnn", "torch"]
_EVERY_CLASS = set(vars(type("_", (), {})))
Exclude = Callable[[str, torch.nn.Module], object]


@dataclass(frozen=True)
class Step:
    """What a conversion does with one module.

    Attributes:
        name: Its qualified name; ``""`` for the model itself.
        module: The module.
        becomes: Its class afterwards; ``None`` where it is left alone.
        reason: Why it is left alone.
    """

    name: str
    module: torch.nn.Module
    becomes: type[torch.nn.Module] | None
    reason: str = ""


def counterparts() -> dict[type[torch.nn.Module], type[nn.Tunable]]:
    """The classes of ``torch.nn`` that have a counterpart in ``torch_cudnn_ext.nn``."""
    classes = (getattr(nn, name) for name in nn.__all__)
    return {cls.replaces: cls for cls in classes if "replaces" in vars(cls)}


def convert(
    model: Model,
    to: Side = "cudnn",
    exclude: Exclude | None = None,
    policy: PolicyLike = None,
) -> Model:
    """Exchange every layer of a model that has a counterpart, the model itself included.

    Layers of exactly a class of ``torch.nn`` (or, back, of exactly a class of this package) are
    exchanged, in place. `conversion_steps` tells which are left alone, and why. A layer that is
    already on the wanted side keeps its policy.

    Args:
        model: Any module. One that occurs several times in it is still one module afterwards.
        to: ``cudnn`` for the classes of this package, ``torch`` for PyTorch's.
        exclude: Called with the qualified name and the module; where it gives something truthy, the
            module and all within it are left untouched.
        policy: The policy of the layers that become this package's.

    Returns:
        The model that was given.

    Raises:
        ValueError: ``to`` is another word; or the policy does not fit a layer that it would be for,
            or comes with ``to="torch"``. Then nothing has been changed.
    """
    if policy is not None and to == "torch":
        raise ValueError(f"convert: got policy {policy!r} with to='torch', wanted none")
    changes = [
        (step.module, step.becomes)
        for step in conversion_steps(model, to, exclude)
        if step.becomes is not None
    ]
    policies: dict[type[torch.nn.Module], Policy] = {
        cls: _checked_policy(policy, cls) for _, cls in changes if issubclass(cls, nn.Tunable)
    }
    for module, cls in changes:
        _exchange(module, cls, policies.get(cls))
    return model


def conversion_steps(
    model: torch.nn.Module, to: Side = "cudnn", exclude: Exclude | None = None
) -> list[Step]:
    """What `convert` would do: a step for each layer that it exchanges or leaves alone.

    Containers and layers that are already on the wanted side have none.

    Args:
        model: Any module.
        to: See `convert`.
        exclude: See `convert`.

    Raises:
        ValueError: ``to`` is another word.
    """
    ours = counterparts()
    if to == "cudnn":
        table: dict[type[torch.nn.Module], type[torch.nn.Module]] = dict(ours)
    elif to == "torch":
        table = {cls: replaced for replaced, cls in ours.items()}
    else:
        raise ValueError(f"convert: got to={to!r}, wanted 'cudnn' or 'torch'")
    return list(_steps(model, "", table, exclude, set()))


def _steps(
    module: torch.nn.Module,
    name: str,
    table: dict[type[torch.nn.Module], type[torch.nn.Module]],
    exclude: Exclude | None,
    seen: set[torch.nn.Module],
) -> Iterator[Step]:
    if module in seen:
        return
    seen.add(module)
    if exclude is not None and exclude(name, module):
        yield Step(name, module, None, "excluded")
        return
    if isinstance(module, torch.jit.ScriptModule):
        yield Step(name, module, None, "compiled by TorchScript")
        return
    reason = _reason(module, table)
    if reason is None:
        yield Step(name, module, table[type(module)])
    elif reason:
        yield Step(name, module, None, reason)
    for child_name, child in module.named_children():
        yield from _steps(child, f"{name}.{child_name}".lstrip("."), table, exclude, seen)


def _reason(
    module: torch.nn.Module, table: dict[type[torch.nn.Module], type[torch.nn.Module]]
) -> str | None:
    """Why a module is left alone, ``""`` where that says itself; ``None`` where it is exchanged."""
    cls = type(module)
    if cls in table:
        return "its forward was replaced" if "forward" in vars(module) else None
    if cls in table.values():
        return ""
    parent = next((base for base in cls.__mro__ if base in table), None)
    lazy = getattr(cls, "cls_to_become", None)
    if lazy in table:
        return f"not initialised yet: it becomes a {lazy.__name__} at its first call"
    if parent is not None and is_parametrized(module):
        return f"a parametrized {parent.__name__}"
    if parent is not None:
        return f"a subclass of {parent.__name__}"
    if issubclass(cls, nn.Tunable):
        return ""
    to_ours = any(issubclass(ours, nn.Tunable) for ours in table.values())
    has_children = next(module.children(), None) is not None
    return "" if has_children or not to_ours else "torch_cudnn_ext.nn has nothing for it"


def _checked_policy(policy: PolicyLike, cls: type[nn.Tunable]) -> Policy:
    """What a module would say of its policy is said before any has been changed."""
    trial = cls.__new__(cls)
    torch.nn.Module.__init__(trial)
    trial.policy = policy
    return as_policy(policy, cls.family)


def _exchange(
    module: torch.nn.Module, cls: type[torch.nn.Module], policy: Policy | None = None
) -> None:
    if isinstance(module, nn.Tunable):
        for name in _own_attributes(type(module)) & vars(module).keys():
            delattr(module, name)
    module.__class__ = cls
    if isinstance(module, nn.Tunable) and policy is not None and policy.text:
        module.policy = policy


def _own_attributes(cls: type[nn.Tunable]) -> set[str]:
    """The attributes that a class of this package has and the one that it replaces has not."""
    return {name for base in cls.__mro__ if issubclass(base, nn.Tunable) for name in vars(base)}


@contextmanager
def converted(model: torch.nn.Module) -> Iterator[None]:
    """For a while, the layers of a model are this package's, without policies of their own.

    So are those of subclasses that compute as their parent in ``torch.nn`` does.
    """
    changes = [
        (step.module, type(step.module), ours)
        for step in conversion_steps(model)
        if (ours := step.becomes or _class_for_a_while(step.module)) is not None
    ]
    try:
        for module, _, ours in changes:
            _exchange(module, ours)
        yield
    finally:
        for module, before, _ in changes:
            _exchange(module, before)


def _class_for_a_while(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """A subclass of a module's class and of this package's, where the two do not meet.

    It has no name to be pickled by, so that `convert` has no use for it.
    """
    cls, table = type(module), counterparts()
    parent = next((base for base in cls.__mro__ if base in table), None)
    if parent is None or is_parametrized(module) or "forward" in vars(module):
        return None
    ours = table[parent]
    added = cls.__mro__[: cls.__mro__.index(parent)]
    computes = {"forward", "_conv_forward"} | _own_attributes(ours) - {"__init__"}
    if any(computes & vars(base).keys() - _EVERY_CLASS for base in added):
        return None
    return type(cls.__name__, (ours, cls), {})
