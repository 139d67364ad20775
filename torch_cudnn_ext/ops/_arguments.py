"""What the functions share: calling an operator, and checks of arguments that name them."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

Sizes: TypeAlias = int | Sequence[int]

# The usual ones first, as Real is slow.
_NUMBERS = (float, int, Real, np.bool_, torch.SymInt, torch.SymFloat)


def call(name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call the operator of this name that gives one tensor."""
    result: Tensor = call_for_all(name, *arguments, **keywords)
    return result


def reduction_of(function: str, value: object) -> str:
    """How PyTorch's losses are put together, by its newest name; ``ValueError`` for no such way."""
    try:
        return ("none", "mean", "sum")[torch.nn._reduction.get_enum(value)]  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(
            f"{function}: argument reduction: got {value!r:.60}, wanted 'none', 'mean' or 'sum'"
        ) from None


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


def call_renamed(names: Mapping[str, str], name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call an operator; what it says of these arguments bears the names that the caller knows."""
    try:
        return call(name, *arguments, **keywords)
    except ValueError as error:
        spoken_of = rf"\b({'|'.join(names)})(?= is | has |'s )"
        message = re.sub(spoken_of, lambda found: names[found[1]], str(error))
        raise ValueError(message) from error


def check_tensor(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a tensor, and one of strides."""
    if not isinstance(value, Tensor):
        raise wrong_type(function, argument, value, "a Tensor")
    if value.layout is not torch.strided and not value.is_nested:
        raise TypeError(
            f"{function}: argument {argument}: got a Tensor of layout {value.layout}, wanted "
            "torch.strided"
        )


def sizes_of(function: str, argument: str, value: Sizes, count: int) -> list[int]:
    """One integer for each dimension; a single one stands for all."""
    if (one := integer(value)) is not None:
        return [one] * count
    numbers = integers_of(function, argument, value, f"an integer or {count} of them")
    if len(numbers) not in (1, count):
        raise ValueError(
            f"{function}: argument {argument}: got {len(numbers)} numbers {tuple(numbers)}, "
            f"wanted one or {count}"
        )
    return numbers * (count if len(numbers) == 1 else 1)


def integers_of(function: str, argument: str, value: object, wanted: str) -> list[int]:
    """Any number of integers; ``wanted`` tells of them where there is something else."""
    is_array = isinstance(value, Tensor | np.ndarray) and value.ndim == 1
    if is_array or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        items = [integer(item) for item in cast(Iterable[object], value)]
        numbers = [item for item in items if item is not None]
        if len(numbers) == len(items):
            return numbers
    raise wrong_type(function, argument, value, wanted)


def integer_of(function: str, argument: str, value: object) -> int:
    """The argument, which stands for one integer."""
    if (one := integer(value)) is None:
        raise wrong_type(function, argument, value, "an integer")
    return one


def integer(value: object) -> int | None:
    """What stands for an integer, NumPy's and tensors of one too, as one; ``None`` for all else.

    More than 64 bits are none that an operator takes.
    """
    if isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**63
        return value if fits and not isinstance(value, bool) else None
    if not hasattr(value, "__index__") or is_meta(value):
        return None
    try:
        return operator.index(value)
    except TypeError:  # of several, or of a tensor of no integers
        return None


def check_number(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a real number, NumPy's or a tensor of one too.

    A tensor that requires a gradient is none, which it would not get.
    """
    if isinstance(value, Tensor):
        is_number = value.numel() == 1 and not value.is_complex() and not value.is_meta
        is_number = is_number and not value.requires_grad
    else:
        is_number = isinstance(value, _NUMBERS)
    if not is_number:
        raise wrong_type(function, argument, value, "a number")


def check_flag(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a bool, NumPy's too."""
    if not isinstance(value, bool | np.bool_ | torch.SymBool):
        raise wrong_type(function, argument, value, "a bool")


def check_flags(function: str, **flags: object) -> None:
    """Raise TypeError for the first argument that is no bool."""
    for argument, flag in flags.items():
        check_flag(function, argument, flag)


def is_meta(value: object) -> bool:
    """Whether it is a tensor of the meta device."""
    return isinstance(value, Tensor) and value.is_meta


def wrong_type(function: str, argument: str, value: object, wanted: str) -> TypeError:
    """What to raise where an argument has a type that is not taken."""
    return TypeError(
        f"{function}: argument {argument}: got {value!r:.60} ({type(value).__name__}), "
        f"wanted {wanted}"
    )
