"""Pooling as functions, with PyTorch's argument names and a selection of algorithms.

All take tensors with or without a batch, of any strides, in float64, float32, float16 or bfloat16.
The result keeps ``channels_last`` as PyTorch's does. A stride of ``None`` is the kernel's size. The
passes are ``fwd`` and ``bwd``. Those of a maximum are coupled: its backward runs the algorithm of
its forward, since it may read what that one saved. All are differentiable twice.

cuDNN's algorithms are ``legacy:max`` (whose gradient adds atomically, so that it may differ from
run to run), ``legacy:max_deterministic`` and ``legacy:avg`` (``cudnnPoolingForward``,
``cudnnPoolingBackward``), and the graph API's resampling engines, ``graph:eng1`` and others. They
have no dilation and no adaptive windows of several sizes. If ceil mode adds a window, only the
graph API's run. On the CPU there are ``cpu:taps`` and ``cpu:unfold``, and everywhere
``aten:default`` and, for maxima that no backward follows, ``aten:taps``.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext.ops._arguments import (
    Sizes,
    call,
    check_flag,
    check_number,
    check_tensor,
    integer_of,
    sizes_of,
)
from torch_cudnn_ext.ops._direct import FunctionT, direct
from torch_cudnn_ext.ops._pool_indices import (
    check_as_without_indices,
    check_indices,
    check_windows,
)
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

OutputSizes: TypeAlias = int | None | Sequence[int | None]

_STRIDE = {"stride": "kernel_size"}  # what counts without a stride
_SIZES = {"kernel_size": "output_size", "stride": "output_size"}


def _max(dims: int) -> Callable[[FunctionT], FunctionT]:
    return direct("max_pool", "pool", dims=dims, instead=_STRIDE)


def _average(dims: int, **constants: object) -> Callable[[FunctionT], FunctionT]:
    return direct("avg_pool", "pool", dims=dims, instead=_STRIDE, constants=constants)


def _adaptive(operator: str, dims: int, **constants: object) -> Callable[[FunctionT], FunctionT]:
    constants |= {"padding": 0, "adaptive": True}
    return direct(operator, "pool", dims=dims, sources=_SIZES, constants=constants)


@_max(1)
def max_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima of windows of ``[N, C, L]`` or ``[C, L]``; all else is as in `max_pool2d`."""
    arguments = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool(1, input, *arguments, policy)


