"""The linear layer."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import linear


class Linear(Tunable, torch.nn.Linear):
    """``torch.nn.Linear`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Linear(8, 3, policy="cpu:blocked")(torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.Linear
    family = "matmul"

    def forward(self, input: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        return self._run_operator(linear, input, self.weight, self.bias)
