"""``verify``: whether known defects are still there."""

from __future__ import annotations

from typing import Annotated

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import write_text
from torch_cudnn_ext.analysis import verify
from torch_cudnn_ext.cli import options, running


def verify_command(
    errata: Annotated[
        bool,
        typer.Option(
            "--errata",
            help="Run each known defect of cuDNN and PyTorch in a process of its own, with its "
            "guard lifted.",
        ),
    ] = False,
    only: Annotated[
        str | None, typer.Option("--only", help="Only these errata, by id: a,b,…")
    ] = None,
    time_limit: Annotated[
        int, options.count("--time-limit", 1, "Seconds for each process, with PyTorch's import.")
    ] = verify.TIME_LIMIT_S,
    jobs: Annotated[
        int,
        options.count("--jobs", 1, "How many run at a time. They share the GPU's memory."),
    ] = 4,
    device: options.Device = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write the findings here.")
    ] = None,
) -> None:
    """See whether known defects are still there; exit code 1 if one is that counts as fixed."""
    if not errata:
        raise typer.BadParameter("--errata: not given, wanted it: it says what to verify")
    place = options.place_of(device)
    rows = _C.errata(0, 0, _C.capability(place))
    if only is not None:
        known = [row["id"] for row in rows]
        wanted = [options.one_of("--only", word, known) for word in options.words_of(only)]
        rows = [row for row in rows if row["id"] in wanted]
    found: list[verify.Finding] = []
    try:
        with running.ProgressBar() as bar:
            for finding in verify.verify_errata(rows, place, time_limit, bar, jobs):
                found.append(finding)
    finally:  # an interrupted run tells what it found until then
        running.print_output([verify.findings_table(found, rows)])
        if json_file is not None:
            with options.errors_of("--json"):
                write_text(json_file, verify.findings_json(found, place))
    if any(finding.verdict == verify.DISAGREES for finding in found):
        raise typer.Exit(1)
