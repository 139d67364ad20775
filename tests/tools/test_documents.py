"""README and documents: their Python runs, their commands and links exist, and they are short.

A comment before a block of Python says that it needs a GPU, or why it is not run:

    <!-- needs a GPU -->
    <!-- not run: it starts processes -->

A block of text after ``<!-- prints -->`` is what the block of Python before it prints; ``…`` stands
for any text.
"""

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from conftest import CUDA_MARKS, ROOT

from torch_cudnn_ext import _C, __version__, _libraries, disable, is_enabled, knobs, tuning
from torch_cudnn_ext.cli.app import app

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(
        page
        for page in DOCS.rglob("*.md")
        if not {"generated", "_build"} & set(page.relative_to(DOCS).parts)
    ),
]
BLOCK = re.compile(r"^(?:<!-- ([^>]*) -->\n)?```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"(?:tools/run|python -m torch_cudnn_ext|^torch_cudnn_ext) ([a-z]+)([^`\n|]*)")
MOST_WORDS = 1500
MOST_README_LINES = 220


@dataclass
class Block:
    """A fenced block of a page: the comment before it, its language, its text."""

    comment: str
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        comment, language, code = found.groups()
        yield Block(comment or "", language, code, text.count("\n", 0, found.start(3)))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _run(page: Path, has_gpu: bool) -> None:
    """Runs the Python of a page in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(page):
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(page), "exec")
            if block.comment.startswith("not run: ") or (
                block.comment == "needs a GPU" and not has_gpu
            ):
                continue
            assert block.comment in ("", "needs a GPU"), block.comment
            output = StringIO()
            with redirect_stdout(output):
                exec(code, names)
            printed = output.getvalue()
        elif block.comment == "prints":
            parts = map(re.escape, block.text.strip().split("…"))
            assert re.search(".*".join(parts), printed, re.S), f"{page}: it prints\n{printed}"


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A page writes files where it runs, and leaves nothing behind in the process."""
    monkeypatch.chdir(tmp_path)
    # Other tests of this process ran thousands of problems, which `untuned` takes minutes to time.
    everything = _C.executed_decisions
    earlier = {one["problem"] for one in everything()}
    monkeypatch.setattr(
        _C, "executed_decisions", lambda: [o for o in everything() if o["problem"] not in earlier]
    )
    yield tmp_path
    if is_enabled():
        disable()
    knobs.reset()
    tuning.clear()
    vars(torch.backends.cudnn).pop("conv_fwd_algo", None)  # which disable() keeps


def pages_with(comment: str | None) -> list[Any]:
    """The pages that have Python, or Python with this comment."""
    return [
        pytest.param(page, id=name_of(page))
        for page in PAGES
        if any(
            block.language == "python" and comment in (None, block.comment)
            for block in blocks_of(page)
        )
    ]


@pytest.mark.parametrize("page", pages_with(None))
def test_the_python_of_a_page_runs(
    page: Path, in_a_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _run(page, has_gpu=False)
    assert not is_enabled()


@pytest.mark.parametrize("page", pages_with("needs a GPU"))
@CUDA_MARKS[0]
@CUDA_MARKS[1]
def test_the_python_of_a_page_runs_on_a_gpu(page: Path, in_a_folder: Path) -> None:
    _run(page, has_gpu=True)
    assert not is_enabled()


def test_blocks_are_found_with_their_comments(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n\n<!-- prints -->\n```text\n1\n```\n"
        "<!-- needs a GPU -->\n```python\n1 / 0\n```\n"
    )
    assert [(b.comment, b.language, b.line) for b in blocks_of(page)] == [
        ("", "python", 1), ("prints", "text", 6), ("needs a GPU", "python", 10),
    ]  # fmt: skip
    _run(page, has_gpu=False)
    with pytest.raises(ZeroDivisionError):
        _run(page, has_gpu=True)
    page.write_text("```python\nprint(1)\n```\n\n<!-- prints -->\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="it prints"):
        _run(page, has_gpu=False)


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_the_commands_of_a_page_exist(page: Path) -> None:
    _check_commands(page.read_text(), page)


def _check_commands(text: str, page: Path) -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, rest in COMMAND.findall(text):
        assert name in commands, f"{name} of {page}"
        known = {
            one for param in commands[name].params for one in (*param.opts, *param.secondary_opts)
        }
        for word in shlex.split(rest.replace("'", ""), posix=False):
            option = word.strip(".,;:()").partition("=")[0]
            if option.startswith("--"):
                assert option in known, f"{name} {option} of {page}"


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target and "generated/" not in target:  # Sphinx checks those
            assert (page.parent / target).exists(), f"{target} of {page}"


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_a_page_is_short_and_has_the_words_of_the_house(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= MOST_WORDS
    if page.name == "README.md":
        assert text.count("\n") <= MOST_README_LINES
    prose = BLOCK.sub("", text)
    assert not re.findall(r"\b(?:behind(?! PyTorch)|beside|stand-in)\b", prose, re.I)


def test_versions_are_told_alike() -> None:
    readme, changelog, citation = (
        (ROOT / name).read_text() for name in ("README.md", "CHANGELOG.md", "CITATION.cff")
    )
    oldest, next_one = re.findall(r"2\.(\d+)", _libraries.TORCH_RANGE)
    assert f"PyTorch 2.{oldest} to 2.{int(next_one) - 1}" in readme
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    assert f"Python {pythons[0]} to {pythons[-1]}" in readme
    assert f"\n## {__version__} (" in changelog and f"\nversion: {__version__}\n" in citation


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The modules that make pages and pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        names = ("algorithm_words", "measurement_pages", "reference_pages", "pictures")
        yield {name: importlib.import_module(name) for name in names}


def test_the_pictures_are_those_of_the_measurements(modules: dict[str, ModuleType]) -> None:
    for name, svg in modules["pictures"].pictures().items():
        assert (DOCS / "_static" / name).read_text() == svg, "run python docs/pictures.py"


def test_every_algorithm_has_words(modules: dict[str, ModuleType]) -> None:
    named = {
        f"{op['family']} {algorithm}"
        for op in _C.operators()
        for algorithm in modules["reference_pages"].named_algorithms(op)
        if algorithm != "aten:default"
    }
    assert modules["algorithm_words"].WORDS.keys() == named


def test_the_reference_is_made_of_the_code(modules: dict[str, ModuleType]) -> None:
    pages = modules["reference_pages"].pages()
    folder = modules["reference_pages"].FOLDER
    assert "`--knob-search`" in pages[f"{folder}command-line.md"]
    settings = pages[f"{folder}settings.md"]
    for name in dir(knobs):
        if name not in ("flags", "reset"):
            assert settings.count(f"| `{name}`<br>`TORCH_CUDNN_EXT_{name.upper()}` |") == 1, name
    assert "torch_cudnn_ext::conv2d(" in pages[f"{folder}schemas.md"]
    assert "| `convert` | `ValueError` |" in pages[f"{folder}exceptions.md"]
    for operator in _C.operators():
        assert f"## {operator['family']}\n" in pages[f"{folder}operators.md"]
        assert f"## {operator['family']}\n" in pages[f"{folder}algorithms.md"]


def test_measurements_are_checked(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    make = modules["measurement_pages"]
    pages = make.pages()
    assert len(pages) == 1 + len([*make.BENCHMARKS.glob("*.json")])
    for name, text in pages.items():
        _check_commands(text, DOCS / name)
    with pytest.raises(ValueError, match="wanted 2 cells"):
        make.markdown_table(["a", "b"], [["1"]])
    file = tmp_path / "one.json"
    file.write_text('{"gpu": "A", "date": "B", "software": "C", "conditions": []}')
    with pytest.raises(ValueError, match="results is None, wanted a list"):
        make.read(file)
