"""``python -m torch_cudnn_ext``."""

from torch_cudnn_ext.cli import script

script()
