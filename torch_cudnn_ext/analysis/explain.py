"""What every layer of a model runs, and why.

>>> print(explain(model, images, train=True))
"""

import operator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext._policy_text import value_of
from torch_cudnn_ext._timing import kernel_names
from torch_cudnn_ext._torch_internals import profiler_is_on
from torch_cudnn_ext._workload.problems import coupled_problems
from torch_cudnn_ext._workload.recorder import RecordedCall, described_calls
from torch_cudnn_ext.analysis.explain_page import explanation_page, explanation_sentence
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.lint import Hint, call_hints, hints_table
from torch_cudnn_ext.analysis.page import Page
from torch_cudnn_ext.analysis.profile_page import versions
from torch_cudnn_ext.analysis.records import csv_text, field_names, result_json
from torch_cudnn_ext.analysis.tables import Column, Table, bytes_text, milliseconds, plural
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.pins import pin_of, standing_for
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.tuning.measure import BASELINE, Progress, check_progress


@dataclass(frozen=True)
class LayerCall:
    """One call of one operator in one layer.

    Attributes:
        layer: The innermost module that made the call, by name; empty for the model itself.
        kind: Its class.
        op: The operator and pass, such as ``conv_bwd_data``; empty if PyTorch's own kernel ran.
        problem: The problem line; empty if PyTorch's own kernel ran.
        algorithm: What ran; empty if PyTorch's own kernel ran.
        why: Why that algorithm ran: ``tuned``, ``heuristic``, ..., or ``pinned`` and by what, such
            as a pattern, a rule, `enable` or a knob. It is ``pinned`` alone if the source is not
            known, as for an operator's ``policy=``. If PyTorch's own kernel ran, the reason.
        workspace_bytes: Its workspace; ``None`` if unknown.
        ms: Its time on scratch tensors, in milliseconds; ``None`` if not measured. For a forward
            that only its own algorithm's backward can follow, this is the time of both.
        device: Where it ran.
        policy: The policy, with all its levels merged.
        pytorch: What PyTorch itself runs for this problem, longest first. On a GPU these are the
            names of its kernels, on the CPU those of its operators. The tuple is empty if nothing
            was measured or a profiler was on. It is also empty if PyTorch cannot run the problem,
            or if what `enable` or a knob says excludes PyTorch's kernel.
    """

    layer: str
    kind: str
    op: str
    problem: str
    algorithm: str
    why: str
    workspace_bytes: int | None = None
    ms: float | None = None
    device: str = ""
    policy: str = ""
    pytorch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The calls of one run of a model, in order. It prints as a table."""

    calls: list[LayerCall]
    title: str = ""

    @property
    def share(self) -> float:
        """The share of the calls that this package ran, from 0 to 1."""
        return sum(bool(call.op) for call in self.calls) / max(1, len(self.calls))

    def table(self, most: int = 0) -> Table:
        """The calls as cells.

        Args:
            most: If times were measured, at most so many calls, those that take longest; 0 is all.
        """
        headings = "layer,kind,op,algorithm,why,ms,workspace,PyTorch runs,problem".split(",")
        shown = self._longest(most)
        rows = [
            [
                call.layer,
                call.kind,
                call.op or "-",
                call.algorithm or "PyTorch's own",
                call.why,
                milliseconds(call.ms) + ("*" if _with_backward(call) else ""),
                bytes_text(call.workspace_bytes),
                ", ".join(map(_short, call.pytorch)),
                call.problem.partition(" ")[2],
            ]
            for call in shown
        ]
        columns = [
            Column(h, right=h in ("ms", "workspace"), whole=h == "algorithm") for h in headings
        ]
        notes = ["* with its backward"] * any(map(_with_backward, shown))
        asked = {(c.policy, c.device) for c in self.calls if "replay=" in c.policy}
        for reason in sorted({_C.replay_obstacle(*one) for one in asked} - {""}):
            notes.append(f"replay was asked for: {reason}")
        if hidden := len(self.calls) - len(shown):
            notes.append(f"{plural(hidden, 'call')} more, which take less (--all-layers)")
        return Table(f"{self.title}: {self.sentence()}", columns, rows, "; ".join(notes))

    def tables(self, most: int = 0) -> list[Table]:
        """`table`, and what costs time if there is any such thing."""
        hints = self.hints()
        return [self.table(most), *[hints_table(hints)] * bool(hints)]

    def _longest(self, most: int) -> list[LayerCall]:
        """At most so many calls, in their order."""
        timed = [call for call in self.calls if call.ms is not None]
        if not 0 < most < len(self.calls) or not timed:
            return self.calls
        by_time = sorted(enumerate(self.calls), key=lambda one: -(one[1].ms or 0.0))
        kept = {place for place, _ in by_time[:most]}
        return [call for place, call in enumerate(self.calls) if place in kept]

    def sentence(self) -> str:
        """How many calls ran this package's operators and why, and which layers take the time."""
        return explanation_sentence(self)

    def hints(self) -> list[Hint]:
        """What costs time on a GPU and can be changed, as problem lines and policies tell it."""
        on_gpu = [c for c in self.calls if c.problem and not c.device.startswith("cpu")]
        return call_hints((call.layer, call.problem, call.policy) for call in on_gpu)

    def _page(self, replay: str = "") -> Page:
        devices = dict.fromkeys(filter(None, (call.device for call in self.calls)))
        facts = {"devices": ", ".join(map(_C.device_fingerprint, devices)), **versions()}
        return explanation_page(self, self.table(), self.hints(), facts, replay)

    def to_html(self, replay: str = "") -> str:
        """A report as one page of HTML that needs no other file, no network and no script to read.

        It has the sentence, bars by layer and by operator if times were measured, the table of
        calls, and the environment.

        Args:
            replay: The command or code that explains again, for the reader to copy.
        """
        return self._page(replay).html()

    def _repr_html_(self) -> str:
        return self._page().frame()

    def to_csv(self) -> str:
        """The calls as comma-separated values with a header line."""
        return csv_text(list(map(asdict, self.calls)), field_names(LayerCall))

    def to_json(self) -> str:
        """The sentence, the calls and what costs time, as JSON."""
        calls, hints = (list(map(asdict, part)) for part in (self.calls, self.hints()))
        return result_json({"sentence": self.sentence(), "calls": calls, "hints": hints})

    def __str__(self) -> str:
        """The table as Markdown."""
        return tables_markdown(self.tables())


