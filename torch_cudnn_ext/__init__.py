"""Pin, autotune and profile the cuDNN algorithms behind PyTorch's operators.

* `ops`: convolutions with PyTorch's own arguments, plus ``policy=``
* `nn`: the modules; subclasses of PyTorch's
* `Policy`, `knobs`: how an algorithm is chosen, for a call, a thread or the process
* `last_choice`: what ran, and why
* `profile`, `profile_model`, `profiling`: what every algorithm would cost
* `tuning`: choices that were measured, exported and imported
"""

from pathlib import Path

import torch  # noqa: F401  (maps the cuDNN that everything below shares)

from torch_cudnn_ext import _libraries

_libraries.load()

# isort: split
from torch_cudnn_ext import _C

_libraries.check_versions(int(_C.versions()["cudnn_header"]), int(_C.versions()["cudnn"]))
for _device in sorted(Path(__file__).parent.glob("devices/*.json")):
    _C.add_target(_device.stem, _device.read_text())

# isort: split
from torch_cudnn_ext import knobs, nn, ops, profiling, tuning
from torch_cudnn_ext.ops import last_choice
from torch_cudnn_ext.policy import Policy
from torch_cudnn_ext.profiling import profile, profile_model

__version__ = "0.1.0"

__all__ = [
    "Policy",
    "knobs",
    "last_choice",
    "nn",
    "ops",
    "profile",
    "profile_model",
    "profiling",
    "tuning",
]
