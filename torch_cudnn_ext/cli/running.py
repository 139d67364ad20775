"""What commands share from their options to their output: settings, files, interruption."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
import typer

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._files import write_text
from torch_cudnn_ext._grammar import FOR_ALL
from torch_cudnn_ext._policy_text import fields_of, only_fields, operators
from torch_cudnn_ext._workload.network import Workload
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.settings import Settings, make_settings
from torch_cudnn_ext.analysis.summary import profile_tables
from torch_cudnn_ext.analysis.tables import Extent, Table, plural, print_tables
from torch_cudnn_ext.cli import checks
from torch_cudnn_ext.policy import text_for_all
from torch_cudnn_ext.tuning.journal import Journal
from torch_cudnn_ext.tuning.tasks import fp32_switches

T = TypeVar("T")
End = KeyboardInterrupt | OSError | RuntimeError | ValueError | None


# Settings.


def settings_of(
    layers: list[Layer],
    device: str | None,
    target: str | None,
    constraints: options.Constraints,
    search: options.Search,
    energy: bool = False,
) -> Settings:
    """How to measure; the policy is of the layers' one family, or as `enable` takes it."""
    families = {_C.problem_info(layer.problem)["family"] for layer in layers}
    policy = check_policy(constraints.policy, families.pop() if len(families) == 1 else "conv")
    _check_reaches(policy, {layer.problem.split()[0] for layer in layers})
    text = constrained(policy, constraints)
    with checks.errors_of_arguments():
        return make_settings(
            device, target, text, search.time_budget, None, search.knob_search, energy
        )


def check_policy(text: str, family: str = "conv") -> str:
    """The policy's text for all families; BadParameter if no call can follow it."""
    with checks.errors_of("--policy"):
        text = text_for_all(text, family)
        _C.resolved_policy(text, family)
    return text


def _check_reaches(policy: str, ops: set[str]) -> None:
    """BadParameter if a policy decides for operators alone that are not among these."""
    words = {field.partition("=")[0] for field in fields_of(policy)}
    decided = words & operators().keys()
    if decided and not decided & ops and not words & {*FOR_ALL}:
        listed, there = ", ".join(sorted(decided)), ", ".join(sorted(ops))
        raise typer.BadParameter(f"--policy: got a policy for {listed}, wanted one for {there}")


def constrained(policy: str, constraints: options.Constraints) -> str:
    """A policy text with the constraints of the other options."""
    words = [policy] if policy else []
    deterministic, allow_tf32 = constraints.deterministic or None, constraints.allow_tf32
    for name, wanted in (("deterministic", deterministic), ("allow_tf32", allow_tf32)):
        said = _C.policy_fields(only_fields(policy, (name,))).get(name)
        if None not in (wanted, said) and wanted != said:
            raise typer.BadParameter(
                f"--policy: got {name}={str(said).lower()} together with "
                f"--{'' if wanted else 'no-'}{name.replace('_', '-')}, wanted one of them"
            )
    if constraints.max_workspace is not None:
        cap = _workspace_field(constraints.max_workspace)
        with checks.errors_of("--policy"):  # the stricter one
            words.append(_C.merged_policy(cap, only_fields(policy, ("max_workspace",))))
    # PyTorch's own switches of this process follow, so that the baseline keeps the constraints.
    if deterministic:
        words.append("deterministic")
        torch.backends.cudnn.deterministic = True
    if allow_tf32 is not None:
        words.append(f"allow_tf32={str(allow_tf32).lower()}")
        for switch in fp32_switches():
            switch.fp32_precision = "tf32" if allow_tf32 else "ieee"
    return ";".join(words)


def _workspace_field(value: str) -> str:
    if ";" in value:
        raise typer.BadParameter(f"--max-workspace: got {value!r}, wanted one value, without ';'")
    with checks.errors_of("--max-workspace"):
        _C.canonical_policy(f"max_workspace={value}")
    return f"max_workspace={value}"


# Files.


def journal_of(path: str | None) -> Journal | None:
    """The file of ``--resume``."""
    if path is None:
        return None
    with checks.errors_of("--resume"):
        return Journal(path)


