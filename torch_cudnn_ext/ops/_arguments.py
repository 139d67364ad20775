"""What the functions share: calling an operator, and checks of arguments that name them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Sizes: TypeAlias = int | Sequence[int]


def call(name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call the operator of this name that gives one tensor."""
    result: Tensor = getattr(torch.ops.torch_cudnn_ext, name).default(*arguments, **keywords)
    return result


def check_tensor(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r} ({type(value).__name__}), "
            "wanted a Tensor"
        )


def sizes_of(function: str, argument: str, value: Sizes, count: int) -> list[int]:
    """One integer for each dimension; a single one stands for all."""
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return [value] * count
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r} ({type(value).__name__}), "
            f"wanted an integer or {count} of them"
        )
    if not all(isinstance(item, int | torch.SymInt) for item in value):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r}, wanted an integer or {count} of them"
        )
    if len(value) not in (1, count):
        raise ValueError(
            f"{function}: argument {argument}: got {len(value)} numbers {tuple(value)}, "
            f"wanted one or {count}"
        )
    return list(value) * (count if len(value) == 1 else 1)
