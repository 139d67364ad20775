"""What every layer of a model runs, and why; and the problems of its calls.

>>> print(explain(model, images, train=True))
>>> trace(model, images, "model.txt")  # for: python -m torch_cudnn_ext profile --problems model.txt
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext._files import write_text
from torch_cudnn_ext._timing import kernel_names
from torch_cudnn_ext._workload import (
    Layer,
    call_model,
    check_gradient_mode,
    detached,
    gradients_kept,
    in_mode,
    kept_as_it_was,
    leaves_behind,
    led_problems,
    looking,
    merge,
    own_tensors,
    recording,
    sum_of_outputs,
    tensors_in,
    values_kept,
)
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.records import csv_text, field_names
from torch_cudnn_ext.analysis.tables import Column, Table, bytes_text, milliseconds
from torch_cudnn_ext.models.convert import eager_model
from torch_cudnn_ext.models.enable import enabled, is_enabled
from torch_cudnn_ext.models.pins import pin_of, standing_for
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.policy import Policy
from torch_cudnn_ext.tuning.measure import BASELINE

_NODE = "TorchCudnnExt"  # the names of our autograd nodes begin so


@dataclass(frozen=True)
class LayerCall:
    """One call of one operator in one layer.

    Attributes:
        layer: The innermost module that made the call, by name; empty for the model itself.
        kind: The module's class.
        op: The operator and pass, such as ``conv_bwd_data``. This, the problem and the algorithm
            are empty if PyTorch's own kernel ran.
        problem: The problem line.
        algorithm: What ran.
        why: The reason of the decision: ``tuned``, ``heuristic``, ...; ``pinned`` and by what, such
            as a pattern, a rule, `enable` or a knob (``pinned`` alone if that is not known, such as
            for an operator's ``policy=``); or why PyTorch's own kernel ran.
        workspace_bytes: The algorithm's workspace; ``None`` if unknown.
        ms: The algorithm's time on scratch tensors, in milliseconds; ``None`` if not measured. The
            time of a coupled forward includes its backward.
        device: Where it ran.
        policy: The policy, with all its levels merged.
        pytorch: What PyTorch itself runs for this problem: on a GPU the names of its kernels, on
            the CPU those of its operators, longest first. Empty if not measured, and if PyTorch
            cannot run the problem.
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
    """The calls of one run of a model, in order."""

    calls: list[LayerCall]
    title: str = ""

    @property
    def share(self) -> float:
        """The share of the calls that ran operators of this package, from 0 to 1."""
        return sum(bool(call.op) for call in self.calls) / max(1, len(self.calls))

    def table(self) -> Table:
        """The calls as a table."""
        headings = "layer,kind,op,algorithm,why,ms,workspace,PyTorch runs,problem".split(",")
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
            for call in self.calls
        ]
        columns = [
            Column(h, right=h in ("ms", "workspace"), whole=h == "algorithm") for h in headings
        ]
        ours = sum(bool(call.op) for call in self.calls)
        footer = f"{ours} of {len(self.calls)} calls took our way ({self.share:.0%})"
        if any(map(_with_backward, self.calls)):
            footer += "; * with its backward"
        return Table(self.title, columns, rows, footer)

    def to_csv(self) -> str:
        """The calls as comma-separated values with a header line."""
        return csv_text(list(map(asdict, self.calls)), field_names(LayerCall))

    def __str__(self) -> str:
        """The table as Markdown."""
        return tables_markdown([self.table()])


def explain(
    model: nn.Module, inputs: Any, *, train: bool = False, measure: bool = True
) -> Explanation:
    """Run a model once, and tell for every call of its layers what ran and why.

    Without ``train`` the model runs in eval mode and without gradients, with ``train`` in training
    mode forward and backward. A model that is in that mode already runs as it is, with layers in
    the other mode, such as frozen batch norms. `enable` is on meanwhile. Call this inside
    ``torch.autocast``, `knobs.flags` and the like to see what holds there. Compiled code runs in
    eager mode; the model must run in one thread.

    The model's state, its inputs' gradients and PyTorch's random state are restored: buffers,
    gradients, ``requires_grad``, attributes, Python's containers among them, the values of tensors
    there, and with ``train`` those of parameters. Not restored are the contents of other objects,
    and parameter objects that the model replaces itself.

    Args:
        model: Any module.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: Also run the backward of the sum of the outputs, in training mode.
        measure: Also time every distinct algorithm on scratch tensors, and see what PyTorch itself
            would run.

    Raises:
        TypeError: ``model`` is no module, or ``train`` no bool.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient; or the model or its inputs have no data, such as on the meta device,
            which `profile_model` takes.
    """
    check_flag("explain", "train", train)
    if train:
        check_gradient_mode()
    model = eager_model("explain", model)
    for t in tensors_in(([*model.parameters(), *model.buffers()], inputs)):
        if t.is_meta or isinstance(t, FakeTensor):
            raise ValueError(
                "model: got one that has, or whose inputs have, no data (on the meta device, or "
                "fake), wanted data to run on; profile_model takes the meta device"
            )
    with (
        kept_as_it_was(model, inputs),
        values_kept(t for t in own_tensors(model) if train and isinstance(t, nn.Parameter)),
        enabled() if not is_enabled() else nullcontext(),
        torch.compiler.set_stance("force_eager"),  # some layers may be compiled
    ):
        calls = _record(model, detached(inputs) if train else inputs, train)
    if measure:
        calls = _measured(calls)
    return Explanation(calls, type(model).__name__)


