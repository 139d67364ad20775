"""What is enabled, pinned, ruled, set and tuned in this process now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_cudnn_ext import _C, knobs, tuning
from torch_cudnn_ext.analysis.tables import plural
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import Rule, asked_policy, declined, rules
from torch_cudnn_ext.models.pins import pin_of

_MOST = 10  # lines of one kind in the text


@dataclass(frozen=True)
class Status:
    """What decides about algorithms in this process. It prints as text.

    Attributes:
        enabled: The policy of `enable`; ``None`` if it is not enabled.
        rules: The rules of `when` that hold, the newest and strongest first.
        knobs: The knobs that are set, by name.
        pins: The policy of each pinned layer of the model, by name; empty without a model.
        tuned: How many problems the tuning table holds, by device.
        tuned_for_one_call: How many problems were measured in a call and never called again.
        untuned: How many problems ran although nothing was tuned for them, as of `untuned`.
        declined: How often calls ran PyTorch's own kernels while enabled, by operator and reason,
            as of `declined`.
        plans: The cache of plans of this thread: ``size``, ``capacity``, ``hits`` and ``misses``.
    """

    enabled: str | None
    rules: tuple[Rule, ...]
    knobs: Mapping[str, Any]
    pins: Mapping[str, str]
    tuned: Mapping[str, int]
    tuned_for_one_call: int
    untuned: int
    declined: Mapping[str, int]
    plans: Mapping[str, int]

    def __str__(self) -> str:
        """A line for each fact, with at most ten of a kind."""
        policy = "no" if self.enabled is None else self.enabled or "yes, without a policy"
        lines = [f"enabled: {policy}"]
        rules = [f"{rule!r}: matched {plural(rule.problems, 'problem')}" for rule in self.rules]
        lines += _listed("rules", rules)
        lines += _listed("knobs", [f"{name} = {value!r}" for name, value in self.knobs.items()])
        lines += _listed("pins", [f"{name}: {policy}" for name, policy in self.pins.items()])
        tuned = [f"{plural(count, 'problem')} on {device}" for device, count in self.tuned.items()]
        lines += _listed("tuned", tuned)
        if self.tuned_for_one_call:
            once = plural(self.tuned_for_one_call, "problem")
            lines.append(f"tuned in a call and never called again: {once} (on_miss says what else)")
        if self.untuned:
            lines.append(f"run untuned: {plural(self.untuned, 'problem')} (untuned() lists them)")
        left = [f"{what}: {plural(count, 'call')}" for what, count in self.declined.items()]
        lines += _listed("left to PyTorch", left)
        size, hits, misses = (self.plans[name] for name in ("size", "hits", "misses"))
        lines.append(f"plans of this thread: {size}, {hits} hits, {misses} misses")
        return "\n".join(lines)


def _listed(name: str, parts: list[str]) -> list[str]:
    if not parts:
        return [f"{name}: none"]
    more = len(parts) - _MOST
    shown = [*parts[:_MOST], *[f"{more} more"] * (more > 0)]
    return [f"{name}:", *(f"  {part}" for part in shown)]


def status(model: nn.Module | None = None) -> Status:
    """Tell what decides about algorithms now: `enable`, rules, knobs, pins and the tuning table.

    Args:
        model: A module whose pinned layers are told, too.

    Raises:
        TypeError: ``model`` is no module.

    Example:
        >>> with torch_cudnn_ext.when("softmax_fwd", use="cpu:online"):
        ...     print(status().rules)
        (when('softmax_fwd', use='cpu:online'),)
    """
    named = {} if model is None else dict(eager_model("status", model).named_modules())
    pins = {name: pin.text for name, module in named.items() if (pin := pin_of(module)) is not None}
    defaults = knobs._DEFAULTS
    values = {name: knobs._of_process(name) for name in knobs._NAMES}
    return Status(
        enabled=asked_policy(),
        rules=rules(),
        knobs={name: v for name, v in values.items() if v != defaults.get(name)},
        pins=pins,
        tuned=Counter(entry["device"] for entry in tuning.entries()),
        tuned_for_one_call=_tuned_for_one_call(),
        untuned=len({(one.problem, one.device) for one in tuning.untuned()}),
        declined=declined(),
        plans=_C.plan_cache_info(),
    )


def _tuned_for_one_call() -> int:
    calls: Counter[tuple[str, str]] = Counter()
    measured: set[tuple[str, str]] = set()
    for record in _C.executed_decisions():
        problem = record["problem"], record["device"]
        calls[problem] += record["calls"]
        if record["why"] == "tuned":
            measured.add(problem)
    return sum(calls[problem] == 1 for problem in measured)
