"""Layers tuned here, compared with PyTorch's best.

PyTorch keeps the plans of convolutions in a cache per thread. The cache's key does not hold
``torch.backends.cudnn.benchmark``, so each of the two settings has a thread of its own here, which
lives as long as the comparison.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._timing import current, kernel_names
from torch_cudnn_ext._workload.problems import DTYPES, Layer, convolution_arguments, merge
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.settings import Settings
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, Table
from torch_cudnn_ext.bench import rounds
from torch_cudnn_ext.tuning.journal import Journal
from torch_cudnn_ext.tuning.measure import (
    BASELINE,
    Progress,
    check_progress,
    measure_tasks,
    no_algorithm,
)
from torch_cudnn_ext.tuning.tasks import Task

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

T = TypeVar("T")


@dataclass
class Comparison:
    """One problem, tuned here and as PyTorch runs it.

    ``ratio`` is PyTorch's time by ours, above 1 if ours is faster, with a 95 % interval. The lists
    of kernels are empty if none were asked for. ``pytorch_reason`` is why the baseline is not
    admissible here, such as a wrong result; it is empty if the baseline is ok.
    """

    problem: str
    names: list[str]
    count: int
    device: str
    algorithm: str
    kernels: list[str]
    ours_ms: float
    pytorch_ms: float
    pytorch_default_ms: float
    pytorch_benchmark_ms: float
    pytorch_setting: str
    pytorch_kernels: list[str]
    ratio: float
    ratio_low: float
    ratio_high: float
    pytorch_reason: str


class _PyTorchThread:
    """Runs PyTorch's convolutions under one benchmark setting, with a plan cache of its own.

    The CPU has no such cache. There it runs them on the caller's thread, since a second pool of
    OpenMP threads would compete with the first.
    """

    def __init__(self, benchmark: bool, device: str) -> None:
        self.setting = f"benchmark={benchmark}"
        self._benchmark = benchmark
        self._device = device
        self._executor = ThreadPoolExecutor(max_workers=1)

    def __call__(self, work: Callable[[], T]) -> T:
        def guarded() -> T:
            before = torch.backends.cudnn.benchmark
            torch.backends.cudnn.benchmark = self._benchmark
            try:
                with torch.no_grad(), current(self._device):
                    return work()
            finally:
                torch.backends.cudnn.benchmark = before

        on_gpu = self._device.startswith("cuda")
        return self._executor.submit(guarded).result() if on_gpu else guarded()

    def close(self) -> None:
        self._executor.shutdown()


@contextmanager
def _pytorch_threads(device: str) -> Iterator[tuple[_PyTorchThread, _PyTorchThread]]:
    """A thread for each setting, the default first."""
    threads = (_PyTorchThread(False, device), _PyTorchThread(True, device))
    try:
        yield threads
    finally:
        for thread in threads:
            thread.close()


def compare_layers(
    layers: Sequence[Layer],
    settings: Settings,
    kernels: bool = False,
    journal: Journal | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    table: str | Path | None = None,
) -> Iterator[Comparison]:
    """Compare layer by layer, taking from the journal what was finished before.

    Our side is the operator that a user calls, with the best algorithm pinned. If the policy pins a
    pass, or leaves it to the heuristic, that algorithm is pinned and nothing is tuned. On a GPU
    every timed run begins with a cold L2 cache, as in tuning.

    Args:
        layers: What to compare.
        settings: How to tune; PyTorch's side follows PyTorch's own switches.
        kernels: Also record the names of the GPU kernels of both sides.
        journal: Where finished comparisons are kept.
        progress: Told of every problem and algorithm.
        jobs: How many processes tune, before anything is compared. With 1, each layer is tuned and
            compared before the next one.
        table: A file of the tuning table to begin with, if it exists, and to add to. What it holds
            is neither measured nor searched again.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: A problem is not a convolution as PyTorch has it, ``jobs`` is less than 1, or
            the file holds no tuning table.
        RuntimeError: No algorithm works for a problem under the policy. It is raised after all
            others are compared.
    """
    check_progress(progress)
    layers = merge(layers)
    works = [settings.work(f"bench kernels={kernels}", layer.problem) for layer in layers]
    finished = [journal.get(work, Comparison) if journal is not None else None for work in works]
    left = [layer.problem for layer, one in zip(layers, finished, strict=True) if one is None]
    for problem in left:  # before the first measurement
        convolution_arguments(problem)
    tasks = [_task(problem, settings) for problem in left]
    failed = []
    with (
        _pytorch_threads(settings.device) as threads,
        closing(_rankings(tasks, jobs, progress, table)) as rankings,
    ):
        for layer, work, result in zip(layers, works, finished, strict=True):
            if result is None:
                task, ranked = next(rankings)
                asked = task.algorithms[:1]
                ours = [row for row in ranked if not asked or row["algorithm"] in asked]
                if not ours or ours[0]["status"] not in ("ok", "unstable"):
                    failed.append((layer.problem, ours))
                    continue
                algorithm = ours[0]["algorithm"]
                with current(settings.device):
                    result = _compare(layer, settings, kernels, threads, algorithm, ranked)
                if journal is not None:
                    journal.add(work, dataclasses.asdict(result))
            result.names, result.count = list(layer.names), layer.count
            yield result
    if failed:
        raise no_algorithm("bench", settings.policy, failed)


def _rankings(
    tasks: Sequence[Task], jobs: int, progress: Progress | None, table: str | Path | None
) -> Generator[tuple[Task, list[Measurement]]]:
    """Each task with its ranking: from the file, or else measured and added to the file."""
    known: list[list[Measurement] | None] = [None] * len(tasks)
    if table is not None:
        tuning.merge_table(table)
        known = [_known(task) for task in tasks]
    try:
        left = [task for task, ranking in zip(tasks, known, strict=True) if ranking is None]
        rows = measure_tasks(left, jobs, progress)
        if jobs > 1:
            rows = iter(list(rows))
        for task, ranking in zip(tasks, known, strict=True):
            yield task, next(rows) if ranking is None else ranking
    finally:
        if table is not None:
            tuning.merge_table(table)


def _known(task: Task) -> list[Measurement] | None:
    if task.algorithms:  # a table ranks all algorithms
        return None
    return _C.tuned(task.problem, task.device, task.policy, task.time_budget_s)


def _task(problem: str, settings: Settings) -> Task:
    """A task for all algorithms, or for the baseline and what the policy decides unmeasured."""
    task = settings.task(problem, settings.policy)
    info = _C.problem_info(problem)
    fields = _C.policy_fields(_C.resolved_policy(settings.policy))
    algorithm = fields.get(info["pass_name"], "autotune")
    if algorithm == "autotune":
        return task
    try:
        algorithm = _C.decide(problem, settings.device, settings.policy)["algorithm"]
    except RuntimeError:
        if algorithm == "heuristic":
            return task
    asked = dict.fromkeys((algorithm, BASELINE))
    return dataclasses.replace(task, algorithms=tuple(asked), knob_search=False)


def _compare(
    layer: Layer,
    settings: Settings,
    kernels: bool,
    threads: tuple[_PyTorchThread, _PyTorchThread],
    algorithm: str,
    rows: list[Measurement],
) -> Comparison:
    problem, device = layer.problem, settings.device
    operands = _operands(problem, device)
    ours = _our_call(problem, operands, algorithm, settings.measured_policy)
    pytorch = _pytorch_call(problem, operands)
    sides: list[tuple[Callable[[], object], rounds.Runner]] = [(ours, _here)]
    sides += [(pytorch, thread) for thread in threads]
    result = rounds.compare_sides(rounds.samplers(sides, device))
    winner = threads[result.winner - 1]
    named = kernels and device.startswith("cuda")
    return Comparison(
        problem=problem,
        names=list(layer.names),
        count=layer.count,
        device=_C.device_fingerprint(device),
        algorithm=algorithm,
        kernels=kernel_names(ours, _here, device) if named else [],
        pytorch_default_ms=result.medians[1],
        pytorch_benchmark_ms=result.medians[2],
        pytorch_setting=winner.setting,
        pytorch_kernels=kernel_names(pytorch, winner, device) if named else [],
        pytorch_reason=next((r["reason"] for r in rows if r["algorithm"] == BASELINE), ""),
        **result.fields(),
    )


def _here(work: Callable[[], T]) -> T:
    with torch.no_grad():
        return work()


def _operands(problem: str, device: str) -> dict[str, Tensor]:
    """``x``, ``w``, ``y`` and a bias; a pass reads two of them and takes the third one's sizes."""
    operands = _C.scratch(problem, device)
    for role, slot in _C.problem_info(problem)["slots"].items():
        if role not in operands:
            dtype = DTYPES[slot["dtype"]]
            operands[role] = torch.empty_strided(
                slot["sizes"], slot["strides"], dtype=dtype, device=device
            )
    return operands


