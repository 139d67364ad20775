"""The host time of an operator's call, compared with PyTorch's."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import call

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_cudnn_ext import _C
from torch_cudnn_ext._timing import current, kernel_names
from torch_cudnn_ext._workload.problems import convolution_arguments, rewrite
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, Table
from torch_cudnn_ext.bench.rounds import samples
from torch_cudnn_ext.models.enable import enabled
from torch_cudnn_ext.tuning.measure import BASELINE, Progress, check_progress

ROUNDS = 31
CALLS = 100  # so few that the GPU's queue is never full
PROBLEMS = (
    "conv_fwd x=f32[8,16,8,8]:nhwc w=f32[16,16,3,3]:nhwc pad=1 stride=1 dilation=1 groups=1 "
    "compute=f32",
    "conv_fwd x=f32[2,64,14,14]:nhwc w=f32[64,64,1,1]:nhwc pad=0 stride=1 dilation=1 groups=1 "
    "compute=f32",
    "conv_fwd x=f32[4,32,16,16]:nhwc w=f32[64,32,3,3]:nhwc pad=1 stride=2 dilation=1 groups=1 "
    "compute=f32",
)
GPU_DTYPES = ("f32", "f16", "bf16")


@dataclass
class Overhead:
    """Host time per call on one small problem, in microseconds."""

    problem: str
    algorithm: str
    pinned: bool  # whether our call carries a policy, which it needs unless the engine is default
    same_kernels: bool | None  # None on the CPU
    bare_us: float
    ours_us: float
    pytorch_us: float
    enabled_us: float  # F.conv2d under enable()
    ours_training_us: float
    pytorch_training_us: float
    enabled_training_us: float
    # The next three: autograd runs the backward pass on the calling thread.
    ours_one_thread_us: float
    pytorch_one_thread_us: float
    enabled_one_thread_us: float

    def ratios(self) -> dict[str, float | None]:
        """Our times by PyTorch's.

        ``forward_ratio`` compares what the operators add to the bare execute. It is ``None`` if
        PyTorch's adds nothing: on the CPU the arithmetic may hide it.
        """
        added_us, pytorch_adds_us = self.ours_us - self.bare_us, self.pytorch_us - self.bare_us
        return {
            "forward_ratio": added_us / pytorch_adds_us if pytorch_adds_us > 0 else None,
            "training_ratio": self.ours_training_us / self.pytorch_training_us,
            "enabled_ratio": self.enabled_us / self.pytorch_us,
            "enabled_training_ratio": self.enabled_training_us / self.pytorch_training_us,
            "one_thread_ratio": self.ours_one_thread_us / self.pytorch_one_thread_us,
            "enabled_one_thread_ratio": self.enabled_one_thread_us / self.pytorch_one_thread_us,
        }


def overhead_problems(device: str) -> list[str]:
    """The problem lines of `measure_overhead`."""
    dtypes = GPU_DTYPES if device.startswith("cuda") else ("f32",)
    return [rewrite(line, dtype=dtype) for line in PROBLEMS for dtype in dtypes]


def measure_overhead(device: str, progress: Progress | None = None) -> Iterator[Overhead]:
    """Host time per call, with warm caches, of small channels-last problems.

    Four loops are timed: bare executes of the plan, our ``conv2d``, and ``F.conv2d`` as it is and
    under `enable`. Then forward and backward of the last three are timed, first as autograd runs
    them by default, on a GPU with a hand-over to its thread and back, then all on the calling
    thread (``torch.autograd.set_multithreading_enabled(False)``). On a GPU our side runs the first
    engine of cuDNN's heuristic, as PyTorch does, and nothing waits for the GPU. On the CPU it runs
    PyTorch's own convolution, in f32 only, and all times include the arithmetic.

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
    """The first engine of cuDNN's heuristic that can be built; on the CPU the baseline."""
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
        return _C.execute_loop(problem, pins["fwd"], tensors, CALLS) * 1e6

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
    """A function that gives the host microseconds a call; it starts with an empty GPU queue."""

    def loop() -> float:
        work()  # warms the caches under this policy
        _wait(device)
        began = time.perf_counter()
        for _ in range(CALLS):
            work()
        return (time.perf_counter() - began) * 1e6 / CALLS

    return loop


def _interleaved(sides: Sequence[Callable[[], float]]) -> list[float]:
    """The median of each side, after all are warm."""
    for side in sides:
        side()
    return [*map(statistics.median, samples(sides, ROUNDS, math.inf))]


def _times(heading: str, name: str) -> Column:
    return Column(heading, lambda r: f"{r[name]:.2f}", True)


def _added(heading: str, name: str) -> Column:
    return Column(heading, lambda r: f"{r[name] - r['bare_us']:.2f}", True)


def _ratios(name: str) -> Column:
    return Column("ratio", lambda r: "" if r[name] is None else f"{r[name]:.3f}", True)


_SAME_KERNELS = {True: "yes", False: "no", None: ""}
COLUMNS = (
    Column("problem", lambda r: r["problem"]),
    ALGORITHM,
    Column("pinned", lambda r: "yes" if r["pinned"] else "no"),
    Column("same kernels", lambda r: _SAME_KERNELS[r["same_kernels"]]),
    _times("bare us", "bare_us"),
    _times("ours us", "ours_us"),
    _times("PyTorch us", "pytorch_us"),
    _added("ours adds", "ours_us"),
    _added("PyTorch adds", "pytorch_us"),
    _ratios("forward_ratio"),
    _times("fwd+bwd ours", "ours_training_us"),
    _times("PyTorch", "pytorch_training_us"),
    _ratios("training_ratio"),
    _times("enable() us", "enabled_us"),
    _ratios("enabled_ratio"),
    _times("fwd+bwd enable()", "enabled_training_us"),
    _ratios("enabled_training_ratio"),
    _times("one thread ours", "ours_one_thread_us"),
    _times("PyTorch", "pytorch_one_thread_us"),
    _ratios("one_thread_ratio"),
    _times("enable()", "enabled_one_thread_us"),
    _ratios("enabled_one_thread_ratio"),
)


_RATIO_WORDS = {
    "forward_ratio": "forward",
    "training_ratio": "forward+backward",
    "enabled_ratio": "enable() forward",
    "enabled_training_ratio": "enable() forward+backward",
    "one_thread_ratio": "forward+backward on one thread",
    "enabled_one_thread_ratio": "enable() on one thread",
}


def overhead_text(results: Sequence[Overhead], format: str) -> str | list[Table]:
    """Host times in a format; see `formatted`."""
    records = [dataclasses.asdict(r) | r.ratios() for r in results]
    words = []
    for name, word in _RATIO_WORDS.items():
        if known := [r[name] for r in records if r[name] is not None]:
            words.append(f"{word} {statistics.median(known):.3f}")
    footer = f"medians of the ratios: {', '.join(words)}" if words else ""
    fields, title = [*field_names(Overhead), *_RATIO_WORDS], "host time per call"
    return formatted(format, {"overhead": records}, title, COLUMNS, records, fields, footer)