@_max(2)
def max_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima of windows, as ``torch.nn.functional.max_pool2d``.

    Before version 9.28.1 cuDNN gives the lowest finite number for a window that holds negative
    infinity alone. Its algorithms are then admitted with ``allow_reduced_range`` only.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        kernel_size: Size of the window.
        stride: Distance between windows.
        padding: Negative infinity on both sides; at most half of ``kernel_size``.
        dilation: Distance between the elements of a window.
        ceil_mode: Whether a last window may reach beyond the padding.
        return_indices: Whether to give the indices of the maxima as well, as PyTorch numbers them.
            Only ``aten:default`` computes them: no other algorithm may be pinned, and the admitted
            ``backends`` of every level must include ``aten``.
        policy: How the algorithms are selected.

    Returns:
        The maxima, and with ``return_indices`` their indices, as int64.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit;
            or, with ``return_indices``, the policy excludes ``aten:default``, or the input requires
            a gradient that it would write out of bounds (dilated, on the CPU).
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> max_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 2)
        tensor([[[[ 5.,  7.],
                  [13., 15.]]]])
    """
    arguments = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool(2, input, *arguments, policy)


@_max(3)
def max_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    dilation: Sizes = 1, ceil_mode: bool = False, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima of windows of ``[N, C, D, H, W]``; all else is as in `max_pool2d`."""
    arguments = (kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _max_pool(3, input, *arguments, policy)


@_average(1)
def avg_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The averages of windows of ``[N, C, L]`` or ``[C, L]``; all else is as in `avg_pool2d`."""
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, None)
    return _avg_pool("avg_pool1d", 1, input, *arguments, policy)


@_average(2)
def avg_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The averages of windows, as ``torch.nn.functional.avg_pool2d``.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        kernel_size: Size of the window.
        stride: Distance between windows.
        padding: Zeros on both sides; at most half of ``kernel_size``.
        ceil_mode: Whether a last window may reach beyond the padding.
        count_include_pad: Whether padding counts in the divisor of a sum.
        divisor_override: The divisor of every sum.
        policy: How the algorithms are selected.

    Returns:
        The averages.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes or dtypes do not fit.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> avg_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 4)
        tensor([[[[7.5000]]]])
    """
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool2d", 2, input, *arguments, policy)


@_average(3)
def avg_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The averages of windows of ``[N, C, D, H, W]``, contiguous; all else as in `avg_pool2d`."""
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool("avg_pool3d", 3, input, *arguments, policy)


@_average(1, count_include_pad=True, divisor_override=1)
def sum_pool1d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The sums of windows of ``[N, C, L]`` or ``[C, L]``; all else is as in `sum_pool2d`."""
    arguments = (kernel_size, stride, padding, ceil_mode, True, 1)
    return _avg_pool("sum_pool1d", 1, input, *arguments, policy)


@_average(2, count_include_pad=True, divisor_override=1)
def sum_pool2d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The sums of windows: `avg_pool2d`, whose arguments and errors it has, with a divisor of 1.

    ``legacy:avg`` computes it as an average times the window's volume.

    Example:
        >>> sum_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 4)
        tensor([[[[120.]]]])
    """
    arguments = (kernel_size, stride, padding, ceil_mode, True, 1)
    return _avg_pool("sum_pool2d", 2, input, *arguments, policy)


@_average(3, count_include_pad=True, divisor_override=1)
def sum_pool3d(
    input: Tensor, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The sums of windows of ``[N, C, D, H, W]``; all else is as in `sum_pool2d`."""
    arguments = (kernel_size, stride, padding, ceil_mode, True, 1)
    return _avg_pool("sum_pool3d", 3, input, *arguments, policy)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The p-norms of windows of ``[N, C, L]`` or ``[C, L]``; all else is as in `lp_pool2d`."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode, policy)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The p-norms of windows, as ``torch.nn.functional.lp_pool2d``.

    The policy selects the algorithm that averages the powers, so that cuDNN computes any norm, L2
    among them; power and root are PyTorch's. With ``ceil_mode`` a window at the end counts as full,
    as in PyTorch. The gradient is zero for a sum of zero. Errors are those of `avg_pool2d`.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``.
        norm_type: The exponent p; not 0.
        kernel_size: Size of the window.
        stride: Distance between windows.
        ceil_mode: Whether a last window may reach beyond the input.
        policy: How the algorithms are selected.

    Returns:
        The norms.

    Example:
        >>> lp_pool2d(torch.full((1, 1, 2, 2), 2.0), 2, 2)
        tensor([[[[4.]]]])
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode, policy)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None,
    ceil_mode: bool = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """The p-norms of windows of ``[N, C, D, H, W]``; all else is as in `lp_pool2d`."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode, policy)


@_adaptive("avg_pool", 1)
def adaptive_avg_pool1d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average ``[N, C, L]`` or ``[C, L]`` to a size; all else is as in `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(1, input, output_size, policy)


@_adaptive("avg_pool", 2)
def adaptive_avg_pool2d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average to a size, as ``torch.nn.functional.adaptive_avg_pool2d``.

    If the sizes divide the input's, this is plain pooling, which all algorithms compute. Otherwise
    windows differ in size, and only ``aten:default`` runs. Errors are those of `avg_pool2d`.

    Args:
        input: ``[N, C, H, W]`` or ``[C, H, W]``; with an ``output_size`` of 1 there may be more
            dimensions in front, as in PyTorch (but not in one spatial dimension).
        output_size: Spatial sizes of the result; ``None`` is the input's size.
        policy: How the algorithms are selected.

    Returns:
        The averages, of the spatial sizes ``output_size``.

    Example:
        >>> adaptive_avg_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
        tensor([[[[7.5000]]]])
    """
    return _adaptive_avg_pool(2, input, output_size, policy)


@_adaptive("avg_pool", 3)
def adaptive_avg_pool3d(
    input: Tensor, output_size: OutputSizes, *, policy: PolicyLike = None
) -> Tensor:
    """Average ``[N, C, D, H, W]`` to a size; all else is as in `adaptive_avg_pool2d`."""
    return _adaptive_avg_pool(3, input, output_size, policy)


