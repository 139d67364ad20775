"""Classes of layers: counterparts of PyTorch's, hidden classes of pinned layers, and exchanging.

A layer is exchanged by changing its class in place. The module stays the same object, with its
parameters, buffers, hooks, attributes and training flag; nothing is copied. This module does not
know which layers are to be exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar

import torch
from torch.nn.utils.parametrize import is_parametrized

from torch_cudnn_ext import nn
from torch_cudnn_ext._torch_internals import registered_names
from torch_cudnn_ext.policy import PolicyLike

# Attributes that `_rebased` sets on the classes that it derives, and on their originals.
_ORIGINAL, _DERIVED, _SHARED = "_rebased_from", "_rebased_classes", "_rebased_attributes"

# Classes whose fast path computes their layers without calling them, and the attribute of each
# that disables that path by being false.
_FAST_PATHS: dict[type[torch.nn.Module], str] = {
    torch.nn.TransformerEncoderLayer: "activation_relu_or_gelu",
    torch.nn.TransformerEncoder: "use_nested_tensor",
}
_FAST = "_torch_cudnn_ext_fast_path"  # keeps the value that this attribute had


@cache
def counterparts() -> dict[type[torch.nn.Module], type[nn.Tunable]]:
    """The classes of ``torch.nn`` that have a counterpart in ``torch_cudnn_ext.nn``."""
    classes = (getattr(nn, name) for name in nn.__all__)
    return {cls.replaces: cls for cls in classes if "replaces" in vars(cls)}


def counterpart(cls: type[torch.nn.Module]) -> type[nn.Tunable] | None:
    """The counterpart of a class of ``torch.nn`` or of a subclass of one."""
    table = counterparts()
    return next((table[base] for base in cls.__mro__ if base in table), None)


# Changing classes.


@contextmanager
def all_or_none(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Give all modules their classes and attributes back if an error leaves the block."""
    before = [(module, type(module), dict(vars(module))) for module in modules]
    try:
        yield
    except BaseException:
        for module, cls, attributes in before:
            object.__setattr__(module, "__class__", cls)
            vars(module).clear()
            vars(module).update(attributes)
        raise


def exchange(module: torch.nn.Module, cls: type[torch.nn.Module]) -> dict[str, Any]:
    """Change a module's class.

    Returns:
        The attributes that only the former class reads, which are removed from the module.
    """
    attributes = vars(module)
    own = _attributes_of_ours(type(module)) & attributes.keys()
    taken = {name: attributes.pop(name) for name in own}
    object.__setattr__(module, "__class__", cls)  # bypasses a __setattr__ of the module
    return taken


def settle_fast_paths(modules: Iterable[torch.nn.Module]) -> None:
    """Keep PyTorch's modules off their fast paths while they hold layers of this package."""
    for module in modules:
        attributes = vars(module)
        name = next((n for cls, n in _FAST_PATHS.items() if isinstance(module, cls)), None)
        if name is None:
            continue
        if any(isinstance(layer, nn.Tunable) for layer in module.modules()):
            if attributes.get(name):
                attributes[_FAST], attributes[name] = attributes[name], False
        elif _FAST in attributes:
            attributes[name] = attributes.pop(_FAST)


def _attributes_of_ours(cls: type[torch.nn.Module]) -> set[str]:
    """The instance attributes that classes of this package add: annotated, with a default."""
    return {
        name
        for base in _bases_of_ours(cls)
        for name, kind in get_annotations(base).items()
        if name in vars(base) and "ClassVar" not in str(kind)
    }


def _bases_of_ours(cls: type[torch.nn.Module]) -> list[type[torch.nn.Module]]:
    return [base for base in cls.__mro__ if issubclass(base, nn.Tunable)]


# Layers that would not run the code of our class.


