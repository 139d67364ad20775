"""Convolutions as functions, with PyTorch's argument names and a selection of algorithms.

``conv1d`` to ``conv_transpose3d`` take the arguments of their namesakes in ``torch.nn.functional``
and, by keyword, ``policy`` and ``conv_mode``. All are differentiable any number of times.
`convolution_primitives` has the three primitives that these are made of.

They run on the CPU and on CUDA GPUs, on float64, float32, float16 and bfloat16 tensors of any
strides; all tensors of a call share dtype and device.
"""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor
from torch.utils.flop_counter import conv_flop_count

from torch_cudnn_ext.ops import _border
from torch_cudnn_ext.ops._arguments import (
    Sizes,
    call,
    check_tensor,
    integer_of,
    sizes_of,
)
from torch_cudnn_ext.ops._border import Padding, border
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

ConvMode: TypeAlias = Literal["cross", "conv"]


@direct("conv1d", "conv")
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Convolve signals of one dimension, as ``torch.nn.functional.conv1d``.

    Arguments and errors are those of `conv2d`.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; weight ``[C_out, C_in / groups, K]``;
        bias ``[C_out]``; result ``[N, C_out, L_out]``, without ``N`` if the input has none.

    Example:
        >>> conv1d(torch.randn(1, 3, 10), torch.randn(8, 3, 3)).shape
        torch.Size([1, 8, 8])
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


@direct("conv2d", "conv")
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Convolve images, as ``torch.nn.functional.conv2d``.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; weight ``[C_out, C_in / groups, KH, KW]``;
        bias ``[C_out]``; result ``[N, C_out, H_out, W_out]``, without ``N`` if the input has none,
        with ``H_out = (H + 2 * padding - dilation * (KH - 1) - 1) // stride + 1``.

    Args:
        input: The images.
        weight: The filters.
        bias: Added to each output channel.
        stride: Step of the filter, one number or one for each dimension.
        padding: Zeros on both sides of each dimension, or a border mode. With the dilated filter
            size ``k = (K - 1) * dilation + 1``: ``valid`` pads 0, ``half`` pads ``k // 2`` and
            ``full`` pads ``k - 1`` (as in Theano's ``conv2d``); ``same`` pads ``k - 1`` in all, the
            odd one at the end, so that the sizes stay (as in PyTorch; stride 1 only).
        dilation: Distance between filter elements.
        groups: Number of groups that input and output channels are split into.
        conv_mode: ``cross`` for cross-correlation, which PyTorch calls convolution, or ``conv``
            for convolution proper, with flipped filters (cuDNN's ``CUDNN_CONVOLUTION``).
        policy: How the algorithms of this call and of its gradients are selected: a policy text, a
            `Policy`, or a mapping of its keywords.

    Returns:
        The convolved images, in the memory format that PyTorch would give them.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes, dtypes or devices do
            not fit together.
        RuntimeError: A pinned algorithm cannot run; the message names the problem, the reason, and
            the algorithms that can.

    Example:
        >>> conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3), policy="cpu:im2col")
        tensor([[[[9.]]]])
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


@direct("conv3d", "conv")
def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Convolve volumes, as ``torch.nn.functional.conv3d``.

    Arguments and errors are those of `conv2d`.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; weight
        ``[C_out, C_in / groups, KD, KH, KW]``; bias ``[C_out]``; result
        ``[N, C_out, D_out, H_out, W_out]``, without ``N`` if the input has none.

    Example:
        >>> conv3d(torch.randn(1, 3, 5, 6, 6), torch.randn(8, 3, 3, 3, 3)).shape
        torch.Size([1, 8, 3, 4, 4])
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


@direct("conv_transpose1d", "conv")
def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Transposed convolution of signals, as ``torch.nn.functional.conv_transpose1d``.

    Arguments and errors are those of `conv_transpose2d`.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; weight ``[C_in, C_out / groups, K]``;
        bias ``[C_out]``; result ``[N, C_out, L_out]``, without ``N`` if the input has none.

    Example:
        >>> conv_transpose1d(torch.randn(1, 3, 10), torch.randn(3, 8, 3)).shape
        torch.Size([1, 8, 12])
    """
    return _convolve_transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


@direct("conv_transpose2d", "conv")
def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Transposed convolution of images, as ``torch.nn.functional.conv_transpose2d``.

    This is the data gradient of a convolution, and the policy's passes name the cuDNN primitive
    that runs: this function runs ``bwd_data``, its data gradient ``fwd``, its weight gradient
    ``bwd_filter``. Errors are those of `conv2d`.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; weight ``[C_in, C_out / groups, KH, KW]``;
        bias ``[C_out]``; result ``[N, C_out, H_out, W_out]``, without ``N`` if the input has none,
        with ``H_out = (H - 1) * stride - 2 * padding + dilation * (KH - 1) + output_padding + 1``.

    Args:
        input: The images.
        weight: The filters.
        bias: Added to each output channel.
        stride: Stride of the convolution that this transposes.
        padding: Padding of the convolution that this transposes: numbers, or ``valid``, ``half``
            or ``full`` as in `conv2d`.
        output_padding: Added to one side of the output's size.
        groups: Number of groups that input and output channels are split into.
        dilation: Distance between filter elements.
        conv_mode: ``cross``, or ``conv`` for flipped filters, as in `conv2d`.
        policy: How the algorithms of this call and of its gradients are selected.

    Returns:
        The result, in the memory format that PyTorch would give it.

    Example:
        >>> x, w = torch.randn(1, 3, 5, 5), torch.randn(3, 8, 2, 2)
        >>> conv_transpose2d(x, w, stride=2, policy="bwd_data=cpu:im2col").shape
        torch.Size([1, 8, 10, 10])
    """
    return _convolve_transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


