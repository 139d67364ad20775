"""Batch normalisation as functions."""

import math
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from torch_cudnn_ext.ops._arguments import (
    call,
    call_for_all,
    check_flag,
    check_number,
    check_tensor,
)
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

NormMode: TypeAlias = Literal["spatial", "per_activation"]
NormActivation: TypeAlias = Literal["none", "relu"]


class BatchNormTrained(NamedTuple):
    """The results of `batch_norm_train`.

    Attributes:
        output: The normalised data, with the sizes of the input.
        mean: The mean of each channel, ``[C]``.
        invstd: ``1 / sqrt(variance + eps)`` of each channel, ``[C]``.
        running_mean: The updated running mean; ``None`` if none was given.
        running_var: The updated running variance; ``None`` if none was given.
    """

    output: Tensor
    mean: Tensor
    invstd: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None


@direct("batch_norm", "batch_norm", positive=("eps",))
def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
    *, mode: NormMode = "spatial", z: Tensor | None = None, activation: NormActivation = "none",
    policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """``(input - mean) / sqrt(variance + eps) * weight + bias``, as PyTorch's ``batch_norm``.

    With ``z`` and ``activation="relu"`` it is ``relu(batch_norm(input) + z)``.

    cuDNN's algorithms (``cudnnBatchNormalizationForwardTraining``, ``...ForwardInference``,
    ``...Backward``) are ``legacy:spatial``; ``legacy:spatial_persistent``, which limits the range
    of values (PyTorch runs it for channels_last training); ``legacy:per_activation``, if each
    sample has one value for each statistic; and, of the graph API, ``graph:eng0`` with its engine
    knobs (not for float64). On the CPU there are ``cpu:two_pass`` and ``cpu:chunked``, and
    everywhere ``aten:default``. cuDNN has no backward with running statistics.

    Args:
        input: ``[N, C, ...]`` of two or more dimensions; float64, float32, float16 or bfloat16.
        running_mean: Mean of each channel, ``[C]`` (``per_activation``: the sizes of one sample),
            in float32 (float64 for float64 input) or the input's dtype. Changed in training.
        running_var: Variance of each channel, likewise.
        weight: Scale of each channel; ``None`` for ones.
        bias: Shift of each channel; ``None`` for zeros.
        training: Whether to use the statistics of ``input`` and update the running ones.
        momentum: Share of the new value in the running statistics.
        eps: Added to the variance; above 0.
        mode: ``spatial`` for statistics of each channel, ``per_activation`` for statistics of each
            element of a sample.
        z: Added before the activation; of the input's sizes and dtype.
        activation: ``none`` or ``relu``.
        policy: How the algorithms are selected, of the passes ``fwd`` (training), ``infer`` and
            ``bwd``.

    Returns:
        A tensor of the input's sizes, dtype and memory format. Twice differentiable with respect to
        ``input``, ``weight``, ``bias`` and ``z``, with ``training`` and without.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, a channel has only one value in training, running
            statistics are missing without training, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> x = torch.randn(8, 3, 4, 4)
        >>> y = batch_norm(x, None, None, training=True, policy="fwd=cpu:two_pass")
        >>> y.shape, bool(y.mean().abs() < 1e-5)
        (torch.Size([8, 3, 4, 4]), True)
    """
    check_tensor("batch_norm", "input", input)
    check_flag("batch_norm", "training", training)
    _check_numbers("batch_norm", momentum, eps)
    if training:
        _check_values("batch_norm", input, mode)
    return call(
        "batch_norm", input, running_mean, running_var, weight, bias, training, momentum, eps,
        mode=mode, z=z, activation=activation, policy=policy_text(policy, "batch_norm"),
    )  # fmt: skip


def batch_norm_train(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, momentum: float = 0.1,
    eps: float = 1e-5,
    *, mode: NormMode = "spatial", z: Tensor | None = None, activation: NormActivation = "none",
    policy: PolicyLike = None,
) -> BatchNormTrained:  # fmt: skip
    """`batch_norm` in training, with its statistics; changes no tensor.

    Arguments and errors are those of `batch_norm`.

    Returns:
        The output; the mean and inverse standard deviation (biased, with ``eps``) of each channel,
        float32 or float64, without gradients; and new running statistics (the variance unbiased),
        ``None`` if none were given.

    Example:
        >>> trained = batch_norm_train(torch.randn(8, 3, 4, 4))
        >>> trained.mean.shape
        torch.Size([3])
    """
    check_tensor("batch_norm_train", "input", input)
    _check_numbers("batch_norm_train", momentum, eps)
    _check_values("batch_norm_train", input, mode)
    mean, var = (
        running.detach().clone() if isinstance(running, Tensor) else running
        for running in (running_mean, running_var)
    )
    output, batch_mean, invstd = call_for_all(
        "batch_norm_train", input, mean, var, weight, bias, momentum, eps,
        mode=mode, z=z, activation=activation, policy=policy_text(policy, "batch_norm"),
    )  # fmt: skip
    return BatchNormTrained(output, batch_mean, invstd, mean, var)


def _check_numbers(function: str, momentum: float, eps: float) -> None:
    """Raise for the numbers that ``torch.nn.functional.batch_norm`` does not take."""
    check_number(function, "momentum", momentum)
    check_number(function, "eps", eps)
    if eps <= 0:
        raise ValueError(f"{function}: argument eps: got {eps}, wanted more than 0")


def _check_values(function: str, input: Tensor, mode: NormMode) -> None:
    """Raise ValueError for a single value per statistic, also for meta tensors and in graphs."""
    space = () if mode == "per_activation" else input.shape[2:]
    if input.dim() >= 2 and math.prod((input.shape[0], *space)) == 1:
        raise ValueError(
            f"{function}: argument input: got sizes {tuple(input.shape)}, "
            "wanted more than 1 value per channel when training"
        )


describe(
    Family(
        "batch_norm",
        forward_fields=("z", "act"),
        training_fields=("running",),
        images=lambda problem: ("x",),
        training=("_batch_norm_train", "_batch_norm_train_alone"),
        float32_parameters=True,
    )
)
