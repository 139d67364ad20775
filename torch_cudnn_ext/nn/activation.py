"""Modules of elementwise activations."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import clipped_relu, elu, relu, relu6, sigmoid, silu, tanh
from torch_cudnn_ext.policy import PolicyLike


class ReLU(Tunable, torch.nn.ReLU):
    """``torch.nn.ReLU`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> ReLU()(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.ReLU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """The rectified elements; of the input's sizes."""
        return self._selecting(relu)(input, bool(self.inplace), policy=self._running)


class ReLU6(Tunable, torch.nn.ReLU6):
    """``torch.nn.ReLU6`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> ReLU6()(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.ReLU6
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """The elements clipped to 0 and 6; of the input's sizes."""
        return self._selecting(relu6)(input, bool(self.inplace), policy=self._running)


class ClippedReLU(Tunable, torch.nn.Module):
    """Clips elements to zero and a ceiling.

    Attributes:
        ceiling: The largest value of the output.
        inplace: Whether the output overwrites the input, and its gradient the output's.

    Example:
        >>> ClippedReLU(3.0)(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    family = "activation"

    def __init__(
        self, ceiling: float = 6.0, inplace: bool = False, *, policy: PolicyLike = None
    ) -> None:
        super().__init__(policy=policy)
        self.ceiling = ceiling
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """The clipped elements; of the input's sizes."""
        return self._selecting(clipped_relu)(
            input, self.ceiling, bool(self.inplace), policy=self._running
        )

    def extra_repr(self) -> str:
        """The ceiling, whether in place, and the policy."""
        parts = [f"ceiling={self.ceiling}", *(["inplace=True"] if self.inplace else [])]
        return ", ".join([*parts, *([rest] if (rest := super().extra_repr()) else [])])


class Tanh(Tunable, torch.nn.Tanh):
    """``torch.nn.Tanh`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Tanh()(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.Tanh
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Hyperbolic tangents; of the input's sizes."""
        return self._selecting(tanh)(input, policy=self._running)


class Sigmoid(Tunable, torch.nn.Sigmoid):
    """``torch.nn.Sigmoid`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> Sigmoid()(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.Sigmoid
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """The logistic function; of the input's sizes."""
        return self._selecting(sigmoid)(input, policy=self._running)


class ELU(Tunable, torch.nn.ELU):
    """``torch.nn.ELU`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> ELU(alpha=0.5)(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.ELU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Exponential linear units; of the input's sizes."""
        return self._selecting(elu)(input, self.alpha, bool(self.inplace), policy=self._running)


class SiLU(Tunable, torch.nn.SiLU):
    """``torch.nn.SiLU`` whose keyword ``policy`` selects its algorithms.

    Example:
        >>> SiLU()(torch.randn(2, 3)).shape
        torch.Size([2, 3])
    """

    replaces = torch.nn.SiLU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """``x sigmoid(x)``; of the input's sizes."""
        return self._selecting(silu)(input, bool(self.inplace), policy=self._running)
