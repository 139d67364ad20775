"""Which functions of PyTorch's the functions of `torch_cudnn_ext.ops` can stand for."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch.nn import functional as F

from torch_cudnn_ext import ops
from torch_cudnn_ext.ops.family import families


@cache
def replacements() -> dict[Any, Callable[..., Any]]:
    """By function of PyTorch's, the function of `ops` that takes the same arguments."""
    ours = {getattr(F, name): getattr(ops, name) for name in ops.__all__ if hasattr(F, name)}
    for family in families():
        ours |= family.replaced
    return ours


def our_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch's keywords by our names, without those that say nothing."""
    renamed = {theirs: ours for family in families() for theirs, ours in family.keywords.items()}
    return {
        renamed.get(key, key): value
        for key, value in keywords.items()
        if value is not None and not key.startswith("_")
    }
