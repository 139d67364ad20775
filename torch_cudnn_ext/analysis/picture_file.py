"""Pictures of reports as files of their own: SVG, or PNG by a library that is installed."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch_cudnn_ext._files import check_path, naming, write_text
from torch_cudnn_ext.analysis.page import stylesheet
from torch_cudnn_ext.analysis.pictures import WIDTH

_TO_PNG = "cairosvg"
_PNG_WIDTH = 3 * WIDTH  # pixels
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def check_picture(path: str | os.PathLike[str]) -> None:
    """Check that a picture can be written to a file of this name.

    Raises:
        TypeError: ``path`` is no path.
        ValueError: It ends neither in ``.svg`` nor in ``.png``, or nothing is installed that writes
            PNG.
    """
    check_path(path)
    kind = Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise ValueError(f"path: got {os.fspath(path)!r}, wanted a name that ends in .svg or .png")
    if kind == ".png" and find_spec(_TO_PNG) is None:
        raise ValueError(
            f"path: got {os.fspath(path)!r}, which needs {_TO_PNG} (pip install {_TO_PNG}), wanted "
            "a name that ends in .svg"
        )


def write_picture(path: str | os.PathLike[str], picture: str) -> None:
    """Write a picture of `pictures` to a file, by the end of its name.

    Raises:
        TypeError: As `check_picture`.
        ValueError: As `check_picture`.
        OSError: The file cannot be written, or the library does not find one of its own.
    """
    check_picture(path)
    svg = standalone(picture)
    if Path(path).suffix.lower() == ".svg":
        write_text(path, svg)
        return
    library: Any = import_module(_TO_PNG)
    with naming(path):
        Path(path).write_bytes(library.svg2png(bytestring=svg.encode(), output_width=_PNG_WIDTH))


def standalone(picture: str) -> str:
    """An SVG of a page as a file, with the page's style for light pages and a background."""
    css = stylesheet()
    colours = dict(re.findall(r"--(\w+): (#\w+)", css.partition("@media")[0]))
    # The size of a picture on a page is none of a file's.
    rules = [line for line in css.splitlines() if re.match(r"svg (?!\{)|\.graph ", line)]
    style = re.sub(r"var\(--(\w+)\)", lambda name: colours[name[1]], "".join(rules))
    style = style.replace("font-family: inherit", f"font-family: {_FONT}")
    head, _, rest = picture.removeprefix("<svg ").partition(">")
    background = f'<rect width="100%" height="100%" fill="{colours["page"]}"/>'
    root = f'<svg xmlns="http://www.w3.org/2000/svg" {head}>'
    return f"{root}<style>{style}</style>{background}{rest}\n"