def obstacle(module: torch.nn.Module, ours: type[nn.Tunable]) -> str:
    """Why a layer of PyTorch's, or of a subclass, would not run our class's code; or empty."""
    named = _overridden(ours)
    held = {*vars(module)} | registered_names(module)
    for name in sorted(named & held - _attributes_of_ours(type(module))):
        return f"its {name} was replaced" if name == "forward" else f"it has a {name} of its own"
    cls = class_without_pin(module)
    lazy = getattr(cls, "cls_to_become", None)
    if lazy is not None:
        return f"it is not initialised: it becomes a {lazy.__name__} at its first call"
    for base in cls.__mro__[: cls.__mro__.index(ours.replaces)]:
        for name in sorted(named & vars(base).keys()):
            return f"its {name} is of {base.__name__}"
    for name, method in _METHODS_AT_IMPORT[ours.replaces].items():
        if _found_in(ours.replaces, name) is not method:
            return f"the {name} of torch.nn.{ours.replaces.__name__} was replaced"
    return ""


def _overridden(ours: type[nn.Tunable]) -> set[str]:
    """The methods that our class overrides to compute, rather than to call its parent's."""
    named = {name for base in _bases_of_ours(ours) for name in vars(base)}
    named = {name for name in named if not name.startswith("__")}
    return named - {"_apply", "extra_repr", "flatten_parameters"} | {"forward"}


def _found_in(cls: type[torch.nn.Module], name: str) -> Any:
    """A class's own or inherited attribute as it is stored, without binding; ``None`` if none."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


# Hidden classes of pinned layers.


@dataclass(frozen=True)
class Pin:
    """What a pinned layer carries.

    Attributes:
        text: Its policy.
        patterns: By pass (``fwd``), the pattern that its selection comes from.
    """

    text: str
    patterns: Mapping[str, str]


class Pinned(nn.Tunable):
    """The first base of the hidden classes of pinned layers, which `pinned_class` makes.

    A pinned layer behaves as a module of this package and looks like one of its own class.
    """

    _plain: ClassVar[type[torch.nn.Module]]
    _pin: Pin | None = None

    @property
    def policy(self) -> str | None:
        """The pin's text. Setting it raises AttributeError, since only the pin decides it."""
        return self._policy

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        raise AttributeError(
            f"policy: got {policy!r} for a pinned {type(self).__name__}, wanted apply_pins(), or "
            "clear_pins() first"
        )

    def obey(self, pin: Pin) -> None:
        """Set the pin, whose policy the caller has checked."""
        self._pin = pin
        self._policy = pin.text
        self._policy_changed()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Construct a layer without a pin, for code that copies a pinned one by its class."""
        plain: type[torch.nn.Module] = self._plain
        if "_plain" in vars(type(self)):
            self.__class__ = plain  # type: ignore[assignment]
        plain.__init__(self, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the layer as one of its own class that is pinned after it was made.

        A hidden class cannot be pickled by name.
        """
        reduced: Any = super().__reduce_ex__(protocol)
        make, args, *state = reduced
        make, *args = (self._plain if one is type(self) else one for one in (make, *args))
        return _made_and_pinned, (self._plain, self._pin, make, *args), *state

    def extra_repr(self) -> str:
        """The line of the layer's own class, and the pin."""
        line: str = self._plain.extra_repr(self)
        if self._pin is None:
            return line
        return f"{line}{', ' if line else ''}pinned={self._pin.text!r}"


def _made_and_pinned(
    plain: type[torch.nn.Module],
    pin: Pin | None,
    make: Callable[..., torch.nn.Module],
    *args: Any,
) -> torch.nn.Module:
    module = make(*args)
    if type(module) is plain:  # a user's own function may make any module
        exchange(module, pinned_class(plain))
        if isinstance(module, Pinned) and pin is not None:
            module.obey(pin)
    return module


def pinned_class(plain: type[torch.nn.Module]) -> type[Pinned]:
    """The hidden class of pinned layers of a class, which has the name of that class."""
    if plain not in _pinned_classes:  # compiled code checks for the identical class
        ours = counterpart(plain)
        assert ours is not None
        looks = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
        made = _hidden_class(plain.__name__, (Pinned, ours, plain), {**looks, "_plain": plain})
        _pinned_classes[plain] = made
    return _pinned_classes[plain]


_pinned_classes: dict[type[torch.nn.Module], type[Pinned]] = {}


