"""Side by side with PyTorch: what tuning gains, and what an operator's call costs the host.

PyTorch keeps the plans that it chose for convolutions in a cache per thread, whose key does not
tell ``torch.backends.cudnn.benchmark`` on from off. Each of the two settings therefore has a
thread of its own here, which lives as long as the comparison.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _C, report
from .peaks import event_ms, host_ms
from .profiling import Progress, Settings
from .workload import Journal, Layer, convolution_arguments, merge, rewrite

T = TypeVar("T")

ROUNDS = 31
RESAMPLES = 1000
GRAPH_MS = 0.3  # how much work one replayed graph holds at least
MAX_REPETITIONS = 50
FLUSH_BYTES = 2**28  # several times the L2 cache of any GPU
TARGET_RATIO = 0.97  # below this a result is measured once more
OVERHEAD_ROUNDS = 30
OVERHEAD_CALLS = 200
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

    ``ratio`` is PyTorch's time by ours, above 1 where ours is faster, with a 95 % interval.
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


@dataclass
class Overhead:
    """Host time per call on one small problem, in microseconds."""

    problem: str
    algorithm: str
    pinned: bool  # whether our call carries a policy; not where the engine is the default anyway
    same_kernels: bool
    bare_us: float
    ours_us: float
    pytorch_us: float
    ours_training_us: float
    pytorch_training_us: float

    @property
    def forward_ratio(self) -> float:
        """What our operator adds to the bare execute, by what PyTorch's adds."""
        return (self.ours_us - self.bare_us) / (self.pytorch_us - self.bare_us)

    @property
    def training_ratio(self) -> float:
        """Our forward and backward by PyTorch's."""
        return self.ours_training_us / self.pytorch_training_us


# Tuned against PyTorch's best.


class _PyTorchThread:
    """Runs PyTorch's convolutions under one benchmark setting, with a plan cache of its own."""

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
                with torch.no_grad(), _current(self._device):
                    return work()
            finally:
                torch.backends.cudnn.benchmark = before

        return self._executor.submit(guarded).result()

    def close(self) -> None:
        self._executor.shutdown()


