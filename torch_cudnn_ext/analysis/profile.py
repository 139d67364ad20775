"""What every algorithm costs on a problem, or on each layer of a network.

    from torch_cudnn_ext import profile, profile_model

    result = profile("conv_fwd x=f16[64,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1 stride=1 "
                     "dilation=1 groups=1 compute=f32")
    result.print()
    policy = result.best(max_workspace="64MiB")

Measuring is the loop that autotuning runs, with every measurement kept. A policy of ``autotune``
therefore takes what is measured here without measuring again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._workload.model_state import in_mode
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import (
    PASSES,
    Layer,
    check_passes,
    coupled_problems,
    is_inference,
    merge,
    with_proxies,
)
from torch_cudnn_ext.analysis.lint import static_hints
from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.roofline import Peaks, measured_peaks
from torch_cudnn_ext.analysis.settings import MEASURED_CONSTRAINTS, Settings, make_settings
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.policy import PolicyLike
from torch_cudnn_ext.tuning.isolation import check_isolate, is_isolated
from torch_cudnn_ext.tuning.journal import Journal
from torch_cudnn_ext.tuning.keeping import recorded_row
from torch_cudnn_ext.tuning.measure import BASELINE, Progress, check_progress, measure_tasks

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry
    from torch_cudnn_ext.tuning.store_rows import Row


def profile(
    problem: str,
    *,
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
    energy: bool = False,
    progress: Progress | None = None,
    isolate: str | None = None,
) -> Profile:
    """Measure every algorithm on one problem.

    If a target is given, or there is no GPU, what the tuning store recorded on a GPU as the target
    (by default an H200) is given. If there is nothing, the algorithms of the CPU are measured, and
    what the target would accept is listed with workspaces and notes.

    Args:
        problem: A problem line.
        device: ``cpu``, ``cuda`` or ``cuda:<index>``; by default the GPU if there is one and no
            ``target`` is given.
        target: A GPU that need not be there. If the store is off, nothing is recorded.
        policy: Constraints, and the decision that is marked in the table. A pass by itself,
            ``fwd``, is convolution's; other operators take ``softmax_fwd``, or a `Policy` of their
            family.
        time_budget_s: Seconds for the problem.
        min_samples: The least number of timed runs of an algorithm that may be the fastest.
        knob_search: Also search the engine knobs of the best engines.
        energy: Also measure the energy of a call, of the six fastest algorithms and PyTorch's own,
            on a GPU: at least 1.5 seconds each.
        progress: Told of every algorithm; may raise to stop.
        isolate: Where candidates are measured. ``"always"``: in a separate process, so that a crash
            or a hang does not end this one. ``"never"``: in this process. ``"auto"``: in a separate
            process if this GPU and cuDNN are not verified. ``None``: as ``knobs.isolate`` says.

    Raises:
        TypeError: ``problem`` is no text, or ``progress`` lacks a method of `Progress`.
        ValueError: The problem or another argument is wrong.
        RuntimeError: PyTorch does not find the CUDA device that was asked for.

    Example:
        >>> line = "softmax_fwd x=f32[4,64,1]:nchw log=false"
        >>> result = profile(line, device="cpu", time_budget_s=1)
        >>> sorted(row["algorithm"] for row in result.layers[0].ranked)
        ['aten:default', 'cpu:online', 'cpu:three_pass']
    """
    if not isinstance(problem, str):
        raise TypeError(
            f"problem: got {problem!r} ({type(problem).__name__}), wanted a problem line"
        )
    settings = make_settings(
        device, target, policy, time_budget_s, min_samples, knob_search, energy
    )
    if compute := only_fields(settings.policy, ("compute",)):
        raise ValueError(
            f"policy: got {compute!r} with a problem line, which says it itself, wanted none"
        )
    check_isolate(isolate)
    layers = [Layer(_C.canonical_problem(problem))]
    if settings.target is not None:
        layers = with_proxies(layers)
    measured = measure_layers(layers, settings, progress=progress, isolate=isolate)
    return Profile(list(measured), settings)


def profile_model(
    model: nn.Module,
    inputs: Any,
    *,
    train: bool = True,
    passes: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
    energy: bool = False,
    progress: Progress | None = None,
    isolate: str | None = None,
) -> Profile:
    """Measure every distinct layer of an unmodified network that this package has an operator for.

    The network runs once, forward and backward, to trace its calls and their gradients
    (`network_layers`); on the meta device that costs nothing. The problems are then measured on
    scratch tensors. The layers that `convert` exchanges are traced, and so are PyTorch's functions
    that `ops` has, if it takes their arguments. Everything else is counted in `not_profiled`.

    Args:
        model: The network, with the dtype, memory format and device to profile.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: A training step, forward and backward, in the mode that the network is in.
            ``False`` is inference: the forward alone, in eval mode.
        passes: Only these passes: ``fwd``, ``bwd`` for all others, or some by name
            (``bwd_filter``). Inference has ``fwd`` and ``infer`` alone, and ``fwd`` alone means
            inference. A gradient that nothing requires, such as that of plain inputs, is never
            measured. Passes are the layers' own: a transposed convolution's forward is the problem
            ``conv_bwd_data``, and its table says so.
        device: See `make_settings`, as for all that follow up to ``energy``.
        target: A GPU that need not be there.
        policy: Constraints, and the decision that is marked in the tables.
        time_budget_s: Seconds a problem.
        min_samples: The least number of timed runs of an algorithm that may be the fastest.
        knob_search: Also search the engine knobs of the best engines.
        energy: Also measure the energy of a call, of the six fastest algorithms and PyTorch's own,
            on a GPU: at least 1.5 seconds each.
        progress: Told of every problem and algorithm; may raise to stop.
        isolate: As for `profile`.

    Raises:
        TypeError: ``model`` is no module, ``passes`` no list of texts, or ``progress`` lacks a
            method of `Progress`.
        ValueError: The model calls no operator of this package or has none of the passes, is lazy
            and not initialised, or an argument is wrong.
        RuntimeError: PyTorch does not find the CUDA device that was asked for.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3))
        >>> result = profile_model(model, torch.randn(1, 3, 8, 8), train=False, device="cpu")
        >>> list(result.best_by_layer())
        ['0']
    """
    check_flag("profile_model", "train", train)
    check_progress(progress)
    check_isolate(isolate)
    model = eager_model("profile_model", model)
    settings = make_settings(
        device, target, policy, time_budget_s, min_samples, knob_search, energy
    )
    wanted = (PASSES if train else ("fwd",)) if passes is None else passes
    check_passes(wanted)
    if not train and not is_inference(wanted):
        raise ValueError(
            f"passes: got {','.join(wanted)!r} with train=False, wanted some of fwd,infer"
        )
    with nullcontext() if train else in_mode(model, train=False):
        work = network_layers(
            model, inputs, wanted, settings.policy or None, proxies=settings.target is not None
        )
    measured = list(measure_layers(work.layers, settings, progress=progress, isolate=isolate))
    return Profile(
        measured, settings, type(model).__name__, work.not_profiled, work.without_functions
    )


def measure_layers(
    layers: Sequence[Layer],
    settings: Settings,
    journal: Journal | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    isolate: str | None = None,
) -> Iterator[LayerProfile]:
    """Measure layer by layer, taking from the journal what was finished before.

    If a tuning store has rankings of a target's hardware, nothing is measured: they are given, and
    what the target accepts for the other layers.

    Args:
        layers: What to measure.
        settings: How to measure.
        journal: Where finished measurements are kept.
        progress: Told of every problem and algorithm.
        jobs: How many processes build plans.
        isolate: As for `profile`.

    Raises:
        ValueError: ``jobs``, the number of processes, is less than 1, or ``isolate`` is none of its
            values.
    """
    layers = merge(layers)
    if settings.target is not None:
        rows_of = {layer.problem: _recorded_row(layer.problem, settings) for layer in layers}
        if any(rows_of.values()):
            yield from (_recorded(layer, rows_of[layer.problem], settings) for layer in layers)
            return
    works = [settings.work(f"profile measured={one.measured}", one.problem) for one in layers]
    finished = [journal.get(work, LayerProfile) if journal is not None else None for work in works]
    left = [layer.measured for layer, one in zip(layers, finished, strict=True) if one is None]
    for problem in left:  # before other processes use the device
        _peaks(problem, settings)
    tasks = [settings.task(problem, settings.measured_policy) for problem in left]
    rows = measure_tasks(tasks, jobs, progress, isolate)
    for layer, work, measured in zip(layers, works, finished, strict=True):
        if measured is None:
            measured = _profiled(layer, settings, next(rows), is_isolated(settings.device, isolate))
            if journal is not None:
                journal.add(work, dataclasses.asdict(measured))
        measured.names, measured.count = list(layer.names), layer.count
        measured.note = layer.note
        yield measured


def list_layer(layer: Layer, device: str, policy: str) -> LayerProfile:
    """The algorithms that a device or a target accepts; nothing is timed."""
    listed = _C.candidates(layer.problem, device, policy)
    return _layer_profile(layer, layer.problem, device, listed_for=device, listed=listed)


def profile_of_table(entries: Iterable[TableEntry]) -> Profile:
    """The measurements of a tuning table as a profile, whatever device they are of.

    Args:
        entries: From `tuning.entries`, or from a file.
    """
    layers = []
    for entry in entries:
        note = f"under {entry['constraints']}" if entry["constraints"] else ""
        layer, rows = Layer(entry["problem"], note=note), entry["measurements"]
        layers.append(_layer_profile(layer, layer.problem, entry["device"], rows=rows))
    return Profile(layers, make_settings("cpu"), is_kept=True)


def profile_of_rankings(
    rankings: Iterable[tuple[Layer, Sequence[Measurement]]], settings: Settings, title: str
) -> Profile:
    """What tuning measured, as a profile of the layers; without peaks, since tuning needs none."""
    layers = [
        _layer_profile(layer, layer.problem, settings.device, rows=list(rows))
        for layer, rows in rankings
    ]
    return Profile(layers, settings, title)


def _layer_profile(layer: Layer, measured: str, device: str, **more: Any) -> LayerProfile:
    flops, bytes_moved = _cost(measured)
    return LayerProfile(
        problem=layer.problem,
        names=list(layer.names),
        count=layer.count,
        note=layer.note,
        device=device,
        measured=measured,
        flops=flops,
        bytes_moved=bytes_moved,
        **more,
    )


def _peaks(problem: str, settings: Settings) -> Peaks:
    info = _C.problem_info(problem)
    policy = _C.policy_for(problem, settings.measured_policy)
    allow_tf32 = bool(_C.policy_fields(policy, info["family"]).get("allow_tf32"))
    return measured_peaks(settings.device, info["dtype"], allow_tf32)


def _profiled(
    layer: Layer, settings: Settings, rows: list[Measurement], isolated: bool
) -> LayerProfile:
    problem = layer.measured
    heuristic = f"heuristic;{settings.measured_policy}".removesuffix(";")
    peaks = _peaks(problem, settings)
    profile = _layer_profile(
        layer,
        problem,
        settings.device,
        floor_ms=peaks.floor_ms(*_cost(problem)),
        peak_flops=peaks.flops_per_second,
        peak_bytes=peaks.bytes_per_second,
        rows=_with_baseline(rows, problem, settings, isolated),
        heuristic=_decided(problem, settings.device, heuristic)[0],
        **(_listed(layer, settings) if settings.target is not None else {}),
    )
    profile.current, profile.current_error = _current(profile, settings)
    if settings.target is None and not settings.device.startswith("cpu") and not isolated:
        profile.changed_ms = _changed_ms(problem, settings)
    return profile


def _changed_ms(problem: str, settings: Settings) -> dict[str, float]:
    """For each hint that a problem line gives: the time with its change made, without tuning."""
    found = {}
    for hint in static_hints(problem, settings.measured_policy):
        line, policy = hint.changed, hint.changed_policy
        chosen, _ = _decided(line, settings.device, f"heuristic;{policy}") if line else (None, "")
        if chosen is None:
            continue
        rows = _C.measure(
            line,
            settings.device,
            policy,
            algorithms=list(dict.fromkeys((chosen, BASELINE))),
            time_budget_s=settings.time_budget_s,
            min_samples=settings.min_samples,
            record=False,
        )
        changed = _layer_profile(Layer(line), line, settings.device, rows=rows)
        best = changed.best(settings.max_workspace_bytes)
        if best is not None and best["median_ms"] is not None:
            found[hint.rule] = best["median_ms"]
    return found


def _recorded_row(problem: str, settings: Settings) -> Row | None:
    """The ranking of a problem that a store has for the target."""
    assert settings.target is not None
    return recorded_row(problem, settings.target, _C.policy_for(problem, settings.measured_policy))


def _recorded(layer: Layer, row: Row | None, settings: Settings) -> LayerProfile:
    """The ranking of a store as the profile of a layer; without one, what the target accepts."""
    if row is None:
        return _layer_profile(layer, layer.problem, settings.device, **_listed(layer, settings))
    return _layer_profile(
        layer,
        layer.problem,
        row.entry["device"],
        rows=list(row.entry["measurements"]),
        recorded=row.when[:10] or "an unknown day",
    )


def _listed(layer: Layer, settings: Settings) -> dict[str, Any]:
    """What the target accepts for a layer."""
    device = f"target:{settings.target}"
    policy = only_fields(settings.policy, (*MEASURED_CONSTRAINTS, "max_workspace"))
    return {"listed_for": device, "listed": _C.candidates(layer.problem, device, policy)}


def _cost(problem: str) -> tuple[float, float]:
    """Operations and bytes of what is timed; a coupled forward is timed with its backward."""
    infos = [_C.problem_info(line) for line in (problem, *coupled_problems(problem))]
    return sum(info["flops"] for info in infos), sum(info["bytes"] for info in infos)


def _decided(problem: str, device: str, policy: str) -> tuple[str | None, str]:
    """The algorithm that an operator would run, or None and the error it would raise."""
    try:
        return _C.decide(problem, device, policy)["algorithm"], ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]  # the table shows the rest


def _current(profile: LayerProfile, settings: Settings) -> tuple[str | None, str]:
    """The algorithm that the settings' policy would run, or None and why there is none."""
    info, cap = _C.problem_info(profile.measured), settings.max_workspace_bytes
    fields = _C.policy_fields(_C.policy_for(profile.measured, settings.policy), info["family"])
    tunes = fields.get(info["pass_name"], "autotune" if fields.get("benchmark") else None)
    if cap is None or tunes != "autotune":
        return _decided(profile.measured, settings.device, settings.policy)
    # The measurements ignore the cap, so a decision under it would tune again.
    if best := profile.best(cap):
        return best["algorithm"], ""
    return None, f"of what was measured nothing keeps to a workspace of {cap} bytes"


def _with_baseline(
    rows: list[Measurement], problem: str, settings: Settings, isolated: bool
) -> list[Measurement]:
    """The rows with a timed baseline, even if the policy does not admit it.

    A baseline that failed in another process does not run in this one.
    """
    of_baseline = [row for row in rows if row["algorithm"] == BASELINE]
    if any(row["median_ms"] is not None for row in of_baseline):
        return rows
    if isolated and any(row["status"] == "failed" for row in of_baseline):
        return rows
    reasons = [row["reason"] for row in of_baseline if row["reason"]]
    # Only PyTorch's own switches hold: this is what a user of plain PyTorch gets.
    (baseline,) = _C.measure(
        problem,
        settings.device,
        "backends=aten",
        algorithms=[BASELINE],
        time_budget_s=settings.time_budget_s,
        min_samples=settings.min_samples,
        record=False,
        levels=False,
    )
    if baseline["status"] == "ok":
        baseline["status"] = "excluded"
        reason = reasons[0] if reasons else "the policy does not admit it"
        baseline["reason"] = f"baseline only: {reason}"
    return [row for row in rows if row["algorithm"] != BASELINE] + [baseline]
