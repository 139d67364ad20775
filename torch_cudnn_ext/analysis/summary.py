"""What a profile tells first: one sentence, and the layers with most to gain."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload.problems import PROXY_BATCH, coupled_problems
from torch_cudnn_ext._workload.tracer import is_function
from torch_cudnn_ext.analysis.lint import hints_table, profile_hints
from torch_cudnn_ext.analysis.tables import (
    LEGEND,
    Extent,
    Table,
    bytes_text,
    layer_tables,
    milliseconds,
    not_profiled,
    plural,
    recorded_text,
    summary_table,
)

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.analysis.results import LayerProfile, Profile

SHOWN_LAYERS = 5  # of a network, unless the user asks for all
MOST_TOLD = 3  # layers in the sentence
_MUCH = 0.4  # of the gain; if the layers of the sentence make up less, the first is named
_PART = 0.8  # of the gain, which the layers of the sentence make up if they can
# The standard error of a median, by the half interquartile range of one sample, for normal samples.
_ERROR_OF_MEDIAN = 1.2533 / 0.6745
_CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Gain:
    """What the best algorithm of one problem saves in all its calls.

    Attributes:
        profile: The problem's measurements.
        best: The first in rank order that keeps the profile's workspace cap.
        before_ms: The time of PyTorch's own kernel in all calls.
        after_ms: The time of ``best`` in all calls.
        error_ms: The standard error of the difference.
    """

    profile: LayerProfile
    best: Measurement
    before_ms: float
    after_ms: float
    error_ms: float

    @property
    def ms(self) -> float:
        """Milliseconds saved; negative if the best algorithm takes longer."""
        return self.before_ms - self.after_ms

    @property
    def is_clear(self) -> bool:
        """Whether another algorithm than PyTorch's own saves time beyond the noise."""
        differs = self.best["algorithm"] != self.before["algorithm"]
        return differs and self.ms > _CLEAR * self.error_ms

    @property
    def before(self) -> Measurement:
        """PyTorch's own measurement."""
        row = self.profile.pytorch
        assert row is not None
        return row


def counted_layers(profile: Profile) -> list[LayerProfile]:
    """The problems that count towards a sum.

    The time of a coupled forward includes its backward, which does not count again.
    """
    led = {line for layer in profile.layers for line in coupled_problems(layer.problem)}
    return [layer for layer in profile.layers if layer.problem not in led]


def gains(profile: Profile) -> list[Gain]:
    """What there is to gain, most first; only problems that PyTorch and another side can run."""
    found = []
    for layer in counted_layers(profile):
        before, best = layer.pytorch, layer.best(profile.settings.max_workspace_bytes)
        if before is None or best is None:
            continue
        a, b = before["median_ms"], best["median_ms"]
        if a is None or b is None:
            continue
        error = math.hypot(_error_ms(before), _error_ms(best))
        found.append(Gain(layer, best, layer.count * a, layer.count * b, layer.count * error))
    return sorted(found, key=lambda gain: -gain.ms)


def _error_ms(row: Measurement) -> float:
    return _ERROR_OF_MEDIAN * (row["spread_ms"] or 0.0) / math.sqrt(max(1, row["samples"]))


def name_of(layer: LayerProfile) -> str:
    """The layers that have the problem, or the problem itself."""
    return ", ".join(layer.names) or layer.problem


def label_of(layer: LayerProfile) -> str:
    """The first layer that has the problem, how many others do, and the pass."""
    if not layer.names:
        return layer.problem
    first, *others = layer.names
    more = f" and {len(others)} more" if others else ""
    return f"{first}{more}, {pass_of(layer)}"


def is_for_target(profile: Profile) -> bool:
    """Whether the CPU was measured in place of a GPU, whose algorithms are listed."""
    is_listed = any(layer.listed_for is not None for layer in profile.layers)
    return is_listed and not profile.is_recorded


def sentence_of(profile: Profile) -> str:
    """What the best algorithms gain over PyTorch's own, with its interval and where it is from."""
    if is_for_target(profile):
        return _of_target(profile)
    days: dict[str, list[str]] = {}
    for layer in profile.layers:
        if layer.recorded:
            days.setdefault(layer.device, []).append(layer.recorded)
    if not days:
        return _of_times(profile)
    where = " and ".join(recorded_text(*one) for one in days.items())
    return f"{where[0].upper()}{where[1:]}: {_of_times(profile)}"


def _of_times(profile: Profile) -> str:
    if profile.is_mixed:
        problems = plural(len(profile.layers), "measurement")
        return f"{problems} of several devices or under several constraints; they have no sum."
    found = gains(profile)
    before, after = (sum(getattr(g, name) for g in found) for name in ("before_ms", "after_ms"))
    what = _what(profile, found)
    clear = [gain for gain in found if gain.is_clear]
    if not found or not after:
        return (
            f"{what}: there is nothing to compare, as PyTorch's own kernel was not timed, or "
            "nothing else runs under the constraints."
        )
    if not clear:
        return (
            f"Nothing makes {what} faster than PyTorch's own kernels do "
            f"({milliseconds(before)} ms)."
        )
    # What PyTorch runs already, and what is not clearly faster, stays as it is.
    after = before - sum(gain.ms for gain in clear)
    error = math.sqrt(sum(gain.error_ms**2 for gain in clear))
    factors = [before / max(after + sign * _CLEAR * error, 1e-12) for sign in (0, 1, -1)]
    cap = profile.settings.max_workspace_bytes
    within = "" if cap is None else f" within a workspace of {bytes_text(cap)}"
    factor, low, high = (f"{factor:.2f}" for factor in factors)
    interval = f" ({low} to {high})" if low != high else ""
    return (
        f"autotune makes {what} {factor}x{interval} "
        f"faster{within}: {milliseconds(before)} -> {milliseconds(after)} ms{_source(clear)}."
    )