class _PyTorchThreads:
    """Both settings, default first."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> tuple[_PyTorchThread, _PyTorchThread]:
        self._threads = (_PyTorchThread(False, self._device), _PyTorchThread(True, self._device))
        return self._threads

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thread in self._threads:
            thread.close()


def _current(device: str) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


def compare_layers(
    layers: Sequence[Layer],
    settings: Settings,
    journal: Journal | None = None,
    progress: Progress | None = None,
) -> Iterator[Comparison]:
    """Compare layer by layer, taking from the journal what was finished before.

    Raises:
        ValueError: A problem is not a plain convolution.
        RuntimeError: No algorithm works under the policy.
    """
    layers = merge(layers)
    with _PyTorchThreads(settings.device) as threads, _current(settings.device):
        for done, layer in enumerate(layers):
            if progress is not None:
                progress.problem(done, len(layers), layer.problem)
            key = f"bench | {settings.key(layer.problem)}"
            record = journal.get(key) if journal is not None else None
            if record is None:
                result = _compare(layer, settings, threads, progress)
                if journal is not None:
                    journal.add(key, dataclasses.asdict(result))
            else:
                result = Comparison(**record)
            result.names, result.count = list(layer.names), layer.count
            yield result


def _compare(
    layer: Layer,
    settings: Settings,
    threads: tuple[_PyTorchThread, _PyTorchThread],
    progress: Progress | None,
) -> Comparison:
    problem, device = layer.problem, settings.device
    rows = _C.measure(
        problem,
        device,
        settings.policy,
        time_budget_s=settings.time_budget_s,
        knob_search=settings.knob_search,
        min_samples=settings.min_samples,
        progress=progress.algorithm if progress is not None else None,
    )
    if not rows or rows[0]["status"] != "ok":
        raise RuntimeError(f"bench: no algorithm works under {settings.policy!r} for {problem}")
    algorithm = rows[0]["algorithm"]
    tensors = _C.scratch(problem, device)
    pytorch = _pytorch_call(problem, tensors, device)

    def ours() -> Tensor:
        return _C.run(problem, algorithm, tensors, settings.policy)

    samplers = [_sampler(ours, device, _here)]
    samplers += [_sampler(pytorch, device, thread) for thread in threads]
    result = _rounds(samplers)
    if result.high < TARGET_RATIO:
        result = _rounds(samplers)
    winner = threads[result.winner - 1]
    return Comparison(
        problem=problem,
        names=list(layer.names),
        count=layer.count,
        device=_C.device_fingerprint(device),
        algorithm=algorithm,
        kernels=_kernel_names(ours, device, _here),
        ours_ms=result.medians[0],
        pytorch_ms=result.medians[result.winner],
        pytorch_default_ms=result.medians[1],
        pytorch_benchmark_ms=result.medians[2],
        pytorch_setting=winner.setting,
        pytorch_kernels=_kernel_names(pytorch, device, winner),
        ratio=result.ratio,
        ratio_low=result.low,
        ratio_high=result.high,
    )


def _here(work: Callable[[], T]) -> T:
    with torch.no_grad():
        return work()


def _pytorch_call(problem: str, tensors: dict[str, Tensor], device: str) -> Callable[[], object]:
    """PyTorch's own operator for a problem; backward asks for the one gradient."""
    info = _C.problem_info(problem)
    arguments = convolution_arguments(problem)
    geometry = (arguments["stride"], arguments["padding"], arguments["dilation"])
    zeros = [0] * len(arguments["stride"])
    operands = dict(tensors)
    for role, slot in info["slots"].items():
        if role not in operands:  # the output: backward wants its sizes and strides only
            operands[role] = torch.empty_strided(
                slot["sizes"],
                slot["strides"],
                dtype=tensors["w" if role == "x" else "x"].dtype,
                device=device,
            )
    x, w, y, groups = operands["x"], operands["w"], operands["y"], arguments["groups"]
    if info["pass_name"] == "fwd":
        return lambda: torch.ops.aten.convolution.default(
            x, w, None, *geometry, False, zeros, groups
        )
    mask = [info["pass_name"] == "bwd_data", info["pass_name"] == "bwd_filter", False]
    return lambda: torch.ops.aten.convolution_backward.default(
        y, x, w, None, *geometry, False, zeros, groups, mask
    )


def _sampler(
    work: Callable[[], object], device: str, runner: Callable[[Callable[[], Any]], Any]
) -> Callable[[], float]:
    """A function that times ``work`` once, in ms, with a cold L2 cache."""
    if not device.startswith("cuda"):
        runner(work)
        return lambda: runner(lambda: host_ms(work))
    runner(work)  # PyTorch chooses and caches its plan
    once_ms = min(runner(lambda: event_ms(work)) for _ in range(3))
    repetitions = max(3, min(MAX_REPETITIONS, int(GRAPH_MS / once_ms) + 1))

    def capture() -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repetitions):
                work()
        return graph

    graph = runner(capture)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def sample() -> float:
        flush.zero_()
        return event_ms(graph.replay) / repetitions

    return sample


@dataclass(frozen=True)
class _Rounds:
    medians: list[float]
    winner: int  # PyTorch's better side: 1 or 2
    ratio: float
    low: float
    high: float


def _rounds(samplers: Sequence[Callable[[], float]]) -> _Rounds:
    """Interleaved rounds, every side first in turn."""
    samples: list[list[float]] = [[] for _ in samplers]
    for turn in range(ROUNDS):
        for i in range(len(samplers)):
            side = (turn + i) % len(samplers)
            samples[side].append(samplers[side]())
    medians = [statistics.median(times) for times in samples]
    winner = 1 if medians[1] <= medians[2] else 2
    ratios = [b / a for a, b in zip(samples[0], samples[winner], strict=True)]
    low, high = bootstrap_interval(ratios)
    return _Rounds(medians, winner, statistics.median(ratios), low, high)


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the median (Efron, "Bootstrap methods", 1979)."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def _kernel_names(
    work: Callable[[], object], device: str, runner: Callable[[Callable[[], Any]], Any]
) -> list[str]:
    """The GPU kernels of one call, longest first; none on the CPU."""
    if not device.startswith("cuda"):
        return []
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        runner(work)
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.device_type.name == "CUDA"]
    return [e.key for e in sorted(events, key=lambda e: -e.self_device_time_total)]


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


