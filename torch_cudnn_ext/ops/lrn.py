"""Local response and divisive normalisation as functions."""

from typing import Literal, TypeAlias

from torch import Tensor

from torch_cudnn_ext.ops._arguments import call, check_number, check_tensor, integer_of
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.policy import PolicyLike, policy_text

LrnWindow: TypeAlias = Literal["torch", "cudnn"]


@direct("local_response_norm", "lrn")
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0,
    window: LrnWindow = "torch", *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Normalise over neighbouring channels, as ``torch.nn.functional.local_response_norm``.

    ``x / (k + alpha / size * sum(x^2 over the window))^beta`` (Krizhevsky et al. 2012). The window
    has ``size`` channels; those beyond the first and last count as zeros. An even window has
    ``size // 2`` channels before the middle in PyTorch, one less in cuDNN. Therefore
    ``legacy:cross_channel`` (``cudnnLRNCrossChannelForward``, ``...Backward``) takes odd sizes, and
    even ones only with ``window="cudnn"``, which all backends compute alike. It takes
    ``size <= 16``, ``k >= 1e-5`` and ``beta >= 0.01``, and copies bfloat16 to float32 in its
    workspace. On the CPU there are ``cpu:shifted`` and ``cpu:prefix``, and everywhere
    ``aten:default``. cuDNN loses NaN, and ``cpu:prefix`` spreads an infinity or NaN over all later
    channels: both are admitted with ``allow_reduced_range`` only.

    Args:
        input: ``[batch, channels, ...]`` of three or more dimensions; float64, float32, float16 or
            bfloat16.
        size: Size of the window, in channels.
        alpha: Factor of the mean square.
        beta: The exponent.
        k: Added to the mean square.
        window: The middle of an even window: PyTorch's (``torch``) or ``cudnn``'s.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A tensor of the input's sizes, dtype and memory format. Differentiable twice.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument is out of range, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> local_response_norm(torch.zeros(1, 4, 2, 2), 3).sum()
        tensor(0.)
    """
    check_tensor("local_response_norm", "input", input)
    size = _checked_size("local_response_norm", size, alpha, beta, k)
    text = policy_text(policy, "lrn")
    return call("local_response_norm", input, size, alpha, beta, k, window, policy=text)


@direct("divisive_norm", "lrn")
def divisive_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0,
    means: Tensor | None = None, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Divide each element by a measure of its neighbourhood in space (Jarrett et al. 2009).

    ``x / (k + alpha / size^d * sum((x - means)^2 over the window))^beta``. The window has ``size``
    elements in each of the ``d`` spatial dimensions, ``(size - 1) // 2`` of them before its middle;
    elements beyond the edges count as zeros. Local contrast normalisation is this function of ``x``
    minus its local mean, which average pooling computes for instance.

    cuDNN's algorithm is ``legacy:precomputed_means`` (``cudnnDivisiveNormalizationForward``,
    ``...Backward``); its two temporary tensors, and bfloat16's copies, are the workspace. Its
    limits, the algorithms on the CPU and the errors are those of `local_response_norm`. PyTorch
    has no such function: ``aten:default`` is the formula in its operators.

    Args:
        input: ``[batch, channels, height, width]`` or ``[batch, channels, depth, height, width]``;
            float64, float32, float16 or bfloat16.
        size: Size of the window in each spatial dimension.
        alpha: Factor of the mean square.
        beta: The exponent.
        k: Added to the mean square.
        means: Of the input's sizes and dtype, differentiable; ``None`` for zeros.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A tensor of the input's sizes, dtype and memory format. Differentiable twice.

    Example:
        >>> divisive_norm(torch.zeros(1, 4, 5, 5), 3).sum()
        tensor(0.)
    """
    check_tensor("divisive_norm", "input", input)
    size = _checked_size("divisive_norm", size, alpha, beta, k)
    text = policy_text(policy, "lrn")
    return call("divisive_norm", input, size, alpha, beta, k, means, policy=text)


def _checked_size(function: str, size: int, alpha: float, beta: float, k: float) -> int:
    """The window's size; TypeError if it or a number has a wrong type."""
    for argument, value in (("alpha", alpha), ("beta", beta), ("k", k)):
        check_number(function, argument, value)
    return integer_of(function, "size", size)
