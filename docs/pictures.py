"""Draws the pictures of README and documents, light and dark, into ``docs/_static``.

    python docs/pictures.py

They are committed, since a README cannot be built. A test draws them again and compares.
"""

import json
import runpy
from dataclasses import dataclass
from html import escape
from pathlib import Path

from measurement_pages import BENCHMARKS

STATIC = Path(__file__).resolve().parent / "_static"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SOURCE = "2026-11-26-h100.json"
RESULT = "One layer of ResNet-50 in f32"
SIZE = 15  # of text: on a phone a picture has two thirds of its width


DASHED = 'stroke-width="1.5" stroke-dasharray="5 4"'


@dataclass(frozen=True)
class Theme:
    """The colours of one version of a picture.

    A picture is transparent. The background is the colour of the page, which outlines of points and
    of text have.
    """

    background: str
    text: str
    faint: str
    line: str
    box: str
    of_backend: dict[str, str]


THEMES = {
    "light": Theme(
        "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#f6f8fa",
        {"graph": "#0969da", "legacy": "#8250df", "aten": "#bc4c00"},
    ),
    "dark": Theme(
        "#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#151b23",
        {"graph": "#4493f8", "legacy": "#ab7df8", "aten": "#f0883e"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One algorithm: its workspace in MiB and its time in milliseconds."""

    algorithm: str
    workspace_mib: float
    ms: float

    @property
    def backend(self) -> str:
        """The algorithm's backend."""
        return self.algorithm.partition(":")[0]

    @property
    def name(self) -> str:
        """The algorithm without its options, and for the classic API without its backend."""
        return self.algorithm.partition("/")[0].removeprefix("legacy:").removeprefix("graph:")


class Picture:
    """The elements of an SVG."""

    def __init__(self, width: int, height: int, theme: Theme, title: str) -> None:
        """Begin with the title."""
        self.theme = theme
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT}" role="img">',
            f"<title>{escape(title)}</title>",
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = SIZE,
        color: str = "",
        anchor: str = "start",
        weight: int = 400,
        halo: str = "",
    ) -> None:
        """One line of text; a halo hides the lines under it."""
        fill = color or self.theme.text
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}" font-weight="{weight}" paint-order="stroke" '
            f'stroke="{halo or "none"}" stroke-width="4">{escape(words)}</text>'
        )

    def line(self, points: list[tuple[float, float]], color: str, extra: str = "") -> None:
        """A line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" {extra}/>')

    def dot(self, x: float, y: float, color: str) -> None:
        """A point of a chart."""
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{color}" '
            f'stroke="{self.theme.background}" stroke-width="1.5"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, color: str = "") -> None:
        """A box with a border."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
            f'fill="{color or self.theme.box}" stroke="{self.theme.line}"/>'
        )

    def done(self) -> str:
        """The SVG."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def read_points() -> list[Point]:
    """The algorithms of the recorded profile.

    Raises:
        StopIteration: The file has no such result.
    """
    data = json.loads((BENCHMARKS / SOURCE).read_text())
    result = next(one for one in data["results"] if one["title"] == RESULT)
    column = {name: place for place, name in enumerate(result["columns"])}
    return [
        Point(row[column["algorithm"]], mib(row[column["workspace"]]), float(row[column["ms"]]))
        for row in result["rows"]
    ]


def mib(text: str) -> float:
    """A size such as ``51 MiB`` in MiB."""
    number, _, unit = text.partition(" ")
    return float(number) * {"": 0.0, "B": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2**10}[unit]


def algorithms(theme: Theme) -> str:
    """Time against workspace of one layer's algorithms."""
    points = read_points()
    picture = Picture(520, 500, theme, "Time against workspace of one layer's algorithms")
    left, right, top, bottom = 48, 504, 110, 400
    most_ms, most_mib = 0.55, 240.0

    def place(mib_: float, ms: float) -> tuple[float, float]:
        x = left + mib_ / most_mib * (right - left)
        return x, bottom - ms / most_ms * (bottom - top)

    picture.text(12, 28, "One layer of ResNet-50, eleven algorithms", 18, weight=600)
    words = "3x3 convolution, f32, batch 32, 64 channels at 56x56."
    picture.text(12, 52, words, color=theme.faint)
    words = "H100, cuDNN 9.19, 2026-11-26. Winograd is off by default."
    picture.text(12, 74, words, color=theme.faint)
    for step in range(6):
        _, y = place(0, step / 10)
        picture.line([(left, y), (right, y)], theme.line)
        picture.text(left - 8, y + 5, f"{step / 10:.1f}", color=theme.faint, anchor="end")
    for workspace in (0, 50, 100, 150, 200):
        x, _ = place(workspace, 0)
        picture.text(x, bottom + 21, str(workspace), color=theme.faint, anchor="middle")
    picture.text(right, bottom + 42, "workspace, MiB", color=theme.faint, anchor="end")
    picture.text(12, top - 4, "time, ms", color=theme.faint)
    frontier = best_under_caps(points)
    steps = [place(*frontier[0])]
    for point in frontier[1:]:
        x, y = place(*point)
        steps += [(x, steps[-1][1]), (x, y)]
    steps.append((right, steps[-1][1]))
    picture.line(steps, theme.faint, DASHED)
    draw_points(picture, points, place, right)
    draw_legend(picture, 12, bottom + 66)
    return picture.done()


