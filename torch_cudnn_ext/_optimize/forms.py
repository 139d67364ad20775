"""What a trace and a CUDA graph depend on, and why there is none, as texts."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext._workload.pytree import items_of, tensors_in

_VALUES = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)


class UnknownForm(TypeError):
    """A value whose content is not known."""


def reason_of(error: Exception) -> str:
    """The first line of an error's text, or its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def form_of(value: Any) -> str:
    """What a trace depends on: containers, classes, and the dtypes and dimensions of tensors."""
    if isinstance(value, Tensor):
        kind = "Tensor" if isinstance(value, torch.nn.Parameter) else type(value).__name__
        return f"{kind}[{value.dtype},{value.dim()}]"
    if type(value) in (tuple, list):
        return f"{type(value).__name__}({','.join(map(form_of, value))})"
    if type(value) is dict:
        return f"dict({','.join(f'{key!r}:{form_of(one)}' for key, one in value.items())})"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if tensors_in(value):
        return f"{name}({','.join(f'{k!r}:{form_of(one)}' for k, one in items_of(value).items())})"
    return name


def autocast_now() -> str:
    """The dtypes of autocast, which a forward may change for a part of itself."""
    cast = [
        (d, torch.get_autocast_dtype(d)) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)
    ]
    return " ".join(f"{device}:{dtype}" for device, dtype in cast)


def sizes_of(value: Any) -> str:
    """The devices and sizes of the tensors in containers, in order, as a text."""
    return " ".join(f"{_device_text(t.device)}{[*t.shape]}" for t in tensors_of(value))


def content_of(value: Any) -> Any:
    """What a CUDA graph depends on: the form, sizes and strides of tensors, and all other values.

    Raises:
        UnknownForm: There is something else than strided tensors, numbers, texts, None, dtypes and
            devices, in tuples, lists and dicts.
    """
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return type(value), value.dtype, value.device, value.shape, value.stride()
    if type(value) in (tuple, list):
        return type(value), *map(content_of, value)
    if type(value) is dict:
        return dict, *((key, content_of(one)) for key, one in value.items())
    if type(value) in _VALUES:
        return type(value), value
    raise UnknownForm(type(value).__name__)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in tuples, lists and dicts, each as often as it occurs."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) in (tuple, list):
        return [t for one in value for t in tensors_of(one)]
    return [t for one in value.values() for t in tensors_of(one)] if type(value) is dict else []


@cache
def _device_text(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
