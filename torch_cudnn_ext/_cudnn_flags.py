"""``torch.backends.cudnn.conv_fwd_algo`` and the attributes like it, which `enable` installs.

A value is cuDNN's integer or name of an algorithm of the attribute's pass; -1 is off. On GPUs, an
attribute pins its pass unless a stronger level pins it. A pin that cannot run is an error. Like
PyTorch's other switches, these attributes belong to the process and are read when a pass runs.

``torch.backends.cudnn.flags`` takes them by keyword. A flag that such a call does not name keeps
its value, whereas PyTorch's own ``flags`` resets it. A ``flags`` that was imported by name
before `enable` is PyTorch's own and does not take them.

A value that was assigned before `enable` is adopted, with a warning. Assigning to a name that is
nearly one of these raises AttributeError. `enable` warns if such a name was assigned before.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._grammar import FALLING_BACK
from torch_cudnn_ext._policy_text import (
    check_not_once,
    check_pins,
    field_text,
    not_pinned,
    value_of,
)
from torch_cudnn_ext._torch_internals import backends_may_change
from torch_cudnn_ext._warning import warn

_PASSES = {
    "conv_fwd_algo": "conv_fwd",
    "conv_bwd_data_algo": "conv_bwd_data",
    "conv_bwd_filter_algo": "conv_bwd_filter",
}
_OFF = -1
_ANY_PROBLEM = "conv_fwd x=f32[1,1,1,1]:nchw w=f32[1,1,1,1]:nchw"

_lock = threading.RLock()  # one change of the pins at a time
_pins: dict[str, str | int] = dict.fromkeys(_PASSES, _OFF)
_deleted: set[str] = set()
_left: dict[str, object] = {}  # the values that `uninstall` left for `install`
_plain_flags: Callable[..., AbstractContextManager[None]] | None = None


def install() -> None:
    """Give ``torch.backends.cudnn`` the attributes; adopt values that were assigned before.

    Raises:
        TypeError: A value that was assigned before has a type that names no algorithm.
        ValueError: A value that was assigned before names no algorithm.
    """
    global _plain_flags
    with _lock:
        cudnn: Any = torch.backends.cudnn
        before = {name: vars(cudnn)[name] for name in _PASSES if name in vars(cudnn)}
        _set(before)
        _warn_of_values(before, vars(cudnn))
        _deleted.clear()
        for name in _PASSES:
            setattr(type(cudnn), name, _Pin(name))
            vars(cudnn).pop(name, None)
        _plain_flags = cudnn.m.flags
        cudnn.flags = _flags
        type.__setattr__(type(cudnn), "__setattr__", _set_attribute)


def uninstall() -> None:
    """Remove the attributes, also after an interrupted `install` or `uninstall`.

    Their values stay as plain attributes, for the next `install`.
    """
    with _lock:
        cudnn: Any = torch.backends.cudnn
        vars(cudnn).pop("flags", None)
        if "__setattr__" in vars(type(cudnn)):
            del type(cudnn).__setattr__
        for name in _PASSES:
            if name in vars(type(cudnn)):
                delattr(type(cudnn), name)
                _keep_as_values({name: _pins[name]})
                _left[name] = _pins[name]
        _set({})


def _warn_of_values(before: Mapping[str, object], assigned: Mapping[str, object]) -> None:
    """Warn of assignments before `enable`, which PyTorch accepted without a warning."""
    held = [
        f"{name}={value!r}"
        for name, value in before.items()
        if not _is_off(value) and _left.get(name) != value
    ]
    if held:
        warn(
            f"torch.backends.cudnn: {', '.join(held)} was set before enable(), without effect, and "
            "holds from now on; wanted: set it while enabled"
        )
    for name in assigned:
        if near := _meant_by(name):
            warn(f"torch.backends.cudnn.{name} is nothing that is read, the nearest: {near}")


def _is_off(value: object) -> bool:
    return not_pinned(value) or (isinstance(value, int) and value < 0)


def _meant_by(name: str) -> str:
    """The attributes of ours that a misspelt name resembles; empty for other names."""
    if name in _PASSES or name.startswith("__"):
        return ""
    is_like_ours = name.startswith("conv_") or name.endswith(("_algo", "_algorithm"))
    return ", ".join(_C.nearest_words(name, [*_PASSES])) if is_like_ours else ""


def _set_attribute(module: Any, name: str, value: object) -> None:
    """Raise for a new attribute whose name resembles one of ours: nothing would read it."""
    if name not in vars(module) and name not in vars(type(module)) and (near := _meant_by(name)):
        raise AttributeError(
            f"torch.backends.cudnn has no attribute {name!r}, the nearest: {near}; all: "
            f"{', '.join(_PASSES)}"
        )
    ModuleType.__setattr__(module, name, value)


def _keep_as_values(pins: Mapping[str, str | int]) -> None:
    for name, value in pins.items():
        if value != _OFF:
            setattr(torch.backends.cudnn, name, value)
        else:
            vars(torch.backends.cudnn).pop(name, None)


class _Pin:
    """The descriptor of one attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: object, owner: type) -> str | int:
        if self._name in _deleted:
            raise AttributeError(f"torch.backends.cudnn.{self._name} was deleted and not set since")
        return _pins[self._name]

    def __set__(self, module: object, value: object) -> None:
        with _lock:
            _set({**_pins, self._name: value})
            _deleted.discard(self._name)

    def __delete__(self, module: object) -> None:
        with _lock:
            _set({**_pins, self._name: _OFF})
            _deleted.add(self._name)  # so that unittest.mock.patch restores the value it replaced


