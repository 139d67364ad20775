"""How much of a network cuDNN computes, and what it does not, by reason.

result = coverage(model.cuda(), images.cuda())
print(result.share("pool"))
result.print()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import field_text
from torch_cudnn_ext._workload.network import nothing_found
from torch_cudnn_ext._workload.running import dry_run, recording
from torch_cudnn_ext._workload.tracer import CallTracer
from torch_cudnn_ext.analysis import tables as report
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.convert import converted
from torch_cudnn_ext.models.enable import apply_rules, enabled, is_enabled

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Decision

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
        elsewhere: How often the forward called operators of PyTorch's that ours did not run, by
            name.
        declined: How often ours left a call to PyTorch, by operator and reason.
        backward: Whether there was a backward too.
    """

    backends: str
    families: dict[str, Family]
    elsewhere: dict[str, int]
    declined: dict[str, int]
    backward: bool = True

    def share(self, *families: str) -> float:
        """The share of the calls of these kinds of operators, or of all, from 0 to 1.

        Kinds of which there were no calls count as none.
        """
        chosen = [self.families.get(name, Family()) for name in families or self.families]
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
            (f"{name}, {report.plural(count, 'call')}", [reason])
            for name, family in self.families.items()
            for reason, count in family.exceptions.most_common()
        ]
        rest = {"left to PyTorch": self.declined, "PyTorch's own operators": self.elsewhere}
        for heading, counts in rest.items():
            if counts:
                lists.append((heading, [f"{name} x{count}" for name, count in counts.items()]))
        title = "calls, forward and backward" if self.backward else "calls, forward"
        return report.Table(title, columns, rows, "", lists)

    def print(self) -> None:
        """Print the table to standard output."""
        report.print_tables([self.table()])


def coverage(
    model: nn.Module,
    inputs: Any,
    *,
    backward: bool = True,
    backends: str | list[str] | tuple[str, ...] = "cudnn",
) -> Coverage:
    """Run a network with its calls kept to some backends, and count what ran.

    For that while the layers are this package's, pins are set aside, and what else `enable` runs is
    ours too. The network runs twice: to see its problems, and with those kept to the backends that
    these do not refuse. A refused one chooses freely, and is an exception with their reason; what
    is pinned, or a layer with a policy of its own, keeps to that. The model, its gradients, the
    inputs and PyTorch's random state stay as they are.

    Args:
        model: Any module, in the mode to be looked at (training or not).
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments, on the
            device to be looked at.
        backward: Whether to run the backward too, where parameters or inputs want a gradient.
        backends: What the policy's ``backends`` is set to: ``cudnn``, or a list of backends.

    Raises:
        TypeError: ``model`` is no module, or ``backends`` neither text nor list.
        ValueError: ``backends`` names none. The model calls no operator of this package, or a lazy
            layer is not initialised.
    """
    model = eager_model("coverage", model)
    policy = field_text("backends", "backends", backends)
    wanted = _C.policy_fields(policy)["backends"]
    with ExitStack() as stack:
        stack.enter_context(converted(model))
        stack.enter_context(dry_run())
        if not is_enabled():
            stack.enter_context(enabled())
        seen, *_ = _ran(inputs, backward, CallTracer(model))
        pinned = {one["problem"] for one in seen if one["why"].startswith("pinned")}
        free = {one["problem"]: one["device"] for one in seen if one["problem"] not in pinned}
        refusals = _refusals(free, policy)
        lines = free.keys() - refusals.keys()
        # A line is a rule for those that say more, too: of two that hold, that one's own is first.
        every = dict.fromkeys(b for op in _C.operators() for b in op["backends"])
        any_policy = f"backends={','.join(every)}"
        longest_first = sorted(free, key=lambda line: -len(line.split()))
        rules = {line: any_policy if line in refusals else policy for line in longest_first}
        stack.enter_context(apply_rules(rules))
        tracer = CallTracer(model)
        ran, declined, went_back = _ran(inputs, backward, tracer)
    if not ran:
        raise ValueError(nothing_found(model))
    families: dict[str, Family] = {}
    for choice in ran:
        problem = choice["problem"]
        family = families.setdefault(_C.problem_info(problem)["family"], Family())
        family.calls += 1
        if choice["algorithm"].partition(":")[0] in wanted:
            family.inside += 1
        elif problem in refusals:
            family.exceptions[refusals[problem]] += 1
        elif problem in lines | pinned:
            family.exceptions["it is pinned, or its layer has a policy of its own"] += 1
        else:
            family.exceptions["a first run did not meet this problem"] += 1
    elsewhere = dict(tracer.others.most_common())
    named = policy.partition("=")[2]
    return Coverage(named, families, elsewhere, dict(declined.most_common()), went_back)


def _refusals(problems: dict[str, str], policy: str) -> dict[str, str]:
    """By problem, each with its device, why the backends do not take it or what it shares."""
    backends = _C.policy_fields(policy)["backends"]
    refusals: dict[str, str] = {}
    for problem, device in problems.items():
        if reason := _refusal(problem, device, policy, backends):
            refusals |= dict.fromkeys((problem, *_C.problem_info(problem)["coupled"]), reason)
    return refusals


def _refusal(problem: str, device: str, policy: str, backends: Container[str]) -> str:
    """Why none of the backends takes a problem; empty where one does."""
    try:
        _C.decide(problem, device, policy)
    except RuntimeError:
        rows = _C.candidates(problem, device, policy)
        refused = (row for row in rows if row["backend"] in backends and row["status"] != "ok")
        reasons = Counter(row["reason"] for row in refused)
        words = [reason for reason, _ in reasons.most_common(REASONS)]
        return "; ".join(words) or "no such backend has it"
    return ""


def _ran(
    inputs: Any, backward: bool, tracer: CallTracer
) -> tuple[list[Decision], Counter[str], bool]:
    """What a run executed, what it left to PyTorch with the reason, and whether it had a backward.

    Args:
        inputs: As of `coverage`.
        backward: Whether to run the backward too.
        tracer: Sees what the forward calls. Some of PyTorch's layers take another way then, so each
            run has one.
    """
    with recording():
        has_backward = tracer.run(inputs, backward)
        calls = _C.recorded()
    choices = [call for call in calls if not isinstance(call, str)]
    return choices, Counter(call for call in calls if isinstance(call, str)), has_backward