@_adaptive("max_pool", 1, dilation=1)
def adaptive_max_pool1d(
    input: Tensor, output_size: OutputSizes, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima of ``[N, C, L]`` or ``[C, L]`` to a size; all else as in `adaptive_max_pool2d`."""
    return _adaptive_max_pool(1, input, output_size, return_indices, policy)


@_adaptive("max_pool", 2, dilation=1)
def adaptive_max_pool2d(
    input: Tensor, output_size: OutputSizes, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima to a size, as ``torch.nn.functional.adaptive_max_pool2d``.

    Arguments and windows are those of `adaptive_avg_pool2d`; ``return_indices`` and errors are
    those of `max_pool2d`.

    Returns:
        The maxima, and with ``return_indices`` their indices, as int64.

    Example:
        >>> adaptive_max_pool2d(torch.arange(16.0).reshape(1, 1, 4, 4), 1)
        tensor([[[[15.]]]])
    """
    return _adaptive_max_pool(2, input, output_size, return_indices, policy)


@_adaptive("max_pool", 3, dilation=1)
def adaptive_max_pool3d(
    input: Tensor, output_size: OutputSizes, return_indices: bool = False,
    *, policy: PolicyLike = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """The maxima of ``[N, C, D, H, W]`` to a size; all else is as in `adaptive_max_pool2d`."""
    return _adaptive_max_pool(3, input, output_size, return_indices, policy)


def _max_pool(
    dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
    dilation: Sizes, ceil_mode: bool, return_indices: bool, policy: PolicyLike,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    name = f"max_pool{dims}d"
    check_tensor(name, "input", input)
    check_flag(name, "ceil_mode", ceil_mode)
    check_flag(name, "return_indices", return_indices)
    kernel = sizes_of(name, "kernel_size", kernel_size, dims)
    arguments = (
        kernel,
        _strides(name, stride, dims, kernel),
        sizes_of(name, "padding", padding, dims),
        sizes_of(name, "dilation", dilation, dims),
        ceil_mode,
    )
    if return_indices:
        check_indices(name, _text(policy))
        check_as_without_indices(input, *arguments)
        check_windows(name, input, *arguments)
        found: tuple[Tensor, Tensor] = getattr(F, f"{name}_with_indices")(input, *arguments)
        return found
    return call("max_pool", input, *arguments, policy=_text(policy))


def _avg_pool(
    name: str, dims: int, input: Tensor, kernel_size: Sizes, stride: Sizes | None, padding: Sizes,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    check_tensor(name, "input", input)
    check_flag(name, "ceil_mode", ceil_mode)
    check_flag(name, "count_include_pad", count_include_pad)
    if divisor_override is not None:
        divisor_override = integer_of(name, "divisor_override", divisor_override)
    kernel = sizes_of(name, "kernel_size", kernel_size, dims)
    strides = _strides(name, stride, dims, kernel)
    pads = sizes_of(name, "padding", padding, dims)
    options = (ceil_mode, count_include_pad, divisor_override)
    return call("avg_pool", input, kernel, strides, pads, *options, policy=_text(policy))


def _lp_pool(
    dims: int, input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None,
    ceil_mode: bool, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    name = f"lp_pool{dims}d"
    check_tensor(name, "input", input)
    check_number(name, "norm_type", norm_type)
    if type(norm_type) is int:
        integer_of(name, "norm_type", norm_type)
    if norm_type == 0:
        raise ValueError(f"{name}: argument norm_type: got 0, wanted any other number")
    powers = input.pow(norm_type)
    mean = _avg_pool(name, dims, powers, kernel_size, stride, 0, ceil_mode, True, None, policy)
    volume = math.prod(sizes_of(name, "kernel_size", kernel_size, dims))
    # relu makes the gradient zero where that of the root is infinite.
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
    dims: int, input: Tensor, output_size: OutputSizes, return_indices: bool, policy: PolicyLike
) -> Tensor | tuple[Tensor, Tensor]:
    name = f"adaptive_max_pool{dims}d"
    check_flag(name, "return_indices", return_indices)
    sizes = _output_sizes(name, input, output_size, dims)
    arguments = (sizes, sizes, [0] * dims, [1] * dims)  # AOTInductor turns empty lists into None
    if return_indices:
        check_indices(name, _text(policy))
        check_as_without_indices(input, *arguments, adaptive=True)
        found: tuple[Tensor, Tensor] = getattr(F, f"{name}_with_indices")(input, sizes)
        return found
    return call("max_pool", input, *arguments, adaptive=True, policy=_text(policy))


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


describe(Family("pool", images=lambda problem: ("x",), training=("_max_pool_train",)))
