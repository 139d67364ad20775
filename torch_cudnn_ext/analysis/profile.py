"""What every algorithm costs on a problem, or on each layer of a network.

    from torch_cudnn_ext import profile, profile_model

    result = profile("conv_fwd x=f16[64,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1 stride=1 "
                     "dilation=1 groups=1 compute=f32")
    result.print()
    policy = result.best(max_workspace="64MiB")

Measuring is the same loop that autotuning runs, with every measurement kept; what is measured here
is therefore what a policy of ``autotune`` takes afterwards.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import field_text, only_fields
from torch_cudnn_ext._workload.journal import Journal
from torch_cudnn_ext._workload.model_state import in_mode
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import (
    PASSES,
    Layer,
    check_passes,
    coupled_problems,
    is_inference,
    merge,
    with_proxies,
)
from torch_cudnn_ext._workload.tracer import is_function
from torch_cudnn_ext.analysis import tables as report
from torch_cudnn_ext.analysis.roofline import Peaks, measured_peaks
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.policy import Policy, PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import (
    BASELINE,
    GPU_MIN_SAMPLES,
    Progress,
    Task,
    check_knob_search,
    check_progress,
    check_time_budget,
    checked_device,
    finite_rows,
    measure_tasks,
)

if TYPE_CHECKING:
    import pandas

    from torch_cudnn_ext._C import Candidate, Measurement, TableEntry

CPU_TIME_BUDGET_S = 2.0
CPU_MIN_SAMPLES = 7

# What decides which algorithms may run at all, and how they rank. Choices are left out, since
# everything is measured; the workspace cap too, since the tables tell what it costs.
_MEASURED_CONSTRAINTS = (
    "deterministic",
    "allow_tf32",
    "allow_down_convert",
    "allow_reduced_range",
    "prefer",
    "backends",
    "compute",
)
_NUMERICS = ("allow_tf32", "allow_down_convert", "allow_reduced_range", "compute")


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

    @property
    def measured_policy(self) -> str:
        """The policy's constraints, without its choices and its workspace cap."""
        return only_fields(self.policy, _MEASURED_CONSTRAINTS)

    def task(self, problem: str, policy: str) -> Task:
        """The measurement of one problem under a policy."""
        budget, search = self.time_budget_s, self.knob_search
        return Task(problem, self.device, policy, budget, search, self.min_samples)

    def key(self, problem: str) -> str:
        """What a finished measurement is found again by."""
        words = [
            problem,
            _C.device_fingerprint(self.device),
            f"target={self.target}",
            _C.policy_for(problem, self.policy),
            f"knob_search={self.knob_search}",
            f"time_budget_s={self.time_budget_s}",
            f"min_samples={self.min_samples}",
            *(f"{name}={_C.versions()[name]}" for name in ("torch", "cudnn")),
        ]
        return " | ".join(words)


