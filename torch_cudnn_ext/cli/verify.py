"""``verify``: whether known defects are still there."""

from __future__ import annotations

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.commands import Verify
from torch_cudnn_ext._files import write_text
from torch_cudnn_ext.analysis import verify
from torch_cudnn_ext.cli import checks, running
from torch_cudnn_ext.cli.progress import ProgressBar


def verify_command(context: typer.Context, given: Verify) -> None:
    """Run ``verify``."""
    running.check_report(given.json_file, "--json")
    place = checks.place_of(given.device)
    rows = _C.errata(0, 0, _C.capability(place))
    if given.only is not None:
        known = [row["id"] for row in rows]
        wanted = [checks.one_of("--only", word, known) for word in checks.words_of(given.only)]
        rows = [row for row in rows if row["id"] in wanted]
    found: list[verify.Finding] = []
    try:
        with ProgressBar() as bar:
            for finding in verify.verify_errata(rows, place, given.time_limit, bar, given.jobs):
                found.append(finding)
    finally:  # an interrupted run tells what it found until then
        running.print_output([verify.findings_table(found, rows)])
        if given.json_file is not None:
            with checks.errors_of("--json"):
                write_text(given.json_file, verify.findings_json(found, place))
    if any(finding.verdict == verify.DISAGREES for finding in found):
        raise typer.Exit(1)
