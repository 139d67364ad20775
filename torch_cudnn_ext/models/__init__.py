"""Whole models: run by our operators, converted to our layers, or pinned by layer name.

The functions of general use (`convert`, `enable`, `pinned`, ...) are names of `torch_cudnn_ext`.
"""

from torch_cudnn_ext.models.classes import counterparts
from torch_cudnn_ext.models.convert import Step, conversion_steps, converted
from torch_cudnn_ext.models.enable import Rule

__all__ = ["Rule", "Step", "conversion_steps", "converted", "counterparts"]


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