def make_settings(
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
) -> Settings:
    """Check and complete the settings of a measurement.

    Args:
        device: ``cpu`` or ``cuda[:i]``. By default the GPU where there is one; else, and with a
            target, the CPU.
        target: A GPU that is not there (``h200``): what it would accept is listed, and the CPU
            stands in for it. The default where there is neither a GPU nor a ``device``.
        policy: Constraints that hold for everything measured, and the choice that is marked; of a
            text, single words as of `enable`. Its ``max_workspace`` keeps nothing from being
            measured: it is the cap of the summary, and of what a target accepts. A cap of knobs or
            flags holds here as elsewhere.
        time_budget_s: Seconds a problem; 0 is no limit, which is the default on a GPU. On the CPU
            the default is 2.
        min_samples: Least number of timed runs of what may be the fastest, while the time budget
            lasts. What takes twice as long is left after two.
        knob_search: Also search the knobs of the best engines.

    Raises:
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
    if device is None and target is None and chosen == "cpu":
        target = report.DEFAULT_TARGET
    if time_budget_s is not None:
        check_time_budget(time_budget_s)
    is_count = isinstance(min_samples, int) and not isinstance(min_samples, bool)
    if min_samples is not None and (not is_count or min_samples < 1):
        raise ValueError(f"min_samples: got {min_samples!r}, wanted at least 1")
    check_knob_search(knob_search, chosen)
    on_cpu = chosen == "cpu"
    text = text_for_all(policy)
    return Settings(
        device=chosen,
        target=target,
        policy=text,
        time_budget_s=(CPU_TIME_BUDGET_S if on_cpu else 0.0)
        if time_budget_s is None
        else time_budget_s,
        min_samples=min_samples or (CPU_MIN_SAMPLES if on_cpu else GPU_MIN_SAMPLES),
        knob_search=knob_search,
        max_workspace_bytes=_C.workspace_cap(text, chosen),
    )


@dataclass
class LayerProfile:
    """The measurements of one problem, for all layers that have it."""

    problem: str
    names: list[str]
    count: int
    note: str
    # Where and what was measured; another line than `problem` where the CPU took a smaller batch.
    device: str
    measured: str
    flops: float
    floor_ms: float | None  # the roofline's bound for `measured`; None where nothing was timed
    rows: list[Measurement]  # ranked best first, then what is not ok
    current: str | None  # the algorithm that the policy would run now
    heuristic: str | None  # the algorithm that is run without any measuring
    refusal: str = ""  # why the policy would run none
    # What another device accepts, listed without measuring.
    listed_for: str | None = None
    listed: list[Candidate] = field(default_factory=list)

    @property
    def op(self) -> str:
        """The first word of the problem, such as ``conv_fwd``."""
        return self.problem.split()[0]

    @property
    def family(self) -> str:
        """The kind of operator, such as ``conv``."""
        return str(_C.problem_info(self.problem)["family"])

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements that may be chosen, best first."""
        return [row for row in self.rows if row["status"] == "ok"]

    @property
    def pytorch(self) -> Measurement | None:
        """PyTorch's own choice, whether or not the policy admits it; ``None`` where it cannot."""
        return self.find(BASELINE)

    def find(self, algorithm: str | None) -> Measurement | None:
        """The timed measurement of an algorithm."""
        return next(
            (
                row
                for row in self.rows
                if row["algorithm"] == algorithm and row["median_ms"] is not None
            ),
            None,
        )

    def best(
        self, max_workspace_bytes: int | None = None, deterministic: bool = False
    ) -> Measurement | None:
        """The first in rank order that keeps the constraints; unknown does not keep them."""
        for row in self.ranked:
            workspace = row["workspace_bytes"]
            too_large = max_workspace_bytes is not None and (
                workspace is None or workspace > max_workspace_bytes
            )
            if not too_large and not (deterministic and row["deterministic"] is not True):
                return row
        return None


@dataclass(frozen=True)
class Totals:
    """Milliseconds summed over layers, each weighted by how often it occurs.

    ``None`` where some layer has no such measurement; ``missing`` says how many. ``shares`` is what
    one kind of operator has of the whole time, from 0 to 1, where there are several kinds.
    """

    label: str
    pytorch_ms: float | None
    heuristic_ms: float | None
    best_ms: float | None
    capped_ms: float | None
    missing: dict[str, int]
    shares: dict[str, float] = field(default_factory=dict)


_TIMES = ("pytorch", "heuristic", "best", "capped")


