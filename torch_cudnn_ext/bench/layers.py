"""Side by side with PyTorch: what tuning gains, and what an operator's call costs the host.

PyTorch keeps the plans that it chose for convolutions in a cache per thread, whose key does not
tell ``torch.backends.cudnn.benchmark`` on from off. Each of the two settings therefore has a
thread of its own here, which lives as long as the comparison.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import call
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._timing import current, event_ms, host_ms, kernel_names
from torch_cudnn_ext._torch_internals import occupy_gpu
from torch_cudnn_ext._workload.journal import Journal
from torch_cudnn_ext._workload.problems import DTYPES, Layer, convolution_arguments, merge, rewrite
from torch_cudnn_ext.analysis import tables as report
from torch_cudnn_ext.analysis.profile import Settings
from torch_cudnn_ext.models.enable import enabled
from torch_cudnn_ext.tuning.measure import (
    BASELINE,
    Progress,
    Task,
    check_progress,
    measure_tasks,
    no_algorithm,
)

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

T = TypeVar("T")
_Runner = Callable[[Callable[[], Any]], Any]

DEFAULT_POLICY = "autotune;prefer=gpu_time"  # it is GPU times that are compared
ROUNDS = 31
LEAST_ROUNDS = 11
ROUNDS_S = 1.5  # no further round after so long
RESAMPLES = 1000
MAX_REPETITIONS = 5  # timed runs of a GPU's sample, of which the median counts
REPETITIONS_MS = 1.0  # no more of them than this holds
FLUSH_BYTES = 2**28  # several times the L2 cache of any GPU
HEAD_START_CYCLES = 200_000  # some 0.1 ms in which the host gets ahead of the GPU
TARGET_RATIO = 0.97  # below this more is measured
OVERHEAD_ROUNDS = 31
OVERHEAD_CALLS = 100  # so few that the GPU's queue is never full
OVERHEAD_PROBLEMS = (
    "conv_fwd x=f32[8,16,8,8]:nhwc w=f32[16,16,3,3]:nhwc pad=1 stride=1 dilation=1 groups=1 "
    "compute=f32",
    "conv_fwd x=f32[2,64,14,14]:nhwc w=f32[64,64,1,1]:nhwc pad=0 stride=1 dilation=1 groups=1 "
    "compute=f32",
    "conv_fwd x=f32[4,32,16,16]:nhwc w=f32[64,32,3,3]:nhwc pad=1 stride=2 dilation=1 groups=1 "
    "compute=f32",
)
OVERHEAD_DTYPES = ("f32", "f16", "bf16")


@dataclass
class Comparison:
    """One problem, tuned here and as PyTorch runs it.

    ``ratio`` is PyTorch's time by ours, above 1 where ours is faster, with a 95 % interval. The
    lists of kernels are empty where none were asked for. ``pytorch_refused`` is why PyTorch's own
    call is no candidate here, such as a result that is too far off; empty where it is one.
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
    pytorch_refused: str


