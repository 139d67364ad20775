"""Pooling as functions, with PyTorch's argument names and a choice of algorithm.

All take tensors with or without a batch, of any strides, in float64, float32, float16 or bfloat16;
the result keeps ``channels_last`` as PyTorch's does. A stride of ``None`` is the kernel's size. The
passes are ``fwd`` and ``bwd``; those of a maximum are coupled: its backward runs the algorithm of
its forward, since it may read what that one left. All are differentiable twice.

cuDNN's algorithms are ``legacy:max`` (whose gradient adds atomically, so that it may differ from
run to run), ``legacy:max_deterministic`` and ``legacy:avg`` (``cudnnPoolingForward``,
``cudnnPoolingBackward``), and the graph API's resampling engines, ``graph:eng1`` and others. They
have no dilation and no adaptive windows of several sizes; ceil mode, where it has one more window,
is the graph API's alone. On the CPU there are ``cpu:taps`` and ``cpu:unfold``, and everywhere
``aten:default``.

All raise ``TypeError`` where an argument's type is wrong and ``ValueError`` where its value is.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext import _C
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.ops._arguments import (
    Sizes,
    call,
    check_flag,
    check_number,
    check_tensor,
    integer_of,
    sizes_of,
)
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import Policy, PolicyLike, as_policy, policy_text

OutputSizes: TypeAlias = int | None | Sequence[int | None]


def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take the maximum of windows of ``[N, C, L]`` or ``[C, L]``; else as in `max_pool2d`."""
    return _max_pool(
        1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, policy
    )


def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take the maximum of windows, as ``torch.nn.functional.max_pool2d``.

    Below version 9.28 cuDNN gives the lowest finite number for a window of negative infinity alone.
    There its algorithms are admitted with ``allow_reduced_range`` only.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        kernel_size: Of the window.
        stride: From window to window.
        padding: On either side, with negative infinity; at most half of ``kernel_size``.
        dilation: Between the elements of a window.
        ceil_mode: Whether a last window may reach beyond the padding.
        return_indices: Give the places of the maxima as well, as PyTorch numbers them. No other
            algorithm than PyTorch's own makes them, so that none can be pinned, and ``backends``,
            wherever they are set, must have ``aten`` among them.
        policy: How to choose the algorithms.

    Returns:
        The maxima, and with ``return_indices`` their indices, as int64.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit;
            or, with ``return_indices``, the policy keeps off PyTorch's own algorithm, or the input
            wants a gradient and that algorithm would write out of bounds (dilated, on the CPU).
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    return _max_pool(
        2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, policy
    )


def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take the maximum of windows of ``[N, C, D, H, W]``; else as in `max_pool2d`."""
    return _max_pool(
        3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, policy
    )


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Average windows of ``[N, C, L]`` or ``[C, L]``; else as in `avg_pool2d`."""
    return _avg_pool(
        "avg", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None, policy
    )


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Average windows, as ``torch.nn.functional.avg_pool2d``.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        kernel_size: Of the window.
        stride: From window to window.
        padding: On either side, with zeros; at most half of ``kernel_size``.
        ceil_mode: Whether a last window may reach beyond the padding.
        count_include_pad: Whether padding counts in what sums are divided by.
        divisor_override: What sums are divided by instead.
        policy: How to choose the algorithms.

    Returns:
        The averages.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    return _avg_pool(
        "avg",
        2,
        input,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        policy,
    )


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Average windows of ``[N, C, D, H, W]``; else as in `avg_pool2d`.

    The result is contiguous.
    """
    return _avg_pool(
        "avg",
        3,
        input,
        kernel_size,
        stride,
        padding,
        ceil_mode,
        count_include_pad,
        divisor_override,
        policy,
    )


def sum_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Sum windows of ``[N, C, L]`` or ``[C, L]``; else as in `sum_pool2d`."""
    return _avg_pool("sum", 1, input, kernel_size, stride, padding, ceil_mode, True, 1, policy)


def sum_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Sum windows: `avg_pool2d` with a divisor of 1.

    ``legacy:avg`` computes it as an average times the window's volume. Arguments and errors are
    those of `avg_pool2d`.

    Returns:
        The sums.
    """
    return _avg_pool("sum", 2, input, kernel_size, stride, padding, ceil_mode, True, 1, policy)


def sum_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Sum windows of ``[N, C, D, H, W]``; else as in `sum_pool2d`."""
    return _avg_pool("sum", 3, input, kernel_size, stride, padding, ceil_mode, True, 1, policy)


def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Take the p-norm of windows of ``[N, C, L]`` or ``[C, L]``; else as in `lp_pool2d`."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode, policy)


def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Take the p-norm of windows, as ``torch.nn.functional.lp_pool2d``.

    The powers are averaged by the algorithm that ``policy`` chooses, so that every norm, L2 among
    them, runs on cuDNN; power and root are PyTorch's. With ``ceil_mode`` windows at the end count
    as if they were full, as PyTorch's do. Where the sum is zero, so is the gradient.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        norm_type: The exponent p; not 0.
        kernel_size: Of the window.
        stride: From window to window.
        ceil_mode: Whether a last window may reach beyond the input.
        policy: How to choose the algorithms.

    Returns:
        The norms.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode, policy)


