"""What a profile tells first: the sentence, and the problems with most to gain."""

import dataclasses
from typing import Any

import pytest
from helpers import LINE, OTHER
from profile_helpers import layer, made_network, row

from torch_cudnn_ext import tuning
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.profile import list_layer, profile_of_rankings, profile_of_table
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.summary import gains, pins_line, profile_tables, with_most_to_gain
from torch_cudnn_ext.analysis.tables import Extent


def of(*layers: Any, title: str = "", **settings: Any) -> Profile:
    return Profile([*layers], dataclasses.replace(make_settings("cpu"), **settings), title)


def test_the_sentence_tells_the_gain_and_where_it_is_from() -> None:
    assert made_network().sentence() == (
        "autotune makes the layers of net 1.54x (1.52 to 1.56) faster: 6 -> 3.9 ms; "
        "95% of it from 1 problem: conv1 and 1 more, fwd."
    )
    one = layer(LINE, row("graph:eng4", 1.0), row("aten:default", 2.0))
    assert of(one).sentence() == (
        "autotune makes conv_fwd 2.00x (1.95 to 2.05) faster: 2 -> 1 ms, by graph:eng4."
    )


def test_a_gain_in_many_problems_is_not_told_of_three() -> None:
    lines = [LINE.replace("pad=1", f"pad={i}") for i in range(9)]
    rows = row("graph:eng4", 1.0), row("aten:default", 2.0)
    said = of(*(layer(line, *rows, names=(f"conv{i}",)) for i, line in enumerate(lines))).sentence()
    assert said.endswith("; it is spread over 9 problems, most in conv0, fwd.")


def test_what_is_within_the_noise_is_no_gain() -> None:
    rows = row("graph:eng4", 0.99, spread_ms=0.02), row("aten:default", 1.0, spread_ms=0.02)
    assert of(layer(LINE, *rows)).sentence() == (
        "Nothing makes conv_fwd faster than PyTorch's own kernels do (1 ms)."
    )
    assert pins_line(of(layer(LINE, *rows))) == ""
    # With fewer samples the same spread says less.
    rows = row("graph:eng4", 0.9, spread_ms=0.05), row("aten:default", 1.0, spread_ms=0.05)
    assert of(layer(LINE, *rows)).sentence().startswith("autotune")
    for one in rows:
        one["samples"] = 2
    assert of(layer(LINE, *rows)).sentence().startswith("Nothing")


def test_the_sentence_keeps_the_cap() -> None:
    rows = row("graph:eng4", 1.0, 2**21), row("graph:eng5", 1.5), row("aten:default", 2.0)
    said = of(layer(LINE, *rows), max_workspace_bytes=2**20).sentence()
    assert "1.33x" in said and "within a workspace of 1 MiB" in said


def test_without_pytorchs_time_there_is_nothing_to_compare() -> None:
    failed = row("aten:default", 1.0, status="failed", median_ms=None)
    assert "nothing to compare" in of(layer(LINE, row("graph:eng4", 1.0), failed)).sentence()
    known = layer(OTHER, row("graph:eng4", 1.0), row("aten:default", 2.0), names=("b",))
    unknown = layer(LINE, row("graph:eng4", 1.0), failed, names=("a",))
    said = of(unknown, known, title="net").sentence()
    assert "the layers of net (without 1 problem, timed on one side alone) 2.00x" in said
    others = [dataclasses.replace(unknown, problem=f"softmax_fwd x=f32[{n},10,1]:nchw log=false")
              for n in (16, 32)]  # fmt: skip
    said = of(known, *others, title="net").sentence()
    assert "1 of 3 problems of net (the others: timed on one side alone) 2.00x" in said


def test_a_target_tells_what_it_accepts() -> None:
    listed = list_layer(Layer(LINE), "target:h200", "")
    accepted = sum(one["status"] == "ok" for one in listed.listed)
    assert of(listed).sentence() == (
        f"h200 accepts {accepted} algorithms for 1 problem (listed, not timed)."
    )
    for one in listed.listed:
        one["status"] = "needs a driver"
    count = len(listed.listed)
    assert of(listed).sentence() == (
        f"Only a driver can tell which algorithms h200 accepts for 1 problem ({count} need one)."
    )
    (table,) = profile_tables(of(listed), Extent())
    assert (
        f"target:h200 accepts what only a driver can tell: {count} algorithms need" in table.title
    )
    assert "0 algorithms" not in table.title


def test_the_tables_begin_with_the_sentence_and_the_summary() -> None:
    made = made_network()
    first, second, *rest = profile_tables(made, Extent(layers=1))
    assert first.title == made.sentence() and second.title.startswith("net: 3 problems")
    assert rest[0].title.startswith(LINE)
    assert rest[1].title == "2 problems more, with less to gain (all_layers=True shows them)"
    everything = profile_tables(made, Extent())
    assert len(everything) == 5 and made.to_markdown().startswith(f"**{made.sentence()}**")


def test_most_to_gain_is_first() -> None:
    made = made_network()
    made.layers.reverse()
    assert [one.names[0] for one in with_most_to_gain(made, 2)] == ["conv1", "<last>"]
    assert with_most_to_gain(made, 0) == with_most_to_gain(made, 3) == made.layers
    assert [gain.ms for gain in gains(made)] == pytest.approx([2.0, 0.1, 0.0])


def test_print_shows_five_problems(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [LINE.replace("pad=1", f"pad={i}") for i in range(7)]
    made = of(*(layer(line, row("aten:default", 1.0)) for line in lines))
    made.print()
    out = capsys.readouterr().out
    assert out.count("measured on") == 5 and "2 problems more" in out
    made.print(all_layers=True)
    assert capsys.readouterr().out.count("measured on") == 7


def test_the_line_of_code_pins_the_best() -> None:
    made = made_network()
    pins: list[dict[str, str]] = []

    class Package:
        def apply_pins(self, model: object, given: dict[str, str]) -> None:
            pins.append(given)

    exec(pins_line(made), {"torch_cudnn_ext": Package(), "model": None})
    exec(pins_line(made, 1), {"torch_cudnn_ext": Package(), "model": None})
    best = {"conv1": "fwd=graph:eng4", "conv2": "fwd=graph:eng4"}
    assert pins == [best | {"<last>": "fwd=legacy:fft"}, best]
    unnamed = of(layer(LINE, row("cpu:fft", 1.0), row("aten:default", 2.0)))
    assert pins_line(unnamed) == f'torch_cudnn_ext.when("{LINE}", "cpu:fft")'


def test_tables_and_rankings_have_a_sentence() -> None:
    tuning.clear()
    rows = [row("graph:eng4", 1.0), row("aten:default", 2.0)]
    tuned = profile_of_rankings([(Layer(LINE, ("a",), 2), rows)], make_settings("cpu"), "net")
    assert "4 -> 2 ms, by graph:eng4 in a, fwd." in tuned.sentence()
    entry: Any = {"problem": LINE, "device": "a", "constraints": "", "measurements": rows}
    assert "2 -> 1 ms" in profile_of_table([entry]).sentence()
    both = profile_of_table([entry, {**entry, "device": "b"}])
    assert "they have no sum" in both.sentence()