@dataclass(repr=False)
class Profile:
    """The measurements of one problem or of a whole network, to be asked, printed and exported."""

    layers: list[LayerProfile]
    settings: Settings
    title: str = ""
    # How often operators were called that neither a layer nor a function of ours took, by name.
    not_profiled: dict[str, int] = field(default_factory=dict)
    without_functions: str = ""  # why no function of ours is among the layers
    is_kept: bool = False  # in a file of choices, which tells no settings and no versions

    def best(
        self,
        max_workspace: int | str | None = None,
        deterministic: bool = False,
        layer: str | None = None,
    ) -> Policy:
        """The policy that pins the best algorithm of each pass: the first in rank order.

        That is for the layers, if there are any, and not for what was called by function beside
        them, which no pin reaches, unless `layer` names it.

        Args:
            max_workspace: Only algorithms within this workspace (bytes, ``64MiB``, ``20%``).
            deterministic: Only algorithms known to be deterministic.
            layer: One of `names`; needed where no one policy fits all that was measured.

        Raises:
            ValueError: There are several kinds of operators, or problems of one pass whose best
                algorithms differ; or no algorithm keeps the constraints.
            KeyError: No layer has this name.
        """
        check_flag("best", "deterministic", deterministic)
        hint = "ask for one layer with best(layer=...), or all with best_by_layer()"
        chosen = [p for p in self.layers if not (p.names and all(map(is_function, p.names)))]
        chosen = chosen or self.layers
        if layer is not None:
            hint = "autotune fits them"
            chosen = [profile for profile in self.layers if layer in profile.names]
            if not chosen:
                names = ", ".join(self.names())
                wanted = f"one of {names}" if names else "none: these layers have no names"
                raise KeyError(f"layer: got {layer!r}, wanted {wanted}")
        found = self._policy(chosen, max_workspace, deterministic, hint)
        if isinstance(found, str):
            raise ValueError(f"best: {found}")
        return found

    def _policy(
        self,
        profiles: Sequence[LayerProfile],
        max_workspace: int | str | None,
        deterministic: bool,
        hint: str = "",
    ) -> Policy | str:
        """The one policy that is the best on all their problems, or why there is none."""
        cap = None
        if max_workspace is not None:
            text = field_text("max_workspace", "max_workspace", max_workspace)
            if self.is_kept and text.endswith("%"):
                raise ValueError(
                    f"max_workspace: got {max_workspace!r} for what a file kept, which tells no "
                    "device's memory; wanted bytes, or a text such as '64MiB'"
                )
            cap = _C.workspace_cap(text, self.settings.device)
        fits = len({profile.family for profile in profiles}) <= 1
        pins: dict[str, str] = {}
        for profile in profiles if fits else ():
            row = profile.best(cap, deterministic)
            if row is None:
                return (
                    f"no algorithm for max_workspace={max_workspace}, "
                    f"deterministic={deterministic} of {profile.problem}"
                )
            pass_name = _C.problem_info(profile.problem)["pass_name"]
            fits = pins.setdefault(pass_name, row["algorithm"]) == row["algorithm"]
            if not fits:
                break
        if not fits:
            return (
                f"the profile holds several problems of {profiles[0].op} or several kinds "
                f"of operators, so one policy does not fit: {hint}"
            )
        numerics = only_fields(self.settings.policy, _NUMERICS)
        words = [f"{name}={algorithm}" for name, algorithm in pins.items()]
        family = profiles[0].family if profiles else "conv"
        return Policy.parse(";".join(words + [numerics] * bool(numerics)), family)

    def best_by_layer(
        self, max_workspace: int | str | None = None, deterministic: bool = False
    ) -> dict[str, Policy]:
        """`best` for every module name of a network that one pin fits.

        Left out are modules that call several kinds of operators, and those with several problems
        of one pass whose best algorithms differ; `autotune` fits these. That may be a module
        called on several shapes, or a linear layer, whose gradients are two more forward problems.
        So are modules with a problem of which no algorithm keeps the constraints, and what was
        called by function, which no pin reaches, but rules of `when`.
        """
        check_flag("best_by_layer", "deterministic", deterministic)
        policies = {}
        for name in self.names():
            if is_function(name):
                continue
            of_module = [profile for profile in self.layers if name in profile.names]
            found = self._policy(of_module, max_workspace, deterministic)
            if isinstance(found, Policy):
                policies[name] = found
        return policies

    @property
    def is_mixed(self) -> bool:
        """Whether the times are of several devices, or of one problem under several constraints."""
        devices = {profile.device for profile in self.layers}
        problems = {profile.problem for profile in self.layers}
        return len(devices) > 1 or len(problems) < len(self.layers)

    def names(self) -> list[str]:
        """The names of all modules, in order of their first call.

        What they called by function is among them: ``features.relu()``.
        """
        return list(dict.fromkeys(name for profile in self.layers for name in profile.names))

    def totals(self) -> list[Totals]:
        """A line for each pass; where there are several, for each kind of operator and for all.

        The time of a coupled forward is that of its backward too, whose own line does not count
        towards the sums of several passes. Times of several devices, or of one problem under
        several constraints, as a file of choices may hold, have no totals.
        """
        if self.is_mixed:
            return []
        led = {line for profile in self.layers for line in coupled_problems(profile.problem)}
        counted = [profile for profile in self.layers if profile.problem not in led]
        ops = list(dict.fromkeys(profile.op for profile in self.layers))
        lines = [self._totals(op, [p for p in self.layers if p.op == op]) for op in ops]
        whole = self._totals("all passes", counted)
        families = list(dict.fromkeys(profile.family for profile in self.layers))
        for family in families if len(families) > 1 else []:
            line = self._totals(f"all {family}", [p for p in counted if p.family == family])
            lines.append(dataclasses.replace(line, shares=_shares(line, whole)))
        return lines + ([whole] if len(ops) > 1 else [])

    def _totals(self, label: str, profiles: Sequence[LayerProfile]) -> Totals:
        cap = self.settings.max_workspace_bytes
        columns = {
            "pytorch": [(p.count, p.pytorch) for p in profiles],
            "heuristic": [(p.count, p.find(p.heuristic)) for p in profiles],
            "best": [(p.count, p.best()) for p in profiles],
            "capped": [(p.count, p.best(cap)) for p in profiles],
        }
        sums: dict[str, float | None] = {}
        missing = {}
        for name, pairs in columns.items():
            times = [n * ms for n, row in pairs if row and (ms := row["median_ms"]) is not None]
            missing[name] = len(pairs) - len(times)
            sums[name] = None if missing[name] else sum(times)
        return Totals(
            label, sums["pytorch"], sums["heuristic"], sums["best"], sums["capped"], missing
        )

    def records(self) -> list[dict[str, Any]]:
        """Every measurement and every listed algorithm as one flat dict.

        Times are in ms (``median_ms`` the device's, ``host_ms`` the host's for a call, ``None`` on
        the CPU), workspaces in bytes, ``tflops`` in 1e12 floating-point operations of the
        direct algorithm a second, ``percent_of_peak`` relates the roofline's bound to the time,
        ``vs_pytorch`` PyTorch's time to the algorithm's (above 1: faster than PyTorch).
        """
        return [record for profile in self.layers for record in report.layer_records(profile)]

    def print(self, show_all: bool = False, top: int = 0) -> None:
        """Print a table for each problem and the summary.

        Args:
            show_all: Also what is excluded, unsupported, failed or rejected, with the reasons.
            top: At most so many algorithms a table, beside PyTorch's and the current one; 0 is all.

        Raises:
            TypeError: ``top`` is no integer.
            ValueError: It is negative.
        """
        report.print_tables(report.profile_tables(self, report.Extent(show_all, top)))

    def __repr__(self) -> str:
        """What it is of, in a line."""
        of = self.title or ", ".join(layer.problem for layer in self.layers[:1])
        devices = ", ".join(dict.fromkeys(layer.device for layer in self.layers))
        return f"<Profile of {len(self.layers)} problems on {devices}: {of}>"

    def __str__(self) -> str:
        """`to_markdown`."""
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return report.tables_html(report.profile_tables(self, report.Extent()))

    def to_markdown(self, show_all: bool = False, top: int = 0) -> str:
        """The tables and the summary as Markdown."""
        return report.tables_markdown(report.profile_tables(self, report.Extent(show_all, top)))

    def to_pandas(self) -> pandas.DataFrame:
        """`records` as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self.records(), columns=list(report.RECORD_FIELDS))

    def to_csv(self) -> str:
        """`records` as comma-separated values with a header line."""
        return report.csv_text(self.records(), report.RECORD_FIELDS)

    def to_json(self) -> str:
        """Everything as one JSON object.

        The settings, the versions, the layers, the operators that are not profiled, the totals. An
        error that is not finite is null, and so are settings and versions of what a file of choices
        kept.
        """
        layers = [dataclasses.asdict(profile) for profile in self.layers]
        for layer in layers:
            layer["rows"] = finite_rows(layer["rows"])
        return json.dumps(
            {
                "title": self.title,
                "settings": None if self.is_kept else dataclasses.asdict(self.settings),
                "versions": None if self.is_kept else _C.versions(),
                "layers": layers,
                "not_profiled": self.not_profiled,
                "without_functions": self.without_functions,
                "totals": [dataclasses.asdict(line) for line in self.totals()],
            },
            indent=1,
            allow_nan=False,
        )


def _shares(part: Totals, whole: Totals) -> dict[str, float]:
    times = {name: (getattr(part, f"{name}_ms"), getattr(whole, f"{name}_ms")) for name in _TIMES}
    return {name: a / b for name, (a, b) in times.items() if a is not None and b}


def profile(
    problem: str,
    *,
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure every algorithm on one problem.

    Where a target is listed, or there is no GPU, the algorithms of the CPU are measured, and what
    the target (by default an H200) would accept is listed with workspaces and notes.

    Args:
        problem: A problem line.
        device: See `make_settings`, as for all that follow.
        target: A GPU that is not there.
        policy: Constraints, and the choice that is marked in the table. A pass by itself, ``fwd``,
            is convolution's; of others ``softmax_fwd``, or a `Policy` of the family.
        time_budget_s: Seconds for the problem; 0 is no limit.
        min_samples: Least number of timed runs of what may be the fastest, while the time budget
            lasts. What takes twice as long is left after two.
        knob_search: Also search the knobs of the best engines.
        progress: Told of every algorithm; may raise to stop.

    Raises:
        TypeError: ``problem`` is no text, or ``progress`` lacks a method of `Progress`.
        ValueError: The problem or another argument is wrong.
        RuntimeError: PyTorch does not find the CUDA device that was asked for.
    """
    if not isinstance(problem, str):
        raise TypeError(
            f"problem: got {problem!r} ({type(problem).__name__}), wanted a problem line"
        )
    settings = make_settings(device, target, policy, time_budget_s, min_samples, knob_search)
    if compute := only_fields(settings.policy, ("compute",)):
        raise ValueError(
            f"policy: got {compute!r} with a problem line, which says it itself, wanted none"
        )
    layers = [Layer(_C.canonical_problem(problem))]
    if settings.target is not None:
        layers = with_proxies(layers)
    return Profile(list(measure_layers(layers, settings, progress=progress)), settings)


