"""Whole unmodified networks, tuned through `enable`, compared with eager PyTorch.

A training step clears the gradients, so that memory comes back to the same addresses, and runs
forward and backward of the sum of the outputs. Inference is a forward without gradients in eval
mode. PyTorch keeps plans as long as a process lives, and one autograd thread serves all of it:
``torch.backends.cudnn.benchmark`` on and off therefore each get a fresh process, in which both
sides take turns. The setting in which ours gains less counts.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from torch_cudnn_ext import nn, tuning
from torch_cudnn_ext._defaults import IMAGE_SIZE, NETWORK_BATCH, UNET_BATCH
from torch_cudnn_ext._grammar import CONSTRAINTS
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._timing import host_ms
from torch_cudnn_ext._workload.models import load_model
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.running import call_model, sum_of_outputs
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.tables import Column, Table
from torch_cudnn_ext.bench import rounds
from torch_cudnn_ext.models.enable import enabled
from torch_cudnn_ext.tuning.measure import Progress, check_jobs, check_progress
from torch_cudnn_ext.tuning.tasks import fp32_switches
from torch_cudnn_ext.tuning.worker_pool import worker_pool

C = TypeVar("C")  # a comparison

# The fp32_precision of convolutions, recurrent networks and matrix products; the type of autocast.
PRECISIONS: dict[str, tuple[str, torch.dtype | None]] = {
    "f32": ("ieee", None),
    "tf32": ("tf32", None),
    "f16": ("ieee", torch.float16),
    "bf16": ("ieee", torch.bfloat16),
}
Autocast = Callable[[], AbstractContextManager[None]]
GRACE_S = 10.0  # in which a process writes what it tuned
SAMPLE_MS = 100.0  # a sample has as many steps as fit into this time
# Each side first runs so many steps, so many times in turns. Addresses repeat only after memory is
# laid out, and calls of cuDNN are recorded at their fifth time.
WARM_STEPS, WARM_TURNS = 6, 2


@dataclass
class NetworkComparison:
    """One network in one setting.

    ``batch`` is the first size of its first tensor, ``None`` if it takes none.
    ``ratio`` is PyTorch's time by ours, above 1 if ours is faster, with a 95 % interval.
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
class NetworkSettings:
    """How to compare.

    Attributes:
        channels_last: Whether networks and images are channels-last.
        device: ``cpu`` or ``cuda[:i]``.
        policy: The policy of `enable`.
        batch: Images at a time, unless a network's callable gives inputs; by default 64, of
            ``unet`` 16.
        image_size: Their height and width in pixels.
        jobs: How many processes tune, before anything is compared.
        knob_search: Also search the engine knobs of the best engines.
        time_budget_s: Seconds that tuning takes a problem at most; 0 is no limit. The default is no
            limit with several jobs or a knob search, and otherwise autotune's own.
    """

    channels_last: bool
    device: str
    policy: str = "autotune"
    batch: int | None = None
    image_size: int = IMAGE_SIZE
    jobs: int = 1
    knob_search: bool = False
    time_budget_s: float | None = None


def compare_networks(
    networks: Sequence[str],
    precisions: Sequence[str],
    settings: NetworkSettings,
    progress: Progress | None = None,
    table: str | Path | None = None,
) -> Iterator[NetworkComparison]:
    """Compare network by network, a training step and inference.

    Args:
        networks: As `load_model` takes them.
        precisions: Of `PRECISIONS`; half types by autocast.
        settings: How to compare.
        progress: Told of every network, precision and mode.
        table: A file of the tuning table to begin with, if it exists, and to add to.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: ``jobs`` is less than 1.
        RuntimeError: A network raised something, or its process was killed.
    """
    yield from each_compared(
        _compare_sides,
        [*product(networks, precisions, ("train", "infer"))],
        settings,
        progress,
        table,
    )


def each_compared(
    compare: Callable[[str, str, str, NetworkSettings, Path], C],
    work: Sequence[tuple[str, str, str]],
    settings: NetworkSettings,
    progress: Progress | None,
    table: str | Path | None,
) -> Iterator[C]:
    """What ``compare`` gives for each network, precision and mode, and for the file of a table.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
        ValueError: ``jobs`` is less than 1.
        RuntimeError: A network raised something, or its process was killed.
    """
    check_jobs(settings.jobs)
    check_progress(progress)
    with TemporaryDirectory() as folder:
        # A file, so that no process tunes what an earlier one did.
        file = Path(folder, "table.jsonl") if table is None else Path(table)
        for done, (network, precision, mode) in enumerate(work):
            if progress is not None:
                progress.problem(done, len(work), f"{network} {precision} {mode}")
            try:
                compared = compare(network, precision, mode, settings, file)
            except Exception as error:  # a network may raise any
                said = f"{network} raised {type(error).__name__}: {error}"
                raise RuntimeError(said) from error
            yield compared


