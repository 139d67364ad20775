"""What costs time and can be changed: rules over the problems of a profile or an explanation.

Each rule is a function of one problem. What several problems have in common is one `Hint`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload.problems import is_inference, rewrite
from torch_cudnn_ext.analysis.tables import (
    Column,
    Table,
    bytes_text,
    clocks_of,
    milliseconds,
    plural,
)
from torch_cudnn_ext.ops.family import family_of

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo
    from torch_cudnn_ext.analysis.results import LayerProfile, Profile

_LEAST_GAIN = 0.02  # of a problem's time; less is not told
_LEAST_MOVE = 0.05  # of the clock
_MULTIPLE = 8  # channels of half types that tensor cores take without padding
_MOST_NAMES = 3
_HALF = ("f16", "bf16")
# Activations that `optimize` gives to the convolution before them.
_TAKEN_IN = re.compile(r"^activation_fwd .* kind=(relu|clipped_relu|swish|sigmoid|tanh)\b")


@dataclass(frozen=True)
class Hint:
    """One thing to change, for all layers that it concerns.

    Attributes:
        rule: The name of the rule, such as ``channels``.
        text: What costs time, in a sentence.
        layers: The layers, or the problem lines of those without a name.
        gain_ms: What the change saves in all calls, in milliseconds; ``None`` if not known.
        is_measured: Whether the gain is from measurements of both sides, rather than an estimate.
        change: The code that changes it.
    """

    rule: str
    text: str
    layers: tuple[str, ...]
    gain_ms: float | None
    is_measured: bool
    change: str


@dataclass(frozen=True)
class _Found:
    """What a rule finds in one problem."""

    rule: str
    text: str
    change: str
    gain_ms: float | None = None
    is_measured: bool = False
    workspace_bytes: int = 0  # what the change needs
    # The problem and its policy with the change made; empty if not known.
    changed: str = ""
    changed_policy: str = ""


# Rules that a problem line alone tells, for a GPU.


def _half_in_nchw(info: ProblemInfo, policy: str) -> Iterator[_Found]:
    family = family_of(info)
    if not family.tensor_cores or "x" not in family.images(info) or info["dtype"] not in _HALF:
        return
    x = info["slots"]["x"]
    pixels = math.prod(x["sizes"][2:])
    if x["sizes"][1] > 1 and pixels > 1 and x["strides"][1] != 1:
        yield _Found(
            "layout",
            "Convolutions of half types lie in NCHW, for which tensor cores need copies.",
            "model = model.to(memory_format=torch.channels_last)",
            changed=rewrite(info["text"], channels_last=True),
            changed_policy=policy,
        )


def _odd_channels(info: ProblemInfo, policy: str) -> Iterator[_Found]:
    if info["dtype"] not in _HALF:
        return
    # Few channels, such as those of an image, are padded by cuDNN.
    counts = {c for c in family_of(info).channels(info) if c > _MULTIPLE and c % _MULTIPLE}
    if counts:
        wanted = {math.ceil(count / _MULTIPLE) * _MULTIPLE for count in counts}
        text = info["text"]
        is_plain = "groups=1" in text.split() and ":s(" not in text
        yield _Found(
            "channels",
            f"{_numbers(counts)} channels of a half type are no multiple of {_MULTIPLE}, which "
            "excludes or slows down tensor cores.",
            f"use {_numbers(wanted)} channels, the additional ones zero",
            changed=rewrite(text, channel_multiple=_MULTIPLE) if is_plain else "",
            changed_policy=policy,
        )


def _numbers(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


def _tf32_off(info: ProblemInfo, policy: str) -> Iterator[_Found]:
    family = family_of(info)
    if not family.tensor_cores or info["dtype"] != "f32":
        return
    if _C.policy_fields(policy, info["family"]).get("allow_tf32") in (None, True):
        return
    yield _Found(
        "tf32",
        f"TF32, which has 10 bits of mantissa, is off for {family.name}: float32 does not run "
        "on tensor cores.",
        family.tf32_by,
        changed=info["text"],
        changed_policy=_C.merged_policy("allow_tf32", policy, info["family"]),
    )


_STATIC: tuple[Callable[[ProblemInfo, str], Iterator[_Found]], ...] = (
    _half_in_nchw,
    _odd_channels,
    _tf32_off,
)


def static_hints(problem: str, policy: str) -> Iterator[_Found]:
    """What a problem line and a policy tell, for a GPU."""
    info = _C.problem_info(problem)
    resolved = _C.policy_for(problem, policy)
    for rule in _STATIC:
        yield from rule(info, resolved)


# Rules that need measurements.


def _cap(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    best, capped = layer.best(), layer.best(cap)
    if cap is None or best is None or capped is None or best is capped:
        return
    gain = (capped["median_ms"] or 0.0) - (best["median_ms"] or 0.0)
    needed = best["workspace_bytes"]
    if gain > _LEAST_GAIN * (capped["median_ms"] or 0.0) and needed is not None:
        yield _Found(
            "cap",
            f"The workspace cap of {bytes_text(cap)} excludes the fastest algorithm.",
            f'policy="max_workspace={math.ceil(needed / 2**20)}MiB"',
            gain,
            True,
            needed,
        )


def _excluded_baseline(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    plain, best = layer.pytorch, layer.best(cap)
    if plain is None or best is None or plain["status"] != "excluded":
        return
    gain = (best["median_ms"] or 0.0) - (plain["median_ms"] or 0.0)
    if gain > _LEAST_GAIN * (best["median_ms"] or 0.0):
        reason = plain["reason"].removeprefix("baseline only: ")
        yield _Found(
            "constraint",
            f"PyTorch's own kernel is faster and is not admitted: {reason}.",
            "leave out the field of the policy that the reason names",
            gain,
            True,
        )


def _fallback(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    current, best = layer.find(layer.current), layer.best(cap)
    if current is None or best is None or "FALLBACK" not in current["source"]:
        return
    gain = (current["median_ms"] or 0.0) - (best["median_ms"] or 0.0)
    if gain > _LEAST_GAIN * (current["median_ms"] or 0.0):
        yield _Found(
            "fallback",
            "The policy runs an engine that cuDNN lists as a fallback.",
            'torch_cudnn_ext.enable("autotune")',
            gain,
            True,
        )


def _host(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    best = layer.best(cap)
    if best is None or best["host_ms"] is None or best["median_ms"] is None:
        return
    gain = best["host_ms"] - best["median_ms"]
    if gain > _LEAST_GAIN * best["host_ms"]:
        yield _Found(
            "host",
            "The host takes longer to start the kernels than the GPU to run them.",
            'torch_cudnn_ext.enable("autotune", replay="kernels")',
            gain,
            False,
        )


def _clocks(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    low, high, reasons = clocks_of(layer)
    if low < (1 - _LEAST_MOVE) * high:
        why = f" ({', '.join(reasons)})" if reasons else ""
        yield _Found(
            "clocks",
            f"The GPU's clock moved by more than {_LEAST_MOVE:.0%} while it was timed{why}.",
            "measure again on a GPU that is warm, cooled and does nothing else",
        )


_MEASURED = (_cap, _excluded_baseline, _fallback, _host, _clocks)


def _unfused(layer: LayerProfile, cap: int | None) -> Iterator[_Found]:
    best = layer.best(cap)
    taken = layer.op == "batch_norm_infer" or _TAKEN_IN.search(layer.problem)
    if taken and layer.names and best is not None:
        yield _Found(
            "unfused",
            "Batch norms and activations run as kernels of their own, which convolutions before "
            "them can take in.",
            "fast = torch_cudnn_ext.optimize(model, images)",
            best["median_ms"],
            False,
        )


def _with_gain(found: _Found, layer: LayerProfile, cap: int | None) -> _Found:
    """With what the change saves, if the changed problem was timed."""
    best, changed_ms = layer.best(cap), layer.changed_ms.get(found.rule)
    if best is None or best["median_ms"] is None or changed_ms is None:
        return found
    return replace(found, gain_ms=best["median_ms"] - changed_ms)


def _infers(layers: Iterable[LayerProfile]) -> bool:
    """Whether these are forwards in evaluation mode, with convolutions."""
    ops = {layer.op for layer in layers}
    passes = [_C.problem_info(layer.problem)["pass_name"] for layer in layers]
    return is_inference(passes) and "conv_fwd" in ops and "batch_norm_fwd" not in ops


def profile_hints(profile: Profile) -> list[Hint]:
    """What costs time in the problems of a profile, most to gain first, then what has no number."""
    cap = profile.settings.max_workspace_bytes
    policy = profile.settings.measured_policy
    infers = _infers(profile.layers)
    found: list[tuple[str, int, _Found]] = []
    for layer in profile.layers:
        name = ", ".join(layer.names) or layer.problem
        is_listed, is_gpu = layer.listed_for is not None, not layer.device.startswith("cpu")
        hints: list[_Found] = []
        if is_gpu or is_listed:
            hints += [_with_gain(one, layer, cap) for one in static_hints(layer.problem, policy)]
        for rule in _MEASURED if not is_listed else ():
            hints += rule(layer, cap)
        if infers and is_gpu:
            hints += _unfused(layer, cap)
        found += [(name, layer.count, one) for one in hints]
    return _joined(found)


def call_hints(calls: Iterable[tuple[str, str, str]]) -> list[Hint]:
    """What layer names, problem lines and policies tell of calls on a GPU."""
    return _joined(
        (name, 1, one) for name, line, policy in calls for one in static_hints(line, policy)
    )


def _joined(found: Iterable[tuple[str, int, _Found]]) -> list[Hint]:
    """One hint for all that have the same text and change."""
    groups: dict[tuple[str, str], list[tuple[str, int, _Found]]] = {}
    for name, count, one in found:
        key = one.rule, one.text
        groups.setdefault(key, []).append((name, count, one))
    hints = []
    for group in groups.values():
        gains = [count * one.gain_ms for _, count, one in group if one.gain_ms is not None]
        # Each layer may need another workspace; the largest serves all.
        widest = max((one for _, _, one in group), key=lambda one: one.workspace_bytes)
        names = tuple(dict.fromkeys(name for name, _, _ in group))
        gain = sum(gains) if gains else None
        if gain is not None and gain <= 0:  # the change was tried, and is no faster
            continue
        hints.append(Hint(widest.rule, widest.text, names, gain, widest.is_measured, widest.change))
    return sorted(hints, key=lambda hint: -(hint.gain_ms or 0.0))


_COLUMNS = (
    Column("rule", whole=True),
    Column("what costs time"),
    Column("saves ms", right=True),
    Column("layers"),
    Column("change"),
)


def hints_table(hints: Iterable[Hint]) -> Table:
    """Hints as cells."""
    hints = list(hints)
    rows = [[hint.rule, hint.text, _gain(hint), _layers(hint), hint.change] for hint in hints]
    several = sum(hint.gain_ms is not None for hint in hints) > 1
    note = "each saving is of this change alone; they may overlap" if several else ""
    return Table("What costs time", _COLUMNS, rows, note)


def _gain(hint: Hint) -> str:
    if hint.gain_ms is None:
        return "not measured"
    return milliseconds(hint.gain_ms) + ("" if hint.is_measured else " (estimate)")


def _layers(hint: Hint) -> str:
    more = len(hint.layers) - _MOST_NAMES
    shown = "; ".join(hint.layers[:_MOST_NAMES])
    return f"{shown} and {plural(more, 'other problem')}" if more > 0 else shown
