"""What algorithms cost and what a model ran: profiles, explanations, coverage, and their tables.

The functions of general use (`profile`, `profile_model`, `explain`) are names of `torch_cudnn_ext`.
"""

from torch_cudnn_ext.analysis.compare import Change, Differences, compare
from torch_cudnn_ext.analysis.coverage import Coverage, Family, coverage
from torch_cudnn_ext.analysis.explain import Explanation, LayerCall
from torch_cudnn_ext.analysis.lint import Hint
from torch_cudnn_ext.analysis.results import LayerProfile, Profile, Totals
from torch_cudnn_ext.analysis.settings import Settings
from torch_cudnn_ext.analysis.status import Status

__all__ = [
    "Change",
    "Coverage",
    "Differences",
    "Explanation",
    "Family",
    "Hint",
    "LayerCall",
    "LayerProfile",
    "Profile",
    "Settings",
    "Status",
    "Totals",
    "compare",
    "coverage",
]


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
