"""What the functions share: calling an operator, and checks of arguments that name them."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Sizes: TypeAlias = int | Sequence[int]


def call(name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call the operator of this name that gives one tensor."""
    result: Tensor = call_for_all(name, *arguments, **keywords)
    return result


def call_for_all(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Call the operator of this name, whatever it gives; of a wrong type is a ``TypeError``."""
    function = getattr(torch.ops.torch_cudnn_ext, name).default
    try:
        return function(*arguments, **keywords)
    except RuntimeError as error:
        reason, _, _ = str(error).partition("\n")
        if "Expected a value of type" not in reason:
            raise
        raise TypeError(reason) from error


def check_tensor(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r:.60} ({type(value).__name__}), "
            "wanted a Tensor"
        )


def check_number(function: str, argument: str, value: float) -> None:
    """Raise ``TypeError`` unless the argument is a number, or a tensor of one."""
    try:
        bool(value < 0)
    except (TypeError, ValueError, RuntimeError) as error:  # as of arrays and tensors of several
        raise TypeError(
            f"{function}: argument {argument}: got {value!r:.60} ({type(value).__name__}), "
            "wanted a number"
        ) from error


def sizes_of(function: str, argument: str, value: Sizes, count: int) -> list[int]:
    """One integer for each dimension; a single one stands for all."""
    if (one := integer(value)) is not None:
        return [one] * count
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r:.60} ({type(value).__name__}), "
            f"wanted an integer or {count} of them"
        )
    items = [integer(item) for item in value]
    numbers = [item for item in items if item is not None]
    if len(numbers) < len(items):
        raise TypeError(
            f"{function}: argument {argument}: got {value!r}, wanted an integer or {count} of them"
        )
    if len(value) not in (1, count):
        raise ValueError(
            f"{function}: argument {argument}: got {len(value)} numbers {tuple(value)}, "
            f"wanted one or {count}"
        )
    return numbers * (count if len(numbers) == 1 else 1)


def integer(value: object) -> int | None:
    """What stands for an integer, NumPy's too, as one; ``None`` for all else."""
    if isinstance(value, int | torch.SymInt):
        return None if isinstance(value, bool) else value  # type: ignore[return-value]
    if isinstance(value, Tensor) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # of an array of several
        return None
