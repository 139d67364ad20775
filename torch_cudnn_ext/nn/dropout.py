"""Dropout module."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops.dropout import dropout


class Dropout(Tunable, torch.nn.Dropout):
    """``torch.nn.Dropout`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Dropout(0.1)(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.Dropout
    family = "dropout"
    _draws = True

    def forward(self, input: Tensor) -> Tensor:
        """Dropout in training; the input itself in evaluation."""
        return self._selecting(dropout)(
            input, self.p, self.training, bool(self.inplace), policy=self._running
        )
