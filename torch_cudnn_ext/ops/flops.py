"""What ``torch.utils.flop_counter`` counts for our operators: as much as for PyTorch's own.

But for the filter gradients of grouped convolutions, which PyTorch 2.11 counts once for each group.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

_OPS = torch.ops.torch_cudnn_ext
Shape = Sequence[int]


@register_flop_formula(_OPS.convolution)
def _convolution(
    x: Shape, w: Shape, bias: Shape | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, *more: Any, out_shape: Any = None, **keywords: Any,
) -> int:  # fmt: skip
    return conv_flop_count(list(x), list(w), list(out_shape), transposed=transposed)


@register_flop_formula(_OPS.convolution_relu)
def _convolution_relu(
    x: Shape, w: Shape, *more: Any, out_shape: Any = None, **keywords: Any
) -> int:
    return conv_flop_count(list(x), list(w), list(out_shape))


# A gradient multiplies what its forward multiplies.
@register_flop_formula(_OPS.convolution_backward_input)
def _convolution_backward_input(dy: Shape, w: Shape, *more: Any, **keywords: Any) -> int:
    return conv_flop_count(list(dy), list(w), list(dy))


@register_flop_formula(_OPS.convolution_backward_weight)
def _convolution_backward_weight(dy: Shape, x: Shape, w: Shape, *more: Any, **keywords: Any) -> int:
    return conv_flop_count(list(dy), list(w), list(dy))


@register_flop_formula(_OPS.matmul)
def _matmul(
    a: Shape,
    b: Shape,
    *more: Any,
    transpose_a: bool = False,
    out_shape: Any = None,
    **keywords: Any,
) -> int:
    terms = a[-2] if transpose_a else a[-1]
    return 2 * int(prod(out_shape)) * terms
