"""Whole networks as they are, tuned through `enable`, side by side with eager PyTorch.

A training step is forward and backward, of the sum of the outputs, and clears the gradients first,
so that memory is found again where it was; inference is a forward without gradients in eval mode.
PyTorch keeps plans for as long as a process lives, and autograd's thread serves all of it:
``torch.backends.cudnn.benchmark`` on and off each get a fresh process, in which both sides take
turns. That setting counts in which ours gains less.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from torch_cudnn_ext import nn, tuning
from torch_cudnn_ext._policy_text import CONSTRAINTS, only_fields
from torch_cudnn_ext._timing import host_ms
from torch_cudnn_ext._workload.models import IMAGE_SIZE, load_model
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.running import call_model, sum_of_outputs
from torch_cudnn_ext.analysis import tables as report
from torch_cudnn_ext.bench.layers import RATIO_COLUMNS, SETTING_COLUMN, TIME_COLUMNS, judged
from torch_cudnn_ext.models.enable import enabled
from torch_cudnn_ext.tuning.measure import Progress, check_jobs, check_progress, fp32_switches
from torch_cudnn_ext.tuning.worker_pool import worker_pool

# What matrix products, convolutions and recurrent networks may use, and the type of autocast.
PRECISIONS: dict[str, tuple[str, torch.dtype | None]] = {
    "f32": ("ieee", None),
    "tf32": ("tf32", None),
    "f16": ("ieee", torch.float16),
    "bf16": ("ieee", torch.bfloat16),
}
Autocast = Callable[[], AbstractContextManager[None]]
NETWORK_BATCH = 64
GRACE_S = 10.0  # for what was tuned to be written
SAMPLE_MS = 100.0  # as many steps are timed at once as this holds
# Each side steps so often before, and this in turns: memory must lie as it will before a call comes
# again with the same addresses, and calls of cuDNN are recorded at their fifth time.
WARM_STEPS, WARM_TURNS = 6, 2


@dataclass
class NetworkComparison:
    """One network in one setting.

    ``batch`` is the first size of its first tensor, ``None`` where it takes none.
    ``ratio`` is PyTorch's time by ours, above 1 where ours is faster, with a 95 % interval.
    """

    network: str
    batch: int | None
    precision: str
    layout: str
    mode: str  # "train" or "infer"
    ours_ms: float
    pytorch_ms: float
    pytorch_setting: str
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class _Task:
    network: str
    batch: int
    image_size: int
    precision: str
    channels_last: bool
    mode: str
    device: str
    policy: str
    jobs: int = 1
    knob_search: bool = False
    time_budget_s: float | None = None


def compare_networks(
    networks: Sequence[str],
    precisions: Sequence[str],
    channels_last: bool,
    device: str,
    policy: str = "autotune",
    batch: int = NETWORK_BATCH,
    image_size: int = IMAGE_SIZE,
    progress: Progress | None = None,
    jobs: int = 1,
    choices: str | Path | None = None,
    knob_search: bool = False,
    time_budget_s: float | None = None,
) -> Iterator[NetworkComparison]:
    """Compare network by network, a training step and inference.

    Args:
        networks: As `load_model` takes them.
        precisions: Of `PRECISIONS`; half types by autocast.
        channels_last: The layout of networks and images.
        device: ``cpu`` or ``cuda[:i]``.
        policy: Of `enable`.
        batch: Images at a time, unless a network's callable gives inputs.
        image_size: Their height and width in pixels.
        progress: Told of every setting.
        jobs: How many processes tune, before anything is compared.
        choices: A file of `tuning.export_table` to begin with, where there is one, and to keep
            what is tuned.
        knob_search: Also search the knobs of the best engines.
        time_budget_s: Seconds that tuning takes a problem at most; 0 is no limit. By default there
            is none with several jobs or a knob search, and otherwise autotune's own.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: ``jobs`` is less than 1.
        RuntimeError: A network raised something, or its process was killed.
    """
    check_jobs(jobs)
    check_progress(progress)
    tasks = [
        _Task(
            network=network,
            batch=batch,
            image_size=image_size,
            precision=precision,
            channels_last=channels_last,
            mode=mode,
            device=device,
            policy=policy,
            jobs=jobs,
            knob_search=knob_search,
            time_budget_s=time_budget_s,
        )
        for network in networks
        for precision in precisions
        for mode in ("train", "infer")
    ]
    with TemporaryDirectory() as folder:
        # So that no process tunes what one before did.
        table = Path(folder, "choices.jsonl") if choices is None else Path(choices)
        for done, task in enumerate(tasks):
            if progress is not None:
                progress.problem(done, len(tasks), f"{task.network} {task.precision} {task.mode}")
            try:
                sides = [_in_fresh_process(task, setting, table) for setting in (False, True)]
            except Exception as error:  # a network may raise any
                said = f"{task.network} raised {type(error).__name__}: {error}"
                raise RuntimeError(said) from error
            yield min(sides, key=lambda side: side.ratio)


def _in_fresh_process(task: _Task, benchmark: bool, choices: Path) -> NetworkComparison:
    with worker_pool(1, grace_s=GRACE_S) as pool:
        return pool.submit(_compare, task, benchmark, choices).result()


def _compare(task: _Task, benchmark: bool, choices: Path) -> NetworkComparison:
    torch.backends.cudnn.benchmark = benchmark
    precision, dtype = PRECISIONS[task.precision]
    for switch in fp32_switches():
        switch.fp32_precision = precision
    torch.manual_seed(0)
    model, inputs = load_model(
        task.network,
        batch=task.batch,
        image_size=task.image_size,
        channels_last=task.channels_last,
        device=task.device,
    )
    tensors = (*model.parameters(), *model.buffers(), *tensors_in(inputs))
    others = {str(t.dtype) for t in tensors if t.is_floating_point()} - {"torch.float32"}
    if others:
        raise ValueError(
            f"its tensors are {', '.join(sorted(others))}, wanted torch.float32: half types are by "
            "autocast here"
        )
    own = [name or "itself" for name, one in model.named_modules() if isinstance(one, nn.Tunable)]
    if own:
        raise ValueError(
            f"of its modules {len(own)} are this package's, such as {own[0]}, wanted PyTorch's "
            "alone to compare with"
        )
    model.train(task.mode == "train")
    kind = torch.device(task.device).type
    autocast = partial(torch.autocast, kind, dtype, enabled=dtype is not None)
    ours = partial(enabled, task.policy)
    step = partial(_step, model, inputs, task.mode == "train", autocast)
    if choices.exists():
        tuning.import_table(choices)
    try:
        ahead = task.jobs > 1 or task.knob_search or task.time_budget_s is not None
        if ahead and not benchmark:  # else the other process did
            with autocast():
                tuning.tune_model(
                    model,
                    inputs,
                    train=task.mode == "train",
                    policy=only_fields(task.policy, (*CONSTRAINTS,)),
                    time_budget_s=task.time_budget_s or 0,
                    knob_search=task.knob_search,
                    jobs=task.jobs,
                )
        with ours():
            step()
    finally:
        tuning.merge_table(choices)
    sides = (ours, nullcontext)
    for side in sides * WARM_TURNS:
        with side():
            for _ in range(WARM_STEPS):
                step()
    timers = [_timer(step, side, task.device) for side in sides]
    result = judged(timers)
    return NetworkComparison(
        network=task.network,
        batch=_batch(inputs),
        precision=task.precision,
        layout="nhwc" if task.channels_last else "nchw",
        mode=task.mode,
        ours_ms=result.medians[0],
        pytorch_ms=result.medians[1],
        pytorch_setting=f"benchmark={benchmark}",
        ratio=result.ratio,
        ratio_low=result.low,
        ratio_high=result.high,
    )


def _batch(inputs: object) -> int | None:
    first = next(iter(tensors_in(inputs)), None)
    return first.shape[0] if first is not None and first.dim() else None


def _step(model: torch.nn.Module, inputs: object, train: bool, autocast: Autocast) -> None:
    if train:
        model.zero_grad()
    with torch.set_grad_enabled(train), autocast():
        output = call_model(model, inputs)
    if train:
        torch.autograd.backward(sum_of_outputs(output))


def _timer(
    step: Callable[[], None], side: Callable[[], AbstractContextManager[None]], device: str
) -> Callable[[], float]:
    """Milliseconds a step, of the host and the GPU together; a side is entered and warm before."""

    def steps(count: int) -> None:
        for _ in range(count):
            step()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    with side():
        steps(1)
        count = max(1, round(SAMPLE_MS / host_ms(partial(steps, 1))))

    def sample() -> float:
        with side():
            steps(1)
            return host_ms(partial(steps, count)) / count

    return sample


COLUMNS = (
    report.Column(
        "network",
        lambda r: r["network"] + (f" batch {r['batch']}" if r["batch"] is not None else ""),
        False,
    ),
    report.Column("setting", lambda r: f"{r['precision']} {r['layout']}", False),
    report.Column("mode", lambda r: r["mode"], False),
    *TIME_COLUMNS,
    SETTING_COLUMN,
    *RATIO_COLUMNS,
)


def comparison_text(
    comparisons: Sequence[NetworkComparison], format: str
) -> str | list[report.Table]:
    """Comparisons in a format: tables for ``table``, text for ``json``, ``csv``, ``markdown``."""
    records = [dataclasses.asdict(comparison) for comparison in comparisons]
    ratios = [comparison.ratio for comparison in comparisons]
    footer = f"geometric mean: {statistics.geometric_mean(ratios):.3f}" if ratios else ""
    title = "unmodified networks, enable() against eager"
    names = report.field_names(NetworkComparison)
    return report.formatted(
        format, {"comparisons": records}, title, COLUMNS, records, names, footer
    )
