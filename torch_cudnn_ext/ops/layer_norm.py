"""Layer, RMS, instance and group norm as functions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torch_cudnn_ext.ops._arguments import (
    call,
    check_flag,
    check_number,
    check_tensor,
    integer_of,
    integers_of,
)
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

_FAMILY = "layer_norm"


@direct("layer_norm", _FAMILY)
def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Normalise over the last dimensions, as ``torch.nn.functional.layer_norm`` (Ba et al. 2016).

    cuDNN computes it with the engines of its graph API (``CUDNN_LAYER_NORM``), which compile at
    their first use, in 0.3 to 3 s, and do not take float64. The classic API has no such function.
    On the CPU there are ``cpu:two_pass`` and ``cpu:one_pass``, and everywhere ``aten:default``.

    Args:
        input: Any sizes that end with ``normalized_shape``; float64, float32, float16 or bfloat16.
        normalized_shape: Sizes of the dimensions to normalise over.
        weight: Of these sizes; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``, or of the input's dtype without a weight.
        eps: Added to the variance.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A contiguous tensor of the input's sizes and dtype. Differentiable twice. Under CUDA's
        autocast it is float32, as in PyTorch.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> layer_norm(torch.randn(2, 8), [8], policy="cpu:one_pass").shape
        torch.Size([2, 8])
    """
    check_tensor("layer_norm", "input", input)
    check_number("layer_norm", "eps", eps)
    sizes = integers_of("layer_norm", "normalized_shape", normalized_shape, "integers")
    text = policy_text(policy, _FAMILY)
    return call("layer_norm", input, sizes, weight, bias, eps, policy=text)


@direct("rms_norm", _FAMILY)
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Divide by the root mean square over the last dimensions, as ``torch.nn.functional.rms_norm``.

    cuDNN's engines are those of ``CUDNN_RMS_NORM``. Other algorithms and errors are those of
    `layer_norm`.

    Args:
        input: Any sizes that end with ``normalized_shape``; float64, float32, float16 or bfloat16.
        normalized_shape: Sizes of the dimensions to normalise over.
        weight: Of these sizes; the input's dtype, or float32 with float16 and bfloat16.
        eps: Added to the mean square; ``None`` for ``torch.finfo(...).eps`` of the dtype that is
            computed in, as in PyTorch: float64 for float64, float32 for all others.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A tensor of the input's sizes and dtype, contiguous (on the CPU, of the input's memory
        format, as in PyTorch). Differentiable twice.

    Example:
        >>> rms_norm(torch.full((1, 4), 3.0), [4], eps=0.0)
        tensor([[1., 1., 1., 1.]])
    """
    check_tensor("rms_norm", "input", input)
    if eps is not None:
        check_number("rms_norm", "eps", eps)
    sizes = integers_of("rms_norm", "normalized_shape", normalized_shape, "integers")
    text = policy_text(policy, _FAMILY)
    return call("rms_norm", input, sizes, weight, eps, policy=text)


@direct("instance_norm", _FAMILY)
def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Normalise each channel of each sample, as ``torch.nn.functional.instance_norm``.

    cuDNN's algorithms are batch norms (``cudnnBatchNormalizationForwardTraining``,
    ``...Backward``) of a single sample that has the channels of all instances: ``legacy:spatial``
    and ``legacy:spatial_persistent`` (with ``allow_reduced_range`` only); and the engines of
    ``CUDNN_INSTANCE_NORM``, which compile at their first use and do not take float64. These engines
    read a channels_last input as it is; the classic algorithms do not take it. On the CPU there are
    ``cpu:two_pass`` and ``cpu:one_pass``, and everywhere ``aten:default``. Errors are those of
    `layer_norm`.

    Args:
        input: ``[batch, channels, ...]`` with more than one element in space; float64, float32,
            float16 or bfloat16.
        running_mean: ``[channels]``; updated in place by the mean of the batch, without gradient.
        running_var: ``[channels]``; likewise, by the unbiased variance.
        weight: ``[channels]``; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``, or of the input's dtype without a weight.
        use_input_stats: Whether to normalise by the input's statistics. Otherwise this is PyTorch's
            own batch norm of inference, whatever the policy.
        momentum: Share of the new value in a running statistic.
        eps: Added to the variance.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A contiguous tensor of the input's sizes and dtype. Differentiable twice.

    Example:
        >>> instance_norm(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """
    check_tensor("instance_norm", "input", input)
    check_flag("instance_norm", "use_input_stats", use_input_stats)
    check_number("instance_norm", "momentum", momentum)
    check_number("instance_norm", "eps", eps)
    text = policy_text(policy, _FAMILY)
    statistics = (running_mean, running_var)
    options = (use_input_stats, momentum, eps)
    return call("instance_norm", input, *statistics, weight, bias, *options, policy=text)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Normalise groups of channels of each sample, as ``torch.nn.functional.group_norm``.

    cuDNN names a group norm but has no engine for it. This runs the algorithms of `instance_norm`
    over the view ``[batch, groups, channels / groups * space]``, and then scales and shifts each
    channel.

    Args:
        input: ``[batch, channels, ...]``; float64, float32, float16 or bfloat16.
        num_groups: A divisor of the channels (Wu and He 2018).
        weight: ``[channels]``; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``, or of the input's dtype without a weight.
        eps: Added to the variance.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A tensor of the input's sizes and dtype, contiguous (on the CPU, of the input's memory
        format, as in PyTorch). Differentiable twice. Under CUDA's autocast it is float32, as in
        PyTorch.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, the whole batch has one value per group, or the
            policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> group_norm(torch.randn(2, 6, 8, 8), 3).shape
        torch.Size([2, 6, 8, 8])
    """
    check_tensor("group_norm", "input", input)
    check_number("group_norm", "eps", eps)
    groups = integer_of("group_norm", "num_groups", num_groups)
    if groups >= 1 and input.dim() >= 2 and input.numel() == groups:
        raise ValueError(
            f"group_norm: argument input: got sizes {tuple(input.shape)} for {groups} groups, "
            "wanted more than 1 value per channel"
        )
    text = policy_text(policy, _FAMILY)
    return call("group_norm", input, groups, weight, bias, eps, policy=text)


def _kind(problem: "ProblemInfo") -> str:
    return problem["text"].partition(" kind=")[2].partition(" ")[0]


describe(
    Family(
        _FAMILY,
        images=lambda problem: ("x",) if _kind(problem) == "instance" else (),
        has_rows=lambda problem: _kind(problem) in ("layer", "rms"),
    )
)
