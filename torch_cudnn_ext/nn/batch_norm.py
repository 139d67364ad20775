"""Batch normalisation modules."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from torch_cudnn_ext._torch_internals import check_input_dim
from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops._arguments import check_tensor
from torch_cudnn_ext.ops.batch_norm import batch_norm


class _TunableBatchNorm(Tunable, _BatchNorm):
    family = "batch_norm"

    def forward(self, input: Tensor) -> Tensor:
        """Each channel normalised; of the input's sizes."""
        check_tensor(type(self).__name__, "input", input)
        check_input_dim(self, input)
        momentum = self.momentum
        counts = self.training and self.track_running_stats
        batches = self.num_batches_tracked if counts else None
        if batches is not None:
            batches.add_(1)
            if momentum is None:  # the average over all batches
                momentum = 1 / float(batches)
        keeps = not self.training or self.track_running_stats
        try:
            mean, var = self.running_mean, self.running_var
            running = (mean, var) if keeps else (None, None)
            training = self.training or (mean is None and var is None)
            options = (training, 0.0 if momentum is None else momentum, self.eps)
            return self._selecting(batch_norm)(
                input, *running, self.weight, self.bias, *options, policy=self._running
            )
        except (RuntimeError, TypeError, ValueError):  # a failed batch does not count
            if batches is not None:
                batches.sub_(1)
            raise


class BatchNorm1d(_TunableBatchNorm, torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> BatchNorm1d(4)(torch.randn(8, 4)).shape
        torch.Size([8, 4])
    """

    replaces = torch.nn.BatchNorm1d


class BatchNorm2d(_TunableBatchNorm, torch.nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> BatchNorm2d(4, policy="cpu:two_pass")(torch.randn(8, 4, 6, 6)).shape
        torch.Size([8, 4, 6, 6])
    """

    replaces = torch.nn.BatchNorm2d


class BatchNorm3d(_TunableBatchNorm, torch.nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> BatchNorm3d(4)(torch.randn(2, 4, 3, 6, 6)).shape
        torch.Size([2, 4, 3, 6, 6])
    """

    replaces = torch.nn.BatchNorm3d
