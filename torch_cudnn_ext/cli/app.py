"""What runs the commands, and the process of the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import typer

from torch_cudnn_ext import __version__
from torch_cudnn_ext._commands.options import Command
from torch_cudnn_ext._commands.parsing import make_app, replace_unknown_characters, run_app
from torch_cudnn_ext.cli.bench import bench_command
from torch_cudnn_ext.cli.compare import compare_command
from torch_cudnn_ext.cli.coverage import coverage_command
from torch_cudnn_ext.cli.explain import explain_command
from torch_cudnn_ext.cli.info import info_command
from torch_cudnn_ext.cli.listing import list_command
from torch_cudnn_ext.cli.optimize import optimize_command
from torch_cudnn_ext.cli.profile import profile_command
from torch_cudnn_ext.cli.store import store_command
from torch_cudnn_ext.cli.tune import tune_command
from torch_cudnn_ext.cli.verify import verify_command

# Each takes the context and the class of `COMMANDS` with the command's name.
_RUN: dict[str, Callable[[typer.Context, Any], None]] = {
    "profile": profile_command,
    "list": list_command,
    "bench": bench_command,
    "tune": tune_command,
    "compare": compare_command,
    "coverage": coverage_command,
    "explain": explain_command,
    "optimize": optimize_command,
    "info": info_command,
    "verify": verify_command,
    "store": store_command,
}


def _run(name: str, context: typer.Context, given: Command) -> None:
    _RUN[name](context, given)


app = make_app(__version__, _run)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; wrong input is one line on standard error, and exit code 2."""
    return run_app(app, sys.argv[1:] if arguments is None else arguments)


def script() -> NoReturn:
    """Run the command line as a process of its own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch schedulers send it
    replace_unknown_characters()
    with suppress(OSError):  # like python -m; a removed folder has no name
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    arguments = sys.argv[1:]
    del sys.argv[1:]  # a network's own module may read them
    sys.exit(main(arguments))
