"""What the command ``store`` takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import typer

from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.options import Command, amount, count, option
from torch_cudnn_ext._defaults import DRIFT_TOLERANCE


class Action(Enum):
    """What `Store` does."""

    path = "path"
    ls = "ls"
    show = "show"
    merge = "merge"
    verify = "verify"
    prune = "prune"
    compact = "compact"
    diff = "diff"
    drift = "drift"


_MOST_DAYS = 36500
# The options and arguments that each action takes, in addition to --store.
_OF_ACTION = {
    Action.path: "",
    Action.ls: "format",
    Action.show: "arguments format",
    Action.merge: "arguments winners",
    Action.verify: "",
    Action.prune: "older_than containing dry_run",
    Action.compact: "dry_run",
    Action.diff: "arguments format",
    Action.drift: "containing device tolerance format",
}


@dataclass(frozen=True, kw_only=True)
class Store(Command):
    """Show and tend the tuning store, which keeps what was tuned.

    path: the folder. ls: the devices, and how much is kept for each. show [TEXT]: the rankings of
    problems or devices with a text in them; exit code 1 if there is none.

    merge SOURCE...: add the rows of other stores, or files of the tuning table; of two rows the
    newer holds. verify: check every row. Both have exit code 1 if a line is no row.

    prune: drop rows by --older-than and --containing. compact: drop rows that newer ones replace.
    Processes may write meanwhile.

    diff A B: the problems for which two stores decide differently; exit code 1 if there is one, or
    if one store lacks a problem.

    drift: time the winner of each problem again, with the runner-up and PyTorch's own kernel; exit
    code 1 if a winner is gone, wrong, slower, or no longer the fastest of these.
    """

    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)]
    arguments: list[str] | None = field(
        default=None,
        metadata={
            "option": typer.Argument(
                metavar="[TEXT | SOURCE... | A B]",
                help="For show, merge and diff.",
                show_default=False,
            )
        },
    )
    store: str | None = option(
        None, "--store", "The folder of the store; by default that of knobs.store."
    )
    winners: bool = option(
        False,
        "--winners",
        "For merge: leave out algorithms that no cap of the workspace, no choice of backends and "
        "no other constraint would choose.",
    )
    older_than: Annotated[
        int | None,
        count(
            "--older-than",
            1,
            "For prune: rows measured more than N days ago, or at an unknown time.",
        ),
    ] = None
    containing: str | None = option(
        None,
        "--containing",
        "For prune and drift: only rows whose device, software or problem has this text in it.",
    )
    dry_run: bool = option(False, "--dry-run", "For prune and compact: only count.")
    device: Annotated[
        str | None,
        typer.Option("--device", help="For drift; by default the GPU if there is one."),
    ] = None
    tolerance: Annotated[
        float,
        amount("--tolerance", 0, "For drift: the relative difference that counts as none."),
    ] = DRIFT_TOLERANCE
    format: options.FormatOption = options.Format.table

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        name, given = self.action.value, self.arguments or []
        taken = "arguments winners older_than containing dry_run device tolerance format"
        for other in taken.split():
            if other not in _OF_ACTION[self.action].split():
                options.forbid(context, other, f"{name}, which does not take it")
        if self.action is Action.show and len(given) > 1:
            raise typer.BadParameter(f"show: got {len(given)} texts, wanted one or none")
        if self.action is Action.merge and not given:
            raise typer.BadParameter("merge: got nothing, wanted stores, or files, to merge")
        if self.action is Action.diff and len(given) != 2:
            raise typer.BadParameter(f"diff: got {given}, wanted two stores")
        if self.action is Action.diff and self.store is not None:
            raise typer.BadParameter("--store: given with diff, which takes two stores")
        if self.action is Action.prune and self.older_than is None and not self.containing:
            raise typer.BadParameter("prune: wanted --older-than or --containing")
        if self.older_than is not None and self.older_than > _MOST_DAYS:
            raise typer.BadParameter(
                f"--older-than: got {self.older_than}, wanted at most {_MOST_DAYS} days"
            )
