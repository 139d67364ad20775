"""Pictures of reports, as SVG and HTML that need no script.

Colours are classes of ``report.css``, so that a picture fits light and dark pages. Every mark has a
``title``, which a browser shows next to the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from torch_cudnn_ext.analysis.tables import bytes_text, milliseconds

WIDTH, HEIGHT = 480, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44  # margins of the plots
_ROOM = 4  # on both sides of the ridge of a roofline, by ratio
BACKENDS = {
    "graph": "cuDNN's graph API",
    "legacy": "cuDNN's classic API",
    "aten": "PyTorch",
    "cpu": "this package's code for CPUs",
}
_NAMED = 4  # points of a front that have their names


@dataclass(frozen=True)
class Bar:
    """One line of a bar chart.

    Attributes:
        label: What the times are of.
        before: The grey bar; ``None`` if there is none.
        after: The bar in the colour of ``kind``.
        kind: A backend, or ``now``.
        text: What stands at the end of the bar.
    """

    label: str
    before: float | None
    after: float
    kind: str
    text: str


def bars(lines: Sequence[Bar], caption: str) -> str:
    """A bar chart that folds on narrow screens."""
    if not lines:
        return ""
    most = max(max(line.before or 0.0, line.after) for line in lines) or 1.0

    def strip(value: float, kind: str) -> str:
        return f'<span class="{kind}" style="width:{100 * value / most:.2f}%"></span>'

    rows = [
        f'<div class="bar"><span class="label">{escape(line.label)}</span><span class="strips">'
        + (strip(line.before, "now") if line.before is not None else "")
        + strip(line.after, line.kind)
        + f'</span><span class="value">{escape(line.text)}</span></div>'
        for line in lines
    ]
    return figure("".join(rows), caption)


def legend(kinds: Iterable[tuple[str, str]]) -> str:
    """What the colours mean: classes and their words."""
    keys = [f'<span class="key {kind}"></span>{escape(text)}' for kind, text in kinds]
    return f'<p class="note keys">{"".join(keys)}</p>'


def backend_legend(used: Collection[str], before: str = "") -> str:
    """The colours of the backends that are used; ``before`` is what the grey bars are, if any."""
    kinds = [("now", before)] * bool(before)
    return legend([*kinds, *((name, text) for name, text in BACKENDS.items() if name in used)])


def figure(content: str, caption: str) -> str:
    """A picture with its caption; nothing of nothing."""
    if not content:
        return ""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{content}</figure>"


# Plots.


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: its ends, and the texts of its ticks."""

    low: float
    high: float
    label: str
    text: Callable[[float], str]

    def part(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Three to eight values: powers of ten and some multiples, or else even steps."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [s * 10.0**d for d in decades for s in steps]
            found = [value for value in found if self.low <= value <= self.high]
            if 3 <= len(found) <= 8:
                return found
        if len(found) > 8:
            return found[:: math.ceil(len(found) / 8)]
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


def _axis(values: Iterable[float], label: str, text: Callable[[float], str]) -> Axis:
    """An axis that has room around its values."""
    known = [*values]
    low, high = min(known), max(known)
    room = (high / low) ** 0.08 * 1.12
    return Axis(low / room, high * room, label, text)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.part(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.part(value) * (HEIGHT - TOP - BOTTOM)


def _plot(x: Axis, y: Axis, marks: Sequence[str], label: str, ticks: Sequence[float] = ()) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>']
    for value in ticks or x.ticks():
        at = _x(x, value)
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        parts.append(_text(at, bottom + 17, x.text(value), "middle", "faint"))
    for value in y.ticks():
        at = _y(y, value)
        parts.append(f'<path class="axis" d="M{LEFT} {at:.1f}H{right}" stroke-opacity=".5"/>')
        parts.append(_text(LEFT - 6, at + 4, y.text(value), "end", "faint"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x.label, "middle", "faint"))
    parts.append(_text(LEFT + 6, TOP + 2, y.label, "start", "faint"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join([*parts, *marks])}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", classes: str = "") -> str:
    named = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _dot(x: float, y: float, kind: str, title: str, radius: float = 5) -> str:
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        f"<title>{escape(title)}</title></circle>"
    )


@dataclass(frozen=True)
class Point:
    """One algorithm: its workspace in bytes and its time in milliseconds."""

    algorithm: str
    workspace_bytes: int
    ms: float

    @property
    def backend(self) -> str:
        """The first part of the algorithm's text."""
        return self.algorithm.partition(":")[0]


def pareto_front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one beats in both time and workspace, by growing workspace."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.workspace_bytes, p.ms)):
        if not front or point.ms < front[-1].ms:
            front.append(point)
    return front


_LEAST_BYTES = 256.0  # where an algorithm without workspace is drawn


def scatter(points: Sequence[Point], caption: str) -> str:
    """Time against workspace, with the Pareto front; algorithms below and left of all others."""
    if len(points) < 2:
        return ""
    front = pareto_front(points)
    places = {p: _place(p.workspace_bytes) for p in points}
    x, ticks = _workspace_axis(places.values())
    y = _axis([p.ms for p in points], "ms", milliseconds)
    path = "L".join(f"{_x(x, places[p]):.1f} {_y(y, p.ms):.1f}" for p in front)
    marks = [f'<path class="front" d="M{path}"/>']
    for p in sorted(points, key=lambda p: p in front):
        title = f"{p.algorithm}: {milliseconds(p.ms)} ms, {bytes_text(p.workspace_bytes)}"
        radius = 5 if p in front else 3.5
        marks.append(_dot(_x(x, places[p]), _y(y, p.ms), p.backend, title, radius))
    for p in front[-_NAMED:]:
        at = _x(x, places[p])
        is_right = at > WIDTH / 2
        shift = -9 if is_right else 9
        anchor = "end" if is_right else "start"
        marks.append(_text(at + shift, _y(y, p.ms) + 15, p.algorithm, anchor))
    return figure(_plot(x, y, marks, caption, ticks), caption)


def _place(workspace_bytes: int) -> float:
    return max(float(workspace_bytes), _LEAST_BYTES)


def _workspace_axis(places: Iterable[float]) -> tuple[Axis, list[float]]:
    """An axis of workspaces, and its ticks."""
    x = _axis([*places, 2 * _LEAST_BYTES], "workspace", str)
    ticks = [_LEAST_BYTES, *(2.0**e for e in range(10, 41, 10) if x.low < 2.0**e < x.high)]
    return Axis(x.low, x.high, x.label, _workspace_text), ticks


def _workspace_text(place: float) -> str:
    return "0" if place == _LEAST_BYTES else bytes_text(round(place))


def time_within(points: Sequence[tuple[int, float]], label: str) -> str:
    """A plot of the least time within each bound of the workspace, which falls in steps.

    Args:
        points: Bytes and milliseconds, the smallest bound first.
        label: What the plot shows.
    """
    if not points:
        return ""
    x, ticks = _workspace_axis(_place(size) for size, _ in points)
    y = _axis([ms for _, ms in points], "ms", milliseconds)
    at = [(_x(x, _place(size)), _y(y, ms)) for size, ms in points]
    path = f"M{at[0][0]:.1f} {at[0][1]:.1f}"
    path += "".join(f"H{right:.1f}V{down:.1f}" for right, down in at[1:]) + f"H{WIDTH - RIGHT}"
    marks = [f'<path class="front" d="{path}"/>']
    for place, (size, ms) in zip(at, points, strict=True):
        marks.append(_dot(*place, "graph", f"{bytes_text(size)}: {milliseconds(ms)} ms"))
    return _plot(x, y, marks, label, ticks)


@dataclass(frozen=True)
class Spot:
    """One problem in a roofline plot.

    Attributes:
        label: The problem's name, for the pointer.
        number: What stands next to the spot; empty for nothing.
        intensity: Operations by bytes.
        flops_per_second: The rate that was reached.
        kind: A backend.
        weight: The part of the whole time, from 0 to 1.
    """

    label: str
    number: str
    intensity: float
    flops_per_second: float
    kind: str
    weight: float


def roofline(spots: Sequence[Spot], roofs: Iterable[tuple[float, float]], caption: str) -> str:
    """The rates of problems under the device's peaks of arithmetic and memory.

    Args:
        spots: The problems.
        roofs: Pairs of operations and bytes a second.
        caption: What stands above it.
    """
    if not spots:
        return ""
    peaks = [*dict.fromkeys(roofs)]
    ridges = [flops / rate for flops, rate in peaks]
    bytes_axis = [*(s.intensity for s in spots), *ridges, min(ridges) / _ROOM, max(ridges) * _ROOM]
    x = _axis(bytes_axis, "operations a byte", "{:g}".format)
    rates = [s.flops_per_second for s in spots] + [flops for flops, _ in peaks]
    rates.append(min(rates) / 2)
    y = _axis(rates, "TFLOP/s", lambda v: f"{v / 1e12:g}")
    marks = []
    for flops, rate in peaks:
        start = max(x.low, y.low / rate)  # where the slope enters the plot
        corner = flops / rate
        points = [(start, start * rate), (corner, flops), (x.high, flops)]
        path = "L".join(f"{_x(x, a):.1f} {_y(y, b):.1f}" for a, b in points)
        marks.append(f'<path class="roof" d="M{path}"/>')
    for spot in sorted(spots, key=lambda s: -s.weight):
        at = _x(x, spot.intensity), _y(y, spot.flops_per_second)
        marks.append(_dot(*at, spot.kind, spot.label, 3.5 + 8 * math.sqrt(spot.weight)))
    for spot in spots:
        if spot.number:
            at = _x(x, spot.intensity), _y(y, spot.flops_per_second)
            marks.append(_text(at[0], at[1] + 4, spot.number, "middle", "number"))
    return figure(_plot(x, y, marks, caption), caption)
