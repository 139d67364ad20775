"""Convolutions as functions, with PyTorch's argument names and a selection of algorithms.

``conv1d`` to ``conv_transpose3d`` take the arguments of their namesakes in ``torch.nn.functional``,
``policy`` and ``conv_mode``. `convolution`, `convolution_backward_input` and
`convolution_backward_weight` are the three primitives. They can add to another tensor: ``alpha *
result + beta * z``; `convolution` can also apply ReLU. All are differentiable any number of times.

They run on the CPU and on CUDA GPUs, on float64, float32, float16 and bfloat16 tensors of any
strides; all tensors of a call share dtype and device.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor
from torch.utils.flop_counter import conv_flop_count

from torch_cudnn_ext.ops import _border
from torch_cudnn_ext.ops._arguments import (
    Sizes,
    all_sizes_of,
    call,
    check_flag,
    check_number,
    check_tensor,
    integer_of,
    sizes_of,
)
from torch_cudnn_ext.ops._border import Padding, border, even_border
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

ConvMode: TypeAlias = Literal["cross", "conv"]
ConvActivation: TypeAlias = Literal["none", "relu"]


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
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


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
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


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
    """
    return _convolve_transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


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
    """
    return _convolve_transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


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
    """
    return _convolve_transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, transposed: bool = False,
    output_padding: Sizes = 0, groups: int = 1,
    *, z: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0,
    conv_mode: ConvMode = "cross", activation: ConvActivation = "none",
    out: Tensor | None = None, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Convolve in one to three dimensions: ``alpha * conv(input, weight) + bias + beta * z``.

    With ``activation="relu"`` it is ``relu(conv(input, weight) + z + bias)``, a problem of its own:
    ``conv_fwd … bias=f16 z=f16 act=relu``. Engines of cuDNN's graph API compute all of it in one
    kernel (the note ``fused``), in this order: ``z``, then the bias. All other algorithms add ``z``
    and apply ReLU after the convolution.

    Shapes:
        input ``[N, C_in, *space]``, weight ``[C_out, C_in / groups, *K]`` with 1 to 3 spatial
        dimensions, and the rest as in `conv2d`; with ``transposed``, as in `conv_transpose2d`.
        ``z`` and ``out`` have the shape of the result.

    Args:
        input: The data, with a batch dimension.
        weight: The filters; their rank gives the number of spatial dimensions.
        bias: Added to each output channel.
        stride: As in `conv2d`.
        padding: As in `conv2d`; ``same`` only if ``dilation * (K - 1)`` is even.
        dilation: As in `conv2d`.
        transposed: Compute the transposed convolution.
        output_padding: As in `conv_transpose2d`.
        groups: As in `conv2d`.
        z: Added to the result, times ``beta``; may require grad.
        alpha: Factor of the convolution.
        beta: Factor of ``z``, or of the former content of ``out``.
        conv_mode: As in `conv2d`.
        activation: ``none`` or ``relu``. ``relu`` does not combine with ``transposed``, ``out`` or
            other values than ``alpha=1`` and ``beta=1`` (``beta=0`` without ``z``).
        out: Receives the result, ``alpha * conv(input, weight) + bias + beta * out``. Not
            differentiable, and not together with ``z``.
        policy: As in `conv2d`.

    Returns:
        The result; ``out`` if it is given.

    Raises:
        TypeError: As `conv2d`.
        ValueError: As `conv2d`.
        RuntimeError: As `conv2d`; also if ``out`` is given and a tensor requires grad.
    """
    name = "convolution"
    n = _spatial_dims(name, "weight", weight)
    check_flag(name, "transposed", transposed)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    modes = _border.TRANSPOSED_BORDER_MODES if transposed else _border.BORDER_MODES
    padding_ = even_border(name, padding, weight.shape[2:], stride_, dilation_, modes)
    added = sizes_of(name, "output_padding", output_padding, n)
    count = integer_of(name, "groups", groups)
    tensors = (input, weight, bias)
    if activation == "none":
        arguments = (*tensors, stride_, padding_, dilation_, transposed, added, count)
        return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)
    _check_relu(name, activation, transposed, added, z, alpha, beta, out)
    return call(
        "convolution_relu", *tensors, stride_, padding_, dilation_, count,
        z=z, flip_kernel=_flips(name, conv_mode), policy=policy_text(policy),
    )  # fmt: skip


def convolution_backward_input(
    grad_output: Tensor, weight: Tensor, input_size: Sequence[int], stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
    *, z: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0,
    conv_mode: ConvMode = "cross", out: Tensor | None = None, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Compute the data gradient of a `convolution`: ``alpha * grad + beta * z``.

    Errors are those of `convolution`.

    Shapes:
        grad_output ``[N, C_out, *space_out]``; weight ``[C_out, C_in / groups, *K]``; the result
        has ``input_size``, ``[N, C_in, *space]``.

    Args:
        grad_output: Gradient with respect to the convolution's result.
        weight: The filters of the convolution.
        input_size: Sizes of the convolution's input.
        stride: As in `conv2d`.
        padding: As in `convolution`.
        dilation: As in `conv2d`.
        groups: As in `conv2d`.
        z: Added to the result, times ``beta``; may require grad.
        alpha: Factor of the gradient.
        beta: Factor of ``z``, or of the former content of ``out``.
        conv_mode: As in `conv2d`.
        out: Receives the result, added to ``beta * out``; not differentiable.
        policy: As in `conv2d`; this runs the pass ``bwd_data``.

    Returns:
        The gradient; ``out`` if it is given.
    """
    name = "convolution_backward_input"
    n = _spatial_dims(name, "weight", weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    arguments = (
        grad_output,
        weight,
        all_sizes_of(name, "input_size", input_size, n + 2),
        stride_,
        even_border(name, padding, weight.shape[2:], stride_, dilation_),
        dilation_,
        integer_of(name, "groups", groups),
    )
    return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)


