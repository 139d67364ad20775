"""``python -m torch_cudnn_ext``: profile, list, tune, explain, coverage, bench, info, verify."""

from torch_cudnn_ext.cli.app import main, script

__all__ = ["main", "script"]
