"""Modules of layer, RMS, instance and group norm."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import group_norm, instance_norm, layer_norm, rms_norm
from torch_cudnn_ext.ops._arguments import check_tensor


class LayerNorm(Tunable, torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> LayerNorm(8, policy="cpu:one_pass")(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    replaces = torch.nn.LayerNorm
    family = "layer_norm"

    def forward(self, input: Tensor) -> Tensor:
        """The input normalised over the last dimensions; of the input's sizes."""
        return self._selecting(layer_norm)(
            input, self.normalized_shape, self.weight, self.bias, self.eps, policy=self._running
        )


class RMSNorm(Tunable, torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> RMSNorm(8)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    replaces = torch.nn.RMSNorm
    family = "layer_norm"

    def forward(self, x: Tensor) -> Tensor:
        """The input divided by its root mean square over the last dimensions."""
        return self._selecting(rms_norm)(
            x, self.normalized_shape, self.weight, self.eps, policy=self._running
        )


class GroupNorm(Tunable, torch.nn.GroupNorm):
    """``torch.nn.GroupNorm`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> GroupNorm(2, 6)(torch.randn(1, 6, 4, 4)).shape
        torch.Size([1, 6, 4, 4])
    """

    replaces = torch.nn.GroupNorm
    family = "layer_norm"

    def forward(self, input: Tensor) -> Tensor:
        """Groups of channels normalised; of the input's sizes."""
        return self._selecting(group_norm)(
            input, self.num_groups, self.weight, self.bias, self.eps, policy=self._running
        )


class _InstanceNorm(Tunable, torch.nn.modules.instancenorm._InstanceNorm):
    """An instance norm; the parent checks sizes and adds a missing batch dimension."""

    family = "layer_norm"

    def forward(self, input: Tensor) -> Tensor:
        """Each channel of each sample normalised; of the input's sizes."""
        check_tensor(type(self).__name__, "input", input)
        result: Tensor = super().forward(input)
        return result

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        tensors = (input, self.running_mean, self.running_var, self.weight, self.bias)
        momentum = self.momentum if self.momentum is not None else 0.0
        options = (self.training or not self.track_running_stats, momentum, self.eps)
        return self._selecting(instance_norm)(*tensors, *options, policy=self._running)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> InstanceNorm1d(4)(torch.randn(2, 4, 8)).shape
        torch.Size([2, 4, 8])
    """

    replaces = torch.nn.InstanceNorm1d


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """``torch.nn.InstanceNorm2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> InstanceNorm2d(4)(torch.randn(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    replaces = torch.nn.InstanceNorm2d


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """``torch.nn.InstanceNorm3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> InstanceNorm3d(4)(torch.randn(2, 4, 3, 8, 8)).shape
        torch.Size([2, 4, 3, 8, 8])
    """

    replaces = torch.nn.InstanceNorm3d
