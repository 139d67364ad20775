"""How far the results of a network are from those in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import form_of, reason_of
from torch_cudnn_ext._workload.model_state import copied
from torch_cudnn_ext._workload.pytree import is_floating, map_tensors, tensors_in

# Results are not used if their error is larger than so many times PyTorch's and so many roundings.
MOST_ERROR_RATIO, MOST_EPSILONS = 10.0, 64.0


def coarsest_rounding(results: Any) -> float:
    """The largest relative rounding of the dtypes of results; 0 if none is floating-point."""
    floats = [*filter(is_floating, tensors_in(results))]
    return max((torch.finfo(t.dtype).eps for t in floats), default=0.0)


def is_far_less_accurate(error: float, plain_error: float, rounding: float) -> bool:
    """Whether an error is far larger than that of PyTorch's layers."""
    return not error <= MOST_ERROR_RATIO * plain_error + MOST_EPSILONS * rounding


def results_in_float64(
    plain: Module,
    args: tuple[Any, ...],
    of_plain: Any,
    results: Callable[[Module, tuple[Any, ...]], Any],
) -> list[Tensor] | str:
    """The tensors of the model's results in float64; if it has no such results, why.

    Args:
        plain: The model.
        args: Its arguments.
        of_plain: Its results.
        results: What gives the results of a model and arguments.
    """

    def wide(tensor: Tensor) -> Tensor:
        made = tensor.detach().double() if is_floating(tensor) else tensor.detach().clone()
        return made.requires_grad_(tensor.requires_grad)

    try:
        result = tensors_in(results(copied(plain).double(), map_tensors(wide, args)))
    except Exception as error:  # an operator or a check that takes no float64, or memory is short
        why = f"{type(error).__name__}: {reason_of(error)}"
        return f"the network does not run in float64 ({why})"
    shapes = [[t.shape for t in tensors] for tensors in (result, tensors_in(of_plain))]
    if shapes[0] == shapes[1]:
        return result
    return "the network gives results of other sizes in float64"


def largest_error(
    result: Any, of_plain: Any, wanted: list[Tensor], scales: Sequence[float] = ()
) -> float:
    """Relative to the largest element; infinite if a result is of another kind than the model's.

    Args:
        result: What was computed.
        of_plain: What PyTorch's layers gave.
        wanted: The tensors of the result in float64.
        scales: For each tensor, what its error is relative to if all of its elements are smaller.
    """
    tensors, plain = tensors_in(result), tensors_in(of_plain)
    kinds = [[(t.shape, t.dtype) for t in those] for those in (tensors, plain)]
    if form_of(result) != form_of(of_plain) or kinds[0] != kinds[1]:
        return math.inf
    largest = 0.0
    least = scales or [0.0] * len(tensors)
    for got, other, right, scale in zip(tensors, plain, wanted, least, strict=True):
        if not is_floating(got):
            largest = largest if torch.equal(got, other) else math.inf
        elif got.numel() > 0:
            right, got = right.double(), got.double()
            scale = max(scale, largest_finite(right)) or 1.0
            # What is not finite must be as PyTorch's.
            same = (got == right) | (got == other.double()) | (got.isnan() & other.isnan())
            is_finite = right.isfinite() & other.isfinite()
            off = torch.where(same & ~is_finite, 0, (got - right).abs() / scale)
            largest = max(largest, float(off.nan_to_num(math.inf, math.inf).max()))
    return largest


def largest_finite(tensor: Tensor) -> float:
    """The largest absolute value of the elements that are finite; 0 if there are none."""
    if not is_floating(tensor) or not tensor.numel():
        return 0.0
    return float(torch.where(tensor.isfinite(), tensor.abs(), 0).max())
