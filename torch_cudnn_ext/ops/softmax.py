"""Softmax and log-softmax as functions."""

import torch
from torch import Tensor

from torch_cudnn_ext._torch_internals import assume_constant_result, implicit_softmax_dim
from torch_cudnn_ext.ops._arguments import call, check_tensor, integer_of, wrong_type
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe, in_place_of_methods
from torch_cudnn_ext.policy import PolicyLike, policy_text


@direct("softmax", "softmax")
def softmax(
    input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None,
    *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Exponentials along a dimension, divided by their sum, as ``torch.nn.functional.softmax``.

    cuDNN's algorithms (``cudnnSoftmaxForward``, ``cudnnSoftmaxBackward``) are ``legacy:accurate``
    and ``legacy:fast``. ``legacy:fast`` subtracts no maximum, so that large inputs overflow.
    ``legacy:accurate``, over contiguous rows that are not float64, gives zeros for a row of
    negative infinity alone. Both are then admitted with ``allow_reduced_range`` only. On the CPU
    there are ``cpu:three_pass`` and ``cpu:online``, and everywhere ``aten:default`` and, except for
    contiguous rows, ``aten:transposed``.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        dim: The dimension that sums to one. ``None`` is deprecated and warns, as in PyTorch: it is
            0 for 0, 1 or 3 dimensions, else 1.
        dtype: The input is cast to this first.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A contiguous tensor of the input's sizes. Differentiable twice.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: ``dim`` is out of range, the dtype is not supported, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> softmax(torch.zeros(1, 4), 1, policy="cpu:online")
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return _along("softmax", input, dim, dtype, policy)


@direct("log_softmax", "softmax")
def log_softmax(
    input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None,
    *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The logarithm of `softmax`, computed at once, as ``torch.nn.functional.log_softmax``.

    cuDNN has one algorithm for it, ``legacy:accurate``. All else is as in `softmax`.

    Example:
        >>> log_softmax(torch.zeros(1, 1), 1)
        tensor([[0.]])
    """
    return _along("log_softmax", input, dim, dtype, policy)


def _along(
    name: str, input: Tensor, dim: int | None, dtype: torch.dtype | None, policy: PolicyLike
) -> Tensor:
    check_tensor(name, "input", input)
    if not isinstance(dtype, torch.dtype | None):  # the operator would also take an integer
        raise wrong_type(name, "dtype", dtype, "a torch.dtype")
    along = _implicit_dim(name, input.dim()) if dim is None else integer_of(name, "dim", dim)
    return call(name, input, along, dtype, policy=policy_text(policy, "softmax"))


@assume_constant_result
def _implicit_dim(name: str, dims: int) -> int:
    dim: int = implicit_softmax_dim(name, dims, 6)  # so many calls below the user's
    return dim


describe(
    Family(
        "softmax",
        has_rows=lambda problem: True,
        replaced=in_place_of_methods(softmax, log_softmax),
    )
)