def draw_legend(picture: Picture, left: float, y: float) -> None:
    """What the colours of points and the dashed line mean."""
    x = left
    for backend, words in {"graph": "cuDNN, graph API", "legacy": "cuDNN, classic API",
                           "aten": "PyTorch"}.items():  # fmt: skip
        picture.dot(x + 6, y - 5, picture.theme.of_backend[backend])
        picture.text(x + 18, y, words)
        x += 34 + 9 * len(words)
    y += 24
    picture.line([(left, y - 5), (left + 32, y - 5)], picture.theme.faint, DASHED)
    picture.text(left + 40, y, "the best with at most this workspace")


def best_under_caps(points: list[Point]) -> list[tuple[float, float]]:
    """Workspace and time of each algorithm that no other beats with as little workspace."""
    best: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda one: (one.workspace_mib, one.ms)):
        if not best or point.ms < best[-1][1]:
            best.append((point.workspace_mib, point.ms))
    return best


def draw_points(picture: Picture, points: list[Point], place: object, right: float) -> None:
    """The points, with one label for all that lie at one place."""
    assert callable(place)
    groups: list[tuple[float, float, list[Point]]] = []
    for point in points:
        x, y = place(point.workspace_mib, point.ms)
        near = next((g for g in groups if abs(g[0] - x) < 8 and abs(g[1] - y) < 8), None)
        if near:
            near[2].append(point)
        else:
            groups.append((x, y, [point]))
    best = best_under_caps(points)
    for x, y, members in groups:
        for shift, backend in enumerate(dict.fromkeys(one.backend for one in members)):
            picture.dot(x + 9 * shift, y, picture.theme.of_backend[backend])
    for x, y, members in groups:
        names = dict.fromkeys(one.name for one in members)
        lines = [", ".join(names).replace("aten:default", "PyTorch's own")]
        if len(members) == 1 and members[0].backend == "graph":  # its engine knobs too
            lines = members[0].algorithm.removeprefix("graph:").split("/")
        is_best = any((one.workspace_mib, one.ms) in best for one in members)
        anchor = "end" if x > right - 100 else "start"
        x += 6 if anchor == "end" else -4
        y += 23 if is_best else -11
        for words in lines:
            picture.text(x, y, words, anchor=anchor, halo=picture.theme.background)
            y += 20


LEVELS = {
    "the call": "policy=, a module's policy, a layer's pin",
    "rules": "when(...), by the problem",
    "enable": "enable(policy)",
    "the thread": "knobs.flags(...)",
    "the process": "knobs.conv_fwd_algo = ...",
    "the environment": "TORCH_CUDNN_EXT_*",
    "PyTorch's switches": "torch.backends.cudnn, fp32_precision, ...",
    "the heuristic": "the first admissible algorithm",
}


def levels(theme: Theme) -> str:
    """The levels of policy, the strongest above."""
    picture = Picture(520, 52 + 60 * len(LEVELS), theme, "The levels of policy")
    picture.text(12, 28, "Field by field, the uppermost level that says something decides.", 14)
    for row, (name, words) in enumerate(LEVELS.items()):
        y = 44 + 60 * row
        picture.box(12 + 10 * row, y, 496 - 20 * row, 52)
        picture.text(26 + 10 * row, y + 21, name, weight=600)
        picture.text(26 + 10 * row, y + 42, words, color=theme.faint)
    return picture.done()


def layers_of_code() -> tuple[list[list[str]], list[list[str]]]:
    """The layers of the C++ and the Python half, the highest first, as `tools/check_layers` has.

    Small private modules are left out. A folder is above all that its folders use.
    """
    tables = runpy.run_path(str(STATIC.parents[1] / "tools" / "check_layers"))
    uses: dict[str, set[str]] = {}
    for layer, below in tables["CPP"].items():
        folder = layer if layer == "core/base" else layer.partition("/")[0]
        uses[folder] = uses.get(folder, set()) | set(below) - {folder}

    def depth_of(folder: str) -> int:
        return 1 + max((depth_of(other) for other in uses[folder]), default=0)

    shown = [one for one in uses if "." not in one]
    cpp = [[one for one in shown if depth_of(one) == depth] for depth in range(1, 9)]
    python = [
        [one for one in names if not one.startswith("_") or one in ("_C", "_workload")]
        for names in tables["PYTHON"]
    ]
    return [row for row in reversed(cpp) if row], [row for row in reversed(python) if row]


def layers(theme: Theme) -> str:
    """The layers of the C++ and the Python half: each may use what is below."""
    cpp, python = layers_of_code()
    height = 78 + 46 * max(len(cpp), len(python))
    picture = Picture(600, height, theme, "The layers of the code")
    for left, of_all, title, rows in (
        (12, 330, "csrc", cpp), (358, 230, "torch_cudnn_ext", python),
    ):  # fmt: skip
        picture.text(left, 28, title, 17, weight=600)
        for row, names in enumerate(rows):
            x = float(left)
            of_letter = (of_all - 6 * (len(names) - 1)) / sum(len(name) + 2 for name in names)
            for name in names:
                width = of_letter * (len(name) + 2)
                picture.box(x, 42 + 46 * row, width, 38)
                picture.text(x + width / 2, 66 + 46 * row, name, anchor="middle")
                x += width + 6
    words = "A part may use what is below it, and nothing above."
    picture.text(12, height - 12, words, color=theme.faint)
    return picture.done()


def pictures() -> dict[str, str]:
    """The text of each picture by its file name."""
    return {
        f"{draw.__name__}-{name}.svg": draw(theme)
        for draw in (algorithms, levels, layers)
        for name, theme in THEMES.items()
    }


if __name__ == "__main__":
    for file_name, svg in pictures().items():
        (STATIC / file_name).write_text(svg)
