"""How much of a network cuDNN computes, and the reasons for the rest.

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
from torch_cudnn_ext.analysis.tables import Column, Table, plural, print_tables
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.convert import converted
from torch_cudnn_ext.models.enable import apply_rules, enabled, is_enabled
from torch_cudnn_ext.tuning.measure import Progress, check_progress

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Decision

REASONS = 2  # listed for a problem at most: the most common ones


@dataclass
class Family:
    """The calls of one kind of operator, all passes.

    Attributes:
        calls: How often its operators ran.
        inside: How often they ran an algorithm of the backends asked for.
        exceptions: How often they ran another, by reason.
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
        elsewhere: How often the forward called operators of PyTorch's that this package did not
            run, by name.
        declined: How often this package left a call to PyTorch, by operator and reason.
        backward: Whether there was a backward too.
    """

    backends: str
    families: dict[str, Family]
    elsewhere: dict[str, int]
    declined: dict[str, int]
    backward: bool = True

    def share(self, *families: str) -> float:
        """The share of the calls of these kinds of operators, or of all, from 0 to 1.

        Kinds without calls add nothing.
        """
        chosen = [self.families.get(name, Family()) for name in families or self.families]
        return sum(f.inside for f in chosen) / max(1, sum(f.calls for f in chosen))

    def table(self) -> Table:
        """A line for each kind of operator, and below it the exceptions."""
        headings = ("operator", "calls", f"backends={self.backends}", "share")
        columns = [Column(h, right=i > 0) for i, h in enumerate(headings)]
        rows = [
            [name, str(family.calls), str(family.inside), f"{self.share(name):.1%}"]
            for name, family in self.families.items()
        ]
        calls = sum(family.calls for family in self.families.values())
        inside = sum(family.inside for family in self.families.values())
        rows.append(["all", str(calls), str(inside), f"{self.share():.1%}"])
        lists = [
            (f"{name}, {plural(count, 'call')}", [reason])
            for name, family in self.families.items()
            for reason, count in family.exceptions.most_common()
        ]
        rest = {"left to PyTorch": self.declined, "PyTorch's own operators": self.elsewhere}
        for heading, counts in rest.items():
            if counts:
                lists.append((heading, [f"{name} x{count}" for name, count in counts.items()]))
        title = "calls, forward and backward" if self.backward else "calls, forward"
        return Table(title, columns, rows, "", lists)

    def print(self) -> None:
        """Print the table to standard output."""
        print_tables([self.table()])


def coverage(
    model: nn.Module,
    inputs: Any,
    *,
    backward: bool = True,
    backends: str | list[str] | tuple[str, ...] = "cudnn",
    progress: Progress | None = None,
) -> Coverage:
    """Run a network with its calls kept to some backends, and count what ran.

    The network runs twice: first to trace its problems, then with each problem kept to the backends
    if they support it. In both runs the layers are exchanged for this package's, `enable` is on,
    and pins of layers are set aside. A problem that the backends do not support may take any
    algorithm, and is an exception with their reason. A pin of another level, and a layer's own
    policy, still hold. The model, its gradients, the inputs and PyTorch's random state stay as they
    are.

    Args:
        model: Any module, in the mode to examine (training or not).
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments, on the
            device to examine.
        backward: Whether to run the backward too, if parameters or inputs require a gradient.
        backends: What the policy's ``backends`` is set to: ``cudnn``, or a list of backends.
        progress: Told of every problem.

    Raises:
        TypeError: ``model`` is no module, ``backends`` neither text nor list, or ``progress`` lacks
            a method of `Progress`.
        ValueError: ``backends`` names none. The model calls no operator of this package, or a lazy
            layer is not initialised.
    """
    check_progress(progress)
    model = eager_model("coverage", model)
    policy = field_text("backends", "backends", backends)
    wanted = _C.policy_fields(policy)["backends"]
    with ExitStack() as stack:
        stack.enter_context(converted(model))
        stack.enter_context(dry_run())
        if not is_enabled():
            stack.enter_context(enabled())
        traced, *_ = _ran(inputs, backward, CallTracer(model))
        pinned = {one["problem"] for one in traced if one["why"].startswith("pinned")}
        free = {one["problem"]: one["device"] for one in traced if one["problem"] not in pinned}
        unsupported = _unsupported(free, policy, progress)
        # A rule also holds for problems with more fields. Of several that hold the first counts,
        # so a problem's own rule, which is longer, comes before it.
        every = dict.fromkeys(b for op in _C.operators() for b in op["backends"])
        any_policy = f"backends={','.join(every)}"
        longest_first = sorted(free, key=lambda line: -len(line.split()))
        rules = {line: any_policy if line in unsupported else policy for line in longest_first}
        stack.enter_context(apply_rules(rules))
        tracer = CallTracer(model)
        ran, declined, ran_backward = _ran(inputs, backward, tracer)
    if not ran:
        raise ValueError(nothing_found(model))
    families: dict[str, Family] = {}
    for decision in ran:
        problem = decision["problem"]
        family = families.setdefault(_C.problem_info(problem)["family"], Family())
        family.calls += 1
        if decision["algorithm"].partition(":")[0] in wanted:
            family.inside += 1
        elif problem in unsupported:
            family.exceptions[unsupported[problem]] += 1
        elif problem in free.keys() | pinned:
            family.exceptions["it is pinned, or its layer has a policy of its own"] += 1
        else:
            family.exceptions["a first run did not meet this problem"] += 1
    named = policy.partition("=")[2]
    elsewhere, left = dict(tracer.others.most_common()), dict(declined.most_common())
    return Coverage(named, families, elsewhere, left, ran_backward)


def _unsupported(
    problems: dict[str, str], policy: str, progress: Progress | None
) -> dict[str, str]:
    """The problems, given with their devices, that a policy's backends do not support, and why.

    Problems that are coupled with an unsupported one are among them, with its reason.
    """
    backends = _C.policy_fields(policy)["backends"]
    unsupported: dict[str, str] = {}
    for done, (problem, device) in enumerate(problems.items()):
        if progress is not None:
            progress.problem(done, len(problems), problem)
        if reason := _why_unsupported(problem, device, policy, backends):
            unsupported |= dict.fromkeys((problem, *_C.problem_info(problem)["coupled"]), reason)
    return unsupported


def _why_unsupported(problem: str, device: str, policy: str, backends: Container[str]) -> str:
    """Why none of the backends supports a problem; empty if one does."""
    try:
        _C.decide(problem, device, policy)
    except RuntimeError:
        rows = _C.candidates(problem, device, policy)
        reasons = Counter(
            row["reason"] for row in rows if row["backend"] in backends and row["status"] != "ok"
        )
        words = [reason for reason, _ in reasons.most_common(REASONS)]
        return "; ".join(words) or "no such backend has it"
    return ""


def _ran(
    inputs: Any, backward: bool, tracer: CallTracer
) -> tuple[list[Decision], Counter[str], bool]:
    """What a run executed, what it left to PyTorch with the reason, and whether it had a backward.

    Each run has its own tracer, since some of PyTorch's layers run other code while it is on.
    """
    with recording():
        ran_backward = tracer.run(inputs, backward)
        calls = _C.recorded()
    decisions = [call for call in calls if not isinstance(call, str)]
    return decisions, Counter(call for call in calls if isinstance(call, str)), ran_backward
