"""Tuning ahead of use, and the tuning table: measured rankings in memory, which files keep."""

from torch_cudnn_ext.tuning.store import (
    clear,
    entries,
    export_table,
    import_table,
    merge_table,
    reset,
)
from torch_cudnn_ext.tuning.tune import tune, tune_model

__all__ = [
    "clear",
    "entries",
    "export_table",
    "import_table",
    "merge_table",
    "reset",
    "tune",
    "tune_model",
]


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
