"""The CTC loss as a function."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_cudnn_ext._torch_internals import FakeTensorMode, OpOverload, register_op_impl
from torch_cudnn_ext.ops._arguments import (
    call,
    check_flag,
    check_tensor,
    integer_of,
    reduction_of,
    wrong_type,
)
from torch_cudnn_ext.policy import PolicyLike, policy_text

Lengths: TypeAlias = Tensor | Sequence[int] | int

_OPS = torch.ops.torch_cudnn_ext
_SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16)


@register_op_impl([_OPS.ctc_loss.default, _OPS._ctc_loss.default])
def _with_lengths_on_the_host(
    mode: FakeTensorMode, op: OpOverload, log_probs: Tensor, targets: Tensor,
    input_lengths: Tensor, target_lengths: Tensor, *more: Any, **keywords: Any,
) -> Any:  # fmt: skip
    """Move the lengths to one device, which the fake tensors of an operator must share."""
    if input_lengths.device == target_lengths.device == log_probs.device:
        return NotImplemented  # the operator's meta function follows
    with mode:
        lengths = [t.to(log_probs.device) for t in (input_lengths, target_lengths)]
        return op(log_probs, targets, *lengths, *more, **keywords)


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths,
    blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Connectionist temporal classification, as ``torch.nn.functional.ctc_loss``.

    cuDNN's algorithms (``cudnnCTCLoss_v8``) are ``legacy:deterministic`` and
    ``legacy:non_deterministic``. They take float32, blank 0, no empty target, and inputs with room
    for a blank between any two labels. On the CPU there are ``cpu:forward_backward`` and
    ``cpu:rescaled``, and everywhere ``aten:default``. cuDNN's and ``cpu:rescaled`` have a reduced
    range and are admitted with ``allow_reduced_range`` only.

    The forward computes the gradient if one is wanted. As in PyTorch, with and without cuDNN, it is
    the gradient with respect to the logits whose log-softmax ``log_probs`` must be: probabilities
    minus posteriors. Log-softmax's own backward leaves it unchanged, so the logits' gradient is
    right; the gradient with respect to ``log_probs`` alone is not.

    Args:
        log_probs: Logarithms of probabilities, ``[T, N, C]``, or ``[T, C]`` without a batch;
            float32 or float64.
        targets: Class indices ``[N, S]``, or concatenated ``[sum(target_lengths)]``, of an integer
            type. An index below 0 or not below ``C`` is an error on the CPU. On a GPU the loss and
            gradient of such a target are NaN, since a check would wait for the device.
        input_lengths: Length of each sequence, ``[N]``, at most ``T``. Lengths in CPU memory avoid
            waiting for the device.
        target_lengths: Length of each target, ``[N]``.
        blank: The class that stands for no label.
        reduction: ``none``, ``mean`` (each loss divided by its target's length, then averaged over
            the batch) or ``sum``.
        zero_infinity: Whether the loss and gradient of a target that does not fit are zero.
        policy: How the algorithm of the pass ``fwd`` is selected.

    Returns:
        A scalar, or with ``none`` ``[N]``, or ``[]`` without a batch. Differentiable once.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes, lengths, classes, dtypes or devices do not fit together, or
            ``reduction`` or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> log_probs = torch.zeros(5, 1, 3).log_softmax(2)  # time, batch, classes
        >>> ctc_loss(log_probs, torch.tensor([[1, 2]]), [5], [2]).shape
        torch.Size([])
    """
    check_tensor("ctc_loss", "log_probs", log_probs)
    check_tensor("ctc_loss", "targets", targets)
    reduction = reduction_of("ctc_loss", reduction)
    check_flag("ctc_loss", "zero_infinity", zero_infinity)
    inputs = _lengths("input_lengths", input_lengths)
    lengths = _lengths("target_lengths", target_lengths)
    if targets.dtype in (*_SMALL_INTEGERS, torch.bool):
        targets = targets.long()
    batched = log_probs.dim() != 2
    if not batched:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(-1)
        inputs, lengths = _one("input_lengths", inputs), _one("target_lengths", lengths)
    blank = integer_of("ctc_loss", "blank", blank)
    options = (blank, zero_infinity)
    text = policy_text(policy, "ctc")
    losses = call("ctc_loss", log_probs, targets, inputs, lengths, *options, policy=text)
    if reduction == "mean":
        return (losses / lengths.to(losses).clamp_min(1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if batched else losses.squeeze(0)


def _lengths(argument: str, value: Lengths) -> Tensor:
    try:
        lengths = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong_type("ctc_loss", argument, value, "a Tensor or integers") from error
    return lengths.long() if lengths.dtype in _SMALL_INTEGERS else lengths


def _one(argument: str, lengths: Tensor) -> Tensor:
    if lengths.numel() != 1:
        raise ValueError(
            f"ctc_loss: argument {argument}: got sizes {list(lengths.shape)} for log_probs without "
            "a batch, wanted one length"
        )
    return lengths.reshape(1)