def _set(values: Mapping[str, object]) -> None:
    """Make these the pins and turn all others off; an error changes nothing."""
    parts = []
    pins: dict[str, str | int] = dict.fromkeys(_PASSES, _OFF)
    for name, value in values.items():
        if _is_off(value):
            continue
        label = f"torch.backends.cudnn.{name}"
        check_not_once(label, value)
        parts.append(field_text(label, _PASSES[name], value))
        action = value_of(_C.policy_for(_ANY_PROBLEM, ""), "on_unsupported")
        if action not in FALLING_BACK:
            check_pins(_C.canonical_policy(parts[-1]), "conv", label)
        assert isinstance(value, str | int)
        pins[name] = value
    _C.set_cudnn_pins(";".join(parts))
    _pins.update(pins)


def _flags(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """PyTorch's ``flags``, which also takes our attributes by keyword."""
    ours = {name: kwargs.pop(name) for name in _PASSES if name in kwargs}
    assert _plain_flags is not None
    if not ours:
        return _plain_flags(*args, **kwargs)
    signature = inspect.signature(_plain_flags)
    try:
        theirs = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        words = [*signature.parameters, *_PASSES]
        unknown = [name for name in kwargs if name not in words]
        near = [word for name in unknown for word in _C.nearest_words(name, words)]
        raise TypeError(
            f"torch.backends.cudnn.flags: {error}{'; the nearest: ' if near else ''}"
            f"{', '.join(near)}, wanted each of {', '.join(words)} at most once"
        ) from error
    return _flags_of_ours(ours, theirs)


@contextmanager
def _flags_of_ours(ours: dict[str, object], theirs: Mapping[str, Any]) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    before = {name: getattr(cudnn, name) for name in theirs}
    now = _pins if _installed() else vars(cudnn)
    pins = {name: now.get(name, _OFF) for name in ours}
    try:
        _change_settings(theirs)
        _set_or_keep(ours)
        yield
    finally:
        _set_or_keep(pins)
        _change_settings(before)


def _installed() -> bool:
    return "flags" in vars(torch.backends.cudnn)


def _set_or_keep(pins: Mapping[str, Any]) -> None:
    """Set these pins; while uninstalled, keep them as plain values that `install` adopts."""
    with _lock:
        if _installed():
            _set({**_pins, **pins})
            _deleted.difference_update(pins)
        else:
            _keep_as_values(pins)


def _change_settings(values: Mapping[str, Any]) -> None:
    """Set some of PyTorch's own flags, even after ``disable_global_flags``."""
    with backends_may_change():
        for name, value in values.items():
            setattr(torch.backends.cudnn, name, value)
