"""What the process was started for."""

import sys
from pathlib import Path

PROGRAM = "torch_cudnn_ext"
# Set by the script of a shell's completion, which runs the program to get the words.
COMPLETION_VARIABLE = "_TORCH_CUDNN_EXT_COMPLETE"


def is_command_line() -> bool:
    """Whether this process imports the package to be ``python -m torch_cudnn_ext``.

    The installed command of that name is meant, too.
    """
    started = next(iter(sys.orig_argv[-len(sys.argv) :]), "")  # the program, before its arguments
    package = __package__.partition(".")[0]
    return Path(started.removeprefix("-m")).name == package and sys.argv[0] in ("-m", started)