def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor:
    """Take the p-norm of windows of ``[N, C, D, H, W]``; else as in `lp_pool2d`."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode, policy)


def adaptive_avg_pool1d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average ``[N, C, L]`` or ``[C, L]`` to a size; else as in `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(1, input, output_size, policy)


def adaptive_avg_pool2d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average to a size, as ``torch.nn.functional.adaptive_avg_pool2d``.

    Where the sizes divide the input's, this is plain pooling, which all algorithms can do.
    Elsewhere windows differ in size, and ``aten:default`` alone takes them.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``; with an ``output_size`` of 1 there may be more
            dimensions in front, as PyTorch has it (but not in one dimension of space).
        output_size: Of the result; ``None`` is the input's size.
        policy: How to choose the algorithms.

    Returns:
        The averages, ``output_size`` of them in each dimension of space.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit.
        RuntimeError: A pinned algorithm cannot run, or none can under the policy.
    """
    return _adaptive_avg_pool(2, input, output_size, policy)


def adaptive_avg_pool3d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average ``[N, C, D, H, W]`` to a size; else as in `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(3, input, output_size, policy)


def adaptive_max_pool1d(
    input: Tensor,
    output_size: OutputSizes,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take maxima of ``[N, C, L]`` or ``[C, L]`` to a size; else as in `adaptive_max_pool2d`."""
    return _adaptive_max_pool(1, input, output_size, return_indices, policy)


def adaptive_max_pool2d(
    input: Tensor,
    output_size: OutputSizes,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take maxima to a size, as ``torch.nn.functional.adaptive_max_pool2d``.

    Arguments and windows are those of `adaptive_avg_pool2d`, ``return_indices`` and errors those of
    `max_pool2d`.

    Returns:
        The maxima, and with ``return_indices`` their indices, as int64.
    """
    return _adaptive_max_pool(2, input, output_size, return_indices, policy)


def adaptive_max_pool3d(
    input: Tensor,
    output_size: OutputSizes,
    return_indices: bool = False,
    *,
    policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Take maxima of ``[N, C, D, H, W]`` to a size; else as in `adaptive_max_pool2d`."""
    return _adaptive_max_pool(3, input, output_size, return_indices, policy)


def _max_pool(
    dims: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
    policy: PolicyLike,
) -> Tensor | tuple[Tensor, Tensor]:
    name = f"max_pool{dims}d"
    check_tensor(name, "input", input)
    check_flag(name, "ceil_mode", ceil_mode)
    check_flag(name, "return_indices", return_indices)
    kernel = sizes_of(name, "kernel_size", kernel_size, dims)
    arguments = (
        _strides(name, stride, dims, kernel),
        sizes_of(name, "padding", padding, dims),
        sizes_of(name, "dilation", dilation, dims),
    )
    if return_indices:
        _check_indices(name, _text(policy))
        _check_as_without_indices(input, kernel, *arguments, ceil_mode)
        _check_windows(name, input, kernel, *arguments, ceil_mode)
        found: tuple[Tensor, Tensor] = getattr(F, f"{name}_with_indices")(
            input, kernel, *arguments, ceil_mode
        )
        return found
    return call("max_pool", input, kernel, *arguments, ceil_mode, policy=_text(policy))


def _avg_pool(
    kind: str,
    dims: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    policy: PolicyLike,
) -> Tensor:
    name = f"{kind}_pool{dims}d"
    check_tensor(name, "input", input)
    check_flag(name, "ceil_mode", ceil_mode)
    check_flag(name, "count_include_pad", count_include_pad)
    if divisor_override is not None:
        divisor_override = integer_of(name, "divisor_override", divisor_override)
    kernel = sizes_of(name, "kernel_size", kernel_size, dims)
    return call(
        "avg_pool",
        input,
        kernel,
        _strides(name, stride, dims, kernel),
        sizes_of(name, "padding", padding, dims),
        ceil_mode,
        count_include_pad,
        divisor_override,
        policy=_text(policy),
    )


def _lp_pool(
    dims: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None,
    ceil_mode: bool,
    policy: PolicyLike,
) -> Tensor:
    check_tensor(f"lp_pool{dims}d", "input", input)
    check_number(f"lp_pool{dims}d", "norm_type", norm_type)
    if type(norm_type) is int:
        integer_of(f"lp_pool{dims}d", "norm_type", norm_type)
    if norm_type == 0:
        raise ValueError(f"lp_pool{dims}d: argument norm_type: got 0, wanted any other number")
    mean = _avg_pool(
        "lp",
        dims,
        input.pow(norm_type),
        kernel_size,
        stride,
        0,
        ceil_mode,
        True,
        None,
        policy,
    )
    volume = math.prod(sizes_of(f"lp_pool{dims}d", "kernel_size", kernel_size, dims))
    # relu makes the gradient zero where the root's is infinite.
    return (mean.sign() * mean.abs().relu()).mul(volume).pow(1 / norm_type)


def _adaptive_avg_pool(
    dims: int, input: Tensor, output_size: OutputSizes, policy: PolicyLike
) -> Tensor:
    name = f"adaptive_avg_pool{dims}d"
    sizes = _output_sizes(name, input, output_size, dims)
    if 1 < dims < input.dim() - 2 and all(size == 1 for size in sizes):
        flat = _adaptive_avg_pool(dims, input.flatten(0, -dims - 2), output_size, policy)
        return flat.reshape(*input.shape[:-dims], *sizes)
    if dims == 2 == input.dim() and sizes == [1, 1]:  # PyTorch takes the mean
        return _adaptive_avg_pool(dims, input.unsqueeze(0), output_size, policy).squeeze(0)
    return call("avg_pool", input, sizes, sizes, [0] * dims, adaptive=True, policy=_text(policy))


def _adaptive_max_pool(
    dims: int,
    input: Tensor,
    output_size: OutputSizes,
    return_indices: bool,
    policy: PolicyLike,
) -> Tensor | tuple[Tensor, Tensor]:
    name = f"adaptive_max_pool{dims}d"
    check_flag(name, "return_indices", return_indices)
    sizes = _output_sizes(name, input, output_size, dims)
    arguments = (sizes, sizes, [0] * dims, [1] * dims)  # none is empty: AOTInductor has None then
    if return_indices:
        _check_indices(name, _text(policy))
        _check_as_without_indices(input, *arguments, adaptive=True)
        found: tuple[Tensor, Tensor] = getattr(F, f"{name}_with_indices")(input, sizes)
        return found
    return call("max_pool", input, *arguments, adaptive=True, policy=_text(policy))


def _check_as_without_indices(input: Tensor, *arguments: Any, **keywords: Any) -> None:
    """Let the operator refuse what it does without indices; in a graph PyTorch's own checks do."""
    if not torch.compiler.is_compiling():
        with torch._C.DisableTorchFunction():  # or a recording takes it for a call of the network
            meta = torch.empty(input.shape, dtype=input.dtype, device="meta")
            call("max_pool", meta, *arguments, **keywords)


def _check_windows(
    name: str,
    input: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
) -> None:
    """Refuse windows for whose indices PyTorch's gradient writes out of bounds."""
    is_rare = max(dilation) > 1 and max(padding) > 0 and input.device.type == "cpu"
    wants_gradient = input.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling() or not (is_rare and wants_gradient and input.numel()):
        return
    with torch._C.DisableTorchFunction():  # nothing is computed here
        lines = _C.problems_posed_by(
            lambda: call("max_pool", input.detach(), kernel, stride, padding, dilation, ceil_mode)
        )
    for line in lines:
        for row in _C.candidates(line, "cpu", "backends=aten"):
            if row["status"] == "unsupported":
                raise ValueError(
                    f"{name}: argument return_indices: got True of an input that wants a gradient, "
                    "wanted False, since aten:default, which alone gives indices, is refused: "
                    + row["reason"]
                )


def _text(policy: PolicyLike) -> str | None:
    return policy_text(policy, "pool")


def _strides(name: str, stride: Sizes | None, dims: int, kernel: list[int]) -> list[int]:
    if stride is None or (isinstance(stride, tuple | list) and not stride):
        return kernel
    return sizes_of(name, "stride", stride, dims)


def _output_sizes(name: str, input: Tensor, sizes: OutputSizes, dims: int) -> list[int]:
    check_tensor(name, "input", input)
    given = [None] * dims if sizes is None else sizes
    is_bytes = isinstance(given, bytes)  # also a sequence of integers
    if isinstance(given, Sequence) and not is_bytes and len(given) == dims <= input.dim():
        own = input.shape[input.dim() - dims :]
        given = [size if want is None else want for want, size in zip(given, own, strict=True)]
    return sizes_of(name, "output_size", given, dims)  # type: ignore[arg-type]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _check_indices(name: str, policy: str | None) -> None:
    """Where a policy keeps off PyTorch's kernel, which alone gives indices, do as it says then."""
    # Also what flags and knobs say.
    merged = Policy._unchecked(_C.resolved_policy(as_policy(policy, "pool").text, "pool"), "pool")
    reasons = [
        f"{key}={algorithm}"
        for key in ("fwd", "bwd")
        if (algorithm := merged.get(key)) not in (None, "heuristic", "autotune", "aten:default")
    ]
    backends = merged.get("backends")
    if backends is not None and "aten" not in backends.split(","):
        reasons.append(f"backends={backends}")
    if not reasons:
        return
    said = (
        f"{name}: argument return_indices: got True under the policy {';'.join(reasons)}, wanted "
        "aten:default or no pin, and aten among the backends, since no other algorithm gives "
        "indices"
    )
    action = merged.get("on_unsupported") or "error"
    if action == "error":
        raise ValueError(said)
    if action == "warn":
        warn(f"{said}; aten:default runs instead")


describe(Family("pool", images=lambda problem: ("x",)))
