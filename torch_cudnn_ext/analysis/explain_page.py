"""The page of an explanation: where the time goes, and what every call runs and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_cudnn_ext.analysis.html import table_html
from torch_cudnn_ext.analysis.lint import Hint, hints_table
from torch_cudnn_ext.analysis.page import (
    Page,
    Section,
    environment,
    sorted_table,
)
from torch_cudnn_ext.analysis.pictures import Bar, backend_legend, bars
from torch_cudnn_ext.analysis.tables import Table, milliseconds, plural

if TYPE_CHECKING:
    from torch_cudnn_ext.analysis.explain import Explanation, LayerCall

_MOST_BARS = 15
_MOST_TOLD = 3
_PART = 0.8  # of the time, which the layers of the sentence make up if they can


def explanation_sentence(explanation: Explanation) -> str:
    """How many calls ran this package's operators and why, and which layers take the time."""
    calls = explanation.calls
    ours = [call for call in calls if call.op]
    if not ours:
        return f"0 of {plural(len(calls), 'call')} ran operators of this package."
    reasons = Counter(call.why for call in ours)
    told = ", ".join(f"{count} {why}" for why, count in reasons.most_common(_MOST_TOLD))
    more = len(reasons) - _MOST_TOLD
    told += f" and {plural(more, 'other reason')}" if more > 0 else ""
    share = f"{explanation.share:.0%}: {told}"
    said = f"{len(ours)} of {plural(len(calls), 'call')} ran operators of this package ({share})"
    times = times_by(ours, layer_of)
    whole = sum(times.values())
    if not whole:
        return f"{said}."
    names: list[str] = []
    part = 0.0
    for name, ms in times.most_common(_MOST_TOLD):
        names.append(name)
        part += ms / whole
        if part >= _PART:
            break
    layers = f"{plural(len(names), 'layer')}: {', '.join(names)}"
    return f"{said}; they take {milliseconds(whole)} ms, {part:.0%} of it in {layers}."


def layer_of(call: LayerCall) -> str:
    """The layer's name, or the kind of the model itself."""
    return call.layer or call.kind or "the model"


def times_by(calls: Sequence[LayerCall], key: Callable[[LayerCall], str]) -> Counter[str]:
    """The sum of milliseconds for each key; calls that were not timed do not count."""
    times: Counter[str] = Counter()
    for call in calls:
        if call.ms is not None:
            times[key(call)] += call.ms  # type: ignore[assignment]
    return times


def explanation_page(
    explanation: Explanation,
    table: Table,
    hints: Sequence[Hint],
    facts: Mapping[str, str],
    replay: str,
) -> Page:
    """An explanation as a page.

    Args:
        explanation: What ran.
        table: Its calls.
        hints: What costs time.
        facts: The environment, by name.
        replay: The command or code that explains again; empty if it is not known.
    """
    choices = ("kind", "op", "why")
    columns = [replace(one, choice=one.heading in choices) for one in table.columns]
    sections = [
        Section("What costs time", table_html(hints_table(hints))),
        Section("Time", _time(explanation.calls)),
        Section("Calls", sorted_table(replace(table, title="", columns=columns))),
        environment(facts, "To explain again:", replay),
    ]
    title = f"What {explanation.title} runs"
    return Page(title, explanation_sentence(explanation), sections)


def _time(calls: Sequence[LayerCall]) -> str:
    timed = [call for call in calls if call.ms is not None]
    if not timed:
        return ""
    charts = []
    for heading, key in (("layer", layer_of), ("operator and pass", lambda call: call.op)):
        times = times_by(timed, key)
        backends = {key(call): call.algorithm.partition(":")[0] for call in timed}
        lines = [
            Bar(name, None, ms, backends[name] if key is layer_of else "best", milliseconds(ms))
            for name, ms in times.most_common(_MOST_BARS)
        ]
        more = len(times) - len(lines)
        shown = f" ({more} more in the table)" if more else ""
        charts.append(bars(lines, f"ms by {heading}, longest first{shown}"))
    used = {call.algorithm.partition(":")[0] for call in timed}
    return backend_legend(used) + f'<div class="pictures">{"".join(charts)}</div>'
