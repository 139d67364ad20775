"""Modules of local response and divisive normalisation."""

from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import divisive_norm, local_response_norm
from torch_cudnn_ext.ops.lrn import LrnWindow
from torch_cudnn_ext.policy import PolicyLike


class LocalResponseNorm(Tunable, torch.nn.LocalResponseNorm):
    """``torch.nn.LocalResponseNorm`` whose keyword ``policy`` selects its algorithms.

    The operators take numbers. If ``alpha``, ``beta`` or ``k`` is a tensor that requires a gradient
    or has several elements, PyTorch's own formula runs, whatever the policy. With cuDNN's window,
    which that formula does not have, such a tensor is a ``TypeError``.

    Attributes:
        window: The middle of an even window: PyTorch's (``torch``) or ``cudnn``'s.

    Example:
        >>> LocalResponseNorm(3)(torch.randn(1, 4, 5, 5)).shape
        torch.Size([1, 4, 5, 5])
    """

    replaces = torch.nn.LocalResponseNorm
    family = "lrn"
    window: LrnWindow = "torch"

    def __init__(self, *args: Any, window: LrnWindow = "torch", **kwargs: Any) -> None:
        """Take the arguments of the class that this one replaces, and the window."""
        super().__init__(*args, **kwargs)
        self.window = window

    def forward(self, input: Tensor) -> Tensor:
        """The input normalised over neighbouring channels; of the input's sizes."""
        if self.window == "torch" and any(map(_is_no_number, (self.alpha, self.beta, self.k))):
            result: Tensor = super().forward(input)
            return result
        return self._selecting(local_response_norm)(
            input, self.size, self.alpha, self.beta, self.k, self.window, policy=self._running
        )

    def extra_repr(self) -> str:
        """The parent's line, the policy, and the window if it is cuDNN's."""
        line = super().extra_repr()
        return line if self.window == "torch" else f"{line}, window={self.window!r}"

    def _reason_to_stay(self) -> str:
        return "" if self.window == "torch" else f"torch.nn has no window={self.window!r}"


class DivisiveNorm(Tunable):
    """`torch_cudnn_ext.ops.divisive_norm` as a module; ``torch.nn`` has no such module.

    ``y = x / (k + alpha / size^d * sum((x - means)^2 over the window))^beta``; the window has
    ``size`` elements in each of the ``d`` spatial dimensions.

    Example:
        >>> DivisiveNorm(3)(torch.randn(1, 4, 5, 5)).shape
        torch.Size([1, 4, 5, 5])
    """

    family = "lrn"

    def __init__(
        self,
        size: int,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        *,
        policy: PolicyLike = None,
    ) -> None:
        """Take the arguments of the function, except its tensors."""
        super().__init__(policy=policy)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor, means: Tensor | None = None) -> Tensor:
        """Elements divided by a measure of their neighbourhood; of the input's sizes."""
        return self._selecting(divisive_norm)(
            input, self.size, self.alpha, self.beta, self.k, means, policy=self._running
        )

    def extra_repr(self) -> str:
        """The arguments, and the policy."""
        line = f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
        return ", ".join(words for words in (line, super().extra_repr()) if words)


def _is_no_number(value: object) -> bool:
    return isinstance(value, Tensor) and (value.requires_grad or value.numel() > 1)
