"""The page of a profile: what to change first, then layers, pictures, and every algorithm."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis.html import table_html
from torch_cudnn_ext.analysis.lint import hints_table, profile_hints
from torch_cudnn_ext.analysis.page import (
    Page,
    Section,
    environment,
    note,
    replay_line,
    sorted_table,
)
from torch_cudnn_ext.analysis.pictures import (
    Bar,
    Point,
    Spot,
    backend_legend,
    bars,
    roofline,
    scatter,
)
from torch_cudnn_ext.analysis.roofline import HOST, Peaks
from torch_cudnn_ext.analysis.summary import (
    Gain,
    counted_layers,
    gains,
    is_for_target,
    label_of,
    name_of,
    pins_line,
    sentence_of,
)
from torch_cudnn_ext.analysis.tables import (
    ALGORITHM,
    Column,
    Extent,
    Table,
    bytes_text,
    layer_tables,
    milliseconds,
    plural,
    summary_table,
    version_text,
)

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement
    from torch_cudnn_ext.analysis.results import LayerProfile, Profile

_MOST_GAINS, _MOST_BARS, _NUMBERED = 5, 15, 3


def profile_page(profile: Profile, extent: Extent, facts: Mapping[str, str], replay: str) -> Page:
    """A profile as a page.

    Args:
        profile: What was measured.
        extent: Which algorithms the tables show.
        facts: The environment, by name.
        replay: The command or code that measures again; empty if it is not known.
    """
    found = gains(profile)
    numbers = {layer.problem: i for i, layer in enumerate(profile.layers, 1)}
    hints = profile_hints(profile)
    first = [
        Section("Most to gain", _most_to_gain(profile, found, numbers)),
        Section("What costs time", table_html(hints_table(hints))),
    ]
    by_tuning = sum(gain.ms for gain in found if gain.is_clear)
    if any(hint.gain_ms is not None and hint.gain_ms > by_tuning for hint in hints):
        first.reverse()
    sections = [
        *first,
        Section("Time", _time(profile, found, numbers)),
        Section("Layers", _layers(profile, found, numbers)),
        Section("Roofline", _roofline(profile, found, numbers)),
        Section("Algorithms", _algorithms(profile, extent, numbers)),
        environment(facts, "To measure again:", replay),
    ]
    title = f"Profile of {profile.title or _what(profile.layers)}"
    return Page(title, sentence_of(profile), sections, _about(profile.layers))


def _about(layers: Sequence[LayerProfile]) -> str:
    """How many problems and calls there are, and what the first computes with."""
    if len(layers) < 2:
        return ""
    calls = plural(sum(layer.count for layer in layers), "call")
    return f"{len(layers)} problems in {calls}; batch, type and layout as in {layers[0].problem}"


def _what(layers: Sequence[LayerProfile]) -> str:
    return layers[0].problem if len(layers) == 1 else f"{len(layers)} problems"


def limiter_of(layer: LayerProfile, row: Measurement) -> str:
    """What bounds the time of an algorithm: ``arithmetic``, ``memory`` or ``host``; else empty.

    The host bounds it if its own time of a call is longer than the device's.
    """
    host_ms, median_ms = row["host_ms"], row["median_ms"]
    if host_ms is not None and median_ms is not None and host_ms > median_ms:
        return HOST
    if layer.peak_flops is None or layer.peak_bytes is None:
        return ""
    return Peaks(layer.peak_flops, layer.peak_bytes).limiter(layer.flops, layer.bytes_moved)


# Sections.


_GAIN_COLUMNS = (
    Column("#", right=True),
    Column("layer"),
    Column("saves ms", right=True),
    Column("best algorithm", whole=True),
    Column("now ms", right=True),
    Column("best ms", right=True),
    Column("speed-up", right=True),
    Column("workspace", right=True),
)


def _most_to_gain(profile: Profile, found: Sequence[Gain], numbers: Mapping[str, int]) -> str:
    clear = [gain for gain in found if gain.is_clear]
    if not clear or is_for_target(profile):
        return ""
    rows = [
        [
            str(numbers[gain.profile.problem]),
            label_of(gain.profile),
            milliseconds(gain.ms),
            gain.best["algorithm"],
            milliseconds(gain.before_ms),
            milliseconds(gain.after_ms),
            f"{gain.before_ms / gain.after_ms:.2f}x" if gain.after_ms else "",
            bytes_text(gain.best["workspace_bytes"]),
        ]
        for gain in clear[:_MOST_GAINS]
    ]
    parts = [table_html(Table("", _GAIN_COLUMNS, rows))]
    calls = "Times are of all calls. " if any(g.profile.count > 1 for g in clear) else ""
    parts.append(note(f"{calls}“Now” is PyTorch's own kernel. Each layer is timed alone."))
    if line := pins_line(profile, _MOST_GAINS):
        parts += [
            note("To run the best algorithms of these layers, in all passes:"),
            replay_line(line),
        ]
    if any(gain.profile.names for gain in clear):
        parts += [
            note("To tune every layer at its first call, in code that stays as it is:"),
            replay_line('torch_cudnn_ext.enable("autotune")'),
        ]
    return "".join(parts)


def _backend(row: Measurement) -> str:
    return row["algorithm"].partition(":")[0]


def _time(profile: Profile, found: Sequence[Gain], numbers: Mapping[str, int]) -> str:
    if not found:
        return ""
    by_time = sorted(found, key=lambda gain: -max(gain.before_ms, gain.after_ms))
    lines = [
        Bar(
            f"#{numbers[gain.profile.problem]} {label_of(gain.profile)}",
            gain.before_ms,
            gain.after_ms,
            _backend(gain.best),
            f"{milliseconds(gain.before_ms)} → {milliseconds(gain.after_ms)}",
        )
        for gain in by_time[:_MOST_BARS]
    ]
    more = len(by_time) - len(lines)
    caption = "ms by layer, longest first" + (f" ({more} more in the table)" if more else "")
    kinds = [_kind_bar(kind, found) for kind in dict.fromkeys(gain.profile.op for gain in found)]
    kinds.sort(key=lambda bar: -(bar.before or 0.0))
    used = {_backend(gain.best) for gain in found}
    words = "ms by kind: PyTorch now, and best, in the colour of its largest part"
    by_kind = bars(kinds, words) if len(kinds) > 1 else ""
    pictures = f'<div class="pictures">{bars(lines, caption)}{by_kind}</div>'
    return backend_legend(used, "PyTorch now; in colour the best:") + pictures


def _kind_bar(kind: str, found: Sequence[Gain]) -> Bar:
    """The sums over one operator and pass."""
    of_kind = [gain for gain in found if gain.profile.op == kind]
    before, after = sum(g.before_ms for g in of_kind), sum(g.after_ms for g in of_kind)
    parts: dict[str, float] = {}
    for gain in of_kind:
        name = _backend(gain.best)
        parts[name] = parts.get(name, 0.0) + gain.after_ms
    backend = max(parts, key=lambda name: parts[name])
    return Bar(kind, before, after, backend, f"{milliseconds(before)} → {milliseconds(after)}")


_LAYER_COLUMNS = (
    Column("#", right=True),
    Column("layer"),
    Column("operator", whole=True, choice=True),
    Column("calls", right=True),
    Column("now ms", right=True),
    Column("best ms", right=True),
    Column("saves ms", right=True),
    Column("speed-up", right=True),
    ALGORITHM,
    Column("workspace", right=True),
    Column("limited by", whole=True, choice=True),
    Column("% peak", right=True),
)


def _layers(profile: Profile, found: Sequence[Gain], numbers: Mapping[str, int]) -> str:
    by_problem = {gain.profile.problem: gain for gain in found}
    order = [*(gain.profile for gain in found)]
    order += [layer for layer in profile.layers if layer.problem not in by_problem]
    rows = [
        _layer_row(profile, layer, by_problem.get(layer.problem), numbers[layer.problem])
        for layer in order
    ]
    table = Table("", _LAYER_COLUMNS, rows)
    summary = ""
    if any(layer.rows for layer in profile.layers):
        shown = summary_table(profile)
        summary = table_html(shown) + "".join(map(note, shown.notes()))
    words = note(
        "Times are of all calls. “Now” is PyTorch's own kernel. A layer is limited by the "
        "device's arithmetic or memory, whichever the roofline names, or by the host if that takes "
        "longer to start a kernel than the device to run it. “% peak” compares with the roofline."
    )
    return sorted_table(table) + words + summary


def _layer_row(profile: Profile, layer: LayerProfile, gain: Gain | None, number: int) -> list[str]:
    counts = any(layer is one for one in counted_layers(profile))
    best = layer.best(profile.settings.max_workspace_bytes)
    median_ms = None if best is None else best["median_ms"]
    part = f"{100 * layer.floor_ms / median_ms:.0f}" if layer.floor_ms and median_ms else ""
    name = name_of(layer) if layer.names else layer.problem.partition(" ")[2]
    return [
        str(number),
        name + ("" if counts else " (timed with its forward)"),
        layer.op,
        str(layer.count),
        milliseconds(gain.before_ms) if gain else "",
        milliseconds(layer.count * median_ms) if median_ms is not None else "",
        milliseconds(gain.ms) if gain and gain.best is not gain.before else "",
        f"{gain.before_ms / gain.after_ms:.2f}x" if gain and gain.after_ms else "",
        best["algorithm"] if best is not None else "",
        bytes_text(best["workspace_bytes"]) if best is not None else "",
        limiter_of(layer, best) if best is not None else "",
        part,
    ]


def _roofline(profile: Profile, found: Sequence[Gain], numbers: Mapping[str, int]) -> str:
    whole = sum(gain.after_ms for gain in found) or 1.0
    spots, roofs = [], []
    limited: Counter[str] = Counter()
    for rank, gain in enumerate(found):
        layer, median_ms = gain.profile, gain.best["median_ms"]
        if not (layer.flops and layer.bytes_moved and median_ms):
            continue
        if layer.peak_flops is None or layer.peak_bytes is None:
            continue
        roofs.append((layer.peak_flops, layer.peak_bytes))
        limit = limiter_of(layer, gain.best)
        limited[limit] += 1
        number = numbers[layer.problem]
        title = f"#{number} {label_of(layer)}: {gain.best['algorithm']}, limited by {limit}"
        is_numbered = rank < _NUMBERED or gain.after_ms > 0.1 * whole
        spots.append(
            Spot(
                title,
                str(number) if is_numbered else "",
                layer.flops / layer.bytes_moved,
                layer.flops / median_ms * 1e3,
                _backend(gain.best),
                gain.after_ms / whole,
            )
        )
    if not spots:
        return ""
    counts = ", ".join(f"{count} by {limit}" for limit, count in limited.most_common())
    caption = f"Best algorithm of each problem; the area grows with its time. Limited: {counts}."
    words = note(
        "The slope is the device's measured memory bandwidth, the flat line its measured "
        "arithmetic. Algorithms that need less of it than the direct one, such as FFT and "
        "Winograd, may lie above."
    )
    used = {spot.kind for spot in spots}
    keys = backend_legend(used)
    return keys + roofline(spots, roofs, caption) + words


def _algorithms(profile: Profile, extent: Extent, numbers: Mapping[str, int]) -> str:
    parts = []
    for layer in profile.layers:
        # The heading says what the title of the first table does.
        tables = layer_tables(layer, extent)
        inner = "".join(map(_described, tables))
        points = [
            Point(row["algorithm"], row["workspace_bytes"], row["median_ms"])
            for row in layer.ranked
            if row["workspace_bytes"] is not None and row["median_ms"]
        ]
        picture = scatter(points, "Time against workspace; the dashed line is the Pareto front")
        used = {point.backend for point in points}
        keys = backend_legend(used)
        again = replay_line(f'torch_cudnn_ext profile "{layer.problem}"')
        head = f"<b>#{numbers[layer.problem]} {html.escape(label_of(layer))}</b>"
        head += f" {html.escape(layer.problem)}" if layer.names else ""
        is_open = " open" if len(profile.layers) == 1 else ""
        shown = f"{picture}{keys}" if picture else ""
        parts.append(f"<details{is_open}><summary>{head}</summary>{shown}{inner}{again}</details>")
    return "\n".join(parts)


def _described(table: Table) -> str:
    """A table with the lines of its title, less the problem and its layers."""
    return note(table.title.rpartition("\n")[2]) + sorted_table(table, filter=False)


def versions() -> dict[str, str]:
    """The versions of what runs, by name."""
    found = _C.versions()
    cudnn = version_text(int(found["cudnn"]))
    return {"PyTorch": found["torch"], "cuDNN": cudnn, "CUDA runtime": found["cudart"]}


def environment_of(profile: Profile) -> dict[str, str]:
    """What the measurements depend on, by name; of recorded ones, what is known of them."""
    devices = dict.fromkeys(layer.device for layer in profile.layers if layer.rows)
    if profile.is_kept:
        return {"devices": ", ".join(devices)}
    settings = profile.settings
    if profile.is_recorded:
        days = dict.fromkeys(layer.recorded for layer in profile.layers if layer.recorded)
        return {
            "device": ", ".join(devices),
            "recorded on": ", ".join(days),
            "policy": settings.policy or "(none)",
        }
    budget = f"{settings.time_budget_s:g} s a problem" if settings.time_budget_s else "none"
    return {
        "device": _C.device_fingerprint(settings.device),
        "target": settings.target or "",
        "policy": settings.policy or "(none)",
        **versions(),
        "time budget": budget,
        "least samples": str(settings.min_samples),
        "knob search": "yes" if settings.knob_search else "no",
    }
