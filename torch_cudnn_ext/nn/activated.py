"""Layers that can apply an activation to their result as part of one problem."""

from typing import Any

from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops.convolution_primitives import ConvActivation, check_activation


class Activated(Tunable):
    """A mixin that gives a layer the keyword ``activation``."""

    activation: ConvActivation = "none"

    def __init__(self, *args: Any, activation: ConvActivation = "none", **kwargs: Any) -> None:
        """Take the arguments of the class that this one replaces, a policy and an activation."""
        super().__init__(*args, **kwargs)
        check_activation(type(self).__name__, activation)
        self.activation = activation

    def extra_repr(self) -> str:
        """The parent's line, the policy, and the activation."""
        line = super().extra_repr()
        return line if self.activation == "none" else f"{line}, activation={self.activation!r}"

    @property
    def activates(self) -> bool:
        """Whether the activation computes something."""
        return self.activation not in ("none", "identity")

    def _reason_to_stay(self) -> str:
        if not self.activates:
            return ""
        return f"torch.nn has no activation={self.activation!r}"