def _hidden_class(name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type[Any]:
    """Make a class without running the ``__init_subclass__`` of its bases."""
    return type(name, bases, {**namespace, "_is_hidden": True})


def class_without_pin(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that a module has, or would have without its pin."""
    return _without_pin(type(module))


def _without_pin(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    if not issubclass(cls, Pinned):
        return cls
    if "_plain" in vars(cls):
        return cls._plain
    # PyTorch derived a class from the hidden one, as ``parametrize`` and ``fully_shard`` do.
    return _rebased(cls, *map(_without_pin, cls.__bases__))


def class_with_pin(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that a module has, or would have, with a pin."""
    if isinstance(module, Pinned):
        return type(module)
    return _with_layer_class(module, pinned_class)


def temporary_class(module: torch.nn.Module) -> type[torch.nn.Module] | None:
    """A subclass of a module's class and of this package's, or ``None`` if they are incompatible.

    It cannot be pickled by name, so `convert` does not use it.
    """
    cls = class_without_pin(module)
    ours = counterpart(cls)
    if ours is None or issubclass(cls, nn.Tunable):
        return None
    if cls is ours.replaces:
        return ours if isinstance(module, Pinned) else None
    return None if obstacle(module, ours) else _with_layer_class(module, _merged_class)


def _merged_class(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The counterpart of a class of ``torch.nn``, or a hidden class for a subclass of one."""
    ours = counterpart(cls)
    assert ours is not None
    if cls is ours.replaces:
        return ours
    if cls not in _merged_classes:
        _merged_classes[cls] = _hidden_class(cls.__name__, (ours, cls), {})
    return _merged_classes[cls]


_merged_classes: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _with_layer_class(
    module: torch.nn.Module, derive: Callable[[type[torch.nn.Module]], type[torch.nn.Module]]
) -> type[torch.nn.Module]:
    """A module's class without its pin, and with ``derive`` applied to the layer's class."""
    cls = class_without_pin(module)
    # ``parametrize`` derives its class from the module's, and later removes it again.
    if is_parametrized(module) and counterpart(cls.__bases__[0]) is not None:
        return _rebased(cls, derive(cls.__bases__[0]))
    return derive(cls)


def _rebased(cls: type[torch.nn.Module], *bases: type) -> type[torch.nn.Module]:
    """A copy of a class, with other bases.

    The same bases give the same class, and the original bases give the original class.
    """
    original: type[torch.nn.Module] = vars(cls).get(_ORIGINAL, cls)
    if original is not cls:
        _synchronise(cls, original)
    if original.__bases__ == bases:
        return original
    derived: dict[tuple[type, ...], type[torch.nn.Module]] = vars(original).get(_DERIVED, {})
    if bases in derived:
        _synchronise(original, derived[bases])
    else:
        own = _own_attributes(original)
        derived[bases] = type(cls.__name__, bases, {**own, _ORIGINAL: original, _SHARED: own})
        setattr(original, _DERIVED, derived)
    return derived[bases]


def _own_attributes(cls: type[torch.nn.Module]) -> dict[str, Any]:
    left_out = ("__dict__", "__weakref__", "__doc__", _ORIGINAL, _DERIVED, _SHARED)
    return {name: value for name, value in vars(cls).items() if name not in left_out}


def _synchronise(source: type[torch.nn.Module], target: type[torch.nn.Module]) -> None:
    """Copy attributes that changed since the last copy: a parametrization adds some."""
    derived = source if _ORIGINAL in vars(source) else target
    known, now = vars(derived)[_SHARED], _own_attributes(source)
    for name in known.keys() - now.keys():
        if name in vars(target):
            delattr(target, name)
    for name, value in now.items():
        if name not in known or known[name] is not value:
            setattr(target, name, value)
    setattr(derived, _SHARED, now)


# By class of ``torch.nn``, the methods that ours override, as they were before any patch.
_METHODS_AT_IMPORT = {
    theirs: {name: _found_in(theirs, name) for name in _overridden(ours)}
    for theirs, ours in counterparts().items()
}
