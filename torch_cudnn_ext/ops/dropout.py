"""Dropout as a function."""

import torch
from torch import Tensor

from torch_cudnn_ext.ops._arguments import call, check_flag, check_number, check_tensor
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Zero elements with probability ``p`` and divide the others by ``1 - p``.

    As ``torch.nn.functional.dropout``. ``aten:default`` gives PyTorch's own mask for a seed. Every
    other algorithm gives another mask, which ``torch.manual_seed`` repeats too: ``cpu:threshold``
    and ``cpu:geometric`` on the CPU, ``legacy:default`` (``cudnnDropoutForward``,
    ``cudnnDropoutBackward``; no bfloat16) on CUDA. cuDNN draws the random numbers only if the
    policy pins its algorithm or admits no other backend (``backends=cudnn``), and then without
    fallback. Both passes run one algorithm. Under ``torch.vmap``, its ``randomness`` decides
    between one mask for each sample, one for all, and an error.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        p: The probability of a zero, 0 to 1.
        training: Whether to drop anything.
        inplace: Whether to write the result into the input.
        policy: How the algorithm of the passes ``fwd`` and ``bwd`` is selected.

    Returns:
        A tensor of the input's sizes and memory format; the input itself if nothing is dropped.
        Differentiable any number of times.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: ``p`` is out of range, the dtype is not supported, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> dropout(torch.ones(4), p=0.5, training=False)
        tensor([1., 1., 1., 1.])
    """
    check_tensor("dropout", "input", input)
    check_number("dropout", "p", p)
    check_flag("dropout", "training", training)
    check_flag("dropout", "inplace", inplace)
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: argument p: got {p}, wanted a probability from 0 to 1")
    text = policy_text(policy, "dropout")
    if not training or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        result = input * torch.zeros((), dtype=input.dtype, device=input.device)
    else:
        result = call("dropout", input, p, policy=text)
    return input.copy_(result) if inplace else result


describe(Family("dropout", random=("dropout", "_dropout"), training=("_dropout",), gains=False))
