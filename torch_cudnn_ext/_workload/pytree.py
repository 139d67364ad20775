"""Nested containers: Python's own, dataclasses, and those that are registered with PyTorch."""

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor

from torch_cudnn_ext._torch_internals import tree_leaves, tree_map_only

T = TypeVar("T")

_PLAIN = (str, bytes, bytearray, memoryview, range, int, float, complex, type, type(None))
_MUTABLE = (list, dict, set, deque, OrderedDict, defaultdict, Counter)


def is_floating(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested containers."""
    return instances_in(values, Tensor)


def tensors_requiring_grad(values: Any) -> list[Tensor]:
    """The tensors in nested containers that require a gradient."""
    return [t for t in tensors_in(values) if t.requires_grad]


def instances_in(values: Any, kind: type[T]) -> list[T]:
    """The objects of a class in nested containers."""
    found: list[T] = []
    seen: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if issubclass(type(value), kind):  # isinstance() holds for a weak proxy, too
            found.append(value)
        elif (items := items_of(value)) and id(value) not in seen:  # a container may hold itself
            seen[id(value)] = value
            for item in items.values():
                visit(item)

    visit(values)
    return found


def mutable_containers_in(values: Iterable[Any]) -> list[Any]:
    """Python's containers that can change, among these values and in them, each once."""
    found: dict[int, Any] = {}
    left = [*values]
    while left:
        container = left.pop()
        if id(container) in found:
            continue
        if type(container) in _MUTABLE:
            found[id(container)] = container
        elif not isinstance(container, tuple):
            continue
        left += container.values() if isinstance(container, dict) else container
    return [*found.values()]


def map_tensors(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Copies of nested containers that hold `function` of each tensor in its place.

    A container without tensors is not copied.
    """
    copies: dict[int, tuple[Any, Any]] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if id(value) in copies:  # it holds itself
            return copies[id(value)][1]
        if not tensors_in(value):
            return value
        if isinstance(value, tuple) and not hasattr(value, "n_sequence_fields"):
            return tuple.__new__(type(value), map(mapped, value))  # named tuples included
        if isinstance(value, set | frozenset):
            return type(value)(map(mapped, value))
        items = items_of(value)
        has_keys = isinstance(value, MutableMapping | MutableSequence)
        if has_keys or isinstance(value, SimpleNamespace) or is_dataclass(value):
            copied = copy.copy(value)
            copies[id(value)] = value, copied
            for name, item in items.items():
                if (other := mapped(item)) is item:
                    continue
                if has_keys:
                    copied[name] = other
                else:
                    object.__setattr__(copied, name, other)  # a dataclass may be frozen
            return copied
        if isinstance(value, Mapping):
            return {name: mapped(item) for name, item in items.items()}
        return tree_map_only(Tensor, function, value)

    return mapped(values)


def items_of(value: Any) -> dict[Any, Any]:
    """What a container holds; empty for what is no container."""
    if isinstance(value, _PLAIN):
        return {}
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, Sequence | AbstractSet):
        return dict(enumerate(value))
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if is_dataclass(value):
        names = [one.name for one in fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    leaves = tree_leaves(value)
    return {} if any(leaf is value for leaf in leaves) else dict(enumerate(leaves))
