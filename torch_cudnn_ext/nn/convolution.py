"""Convolution modules."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from torch_cudnn_ext._torch_internals import output_padding, reversed_padding
from torch_cudnn_ext.nn.activated import Activated
from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops._arguments import sizes_of
from torch_cudnn_ext.ops._border import border, pad_after
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.convolution_primitives import convolution


class _Convolution(Tunable, _ConvNd):
    family = "conv"
    _operator: ClassVar[Any]


class _ForwardConvolution(Activated, _Convolution):
    """A convolution that is not transposed."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, reversed_padding(self), mode=self.padding_mode)
            padding = (0,) * len(self.kernel_size)
        elif isinstance(padding, str):
            name = type(self).__name__
            kernel = weight.shape[2:]  # may differ from the constructor's
            stride = sizes_of(name, "stride", self.stride, len(kernel))
            dilation = sizes_of(name, "dilation", self.dilation, len(kernel))
            before, after = border(name, padding, kernel, stride, dilation)  # type: ignore[arg-type]
            input = pad_after(input, before, after)
            padding = tuple(before)
        output: Tensor
        if not self.activates:
            output = self._selecting(self._operator)(
                input,
                weight,
                bias,
                self.stride,
                padding,
                self.dilation,
                self.groups,
                policy=self._running,
            )
            return output
        is_batch = input.dim() == weight.dim()
        tensors = (input if is_batch else input.unsqueeze(0), weight, bias)
        output = self._selecting(convolution)(
            *tensors,
            self.stride,
            padding,
            self.dilation,
            groups=self.groups,
            activation=self.activation,
            policy=self._running,
        )
        return output if is_batch else output.squeeze(0)


class _TransposedConvolution(_Convolution, _ConvTransposeNd):
    """A transposed convolution."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Apply the transposed convolution.

        Args:
            input: ``[N, C_in, *space]``, or ``[C_in, *space]`` without a batch.
            output_size: Sizes of the output, with or without ``N`` and ``C_out``; a stride above 1
                allows several.

        Returns:
            ``[N, C_out, *space_out]``, without ``N`` if the input has none.

        Raises:
            ValueError: No output padding gives ``output_size``, or the padding is not of zeros.
        """
        if self.padding_mode != "zeros":
            raise ValueError(
                f"{type(self).__name__}: padding_mode is {self.padding_mode!r}, wanted 'zeros'"
            )
        assert isinstance(self.padding, tuple)  # the constructor takes no border mode
        added = output_padding(self, input, output_size)
        arguments = (self.stride, self.padding, added, self.groups, self.dilation)
        output: Tensor = self._selecting(self._operator)(
            input, self.weight, self.bias, *arguments, policy=self._running
        )
        return output


class Conv1d(_ForwardConvolution, torch.nn.Conv1d):
    """``torch.nn.Conv1d`` with the keywords of `Conv2d`.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; output ``[N, C_out, L_out]`` or ``[C_out, L_out]``.

    Example:
        >>> Conv1d(3, 8, 3)(torch.randn(1, 3, 10)).shape
        torch.Size([1, 8, 8])
    """

    replaces = torch.nn.Conv1d
    _operator = staticmethod(direct("conv1d", "conv").of_operator())


class Conv2d(_ForwardConvolution, torch.nn.Conv2d):
    """``torch.nn.Conv2d`` whose keyword ``policy`` selects its algorithms.

    ``policy`` is a text, a `Policy`, or a mapping of its keywords. The keyword ``activation`` is
    ``none``, or a function of the result, as in `torch_cudnn_ext.ops.convolution`.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; output ``[N, C_out, H_out, W_out]`` or
        ``[C_out, H_out, W_out]``.

    Example:
        >>> Conv2d(3, 8, 3, policy="autotune", activation="relu")(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 8, 6, 6])
    """

    replaces = torch.nn.Conv2d
    _operator = staticmethod(direct("conv2d", "conv").of_operator())


class Conv3d(_ForwardConvolution, torch.nn.Conv3d):
    """``torch.nn.Conv3d`` with the keywords of `Conv2d`.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; output
        ``[N, C_out, D_out, H_out, W_out]`` or ``[C_out, D_out, H_out, W_out]``.

    Example:
        >>> Conv3d(3, 8, 3)(torch.randn(1, 3, 5, 6, 6)).shape
        torch.Size([1, 8, 3, 4, 4])
    """

    replaces = torch.nn.Conv3d
    _operator = staticmethod(direct("conv3d", "conv").of_operator())


class ConvTranspose1d(_TransposedConvolution, torch.nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` with the keywords of `ConvTranspose2d`.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; output ``[N, C_out, L_out]`` or ``[C_out, L_out]``.

    Example:
        >>> ConvTranspose1d(3, 8, 3)(torch.randn(1, 3, 10)).shape
        torch.Size([1, 8, 12])
    """

    replaces = torch.nn.ConvTranspose1d
    _operator = staticmethod(direct("conv_transpose1d", "conv").of_operator())


class ConvTranspose2d(_TransposedConvolution, torch.nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` whose keyword ``policy`` selects its algorithms.

    ``policy`` is a text, a `Policy`, or a mapping of its keywords. Its passes name the cuDNN
    primitive that runs: the forward runs ``bwd_data``, the data gradient ``fwd``, the weight
    gradient ``bwd_filter``.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; output ``[N, C_out, H_out, W_out]`` or
        ``[C_out, H_out, W_out]``.

    Example:
        >>> ConvTranspose2d(3, 8, 2, stride=2)(torch.randn(1, 3, 5, 5)).shape
        torch.Size([1, 8, 10, 10])
    """

    replaces = torch.nn.ConvTranspose2d
    _operator = staticmethod(direct("conv_transpose2d", "conv").of_operator())


class ConvTranspose3d(_TransposedConvolution, torch.nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` with the keywords of `ConvTranspose2d`.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; output
        ``[N, C_out, D_out, H_out, W_out]`` or ``[C_out, D_out, H_out, W_out]``.

    Example:
        >>> ConvTranspose3d(3, 8, 3)(torch.randn(1, 3, 5, 6, 6)).shape
        torch.Size([1, 8, 7, 8, 8])
    """

    replaces = torch.nn.ConvTranspose3d
    _operator = staticmethod(direct("conv_transpose3d", "conv").of_operator())