def _our_call(
    problem: str, operands: dict[str, Tensor], algorithm: str, constraints: str
) -> Callable[[], object]:
    """Our operator for a problem, with an algorithm pinned, after a run that obeyed the pin."""
    info = _C.problem_info(problem)
    *geometry, groups = convolution_arguments(problem)
    x, w, y, bias = operands["x"], operands["w"], operands["y"], operands.get("bias")
    pass_name = info["pass_name"]
    compute = next(word for word in info["text"].split() if word.startswith("compute="))
    policy = ";".join(word for word in (constraints, compute, f"{pass_name}={algorithm}") if word)
    ops = torch.ops.torch_cudnn_ext

    def forward() -> object:
        zeros = [0] * (x.dim() - 2)
        return ops.convolution.default(x, w, bias, *geometry, False, zeros, groups, policy=policy)

    def backward_input() -> object:
        return ops.convolution_backward_input.default(
            y, w, x.shape, *geometry, groups, policy=policy
        )

    def backward_weight() -> object:
        return ops.convolution_backward_weight.default(
            y, x, w.shape, *geometry, groups, policy=policy
        )

    run = {"fwd": forward, "bwd_data": backward_input, "bwd_filter": backward_weight}[pass_name]
    _here(run)
    ran = _C.last_decision(info["op"])
    if ran is None or (ran["problem"], ran["algorithm"]) != (info["text"], algorithm):
        other = f"{ran['algorithm']} for {ran['problem']}" if ran is not None else "nothing"
        raise RuntimeError(
            f"bench: wanted {algorithm} for {info['text']}, the operator ran {other}"
        )
    return run


