"""Reports as pages of HTML: what they hold, and how a browser shows them."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER, only_layer
from profile_helpers import made_network, row
from torch import nn

from torch_cudnn_ext import explain, profile_model
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis import Explanation, compare
from torch_cudnn_ext.analysis.bench_page import bench_page, bench_sentence
from torch_cudnn_ext.analysis.page import Page, Section, replay_line
from torch_cudnn_ext.analysis.pictures import Axis, Bar, Point, Spot, bars, pareto_front, roofline
from torch_cudnn_ext.analysis.profile import list_layer
from torch_cudnn_ext.analysis.profile_page import limiter_of
from torch_cudnn_ext.analysis.result_files import parse_results
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.tables import Column, Table

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), "")
VOID = {"meta", "input", "br", "circle", "path"}


class Reader(HTMLParser):
    """Tells whether elements are nested, and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action"):
                self.links.append(value or "")
            if name == "id":
                self.anchors.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & {*self.open}:
            self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    assert {f"#{anchor}" for anchor in reader.anchors} == {*reader.links}
    assert not re.search(r"https?:|@import|url\(", page), "a page needs no network"
    return reader


@pytest.fixture
def network() -> Profile:
    return made_network()


def test_the_page_of_a_profile_is_whole(network: Profile) -> None:
    page = network.to_html(replay="torch_cudnn_ext profile --model net")
    text = " ".join(" ".join(read(page).texts).split())
    for words in (
        "Profile of net",
        network.sentence(),
        "torch_cudnn_ext profile --model net",
        f'torch_cudnn_ext profile "{LINE}"',
        '"conv1": "fwd=graph:eng4"',
        'torch_cudnn_ext.enable("autotune")',
        "Limited: 3 by arithmetic.",
        torch.__version__,
    ):
        assert words in text, words
    assert "<last>" in text and "<last>" not in page
    assert page.count("<details>") == 3 and page.count('class="front"') == 2
    assert "To measure again" not in network.to_html()


def test_a_page_without_data_is_small() -> None:
    assert len(Page("", "", ()).html()) < 20_000


def test_a_measured_profile_and_what_it_is_compared_with_are_pages(measured: Profile) -> None:
    text = "".join(read(measured.to_html()).texts)
    for one in only_layer(measured).ranked:
        assert one["algorithm"] in text
    assert "same" in "".join(read(compare(measured, measured).to_html()).texts)
    frame = measured._repr_html_()
    assert frame.startswith("<iframe ") and frame.count("<") == 2


def test_a_list_for_a_target_is_a_page() -> None:
    listed = list_layer(Layer(LINE), "target:h200", "")
    result = Profile([listed], dataclasses.replace(make_settings("cpu"), target="h200"))
    text = "".join(read(result.to_html()).texts)
    assert "h200 accepts " in text and "apply_pins" not in text


def test_the_page_of_an_explanation() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    explained = explain(model, torch.randn(1, 3, 8, 8))
    text = "".join(read(explained.to_html(replay="again")).texts)
    for words in (explained.sentence(), "What Sequential runs", "again", "ms by layer"):
        assert words in text
    text = "".join(read(explain(model, torch.randn(1, 3, 8, 8), measure=False).to_html()).texts)
    assert "ms by layer" not in text
    assert "srcdoc=" in explained._repr_html_()
    assert read(Explanation([], "Empty").to_html())


def test_the_limiter(network: Profile) -> None:
    first = network.layers[0]
    best = first.rows[0]
    assert limiter_of(first, best) == "arithmetic"
    assert limiter_of(dataclasses.replace(first, bytes_moved=1e9), best) == "memory"
    assert limiter_of(first, row("graph:eng4", 1.0, host_ms=1.1)) == "host"
    assert limiter_of(dataclasses.replace(first, peak_flops=None), best) == ""