@dataclass
class Overhead:
    """Host time per call on one small problem, in microseconds."""

    problem: str
    algorithm: str
    pinned: bool  # whether our call carries a policy; not where the engine is the default anyway
    same_kernels: bool | None  # None on the CPU
    bare_us: float
    ours_us: float
    pytorch_us: float
    enabled_us: float  # F.conv2d under enable()
    ours_training_us: float
    pytorch_training_us: float
    enabled_training_us: float
    # The same where autograd runs the backward pass on the calling thread.
    ours_one_thread_us: float
    pytorch_one_thread_us: float
    enabled_one_thread_us: float

    @property
    def forward_ratio(self) -> float | None:
        """What our operator adds to the bare execute, by what PyTorch's adds.

        ``None`` where PyTorch's adds nothing, as on the CPU, where the arithmetic hides it.
        """
        pytorch_adds_us = self.pytorch_us - self.bare_us
        return (self.ours_us - self.bare_us) / pytorch_adds_us if pytorch_adds_us > 0 else None

    @property
    def training_ratio(self) -> float:
        """Our forward and backward by PyTorch's."""
        return self.ours_training_us / self.pytorch_training_us

    @property
    def enabled_ratio(self) -> float:
        """``F.conv2d`` under `enable` by ``F.conv2d`` as it is."""
        return self.enabled_us / self.pytorch_us

    @property
    def enabled_training_ratio(self) -> float:
        """Likewise, forward and backward."""
        return self.enabled_training_us / self.pytorch_training_us

    @property
    def one_thread_ratio(self) -> float:
        """Our forward and backward by PyTorch's, without autograd's hand-over to its thread."""
        return self.ours_one_thread_us / self.pytorch_one_thread_us

    @property
    def enabled_one_thread_ratio(self) -> float:
        """Likewise, ``F.conv2d`` under `enable` by ``F.conv2d`` as it is."""
        return self.enabled_one_thread_us / self.pytorch_one_thread_us


# Tuned against PyTorch's best.


class _PyTorchThread:
    """Runs PyTorch's convolutions under one benchmark setting, with a plan cache of its own.

    On the CPU, where there is no such cache, it runs them on the caller's thread: a second pool of
    OpenMP threads would only be in the first one's way.
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
    """Both settings, default first."""
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
    choices: str | Path | None = None,
) -> Iterator[Comparison]:
    """Compare layer by layer, taking from the journal what was finished before.

    Our side is the operator that a user calls, with the best algorithm pinned; where the policy
    pins a pass, or leaves it to the heuristic, with that one, and nothing is tuned. On a GPU every
    timed run begins with a cold L2 cache, as in tuning.

    Args:
        layers: What to compare.
        settings: How to tune; PyTorch's side follows PyTorch's own switches.
        kernels: Also take down the names of the GPU kernels of both sides.
        journal: Where finished comparisons are kept.
        progress: Told of every problem and algorithm.
        jobs: How many processes tune, before anything is compared; with 1 all goes layer by layer.
        choices: A file of `tuning.export_table` to begin with, where there is one, and to keep
            what is tuned; what it holds is neither measured nor searched again.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: A problem is not a convolution as PyTorch has it, or ``jobs`` less than 1; or
            the file is none of choices.
        RuntimeError: No algorithm works for a problem under the policy, which is told when all
            others are compared.
    """
    check_progress(progress)
    layers = merge(layers)
    keys = [f"bench | kernels={kernels} | {settings.key(layer.problem)}" for layer in layers]
    finished = [journal.get(key, Comparison) if journal is not None else None for key in keys]
    left = [layer.problem for layer, one in zip(layers, finished, strict=True) if one is None]
    for problem in left:  # before anything is measured
        convolution_arguments(problem)
    tasks = [_task(problem, settings) for problem in left]
    failed = []
    with (
        _pytorch_threads(settings.device) as threads,
        closing(_rankings(tasks, jobs, progress, choices)) as rankings,
    ):
        for layer, key, result in zip(layers, keys, finished, strict=True):
            if result is None:
                task, ranked = next(rankings)
                asked = task.algorithms[:1]
                ours = [row for row in ranked if not asked or row["algorithm"] in asked]
                if not ours or ours[0]["status"] != "ok":
                    failed.append((layer.problem, ours))
                    continue
                algorithm = ours[0]["algorithm"]
                with current(settings.device):
                    result = _compare(layer, settings, kernels, threads, algorithm, ranked)
                if journal is not None:
                    journal.add(key, dataclasses.asdict(result))
            result.names, result.count = list(layer.names), layer.count
            yield result
    if failed:
        raise no_algorithm("bench", settings.policy, failed)


def _rankings(
    tasks: Sequence[Task], jobs: int, progress: Progress | None, choices: str | Path | None
) -> Generator[tuple[Task, list[Measurement]]]:
    """With each task its ranking: of the file of choices, or else measured, and kept there."""
    known: list[list[Measurement] | None] = [None] * len(tasks)
    if choices is not None:
        tuning.merge_table(choices)
        known = [_known(task) for task in tasks]
    try:
        left = [task for task, ranking in zip(tasks, known, strict=True) if ranking is None]
        rows = measure_tasks(left, jobs, progress)
        if jobs > 1:
            rows = iter(list(rows))
        for task, ranking in zip(tasks, known, strict=True):
            yield task, next(rows) if ranking is None else ranking
    finally:
        if choices is not None:
            tuning.merge_table(choices)


def _known(task: Task) -> list[Measurement] | None:
    if task.algorithms:  # of a policy's choice; what a table ranks are all
        return None
    return _C.tuned(task.problem, task.device, task.policy, task.time_budget_s)


def _task(problem: str, settings: Settings) -> Task:
    """To measure all, or what the policy chooses without measuring, and PyTorch's own."""
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
    sides: list[tuple[Callable[[], object], _Runner]] = [(ours, _here)]
    sides += [(pytorch, thread) for thread in threads]
    timers = samplers(sides, device)
    result = judged(timers)
    winner = threads[result.winner - 1]
    named = kernels and device.startswith("cuda")
    return Comparison(
        problem=problem,
        names=list(layer.names),
        count=layer.count,
        device=_C.device_fingerprint(device),
        algorithm=algorithm,
        kernels=kernel_names(ours, _here, device) if named else [],
        ours_ms=result.medians[0],
        pytorch_ms=result.medians[result.winner],
        pytorch_default_ms=result.medians[1],
        pytorch_benchmark_ms=result.medians[2],
        pytorch_setting=winner.setting,
        pytorch_kernels=kernel_names(pytorch, winner, device) if named else [],
        ratio=result.ratio,
        ratio_low=result.low,
        ratio_high=result.high,
        pytorch_refused=next((r["reason"] for r in rows if r["algorithm"] == BASELINE), ""),
    )