def convolution_backward_weight(
    grad_output: Tensor, input: Tensor, weight_size: Sequence[int], stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: int = 1,
    *, z: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0,
    conv_mode: ConvMode = "cross", out: Tensor | None = None, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Compute the weight gradient of a `convolution`: ``alpha * grad + beta * z``.

    With ``out=weight.grad, alpha=scale, beta=1`` gradients are accumulated in place. This runs the
    pass ``bwd_filter``. Other arguments and errors are those of `convolution_backward_input`.

    Shapes:
        grad_output ``[N, C_out, *space_out]``; input ``[N, C_in, *space]``; the result has
        ``weight_size``, ``[C_out, C_in / groups, *K]``.

    Returns:
        The gradient; ``out`` if it is given.
    """
    name = "convolution_backward_weight"
    n = _spatial_dims(name, "input", input)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    sizes = all_sizes_of(name, "weight_size", weight_size, n + 2)
    arguments = (
        grad_output,
        input,
        sizes,
        stride_,
        even_border(name, padding, sizes[2:], stride_, dilation_),
        dilation_,
        integer_of(name, "groups", groups),
    )
    return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)


def _convolve(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    dilation: Sizes, groups: int, conv_mode: ConvMode, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    name = f"conv{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    before, after = border(name, padding, weight.shape[2:], stride_, dilation_)
    input = _border.pad_after(input, before, after)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not _flips(name, conv_mode):
        return call(name, input, weight, bias, stride_, before, dilation_, count, policy=text)
    arguments = (stride_, before, dilation_, False, [0] * n, count)
    return _flipped(input, weight, bias, *arguments, policy=text)


def _convolve_transposed(
    n: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    output_padding: Sizes, groups: int, dilation: Sizes, conv_mode: ConvMode, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    name = f"conv_transpose{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    modes = _border.TRANSPOSED_BORDER_MODES
    padding_, _ = border(name, padding, weight.shape[2:], stride_, dilation_, modes)
    added = sizes_of(name, "output_padding", output_padding, n)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not _flips(name, conv_mode):
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


def _primitive(
    name: str, arguments: tuple[Any, ...], z: Tensor | None, alpha: float, beta: float,
    conv_mode: ConvMode, out: Tensor | None, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    check_number(name, "alpha", alpha)
    check_number(name, "beta", beta)
    keywords: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "flip_kernel": _flips(name, conv_mode),
        "policy": policy_text(policy),
    }
    if out is None:
        return call(name, *arguments, z=z, **keywords)
    if z is not None:
        raise ValueError(f"{name}: got both z and out, wanted one: beta scales what out holds")
    call(f"{name}_out", *arguments, out=out, **keywords)
    return out


def check_activation(function: str, activation: str) -> None:
    """Raise ``ValueError`` for an activation that no convolution has."""
    if activation not in ("none", "relu"):
        raise ValueError(
            f"{function}: argument activation: got {activation!r:.60}, wanted 'none' or 'relu'"
        )


def _check_relu(
    name: str, activation: str, transposed: bool, output_padding: list[int], z: Tensor | None,
    alpha: float, beta: float, out: Tensor | None,
) -> None:  # fmt: skip
    """Check the arguments that do not combine with ReLU."""
    check_activation(name, activation)
    check_number(name, "alpha", alpha)
    check_number(name, "beta", beta)
    hindrance = ""
    if transposed:
        hindrance = "transposed=True"
    elif any(output_padding):
        hindrance = f"output_padding={output_padding}"
    elif out is not None:
        hindrance = "out"
    elif alpha != 1:
        hindrance = f"alpha={alpha}"
    elif beta != (z is not None):
        hindrance = f"beta={beta} {'without' if z is None else 'and'} z"
    if hindrance:
        raise ValueError(
            f"{name}: argument activation: got 'relu' with {hindrance}, wanted a convolution that "
            "is not transposed, no output_padding and no out, alpha=1, and beta=1 where there is "
            "z, else 0"
        )


def _flips(function: str, conv_mode: str) -> bool:
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


def _spatial_dims(function: str, argument: str, tensor: Tensor) -> int:
    check_tensor(function, argument, tensor)
    n = tensor.dim() - 2
    if n not in (1, 2, 3):
        raise ValueError(
            f"{function}: argument {argument}: got sizes {list(tensor.shape)}, "
            "wanted 3, 4 or 5 dimensions"
        )
    return n


def _stride_and_dilation(
    function: str, stride: Sizes, dilation: Sizes, n: int
) -> tuple[list[int], list[int]]:
    return sizes_of(function, "stride", stride, n), sizes_of(function, "dilation", dilation, n)


def _images(problem: "ProblemInfo") -> tuple[str, ...]:
    """PyTorch makes the tensors of a convolution over one dimension contiguous."""
    return ("x", "w") if len(problem["slots"]["x"]["sizes"]) > 3 else ()


describe(
    Family(
        "conv",
        forward_fields=("bias", "z", "act"),
        images=_images,
        # A gradient counts like its forward. PyTorch 2.11 counts the filter gradient of a grouped
        # convolution once for each group.
        flops={
            "convolution": lambda x, w, b, s, p, d, transposed, *_, out_shape, **k: conv_flop_count(
                x, w, out_shape, transposed
            ),
            "convolution_relu": lambda x, w, *_, out_shape, **k: conv_flop_count(x, w, out_shape),
            "convolution_backward_input": lambda dy, w, *_, **k: conv_flop_count(dy, w, dy),
            "convolution_backward_weight": lambda dy, x, w, *_, **k: conv_flop_count(dy, w, dy),
        },
    )
)
