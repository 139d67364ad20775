"""Pooling modules: those of ``torch.nn``, with a choice of algorithm by keyword ``policy``."""

import torch
from torch import Tensor

from torch_cudnn_ext import ops
from torch_cudnn_ext.nn.tunable import Tunable


class _Pool(Tunable):
    family = "pool"


class MaxPool1d(_Pool, torch.nn.MaxPool1d):
    """``torch.nn.MaxPool1d`` with a choice of algorithm."""

    replaces = torch.nn.MaxPool1d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima of windows, and with ``return_indices`` where they stand."""
        return ops.max_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
            policy=self._running,
        )


class MaxPool2d(_Pool, torch.nn.MaxPool2d):
    """``torch.nn.MaxPool2d`` with a choice of algorithm."""

    replaces = torch.nn.MaxPool2d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima of windows, and with ``return_indices`` where they stand."""
        return ops.max_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
            policy=self._running,
        )


class MaxPool3d(_Pool, torch.nn.MaxPool3d):
    """``torch.nn.MaxPool3d`` with a choice of algorithm."""

    replaces = torch.nn.MaxPool3d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima of windows, and with ``return_indices`` where they stand."""
        return ops.max_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
            policy=self._running,
        )


class AvgPool1d(_Pool, torch.nn.AvgPool1d):
    """``torch.nn.AvgPool1d`` with a choice of algorithm."""

    replaces = torch.nn.AvgPool1d

    def forward(self, input: Tensor) -> Tensor:
        """Averages of windows."""
        return ops.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            policy=self._running,
        )


class AvgPool2d(_Pool, torch.nn.AvgPool2d):
    """``torch.nn.AvgPool2d`` with a choice of algorithm."""

    replaces = torch.nn.AvgPool2d

    def forward(self, input: Tensor) -> Tensor:
        """Averages of windows."""
        return ops.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
            policy=self._running,
        )


class AvgPool3d(_Pool, torch.nn.AvgPool3d):
    """``torch.nn.AvgPool3d`` with a choice of algorithm."""

    replaces = torch.nn.AvgPool3d

    def forward(self, input: Tensor) -> Tensor:
        """Averages of windows."""
        return ops.avg_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
            policy=self._running,
        )


class LPPool1d(_Pool, torch.nn.LPPool1d):
    """``torch.nn.LPPool1d`` with a choice of algorithm."""

    replaces = torch.nn.LPPool1d

    def forward(self, input: Tensor) -> Tensor:
        """Norms of windows."""
        return ops.lp_pool1d(
            input,
            float(self.norm_type),
            self.kernel_size,
            self.stride,
            self.ceil_mode,
            policy=self._running,
        )


class LPPool2d(_Pool, torch.nn.LPPool2d):
    """``torch.nn.LPPool2d`` with a choice of algorithm."""

    replaces = torch.nn.LPPool2d

    def forward(self, input: Tensor) -> Tensor:
        """Norms of windows."""
        return ops.lp_pool2d(
            input,
            float(self.norm_type),
            self.kernel_size,
            self.stride,
            self.ceil_mode,
            policy=self._running,
        )


class LPPool3d(_Pool, torch.nn.LPPool3d):
    """``torch.nn.LPPool3d`` with a choice of algorithm."""

    replaces = torch.nn.LPPool3d

    def forward(self, input: Tensor) -> Tensor:
        """Norms of windows."""
        return ops.lp_pool3d(
            input,
            float(self.norm_type),
            self.kernel_size,
            self.stride,
            self.ceil_mode,
            policy=self._running,
        )


class AdaptiveAvgPool1d(_Pool, torch.nn.AdaptiveAvgPool1d):
    """``torch.nn.AdaptiveAvgPool1d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveAvgPool1d

    def forward(self, input: Tensor) -> Tensor:
        """Averages, as many as ``output_size`` says."""
        return ops.adaptive_avg_pool1d(input, self.output_size, policy=self._running)


class AdaptiveAvgPool2d(_Pool, torch.nn.AdaptiveAvgPool2d):
    """``torch.nn.AdaptiveAvgPool2d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveAvgPool2d

    def forward(self, input: Tensor) -> Tensor:
        """Averages, as many as ``output_size`` says."""
        return ops.adaptive_avg_pool2d(input, self.output_size, policy=self._running)


class AdaptiveAvgPool3d(_Pool, torch.nn.AdaptiveAvgPool3d):
    """``torch.nn.AdaptiveAvgPool3d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveAvgPool3d

    def forward(self, input: Tensor) -> Tensor:
        """Averages, as many as ``output_size`` says."""
        return ops.adaptive_avg_pool3d(input, self.output_size, policy=self._running)


class AdaptiveMaxPool1d(_Pool, torch.nn.AdaptiveMaxPool1d):
    """``torch.nn.AdaptiveMaxPool1d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveMaxPool1d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima, as many as ``output_size`` says, and with ``return_indices`` where they stand."""
        return ops.adaptive_max_pool1d(
            input, self.output_size, self.return_indices, policy=self._running
        )


class AdaptiveMaxPool2d(_Pool, torch.nn.AdaptiveMaxPool2d):
    """``torch.nn.AdaptiveMaxPool2d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveMaxPool2d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima, as many as ``output_size`` says, and with ``return_indices`` where they stand."""
        return ops.adaptive_max_pool2d(
            input, self.output_size, self.return_indices, policy=self._running
        )


class AdaptiveMaxPool3d(_Pool, torch.nn.AdaptiveMaxPool3d):
    """``torch.nn.AdaptiveMaxPool3d`` with a choice of algorithm."""

    replaces = torch.nn.AdaptiveMaxPool3d

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Maxima, as many as ``output_size`` says, and with ``return_indices`` where they stand."""
        return ops.adaptive_max_pool3d(
            input, self.output_size, self.return_indices, policy=self._running
        )
