"""Pictures of reports as files."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from torch_cudnn_ext.analysis import picture_file
from torch_cudnn_ext.analysis.picture_file import check_picture, standalone, write_picture
from torch_cudnn_ext.analysis.pictures import HEIGHT, WIDTH, time_within

POINTS = [(0, 4.0), (2**20, 3.0), (2**26, 1.5)]
SVG = "{http://www.w3.org/2000/svg}"


def test_time_falls_in_steps_as_the_bound_grows() -> None:
    root = ElementTree.fromstring(standalone(time_within(POINTS, "a < b")))
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    assert dots == sorted(dots) and all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in dots)
    assert [y for _, y in dots] == sorted(y for _, y in dots)  # y grows downwards
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles == ["0: 4 ms", "1 MiB: 3 ms", "64 MiB: 1.5 ms"]
    (path,) = (p.attrib["d"] for p in root.iter(f"{SVG}path") if p.attrib["class"] == "front")
    assert path.count("V") == 2 and path.endswith(f"H{WIDTH - 14}")
    assert root.attrib["aria-label"] == "a < b"
    assert time_within([], "nothing") == ""
    one = ElementTree.fromstring(standalone(time_within(POINTS[:1], "one")))
    assert len([*one.iter(f"{SVG}circle")]) == 1


def test_a_file_needs_no_page() -> None:
    text = standalone(time_within(POINTS, "plot"))
    assert (
        "max-width" not in text
        and "var(" not in text
        and "inherit" not in text
        and 'fill="#ffffff"' in text
    )
    assert ".graph { fill: #0969da; }" in text and "svg .axis { stroke: #d1d9e0;" in text


def test_files_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = time_within(POINTS, "plot")
    write_picture(tmp_path / "plot.SVG", picture)
    assert (tmp_path / "plot.SVG").read_text() == standalone(picture)
    for name in ("plot.pdf", "plot", "svg"):
        with pytest.raises(ValueError, match=r"path: got '.*', wanted a name that ends in .svg or"):
            check_picture(tmp_path / name)
    with pytest.raises(TypeError, match="path"):
        check_picture(3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="missing"):
        write_picture(tmp_path / "missing" / "plot.svg", picture)
    monkeypatch.setattr(picture_file, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"which needs cairosvg \(pip install cairosvg\), wanted a"
    ):
        write_picture(tmp_path / "plot.png", picture)
    given = dict[str, Any]()

    def svg2png(**options: Any) -> bytes:
        given.update(options)
        return b"png"

    monkeypatch.setattr(picture_file, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "cairosvg", SimpleNamespace(svg2png=svg2png))
    write_picture(tmp_path / "plot.png", picture)
    assert (tmp_path / "plot.png").read_bytes() == b"png"
    assert given["bytestring"].decode() == standalone(picture)
