"""Exchange a network's layers for those of this package, and back.

    convert(model)                      # every layer that has a counterpart in torch_cudnn_ext.nn
    convert(model, policy="autotune", exclude=lambda name, module: name.startswith("head"))
    convert(model, to="torch")          # back: policies are dropped, all else stays
    for step in conversion_steps(model):
        print(step.name, step.becomes, step.reason)

This module decides which layers are exchanged, and for which class; see `classes` for how.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal, TypeVar

import torch
from torch.nn.utils.parametrize import is_parametrized

from torch_cudnn_ext import nn
from torch_cudnn_ext._policy_text import expanded, fields_of, foreign_operators, own_text
from torch_cudnn_ext.models.checks import check_model
from torch_cudnn_ext.models.classes import (
    Pinned,
    all_or_none,
    counterparts,
    exchange,
    obstacle,
    settle_fast_paths,
    temporary_class,
)
from torch_cudnn_ext.policy import PolicyLike, as_policy, check_named_pins, plain_text

Model = TypeVar("Model", bound=torch.nn.Module)
Side = Literal["cudnn", "torch"]
Exclude = Callable[[str, torch.nn.Module], object]
_Table = dict[type[torch.nn.Module], type[torch.nn.Module]]


@dataclass(frozen=True)
class Step:
    """What a conversion does with one module.

    Attributes:
        name: Its qualified name; ``""`` for the model itself.
        module: The module.
        becomes: Its class afterwards; ``None`` if it is left alone.
        reason: Why it is left alone.
    """

    name: str
    module: torch.nn.Module
    becomes: type[torch.nn.Module] | None
    reason: str = ""


def convert(
    model: Model,
    to: Side = "cudnn",
    exclude: Exclude | None = None,
    policy: PolicyLike = None,
) -> Model:
    """Exchange every layer of a model that has a counterpart, the model itself included.

    A layer is exchanged in place if its class is exactly a class of ``torch.nn`` or, on the way
    back, exactly a class of this package. `conversion_steps` tells which layers are left alone, and
    why. A layer that is already on the wanted side keeps its policy. A pinned layer is left alone
    in both directions and keeps its pin: call `clear_pins` first.

    ``torch.nn.TransformerEncoderLayer`` and ``TransformerEncoder`` have fast paths that do not call
    their layers. These are disabled while the layers are this package's or pinned. Give the
    outermost of these modules: an encoder around the model keeps its fast path, and may hand its
    layers nested tensors, which they do not take.

    Args:
        model: Any module. A module that occurs several times in it is still one module afterwards.
        to: ``cudnn`` for the classes of this package, ``torch`` for PyTorch's.
        exclude: A function of the qualified name and the module, called for each name of a module.
            A true result leaves the module and all within it untouched.
        policy: The policy of the layers that become this package's.

    Returns:
        The model that was given.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: ``to`` is another word; or the policy does not fit a layer that it would be for,
            fits none of the layers, pins an algorithm that an operator does not have and does not
            fall back, or comes with ``to="torch"``. Nothing is changed then.

    Example:
        >>> model = convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)), policy="autotune")
        >>> type(model[0]) is nn.Conv2d, model[0].policy.partition(";")[0]
        (True, 'fwd=autotune')
        >>> type(convert(model, to="torch")[0]) is torch.nn.Conv2d
        True
    """
    if policy is not None and to == "torch":
        raise ValueError(f"convert: got policy {policy!r} with to='torch', wanted none")
    changes = [
        (step.module, step.becomes)
        for step in conversion_steps(model, to, exclude)
        if step.becomes is not None
    ]
    if isinstance(policy, str):
        policy = ";".join(one for word in fields_of(policy) for one in expanded(word, "conv"))
    check_named_pins(policy)
    ours = [cls for _, cls in changes if issubclass(cls, nn.Tunable)]
    read = {cls: as_policy(policy, cls.family).text for cls in ours}
    others = [foreign_operators(text, cls.family) for cls, text in read.items()]
    if others and all(others):
        families = ", ".join(dict.fromkeys(cls.family for cls in read))
        raise ValueError(
            f"convert: got policy {policy!r}, which chooses for {', '.join(others[0])} alone, "
            f"wanted one for layers of {families}"
        )
    policies: dict[type[torch.nn.Module], str] = {
        cls: own_text(text, cls.family) for cls, text in read.items()
    }
    with all_or_none(module for module, _ in changes):
        for module, cls in changes:
            exchange(module, cls)
            if isinstance(module, nn.Tunable) and policies[cls]:
                module.policy = policies[cls]
    settle_fast_paths(model.modules())
    return model


def conversion_steps(
    model: torch.nn.Module, to: Side = "cudnn", exclude: Exclude | None = None
) -> list[Step]:
    """What `convert` would do: a step for each layer that it exchanges or leaves alone.

    Containers and layers that are already on the wanted side have no step.

    Args:
        model: Any module.
        to: See `convert`.
        exclude: See `convert`.

    Raises:
        TypeError: ``model`` is no module, or ``exclude`` cannot be called.
        ValueError: ``to`` is another word.

    Example:
        >>> steps = conversion_steps(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)))
        >>> [(step.name, step.becomes.__name__) for step in steps]
        [('0', 'Conv2d')]
    """
    check_model("convert", model)
    if exclude is not None and not _takes_two(exclude):
        raise TypeError(
            f"convert: argument exclude: got {exclude!r} ({type(exclude).__name__}), "
            "wanted a function of a name and a module"
        )
    ours = counterparts()
    if to == "cudnn":
        table: _Table = dict(ours)
    elif to == "torch":
        table = {cls: replaced for replaced, cls in ours.items()}
    else:
        raise ValueError(f"convert: got to={to!r}, wanted 'cudnn' or 'torch'")
    excluded: set[torch.nn.Module] = set()
    if exclude is not None:
        for name, module in model.named_modules(remove_duplicate=False):
            if module not in excluded and exclude(name, module):
                excluded.update(module.modules())
    return list(_steps(model, "", table, excluded, set()))


def _takes_two(function: Any) -> bool:
    """Whether a function takes two arguments, as far as its signature is known."""
    try:
        signature(function).bind(None, None)
    except TypeError:  # also for what cannot be called
        return False
    except ValueError:  # some functions of C have no signature
        return True
    return True


def _steps(
    module: torch.nn.Module,
    name: str,
    table: _Table,
    excluded: set[torch.nn.Module],
    seen: set[torch.nn.Module],
) -> Iterator[Step]:
    if module in seen:
        return
    seen.add(module)
    if module in excluded:
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
        yield from _steps(child, f"{name}.{child_name}".lstrip("."), table, excluded, seen)


def _reason(module: torch.nn.Module, table: _Table) -> str | None:
    """Why a module is left alone, ``""`` if that needs no word; ``None`` if it is exchanged."""
    cls = type(module)
    to_ours = any(issubclass(ours, nn.Tunable) for ours in table.values())
    if isinstance(module, Pinned):
        return "pinned: clear_pins() first"
    if cls in table:
        other = table[cls]
        if issubclass(other, nn.Tunable):
            return obstacle(module, other) or None
        if "forward" in vars(module):
            return "its forward was replaced"
        return (module._reason_to_stay() or None) if isinstance(module, nn.Tunable) else None
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
        return "" if to_ours else "torch.nn has nothing for it"
    has_children = next(module.children(), None) is not None
    return "" if has_children or not to_ours else "torch_cudnn_ext.nn has nothing for it"


@contextmanager
def converted(model: torch.nn.Module, policy: str | None = None) -> Iterator[None]:
    """Inside a ``with`` block, the layers of a model are this package's and have a policy.

    This includes pinned layers, whose pins and first algorithms are set aside, and layers of
    subclasses that compute as their parent in ``torch.nn`` does. Dropouts get no policy, under
    which they would draw other random numbers.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
        >>> with converted(model):
        ...     type(model[0]) is nn.Conv2d
        True
    """
    changes = [
        (step.module, ours)
        for step in conversion_steps(model)
        if (ours := step.becomes or temporary_class(step.module)) is not None
    ]
    done = []
    try:
        for module, ours in changes:
            done.append((module, type(module), exchange(module, ours)))
            if isinstance(module, nn.Tunable) and not module._draws:
                text = plain_text(policy, module.family) or ""
                module.policy = own_text(text, module.family) or None
        settle_fast_paths(model.modules())
        yield
    finally:
        for module, before, taken in done:
            exchange(module, before)
            vars(module).update(taken)
        settle_fast_paths(model.modules())
