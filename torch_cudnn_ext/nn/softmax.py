"""Softmax modules."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import log_softmax, softmax
from torch_cudnn_ext.ops._arguments import check_tensor


class Softmax(Tunable, torch.nn.Softmax):
    """``torch.nn.Softmax`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Softmax(1, policy="cpu:online")(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    replaces = torch.nn.Softmax
    family = "softmax"

    def forward(self, input: Tensor) -> Tensor:
        """Softmax along ``dim``; of the input's sizes."""
        return self._selecting(softmax)(input, self.dim, policy=self._running)


class LogSoftmax(Tunable, torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> LogSoftmax(1)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    replaces = torch.nn.LogSoftmax
    family = "softmax"

    def forward(self, input: Tensor) -> Tensor:
        """Log-softmax along ``dim``; of the input's sizes."""
        return self._selecting(log_softmax)(input, self.dim, policy=self._running)


class Softmax2d(Tunable, torch.nn.Softmax2d):
    """``torch.nn.Softmax2d`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Softmax2d()(torch.randn(1, 4, 3, 3)).shape
        torch.Size([1, 4, 3, 3])
    """

    replaces = torch.nn.Softmax2d
    family = "softmax"

    def forward(self, input: Tensor) -> Tensor:
        """Softmax over the channels of ``[N, C, H, W]`` or ``[C, H, W]``."""
        check_tensor("Softmax2d", "input", input)
        if input.dim() not in (3, 4):
            raise ValueError(
                f"Softmax2d: argument input: got sizes {list(input.shape)}, "
                "wanted 3 or 4 dimensions"
            )
        return self._selecting(softmax)(input, -3, policy=self._running)