def _here(work: Callable[[], T]) -> T:
    with torch.no_grad():
        return work()


def _operands(problem: str, device: str) -> dict[str, Tensor]:
    """``x``, ``w`` and ``y``, of which a pass reads two and takes the third one's sizes; a bias."""
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
    """Our operator for a problem, with an algorithm pinned; it ran once and obeyed."""
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


def samplers(
    sides: Sequence[tuple[Callable[[], object], _Runner]], device: str
) -> list[Callable[[], float]]:
    """For each side a function that times it once, in ms; the sides were warmed up."""
    for work, runner in sides:
        runner(work)  # PyTorch chooses its plan here, and keeps it
    if not device.startswith("cuda"):
        return [partial(runner, partial(host_ms, work)) for work, runner in sides]
    once_ms = min(runner(partial(event_ms, work)) for work, runner in sides for _ in range(3))
    repetitions = max(1, min(MAX_REPETITIONS, round(REPETITIONS_MS / max(once_ms, 1e-3))))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    return [partial(runner, partial(_cold_ms, work, flush, repetitions)) for work, runner in sides]


def _cold_ms(work: Callable[[], object], flush: Tensor, repetitions: int) -> float:
    """The median GPU time of some runs, each with a cold L2 cache, free of the host's time.

    The GPU is kept busy at first, and by every flush, so that the host can enqueue a run before
    the GPU comes to it. Where it did not, all is done again with a longer head start.
    """
    for attempt in range(4):
        occupy_gpu(HEAD_START_CYCLES * 4**attempt)
        times, in_time = [], True
        for _ in range(repetitions):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            flush.zero_()
            start.record()
            work()
            end.record()
            in_time = in_time and not start.query()  # type: ignore[no-untyped-call]
            times.append((start, end))
        end.synchronize()
        if in_time:
            break
    return float(statistics.median(start.elapsed_time(end) for start, end in times))


