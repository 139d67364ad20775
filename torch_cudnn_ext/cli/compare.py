"""``compare``: two results, such as those of two versions of cuDNN."""

from __future__ import annotations

import typer

from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import Compare
from torch_cudnn_ext.analysis.compare import compare
from torch_cudnn_ext.analysis.tables import print_tables
from torch_cudnn_ext.cli import running


def compare_command(context: typer.Context, given: Compare) -> None:
    """Run ``compare``."""
    running.check_report(given.report)
    try:
        found = compare(given.before, given.after, tolerance=given.tolerance)
    except (OSError, ValueError) as error:  # of the files, which it names
        raise typer.BadParameter(str(error)) from error
    if given.format is options.Format.json:
        typer.echo(found.to_json())
    elif given.format is options.Format.csv:
        typer.echo(found.to_csv(), nl=False)
    elif given.format is options.Format.markdown:
        typer.echo(found.to_markdown(given.show_all), nl=False)
    else:
        print_tables(found.tables(given.show_all))
    running.write_report(given.report, found.to_html)
    if found.is_worse:
        raise typer.Exit(1)
