"""What the functions share: calling an operator, and checks whose errors name the argument."""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from torch_cudnn_ext._torch_internals import (
    jit_tracing_state,
    reduction_index,
    set_jit_tracing_state,
)

Sizes: TypeAlias = int | Sequence[int]

# The common ones come first, as Real is slow.
_NUMBERS = (float, int, Real, np.bool_, torch.SymInt, torch.SymFloat)


def call(name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call the operator of this name that gives one tensor."""
    result: Tensor = call_for_all(name, *arguments, **keywords)
    return result


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """Inside the block ``torch.jit.trace`` records nothing, and sizes are integers."""
    state = jit_tracing_state()
    set_jit_tracing_state(None)
    try:
        yield
    finally:
        set_jit_tracing_state(state)


def reduction_of(function: str, value: object) -> str:
    """The newest name of a reduction of PyTorch's losses; ``ValueError`` for an unknown one."""
    try:
        return ("none", "mean", "sum")[reduction_index(value)]
    except ValueError:
        raise ValueError(
            f"{function}: argument reduction: got {value!r:.60}, wanted 'none', 'mean' or 'sum'"
        ) from None


def call_for_all(name: str, *arguments: Any, **keywords: Any) -> Any:
    """Call the operator of this name, whatever it gives."""
    return getattr(torch.ops.torch_cudnn_ext, name).default(*arguments, **keywords)


def call_renamed(names: Mapping[str, str], name: str, *arguments: Any, **keywords: Any) -> Tensor:
    """Call an operator; its errors use the caller's names of these arguments."""
    try:
        return call(name, *arguments, **keywords)
    except ValueError as error:
        spoken_of = rf"\b({'|'.join(names)})(?= is | has |'s )"
        message = re.sub(spoken_of, lambda found: names[found[1]], str(error))
        raise ValueError(message) from error


def check_tensor(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a strided tensor."""
    if not isinstance(value, Tensor):
        raise wrong_type(function, argument, value, "a Tensor")
    if value.layout is not torch.strided and not value.is_nested:
        raise TypeError(
            f"{function}: argument {argument}: got a Tensor of layout {value.layout}, wanted "
            "torch.strided"
        )


def all_sizes_of(function: str, argument: str, value: object, count: int) -> list[int]:
    """All sizes of a tensor with ``count`` dimensions."""
    sizes = integers_of(function, argument, value, f"{count} sizes")
    if len(sizes) != count:
        raise ValueError(f"{function}: argument {argument}: got {sizes}, wanted {count} sizes")
    return sizes


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
    """Any number of integers; the error for anything else says that ``wanted`` was wanted."""
    is_array = isinstance(value, Tensor | np.ndarray) and value.ndim == 1
    if is_array or (isinstance(value, Sequence) and not isinstance(value, str | bytes)):
        items = [integer(item) for item in cast(Iterable[object], value)]
        numbers = [item for item in items if item is not None]
        if len(numbers) == len(items):
            return numbers
    raise wrong_type(function, argument, value, wanted)


def integer_of(function: str, argument: str, value: object) -> int:
    """The argument as one integer."""
    if (one := integer(value)) is None:
        raise wrong_type(function, argument, value, "an integer")
    return one


def integer(value: object) -> int | None:
    """An integer, NumPy's, or a tensor of one, as an integer; ``None`` for anything else.

    So is one of more than 64 bits, which no operator takes.
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
    except TypeError:  # an array or tensor of several, or of other numbers
        return None


def check_number(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a real number, also of NumPy or in a tensor.

    A tensor that requires a gradient does not count: it would not get one.
    """
    if isinstance(value, Tensor):
        is_number = value.numel() == 1 and not value.is_complex() and not value.is_meta
        is_number = is_number and not value.requires_grad
    else:
        is_number = isinstance(value, _NUMBERS)
    if not is_number:
        raise wrong_type(function, argument, value, "a number")


def check_flag(function: str, argument: str, value: object) -> None:
    """Raise ``TypeError`` unless the argument is a bool, also of NumPy."""
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
    """The error for an argument of a type that is not taken."""
    return TypeError(
        f"{function}: argument {argument}: got {value!r:.60} ({type(value).__name__}), "
        f"wanted {wanted}"
    )
