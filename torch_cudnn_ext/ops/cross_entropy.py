"""Cross-entropy as a function."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext._torch_internals import legacy_reduction
from torch_cudnn_ext.ops._arguments import check_number, check_tensor, integer_of, reduction_of
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.softmax import log_softmax
from torch_cudnn_ext.policy import PolicyLike


@direct("cross_entropy", "softmax")
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
    label_smoothing: float = 0.0, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Cross-entropy between logits and a target, as ``torch.nn.functional.cross_entropy``.

    The policy selects the algorithm of its log-softmax (family ``softmax``). The rest is PyTorch's,
    since cuDNN has no such operator.

    Args:
        input: Logits ``[N, C]``, ``[C]``, or class maps ``[N, C, d1, ...]``.
        target: Class indices ``[N]``, ``[]`` or ``[N, d1, ...]`` (int64 or uint8), or probabilities
            of the input's sizes.
        weight: One factor for each class, ``[C]``.
        size_average: Deprecated in PyTorch; see ``reduction``.
        ignore_index: The class index that does not count.
        reduce: Deprecated in PyTorch; see ``reduction``.
        reduction: ``none``, ``mean`` or ``sum``. The mean is weighted, over the indices that count.
        label_smoothing: The share, 0 to 1, that is spread evenly over all classes.
        policy: How the algorithms of log-softmax's passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A scalar, or with ``none`` a loss for each index. Differentiable twice.

    Raises:
        TypeError: ``input`` or ``target`` is no tensor, or ``policy`` stands for no policy.
        RuntimeError: As PyTorch's, if arguments do not fit together.
        IndexError: On the CPU, a target is none of the classes.
        ValueError: ``reduction``, the input's dtype or the policy is wrong.

    Example:
        >>> loss = cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
        >>> f"{loss:.4f}"  # log(4)
        '1.3863'
    """
    check_tensor("cross_entropy", "input", input)
    check_tensor("cross_entropy", "target", target)
    check_number("cross_entropy", "label_smoothing", label_smoothing)
    ignore_index = integer_of("cross_entropy", "ignore_index", ignore_index)
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce)
    reduction = reduction_of("cross_entropy", reduction)
    is_soft = input.shape == target.shape
    class_dim = 0 if input.dim() == 1 else 1
    classes = input.size(class_dim)
    if label_smoothing > 1 or (is_soft and not _fit(target, weight, ignore_index, classes)):
        # Raises with PyTorch's own message.
        return F.cross_entropy(
            input, target, weight, None, ignore_index, None, reduction, label_smoothing
        )
    if input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # PyTorch's autocast widens the whole loss on the CPU; on CUDA it widens the parts.
        input, target = _widened(input), _widened(target)
        weight = None if weight is None else _widened(weight)
    log_probabilities = log_softmax(input, class_dim, policy=policy)
    if is_soft:
        if label_smoothing > 0:
            target = target * (1 - label_smoothing) + label_smoothing / max(classes, 1)
        loss = -_weighted(log_probabilities * target, weight, class_dim)
        if reduction == "mean":
            return loss.sum() / (input.numel() // max(classes, 1))
        return loss.sum() if reduction == "sum" else loss.sum(class_dim)
    loss = F.nll_loss(
        log_probabilities, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    if label_smoothing <= 0:
        return loss
    smooth = -_weighted(log_probabilities, weight, class_dim).sum(class_dim)
    smooth = _reduced(smooth, target, weight, ignore_index, reduction)
    share = label_smoothing / classes if classes else math.inf  # as PyTorch divides
    return (1 - label_smoothing) * loss + smooth * share


def _reduced(
    losses: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    """The losses of class indices reduced, those of ``ignore_index`` being zero."""
    ignored = target == ignore_index
    losses = losses.masked_fill(ignored, 0)
    if reduction != "mean":
        return losses.sum() if reduction == "sum" else losses
    counted = ~ignored
    if weight is not None:
        indices = target.masked_fill(ignored, 0).flatten()
        counted = weight.gather(0, indices).masked_fill(ignored.flatten(), 0)
    return losses.sum() / counted.sum()


def _weighted(values: Tensor, weight: Tensor | None, class_dim: int) -> Tensor:
    if weight is None:
        return values
    sizes = [1] * values.dim()
    sizes[class_dim] = weight.shape[0]
    return values * weight.view(sizes)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _fit(target: Tensor, weight: Tensor | None, ignore_index: int, classes: int) -> bool:
    """PyTorch's own conditions on probabilities as targets."""
    fits = weight is None or (weight.dim() == 1 and weight.numel() == classes)
    return fits and target.is_floating_point() and ignore_index < 0
