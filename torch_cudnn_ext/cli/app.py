"""The command line as a whole: its commands, its errors, and its process."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from torch_cudnn_ext import __version__
from torch_cudnn_ext.cli.bench import bench_command
from torch_cudnn_ext.cli.coverage import coverage_command
from torch_cudnn_ext.cli.explain import explain_command
from torch_cudnn_ext.cli.info import info_command
from torch_cudnn_ext.cli.listing import list_command
from torch_cudnn_ext.cli.profile import profile_command
from torch_cudnn_ext.cli.tune import tune_command
from torch_cudnn_ext.cli.verify import verify_command

INTERRUPTED = 130

# The class of all complaints about the command line. It is click's, of which some versions of typer
# carry a copy.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Profile, list and compare the algorithms of cuDNN, of PyTorch and of the CPU.",
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "profile": profile_command,
    "list": list_command,
    "bench": bench_command,
    "tune": tune_command,
    "coverage": coverage_command,
    "explain": explain_command,
    "info": info_command,
    "verify": verify_command,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torch_cudnn_ext {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; wrong input is one line on standard error, and exit code 2."""
    command: Callable[..., int | None] = typer.main.get_command(app)
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        for argument in arguments:
            if not _is_text(argument):
                raise typer.BadParameter(f"got the argument {argument!r}, wanted UTF-8")
        status = command(arguments, prog_name="torch_cudnn_ext", standalone_mode=False) or 0
        if status == INTERRUPTED:  # some versions of typer return it after Ctrl-C
            raise KeyboardInterrupt
        return status
    except (typer.Abort, KeyboardInterrupt) as end:
        typer.echo(": ".join(["interrupted", *map(str, end.args)]), err=True)
        return INTERRUPTED
    except _UsageError as error:
        # Typer's complaints read like our own: --option: what came, what was wanted.
        message = re.sub(r"^Invalid value(?: for '([^']*)')?: ", r"\1: ", error.format_message())
        one_of = r"^(--\S+: )(?:Value error, )?('[^']*') is not one of (.*?)\.?$"
        message = re.sub(one_of, r"\1got \2, wanted one of \3", message)
        typer.echo(f"error: {_one_line(message.removeprefix(': '))}", err=True)
        return 2
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        typer.echo(f"error: {_one_line(str(error) or 'out of memory')}", err=True)
        return 1


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_line(message: str) -> str:
    said, _, _ = message.partition("Exception raised from ")  # PyTorch's C++ frames come next
    return " ".join(said.split())


def script() -> NoReturn:
    """Run the command line as a process of its own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # batch schedulers send it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only
    with suppress(OSError):  # like python -m; a removed folder has no name
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    arguments = sys.argv[1:]
    del sys.argv[1:]  # a network's own module may read them
    sys.exit(main(arguments))
