"""Reductions as functions."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from torch import Tensor

from torch_cudnn_ext._torch_internals import guard_or_false
from torch_cudnn_ext.ops._arguments import (
    call_for_all,
    check_flag,
    check_tensor,
    integer,
    integers_of,
)
from torch_cudnn_ext.ops._direct import FunctionT, direct
from torch_cudnn_ext.ops.family import Family, describe, in_place_of_methods
from torch_cudnn_ext.policy import PolicyLike, policy_text

Dim = int | Sequence[int] | None


def _reduction(kind: str) -> Callable[[FunctionT], FunctionT]:
    return direct("reduce", "reduce", any_length=("dim",), constants={"kind": kind})


@overload
def reduce(
    input: Tensor, kind: str, dim: Dim = None, keepdim: bool = False,
    *, return_indices: Literal[False] = False, policy: PolicyLike = None,
) -> Tensor: ...  # fmt: skip
@overload
def reduce(
    input: Tensor, kind: str, dim: Dim = None, keepdim: bool = False,
    *, return_indices: Literal[True], policy: PolicyLike = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def reduce(
    input: Tensor, kind: str, dim: Dim = None, keepdim: bool = False,
    *, return_indices: bool = False, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Reduce dimensions to one value each.

    cuDNN's entry points are ``cudnnReduceTensor`` (``legacy:default``: all kinds, computed in
    float32 or float64) and the graph API's reduction (``graph:engN``: add, mul, min, max and absmax
    over leading dimensions or all). On the CPU there are ``cpu:serial`` and ``cpu:tree``, and
    everywhere ``aten:default``.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        kind: ``add``, ``mul``, ``min``, ``max``, ``absmax``, ``mean``, ``norm1``, ``norm2`` or
            ``mul_no_zeros``, the product of the elements that are not zero.
        dim: The dimensions to reduce; ``None`` or an empty list means all.
        keepdim: Whether reduced dimensions stay, with a size of 1.
        return_indices: Whether ``min`` and ``max`` also give the index of one extreme, as int64,
            counted over the reduced dimensions in row-major order.
        policy: How the algorithm of the pass ``fwd`` is selected.

    Returns:
        The values, or values and indices. Differentiable twice. Equal extremes share the gradient;
        with indices, the extreme at the index gets it. The gradient of ``norm2`` at zero is zero.

    Raises:
        TypeError: ``input`` is no tensor, ``keepdim`` no bool, or ``policy`` stands for no policy.
        ValueError: There is no such kind, ``dim`` is out of range or given twice, the dtype is not
            supported, or the policy is wrong.
        IndexError: An extreme of no elements.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> reduce(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "absmax", dim=0)
        tensor([3., 2.])
    """
    check_flag("reduce", "return_indices", return_indices)
    if return_indices:
        return _with_indices("reduce", input, kind, dim, keepdim, policy)
    return _reduce("reduce", input, kind, dim, keepdim, policy)