def profile_model(
    model: nn.Module,
    inputs: Any,
    *,
    train: bool = True,
    passes: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    target: str | None = None,
    policy: PolicyLike = None,
    time_budget_s: float | None = None,
    min_samples: int | None = None,
    knob_search: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure every distinct layer of an unmodified network that this package has an operator for.

    The network runs once, forward and backward, to see its calls and the gradients that these get
    (`network_layers`); on the meta device that costs nothing. The problems are then
    measured on scratch tensors. Seen are the layers that `convert` exchanges, and functions of
    `ops` by PyTorch's names, in forms that it takes; all else is counted in `not_profiled`.

    Args:
        model: The network, with the dtype, memory format and device to profile.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: A training step, forward and backward, in the mode that the network is in.
            ``False`` is inference: the forward alone, in eval mode.
        passes: Only these of them: ``fwd``, ``bwd`` for all others, or some by name
            (``bwd_filter``); of inference ``fwd`` and ``infer`` alone, and ``fwd`` alone is as
            inference has it. A gradient that nothing requires, such as that of plain inputs, is
            never among them. They are the layers' own: a transposed convolution's forward is the
            problem ``conv_bwd_data``, which its table says.
        device: See `make_settings`, as for all that follow.
        target: A GPU that is not there.
        policy: Constraints, and the choice that is marked in the tables.
        time_budget_s: Seconds a problem; 0 is no limit.
        min_samples: Least number of timed runs of what may be the fastest, while the time budget
            lasts. What takes twice as long is left after two.
        knob_search: Also search the knobs of the best engines.
        progress: Told of every problem and algorithm; may raise to stop.

    Raises:
        TypeError: ``model`` is no module, ``passes`` no list of texts, or ``progress`` as in
            `profile`.
        ValueError: The model calls no operator of this package or meets none of the passes, is lazy
            and not initialised, or an argument is wrong.
        RuntimeError: PyTorch does not find the CUDA device that was asked for.
    """
    check_flag("profile_model", "train", train)
    check_progress(progress)
    model = eager_model("profile_model", model)
    settings = make_settings(device, target, policy, time_budget_s, min_samples, knob_search)
    wanted = (PASSES if train else ("fwd",)) if passes is None else passes
    check_passes(wanted)
    if not train and not is_inference(wanted):
        raise ValueError(
            f"passes: got {','.join(wanted)!r} with train=False, wanted some of fwd,infer"
        )
    with nullcontext() if train else in_mode(model, train=False):
        work = network_layers(
            model, inputs, wanted, settings.policy or None, proxies=settings.target is not None
        )
    measured = list(measure_layers(work.layers, settings, progress=progress))
    return Profile(
        measured, settings, type(model).__name__, work.not_profiled, work.without_functions
    )


def measure_layers(
    layers: Sequence[Layer],
    settings: Settings,
    journal: Journal | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Iterator[LayerProfile]:
    """Measure layer by layer, taking from the journal what was finished before.

    Raises:
        ValueError: ``jobs``, the number of processes, is less than 1.
    """
    layers = merge(layers)
    keys = [
        f"profile | {settings.key(layer.problem)} | measured={layer.measured}" for layer in layers
    ]
    finished = [journal.get(key, LayerProfile) if journal is not None else None for key in keys]
    left = [layer.measured for layer, one in zip(layers, finished, strict=True) if one is None]
    for problem in left:  # the device's peaks, before others measure on it too
        _peaks(problem, settings)
    tasks = [settings.task(problem, settings.measured_policy) for problem in left]
    rows = measure_tasks(tasks, jobs, progress)
    for layer, key, measured in zip(layers, keys, finished, strict=True):
        if measured is None:
            measured = _profiled(layer, settings, next(rows))
            if journal is not None:
                journal.add(key, dataclasses.asdict(measured))
        measured.names, measured.count = list(layer.names), layer.count
        measured.note = layer.note
        yield measured


def list_layer(layer: Layer, device: str, policy: str) -> LayerProfile:
    """What a device or a target accepts, timing nothing."""
    return LayerProfile(
        problem=layer.problem,
        names=list(layer.names),
        count=layer.count,
        note=layer.note,
        device=device,
        measured=layer.problem,
        flops=_cost(layer.problem)[0],
        floor_ms=None,
        rows=[],
        current=None,
        heuristic=None,
        listed_for=device,
        listed=_C.candidates(layer.problem, device, policy),
    )


def profile_of_choices(entries: Iterable[TableEntry]) -> Profile:
    """The tables of rankings that were kept, as they were measured then, on whatever device.

    Args:
        entries: Of `tuning.read_table` or `tuning.entries`.
    """
    layers = [
        LayerProfile(
            problem=entry["problem"],
            names=[],
            count=1,
            note=f"under {entry['constraints']}" if entry["constraints"] else "",
            device=entry["device"],
            measured=entry["problem"],
            flops=_cost(entry["problem"])[0],
            floor_ms=None,
            rows=entry["measurements"],
            current=None,
            heuristic=None,
        )
        for entry in entries
    ]
    return Profile(layers, make_settings("cpu"), is_kept=True)


def _peaks(problem: str, settings: Settings) -> Peaks:
    info = _C.problem_info(problem)
    policy = _C.policy_for(problem, settings.measured_policy)
    allow_tf32 = bool(_C.policy_fields(policy, info["family"]).get("allow_tf32"))
    return measured_peaks(settings.device, info["dtype"], allow_tf32)


def _profiled(layer: Layer, settings: Settings, rows: list[Measurement]) -> LayerProfile:
    problem, policy = layer.measured, settings.measured_policy
    rows = _with_baseline(rows, problem, settings)
    flops, bytes_moved = _cost(problem)
    heuristic, _ = _chosen(
        problem, settings.device, ";".join(word for word in ("heuristic", policy) if word)
    )
    target = f"target:{settings.target}" if settings.target is not None else None
    for_target = only_fields(settings.policy, (*_MEASURED_CONSTRAINTS, "max_workspace"))
    profile = LayerProfile(
        problem=layer.problem,
        names=list(layer.names),
        count=layer.count,
        note=layer.note,
        device=settings.device,
        measured=problem,
        flops=flops,
        floor_ms=_peaks(problem, settings).floor_ms(flops, bytes_moved),
        rows=rows,
        current=None,
        heuristic=heuristic,
        listed_for=target,
        listed=_C.candidates(layer.problem, target, for_target) if target is not None else [],
    )
    profile.current, profile.refusal = _current(profile, settings)
    return profile


def _cost(problem: str) -> tuple[float, float]:
    """Operations and bytes of what is timed: a coupled forward is, together with its backward."""
    infos = [_C.problem_info(line) for line in (problem, *coupled_problems(problem))]
    return sum(info["flops"] for info in infos), sum(info["bytes"] for info in infos)


def _chosen(problem: str, device: str, policy: str) -> tuple[str | None, str]:
    """The algorithm that an operator would run, or None and why it would refuse to."""
    try:
        return _C.decide(problem, device, policy)["algorithm"], ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]  # the rest stands in the table


def _current(profile: LayerProfile, settings: Settings) -> tuple[str | None, str]:
    """What the settings' policy would run, or None and why it would refuse to."""
    info, cap = _C.problem_info(profile.measured), settings.max_workspace_bytes
    fields = _C.policy_fields(_C.policy_for(profile.measured, settings.policy), info["family"])
    tunes = fields.get(info["pass_name"], "autotune" if fields.get("benchmark") else None)
    if cap is None or tunes != "autotune":
        return _chosen(profile.measured, settings.device, settings.policy)
    # Under the cap, which keeps nothing from being measured here, it would tune once more.
    if best := profile.best(cap):
        return best["algorithm"], ""
    return None, f"of what was measured nothing keeps to a workspace of {cap} bytes"


def _with_baseline(rows: list[Measurement], problem: str, settings: Settings) -> list[Measurement]:
    """PyTorch's own row is always timed, also where the policy does not admit it."""
    if any(row["algorithm"] == BASELINE and row["median_ms"] is not None for row in rows):
        return rows
    reasons = [row["reason"] for row in rows if row["algorithm"] == BASELINE]
    refused = reasons[0] if reasons else ""
    # Under PyTorch's own switches and nothing else: what a user of plain PyTorch gets.
    (baseline,) = _C.measure(
        problem,
        settings.device,
        "backends=aten",
        algorithms=[BASELINE],
        time_budget_s=settings.time_budget_s,
        min_samples=settings.min_samples,
        record=False,
        levels=False,
    )
    if baseline["status"] == "ok":
        baseline["status"] = "excluded"
        baseline["reason"] = "baseline only: " + (refused or "the policy does not admit it")
    return [row for row in rows if row["algorithm"] != BASELINE] + [baseline]