def trace(
    model: nn.Module, inputs: Any, path: str | Path | None = None, *, train: bool = True
) -> list[str]:
    """The problem lines of a model's calls, each with its layers and how often it occurs.

    Args:
        model: Any module, which runs as in `explain`.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        path: A file to write them to, as ``profile --problems`` reads it.
        train: Also the problems of the backward.

    Returns:
        The lines, each problem once, in the order of their first calls.

    Raises:
        TypeError: ``model`` is no module, or ``train`` no bool.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient.
        RuntimeError: A pin cannot run, among other errors of the model.
        OSError: The file cannot be written.
    """
    check_flag("trace", "train", train)
    model = eager_model("trace", model)
    with looking():
        calls = explain(model, inputs, train=train, measure=False).calls
    layers = merge(Layer(call.problem, (call.layer or "model",)) for call in calls if call.problem)
    lines = []
    for one in layers:
        # A name may hold line breaks and the commas that separate names here.
        names = ", ".join("_".join(name.replace(",", " ").split()) for name in one.names)
        lines.append(f"{one.problem}  # {names} x{one.count}")
    if path is not None:
        write_text(path, "\n".join(lines) + "\n")
    return lines


class _Recorder:
    """Which layer made which call.

    Calls are recorded in order. A layer's own calls are those between its pre-hook and its hook
    that no inner layer made; those of a backward are between the hooks of the layer's autograd
    nodes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._events: list[Any] = []
        self._owners: dict[int, nn.Module] = {}
        # Running calls: the module, the first event, the sequence number of the first node.
        self._open: list[tuple[nn.Module, int, int]] = []
        self._nodes: set[Any] = set()  # keeps nodes alive, so that no other one gets their identity
        self._called: dict[nn.Module, list[int]] = {}  # the first event of each call
        self._idle: set[nn.Module] = set()  # had nothing to compute

    def _count(self) -> int:
        self._events += _C.recorded(len(self._events))
        return len(self._events)

    def _claim(self, begin: int, module: nn.Module) -> None:
        for i in range(begin, self._count()):
            self._owners.setdefault(i, module)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace the calls of the model's modules.

        The hooks are global, since hooks of its own would keep a `torch.nn.TransformerEncoderLayer`
        off its fast path.
        """
        of_all = torch.nn.modules.module
        before = of_all.register_module_forward_pre_hook(self._before)
        after = of_all.register_module_forward_hook(self._after, with_kwargs=True, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            # remove() leaves these.
            of_all._global_forward_hooks_with_kwargs.pop(after.id, None)
            of_all._global_forward_hooks_always_called.pop(after.id, None)
            # Nodes hold their hooks, which hold the recorder: Python's garbage collector does not
            # see this circle.
            self._nodes.clear()
            self._open.clear()

    def _before(self, module: nn.Module, args: Any) -> None:
        if module in self._names:
            begin = self._count()
            self._open.append((module, begin, torch._C._autograd._get_sequence_nr()))
            self._called.setdefault(module, []).append(begin)

    def _after(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not self._open or self._open[-1][0] is not module:  # its pre-hook did not run
            return
        *kwargs, output = rest  # after a forward that raised there are no keyword arguments
        _, begin, first_node = self._open.pop()
        self._claim(begin, module)
        tensors = tensors_in((args, kwargs, output))
        passes_on = isinstance(module, nn.Dropout) and not module.training
        if passes_on or any(t.numel() == 0 for t in tensors):
            self._idle.add(module)
        waiting, seen = [t.grad_fn for t in tensors_in(output)], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen or node._sequence_nr() < first_node:
                continue
            seen.add(node)
            if node not in self._nodes:  # else an inner layer's, after which this one's may follow
                self._nodes.add(node)
                if node.name().startswith(_NODE):
                    self._trace_backward(node, module)
            waiting += [following for following, _ in node.next_functions]

    def _trace_backward(self, node: Any, module: nn.Module) -> None:
        begins: list[int] = []
        node.register_prehook(lambda grads: begins.append(self._count()))
        node.register_hook(lambda results, grads: self._claim(begins.pop(), module))

    def calls(self) -> Iterator[LayerCall]:
        """One for each event, and one for each call of a layer that lacks its event."""
        count = self._count()
        busy = set(self._owners.values())
        idle: dict[int, list[nn.Module]] = {}
        for module, places in self._called.items():
            if self._reason(module, module in busy):
                for place in places:
                    idle.setdefault(place, []).append(module)
        for i in range(count + 1):
            for module in idle.get(i, []):
                kind, reason = type(module).__name__, self._reason(module, module in busy)
                yield LayerCall(self._names[module], kind, "", "", "", reason)
            if i < count:
                yield self._call(self._events[i], self._owners.get(i))

    def _reason(self, module: nn.Module, is_busy: bool) -> str:
        """Why a module that was called made no call of ours; empty if it did or need not."""
        if isinstance(module, nn.TransformerEncoderLayer):
            called = any(child in self._called for child in module.children())
            return "" if called else "PyTorch's fast path ran, which does not call its layers"
        if is_busy or standing_for(module) is None:
            return ""
        if module in self._idle:
            return "it had nothing to compute"
        if getattr(module, "return_indices", False):
            return "it gives indices, which PyTorch's kernels alone do"
        return "no operator that enable() overrides was called for it in this thread"

    def _call(self, event: Any, module: nn.Module | None) -> LayerCall:
        layer = "" if module is None else self._names[module]
        kind = "" if module is None else type(module).__name__
        if isinstance(event, str):
            return LayerCall(layer, kind, "", "", "", event)
        why = event["why"]
        if why == "pinned" and (source := _source_of_pin(event, module)):
            why = f"pinned by {source}"
        return LayerCall(
            layer,
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
    """What pinned a call; empty if that can no longer be told."""
    info = _C.problem_info(decision["problem"])
    family = info["family"]
    sharing = [info, *map(_C.problem_info, info["coupled"])]  # they share one decision
    passes = [one["pass_name"] for one in sharing]

    def said_by(policy: str) -> str | None:
        parsed = Policy._unchecked(policy, family)
        return next((text for name in passes if (text := parsed.get(name))), None)

    ours = None if module is None else standing_for(module)
    if isinstance(module, Tunable) and ours is not None and ours.family == family:
        if (pin := pin_of(module)) is not None:
            patterns = [pin.patterns[name] for name in passes if name in pin.patterns]
            if patterns:  # the pin may have changed since the call
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
        if (value := getattr(knobs, name, None)) is not None:
            policy = Policy._unchecked(f"{passes[0]}={value}", family)
            if policy.get(passes[0]) == chosen:
                return f"knobs.{name}"
    return "knobs.flags()"


def _record(model: nn.Module, inputs: Any, train: bool) -> list[LayerCall]:
    recorder = _Recorder(model)
    with recording():
        with in_mode(model, train), recorder.tracing(), torch.set_grad_enabled(train):
            output = call_model(model, inputs)
            if train:
                loss = sum_of_outputs(output)
                with gradients_kept(leaves_behind([loss])):
                    torch.autograd.backward(loss)
        return list(recorder.calls())


def _measured(calls: list[LayerCall]) -> list[LayerCall]:
    """The calls with the time of each distinct algorithm, and with what PyTorch runs."""
    times: dict[tuple[str, str, str], tuple[float | None, int | None]] = {}
    kernels: dict[tuple[str, str], tuple[str, ...]] = {}
    done = []
    for call in calls:
        if not call.problem:
            done.append(call)
            continue
        key, place = (call.problem, call.algorithm, call.device), (call.problem, call.device)
        if key not in times:
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
    if torch._C._autograd._profiler_enabled():  # a second one would end the user's
        return ()
    rows = _C.candidates(problem, device, "backends=aten")
    if not any(row["status"] == "ok" for row in rows):
        return ()
    info = _C.problem_info(problem)
    tensors = _C.scratch(problem, device)

    def work() -> None:
        _C.run(problem, BASELINE, dict(tensors), "backends=aten")

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # dropout draws
        if info["coupled"] and info["pass_name"] != "fwd":  # it reads what its forward saved
            forward = info["coupled"][0]
            inputs = _C.scratch(forward, device) | tensors
            saved = _C.run(forward, BASELINE, inputs, "backends=aten")
            tensors |= {role: saved[role] for role in saved.keys() & info["slots"].keys()}
        work()
        return tuple(kernel_names(work, operator.call, device))


def _with_backward(call: LayerCall) -> bool:
    """Whether the call's time includes its backward."""
    return call.ms is not None and bool(led_problems(call.problem))


def _short(kernel: str) -> str:
    """The name of a kernel without its parameters."""
    return kernel.removeprefix("void ").partition("(")[0].partition("<")[0]
