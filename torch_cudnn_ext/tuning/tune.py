"""Tuning ahead of use: measuring problems, or those of a network, for the tuning table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._workload.network import nothing_found
from torch_cudnn_ext._workload.problems import Layer, is_tuned_alone
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.recorder import problems_of_model
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import enabled_anew
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.agreement import alone
from torch_cudnn_ext.tuning.group_tuning import tune_together
from torch_cudnn_ext.tuning.measure import (
    Progress,
    check_constraints_alone,
    check_knob_search,
    check_progress,
    check_time_budget,
    checked_device,
    measure_tasks,
    no_algorithm,
)
from torch_cudnn_ext.tuning.meeting import Meeting, Signs, meeting
from torch_cudnn_ext.tuning.tasks import Task

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.tuning.meeting import Group


def tune(
    problems: str | Iterable[str],
    *,
    device: str | torch.device | None = None,
    policy: PolicyLike = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    isolate: str | None = None,
    group: Group = None,
) -> dict[str, Measurement]:
    """Measure problems and keep the ranking, so that ``autotune`` need not measure them again.

    The tuning table and the tuning store keep it. What they have already is measured, too.

    On a GPU nothing is kept while ``torch.backends.cudnn.enabled`` is False.

    On a GPU most of the time goes into compiling engines at run time. Several jobs compile at the
    same time, and run and time one after the other. They are processes that import the main module,
    so a script calls this under ``if __name__ == "__main__":``.

    With a ``group`` all its ranks call this, each with its own problems. Those of all ranks are
    split: each rank measures a part, and afterwards all have the same rankings. Ranks of another
    GPU model, or another version of cuDNN, tune apart. The constraints, ``time_budget_s`` and
    ``knob_search`` must be the same on all ranks. The process groups of the training are not used.

    Args:
        problems: A problem line, or several.
        device: ``cpu``, ``cuda`` or ``cuda:<index>``; by default the GPU if there is one.
        policy: Constraints (``max_workspace``, ``deterministic``, ``backends``, …).
        time_budget_s: Seconds a problem; 0 is no limit.
        knob_search: Also search the knobs of the best engines.
        jobs: How many processes; with 1 it is this one.
        progress: Told of every problem, and with one job of every algorithm.
        isolate: Where candidates are measured. ``"always"``: in a separate process, so that a crash
            or a hang does not end this one. ``"never"``: in this process. ``"auto"``: in a separate
            process if this GPU and cuDNN are not verified. ``None``: as ``knobs.isolate`` says.
        group: A process group of ``torch.distributed``, or ``"world"``: its ranks share the work.

    Returns:
        The best measurement of each problem, by its canonical line; with a group also of those of
        other ranks with such a device.

    Raises:
        TypeError: A problem is no text, ``policy`` no policy, or ``progress``
            lacks a method of `Progress`, or ``group`` is no process group.
        ValueError: A line is no problem, the policy no policy, the device none, ``time_budget_s``
            no number of seconds, ``knob_search`` no bool, ``jobs`` less than 1, or ``isolate``
            none of its values; or this rank is not in the group.
        RuntimeError: A problem has no algorithm under the policy, which is raised once all others
            are tuned; or PyTorch finds no such device; or too many algorithms of one problem cost
            the process that measured them. In a group: another rank raised an error, has ended,
            did not call this, or has other settings, or another version of this package.

    Example:
        >>> best = tune("softmax_fwd x=f32[4,64,1]:nchw log=false", device="cpu")
        >>> [row["status"] for row in best.values()]
        ['ok']
    """
    with meeting("tune", group) as ranks:
        if not isinstance(problems, Iterable):
            kind = type(problems).__name__
            raise TypeError(f"problems: got {problems!r} ({kind}), wanted problem lines")
        lines = [problems] if isinstance(problems, str) else list(problems)
        for line in lines:
            if not isinstance(line, str):
                kind = type(line).__name__
                raise TypeError(f"problems: got {line!r} ({kind}), wanted problem lines")
        lines = [*dict.fromkeys(map(_C.canonical_problem, lines))]
        model = _checked_task(device, policy, time_budget_s, knob_search)
        return _best(_measured(model, lines, (), ranks, jobs, progress, isolate), model.policy)


def tune_model(
    model: nn.Module,
    inputs: Any,
    *,
    train: bool = True,
    policy: PolicyLike = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    isolate: str | None = None,
    group: Group = None,
) -> dict[str, Measurement]:
    """Tune what an unmodified network meets under ``enable("autotune")``, ahead of its first run.

    The network runs once to show its problems, as in `trace`: call this inside ``torch.autocast``
    for the problems that it has there. If `enable` was called, its constraints hold for the
    measurements too, and it stays as it was. A problem in the table or the store is neither
    measured nor searched again, unless autotune, or a smaller time budget, left algorithms out.

    Args:
        model: Any module, on one device.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: Also the problems of the backward.
        policy: As for `tune`, like all that follow.
        time_budget_s: Seconds a problem; 0 is no limit.
        knob_search: Also search the knobs of the best engines.
        jobs: How many processes.
        progress: As for `tune`.
        isolate: As for `tune`.
        group: As for `tune`. What one rank has in its table or store is given to the others. The
            network may differ from rank to rank.

    Returns:
        The best measurement of each problem that was measured.

    Raises:
        TypeError: ``model`` is no module, or as `tune`.
        ValueError: There is no tensor among inputs and parameters, the model calls no operator of
            this package, a lazy layer is not initialised, or as `tune`.
        RuntimeError: As `tune`.

    Example:
        >>> best = tune_model(torch.nn.Softmax(1), torch.randn(4, 32), train=False)
        >>> [problem.split()[0] for problem in best]
        ['softmax_fwd']
    """
    with meeting("tune_model", group) as ranks:
        check_progress(progress)
        model = eager_model("tune_model", model)
        task = _checked_task(
            device_of("tune_model", model, inputs), policy, time_budget_s, knob_search
        )
        met = problems_met(model, inputs, train=train, policy=task.policy)
        problems = [layer.problem for layer in met]
        if not problems:
            raise ValueError(nothing_found(model))
        with alone():
            known = [
                line
                for line in problems
                if _C.tuned(line, task.device, task.policy, time_budget_s) is not None
            ]
        rows = _measured(task, problems, known, ranks, jobs, progress, isolate)
        return _best(rows, task.policy)


def _checked_task(
    device: str | torch.device | None,
    policy: PolicyLike,
    time_budget_s: float,
    knob_search: bool,
) -> Task:
    """A task without a problem. Raises as `tune`."""
    place = checked_device(device)
    text = text_for_all(policy)
    check_constraints_alone(text)
    check_time_budget(time_budget_s)
    check_knob_search(knob_search, place)
    return Task("", place, text, time_budget_s, knob_search)


def _measured(
    task: Task,
    problems: Sequence[str],
    known: Collection[str],
    ranks: Meeting | None,
    jobs: int,
    progress: Progress | None,
    isolate: str | None,
) -> dict[str, list[Measurement]]:
    """The rankings of the problems that are not known, by this process or by all ranks."""
    if ranks is not None:
        told = Signs(ranks, progress)

        def measure(tasks: Sequence[Task], lock: str) -> Iterator[list[Measurement]]:
            check_progress(progress)
            return measure_tasks(tasks, jobs, told, isolate, lock)

        return tune_together(ranks, task, problems, known, measure)
    left = [line for line in problems if line not in known]
    tasks = [replace(task, problem=line) for line in left]
    return dict(zip(left, measure_tasks(tasks, jobs, progress, isolate), strict=True))


def _best(rankings: Mapping[str, list[Measurement]], policy: str) -> dict[str, Measurement]:
    """The best measurement of each problem; RuntimeError if one has none."""
    best, failed = {}, []
    for problem, rows in rankings.items():
        if rows and rows[0]["status"] == "ok":
            best[problem] = rows[0]
        else:
            failed.append((problem, rows))
    if failed:
        raise no_algorithm("tune", policy, failed)
    return best


def device_of(function: str, model: nn.Module, inputs: Any) -> str:
    """The device of a model, or of the inputs of one without parameters.

    Some inputs of a network on a GPU, such as lengths, may be on the CPU.

    Raises:
        ValueError: There is no tensor among inputs and parameters.
    """
    tensors = [*model.parameters(), *tensors_in(inputs)]
    if not tensors:
        raise ValueError(
            f"{function}: got a model and inputs without a tensor, wanted at least one"
        )
    return checked_device(tensors[0].device)


def problems_met(
    model: nn.Module, inputs: Any, *, train: bool = True, policy: str = ""
) -> list[Layer]:
    """The problems of `tune_model`, each with the layers that have it and its calls.

    They are those of `trace`, without backwards coupled with a forward. The policy's field
    ``compute`` is part of them.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient.
    """
    with enabled_anew("heuristic"), pushed(only_fields(policy, ("compute",))):
        layers = problems_of_model(model, inputs, train)
    infos = [(layer, _C.problem_info(layer.problem)) for layer in layers]
    return [replace(one, problem=info["text"]) for one, info in infos if is_tuned_alone(info)]
