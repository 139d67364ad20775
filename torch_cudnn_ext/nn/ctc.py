"""CTC loss module."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import ctc_loss


class CTCLoss(Tunable, torch.nn.CTCLoss):
    """``torch.nn.CTCLoss`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> log_probs = torch.zeros(5, 1, 3).log_softmax(2)  # time, batch, classes
        >>> CTCLoss()(log_probs, torch.tensor([[1, 2]]), [5], [2]).shape
        torch.Size([])
    """

    replaces = torch.nn.CTCLoss
    family = "ctc"

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """The loss of ``[T, N, C]`` log-probabilities against targets of class indices."""
        tensors = (log_probs, targets, input_lengths, target_lengths)
        options = (self.blank, self.reduction, self.zero_infinity)
        return self._selecting(ctc_loss)(*tensors, *options, policy=self._running)
