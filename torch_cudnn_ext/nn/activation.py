"""Modules of elementwise activations."""

import torch
from torch import Tensor

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops import clipped_relu, elu, relu, relu6, sigmoid, silu, tanh
from torch_cudnn_ext.policy import PolicyLike


class ReLU(Tunable, torch.nn.ReLU):
    """``torch.nn.ReLU`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.ReLU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Rectified elements; sizes as the input's."""
        return self._run_operator(relu, input, bool(self.inplace))


class ReLU6(Tunable, torch.nn.ReLU6):
    """``torch.nn.ReLU6`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.ReLU6
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Elements kept between 0 and 6; sizes as the input's."""
        return self._run_operator(relu6, input, bool(self.inplace))


class ClippedReLU(Tunable, torch.nn.Module):
    """Elements are kept between zero and a ceiling.

    Attributes:
        ceiling: The largest value of the output.
        inplace: The output overwrites the input, and its gradient the output's.
    """

    family = "activation"

    def __init__(
        self, ceiling: float = 6.0, inplace: bool = False, *, policy: PolicyLike = None
    ) -> None:
        super().__init__(policy=policy)
        self.ceiling = ceiling
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Clipped elements; sizes as the input's."""
        return self._run_operator(clipped_relu, input, self.ceiling, bool(self.inplace))

    def extra_repr(self) -> str:
        """The ceiling, whether in place, and the policy."""
        parts = [f"ceiling={self.ceiling}", *(["inplace=True"] if self.inplace else [])]
        return ", ".join([*parts, *([rest] if (rest := super().extra_repr()) else [])])


class Tanh(Tunable, torch.nn.Tanh):
    """``torch.nn.Tanh`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.Tanh
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Hyperbolic tangents; sizes as the input's."""
        return self._run_operator(tanh, input)


class Sigmoid(Tunable, torch.nn.Sigmoid):
    """``torch.nn.Sigmoid`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.Sigmoid
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """The logistic function; sizes as the input's."""
        return self._run_operator(sigmoid, input)


class ELU(Tunable, torch.nn.ELU):
    """``torch.nn.ELU`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.ELU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """Exponential linear units; sizes as the input's."""
        return self._run_operator(elu, input, self.alpha, bool(self.inplace))


class SiLU(Tunable, torch.nn.SiLU):
    """``torch.nn.SiLU`` with a choice of algorithm, by keyword ``policy``."""

    replaces = torch.nn.SiLU
    family = "activation"

    def forward(self, input: Tensor) -> Tensor:
        """``x sigmoid(x)``; sizes as the input's."""
        return self._run_operator(silu, input, bool(self.inplace))