def explain(
    model: nn.Module,
    inputs: Any,
    *,
    train: bool = False,
    measure: bool = True,
    progress: Progress | None = None,
) -> Explanation:
    """Run a model once, and tell for every call of its layers what ran and why.

    Without ``train`` the model runs in eval mode and without gradients. With ``train`` it runs
    forward and backward in training mode. If the model is already in that mode, its layers keep
    theirs: frozen batch norms, for example, may be in the other mode.

    What the run changes is restored: PyTorch's random state, the gradients of the inputs, and of
    the model the buffers, the gradients and what requires one, the attributes, the content of
    Python's containers in these, and the values of tensors there; with ``train`` also the values of
    parameters. What other objects hold is not restored, nor are parameter objects that the model
    itself replaces.

    If `enable` was not called, it is on during the run. Inside ``torch.autocast``, `knobs.flags`
    and the like, `explain` tells what runs there. Compiled code runs in eager mode. The model must
    run in one thread.

    Args:
        model: Any module.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: Also run the backward of the sum of the outputs, in training mode.
        measure: Also time every distinct algorithm, and see what PyTorch itself would run, on
            scratch tensors.
        progress: Told of every distinct problem that is timed.

    Raises:
        TypeError: ``model`` is no module, ``train`` no bool, or ``progress`` lacks a method of
            `Progress`.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient; or the model or its inputs have no data, such as on the meta device,
            which `profile_model` takes.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> explained = explain(model, torch.randn(1, 3, 8, 8), measure=False)
        >>> [(call.layer, call.op) for call in explained.calls]
        [('0', 'conv_fwd'), ('1', '')]
    """
    check_flag("explain", "train", train)
    check_progress(progress)
    model = eager_model("explain", model)
    calls = described_calls(model, inputs, train, _layer_call)
    if measure:
        calls = _measured(calls, progress)
    return Explanation(calls, type(model).__name__)


def _layer_call(call: RecordedCall) -> LayerCall:
    kind = "" if call.module is None else type(call.module).__name__
    event = call.event
    if isinstance(event, str):
        return LayerCall(call.layer, kind, "", "", "", event)
    why = event["why"]
    if why == "pinned" and (source := _source_of_pin(event, call.module)):
        why = f"pinned by {source}"
    return LayerCall(
        call.layer,
        kind,
        event["op"],
        event["problem"],
        event["algorithm"],
        why,
        event["workspace_bytes"],
        None,
        event["device"],
        event["policy"],
    )