@dataclass(frozen=True)
class Rounds:
    """What interleaved timing gives; ``ratio`` is the better other side by ours."""

    medians: list[float]
    winner: int  # PyTorch's better side
    ratio: float
    low: float
    high: float


def _samples(
    timers: Sequence[Callable[[], float]], most: int = ROUNDS, at_most_s: float = ROUNDS_S
) -> list[list[float]]:
    """Of interleaved rounds, every side first in turn."""
    samples: list[list[float]] = [[] for _ in timers]
    began = time.perf_counter()
    for turn in range(most):
        if turn >= LEAST_ROUNDS and time.perf_counter() - began > at_most_s:
            break
        for i in range(len(timers)):
            side = (turn + i) % len(timers)
            samples[side].append(timers[side]())
    return samples


def rounds(samples: Sequence[Sequence[float]]) -> Rounds:
    """What each round's times say; the first side is ours."""
    medians = [statistics.median(times) for times in samples]
    winner = min(range(1, len(medians)), key=medians.__getitem__)
    ratios = [b / a for a, b in zip(samples[0], samples[winner], strict=True)]
    low, high = bootstrap_interval(ratios)
    return Rounds(medians, winner, statistics.median(ratios), low, high)


def judged(timers: Sequence[Callable[[], float]]) -> Rounds:
    """`rounds`, of twice as many where ours came out slower at first."""
    samples = _samples(timers)
    result = rounds(samples)
    if result.high >= TARGET_RATIO:
        return result
    return rounds([a + b for a, b in zip(samples, _samples(timers), strict=True)])


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the median (Efron, "Bootstrap methods", 1979)."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


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


def overhead_problems(device: str) -> list[str]:
    """The problem lines of `measure_overhead`."""
    dtypes = OVERHEAD_DTYPES if device.startswith("cuda") else ("f32",)
    return [rewrite(line, dtype=dtype) for line in OVERHEAD_PROBLEMS for dtype in dtypes]


def measure_overhead(device: str, progress: Progress | None = None) -> Iterator[Overhead]:
    """Host time per call, with warm caches, of small channels-last problems.

    Four loops: bare executes of the plan, our ``conv2d``, and ``F.conv2d`` as it is and under
    `enable`; then forward and backward of the last three, as autograd runs them by default, on a
    GPU with a hand-over to its thread and back, and all on the calling thread
    (``torch.autograd.set_multithreading_enabled(False)``). On a GPU our side runs the first engine
    of cuDNN's heuristic, as PyTorch does, and nothing waits for the GPU. On the CPU it runs
    PyTorch's own convolution, in f32 only, and all times hold the arithmetic.

    Args:
        device: ``cpu`` or ``cuda[:i]``.
        progress: Told of every problem.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
    """
    check_progress(progress)
    cases = overhead_problems(device)
    for done, problem in enumerate(cases):
        if progress is not None:
            progress.problem(done, len(cases), problem)
        with current(device):
            result = _overhead(problem, device)
        yield result


def _as_pytorch_chooses(problem: str, device: str) -> str:
    """The first engine that cuDNN's heuristic names and that builds; on the CPU PyTorch itself."""
    if not device.startswith("cuda"):
        return BASELINE
    for candidate in _C.candidates(problem, device, "backends=graph"):
        if candidate["status"] == "ok" and candidate["source"].startswith("heuristic"):
            return candidate["algorithm"]
    raise RuntimeError(f"bench --overhead: cuDNN's heuristic names no engine for {problem}")


