"""Cross-entropy module."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import cross_entropy


class CrossEntropyLoss(Tunable, torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` whose keyword ``policy`` selects that of log-softmax.

    Example:
        >>> CrossEntropyLoss()(torch.zeros(2, 4), torch.tensor([0, 3])).shape
        torch.Size([])
    """

    replaces = torch.nn.CrossEntropyLoss
    family = "softmax"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits ``[N, C, *space]`` against indices or probabilities."""
        return self._selecting(cross_entropy)(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            policy=self._running,
        )
