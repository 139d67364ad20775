"""Pooling modules, whose keyword ``policy`` selects their algorithms."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.modules import pooling

from torch_cudnn_ext import ops
from torch_cudnn_ext.nn.tunable import Tunable


class _Pool(Tunable):
    family = "pool"
    _operator: ClassVar[Any]


class _MaxPool(_Pool, pooling._MaxPoolNd):
    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The maxima of windows, and their indices if ``return_indices``."""
        result: Tensor | tuple[Tensor, Tensor] = self._selecting(self._operator)(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            bool(self.return_indices),
            policy=self._running,
        )
        return result


class _AvgPool(_Pool, pooling._AvgPoolNd):
    kernel_size: Any
    stride: Any
    padding: Any
    ceil_mode: bool
    count_include_pad: bool

    def forward(self, input: Tensor) -> Tensor:
        """The averages of windows."""
        result: Tensor = self._selecting(self._operator)(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            *self._divisor(),
            policy=self._running,
        )
        return result

    def _divisor(self) -> tuple[int | None, ...]:
        return (self.divisor_override,)  # type: ignore[return-value]


class _LPPool(_Pool, pooling._LPPoolNd):
    def forward(self, input: Tensor) -> Tensor:
        """The norms of windows."""
        settings = (float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        result: Tensor = self._selecting(self._operator)(input, *settings, policy=self._running)
        return result


class _AdaptiveAvgPool(_Pool, pooling._AdaptiveAvgPoolNd):
    def forward(self, input: Tensor) -> Tensor:
        """Averages of the spatial sizes ``output_size``."""
        result: Tensor = self._selecting(self._operator)(
            input, self.output_size, policy=self._running
        )
        return result


class _AdaptiveMaxPool(_Pool, pooling._AdaptiveMaxPoolNd):
    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima of the spatial sizes ``output_size``, and their indices if ``return_indices``."""
        result: Tensor | tuple[Tensor, Tensor] = self._selecting(self._operator)(
            input, self.output_size, bool(self.return_indices), policy=self._running
        )
        return result


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """``torch.nn.MaxPool1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> MaxPool1d(2)(torch.randn(1, 3, 6)).shape
        torch.Size([1, 3, 3])
    """

    replaces = torch.nn.MaxPool1d
    _operator = staticmethod(ops.max_pool1d)


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> MaxPool2d(2)(torch.randn(1, 3, 6, 6)).shape
        torch.Size([1, 3, 3, 3])
    """

    replaces = torch.nn.MaxPool2d
    _operator = staticmethod(ops.max_pool2d)


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """``torch.nn.MaxPool3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> MaxPool3d(2)(torch.randn(1, 3, 6, 6, 6)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    replaces = torch.nn.MaxPool3d
    _operator = staticmethod(ops.max_pool3d)


class AvgPool1d(_AvgPool, torch.nn.AvgPool1d):
    """``torch.nn.AvgPool1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AvgPool1d(2)(torch.randn(1, 3, 6)).shape
        torch.Size([1, 3, 3])
    """

    replaces = torch.nn.AvgPool1d
    _operator = staticmethod(ops.avg_pool1d)

    def _divisor(self) -> tuple[int | None, ...]:
        return ()  # one dimension has none


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AvgPool2d(2)(torch.randn(1, 3, 6, 6)).shape
        torch.Size([1, 3, 3, 3])
    """

    replaces = torch.nn.AvgPool2d
    _operator = staticmethod(ops.avg_pool2d)


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d):
    """``torch.nn.AvgPool3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AvgPool3d(2)(torch.randn(1, 3, 6, 6, 6)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    replaces = torch.nn.AvgPool3d
    _operator = staticmethod(ops.avg_pool3d)


class LPPool1d(_LPPool, torch.nn.LPPool1d):
    """``torch.nn.LPPool1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> LPPool1d(2, 2)(torch.randn(1, 3, 6)).shape
        torch.Size([1, 3, 3])
    """

    replaces = torch.nn.LPPool1d
    _operator = staticmethod(ops.lp_pool1d)


class LPPool2d(_LPPool, torch.nn.LPPool2d):
    """``torch.nn.LPPool2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> LPPool2d(2, 2)(torch.randn(1, 3, 6, 6)).shape
        torch.Size([1, 3, 3, 3])
    """

    replaces = torch.nn.LPPool2d
    _operator = staticmethod(ops.lp_pool2d)


class LPPool3d(_LPPool, torch.nn.LPPool3d):
    """``torch.nn.LPPool3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> LPPool3d(2, 2)(torch.randn(1, 3, 6, 6, 6)).shape
        torch.Size([1, 3, 3, 3, 3])
    """

    replaces = torch.nn.LPPool3d
    _operator = staticmethod(ops.lp_pool3d)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """``torch.nn.AdaptiveAvgPool1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveAvgPool1d(2)(torch.randn(1, 3, 6)).shape
        torch.Size([1, 3, 2])
    """

    replaces = torch.nn.AdaptiveAvgPool1d
    _operator = staticmethod(ops.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """``torch.nn.AdaptiveAvgPool2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveAvgPool2d(2)(torch.randn(1, 3, 6, 6)).shape
        torch.Size([1, 3, 2, 2])
    """

    replaces = torch.nn.AdaptiveAvgPool2d
    _operator = staticmethod(ops.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """``torch.nn.AdaptiveAvgPool3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveAvgPool3d(2)(torch.randn(1, 3, 6, 6, 6)).shape
        torch.Size([1, 3, 2, 2, 2])
    """

    replaces = torch.nn.AdaptiveAvgPool3d
    _operator = staticmethod(ops.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """``torch.nn.AdaptiveMaxPool1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveMaxPool1d(2)(torch.randn(1, 3, 6)).shape
        torch.Size([1, 3, 2])
    """

    replaces = torch.nn.AdaptiveMaxPool1d
    _operator = staticmethod(ops.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """``torch.nn.AdaptiveMaxPool2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveMaxPool2d(2)(torch.randn(1, 3, 6, 6)).shape
        torch.Size([1, 3, 2, 2])
    """

    replaces = torch.nn.AdaptiveMaxPool2d
    _operator = staticmethod(ops.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """``torch.nn.AdaptiveMaxPool3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> AdaptiveMaxPool3d(2)(torch.randn(1, 3, 6, 6, 6)).shape
        torch.Size([1, 3, 2, 2, 2])
    """

    replaces = torch.nn.AdaptiveMaxPool3d
    _operator = staticmethod(ops.adaptive_max_pool3d)
