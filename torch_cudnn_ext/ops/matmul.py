"""Matrix products as functions."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext.ops._arguments import (
    call,
    call_renamed,
    check_flag,
    check_number,
    check_tensor,
    outside_of_traces,
)
from torch_cudnn_ext.ops._direct import MAX_DIMS, direct
from torch_cudnn_ext.ops.family import Family, describe, in_place_of_methods
from torch_cudnn_ext.policy import PolicyLike, policy_text


@direct(
    "matmul", "matmul", sources={"a": "input", "b": "other"},
    ranks={"a": (2, MAX_DIMS), "b": (2, MAX_DIMS)},
)  # fmt: skip
def matmul(input: Tensor, other: Tensor, *, policy: PolicyLike = None) -> Tensor:
    """The matrix product, as ``torch.matmul``: vectors, matrices and batches that broadcast.

    cuDNN computes products in its graph API alone (``graph:engN``, compiled at run time): for
    float16 and bfloat16, and for float32 if TF32 is allowed. On the CPU there are ``cpu:blocked``
    and ``cpu:dot``, and everywhere ``aten:default``.

    Args:
        input: ``[..., m, k]`` or ``[k]``; float64, float32, float16 or bfloat16.
        other: ``[..., k, n]`` or ``[k]``, of the input's dtype.
        policy: How the algorithm of the pass ``fwd`` is selected, also for the gradients, which are
            products themselves.

    Returns:
        ``[..., m, n]``, contiguous, without the dimensions that a vector does not have.
        Differentiable any number of times.

    Raises:
        TypeError: An argument is no tensor, or ``policy`` stands for no policy.
        ValueError: Sizes do not fit, dtypes differ or are not supported, or the policy is wrong.
        RuntimeError: Batch sizes do not broadcast, a pinned algorithm cannot run, or none is
            admissible.

    Example:
        >>> matmul(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[1., 2.],
                [3., 4.]])
    """
    check_tensor("matmul", "input", input)
    check_tensor("matmul", "other", other)
    for name, tensor in (("input", input), ("other", other)):
        if tensor.dim() == 0:
            raise ValueError(f"matmul: argument {name}: got a scalar, wanted at least a vector")
    left = input.unsqueeze(0) if input.dim() == 1 else input
    right = other.unsqueeze(1) if other.dim() == 1 else other
    names = {"a": "input", "b": "other"}
    result = call_renamed(names, "matmul", left, right, policy=policy_text(policy, "matmul"))
    if other.dim() == 1:
        result = result.squeeze(-1)
    return result.squeeze(-1 if other.dim() == 1 else -2) if input.dim() == 1 else result


@direct(
    "matmul", "matmul", sources={"a": "input", "b": "weight"},
    ranks={"a": (2, MAX_DIMS), "b": (2, 2)}, constants={"transpose_b": True},
)  # fmt: skip
def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, policy: PolicyLike = None
) -> Tensor:
    """``input weight^T + bias``, as ``torch.nn.functional.linear``.

    Algorithms and errors are those of `matmul`; the bias is part of the algorithm.

    Args:
        input: ``[..., k]``.
        weight: ``[n, k]``, or ``[k]``.
        bias: ``[n]``, or sizes that broadcast to the result's.
        policy: How the algorithm of the pass ``fwd`` is selected.

    Returns:
        ``[..., n]``, or ``[...]`` if the weight is a vector.

    Example:
        >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([10.0]))
        tensor([[13.]])
    """
    check_tensor("linear", "input", input)
    check_tensor("linear", "weight", weight)
    if weight.dim() not in (1, 2) or input.dim() == 0:
        raise ValueError(
            f"linear: got an input of sizes {list(input.shape)} and a weight of sizes "
            f"{list(weight.shape)}, wanted [..., k] and [n, k] or [k]"
        )
    if weight.dim() == 1:  # the bias has the sizes of the result, which has no last dimension
        bias = bias.unsqueeze(-1) if isinstance(bias, Tensor) else bias
        return linear(input, weight.unsqueeze(0), bias, policy=policy).squeeze(-1)
    rows = input.unsqueeze(0) if input.dim() == 1 else input
    text = policy_text(policy, "matmul")
    keywords: dict[str, Any] = {"transpose_b": True, "policy": text}
    with outside_of_traces():  # which have tensors as sizes
        is_added = isinstance(bias, Tensor) and bias.shape != weight.shape[:1]
    if is_added:
        bias, keywords = None, {**keywords, "z": bias, "beta": 1.0}
    names = {"a": "input", "b": "weight", "z": "bias"}
    result = call_renamed(names, "matmul", rows, weight, bias, **keywords)
    return result.squeeze(0) if input.dim() == 1 else result


@direct("matmul", "matmul")
def gemm(
    a: Tensor, b: Tensor, bias: Tensor | None = None,
    *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0, beta: float = 0.0,
    z: Tensor | None = None, activation: str = "none", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """``activation(alpha a b + beta z + bias)`` in one operator, for matrices or batches of them.

    Algorithms and errors are those of `matmul`. The graph API computes all of it in one kernel.

    Args:
        a: ``[..., m, k]``, or ``[..., k, m]`` with ``transpose_a``.
        b: ``[..., k, n]``, or ``[..., n, k]`` with ``transpose_b``.
        bias: ``[n]``.
        transpose_a: Whether to transpose each matrix of ``a``.
        transpose_b: Whether to transpose each matrix of ``b``.
        alpha: Factor of the product.
        beta: Factor of ``z``; 0 without it.
        z: Sizes that broadcast to the result's.
        activation: ``none``, ``relu``, ``relu6``, ``sigmoid``, ``tanh``, ``silu``, ``gelu``, or
            ``gelu_tanh`` (GELU's approximation by tanh). If a gradient is wanted, those other than
            ``relu`` are a step of their own.
        policy: How the algorithm of the pass ``fwd`` is selected.

    Returns:
        ``[..., m, n]``, contiguous. Differentiable any number of times with respect to all tensors.

    Example:
        >>> gemm(torch.eye(2), torch.ones(2, 2), alpha=2.0, activation="relu").sum()
        tensor(8.)
    """
    check_tensor("gemm", "a", a)
    check_tensor("gemm", "b", b)
    check_flag("gemm", "transpose_a", transpose_a)
    check_flag("gemm", "transpose_b", transpose_b)
    check_number("gemm", "alpha", alpha)
    check_number("gemm", "beta", beta)
    return call(
        "matmul", a, b, bias, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha,
        beta=beta, z=z, activation=activation, policy=policy_text(policy, "matmul"),
    )  # fmt: skip


def _flops(
    a: Sequence[int],
    b: Sequence[int],
    *more: Any,
    transpose_a: bool = False,
    out_shape: Any = None,
    **keywords: Any,
) -> int:
    terms = a[-2] if transpose_a else a[-1]
    return 2 * int(prod(out_shape)) * terms


_PRODUCTS = (torch.mm, Tensor.mm, torch.bmm, Tensor.bmm, Tensor.__matmul__)

describe(
    Family(
        "matmul",
        tensor_cores=True,
        tf32_by='torch.set_float32_matmul_precision("high")',
        replaced=in_place_of_methods(matmul) | dict.fromkeys(_PRODUCTS, matmul),
        keywords={"mat2": "other"},
        flops={"matmul": _flops},
    )
)
