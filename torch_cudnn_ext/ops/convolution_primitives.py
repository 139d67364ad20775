"""The three primitives of convolution: the forward, the data gradient and the filter gradient.

They are bilinear, and the gradient of each is made of the other two. They can add to another
tensor: ``alpha * result + beta * z``; `convolution` can also apply an activation. All are
differentiable any number of times.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

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
from torch_cudnn_ext.ops._border import Padding, even_border
from torch_cudnn_ext.ops.convolution import ConvMode, flips, stride_and_dilation
from torch_cudnn_ext.policy import PolicyLike, policy_text

ConvActivation: TypeAlias = Literal[
    "none", "identity", "relu", "relu6", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh"
]


def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, transposed: bool = False,
    output_padding: Sizes = 0, groups: int = 1,
    *, z: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0,
    conv_mode: ConvMode = "cross", activation: ConvActivation = "none",
    out: Tensor | None = None, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Convolve in one to three dimensions: ``alpha * conv(input, weight) + bias + beta * z``.

    With an ``activation`` it is ``activation(conv(input, weight) + z + bias)``, a problem of its
    own: ``conv_fwd … bias=f16 z=f16 act=relu``. Engines of cuDNN's graph API compute all of it in
    one kernel (the note ``fused``), in this order: ``z``, then the bias. All other algorithms add
    ``z`` and apply the activation after the convolution. If a gradient is wanted, activations other
    than ReLU are a step of their own.

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
        activation: ``none``; ``relu``, ``relu6``, ``sigmoid``, ``tanh``, ``silu``, ``gelu``, or
            ``gelu_tanh`` (GELU's approximation by tanh); or ``identity``, with which only the sum
            is part of the problem. All but ``none`` do not combine with ``transposed``, ``out`` or
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

    Example:
        >>> x, w, z = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3), torch.full((1, 1, 1, 1), 4.0)
        >>> convolution(x, w, z=z, alpha=2.0, beta=0.5)
        tensor([[[[20.]]]])
    """
    name = "convolution"
    n = _spatial_dims(name, "weight", weight)
    check_flag(name, "transposed", transposed)
    stride_, dilation_ = stride_and_dilation(name, stride, dilation, n)
    modes = _border.TRANSPOSED_BORDER_MODES if transposed else _border.BORDER_MODES
    padding_ = even_border(name, padding, weight.shape[2:], stride_, dilation_, modes)
    added = sizes_of(name, "output_padding", output_padding, n)
    count = integer_of(name, "groups", groups)
    tensors = (input, weight, bias)
    if activation == "none":
        arguments = (*tensors, stride_, padding_, dilation_, transposed, added, count)
        return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)
    _check_fused(name, activation, transposed, added, z, alpha, beta, out)
    last = "none" if activation == "identity" else activation
    return call(
        "convolution_fused", *tensors, stride_, padding_, dilation_, count, last,
        z=z, flip_kernel=flips(name, conv_mode), policy=policy_text(policy),
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

    Example:
        >>> dy, w = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 3, 3)
        >>> convolution_backward_input(dy, w, [1, 1, 3, 3]).sum()
        tensor(9.)
    """
    name = "convolution_backward_input"
    n = _spatial_dims(name, "weight", weight)
    stride_, dilation_ = stride_and_dilation(name, stride, dilation, n)
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

    Example:
        >>> dy, x = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 3, 3)
        >>> convolution_backward_weight(dy, x, [1, 1, 3, 3]).sum()
        tensor(9.)
    """
    name = "convolution_backward_weight"
    n = _spatial_dims(name, "input", input)
    stride_, dilation_ = stride_and_dilation(name, stride, dilation, n)
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


def _primitive(
    name: str, arguments: tuple[Any, ...], z: Tensor | None, alpha: float, beta: float,
    conv_mode: ConvMode, out: Tensor | None, policy: PolicyLike,
) -> Tensor:  # fmt: skip
    check_number(name, "alpha", alpha)
    check_number(name, "beta", beta)
    keywords: dict[str, Any] = {
        "alpha": alpha,
        "beta": beta,
        "flip_kernel": flips(name, conv_mode),
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
    if activation not in get_args(ConvActivation):
        raise ValueError(
            f"{function}: argument activation: got {activation!r:.60}, wanted one of "
            f"{', '.join(get_args(ConvActivation))}"
        )


def _check_fused(
    name: str, activation: str, transposed: bool, output_padding: list[int], z: Tensor | None,
    alpha: float, beta: float, out: Tensor | None,
) -> None:  # fmt: skip
    """Check the arguments that do not combine with an activation."""
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
            f"{name}: argument activation: got {activation!r} with {hindrance}, wanted a "
            "convolution that is not transposed, no output_padding and no out, alpha=1, and beta=1 "
            "where there is z, else 0"
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