def _pytorch_call(problem: str, operands: dict[str, Tensor]) -> Callable[[], object]:
    """PyTorch's own operator for a problem; backward asks for the one gradient."""
    pass_name = _C.problem_info(problem)["pass_name"]
    *geometry, groups = convolution_arguments(problem)
    x, w, y = operands["x"], operands["w"], operands["y"]
    zeros = [0] * (x.dim() - 2)
    if pass_name == "fwd":
        return lambda: torch.ops.aten.convolution.default(
            x, w, operands.get("bias"), *geometry, False, zeros, groups
        )
    mask = [pass_name == "bwd_data", pass_name == "bwd_filter", False]
    return lambda: torch.ops.aten.convolution_backward.default(
        y, x, w, None, *geometry, False, zeros, groups, mask
    )


def geometric_means(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Geometric means of the ratios: over all, and over filters of 3x3 and larger."""
    large = [
        c.ratio
        for c in comparisons
        if min(_C.problem_info(c.problem)["slots"]["w"]["sizes"][2:]) >= 3
    ]
    groups = {"all": [c.ratio for c in comparisons], "filters 3x3 and larger": large}
    return {name: statistics.geometric_mean(values) for name, values in groups.items() if values}


# Host time.


COLUMNS = (
    Column("problem", lambda r: r["problem"]),
    Column("calls", lambda r: str(r["count"]), True),
    ALGORITHM,
    *rounds.TIME_COLUMNS,
    rounds.SETTING_COLUMN,
    *rounds.RATIO_COLUMNS,
)


def comparison_text(comparisons: Sequence[Comparison], format: str) -> str | list[Table]:
    """Comparisons in a format; see `formatted`."""
    records = [dataclasses.asdict(c) for c in comparisons]
    means = geometric_means(comparisons)
    data = {"comparisons": records, "geometric_means": means}
    footer = "; ".join(f"geometric mean over {name}: {mean:.3f}" for name, mean in means.items())
    lists = [
        (f"{record['problem']}, kernels of {side}", record[key])
        for record in records
        for side, key in (("ours", "kernels"), ("PyTorch", "pytorch_kernels"))
        if record[key]
    ]
    lists += [
        (f"{c.problem}, why PyTorch's own call is no candidate", [c.pytorch_reason])
        for c in comparisons
        if c.pytorch_reason
    ]
    title, names = "ours against PyTorch's best", field_names(Comparison)
    return formatted(format, data, title, COLUMNS, records, names, footer, lists)
