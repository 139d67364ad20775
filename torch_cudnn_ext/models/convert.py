"""Exchange a network's layers for those of this package, and back.

    convert(model)                      # every layer that has a counterpart in torch_cudnn_ext.nn
    convert(model, policy="autotune", exclude=lambda name, module: name.startswith("head"))
    convert(model, to="torch")          # back: policies are dropped, all else stays
    for step in conversion_steps(model):
        print(step.name, step.becomes, step.reason)

A layer is exchanged by changing its class in place. The module stays the object that it was, with
its parameters, buffers, hooks, attributes and training flag; nothing is copied. A pin is such an
exchange too, for a hidden class (`Pinned`): what a pinned layer keeps of its policy is its pin's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations, signature
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from torch_cudnn_ext import nn
from torch_cudnn_ext.policy import (
    PolicyLike,
    check_named_pins,
    others_spoken_of,
    own_text,
    plain_text,
)

Model = TypeVar("Model", bound=torch.nn.Module)
Side = Literal["cudnn", "torch"]
Exclude = Callable[[str, torch.nn.Module], object]

# What a class that was made of another, on other bases, and that one keep of each other; and what
# there was in both at last.
_MADE_FROM, _MADE, _KNOWN = "_made_from", "_made", "_known"

# What these classes, on their fast paths, compute of their layers without calling them; and the
# attribute of each that keeps it off that path when it is false.
_FAST_PATHS: dict[type[torch.nn.Module], str] = {
    torch.nn.TransformerEncoderLayer: "activation_relu_or_gelu",
    torch.nn.TransformerEncoder: "use_nested_tensor",
}
_FAST = "_torch_cudnn_ext_fast_path"  # what that attribute was


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


@cache
def counterparts() -> dict[type[torch.nn.Module], type[nn.Tunable]]:
    """The classes of ``torch.nn`` that have a counterpart in ``torch_cudnn_ext.nn``."""
    classes = (getattr(nn, name) for name in nn.__all__)
    return {cls.replaces: cls for cls in classes if "replaces" in vars(cls)}


def counterpart(cls: type[torch.nn.Module]) -> type[nn.Tunable] | None:
    """The counterpart of a class, or of the one in ``torch.nn`` that it is a subclass of."""
    table = counterparts()
    return next((table[base] for base in cls.__mro__ if base in table), None)


def convert(
    model: Model,
    to: Side = "cudnn",
    exclude: Exclude | None = None,
    policy: PolicyLike = None,
) -> Model:
    """Exchange every layer of a model that has a counterpart, the model itself included.

    Layers of exactly a class of ``torch.nn`` (or, back, of exactly a class of this package) are
    exchanged, in place. `conversion_steps` tells which are left alone, and why. A layer that is
    already on the wanted side keeps its policy. A pinned layer is left alone either way, and its
    pin goes on to hold: call `clear_pins` first.

    ``torch.nn.TransformerEncoderLayer`` and ``TransformerEncoder`` are kept from their fast paths,
    which would not call their layers, as long as layers in them are this package's or pinned. Give
    the outermost of these: an encoder around the model is not seen, and may hand its layers nested
    tensors, which they then cannot take.

    Args:
        model: Any module. One that occurs several times in it is still one module afterwards.
        to: ``cudnn`` for the classes of this package, ``torch`` for PyTorch's.
        exclude: Called with the qualified name and the module, under each of its names; where it
            gives something truthy, the module and all within it are left untouched.
        policy: The policy of the layers that become this package's.

    Returns:
        The model that was given.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: ``to`` is another word; or the policy does not fit a layer that it would be for,
            or none of the layers, or pins one to an algorithm that its operator has not and would
            not fall back, or comes with ``to="torch"``. Then nothing has been changed.
    """
    if policy is not None and to == "torch":
        raise ValueError(f"convert: got policy {policy!r} with to='torch', wanted none")
    changes = [
        (step.module, step.becomes)
        for step in conversion_steps(model, to, exclude)
        if step.becomes is not None
    ]
    check_named_pins(policy)
    read = {cls: cls._checked(policy).text for _, cls in changes if issubclass(cls, nn.Tunable)}
    others = [others_spoken_of(text, cls.family) for cls, text in read.items()]
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

    Containers and layers that are already on the wanted side have none.

    Args:
        model: Any module.
        to: See `convert`.
        exclude: See `convert`.

    Raises:
        TypeError: ``model`` is no module, or ``exclude`` cannot be called.
        ValueError: ``to`` is another word.
    """
    check_model("convert", model)
    if exclude is not None and not _takes_two(exclude):
        raise TypeError(
            f"convert: argument exclude: got {exclude!r} ({type(exclude).__name__}), "
            "wanted a function of a name and a module"
        )
    ours = counterparts()
    if to == "cudnn":
        table: dict[type[torch.nn.Module], type[torch.nn.Module]] = dict(ours)
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
    """Whether it can be called with two arguments, as far as it tells."""
    try:
        signature(function).bind(None, None)
    except TypeError:  # what cannot be called is none, too
        return False
    except ValueError:  # some functions of C tell nothing
        return True
    return True