def _compare_sides(*one: Any) -> NetworkComparison:
    sides = [_in_fresh_process(benchmark, *one) for benchmark in (False, True)]
    return min(sides, key=lambda side: side.ratio)


def _in_fresh_process(benchmark: bool, *one: Any) -> NetworkComparison:
    with worker_pool(1, grace_s=GRACE_S) as pool:
        return pool.submit(_compare, benchmark, *one).result()


@dataclass(frozen=True)
class Subject:
    """A network as it is compared, with its inputs.

    ``autocast`` makes the context in which its forward runs.
    """

    model: torch.nn.Module
    inputs: Any
    train: bool
    autocast: Autocast

    def tune(self, settings: NetworkSettings) -> None:
        """Tune all its problems now, if the settings need more than a tuned call does."""
        if settings.jobs > 1 or settings.knob_search or settings.time_budget_s is not None:
            with self.autocast():
                tuning.tune_model(
                    self.model,
                    self.inputs,
                    train=self.train,
                    policy=only_fields(settings.policy, (*CONSTRAINTS,)),
                    time_budget_s=settings.time_budget_s or 0,
                    knob_search=settings.knob_search,
                    jobs=settings.jobs,
                )

    def batch(self) -> int | None:
        """The first size of the first input, ``None`` without tensors."""
        first = next(iter(tensors_in(self.inputs)), None)
        return first.shape[0] if first is not None and first.dim() else None


def subject_of(
    benchmark: bool, network: str, precision: str, mode: str, settings: NetworkSettings
) -> Subject:
    """Make a network, and set the switches of its comparison in this process.

    Raises:
        ValueError: There is no such network, its tensors are not float32, or a module is ours.
    """
    torch.backends.cudnn.benchmark = benchmark
    fp32_precision, dtype = PRECISIONS[precision]
    for switch in fp32_switches():
        switch.fp32_precision = fp32_precision
    torch.manual_seed(0)
    model, inputs = load_model(
        network,
        batch=settings.batch or (UNET_BATCH if network == "unet" else NETWORK_BATCH),
        image_size=settings.image_size,
        channels_last=settings.channels_last,
        device=settings.device,
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
    train = mode == "train"
    model.train(train)
    kind = torch.device(settings.device).type
    autocast = partial(torch.autocast, kind, dtype, enabled=dtype is not None)
    return Subject(model, inputs, train, autocast)


def _compare(
    benchmark: bool, network: str, precision: str, mode: str, settings: NetworkSettings, table: Path
) -> NetworkComparison:
    subject = subject_of(benchmark, network, precision, mode, settings)
    ours = partial(enabled, settings.policy)
    step = partial(run_step, subject.model, subject.inputs, subject.train, subject.autocast)
    if table.exists():
        tuning.import_table(table)
    try:
        if not benchmark:  # the second process finds the results in the file
            subject.tune(settings)
        with ours():
            step()
    finally:
        tuning.merge_table(table)
    sides = (ours, nullcontext)
    for side in sides * WARM_TURNS:
        with side():
            for _ in range(WARM_STEPS):
                step()
    result = rounds.compare_sides([timer_of(step, side, settings.device) for side in sides])
    return NetworkComparison(
        network=network,
        batch=subject.batch(),
        precision=precision,
        layout="nhwc" if settings.channels_last else "nchw",
        mode=mode,
        pytorch_setting=f"benchmark={benchmark}",
        **result.fields(),
    )


def run_step(model: torch.nn.Module, inputs: object, train: bool, autocast: Autocast) -> None:
    """A training step, or inference."""
    if train:
        model.zero_grad()
    with torch.set_grad_enabled(train), autocast():
        output = call_model(model, inputs)
    if train:
        torch.autograd.backward(sum_of_outputs(output))


def timer_of(
    step: Callable[[], None], side: Callable[[], AbstractContextManager[None]], device: str
) -> Callable[[], float]:
    """Milliseconds a step, of the host and the GPU together; the clock starts in a warm side."""

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


SUBJECT_COLUMNS = (
    Column(
        "network",
        lambda r: r["network"] + (f" batch {r['batch']}" if r["batch"] is not None else ""),
    ),
    Column("setting", lambda r: f"{r['precision']} {r['layout']}"),
    Column("mode", lambda r: r["mode"]),
)
COLUMNS = (
    *SUBJECT_COLUMNS,
    *rounds.TIME_COLUMNS,
    rounds.SETTING_COLUMN,
    *rounds.RATIO_COLUMNS,
)


def comparison_text(comparisons: Sequence[NetworkComparison], format: str) -> str | list[Table]:
    """Comparisons in a format; see `formatted`."""
    records = [dataclasses.asdict(comparison) for comparison in comparisons]
    ratios = [comparison.ratio for comparison in comparisons]
    footer = f"geometric mean: {statistics.geometric_mean(ratios):.3f}" if ratios else ""
    title, names = "unmodified networks, enable() against eager", field_names(NetworkComparison)
    data = {"comparisons": records}
    return formatted(format, data, title, COLUMNS, records, names, footer)
