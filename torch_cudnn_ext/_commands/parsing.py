"""The command line as a whole: its arguments, its errors, and its process."""

import io
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
from typer.completion import completion_init  # type: ignore[attr-defined, unused-ignore]

from torch_cudnn_ext._commands.commands import COMMANDS
from torch_cudnn_ext._commands.examples import epilog_of
from torch_cudnn_ext._commands.options import Command, callback_of
from torch_cudnn_ext._commands.process import COMPLETION_VARIABLE, PROGRAM

INTERRUPTED = 130

# What runs a command, given its name and what it takes.
Run = Callable[[str, typer.Context, Command], None]

# The class of all complaints about the command line. It is click's, of which some versions of typer
# carry a copy.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


def make_app(version: str, run: Run) -> typer.Typer:
    """All commands and their options; ``run`` gets what is given to one of them."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Profile, list and compare the algorithms of cuDNN, of PyTorch and of the CPU.",
    )
    for name, kind in COMMANDS.items():
        app.command(name, epilog=epilog_of(name))(callback_of(kind, partial(run, name)))

    def print_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"torch_cudnn_ext {version}")
            raise typer.Exit

    @app.callback()
    def options_of_all(
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                callback=print_version,
                is_eager=True,
                help="Print the version and exit.",
            ),
        ] = False,
    ) -> None: ...

    return app


def run_app(app: typer.Typer, arguments: list[str]) -> int:
    """Run the command line; wrong input is one line on standard error, and exit code 2."""
    command: Callable[..., int | None] = typer.main.get_command(app)
    if COMPLETION_VARIABLE in os.environ:
        completion_init()
    try:
        for argument in arguments:
            if not _is_text(argument):
                raise typer.BadParameter(f"got the argument {argument!r}, wanted UTF-8")
        status = (
            command(
                arguments or ["--help"],
                prog_name=PROGRAM,
                complete_var=COMPLETION_VARIABLE,
                standalone_mode=False,
                obj=tuple(arguments),  # for reports, which say how they were made
            )
            or 0
        )
        if status == INTERRUPTED:  # some versions of typer return it after Ctrl-C
            raise KeyboardInterrupt
        return status
    except (typer.Abort, KeyboardInterrupt) as end:
        typer.echo(": ".join(["interrupted", *map(str, end.args)]), err=True)
        return INTERRUPTED
    except _UsageError as error:
        # Typer's complaints read like our own: --option: what came, what was wanted.
        message = re.sub(r"^Invalid value(?: for '([^']*)')?: ", r"\1: ", error.format_message())
        one_of = r"^(\S+: )(?:Value error, )?('[^']*') is not one of (.*?)\.?$"
        message = re.sub(one_of, r"\1got \2, wanted one of \3", message)
        typer.echo(f"error: {_one_line(message.removeprefix(': '))}", err=True)
        return 2
    except (RuntimeError, ValueError, OSError, MemoryError) as error:
        typer.echo(f"error: {_one_line(str(error) or 'out of memory')}", err=True)
        return 1


def answer_at_once(version: str) -> None:
    """End the process of the command line unless its arguments say that a command is to run.

    The help, the version and complaints about arguments do not need PyTorch.

    Raises:
        SystemExit: All is said.
    """
    goes_on = False

    def run(name: str, context: typer.Context, given: Command) -> None:
        nonlocal goes_on
        goes_on = True

    replace_unknown_characters()
    status = run_app(make_app(version, run), sys.argv[1:])
    if not goes_on:
        sys.exit(status)


def replace_unknown_characters() -> None:
    """Print a question mark for a character that the terminal does not know."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_line(message: str) -> str:
    said, _, _ = message.partition("Exception raised from ")  # PyTorch's C++ frames come next
    return " ".join(said.split())