def check_model(function: str, model: object) -> None:
    """Raises TypeError where what came for a model is no module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}: argument model: got {model!r:.60} ({type(model).__name__}), "
            "wanted a torch.nn.Module"
        )


def unwrapped_model(function: str, model: torch.nn.Module) -> torch.nn.Module:
    """The module inside what ``torch.compile`` made, or inside DistributedDataParallel.

    Raises:
        TypeError: ``model`` is no module.
    """
    check_model(function, model)
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if "_orig_mod" in model._modules:
            model = model._modules["_orig_mod"]  # type: ignore[assignment]
        elif isinstance(model, parallel):
            model = model.module
        else:
            return model


def eager_model(function: str, model: torch.nn.Module) -> torch.nn.Module:
    """`unwrapped_model`, to be run layer by layer.

    Raises:
        TypeError: ``model`` is no module, or was made by TorchScript in part or whole.
        ValueError: A lazy layer of it is not initialised.
    """
    model = unwrapped_model(function, model)
    for name, module in model.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(map(is_lazy, own)):
            raise ValueError(
                f"{function}: argument model: got {name or 'a model'}, a {type(module).__name__} "
                "that is not initialised, wanted a model that was called once"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{function}: argument model: got {name or 'a model'} compiled by TorchScript, "
                "wanted the module that it was made of"
            )
    return model


def _steps(
    module: torch.nn.Module,
    name: str,
    table: dict[type[torch.nn.Module], type[torch.nn.Module]],
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


def _reason(
    module: torch.nn.Module, table: dict[type[torch.nn.Module], type[torch.nn.Module]]
) -> str | None:
    """Why a module is left alone, ``""`` where that says itself; ``None`` where it is exchanged."""
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


# Changing classes.


@contextmanager
def all_or_none(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Modules get their classes and attributes back where not all could be changed."""
    before = [(module, type(module), dict(vars(module))) for module in modules]
    try:
        yield
    except BaseException:
        for module, cls, kept in before:
            object.__setattr__(module, "__class__", cls)
            vars(module).clear()
            vars(module).update(kept)
        raise


def exchange(module: torch.nn.Module, cls: type[torch.nn.Module]) -> dict[str, Any]:
    """Change a module's class; gives what only its former one kept in it, and takes that out."""
    kept = vars(module)
    taken = {name: kept.pop(name) for name in _kept_by_ours(type(module)) & kept.keys()}
    object.__setattr__(module, "__class__", cls)  # whatever a __setattr__ of its own would say
    return taken


def _kept_by_ours(cls: type[torch.nn.Module]) -> set[str]:
    """The names of what a module of a class keeps in itself for classes of this package.

    These give its type and its default.
    """
    return {
        name
        for base in _bases_of_ours(cls)
        for name, kind in get_annotations(base).items()
        if name in vars(base) and "ClassVar" not in str(kind)
    }


def _bases_of_ours(cls: type[torch.nn.Module]) -> list[type[torch.nn.Module]]:
    return [base for base in cls.__mro__ if issubclass(base, nn.Tunable)]


def _overridden(ours: type[nn.Tunable]) -> set[str]:
    """What our class computes in place of its parent; what else there is calls that."""
    named = {name for base in _bases_of_ours(ours) for name in vars(base)}
    named = {name for name in named if not name.startswith("__")}
    return named - {"_apply", "extra_repr", "flatten_parameters"} | {"forward"}