def measure_overhead(progress: Progress | None = None) -> Iterator[Overhead]:
    """Host time per call, with warm caches, of small channels-last problems.

    Three loops: bare executes of the plan, our ``conv2d`` and ``F.conv2d``; then forward and
    backward of both. Our side runs the first engine of cuDNN's heuristic, as PyTorch does.

    Raises:
        RuntimeError: There is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("bench --overhead: PyTorch finds no CUDA device")
    cases = [(line, dtype) for line in OVERHEAD_PROBLEMS for dtype in OVERHEAD_DTYPES]
    for done, (line, dtype) in enumerate(cases):
        problem = rewrite(line, dtype=dtype)
        if progress is not None:
            progress.problem(done, len(cases), problem)
        yield _overhead(problem)


def _heuristic_first(problem: str) -> str:
    """The first engine that cuDNN's heuristic names and that builds: PyTorch's choice."""
    for candidate in _C.candidates(problem, "cuda", "backends=graph"):
        if candidate["status"] == "ok" and candidate["source"].startswith("heuristic"):
            return candidate["algorithm"]
    raise RuntimeError(f"bench --overhead: cuDNN's heuristic names no engine for {problem}")


def _overhead(problem: str) -> Overhead:
    pins = {
        name: _heuristic_first(rewrite(problem, op=f"conv_{name}"))
        for name in ("fwd", "bwd_data", "bwd_filter")
    }
    default = {
        name: _C.choose(rewrite(problem, op=f"conv_{name}"), "cuda")["algorithm"] for name in pins
    }
    pinned = default != pins
    policy = ";".join(f"{name}={pin}" for name, pin in pins.items()) if pinned else None
    arguments = convolution_arguments(problem)
    geometry = (
        arguments["stride"],
        arguments["padding"],
        arguments["dilation"],
        arguments["groups"],
    )
    tensors = _C.scratch(problem, "cuda")
    x, w = tensors["x"], tensors["w"]
    convolution = torch.ops.torch_cudnn_ext.conv2d.default

    def ours() -> Tensor:
        result: Tensor = convolution(x, w, None, *geometry, policy=policy)
        return result

    def pytorch() -> Tensor:
        return F.conv2d(x, w, None, *geometry)

    def bare() -> float:
        return _C.execute_loop(problem, pins["fwd"], tensors, OVERHEAD_CALLS) * 1e6

    same = _kernel_names(ours, "cuda", _here) == _kernel_names(pytorch, "cuda", _here)
    forward = _interleaved(
        [bare, lambda: _loop_us(ours), lambda: _loop_us(pytorch)],
    )
    leaf_x, leaf_w = (t.detach().clone().requires_grad_() for t in (x, w))
    gradient = torch.ones_like(pytorch())

    def ours_training() -> None:
        y = convolution(leaf_x, leaf_w, None, *geometry, policy=policy)
        torch.autograd.grad(y, (leaf_x, leaf_w), gradient)

    def pytorch_training() -> None:
        y = F.conv2d(leaf_x, leaf_w, None, *geometry)
        torch.autograd.grad(y, (leaf_x, leaf_w), gradient)

    training = _interleaved([lambda: _loop_us(ours_training), lambda: _loop_us(pytorch_training)])
    return Overhead(problem, pins["fwd"], pinned, same, *forward, *training)


def _loop_us(work: Callable[[], object]) -> float:
    """Host microseconds a call; the GPU's queue is empty at the start and never full."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(OVERHEAD_CALLS):
        work()
    return (time.perf_counter() - began) * 1e6 / OVERHEAD_CALLS


def _interleaved(sides: Sequence[Callable[[], float]]) -> list[float]:
    samples: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for turn in range(OVERHEAD_ROUNDS):
        for i in range(len(sides)):
            index = (turn + i) % len(sides)
            samples[index].append(sides[index]())
    return [statistics.median(values) for values in samples]


# Output.


def _column(
    heading: str, cell: Callable[[report.Record], str], right: bool = True
) -> report.Column:
    return report.Column(heading, cell, right)