@_reduction("add")
def sum(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The sum, as ``torch.sum``; arguments are those of `reduce`.

    Example:
        >>> sum(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=0)
        tensor([ 4., -2.])
    """
    return _reduce("sum", input, "add", dim, keepdim, policy)


@_reduction("mul")
def prod(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The product, as ``torch.prod`` over any dimensions; arguments are those of `reduce`.

    Example:
        >>> prod(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([-2.,  0.])
    """
    return _reduce("prod", input, "mul", dim, keepdim, policy)


@_reduction("mul_no_zeros")
def prod_nonzero(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The product of the elements that are not zero; arguments are those of `reduce`.

    Example:
        >>> prod_nonzero(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([-2.,  3.])
    """
    return _reduce("prod_nonzero", input, "mul_no_zeros", dim, keepdim, policy)


def amin(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The minimum, as ``torch.amin``; arguments are those of `reduce`.

    Example:
        >>> amin(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([-2.,  0.])
    """
    return _reduce("amin", input, "min", dim, keepdim, policy)


def amax(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The maximum, as ``torch.amax``; arguments are those of `reduce`.

    Example:
        >>> amax(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([1., 3.])
    """
    return _reduce("amax", input, "max", dim, keepdim, policy)


def absmax(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The largest absolute value; arguments are those of `reduce`.

    Example:
        >>> absmax(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([2., 3.])
    """
    return _reduce("absmax", input, "absmax", dim, keepdim, policy)


@_reduction("mean")
def mean(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The mean, as ``torch.mean``; arguments are those of `reduce`.

    Example:
        >>> mean(torch.tensor([[1.0, -2.0], [3.0, 0.0]]))
        tensor(0.5000)
    """
    return _reduce("mean", input, "mean", dim, keepdim, policy)


@_reduction("norm1")
def norm1(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The sum of absolute values; arguments are those of `reduce`.

    Example:
        >>> norm1(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([3., 3.])
    """
    return _reduce("norm1", input, "norm1", dim, keepdim, policy)


@_reduction("norm2")
def norm2(
    input: Tensor, dim: Dim = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The root of the sum of squares; arguments are those of `reduce`.

    Example:
        >>> norm2(torch.tensor([3.0, 4.0]))
        tensor(5.)
    """
    return _reduce("norm2", input, "norm2", dim, keepdim, policy)


def argmin(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The index of a minimum, as ``torch.argmin``; arguments are those of `reduce`.

    Example:
        >>> argmin(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([1, 1])
    """
    return _with_indices("argmin", input, "min", dim, keepdim, policy)[1]


def argmax(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """The index of a maximum, as ``torch.argmax``; arguments are those of `reduce`.

    Example:
        >>> argmax(torch.tensor([[1.0, -2.0], [3.0, 0.0]]), dim=1)
        tensor([0, 0])
    """
    return _with_indices("argmax", input, "max", dim, keepdim, policy)[1]


def _reduce(
    function: str, input: Tensor, kind: str, dim: Dim, keepdim: bool, policy: PolicyLike
) -> Tensor:
    result: Tensor = _result("reduce", function, input, kind, dim, keepdim, policy)
    return result


def _with_indices(
    function: str, input: Tensor, kind: str, dim: Dim, keepdim: bool, policy: PolicyLike
) -> tuple[Tensor, Tensor]:
    result = _result("reduce_with_indices", function, input, kind, dim, keepdim, policy)
    return result[0], result[1]


def _result(
    name: str, function: str, input: Tensor, kind: str, dim: Dim, keepdim: bool, policy: PolicyLike
) -> Any:
    check_tensor(function, "input", input)
    check_flag(function, "keepdim", keepdim)
    dims = _dims(function, dim)
    result = call_for_all(name, input, kind, dims, keepdim, policy=policy_text(policy, "reduce"))
    _check_extreme(function, input, kind, dims)
    return result


def _dims(function: str, dim: Dim) -> list[int] | None:
    if dim is None:
        return None
    one = integer(dim)
    return integers_of(function, "dim", dim, "integers") if one is None else [one]


def _check_extreme(function: str, input: Tensor, kind: str, dims: list[int] | None) -> None:
    """Raise IndexError for extremes over an empty dimension, even for an empty result."""
    count = integer(input.numel())  # a tensor in a trace
    if kind not in ("min", "max", "absmax") or not guard_or_false(count == 0):
        return
    if any(input.shape[dim] == 0 for dim in dims or range(input.dim())):
        raise IndexError(
            f"{function}: argument dim: got {dims} of an input of sizes {list(input.shape)}, "
            "wanted dimensions of at least one element"
        )


describe(
    Family(
        "reduce",
        replaced=in_place_of_methods(sum, mean, prod, amax, amin, argmax, argmin),
        keywords={"axis": "dim", "keepdims": "keepdim"},
    )
)
