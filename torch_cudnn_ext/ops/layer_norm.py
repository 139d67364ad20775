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
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

_FAMILY = "layer_norm"


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Normalise over the last dimensions, as ``torch.nn.functional.layer_norm`` (Ba et al. 2016).

    cuDNN computes it with the engines of its graph API (``CUDNN_LAYER_NORM``), all of which compile
    at their first use (0.3 to 3 s) and none of which takes float64; its classic API has none. On
    the CPU there are ``cpu:two_pass`` and ``cpu:one_pass``, and everywhere ``aten:default``.

    Args:
        input: Any sizes that end with ``normalized_shape``; float64, float32, float16 or bfloat16.
        normalized_shape: Sizes of the dimensions that are normalised over.
        weight: Of these sizes; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``; where there is none, of the input's dtype.
        eps: Added to the variance.
        policy: How to choose the algorithms of the passes ``fwd`` and ``bwd``.

    Returns:
        A contiguous tensor of the input's sizes and dtype. Differentiable twice. Under CUDA's
        autocast it is float32, as with PyTorch.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    check_tensor("layer_norm", "input", input)
    check_number("layer_norm", "eps", eps)
    sizes = integers_of("layer_norm", "normalized_shape", normalized_shape, "integers")
    text = policy_text(policy, _FAMILY)
    return call("layer_norm", input, sizes, weight, bias, eps, policy=text)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Divide by the root mean square over the last dimensions, as ``torch.nn.functional.rms_norm``.

    cuDNN's engines are those of ``CUDNN_RMS_NORM``; all else is as in `layer_norm`, without a bias.

    Args:
        input: Any sizes that end with ``normalized_shape``; float64, float32, float16 or bfloat16.
        normalized_shape: Sizes of the dimensions that are normalised over.
        weight: Of these sizes; the input's dtype, or float32 with float16 and bfloat16.
        eps: Added to the mean square; without one, ``torch.finfo(...).eps`` of the dtype that is
            computed in: float64 for itself, float32 for all others, as PyTorch does.
        policy: How to choose the algorithms of the passes ``fwd`` and ``bwd``.

    Returns:
        A tensor of the input's sizes and dtype, contiguous (on the CPU, of the input's memory
        format, as PyTorch's). Differentiable twice.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    check_tensor("rms_norm", "input", input)
    if eps is not None:
        check_number("rms_norm", "eps", eps)
    sizes = integers_of("rms_norm", "normalized_shape", normalized_shape, "integers")
    text = policy_text(policy, _FAMILY)
    return call("rms_norm", input, sizes, weight, eps, policy=text)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Normalise each channel of each sample, as ``torch.nn.functional.instance_norm``.

    cuDNN's algorithms are ``legacy:spatial`` and ``legacy:spatial_persistent`` (with
    ``allow_reduced_range`` only), batch norms (``cudnnBatchNormalizationForwardTraining``,
    ``...Backward``) of a single sample that has all instances' channels, and the engines of
    ``CUDNN_INSTANCE_NORM``, which compile at their first use and take no float64. A channels_last
    input is read as it is by these engines; the classic algorithms refuse it. On the CPU there are
    ``cpu:two_pass`` and ``cpu:one_pass``, and everywhere ``aten:default``.

    Args:
        input: ``[batch, channels, ...]`` with more than one element in space; float64, float32,
            float16 or bfloat16.
        running_mean: ``[channels]``; changed in place by the mean of the batch, without gradient.
        running_var: As ``running_mean``, for the unbiased variance.
        weight: ``[channels]``; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``; where there is none, of the input's dtype.
        use_input_stats: Whether to normalise by the input's statistics. By running statistics
            nothing is left to choose: this is PyTorch's own batch norm of inference.
        momentum: The new value's share of a running statistic.
        eps: Added to the variance.
        policy: How to choose the algorithms of the passes ``fwd`` and ``bwd``.

    Returns:
        A contiguous tensor of the input's sizes and dtype. Differentiable twice.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
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
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Normalise groups of channels of each sample, as ``torch.nn.functional.group_norm``.

    cuDNN names a group norm but has no engine for it. What runs is its instance norm, with all the
    algorithms of `instance_norm`, over the view ``[batch, groups, channels / groups * space]``; the
    scale and shift of each channel are a step of their own.

    Args:
        input: ``[batch, channels, ...]``; float64, float32, float16 or bfloat16.
        num_groups: A divisor of the channels (Wu and He 2018).
        weight: ``[channels]``; the input's dtype, or float32 with float16 and bfloat16.
        bias: As ``weight``; where there is none, of the input's dtype.
        eps: Added to the variance.
        policy: How to choose the algorithms of the passes ``fwd`` and ``bwd``.

    Returns:
        A tensor of the input's sizes and dtype, contiguous (on the CPU, of the input's memory
        format, as PyTorch's). Differentiable twice. Under CUDA's autocast it is float32, as with
        PyTorch.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes or dtypes do not fit, there is one value a group in all of the batch, or
            the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
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
