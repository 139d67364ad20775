"""The ways to compute a network that may run, and the fastest of them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import UnknownForm, content_of
from torch_cudnn_ext._optimize.making import names_text
from torch_cudnn_ext._optimize.memory import peak_bytes, ways_within_peak
from torch_cudnn_ext._optimize.numerics import (
    coarsest_rounding,
    is_far_less_accurate,
    largest_error,
    results_in_float64,
)
from torch_cudnn_ext._optimize.optimized import InferenceModel
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext.bench.networks import timer_of
from torch_cudnn_ext.bench.rounds import compare_samples, samples
from torch_cudnn_ext.tuning.tune import device_of

T = TypeVar("T")

ROUNDS = 31
ROUNDS_S = 5.0


def fastest_of(found: Sequence[T], times: list[list[float]]) -> T:
    """The one with the least time in all."""
    return min(zip(found, map(sum, times), strict=True), key=operator.itemgetter(1))[0]


def samples_of_ways(
    sides: list[tuple[InferenceModel, Way]], args: tuple[Any, ...]
) -> list[list[float]]:
    """The times of calls of networks that take turns."""
    device = device_of("optimize", sides[0][0], args)
    return samples_of([partial(fast.run, way, *args) for fast, way in sides], device)


def samples_of(calls: Sequence[Callable[[], Any]], device: str) -> list[list[float]]:
    """The times of calls that take turns."""
    timers = [timer_of(call, nullcontext, device) for call in calls]
    return samples(timers, ROUNDS, ROUNDS_S)


def known_reason_against_graphs(fast: InferenceModel) -> str:
    """Why calls replay no CUDA graphs, as far as that is known without a call."""
    if not fast._recipe.cuda_graph:
        return "cuda_graph=False"
    if fast.report.whole:
        return f"the code of {names_text(fast.report.whole)} may do something else in each call"
    return ""


def reason_against_graphs(fast: InferenceModel, args: tuple[Any, ...]) -> str:
    if reason := known_reason_against_graphs(fast):
        return reason
    if not all(t.is_cuda for t in tensors_in(args)):
        return "the inputs are not on a GPU"
    try:
        content_of(args)
    except UnknownForm as error:
        return f"an argument holds a {error}"
    for way in (Way.plain_graph, Way.optimized_graph):
        fast.run(way, *args)
    return fast.report.cuda_graph


def choose_way(
    fast: InferenceModel, args: tuple[Any, ...], right: list[Way], peak_memory: int | None
) -> None:
    """Times the ways and lets the fastest run of those whose results and peaks are right.

    PyTorch's are timed in any case, to compare with.

    Raises:
        ValueError: No peak is within the bound.
    """
    may_run = [w for w in Way if not (w.in_graph and fast.report.cuda_graph)]
    ways = [w for w in may_run if w.without_graph in (Way.plain, *right)]
    allowed = [w for w in ways if w.without_graph in right]
    if peak_memory is not None:
        place = device_of("optimize", fast, args)
        peaks = {
            way: peak_bytes(partial(fast.run, way, *args), partial(fast.forget_graph, way), place)
            for way in allowed
        }
        allowed = ways_within_peak(fast.report, peaks, peak_memory)
    times = samples_of_ways([(fast, w) for w in ways], args)
    settle_way(fast.report, dict(zip(ways, times, strict=True)), allowed)


def settle_way(
    report: OptimizationReport, times: dict[Way, list[float]], allowed: list[Way]
) -> None:
    """Lets the fastest way run of those that are allowed, and says how fast it is."""
    report.times_ms = {way: statistics.median(times[way]) for way in times}
    plain = [w for w in times if w.is_pytorchs]
    ours = [w for w in allowed if not w.is_pytorchs]
    if ours:
        best = min(ours, key=report.times_ms.__getitem__)
        result = compare_samples([times[best], *(times[w] for w in plain)])
        if result.ratio >= 1 or len(ours) == len(allowed):
            report.way = best
            report.ratio, report.interval = result.ratio, (result.low, result.high)
            return
        longer = 1 / result.ratio
        report.add_note(f"PyTorch's layers run, since ours took {longer:.3f} times as long")
    report.way = min((w for w in allowed if w.is_pytorchs), key=report.times_ms.__getitem__)


def right_ways(fast: InferenceModel, args: tuple[Any, ...], max_error: float | None) -> list[Way]:
    """Measures the errors of the results; the ways, without CUDA graphs, that may run.

    Raises:
        ValueError: As `optimize`.
    """
    report = fast.report
    of_plain = fast.run(Way.plain, *args)
    wide = results_in_float64(fast._plain, args, of_plain, _results)
    wanted = tensors_in(of_plain) if isinstance(wide, str) else wide
    errors: dict[Way, float] = {}
    for way in Way:
        if (way.in_graph and report.cuda_graph) or (way.is_compiled and report.torch_compile):
            continue
        result, kind = fast.run(way, *args), way.without_graph
        errors[kind] = max(errors.get(kind, 0.0), largest_error(result, of_plain, wanted))
    if report.torch_compile:  # found out by a call
        errors = {way: error for way, error in errors.items() if not way.is_compiled}
    unknown = wide if isinstance(wide, str) else ""
    listed = {way: [error] for way, error in errors.items()}
    return ways_within(report, listed, [coarsest_rounding(of_plain)], unknown, max_error)


def _results(model: Module, args: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        return model(*args)


def check_errors_known(unknown: str, max_error: float | None) -> None:
    """Raise ValueError if the errors are bounded and not known, for this reason."""
    if max_error is not None and unknown:
        raise ValueError(f"max_error: the errors are not known, since {unknown}; wanted none")


def ways_within(
    report: OptimizationReport,
    errors: dict[Way, list[float]],
    roundings: list[float],
    unknown: str,
    max_error: float | None,
) -> list[Way]:
    """The ways whose errors are neither above the bound nor far above those of PyTorch's layers.

    Args:
        report: Gets the largest error of each way, and why a way is not used.
        errors: For each way, the errors of the parts of its results. They are differences from
            PyTorch's layers if those from float64 are unknown.
        roundings: For each part, the largest relative rounding of its dtypes.
        unknown: Why the errors against float64 are not known; empty if they are.
        max_error: As for `optimize`.

    Raises:
        ValueError: As `optimize`.
    """
    check_errors_known(unknown, max_error)
    largest = {way: max(found) for way, found in errors.items()}
    report.errors = {} if unknown else largest
    right, plain = [], errors[Way.plain]
    for way, found in errors.items():
        parts = [*zip(found, plain, roundings, strict=True)]
        far = [part for part in parts if is_far_less_accurate(*part)]
        error = largest[way]
        if way is not Way.plain and far:
            error, plain_error, _ = max(far)
            reason = f"that of PyTorch's layers {plain_error:.2g}"
        elif max_error is not None and not error <= max_error:
            reason = f"max_error is {max_error}"
        else:
            right.append(way)
            continue
        report.add_note(f"not used: {way.value}, since its error was {error:.2g}, and {reason}")
    if not right:
        raise ValueError(
            f"max_error: the least error of the results is {min(largest.values()):.2g}, wanted at "
            f"most {max_error}"
        )
    return right
