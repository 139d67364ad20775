"""Softmax and log-softmax as functions."""

import torch
from torch import Tensor

from torch_cudnn_ext.ops._arguments import call, check_tensor
from torch_cudnn_ext.policy import PolicyLike, policy_text


def softmax(
    input: Tensor, dim: int, dtype: torch.dtype | None = None, *, policy: PolicyLike = None
) -> Tensor:
    """Exponentials along a dimension, divided by their sum, as ``torch.nn.functional.softmax``.

    cuDNN's algorithms (``cudnnSoftmaxForward``, ``cudnnSoftmaxBackward``) are ``legacy:accurate``
    and ``legacy:fast``; the latter subtracts no maximum, so that large inputs overflow, and is
    admitted with ``allow_reduced_range`` only. On the CPU there are ``cpu:three_pass`` and
    ``cpu:online``, and everywhere ``aten:default``.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        dim: The dimension that sums to one.
        dtype: The input is cast to this first.
        policy: How to choose the algorithms of the passes ``fwd`` and ``bwd``.

    Returns:
        A contiguous tensor of the input's sizes. Differentiable twice.

    Raises:
        TypeError: ``input`` is no tensor, or ``policy`` none of what stands for one.
        ValueError: ``dim`` is out of range, the dtype is not supported, or the policy is wrong.
    """
    check_tensor("softmax", "input", input)
    return call("softmax", input, dim, dtype, policy=policy_text(policy, "softmax"))


def log_softmax(
    input: Tensor, dim: int, dtype: torch.dtype | None = None, *, policy: PolicyLike = None
) -> Tensor:
    """The logarithm of `softmax`, computed in one, as ``torch.nn.functional.log_softmax``.

    cuDNN has one algorithm for it, ``legacy:accurate``. All else is as in `softmax`.
    """
    check_tensor("log_softmax", "input", input)
    return call("log_softmax", input, dim, dtype, policy=policy_text(policy, "softmax"))