def _what(profile: Profile, found: Sequence[Gain]) -> str:
    if profile.title and any(layer.names for layer in profile.layers):
        rest = len(counted_layers(profile)) - len(found)
        why = "not recorded" if profile.is_recorded else "timed on one side alone"
        if rest > len(found):
            some = f"{len(found)} of {plural(rest + len(found), 'problem')}"
            return f"{some} of {profile.title} (the others: {why})"
        without = f" (without {plural(rest, 'problem')}, {why})" if rest else ""
        return f"the layers of {profile.title}{without}"
    if len(profile.layers) == 1:
        return profile.layers[0].problem.split()[0]
    of = f" of {profile.title}" if profile.title else ""
    return f"the {len(profile.layers)} problems{of}"


def _source(clear: Sequence[Gain]) -> str:
    """The layers that make up most of the gain."""
    whole = sum(gain.ms for gain in clear)
    if len(clear) < 2:
        layer = clear[0].profile
        where = f" in {label_of(layer)}" if layer.names else ""
        return f", by {clear[0].best['algorithm']}{where}"
    told: list[Gain] = []
    for gain in clear[:MOST_TOLD]:
        told.append(gain)
        if sum(one.ms for one in told) >= _PART * whole:
            break
    part = sum(one.ms for one in told) / whole
    if part < _MUCH:
        return f"; it is spread over {len(clear)} problems, most in {label_of(told[0].profile)}"
    names = "; ".join(label_of(gain.profile) for gain in told)
    return f"; {part:.0%} of it from {plural(len(told), 'problem')}: {names}"


def pass_of(layer: LayerProfile) -> str:
    """The pass, if the layer is named; a problem line begins with it."""
    return str(_C.problem_info(layer.problem)["pass_name"]) if layer.names else ""


def _of_target(profile: Profile) -> str:
    """The number of algorithms that a target accepts, or that only a driver can tell."""
    listed = [row for layer in profile.layers for row in layer.listed]
    listed_for = next(layer.listed_for for layer in profile.layers if layer.listed_for is not None)
    target = listed_for.removeprefix("target:")
    accepted = sum(row["status"] == "ok" for row in listed)
    unknown = sum(row["status"] == "needs a driver" for row in listed)
    problems = plural(len(profile.layers), "problem")
    said = f"{target} accepts {plural(accepted, 'algorithm')} for {problems} (listed, not timed)"
    if not accepted and unknown:
        said = (
            f"Only a driver can tell which algorithms {target} accepts for {problems} "
            f"({unknown} need one)"
        )
    times = ""
    if any(layer.rows for layer in profile.layers):
        smaller = any(layer.measured != layer.problem for layer in profile.layers)
        at = f" at batch {PROXY_BATCH}" if smaller else ""
        times = f"; the times are of the CPU{at}, not of the target"
    return f"{said}{times}."


def profile_tables(profile: Profile, extent: Extent) -> list[Table]:
    """The sentence, the summary, and the tables of the problems with most to gain, most first.

    If nothing was measured, there are the tables alone.
    """
    if not any(layer.rows for layer in profile.layers):
        tables = [table for layer in profile.layers for table in layer_tables(layer, extent)]
        if lists := not_profiled(profile):
            tables.append(Table(f"{profile.title or 'Summary'}: not listed", [], [], "", lists))
        return tables
    shown = with_most_to_gain(profile, extent.layers)
    tables = [Table(sentence_of(profile), [], []), summary_table(profile)]
    tables += [hints_table(hints)] if (hints := profile_hints(profile)) else []
    tables += [table for layer in shown for table in layer_tables(layer, extent)]
    if hidden := len(profile.layers) - len(shown):
        left = plural(hidden, "problem")
        tables.append(Table(f"{left} more, with less to gain ({extent.ask_for_layers})", [], []))
    for_target = any(layer.listed_for or layer.recorded for layer in profile.layers)
    if extent.legend and for_target:
        tables.append(Table("What the tables say", [], [], "", [("words", LEGEND)]))
    return tables


def with_most_to_gain(profile: Profile, most: int) -> list[LayerProfile]:
    """At most so many problems, most to gain first; all, in their order, if 0 or if they fit."""
    if not 0 < most < len(profile.layers) or profile.is_mixed:
        return profile.layers
    if is_for_target(profile):  # the times are not the target's
        return profile.layers[:most]
    gaining = [gain.profile for gain in gains(profile)]
    others = [layer for layer in profile.layers if all(layer is not one for one in gaining)]
    return [*gaining, *others][:most]


def pins_line(profile: Profile, most: int = 0) -> str:
    """The line of code that pins the best algorithms; empty if there is nothing to gain.

    Args:
        profile: What was measured.
        most: The layers of at most so many problems, those with most to gain; 0 is all.
    """
    clear = [gain for gain in gains(profile) if gain.is_clear][: most or None]
    if not clear or is_for_target(profile):
        return ""
    cap = profile.settings.max_workspace_bytes
    names = [n for gain in clear for n in gain.profile.names if not is_function(n)]
    if names:
        policies = profile.best_by_layer(cap)
        pins = {name: str(policies[name]) for name in names if name in policies}
        text = json.dumps(pins, indent=4)
        return f"torch_cudnn_ext.apply_pins(model, {text})" if pins else ""
    rule = clear[0].profile.problem, clear[0].best["algorithm"]
    return f"torch_cudnn_ext.when({', '.join(map(json.dumps, rule))})"
