"""Pin, autotune and profile the cuDNN algorithms behind PyTorch's operators.

* `ops`: the operators as functions, with PyTorch's own arguments, plus ``policy=``
* `nn`: the modules, which are subclasses of PyTorch's
* `Policy`, `knobs`: how algorithms are selected, for a call, a thread or the process
* `enable`, `disable`, `enabled`: PyTorch's own operators run by ours, in unchanged models
* `pinned`, `apply_pins`, `when`, `apply_rules`: policies by a layer's name, or by the problem
* `save_pins`, `load_pins`, `load_rules`: the same as files
* `last_decision`, `explain`, `declined`: what ran, and why
* `trace`: the problems of a model's calls
* `profile`, `profile_model`: what every algorithm costs
* `convert`: a network's layers exchanged for those of `nn`, and back
* `optimize`, `load_optimized`: a whole network, as fast as it was found to be
* `tuning`: measured rankings, tuned, exported and imported
* `untuned`: the problems that ran although nothing was tuned for them
* `UnverifiedVersionWarning`: given once for a version of cuDNN or a GPU that was not verified
* `models`, `analysis`: what else there is for whole models, and the reports
"""

from pathlib import Path

from torch_cudnn_ext._commands.process import is_command_line

__version__ = "0.2.0"
if is_command_line():
    from torch_cudnn_ext._commands.parsing import answer_at_once

    answer_at_once(__version__)

import torch  # maps the cuDNN that everything below shares

from torch_cudnn_ext import _libraries

_libraries.check_torch(torch.__version__, torch.version.cuda)
__path__.insert(0, str(_libraries.find_extension(torch.__version__)))  # of _C
_libraries.load()

# isort: split
from torch_cudnn_ext import _C

_libraries.check_versions(int(_C.versions()["cudnn_header"]), int(_C.versions()["cudnn"]))
for _device in sorted(Path(__file__).parent.glob("devices/*.json")):
    _C.add_target(_device.stem, _device.read_text())

# isort: split
from torch_cudnn_ext import analysis, knobs, models, nn, ops, tuning
from torch_cudnn_ext._optimize.optimize import load_optimized, optimize
from torch_cudnn_ext._optimize.optimized import OptimizedModel
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._warning import UnverifiedVersionWarning
from torch_cudnn_ext._workload.recorder import trace
from torch_cudnn_ext.analysis.explain import explain
from torch_cudnn_ext.analysis.profile import profile, profile_model
from torch_cudnn_ext.analysis.status import status
from torch_cudnn_ext.models.convert import convert
from torch_cudnn_ext.models.enable import (
    apply_rules,
    declined,
    disable,
    enable,
    enabled,
    is_enabled,
    when,
)
from torch_cudnn_ext.models.pin_files import load_pins, load_rules, save_pins
from torch_cudnn_ext.models.pins import Pins, apply_pins, clear_pins, pinned
from torch_cudnn_ext.ops import last_decision
from torch_cudnn_ext.policy import Policy
from torch_cudnn_ext.tuning import isolation as _isolation
from torch_cudnn_ext.tuning import keeping as _keeping
from torch_cudnn_ext.tuning import local_errata as _local_errata
from torch_cudnn_ext.tuning.untuned import untuned

_local_errata.load()
_isolation.install()
_keeping.install()

__all__ = [
    "OptimizationReport", "OptimizedModel", "Pins", "Policy", "UnverifiedVersionWarning",
    "analysis", "apply_pins", "apply_rules", "clear_pins", "convert", "declined", "disable",
    "enable", "enabled", "explain", "is_enabled", "knobs", "last_decision", "load_optimized",
    "load_pins", "load_rules", "models", "nn", "ops", "optimize", "pinned", "profile",
    "profile_model", "save_pins", "status", "trace", "tuning", "untuned", "when",
]  # fmt: skip


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted([*__all__, "__version__"])
