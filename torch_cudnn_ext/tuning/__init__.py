"""Tuning ahead of use, and measured rankings: in memory, in the tuning store and in files."""

from torch_cudnn_ext.tuning.agreement import Agreement, agree
from torch_cudnn_ext.tuning.keeping import store_path
from torch_cudnn_ext.tuning.statistics import Statistics, statistics
from torch_cudnn_ext.tuning.store import (
    clear,
    entries,
    export_table,
    import_table,
    merge_table,
    reset,
)
from torch_cudnn_ext.tuning.tune import tune, tune_model
from torch_cudnn_ext.tuning.untuned import UntunedProblem, untuned

__all__ = [
    "Agreement",
    "Statistics",
    "UntunedProblem",
    "agree",
    "clear",
    "entries",
    "export_table",
    "import_table",
    "merge_table",
    "reset",
    "statistics",
    "store_path",
    "tune",
    "tune_model",
    "untuned",
]


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
