"""Tables and records of profiles: text, CSV, JSON, Markdown and HTML."""

import copy
import csv
import dataclasses
import io
import json
import math
import re
import sys
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER, only_layer

from torch_cudnn_ext import profile, tuning
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.profile import list_layer, measure_layers, profile_of_table
from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.tables import (
    Extent,
    Table,
    bytes_text,
    layer_tables,
    milliseconds,
    print_tables,
    summary_table,
)


def test_json_has_no_nan(measured: Profile) -> None:
    result = dataclasses.replace(measured, layers=[copy.deepcopy(only_layer(measured))])
    result.layers[0].rows[0]["error"] = float("nan")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    layer = json.loads(result.to_json(), parse_constant=refuse)["layers"][0]
    assert layer["rows"][0]["error"] is None
    assert math.isnan(result.layers[0].rows[0]["error"])


def test_formats_hold_the_same_rows(measured: Profile) -> None:
    records = measured.records()
    frame = measured.to_pandas()
    assert list(frame["algorithm"]) == [record["algorithm"] for record in records]
    read = list(csv.DictReader(io.StringIO(measured.to_csv())))
    assert [row["algorithm"] for row in read] == list(frame["algorithm"])
    assert float(read[0]["median_ms"]) == records[0]["median_ms"]
    whole = json.loads(measured.to_json())
    assert [row["algorithm"] for row in whole["layers"][0]["rows"]] == list(frame["algorithm"])
    assert whole["versions"]["torch"] == torch.__version__
    for text in (measured.to_markdown(), measured._repr_html_()):
        for row in only_layer(measured).ranked:
            assert row["algorithm"] in text


def test_the_host_s_time_has_a_column_where_it_is_known() -> None:
    result = profile(LINE, device="cpu", time_budget_s=0.2)
    assert all(record["host_ms"] is None for record in result.records())
    plain = result.to_markdown()
    assert "host us" not in plain and "ranked by" not in plain
    only_layer(result).ranked[0]["host_ms"] = 0.01234
    for text in (result.to_markdown(), result._repr_html_()):
        assert "host us" in text and "12.3" in text
        assert "ranked by the longer of ms and host us" in text
    headings = next(line for line in result.to_markdown().splitlines() if "host us" in line)
    assert "| spread | host us | workspace |" in headings
    assert result.records()[0]["host_ms"] == result.to_pandas()["host_ms"][0] == 0.01234
    assert next(csv.DictReader(io.StringIO(result.to_csv())))["host_ms"] == "0.01234"
    assert json.loads(result.to_json())["layers"][0]["rows"][0]["host_ms"] == 0.01234


def test_energy_and_clocks_are_told_where_they_are_known() -> None:
    result = Profile([_made()], make_settings("cpu"))
    assert "mJ" not in result.to_markdown() and "clock" not in result.to_markdown()
    changes: Any = {"energy_mj": 41.234, "energy_spread_mj": 0.31, "throttled": ["power cap"]}
    steady = changes | {"clock_low_mhz": 1980, "clock_high_mhz": 1980}
    text = Profile([_made(**steady)], make_settings("cpu")).to_markdown()
    assert "| mJ | workspace |" in text and "| 41.23 ± 0.31 |" in text
    assert "measured on cpu, SM clock 1980 MHz**" in text
    moved = changes | {"clock_low_mhz": 1755, "clock_high_mhz": 1980}
    profile = Profile([_made(**moved)], make_settings("cpu"))
    assert "measured on cpu, SM clock 1755 to 1980 MHz**" in profile.to_markdown()
    record, _ = csv.DictReader(io.StringIO(profile.to_csv()))
    assert record["energy_mj"] == "41.234" and record["clock_low_mhz"] == "1755"
    assert record["throttled"] == "power cap"