def _overhead(problem: str, device: str) -> Overhead:
    lines = {
        name: rewrite(problem, op=f"conv_{name}") for name in ("fwd", "bwd_data", "bwd_filter")
    }
    pins = {name: _as_pytorch_chooses(line, device) for name, line in lines.items()}
    default = {name: _C.decide(line, device)["algorithm"] for name, line in lines.items()}
    pinned = default != pins
    policy = ";".join(f"{name}={pin}" for name, pin in pins.items()) if pinned else None
    arguments = convolution_arguments(problem)
    tensors = _C.scratch(problem, device)
    x, w = tensors["x"], tensors["w"]
    convolution = torch.ops.torch_cudnn_ext.conv2d.default

    def ours() -> Tensor:
        result: Tensor = convolution(x, w, None, *arguments, policy=policy)
        return result

    def pytorch() -> Tensor:
        return F.conv2d(x, w, None, *arguments)

    def bare_us() -> float:
        _wait(device)
        return _C.execute_loop(problem, pins["fwd"], tensors, OVERHEAD_CALLS) * 1e6

    def with_ours(work: Callable[[], object]) -> Callable[[], float]:
        loop = _loop_us(work, device)

        def loop_enabled() -> float:
            with enabled(policy):
                return loop()

        return loop_enabled

    forward = _interleaved(
        [bare_us, _loop_us(ours, device), _loop_us(pytorch, device), with_ours(pytorch)]
    )
    leaf_x, leaf_w = (t.detach().clone().requires_grad_() for t in (x, w))
    gradient = torch.ones_like(pytorch())

    def ours_training() -> None:
        y = convolution(leaf_x, leaf_w, None, *arguments, policy=policy)
        torch.autograd.grad(y, (leaf_x, leaf_w), gradient)

    def pytorch_training() -> None:
        y = F.conv2d(leaf_x, leaf_w, None, *arguments)
        torch.autograd.grad(y, (leaf_x, leaf_w), gradient)

    trainings = [
        _loop_us(ours_training, device),
        _loop_us(pytorch_training, device),
        with_ours(pytorch_training),
    ]
    training = _interleaved(trainings)
    with torch.autograd.set_multithreading_enabled(False):
        one_thread = _interleaved(trainings)
    same = None
    if device.startswith("cuda"):
        # Kernels of the backward pass run on autograd's thread; the profiler sees them all.
        same = all(
            sorted(kernel_names(mine, call, device)) == sorted(kernel_names(theirs, call, device))
            for mine, theirs in ((ours, pytorch), (ours_training, pytorch_training))
        )
    return Overhead(problem, pins["fwd"], pinned, same, *forward, *training, *one_thread)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _loop_us(work: Callable[[], object], device: str) -> Callable[[], float]:
    """A function that gives the host microseconds a call; a GPU's queue is empty at its start."""

    def loop() -> float:
        work()  # under this policy, what is known is found again
        _wait(device)
        began = time.perf_counter()
        for _ in range(OVERHEAD_CALLS):
            work()
        return (time.perf_counter() - began) * 1e6 / OVERHEAD_CALLS

    return loop


def _interleaved(sides: Sequence[Callable[[], float]]) -> list[float]:
    """The median of each side, once all are warm."""
    for side in sides:
        side()
    return [statistics.median(times) for times in _samples(sides, OVERHEAD_ROUNDS, math.inf)]


# Output.


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# What comparisons of problems, modules and networks have in common.
TIME_COLUMNS = (
    report.Column("ms", lambda r: report.milliseconds(r["ours_ms"]), True),
    report.Column("PyTorch ms", lambda r: report.milliseconds(r["pytorch_ms"]), True),
)
SETTING_COLUMN = report.Column("PyTorch's best", lambda r: r["pytorch_setting"], False)
RATIO_COLUMNS = (
    report.Column("ratio", lambda r: f"{r['ratio']:.3f}", True),
    report.Column("95 %", lambda r: f"{r['ratio_low']:.3f} .. {r['ratio_high']:.3f}", True),
)

