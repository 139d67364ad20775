"""What the commands ``help`` and ``completion`` take, and print."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined, unused-ignore]

from torch_cudnn_ext._commands.options import Command, words
from torch_cudnn_ext._commands.process import COMPLETION_VARIABLE, PROGRAM
from torch_cudnn_ext._commands.topics import TOPICS


@dataclass(frozen=True, kw_only=True)
class Help(Command):
    """Tell in one screen how policies or problem lines are written, or what a command takes."""

    topic: Annotated[
        str | None,
        typer.Argument(
            help=f"{', '.join(TOPICS)}, or a command. Without it the topics are listed.",
            show_default=False,
            autocompletion=words(*TOPICS),
        ),
    ] = None

    def answer(self, context: typer.Context) -> str:
        """The page of the topic.

        Raises:
            BadParameter: There is no such topic.
        """
        parent: Any = context.parent
        commands = parent.command.commands
        if self.topic is None:
            heads = [
                f"  {name:8}  {(topic.__doc__ or '').strip()}" for name, topic in TOPICS.items()
            ]
            return "\n".join(["Topics:", *heads, "", f"Commands: {', '.join(commands)}"])
        if self.topic in TOPICS:
            return TOPICS[self.topic]()
        if self.topic not in commands:
            wanted = ", ".join([*TOPICS, *commands])
            raise typer.BadParameter(f"topic: got {self.topic!r}, wanted one of {wanted}")
        command = commands[self.topic]
        with typer.Context(command, info_name=self.topic, parent=parent) as inner:
            return str(command.get_help(inner))


class Shell(Enum):
    """A shell that completes command lines."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@dataclass(frozen=True, kw_only=True)
class Completion(Command):
    """Print what makes a shell complete commands, options and their words.

    It is for the installed command torch_cudnn_ext. Completing does not import PyTorch. For zsh the
    folder of the file must be in fpath.
    """

    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)]

    def answer(self, context: typer.Context) -> str:
        """The shell's script."""
        return get_completion_script(
            prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=self.shell.value
        )
