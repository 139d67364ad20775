"""One problem to measure, in this process or in one that works for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from torch_cudnn_ext import _C, knobs

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

    Measured = tuple[list[Measurement], list[TableEntry]]

GPU_MIN_SAMPLES = 11


@dataclass(frozen=True)
class Task:
    """One problem to measure, and how.

    ``time_budget_s`` 0 is no limit. If ``algorithms`` names none, all are measured and the tuning
    table keeps their ranking; else it keeps nothing. ``prunes`` leaves out configurations of an
    engine that is compiled at run time, if others of it are slow. ``energy`` also measures the
    energy of the fastest.
    """

    problem: str
    device: str
    policy: str
    time_budget_s: float = 0.0
    knob_search: bool = False
    min_samples: int = GPU_MIN_SAMPLES
    algorithms: tuple[str, ...] = ()
    prunes: bool = False
    energy: bool = False


@dataclass(frozen=True)
class Observers:
    """What is told while a task is measured, and what earlier attempts lost.

    Attributes:
        progress: Takes how many algorithms are finished, how many there are, and the next one.
        before_run: Takes an algorithm before it is built, first run and sampled, or an empty text
            before other work.
        failed: Algorithms that are not tried, and what happened to them.
    """

    progress: Callable[[int, int, str], None] | None = None
    before_run: Callable[[str], None] | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


def measure_here(task: Task, observers: Observers | None = None) -> list[Measurement]:
    """A task's measurements, best first."""
    told = observers or Observers()
    return _C.measure(
        task.problem,
        task.device,
        task.policy,
        algorithms=list(task.algorithms),
        time_budget_s=task.time_budget_s,
        knob_search=task.knob_search,
        min_samples=task.min_samples,
        energy=task.energy,
        progress=told.progress,
        prunes=task.prunes,
        failed=dict(told.failed),
        before_run=told.before_run,
    )


def as_here(task: Task) -> Task:
    """The task with all levels of policy and the current GPU of this process at this moment."""
    policy = _C.policy_for(task.problem, task.policy)
    device = f"cuda:{torch.cuda.current_device()}" if task.device == "cuda" else task.device
    return replace(task, policy=policy, device=device)


def fp32_switches() -> list[Any]:
    """PyTorch's switches whose ``fp32_precision`` says whether float32 may be TF32."""
    cudnn: Any = torch.backends.cudnn
    return [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]


def current_switches() -> dict[str, Any]:
    """The settings that PyTorch's own kernels obey, for `obey_switches` of another process."""
    return {
        "backends": [getattr(place, name) for place, name in _backend_switches()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "knobs": {"verbose": knobs._of_process("verbose")},
        "ignores_other_work": _C.ignores_other_work(),
    }


def _backend_switches() -> Iterable[tuple[Any, str]]:
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    products: Any = torch.backends.cuda.matmul
    return [
        *((cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
        (mkldnn, "enabled"),
        (products, "allow_fp16_reduced_precision_reduction"),
        (products, "allow_bf16_reduced_precision_reduction"),
        (products, "allow_fp16_accumulation"),
        *((switch, "fp32_precision") for switch in fp32_switches()),
    ]


# In the other processes.


def obey_switches(lock: str, switches: dict[str, Any]) -> None:
    """Measure as the process does that has these switches, by turns with those of the lock."""
    _C.set_measurement_lock(lock)
    # The tasks' policies hold the knobs of the environment. No process isolates for another.
    _C.set_knobs("", **switches["knobs"], isolate="never")
    _C.set_tuning_store(None)  # the other process keeps what is measured
    _C.set_workspace_reserve([])  # the environment's is for one process
    _C.ignore_other_work(switches["ignores_other_work"])
    torch.set_num_threads(switches["threads"])
    torch.use_deterministic_algorithms(switches["deterministic"], warn_only=switches["warn_only"])
    for (place, name), value in zip(_backend_switches(), switches["backends"], strict=True):
        setattr(place, name, value)


def measure_elsewhere(task: Task, observers: Observers | None = None) -> Measured:
    """A task's measurements, and the entries of the tuning table that keep them."""
    _C.table_clear()
    try:
        return measure_here(task, observers), _C.table_export()
    finally:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # for the other processes
