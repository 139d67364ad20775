"""How much of a network cuDNN computes, and what it does not, by reason.

result = coverage(model.cuda(), images.cuda())
print(result.share("pool"))
result.print()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from . import _C, report
from .conversion import converted
from .nn import Tunable
from .workload import PASSES, call_model, kept_as_it_was, network_layers

BACKENDS = {"cudnn": ("graph", "legacy")}
REASONS = 2  # at most so many a problem: the commonest


@dataclass
class Family:
    """The calls of one kind of operator, all passes.

    Attributes:
        calls: How often its operators ran.
        inside: How often with an algorithm of the backends asked for.
        exceptions: How often not, by reason.
    """

    calls: int = 0
    inside: int = 0
    exceptions: Counter[str] = field(default_factory=Counter)


@dataclass
class Coverage:
    """Which calls of a network ran algorithms of the backends asked for.

    Attributes:
        backends: These backends, as a policy names them.
        families: The calls by kind of operator.
        elsewhere: How often anything was called that is no operator of this package, by name.
    """

    backends: str
    families: dict[str, Family]
    elsewhere: dict[str, int]

    def share(self, *families: str) -> float:
        """The share of the calls of these kinds of operators, or of all, from 0 to 1."""
        chosen = [self.families[name] for name in families or self.families]
        return sum(f.inside for f in chosen) / max(1, sum(f.calls for f in chosen))

    def table(self) -> report.Table:
        """A line for each kind of operator, and below it the exceptions."""
        headings = ("operator", "calls", f"backends={self.backends}", "share")
        columns = [report.Column(h, right=i > 0) for i, h in enumerate(headings)]
        rows = [
            [name, str(family.calls), str(family.inside), f"{self.share(name):.1%}"]
            for name, family in self.families.items()
        ]
        calls = sum(family.calls for family in self.families.values())
        inside = sum(family.inside for family in self.families.values())
        rows.append(["all", str(calls), str(inside), f"{self.share():.1%}"])
        lists = [
            (f"{name}, {count} calls:", [reason])
            for name, family in self.families.items()
            for reason, count in family.exceptions.most_common()
        ]
        if self.elsewhere:
            names = [f"{name} x{count}" for name, count in self.elsewhere.items()]
            lists.append(("no operators of this package:", names))
        return report.Table("calls, forward and backward", columns, rows, "", lists)

    def print(self) -> None:
        """Print the table to standard output."""
        report.print_tables([self.table()])


def coverage(
    model: nn.Module, inputs: Any, *, backward: bool = True, backends: str = "cudnn"
) -> Coverage:
    """Run a network with its layers kept to some backends, and count what ran.

    For that while the layers are this package's, and pins are set aside. One of which these
    backends refuse a pass is left to choose freely, and is an exception with their reason; one with
    a policy of its own keeps it. The model, its gradients and PyTorch's random state stay as they
    are.

    Args:
        model: Any module, in the mode to be looked at (training or not).
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments, on the
            device to be looked at.
        backward: Whether to run the backward too.
        backends: What the policy's ``backends`` is set to: ``cudnn``, or one of them.

    Raises:
        ValueError: The model calls no operator of this package.
    """
    work = network_layers(model, inputs, PASSES if backward else ("fwd",))
    device = str(next(t.device for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)))
    refusals: dict[str, str] = {}
    refused_modules: set[str] = set()
    for layer in work.layers:
        reason = _refusal(layer.problem, device, backends)
        if reason:
            refusals[layer.problem] = reason
            refused_modules.update(layer.names)
    with converted(model), kept_as_it_was(model):
        modules = dict(model.named_modules())
        free = {n for n, m in modules.items() if isinstance(m, Tunable) and m.policy is None}
        kept_to_them = [modules[name] for name in free - refused_modules]
        _C.set_recording(True)
        try:
            for module in kept_to_them:
                module.policy = f"backends={backends}"
            _run(model, inputs, backward)
            ran = [call for call in _C.recorded() if not isinstance(call, str)]
        finally:
            _C.set_recording(False)
            for module in kept_to_them:
                module.policy = None
    names_of = {layer.problem: layer.names for layer in work.layers}
    families: dict[str, Family] = {}
    for choice in ran:
        family = families.setdefault(_C.problem_info(choice["problem"])["family"], Family())
        family.calls += 1
        if choice["algorithm"].partition(":")[0] in BACKENDS.get(backends, (backends,)):
            family.inside += 1
        else:
            problem = choice["problem"]
            names = set(names_of.get(problem, ()))
            family.exceptions[refusals.get(problem) or _other_reason(names, modules, free)] += 1
    return Coverage(backends, families, work.not_profiled)


def _refusal(problem: str, device: str, backends: str) -> str:
    """Why none of the backends takes a problem; empty where one does."""
    try:
        _C.choose(problem, device, f"backends={backends}")
    except RuntimeError:
        wanted = BACKENDS.get(backends, (backends,))
        rows = _C.candidates(problem, device, f"backends={backends}")
        reasons = Counter(row["reason"] for row in rows if row["backend"] in wanted)
        words = [reason for reason, _ in reasons.most_common(REASONS)]
        return "; ".join(words) or "no such backend has it"
    return ""


def _other_reason(names: set[str], modules: Mapping[str, nn.Module], free: set[str]) -> str:
    """Why a problem that the backends take ran elsewhere, of the modules that pose it."""
    if any(isinstance(modules[name], Tunable) for name in names - free):
        return "its layer has a policy of its own"
    if names & free:
        return "another pass of its layer is refused"
    return "no layer of this package posed it"


def _run(model: nn.Module, inputs: Any, backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        outputs = [t for t in tree_leaves(call_model(model, inputs)) if isinstance(t, torch.Tensor)]
    wanted = [p for p in model.parameters() if p.requires_grad]
    outputs = [t for t in outputs if t.requires_grad]
    if backward and outputs and wanted:
        gradients = [torch.ones_like(t) for t in outputs]
        torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