def _found_in(cls: type[torch.nn.Module], name: str) -> Any:
    """What a class has by this name, itself or from a base, as it stands there; or ``None``."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _methods_of_pytorch() -> dict[type[torch.nn.Module], dict[str, Any]]:
    """What our classes compute in place of, by the class in ``torch.nn`` and the name."""
    return {
        theirs: {name: _found_in(theirs, name) for name in _overridden(ours)}
        for theirs, ours in counterparts().items()
    }


def obstacle(module: torch.nn.Module, ours: type[nn.Tunable]) -> str:
    """Why a layer of PyTorch's, or of a subclass, would not compute by our class; or empty."""
    named = _overridden(ours)
    held = {*vars(module), *module._parameters, *module._buffers, *module._modules}
    for name in sorted(named & held - _kept_by_ours(type(module))):
        return f"its {name} was replaced" if name == "forward" else f"it has a {name} of its own"
    cls = class_without_pin(module)
    lazy = getattr(cls, "cls_to_become", None)
    if lazy is not None:
        return f"it is not initialised: it becomes a {lazy.__name__} at its first call"
    for base in cls.__mro__[: cls.__mro__.index(ours.replaces)]:
        for name in sorted(named & vars(base).keys()):
            return f"its {name} is of {base.__name__}"
    for name, method in _AT_IMPORT[ours.replaces].items():
        if _found_in(ours.replaces, name) is not method:
            return f"the {name} of torch.nn.{ours.replaces.__name__} was replaced"
    return ""


