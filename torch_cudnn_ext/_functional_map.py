"""Which functions of PyTorch's the functions of `torch_cudnn_ext.ops` can stand for."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext import ops

# Of functions that torch and its tensors have, those that take their arguments in our order.
_OF_TENSORS = (
    *("relu", "sigmoid", "tanh", "softmax", "log_softmax", "matmul"),
    *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin"),
)
_PRODUCTS = (torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, Tensor.__matmul__)
_RENAMED = {"mat2": "other", "axis": "dim", "keepdims": "keepdim"}


@cache
def replacements() -> dict[Any, Callable[..., Any]]:
    """By function of PyTorch's, that of `ops` which takes the same arguments."""
    ours = {getattr(F, name): getattr(ops, name) for name in ops.__all__ if hasattr(F, name)}
    for name in _OF_TENSORS:
        ours |= {getattr(space, name): getattr(ops, name) for space in (torch, Tensor)}
    return ours | dict.fromkeys(_PRODUCTS, ops.matmul)


def our_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch's keywords by our names, without those that say nothing."""
    return {
        _RENAMED.get(key, key): value
        for key, value in keywords.items()
        if value is not None and not key.startswith("_")
    }
