"""Tuning ahead of use: measuring problems, or those of a network, for the tuning table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._workload.network import nothing_found
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.recorder import problems_of_model
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import enabled_anew
from torch_cudnn_ext.policy import PolicyLike, text_for_all
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
from torch_cudnn_ext.tuning.tasks import Task

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement


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
) -> dict[str, Measurement]:
    """Measure problems and keep the ranking, so that ``autotune`` need not measure them again.

    The tuning table and the tuning store keep it. What they have already is measured, too.

    On a GPU nothing is kept while ``torch.backends.cudnn.enabled`` is False.

    On a GPU most of the time goes into compiling engines at run time. Several jobs compile at the
    same time, and run and time one after the other. They are processes that import the main module,
    so a script calls this under ``if __name__ == "__main__":``.

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

    Returns:
        The best measurement of each problem, by its canonical line.

    Raises:
        TypeError: A problem is no text, ``policy`` no policy, or ``progress``
            lacks a method of `Progress`.
        ValueError: A line is no problem, the policy no policy, the device none, ``time_budget_s``
            no number of seconds, ``knob_search`` no bool, ``jobs`` less than 1, or ``isolate``
            none of its values.
        RuntimeError: A problem has no algorithm under the policy, which is raised once all others
            are tuned; or PyTorch finds no such device; or too many algorithms of one problem cost
            the process that measured them.

    Example:
        >>> best = tune("softmax_fwd x=f32[4,64,1]:nchw log=false", device="cpu")
        >>> [row["status"] for row in best.values()]
        ['ok']
    """
    place = checked_device(device)
    text = text_for_all(policy)
    check_constraints_alone(text)
    check_time_budget(time_budget_s)
    check_knob_search(knob_search, place)
    if not isinstance(problems, Iterable):
        kind = type(problems).__name__
        raise TypeError(f"problems: got {problems!r} ({kind}), wanted problem lines")
    lines = [problems] if isinstance(problems, str) else list(problems)
    for line in lines:
        if not isinstance(line, str):
            raise TypeError(f"problems: got {line!r} ({type(line).__name__}), wanted problem lines")
    problems = [*dict.fromkeys(_C.canonical_problem(line) for line in lines)]
    tasks = [Task(problem, place, text, time_budget_s, knob_search) for problem in problems]
    best, failed = {}, []
    for problem, rows in zip(problems, measure_tasks(tasks, jobs, progress, isolate), strict=True):
        if rows and rows[0]["status"] == "ok":
            best[problem] = rows[0]
        else:
            failed.append((problem, rows))
    if failed:
        raise no_algorithm("tune", text, failed)
    return best


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
    check_progress(progress)
    model = eager_model("tune_model", model)
    place = device_of("tune_model", model, inputs)
    text = text_for_all(policy)
    problems = problems_met(model, inputs, train=train, policy=text)
    if not problems:
        raise ValueError(nothing_found(model))
    return tune(
        [p for p in problems if _C.tuned(p, place, text, time_budget_s) is None],
        device=place,
        policy=text,
        time_budget_s=time_budget_s,
        knob_search=knob_search,
        jobs=jobs,
        progress=progress,
        isolate=isolate,
    )


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
) -> dict[str, int]:
    """The problems of `tune_model`, with the number of calls of each.

    They are those of `trace`, without backwards coupled with a forward. The policy's field
    ``compute`` is part of them.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient.
    """
    with enabled_anew("heuristic"), pushed(only_fields(policy, ("compute",))):
        layers = problems_of_model(model, inputs, train)
    infos = [(_C.problem_info(one.problem), one.count) for one in layers]
    return {
        info["text"]: count
        for info, count in infos
        if info["pass_name"] == "fwd" or not info["coupled"]
    }
