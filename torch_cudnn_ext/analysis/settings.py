"""How problems are measured: the device, the policy's constraints, the time and the samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._defaults import DEFAULT_TARGET
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.journal import Work
from torch_cudnn_ext.tuning.measure import (
    check_knob_search,
    check_time_budget,
    checked_device,
)
from torch_cudnn_ext.tuning.tasks import GPU_MIN_SAMPLES, Task

CPU_TIME_BUDGET_S = 2.0
CPU_MIN_SAMPLES = 7

# The policy fields that decide which algorithms are admissible, and how they rank. The algorithms
# that a policy chooses are not among them, since everything is measured; nor is the workspace cap,
# since the tables show each algorithm's workspace.
MEASURED_CONSTRAINTS = (
    *("deterministic", "allow_tf32", "allow_down_convert", "allow_reduced_range"),
    *("prefer", "replay", "backends", "compute"),
)


@dataclass(frozen=True)
class Settings:
    """How to measure; `make_settings` fills in what depends on the machine."""

    device: str
    target: str | None
    policy: str
    time_budget_s: float
    min_samples: int
    knob_search: bool
    max_workspace_bytes: int | None
    energy: bool = False

    @property
    def measured_policy(self) -> str:
        """The policy's constraints, without the algorithms it chooses and its workspace cap."""
        return only_fields(self.policy, MEASURED_CONSTRAINTS)

    def task(self, problem: str, policy: str) -> Task:
        """The measurement of one problem under a policy."""
        budget, search = self.time_budget_s, self.knob_search
        return Task(
            problem, self.device, policy, budget, search, self.min_samples, energy=self.energy
        )

    def work(self, command: str, problem: str) -> Work:
        """What a journal keeps a finished measurement of the problem under."""
        words = [
            command,
            f"target={self.target}",
            _C.policy_for(problem, self.policy),
            f"knob_search={self.knob_search}",
            f"time_budget_s={self.time_budget_s}",
            f"min_samples={self.min_samples}",
            *(["energy"] if self.energy else []),
            *(f"{name}={_C.versions()[name]}" for name in ("torch", "cudnn")),
        ]
        return _C.device_fingerprint(self.device), problem, " | ".join(words)


def make_settings(
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
    energy: bool = False,
) -> Settings:
    """Check and complete the settings of a measurement.

    Args:
        device: ``cpu`` or ``cuda[:i]``. The default is the GPU if there is one and no target is
            given, and otherwise the CPU.
        target: A GPU that need not be there (``h200``): what it would accept is listed, and the
            CPU's algorithms are measured instead. The default without a GPU and a ``device``.
        policy: Constraints that hold for everything measured, and the decision that is marked.
            Single words of a text mean what they mean to `enable`. ``max_workspace`` excludes
            nothing from the measurements: it caps the summary, and what a target accepts. A cap of
            knobs or flags holds here as elsewhere.
        time_budget_s: Seconds a problem; 0 is no limit, which is the default on a GPU. On the CPU
            the default is 2.
        min_samples: Least number of timed runs of what may be the fastest, while the time budget
            lasts. One that takes twice as long is dropped after two.
        knob_search: Also search the engine knobs of the best engines.
        energy: Also measure the energy of the fastest algorithms, on a GPU.

    Raises:
        TypeError: ``energy`` is no bool.
        ValueError: An argument is not what is described above.
        RuntimeError: PyTorch does not find the CUDA device that was asked for.
    """
    if target is not None and device is not None and str(device) != "cpu":
        raise ValueError(f"device: got {str(device)!r} together with target {target!r}, wanted one")
    if target is not None:
        try:
            _C.device_fingerprint(f"target:{target}")
        except ValueError as error:
            raise ValueError(f"target: {str(error).removeprefix('device: ')}") from error
    chosen = checked_device(device if target is None else "cpu")
    on_cpu = chosen == "cpu"
    if device is None and target is None and on_cpu:
        target = DEFAULT_TARGET
    if time_budget_s is not None:
        check_time_budget(time_budget_s)
    is_count = isinstance(min_samples, int) and not isinstance(min_samples, bool)
    if min_samples is not None and (not is_count or min_samples < 1):
        raise ValueError(f"min_samples: got {min_samples!r}, wanted at least 1")
    check_knob_search(knob_search, chosen)
    check_flag("profile", "energy", energy)
    if energy and on_cpu:
        raise ValueError("energy: got True on cpu, which does not tell its energy, wanted a GPU")
    text = text_for_all(policy)
    default_budget_s = CPU_TIME_BUDGET_S if on_cpu else 0.0
    return Settings(
        device=chosen,
        target=target,
        policy=text,
        time_budget_s=default_budget_s if time_budget_s is None else time_budget_s,
        min_samples=min_samples or (CPU_MIN_SAMPLES if on_cpu else GPU_MIN_SAMPLES),
        knob_search=knob_search,
        max_workspace_bytes=_C.workspace_cap(text, chosen),
        energy=energy,
    )
