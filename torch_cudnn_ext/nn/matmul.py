"""The linear layer."""

from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext.nn.activated import Activated
from torch_cudnn_ext.ops import linear
from torch_cudnn_ext.ops.matmul import gemm


class Linear(Activated, torch.nn.Linear):
    """``torch.nn.Linear`` whose keyword ``policy`` selects its algorithms.

    The keyword ``activation`` is ``none`` or ``identity``, or a function of the result, as in
    `torch_cudnn_ext.ops.gemm`.

    Example:
        >>> Linear(8, 3, policy="cpu:blocked")(torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.Linear
    family = "matmul"

    def forward(self, input: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        if not self.activates:
            return self._selecting(linear)(input, self.weight, self.bias, policy=self._running)
        rows = input if input.dim() > 1 else input.unsqueeze(0)
        options: dict[str, Any] = {"transpose_b": True, "activation": self.activation}
        output = self._selecting(gemm)(
            rows, self.weight, self.bias, **options, policy=self._running
        )
        return output if input.dim() > 1 else output.squeeze(0)
