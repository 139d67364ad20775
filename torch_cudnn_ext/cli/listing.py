"""``list``: what supports a problem, without measuring."""

from __future__ import annotations

from dataclasses import replace

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import List
from torch_cudnn_ext.analysis.profile import list_layer
from torch_cudnn_ext.cli import running, workload
from torch_cudnn_ext.cli.progress import ProgressBar


def list_command(context: typer.Context, given: List) -> None:
    """Run ``list``."""
    with ProgressBar() as bar:
        bar.phase(running.first_phase(given.source))
        work = workload.from_options(
            given.source, given.tensors, given.constraints.policy, given.device
        )
        settings = running.settings_of(
            work.layers, given.device, given.target, given.constraints, options.Search()
        )
        place = settings.device if settings.target is None else f"target:{settings.target}"
        settings = replace(settings, max_workspace_bytes=_C.workspace_cap(settings.policy, place))
        listed = []
        for done, layer in enumerate(work.layers):
            bar.problem(done, len(work.layers), layer.problem)
            listed.append(list_layer(layer, place, settings.policy))
    result = running.profile_of(listed, settings, given.source, work)
    running.print_profile(result, given.format, show_all=True, top=0)