def _short(kernels: Sequence[str]) -> str:
    """The kernel that takes longest, and how many more there are."""
    if not kernels:
        return ""
    more = f" +{len(kernels) - 1}" if len(kernels) > 1 else ""
    return (kernels[0] if len(kernels[0]) <= 60 else kernels[0][:57] + "...") + more


COMPARISON_COLUMNS = (
    _column("problem", lambda r: r["problem"], right=False),
    _column("calls", lambda r: str(r["count"])),
    _column("tuned", lambda r: r["algorithm"], right=False),
    _column("ms", lambda r: report.milliseconds(r["ours_ms"])),
    _column("PyTorch ms", lambda r: report.milliseconds(r["pytorch_ms"])),
    _column("PyTorch's best", lambda r: r["pytorch_setting"], right=False),
    _column("PyTorch's kernels", lambda r: _short(r["pytorch_kernels"]), right=False),
    _column("ratio", lambda r: f"{r['ratio']:.3f}"),
    _column("95 %", lambda r: f"{r['ratio_low']:.3f} .. {r['ratio_high']:.3f}"),
)
OVERHEAD_COLUMNS = (
    _column("problem", lambda r: r["problem"], right=False),
    _column("algorithm", lambda r: r["algorithm"], right=False),
    _column("pinned", lambda r: "yes" if r["pinned"] else "no", right=False),
    _column("same kernels", lambda r: "yes" if r["same_kernels"] else "no", right=False),
    _column("bare us", lambda r: f"{r['bare_us']:.2f}"),
    _column("ours us", lambda r: f"{r['ours_us']:.2f}"),
    _column("PyTorch us", lambda r: f"{r['pytorch_us']:.2f}"),
    _column("ours adds", lambda r: f"{r['ours_us'] - r['bare_us']:.2f}"),
    _column("PyTorch adds", lambda r: f"{r['pytorch_us'] - r['bare_us']:.2f}"),
    _column("ratio", lambda r: f"{r['forward_ratio']:.3f}"),
    _column("fwd+bwd ours", lambda r: f"{r['ours_training_us']:.2f}"),
    _column("PyTorch", lambda r: f"{r['pytorch_training_us']:.2f}"),
    _column("ratio", lambda r: f"{r['training_ratio']:.3f}"),
)


def comparison_text(comparisons: Sequence[Comparison], format: str) -> str | list[report.Table]:
    """Comparisons in a format: tables for ``table``, text for ``json``, ``csv``, ``markdown``."""
    records = [dataclasses.asdict(c) for c in comparisons]
    means = geometric_means(comparisons)
    if format == "json":
        return json.dumps({"comparisons": records, "geometric_means": means}, indent=1)
    if format == "csv":
        return _csv(records)
    words = [f"geometric mean over {name}: {mean:.3f}" for name, mean in means.items()]
    table = _tables("tuned against PyTorch's best", COMPARISON_COLUMNS, records, "; ".join(words))
    return report.tables_markdown(table) if format == "markdown" else table


def overhead_text(results: Sequence[Overhead], format: str) -> str | list[report.Table]:
    """Host times in a format, as `comparison_text`."""
    records = [
        dataclasses.asdict(r)
        | {"forward_ratio": r.forward_ratio, "training_ratio": r.training_ratio}
        for r in results
    ]
    if format == "json":
        return json.dumps({"overhead": records}, indent=1)
    if format == "csv":
        return _csv(records)
    footer = ""
    if results:
        forward = statistics.median(r.forward_ratio for r in results)
        training = statistics.median(r.training_ratio for r in results)
        footer = f"medians of the ratios: forward {forward:.3f}, forward+backward {training:.3f}"
    table = _tables("host time per call", OVERHEAD_COLUMNS, records, footer)
    return report.tables_markdown(table) if format == "markdown" else table


def _tables(
    title: str, columns: Sequence[report.Column], records: Sequence[report.Record], footer: str
) -> list[report.Table]:
    rows = [[column.cell(record) for column in columns] for record in records]
    return [report.Table(title, columns, rows, footer)]


def _csv(records: Sequence[report.Record]) -> str:
    out = io.StringIO()
    names = list(records[0]) if records else []
    writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: " ".join(v) if isinstance(v, list) else v for k, v in record.items()})
    return out.getvalue()
