"""``list``: what supports a problem, without measuring."""

from __future__ import annotations

from dataclasses import replace

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis.profile import list_layer
from torch_cudnn_ext.cli import options, running, workload


@options.with_options
def list_command(
    *,
    source: options.Source,
    tensors: options.Tensors,
    device: options.Device = None,
    target: options.Target = None,
    constraints: options.Constraints,
    format: options.FormatOption = options.Format.table,
) -> None:
    """List what supports a problem, with workspaces, and why the others do not; time nothing."""
    if device is not None and target is not None:
        raise typer.BadParameter(f"--target: got {target!r} with --device {device}, wanted one")
    work = workload.from_options(source, tensors, constraints.policy, device)
    settings = running.settings_of(work.layers, device, target, constraints, options.Search())
    place = settings.device if settings.target is None else f"target:{settings.target}"
    settings = replace(settings, max_workspace_bytes=_C.workspace_cap(settings.policy, place))
    listed = [list_layer(layer, place, settings.policy) for layer in work.layers]
    result = running.profile_of(listed, settings, source, work)
    running.print_profile(result, format, show_all=True, top=0)