def merge_file(path: str) -> None:
    """Merge the file of ``--table``; called before measuring, to complain about it at once."""
    with checks.errors_of("--table"):
        tuning.merge_table(path)


def check_report(path: str | None, option: str = "--report") -> None:
    """BadParameter if an option's file cannot be written; called before anything is measured."""
    if path is None:
        return
    folder = Path(path).parent
    if Path(path).is_dir() or not folder.is_dir():
        what = "a folder" if Path(path).is_dir() else f"in {str(folder)!r}, which is no folder"
        raise typer.BadParameter(f"{option}: got {path!r}, {what}, wanted a file")


def write_report(path: str | None, html: Callable[[], str]) -> None:
    """Write the file of ``--report``, if one is asked for."""
    if path is not None:
        text = html()
        with checks.errors_of("--report"):
            write_text(path, text)


def replay_of(context: typer.Context) -> str:
    """The command line that was given, for a report's reader to copy."""
    return shlex.join(["torch_cudnn_ext", *context.obj])


# Collecting and printing.


def first_phase(source: options.Source) -> str:
    """What a progress bar tells while the problems are found."""
    return f"running {source.model}" if source.model else "reading the problems"


def collect(items: Iterable[T], show: Callable[[T], None] | None = None) -> tuple[list[T], End]:
    """The items that could be finished, and the error that came then; ``show`` gets each.

    Raises:
        OSError, RuntimeError, ValueError: Nothing was finished.
    """
    finished: list[T] = []
    try:
        for item in items:
            finished.append(item)
            if show is not None:
                show(item)
    except KeyboardInterrupt as end:
        return finished, end
    except (OSError, RuntimeError, ValueError) as end:
        if not finished:
            raise
        return finished, end
    return finished, None


def finish(end: End, finished: int, total: int) -> None:
    """Raise the error that came, after what was finished is printed."""
    if isinstance(end, KeyboardInterrupt):
        raise typer.Abort(f"{finished} of {total} problems were finished")
    if end is not None:
        raise end


def print_output(output: str | list[Table]) -> None:
    """Print text or tables."""
    if isinstance(output, str):
        typer.echo(output.removesuffix("\n"))
    else:
        print_tables(output)


def profile_of(
    layers: list[LayerProfile], settings: Settings, source: options.Source, work: Workload
) -> Profile:
    """The profile of a command's problems."""
    title = source.model or source.problems or ""
    return Profile(layers, settings, title, work.not_profiled, work.without_functions)


def measured_text(before: tuning.Statistics) -> str:
    """What was measured since, what was found in the store, and why other problems were not."""
    now = tuning.statistics()
    text = f"measured {plural(now.measured - before.measured, 'problem')} in "
    text += plural(now.timed_runs - before.timed_runs, "timed run")
    text += f", found {now.found - before.found} in the store"
    missed = {why: count - before.missed.get(why, 0) for why, count in now.missed.items()}
    words = ", ".join(f"{count} {why}" for why, count in missed.items() if count)
    return f"{text}; misses: {words}" if words else text


def print_measured(format: options.Format, before: tuning.Statistics) -> None:
    """Print `measured_text` after tables; other formats hold results alone."""
    if format is options.Format.table:
        text = measured_text(before)
        typer.echo(f"{text[0].upper()}{text[1:]}.")


def print_profile(
    result: Profile,
    format: options.Format,
    show_all: bool,
    top: int,
    listed_top: int | None = None,
    layers: int = 0,
) -> None:
    """Print a profile; ``listed_top`` and ``layers`` are as in `Extent`."""
    if format is options.Format.json:
        typer.echo(result.to_json())
    elif format is options.Format.csv:
        typer.echo(result.to_csv(), nl=False)
    else:
        extent = Extent(
            *(show_all, top, "--all", "--top 0", listed_top, True),
            layers=layers,
            ask_for_layers="--all-layers shows them",
        )
        tables = profile_tables(result, extent)
        print_output(tables_markdown(tables) if format is options.Format.markdown else tables)