def test_titles_and_footers_are_what_they_are_in_every_format(measured: Profile) -> None:
    line, where = only_layer(measured).problem, "measured on cpu"
    marked = measured.to_markdown()
    plain = measured.to_html().partition("<main>")[2].partition("</main>")[0]
    assert f"<b>#1 {line}</b>" in plain and f'<p class="note">{where}</p>' in plain
    assert f"**{line}**  \n**{where}**\n" in marked
    assert "\n\\* what the current policy runs; not shown: " in marked
    assert not re.search(r"(?m)^\*(?!\*)", marked)
    for text in (marked, plain, str(measured)):
        assert "(show_all=True shows them)" in text and "--" not in text.replace("---", "")


def test_print_shows_the_rest_on_request(
    measured: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.print(top=1)
    short = capsys.readouterr().out
    measured.print(show_all=True)
    long = capsys.readouterr().out
    layer = only_layer(measured)
    assert layer.problem in short and "aten:default" in short
    for row in layer.rows:
        assert row["status"] == "unstable" or row["reason"] in long  # the legend says what it is
        assert row["algorithm"] in long or f" of {row['backend']}" in long
    refused = [row for row in layer.rows if row["median_ms"] is None]
    assert ("not shown" in short) == bool(refused)
    assert "not shown" not in long


def test_a_profile_reads_as_its_tables(measured: Profile) -> None:
    assert str(measured) == measured.to_markdown()
    assert repr(measured) == f"<Profile of 1 problems on cpu: {only_layer(measured).problem}>"


@pytest.mark.parametrize("columns", ["60", "0"])
def test_algorithms_stay_whole_where_a_terminal_is_narrow(
    measured: Profile,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    measured.print()
    lines = capsys.readouterr().out.splitlines()
    for row in only_layer(measured).ranked:
        assert any(row["algorithm"] in line.split() for line in lines)


def test_names_in_tables_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    made = profile(LINE, device="cpu", time_budget_s=0.01)
    dataclasses.replace(made, title="nets:fire").print()
    assert "nets:fire" in capsys.readouterr().out
    for top, kind in ((-1, ValueError), ("x", TypeError)):
        with pytest.raises(kind, match="^top: got"):
            made.print(top=top)  # type: ignore[arg-type]


def test_a_table_of_lists_alone(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("title", [], [], "", [("head", ["a", "b"])])
    assert tables_markdown([table]).split() == ["**title**", "head:", "a,", "b"]
    print_tables([table])
    assert capsys.readouterr().out.split() == ["title", "head:", "a,", "b"]


def test_the_table_is_cut_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    result = profile(LINE, device="cpu")
    layer = only_layer(result)
    names = [row["algorithm"] for row in layer.ranked]
    assert len(names) > 3
    for top in (1, 2, 3):
        table = layer_tables(layer, Extent(top=top))[0]
        shown = [row[2] for row in table.rows]
        # PyTorch's and the current choice always, in the order of their ranks.
        always = {"aten:default", layer.current}
        assert shown == [n for i, n in enumerate(names) if i < top or n in always]
        assert f"{len(names) - len(shown)} more that work (top=0 shows them)" in table.footer
    assert [row[2] for row in layer_tables(layer, Extent())[0].rows] == names
    result.print()
    whole = capsys.readouterr().out
    assert "more that work" not in whole and all(name in whole for name in names)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 * 2**20, "64 MiB"),
        (5 * 2**40, "5120 GiB"),
    ],
)
def test_bytes_for_people(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize("cap", [None, "max_workspace=1GiB"])
def test_the_summary_has_a_cell_below_each_heading(cap: str | None) -> None:
    result = profile(LINE, device="cpu", policy=cap, time_budget_s=0.1)
    table = summary_table(result)
    headings = [column.heading for column in table.columns]
    assert ("best within 1 GiB" in headings) == (cap is not None)
    assert all(len(row) == len(headings) for row in table.rows)
    if cap is not None:
        (total,) = result.totals()
        assert table.rows[0][-1] == milliseconds(total.capped_ms)


def test_records_say_whose_they_are() -> None:
    settings = make_settings("cpu", time_budget_s=0.1)
    layers = list(measure_layers([Layer(LINE, ("first", "second"), 3)], settings))
    layers.append(list_layer(Layer(OTHER, ("third",)), "target:h200", ""))
    found = {
        (r["problem"], *r["names"], r["count"], r["device"])
        for r in Profile(layers, settings).records()
    }
    assert found == {
        (LINE, "first", "second", 3, "cpu"),
        (OTHER, "third", 1, "target:h200"),
    }


def test_records_tell_constraints() -> None:
    tuning.reset()
    for policy in ("", "deterministic"):
        tuning.tune([LINE], device="cpu", policy=policy, time_budget_s=0.05)
    records = profile_of_table(tuning.entries()).records()
    assert {bool(re.search("deterministic", record["note"])) for record in records} == {True, False}


def _made(**changes: Any) -> LayerProfile:
    """A layer of two algorithms, of which the first has these values."""
    row = {
        **dict.fromkeys(("reason", "source"), ""), "backend": "cpu", "status": "ok",
        "median_ms": 2.0, "spread_ms": 0.25, "host_ms": None, "samples": 9, "error": 0.0,
        "workspace_bytes": 0, "notes": [], "deterministic": True, "build_ms": 0.0,
    }  # fmt: skip
    rows: Any = [
        {**row, "algorithm": "cpu:im2col", **changes},
        {**row, "algorithm": "aten:default", "backend": "aten", "median_ms": 4.0},
    ]
    layer = only_layer(profile(LINE, device="cpu", time_budget_s=0.01))
    return dataclasses.replace(layer, rows=rows, current=None, heuristic=None)


def test_what_is_not_known_keeps_no_constraint() -> None:
    layer = _made(workspace_bytes=None, deterministic=None)
    best = [layer.best(), layer.best(2**30), layer.best(deterministic=True)]
    assert [row and row["algorithm"] for row in best] == [
        "cpu:im2col", "aten:default", "aten:default",
    ]  # fmt: skip


def test_cells_say_what_was_measured() -> None:
    layer = _made(notes=["a|b"], spread_ms=0.125, deterministic=None)
    result = Profile([layer], make_settings("cpu"))
    (line,) = [line for line in result.to_markdown().splitlines() if "| cpu:im2col" in line]
    cells = re.split(r"(?<!\\) \| ", line.removeprefix("| "))
    assert cells[3:5] == ["2", "± 0.12"] and r"a\|b" in cells and "?" in cells
    once = Profile([_made(samples=1, spread_ms=0.125)], make_settings("cpu"))
    assert "0.12" not in once.to_markdown()


@pytest.mark.parametrize("reason", ["so", "excluded: so"])
def test_a_backend_of_which_one_works_is_not_refused_as_a_whole(reason: str) -> None:
    layer = _made()
    refused: Any = {
        **layer.rows[0], "status": "excluded", "reason": reason, "median_ms": None,
        "workspace_bytes": None, "error": None,
    }  # fmt: skip
    layer.rows += [{**refused, "algorithm": f"cpu:{name}"} for name in ("direct", "fft")]
    layer.rows += [{**refused, "backend": "legacy", "algorithm": f"legacy:{i}"} for i in range(3)]
    (text,) = [
        line
        for line in Profile([layer], make_settings("cpu")).to_markdown(show_all=True).splitlines()
        if line.startswith("excluded: so")
    ]
    assert text == "excluded: so: all 3 of legacy, cpu:direct, cpu:fft"


@pytest.mark.parametrize(("batch", "where"), [(1, "CPU"), (2, "CPU at batch 1")])
def test_times_of_the_cpu_are_not_a_target_s(batch: int, where: str) -> None:
    line = f"conv_fwd x=f32[{batch},4,8,8]:nchw w=f32[4,4,3,3]:nchw pad=1"
    text = profile(line, target="h200", time_budget_s=0.01).to_markdown()
    assert f"measured on the {where}: not the target's times" in text