@direct("conv_transpose3d", "conv")
def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
    *, conv_mode: ConvMode = "cross", policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Transposed convolution of volumes, as ``torch.nn.functional.conv_transpose3d``.

    Arguments and errors are those of `conv_transpose2d`.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; weight
        ``[C_in, C_out / groups, KD, KH, KW]``; bias ``[C_out]``; result
        ``[N, C_out, D_out, H_out, W_out]``, without ``N`` if the input has none.

    Example:
        >>> conv_transpose3d(torch.randn(1, 3, 4, 4, 4), torch.randn(3, 8, 2, 2, 2)).shape
        torch.Size([1, 8, 5, 5, 5])
    """
    return _convolve_transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


def _convolve(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    dilation: Sizes, groups: int, conv_mode: ConvMode, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    name = f"conv{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = stride_and_dilation(name, stride, dilation, n)
    before, after = border(name, padding, weight.shape[2:], stride_, dilation_)
    input = _border.pad_after(input, before, after)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not flips(name, conv_mode):
        return call(name, input, weight, bias, stride_, before, dilation_, count, policy=text)
    arguments = (stride_, before, dilation_, False, [0] * n, count)
    return _flipped(input, weight, bias, *arguments, policy=text)


def _convolve_transposed(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    output_padding: Sizes, groups: int, dilation: Sizes, conv_mode: ConvMode, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    name = f"conv_transpose{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = stride_and_dilation(name, stride, dilation, n)
    modes = _border.TRANSPOSED_BORDER_MODES
    padding_, _ = border(name, padding, weight.shape[2:], stride_, dilation_, modes)
    added = sizes_of(name, "output_padding", output_padding, n)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not flips(name, conv_mode):
        arguments = (stride_, padding_, added, count, dilation_)
        return call(name, input, weight, bias, *arguments, policy=text)
    general = (stride_, padding_, dilation_, True, added, count)
    return _flipped(input, weight, bias, *general, policy=text)


def _flipped(input: Tensor, weight: Tensor, *arguments: Any, policy: str | None) -> Tensor:
    """The general operator with flipped filters; it takes batches only."""
    batched = input.dim() == weight.dim()
    batch = input if batched else input.unsqueeze(0)
    result = call("convolution", batch, weight, *arguments, flip_kernel=True, policy=policy)
    return result if batched else result.squeeze(0)


def flips(function: str, conv_mode: str) -> bool:
    """Whether a mode flips the filters; ValueError for one that does not exist."""
    if conv_mode not in ("cross", "conv"):
        raise ValueError(
            f"{function}: argument conv_mode: got {conv_mode!r}, wanted 'cross' or 'conv'"
        )
    return conv_mode == "conv"


def _check_rank(function: str, n: int, input: Tensor, weight: Tensor) -> None:
    check_tensor(function, "input", input)
    check_tensor(function, "weight", weight)
    if input.dim() not in (n + 1, n + 2):
        raise ValueError(
            f"{function}: argument input: got sizes {list(input.shape)}, "
            f"wanted {n + 2} dimensions, or {n + 1} without a batch"
        )
    if weight.dim() != n + 2:
        raise ValueError(
            f"{function}: argument weight: got sizes {list(weight.shape)}, "
            f"wanted {n + 2} dimensions"
        )


def stride_and_dilation(
    function: str, stride: Sizes, dilation: Sizes, n: int
) -> tuple[list[int], list[int]]:
    """Both as one number for each of n dimensions."""
    return sizes_of(function, "stride", stride, n), sizes_of(function, "dilation", dilation, n)


def _images(problem: "ProblemInfo") -> tuple[str, ...]:
    """PyTorch makes the tensors of a convolution over one dimension contiguous."""
    return ("x", "w") if len(problem["slots"]["x"]["sizes"]) > 3 else ()


describe(
    Family(
        "conv",
        forward_fields=("bias", "z", "act"),
        images=_images,
        tensor_cores=True,
        # Outputs, and inputs of a group.
        channels=lambda problem: tuple(problem["slots"]["w"]["sizes"][:2]),
        gains_over_compiler=True,
        # A gradient counts like its forward. PyTorch 2.11 counts the filter gradient of a grouped
        # convolution once for each group.
        flops={
            "convolution": lambda x, w, b, s, p, d, transposed, *_, out_shape, **k: conv_flop_count(
                x, w, out_shape, transposed
            ),
            "convolution_fused": lambda x, w, *_, out_shape, **k: conv_flop_count(x, w, out_shape),
            "convolution_backward_input": lambda dy, w, *_, **k: conv_flop_count(dy, w, dy),
            "convolution_backward_weight": lambda dy, x, w, *_, **k: conv_flop_count(dy, w, dy),
        },
    )
)
