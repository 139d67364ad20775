"""Padding of convolutions, from numbers or border modes."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext.ops._arguments import Sizes, integers_of, sizes_of

BorderMode: TypeAlias = Literal["valid", "same", "half", "full"]
Padding: TypeAlias = Sizes | BorderMode

BORDER_MODES = ("valid", "same", "half", "full")
TRANSPOSED_BORDER_MODES = ("valid", "half", "full")


def border(
    function: str,
    padding: Padding,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    modes: Sequence[str] = BORDER_MODES,
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dimension.

    Args:
        function: What an error calls the function.
        padding: Numbers or a border mode, as in `conv2d`.
        kernel: Sizes of the filter.
        stride: Stride of each dimension.
        dilation: Dilation of each dimension.
        modes: The border modes that the function takes.

    Raises:
        TypeError: ``padding`` holds something else than integers.
        ValueError: ``padding`` is none of the border modes, has a wrong length, or is ``same``
            with a stride other than 1.
    """
    if not isinstance(padding, str):
        before = sizes_of(function, "padding", padding, len(kernel))
        return before, before
    if padding not in modes:
        raise ValueError(
            f"{function}: argument padding: got {padding!r}, "
            f"wanted integers or one of {', '.join(modes)}"
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


def even_border(
    function: str,
    padding: Padding,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    modes: Sequence[str] = BORDER_MODES,
) -> list[int]:
    """`border` that must be the same before and after.

    Raises:
        TypeError: As `border`.
        ValueError: As `border`; or ``same`` gives two different amounts.
    """
    before, after = border(function, padding, kernel, stride, dilation, modes)
    if before != after:
        raise ValueError(
            f"{function}: argument padding: got 'same' with filter sizes {tuple(kernel)} and "
            f"dilation {tuple(dilation)}, wanted an even dilation * (size - 1)"
        )
    return before


def pad_after(input: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Append the zeros by which ``after`` exceeds ``before`` in the last dimensions."""
    if before == after:
        return input
    extra: list[int] = []
    for low, high in zip(reversed(before), reversed(after), strict=True):
        extra += [0, high - low]
    return F.pad(input, extra)
