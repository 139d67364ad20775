"""``python -m torch_cudnn_ext profile | list | tune | explain | coverage | bench | info``."""

from torch_cudnn_ext.cli.app import main, script

__all__ = ["main", "script"]