class Pinned(nn.Tunable):
    """What the hidden classes of pinned layers begin with; `pinned_class` makes them.

    A pinned layer is a module of this package's in all but its looks.
    """

    _plain: ClassVar[type[torch.nn.Module]]
    _pin: Any = None

    @property
    def policy(self) -> str | None:
        """The pin's text; raises AttributeError on setting, since the pin alone says it."""
        return self._policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        raise AttributeError(
            f"policy: got {policy!r} for a pinned {type(self).__name__}, wanted apply_pins(), or "
            "clear_pins() first"
        )

    def obey(self, pin: Any) -> None:
        """Be pinned by this from now on; its policy's text was checked."""
        self._pin = pin
        self._policy = pin.text
        self._policy_changed()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """A layer that is made like a pinned one has no pin."""
        plain: type[torch.nn.Module] = self._plain
        if "_plain" in vars(type(self)):
            self.__class__ = plain  # type: ignore[assignment]
        plain.__init__(self, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """No name finds a hidden class: the layer is made anew without its pin, and pinned."""
        made: Any = super().__reduce_ex__(protocol)
        make, args, *state = made
        make, *args = (self._plain if one is type(self) else one for one in (make, *args))
        return _made_and_pinned, (self._plain, self._pin, make, *args), *state

    def extra_repr(self) -> str:
        """As without a pin."""
        return self._plain.extra_repr(self)


def _made_and_pinned(
    plain: type[torch.nn.Module], pin: Any, make: Callable[..., torch.nn.Module], *args: Any
) -> torch.nn.Module:
    module = make(*args)
    if type(module) is plain:  # a user's own function may make any
        exchange(module, pinned_class(plain))
        if isinstance(module, Pinned) and pin is not None:
            module.obey(pin)
    return module


def pinned_class(plain: type[torch.nn.Module]) -> type[Pinned]:
    """The class of pinned layers of a class; it goes by that one's name."""
    if plain not in _pinned_classes:  # one each: what is compiled looks for the same class again
        ours = counterpart(plain)
        assert ours is not None
        looks = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
        made = hidden_class(plain.__name__, (Pinned, ours, plain), {**looks, "_plain": plain})
        _pinned_classes[plain] = made
    return _pinned_classes[plain]


def hidden_class(name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type[Any]:
    """A class that stands in for one of its bases, whose ``__init_subclass__`` is not called."""
    return type(name, bases, {**namespace, "_is_hidden": True})


_pinned_classes: dict[type[torch.nn.Module], type[Pinned]] = {}


def class_without_pin(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that a module has, or would have without its pin."""
    return _without_pin(type(module))


def _without_pin(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    if not issubclass(cls, Pinned):
        return cls
    if "_plain" in vars(cls):
        return cls._plain
    # PyTorch put a class upon the hidden one: ``parametrize`` does, and ``fully_shard``.
    return _made_on(cls, *map(_without_pin, cls.__bases__))


def class_with_pin(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that a module has with a pin, or would have."""
    if isinstance(module, Pinned):
        return type(module)
    return _with_own_class(module, pinned_class)


def _with_own_class(
    module: torch.nn.Module, made_of: Callable[[type[torch.nn.Module]], type[torch.nn.Module]]
) -> type[torch.nn.Module]:
    """A module's class with another in place of its own, without its pin."""
    cls = class_without_pin(module)
    # ``parametrize`` put its class upon the module's, and later takes it off.
    if is_parametrized(module) and counterpart(cls.__bases__[0]) is not None:
        return _made_on(cls, made_of(cls.__bases__[0]))
    return made_of(cls)


def _made_on(cls: type[torch.nn.Module], *bases: type) -> type[torch.nn.Module]:
    """A class like this one, on other bases: the same for the same, and back to the first one."""
    first: type[torch.nn.Module] = vars(cls).get(_MADE_FROM, cls)
    if first is not cls:
        _pass_on(cls, first)
    if first.__bases__ == bases:
        return first
    made: dict[tuple[type, ...], type[torch.nn.Module]] = vars(first).get(_MADE, {})
    if bases in made:
        _pass_on(first, made[bases])
    else:
        own = _own(first)
        made[bases] = type(cls.__name__, bases, {**own, _MADE_FROM: first, _KNOWN: own})
        setattr(first, _MADE, made)
    return made[bases]


def _own(cls: type[torch.nn.Module]) -> dict[str, Any]:
    left = ("__dict__", "__weakref__", "__doc__", _MADE_FROM, _MADE, _KNOWN)
    return {name: value for name, value in vars(cls).items() if name not in left}


def _pass_on(source: type[torch.nn.Module], target: type[torch.nn.Module]) -> None:
    """What changed in one of the two since both were alike: a parametrization adds to its class."""
    made = source if _MADE_FROM in vars(source) else target
    known, now = vars(made)[_KNOWN], _own(source)
    for name in known.keys() - now.keys():
        if name in vars(target):
            delattr(target, name)
    for name, value in now.items():
        if name not in known or known[name] is not value:
            setattr(target, name, value)
    setattr(made, _KNOWN, now)


def settle_fast_paths(modules: Iterable[torch.nn.Module]) -> None:
    """Keep modules of PyTorch's off their fast paths while layers in them are of this package."""
    for module in modules:
        kept = vars(module)
        name = next((n for cls, n in _FAST_PATHS.items() if isinstance(module, cls)), None)
        if name is None:
            continue
        if any(isinstance(layer, nn.Tunable) for layer in module.modules()):
            if kept.get(name):
                kept[_FAST], kept[name] = kept[name], False
        elif _FAST in kept:
            kept[name] = kept.pop(_FAST)


@contextmanager
def converted(model: torch.nn.Module, policy: str | None = None) -> Iterator[None]:
    """For a while, the layers of a model are this package's.

    So are those of subclasses that compute as their parent in ``torch.nn`` does, and pinned ones:
    their pins, and what these have chosen, are set aside meanwhile. What changes has the policy;
    but dropouts have none, which would draw other random numbers under it.
    """
    changes = [
        (step.module, ours)
        for step in conversion_steps(model)
        if (ours := step.becomes or _class_for_a_while(step.module)) is not None
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


def _class_for_a_while(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """A subclass of a module's class and of this package's, where the two do not meet.

    It has no name to be pickled by, so that `convert` has no use for it.
    """
    cls = class_without_pin(module)
    ours = counterpart(cls)
    if ours is None or issubclass(cls, nn.Tunable):
        return None
    if cls is ours.replaces:
        return ours if isinstance(module, Pinned) else None
    return None if obstacle(module, ours) else _with_own_class(module, _standing_in)


def _standing_in(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The counterpart of a class in ``torch.nn``, or that of a subclass of one."""
    ours = counterpart(cls)
    assert ours is not None
    if cls is ours.replaces:
        return ours
    if cls not in _standing_classes:  # one each, as of pinned layers
        _standing_classes[cls] = hidden_class(cls.__name__, (ours, cls), {})
    return _standing_classes[cls]


_standing_classes: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


_AT_IMPORT = _methods_of_pytorch()
