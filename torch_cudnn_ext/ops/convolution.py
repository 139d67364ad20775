"""Convolutions as functions, with PyTorch's argument names and a choice of algorithm.

``conv1d`` to ``conv_transpose3d`` take the arguments of their namesakes in
``torch.nn.functional`` and, by keyword, ``policy`` and ``conv_mode``. `convolution`,
`convolution_backward_input` and `convolution_backward_weight` are the three primitives, which can
add to what is there: ``alpha * result + beta * z``; the first of them also takes ReLU of it. All
are differentiable any number of times.

They work on the CPU and on CUDA GPUs, on float64, float32, float16 and bfloat16 tensors of any
strides; all tensors of a call share dtype and device.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import conv_flop_count

from torch_cudnn_ext.ops._arguments import (
    Sizes,
    call,
    check_flag,
    check_number,
    check_tensor,
    integer_of,
    integers_of,
    sizes_of,
)
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

BorderMode: TypeAlias = Literal["valid", "same", "half", "full"]
Padding: TypeAlias = Sizes | BorderMode
ConvMode: TypeAlias = Literal["cross", "conv"]
ConvActivation: TypeAlias = Literal["none", "relu"]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Convolve signals of one dimension, as ``torch.nn.functional.conv1d`` does.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; weight ``[C_out, C_in / groups, K]``;
        bias ``[C_out]``; result ``[N, C_out, L_out]``, without ``N`` where the input has none.

    All else is as in `conv2d`.
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Convolve images, as ``torch.nn.functional.conv2d`` does.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; weight ``[C_out, C_in / groups, KH, KW]``;
        bias ``[C_out]``; result ``[N, C_out, H_out, W_out]``, without ``N`` where the input has
        none, where ``H_out = (H + 2 * padding - dilation * (KH - 1) - 1) // stride + 1``.

    Args:
        input: The images.
        weight: The filters.
        bias: Added to each output channel.
        stride: Step of the filter, one number or one for each dimension.
        padding: Zeros on both sides of each dimension, or a border mode. With the dilated filter
            size ``k = (K - 1) * dilation + 1``: ``valid`` pads 0, ``half`` pads ``k // 2`` and
            ``full`` pads ``k - 1`` (as in Theano's ``conv2d``); ``same`` pads ``k - 1`` in all, the
            odd one behind, so that the sizes stay (as in PyTorch; stride 1 only).
        dilation: Distance between filter elements.
        groups: Number of groups that input and output channels are split into.
        conv_mode: ``cross`` for cross-correlation, which PyTorch calls convolution, or ``conv``
            for convolution proper, with flipped filters (cuDNN's ``CUDNN_CONVOLUTION``).
        policy: How to choose the algorithms of this call and of its gradients: a policy text, a
            `Policy`, or a mapping of its keywords.

    Returns:
        The convolved images, in the memory format that PyTorch would give them.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take, or sizes, dtypes or devices do
            not fit together.
        RuntimeError: A pinned algorithm cannot run; the message names the problem, the reason, and
            the algorithms that can.
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Convolve volumes, as ``torch.nn.functional.conv3d`` does.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; weight
        ``[C_out, C_in / groups, KD, KH, KW]``; bias ``[C_out]``; result
        ``[N, C_out, D_out, H_out, W_out]``, without ``N`` where the input has none.

    All else is as in `conv2d`.
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, conv_mode, policy)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Transposed convolution of signals, as ``torch.nn.functional.conv_transpose1d`` does.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; weight ``[C_in, C_out / groups, K]``;
        bias ``[C_out]``; result ``[N, C_out, L_out]``, without ``N`` where the input has none.

    All else is as in `conv_transpose2d`.
    """
    return _convolve_transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Transposed convolution of images, as ``torch.nn.functional.conv_transpose2d`` does.

    This is the data gradient of a convolution, and the policy's passes name the cuDNN primitive
    that runs: this function runs ``bwd_data``, its data gradient ``fwd``, its weight gradient
    ``bwd_filter``.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; weight ``[C_in, C_out / groups, KH, KW]``;
        bias ``[C_out]``; result ``[N, C_out, H_out, W_out]``, without ``N`` where the input has
        none, where ``H_out = (H - 1) * stride - 2 * padding + dilation * (KH - 1) +
        output_padding + 1``.

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
        policy: How to choose the algorithms of this call and of its gradients.

    Returns:
        The result, in the memory format that PyTorch would give it.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
        RuntimeError: As for `conv2d`.
    """
    return _convolve_transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    conv_mode: ConvMode = "cross",
    policy: PolicyLike = None,
) -> Tensor:
    """Transposed convolution of volumes, as ``torch.nn.functional.conv_transpose3d`` does.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; weight
        ``[C_in, C_out / groups, KD, KH, KW]``; bias ``[C_out]``; result
        ``[N, C_out, D_out, H_out, W_out]``, without ``N`` where the input has none.

    All else is as in `conv_transpose2d`.
    """
    return _convolve_transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, conv_mode, policy
    )


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    transposed: bool = False,
    output_padding: Sizes = 0,
    groups: int = 1,
    *,
    z: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    conv_mode: ConvMode = "cross",
    activation: ConvActivation = "none",
    out: Tensor | None = None,
    policy: PolicyLike = None,
) -> Tensor:
    """Convolve in one to three dimensions: ``alpha * conv(input, weight) + bias + beta * z``.

    With ``activation="relu"`` it is ``relu(conv(input, weight) + z + bias)``, which has engines of
    cuDNN's graph API that compute all of it in one kernel (the note ``fused``); with all other
    algorithms ``z`` is added and ReLU taken behind the convolution. It is a problem of its own,
    ``conv_fwd … bias=f16 z=f16 act=relu``. The graph's order is that: ``z``, then the bias.

    Shapes:
        input ``[N, C_in, *space]``, weight ``[C_out, C_in / groups, *K]`` with 1 to 3 spatial
        dimensions, and the rest as in `conv2d`; with ``transposed``, as in `conv_transpose2d`.
        ``z`` and ``out`` have the shape of the result.

    Args:
        input: The data, with a batch dimension.
        weight: The filters; their rank says how many spatial dimensions there are.
        bias: Added to each output channel.
        stride: As in `conv2d`.
        padding: As in `conv2d`; ``same`` only where ``dilation * (K - 1)`` is even.
        dilation: As in `conv2d`.
        transposed: Compute the transposed convolution.
        output_padding: As in `conv_transpose2d`.
        groups: As in `conv2d`.
        z: Added to the result, times ``beta``; may require grad.
        alpha: Factor of the convolution.
        beta: Factor of ``z``, or of what ``out`` holds.
        conv_mode: As in `conv2d`.
        activation: ``none`` or ``relu``; that neither transposed nor into ``out``, with ``alpha``
            1, and ``beta`` 1 where there is ``z``, else 0.
        out: Where the result is written: ``alpha * conv(input, weight) + bias + beta * out``. Not
            differentiable, and not together with ``z``.
        policy: As in `conv2d`.

    Returns:
        The result; ``out`` where it is given.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
        RuntimeError: As for `conv2d`; also where ``out`` is given and a tensor requires grad.
    """
    name = "convolution"
    n = _spatial_dims(name, "weight", weight)
    check_flag(name, "transposed", transposed)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    words = ("valid", "half", "full") if transposed else _BORDER_MODES
    padding_ = _even_padding(name, padding, weight.shape[2:], stride_, dilation_, words)
    added = sizes_of(name, "output_padding", output_padding, n)
    count = integer_of(name, "groups", groups)
    tensors = (input, weight, bias)
    if activation == "none":
        arguments = (*tensors, stride_, padding_, dilation_, transposed, added, count)
        return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)
    check_activation(name, activation)
    check_number(name, "alpha", alpha)
    check_number(name, "beta", beta)
    hindrance = ""
    if transposed:
        hindrance = "transposed=True"
    elif any(added):
        hindrance = f"output_padding={added}"
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
    return call(
        "convolution_relu", *tensors, stride_, padding_, dilation_, count,
        z=z, flip_kernel=_flips(name, conv_mode), policy=policy_text(policy),
    )  # fmt: skip


def convolution_backward_input(
    grad_output: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    z: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    conv_mode: ConvMode = "cross",
    out: Tensor | None = None,
    policy: PolicyLike = None,
) -> Tensor:
    """Compute the data gradient of a convolution: ``alpha * grad + beta * z``.

    Shapes:
        grad_output ``[N, C_out, *space_out]``; weight ``[C_out, C_in / groups, *K]``; the result
        has ``input_size``, ``[N, C_in, *space]``.

    Args:
        grad_output: Gradient with respect to the convolution's result.
        weight: The filters of the convolution.
        input_size: Sizes of the convolution's input.
        stride: Of the convolution, as are the next three.
        padding: As in `convolution`.
        dilation: As in `conv2d`.
        groups: As in `conv2d`.
        z: Added to the result, times ``beta``; may require grad.
        alpha: Factor of the gradient.
        beta: Factor of ``z``, or of what ``out`` holds.
        conv_mode: Of the convolution.
        out: Where the result is written, added to ``beta * out``; not differentiable.
        policy: As in `conv2d`; this runs the pass ``bwd_data``.

    Returns:
        The gradient; ``out`` where it is given.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
        RuntimeError: As for `convolution`.
    """
    name = "convolution_backward_input"
    n = _spatial_dims(name, "weight", weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    kernel = weight.shape[2:]
    arguments = (
        grad_output,
        weight,
        _all_sizes(name, "input_size", input_size, n + 2),
        stride_,
        _even_padding(name, padding, kernel, stride_, dilation_, _BORDER_MODES),
        dilation_,
        integer_of(name, "groups", groups),
    )
    return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)


def convolution_backward_weight(
    grad_output: Tensor,
    input: Tensor,
    weight_size: Sequence[int],
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    z: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    conv_mode: ConvMode = "cross",
    out: Tensor | None = None,
    policy: PolicyLike = None,
) -> Tensor:
    """Compute the weight gradient of a convolution: ``alpha * grad + beta * z``.

    With ``out=weight.grad, alpha=scale, beta=1`` gradients are accumulated in place.

    Shapes:
        grad_output ``[N, C_out, *space_out]``; input ``[N, C_in, *space]``; the result has
        ``weight_size``, ``[C_out, C_in / groups, *K]``.

    Args:
        grad_output: Gradient with respect to the convolution's result.
        input: The input of the convolution.
        weight_size: Sizes of the convolution's filters.
        stride: Of the convolution, as are the next three.
        padding: As in `convolution`.
        dilation: As in `conv2d`.
        groups: As in `conv2d`.
        z: Added to the result, times ``beta``; may require grad.
        alpha: Factor of the gradient.
        beta: Factor of ``z``, or of what ``out`` holds.
        conv_mode: Of the convolution.
        out: Where the result is written, added to ``beta * out``; not differentiable.
        policy: As in `conv2d`; this runs the pass ``bwd_filter``.

    Returns:
        The gradient; ``out`` where it is given.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
        RuntimeError: As for `convolution`.
    """
    name = "convolution_backward_weight"
    n = _spatial_dims(name, "input", input)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    weight_size_ = _all_sizes(name, "weight_size", weight_size, n + 2)
    arguments = (
        grad_output,
        input,
        weight_size_,
        stride_,
        _even_padding(name, padding, weight_size_[2:], stride_, dilation_, _BORDER_MODES),
        dilation_,
        integer_of(name, "groups", groups),
    )
    return _primitive(name, arguments, z, alpha, beta, conv_mode, out, policy)


def _all_sizes(function: str, argument: str, value: object, count: int) -> list[int]:
    sizes = integers_of(function, argument, value, f"{count} sizes")
    if len(sizes) != count:
        raise ValueError(f"{function}: argument {argument}: got {sizes}, wanted {count} sizes")
    return sizes


_BORDER_MODES = ("valid", "same", "half", "full")
_CONV_MODES = ("cross", "conv")


def border(
    function: str,
    padding: Padding,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    words: Sequence[str] = _BORDER_MODES,
) -> tuple[list[int], list[int]]:
    """Padding before and behind each spatial dimension, from numbers or a border mode.

    Args:
        function: What an error calls the function.
        padding: Numbers or a border mode, as in `conv2d`.
        kernel: Sizes of the filter.
        stride: Stride of each dimension.
        dilation: Dilation of each dimension.
        words: The border modes that the function takes.

    Raises:
        TypeError: ``padding`` holds something else than integers.
        ValueError: ``padding`` is no border mode of these, has a wrong length, or is ``same``
            with a stride other than 1.
    """
    if not isinstance(padding, str):
        before = sizes_of(function, "padding", padding, len(kernel))
        return before, before
    if padding not in words:
        raise ValueError(
            f"{function}: argument padding: got {padding!r}, "
            f"wanted integers or one of {', '.join(words)}"
        )
    if padding == "same" and any(step != 1 for step in stride):
        raise ValueError(
            f"{function}: argument padding: got 'same' with stride {tuple(stride)}, wanted stride 1"
        )
    sizes = integers_of(function, "weight", kernel, "integers as sizes")  # tensors in a trace
    spans = [(k - 1) * d for k, d in zip(sizes, dilation, strict=True)]
    if padding == "same":
        return [span // 2 for span in spans], [span - span // 2 for span in spans]
    amounts = {
        "valid": [0 for _ in spans],
        "half": [(span + 1) // 2 for span in spans],
        "full": spans,
    }[padding]
    return amounts, amounts


def pad_behind(input: Tensor, before: Sequence[int], behind: Sequence[int]) -> Tensor:
    """Append the zeros by which ``behind`` exceeds ``before`` in the last dimensions."""
    if before == behind:
        return input
    extra: list[int] = []
    for low, high in zip(reversed(before), reversed(behind), strict=True):
        extra += [0, high - low]
    return F.pad(input, extra)


def _convolve(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    conv_mode: ConvMode,
    policy: PolicyLike,
) -> Tensor:
    name = f"conv{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    before, behind = border(name, padding, weight.shape[2:], stride_, dilation_)
    input = pad_behind(input, before, behind)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not _flips(name, conv_mode):
        return call(name, input, weight, bias, stride_, before, dilation_, count, policy=text)
    return _flipped(
        input, weight, bias, stride_, before, dilation_, False, [0] * n, count, policy=text
    )


def _convolve_transposed(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    conv_mode: ConvMode,
    policy: PolicyLike,
) -> Tensor:
    name = f"conv_transpose{n}d"
    _check_rank(name, n, input, weight)
    stride_, dilation_ = _stride_and_dilation(name, stride, dilation, n)
    words = ("valid", "half", "full")
    padding_, _ = border(name, padding, weight.shape[2:], stride_, dilation_, words)
    added = sizes_of(name, "output_padding", output_padding, n)
    text = policy_text(policy)
    count = integer_of(name, "groups", groups)
    if not _flips(name, conv_mode):
        return call(
            name, input, weight, bias, stride_, padding_, added, count, dilation_, policy=text
        )
    return _flipped(
        input, weight, bias, stride_, padding_, dilation_, True, added, count, policy=text
    )


def _flipped(input: Tensor, weight: Tensor, *arguments: Any, policy: str | None) -> Tensor:
    """The general operator with flipped filters; it takes batches only."""
    batched = input.dim() == weight.dim()
    batch = input if batched else input.unsqueeze(0)
    result = call("convolution", batch, weight, *arguments, flip_kernel=True, policy=policy)
    return result if batched else result.squeeze(0)


def _primitive(
    name: str,
    arguments: tuple[Any, ...],
    z: Tensor | None,
    alpha: float,
    beta: float,
    conv_mode: ConvMode,
    out: Tensor | None,
    policy: PolicyLike,
) -> Tensor:
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
    """Raise ``ValueError`` for one that nothing computes behind a convolution."""
    if activation not in ("none", "relu"):
        raise ValueError(
            f"{function}: argument activation: got {activation!r:.60}, wanted 'none' or 'relu'"
        )


def _flips(function: str, conv_mode: str) -> bool:
    if conv_mode not in _CONV_MODES:
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


def _even_padding(
    function: str,
    padding: Padding,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    words: Sequence[str],
) -> list[int]:
    """Padding that is the same before and behind, as the primitives take it."""
    before, behind = border(function, padding, kernel, stride, dilation, words)
    if before != behind:
        raise ValueError(
            f"{function}: argument padding: got 'same' with filter sizes {tuple(kernel)} and "
            f"dilation {tuple(dilation)}, wanted an even dilation * (size - 1)"
        )
    return before


def _images(problem: "ProblemInfo") -> tuple[str, ...]:
    """PyTorch makes the tensors of a convolution over one dimension contiguous."""
    return ("x", "w") if len(problem["slots"]["x"]["sizes"]) > 3 else ()


def _flops(x: Any, w: Any, y: Any, transposed: bool = False) -> int:
    return conv_flop_count(list(x), list(w), list(y), transposed=transposed)


describe(
    Family(
        "conv",
        forward_fields=("bias", "z", "act"),
        images=_images,
        # A gradient counts like its forward. PyTorch 2.11 counts the filter gradient of a grouped
        # convolution once for each group.
        flops={
            "convolution": lambda x, w, b, s, p, d, transposed, *_, out_shape, **k: _flops(
                x, w, out_shape, transposed
            ),
            "convolution_relu": lambda x, w, *_, out_shape, **k: _flops(x, w, out_shape),
            "convolution_backward_input": lambda dy, w, *_, **k: _flops(dy, w, dy),
            "convolution_backward_weight": lambda dy, x, w, *_, **k: _flops(dy, w, dy),
        },
    )
)