def test_the_page_of_a_bench() -> None:
    ratios = {"ours_ms": 1.0, "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1}
    record = {"problem": LINE, "names": ["conv1"], "count": 1, "algorithm": "graph:eng4"} | ratios
    slow = {"ratio": 0.5, "ratio_low": 0.4, "ratio_high": 0.6}
    text = json.dumps({"comparisons": [record, record | {"problem": OTHER} | slow]})
    items = [*parse_results(text, "bench").items.values()]
    table = Table("ours against PyTorch's best", [Column("a")], [["1"], ["2"]])
    page = bench_page(items, [table], {"device": "gpu"}, "again").html()
    said = "".join(read(page).texts)
    for words in (
        "Ours against PyTorch's best",
        "Ours is as fast as PyTorch, by the geometric mean of 2 comparisons: 1 faster, 1 slower",
        "2.00 (1.90 to 2.10)",
        "0.50 (0.40 to 0.60)",
        "again",
    ):
        assert words in said
    assert "Nothing was compared." in "".join(read(bench_page([], [], {}, "").html()).texts)
    assert bench_sentence(items[:1]).startswith("Ours is 2.00x faster than PyTorch, ")


# Pictures.


def test_the_front_holds_what_no_other_beats() -> None:
    points = [Point(f"cpu:{w}", w, ms) for w, ms in ((0, 4.0), (1, 4.0), (2, 3.0), (9, 1.0))]
    points.append(Point("cpu:worse", 8, 3.5))
    assert [p.workspace_bytes for p in pareto_front(points)] == [0, 2, 9]
    assert pareto_front([]) == []


@pytest.mark.parametrize(("low", "high"), [(0.011, 0.012), (1, 1000), (0.9, 1.2), (1e-3, 1e6)])
def test_an_axis_has_some_ticks(low: float, high: float) -> None:
    ticks = Axis(low, high, "", str).ticks()
    assert 2 <= len(ticks) <= 8 and all(low <= tick <= high for tick in ticks)


def test_pictures_of_nothing_are_empty() -> None:
    assert bars([], "x") == roofline([], [], "x") == ""
    assert "width:0.00%" in bars([Bar("a", None, 0.0, "now", "0")], "x")
    assert "<title>" in roofline([Spot("a", "", 1.0, 1e12, "aten", 1.0)], [(2e12, 1e12)], "x")


# In a browser.


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[str, str], dict[str, Any]]:
    """Runs a script at the end of a page, and gives what it returns, and all errors."""
    if not BROWSER:
        pytest.skip("no Chromium")

    def browse(page: str, script: str) -> dict[str, Any]:
        errors = (
            "<script>window.errors = []; onerror = (e) => { errors.push(String(e)); };</script>"
        )
        ending = (
            f"<script>(async () => {{ const told = await (async () => {{{script}}})(); "
            "document.documentElement.dataset.told = JSON.stringify({told, errors}); })();</script>"
        )
        page = page.replace("<head>", f"<head>{errors}").replace("</body>", f"{ending}</body>")
        file = tmp_path / "page.html"
        file.write_text(page)
        done = subprocess.run(
            [
                *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr"),
                *("--window-size=500,900", "--virtual-time-budget=10000", file.as_uri()),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "CONSOLE" not in done.stderr, done.stderr
        (told,) = re.findall(r'data-told="([^"]*)"', done.stdout)
        found: dict[str, Any] = json.loads(unescape(told))
        assert found["errors"] == []
        return found

    return browse


def test_tables_are_sorted_and_filtered(
    network: Profile, browse: Callable[[str, str], dict[str, Any]]
) -> None:
    script = """
        const table = document.querySelector("#layers table");
        const cells = (i) => [...table.tBodies[0].rows].map((row) => row.cells[i].textContent);
        const click = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
        const shown = () => [...table.tBodies[0].rows].filter((row) => !row.hidden).length;
        const told = {before: cells(0)};
        click(5); told.down = cells(5);
        click(5); told.up = cells(5);
        click(9); told.bytes = cells(9);
        const input = document.querySelector("#layers input");
        const type = (text) => { input.value = text; input.dispatchEvent(new Event("input")); };
        type("CONV1 eng4"); told.typed = shown();
        type("nothing"); told.none = shown();
        type("");
        const select = document.querySelector("#layers select");
        select.value = "softmax_fwd"; select.dispatchEvent(new Event("input"));
        told.selected = shown();
        told.count = document.querySelector("#layers .filter .note").textContent;
        told.wide = document.documentElement.scrollWidth > innerWidth;
        told.ms = performance.now();
        return told;
    """
    told = browse(network.to_html(replay="again"), script)["told"]
    assert told["before"] == ["1", "2", "3"]
    assert told["down"] == ["2", "1", "0.9"] and told["up"] == ["0.9", "1", "2"]
    assert told["bytes"] == ["64 MiB", "1 MiB", "0"]
    assert (told["typed"], told["none"], told["selected"]) == (1, 0, 1)
    assert told["count"] == "1 of 3 rows"
    assert not told["wide"]
    assert told["ms"] < 1000


def test_a_line_is_copied_or_selected(
    network: Profile, browse: Callable[[str, str], dict[str, Any]]
) -> None:
    script = """
        const line = [...document.querySelectorAll(".replay")].at(-1);
        const button = line.querySelector("button");
        button.click();
        await new Promise((resolve) => setTimeout(resolve, 200));
        return [button.textContent, getSelection().toString()];
    """
    told = browse(network.to_html(replay="again"), script)["told"]
    assert told in (["Copied", ""], ["Press Ctrl+C", "again"])


def test_other_pages_open(measured: Profile, browse: Callable[[str, str], dict[str, Any]]) -> None:
    explained = explain(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    for page in (compare(measured, measured).to_html(), explained.to_html(), measured.to_html()):
        told = browse(page, 'return document.querySelectorAll("th button").length')["told"]
        assert told > 3


def test_a_notebook_shows_the_page(browse: Callable[[str, str], dict[str, Any]]) -> None:
    page = Page("a", "b", [Section("<c>", replay_line('x "y" & <z>'))])
    outer = f"<!DOCTYPE html><html><head></head><body>{page.frame()}</body></html>"
    told = browse(outer, 'return document.querySelector("iframe").srcdoc')["told"]
    assert told == page.html()


def test_profile_model_has_a_page() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    result = profile_model(
        model, torch.randn(1, 3, 8, 8), train=False, device="cpu", time_budget_s=0.5
    )
    assert "Profile of Sequential" in result.to_html()


def test_standard_output_keeps_what_it_has(tmp_path: Path) -> None:
    code = (
        "from torch_cudnn_ext._files import write_text\n"
        "print('before')\n"
        "write_text('/dev/stdout', 'a page')"
    )
    log = tmp_path / "log"
    log.write_text("older\n")
    with log.open("a") as file:
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=file,
            check=True,
        )
    assert log.read_text() == "older\nbefore\na page"