COMPARISON_COLUMNS = (
    report.Column("problem", lambda r: r["problem"], False),
    report.Column("calls", lambda r: str(r["count"]), True),
    report.ALGORITHM,
    *TIME_COLUMNS,
    SETTING_COLUMN,
    *RATIO_COLUMNS,
)
OVERHEAD_COLUMNS = (
    report.Column("problem", lambda r: r["problem"], False),
    report.ALGORITHM,
    report.Column("pinned", lambda r: "yes" if r["pinned"] else "no", False),
    report.Column(
        "same kernels", lambda r: {True: "yes", False: "no", None: ""}[r["same_kernels"]], False
    ),
    report.Column("bare us", lambda r: f"{r['bare_us']:.2f}", True),
    report.Column("ours us", lambda r: f"{r['ours_us']:.2f}", True),
    report.Column("PyTorch us", lambda r: f"{r['pytorch_us']:.2f}", True),
    report.Column("ours adds", lambda r: f"{r['ours_us'] - r['bare_us']:.2f}", True),
    report.Column("PyTorch adds", lambda r: f"{r['pytorch_us'] - r['bare_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["forward_ratio"]), True),
    report.Column("fwd+bwd ours", lambda r: f"{r['ours_training_us']:.2f}", True),
    report.Column("PyTorch", lambda r: f"{r['pytorch_training_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["training_ratio"]), True),
    report.Column("enable() us", lambda r: f"{r['enabled_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["enabled_ratio"]), True),
    report.Column("fwd+bwd enable()", lambda r: f"{r['enabled_training_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["enabled_training_ratio"]), True),
    report.Column("one thread ours", lambda r: f"{r['ours_one_thread_us']:.2f}", True),
    report.Column("PyTorch", lambda r: f"{r['pytorch_one_thread_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["one_thread_ratio"]), True),
    report.Column("enable()", lambda r: f"{r['enabled_one_thread_us']:.2f}", True),
    report.Column("ratio", lambda r: _ratio(r["enabled_one_thread_ratio"]), True),
)


def comparison_text(comparisons: Sequence[Comparison], format: str) -> str | list[report.Table]:
    """Comparisons in a format: tables for ``table``, text for ``json``, ``csv``, ``markdown``."""
    records = [dataclasses.asdict(c) for c in comparisons]
    means = geometric_means(comparisons)
    data = {"comparisons": records, "geometric_means": means}
    words = [f"geometric mean over {name}: {mean:.3f}" for name, mean in means.items()]
    lists = [
        (f"{record['problem']}, kernels of {side}", record[key])
        for record in records
        for side, key in (("ours", "kernels"), ("PyTorch", "pytorch_kernels"))
        if record[key]
    ]
    lists += [
        (f"{c.problem}, why PyTorch's own call is no candidate", [c.pytorch_refused])
        for c in comparisons
        if c.pytorch_refused
    ]
    title = "ours against PyTorch's best"
    footer = "; ".join(words)
    names = report.field_names(Comparison)
    return report.formatted(format, data, title, COMPARISON_COLUMNS, records, names, footer, lists)


def overhead_text(results: Sequence[Overhead], format: str) -> str | list[report.Table]:
    """Host times in a format, as `comparison_text`."""
    names = {
        "forward": "forward_ratio",
        "forward+backward": "training_ratio",
        "enable() forward": "enabled_ratio",
        "enable() forward+backward": "enabled_training_ratio",
        "forward+backward on one thread": "one_thread_ratio",
        "enable() on one thread": "enabled_one_thread_ratio",
    }
    shown = names.values()
    records = [dataclasses.asdict(r) | {name: getattr(r, name) for name in shown} for r in results]
    ratios = {
        label: [r[name] for r in records if r[name] is not None] for label, name in names.items()
    }
    words = [f"{name} {statistics.median(values):.3f}" for name, values in ratios.items() if values]
    footer = f"medians of the ratios: {', '.join(words)}" if words else ""
    data = {"overhead": records}
    fields = [*report.field_names(Overhead), *shown]
    return report.formatted(
        format, data, "host time per call", OVERHEAD_COLUMNS, records, fields, footer
    )
