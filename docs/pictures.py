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


@dataclass(frozen=True)
class Theme:
    """The colours of one version of a picture."""

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
        """Begin with the background."""
        self.theme = theme
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{theme.background}"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 13,
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
    title = "Time against workspace of one layer's algorithms"
    picture = Picture(680, 450, theme, title)
    left, right, top, bottom = 52, 656, 84, 386
    most_ms, most_mib = 0.55, 240.0

    def place(mib_: float, ms: float) -> tuple[float, float]:
        x = left + mib_ / most_mib * (right - left)
        return x, bottom - ms / most_ms * (bottom - top)

    picture.text(20, 30, "One layer of ResNet-50, eleven algorithms", 18, weight=600)
    words = "3x3 convolution, f32, batch 32, 64 channels at 56x56. H100, cuDNN 9.19, 2026-11-26."
    picture.text(20, 53, words, 14, theme.faint)
    for step in range(6):
        _, y = place(0, step / 10)
        picture.line([(left, y), (right, y)], theme.line)
        picture.text(left - 8, y + 4, f"{step / 10:.1f}", 14, theme.faint, "end")
    for workspace in (0, 50, 100, 150):
        x, _ = place(workspace, 0)
        picture.text(x, bottom + 20, str(workspace), 14, theme.faint, "middle")
    picture.text(right, bottom + 20, "workspace, MiB", 14, theme.faint, "end")
    picture.text(20, top - 8, "time, ms", 14, theme.faint)
    frontier = best_under_caps(points)
    steps = [place(*frontier[0])]
    for point in frontier[1:]:
        x, y = place(*point)
        steps += [(x, steps[-1][1]), (x, y)]
    steps.append((right, steps[-1][1]))
    picture.line(steps, theme.faint, 'stroke-width="1.5" stroke-dasharray="5 4"')
    picture.text(
        right, steps[-1][1] + 20, "the best with at most this workspace", 14, theme.faint, "end"
    )
    draw_points(picture, points, place, right)
    x = float(left)
    for backend, words in {"graph": "cuDNN, graph API", "legacy": "cuDNN, classic API",
                           "aten": "PyTorch"}.items():  # fmt: skip
        picture.dot(x + 6, bottom + 45, theme.of_backend[backend])
        picture.text(x + 18, bottom + 50, words, 14)
        x += 164
    return picture.done()


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
        if len(members) == 1 and members[0].backend == "graph":  # by its engine knobs
            names = dict.fromkeys([members[0].algorithm.removeprefix("graph:")])
        words = ", ".join(names).replace("aten:default", "PyTorch's own")
        is_best = any((one.workspace_mib, one.ms) in best for one in members)
        anchor = "end" if x > right - 100 else "start"
        x += 6 if anchor == "end" else -4
        picture.text(
            x, y + (22 if is_best else -11), words, 14, anchor=anchor, halo=picture.theme.background
        )


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
    picture = Picture(640, 60 + 46 * len(LEVELS), theme, "The levels of policy")
    picture.text(24, 32, "Field by field, the uppermost level that says something decides.", 14)
    for row, (name, words) in enumerate(LEVELS.items()):
        y = 48 + 46 * row
        picture.box(24 + 10 * row, y, 592 - 20 * row, 36)
        picture.text(40 + 10 * row, y + 23, name, 13, weight=600)
        picture.text(600 - 10 * row, y + 23, words, 12, theme.faint, "end")
    return picture.done()


def layers_of_code() -> tuple[list[list[str]], list[list[str]]]:
    """The layers of the C++ and the Python half, the highest first, as `tools/check_layers` has.

    Small private modules are left out.
    """
    tables = runpy.run_path(str(STATIC.parents[1] / "tools" / "check_layers"))
    depths: dict[str, int] = {}
    for layer, below in sorted(tables["CPP"].items(), key=lambda one: len(one[1])):
        depths[layer] = 1 + max((depths.get(other, 0) for other in below), default=0)
    shown = [one for one in depths if one == "core/base" or not {"/", "."} & set(one)]
    cpp = [[one for one in shown if depths[one] == depth] for depth in range(1, 9)]
    python = [
        [one for one in names if not one.startswith("_") or one in ("_C", "_workload")]
        for names in tables["PYTHON"]
    ]
    return [row for row in reversed(cpp) if row], [row for row in reversed(python) if row]


def layers(theme: Theme) -> str:
    """The layers of the C++ and the Python half: each may use what is below."""
    cpp, python = layers_of_code()
    height = 78 + 42 * max(len(cpp), len(python))
    picture = Picture(720, height, theme, "The layers of the code")
    for x, title, rows in ((24, "csrc", cpp), (376, "torch_cudnn_ext", python)):
        picture.text(x, 30, title, 15, weight=600)
        for row, names in enumerate(rows):
            width = (320 - 6 * (len(names) - 1)) / len(names)
            for column, name in enumerate(names):
                picture.box(x + column * (width + 6), 44 + 42 * row, width, 34)
                middle = x + column * (width + 6) + width / 2
                picture.text(middle, 66 + 42 * row, name, 12, anchor="middle")
    picture.text(24, height - 14, "A part may use what is below it, and nothing above.", 12,
                 theme.faint)  # fmt: skip
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