def _source_of_pin(decision: Any, module: nn.Module | None) -> str:
    """What pinned a call, if that can be told after it; else empty."""
    info = _C.problem_info(decision["problem"])
    family = info["family"]
    sharing = [info, *map(_C.problem_info, info["coupled"])]  # they share one decision
    passes = [one["pass_name"] for one in sharing]

    def said_by(policy: str) -> str | None:
        said = _C.canonical_policy(policy, family)
        return next((text for name in passes if (text := value_of(said, name))), None)

    ours = None if module is None else standing_for(module)
    if isinstance(module, Tunable) and ours is not None and ours.family == family:
        if (pin := pin_of(module)) is not None:
            patterns = [pin.patterns[name] for name in passes if name in pin.patterns]
            if patterns:  # none if the layer had another pin at the call
                said = (said_by(decision["policy"]), "guess_once", "time_once")
                return repr(patterns[0]) if said_by(pin.text) in said else ""
        elif said_by(module.policy or ""):
            return "the module's policy"
    chosen = said_by(decision["policy"])
    if by_enable := said_by(_C.enabled_policy(family)):
        return "enable()" if by_enable == chosen else ""
    if said_by(_C.resolved_policy("", family)) != chosen:  # an operator's policy=, or inner flags
        return ""
    names = (f"{name}_algo" for name in (*(f"{family}_{name}" for name in passes), family))
    for name in names:
        value = getattr(knobs, name, None)
        if value is not None and said_by(f"{passes[0]}={value}") == chosen:
            return f"knobs.{name}"
    return "knobs.flags()"


def _measured(calls: list[LayerCall], progress: Progress | None) -> list[LayerCall]:
    """Add the time of each distinct algorithm on its problem, and what PyTorch runs."""
    times: dict[tuple[str, str, str], tuple[float | None, int | None]] = {}
    kernels: dict[tuple[str, str], tuple[str, ...]] = {}
    total = len({(call.problem, call.algorithm, call.device) for call in calls if call.problem})
    done = []
    for call in calls:
        if not call.problem:
            done.append(call)
            continue
        key, place = (call.problem, call.algorithm, call.device), (call.problem, call.device)
        if key not in times:
            if progress is not None:
                progress.problem(len(times), total, call.problem)
            (row,) = _C.measure(
                call.problem, call.device, call.policy, algorithms=[call.algorithm], record=False
            )
            times[key] = row["median_ms"], row["workspace_bytes"]
        if place not in kernels:
            kernels[place] = _kernels_of_pytorch(*place)
        ms, workspace_bytes = times[key]
        if call.workspace_bytes is not None:  # the decision knew it
            workspace_bytes = call.workspace_bytes
        done.append(replace(call, ms=ms, workspace_bytes=workspace_bytes, pytorch=kernels[place]))
    return done


def _kernels_of_pytorch(problem: str, device: str) -> tuple[str, ...]:
    if profiler_is_on():  # the user's, which a second one would end
        return ()
    rows = _C.candidates(problem, device, "backends=aten")
    if not any(row["algorithm"] == BASELINE and row["status"] == "ok" for row in rows):
        return ()
    info = _C.problem_info(problem)
    tensors = _C.scratch(problem, device)

    def work() -> None:
        _C.run(problem, BASELINE, dict(tensors), "backends=aten")

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # dropout draws
        if info["coupled"] and info["pass_name"] != "fwd":  # it reads what its forward saved
            forward = info["coupled"][0]
            inputs = _C.scratch(forward, device) | tensors
            left = _C.run(forward, BASELINE, inputs, "backends=aten")
            tensors |= {role: left[role] for role in left.keys() & info["slots"].keys()}
        work()
        return tuple(kernel_names(work, operator.call, device))


def _with_backward(call: LayerCall) -> bool:
    """Whether the time of a call includes its backward."""
    return call.ms is not None and bool(coupled_problems(call.problem))


def _short(kernel: str) -> str:
    """The name of a kernel without its parameters."""
    return kernel.removeprefix("void ").partition("(")[0].partition("<")[0]
