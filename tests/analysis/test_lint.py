"""What costs time: each rule where it holds, and where it does not."""

import dataclasses
from typing import Any

import pytest
from profile_helpers import layer, row

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext.analysis import Explanation, LayerCall
from torch_cudnn_ext.analysis.lint import Hint, hints_table, static_hints
from torch_cudnn_ext.analysis.profile import _changed_ms
from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.summary import profile_tables
from torch_cudnn_ext.analysis.tables import Extent

HALF = "conv_fwd x=f16[8,64,14,14]:nhwc w=f16[64,64,3,3]:nhwc pad=1"
FLOAT = HALF.replace("f16", "f32")


def canonical(line: str, *rows: Any, **more: Any) -> LayerProfile:
    rows = rows or (row("aten:default", 1.0),)
    return layer(_C.canonical_problem(line), *rows, **more)


def hints(*layers: LayerProfile, **settings: Any) -> list[Hint]:
    return Profile([*layers], dataclasses.replace(make_settings("cpu"), **settings)).hints()


def rules(*layers: LayerProfile, **settings: Any) -> list[str]:
    return [hint.rule for hint in hints(*layers, **settings)]


def test_good_problems_have_no_hint() -> None:
    assert rules(canonical(HALF), canonical(FLOAT)) == []


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        (HALF.replace("nhwc", "nchw"), True),
        (HALF.replace("nhwc", "nchw").replace("f16", "bf16"), True),
        (HALF, False),
        (FLOAT.replace("nhwc", "nchw"), False),
        (HALF.replace("nhwc", "nchw").replace("14,14", "1,1").replace("3,3", "1,1"), False),
    ],
)
def test_half_types_in_nchw(line: str, holds: bool) -> None:
    found = hints(canonical(line.replace("pad=1", "pad=0") if "1,1" in line else line))
    assert [hint.rule for hint in found] == ["layout"] * holds
    if holds:
        assert found[0].gain_ms is None and "channels_last" in found[0].change


@pytest.mark.parametrize(
    ("channels", "outputs", "told", "wanted"),
    [
        (63, 64, "63", "64"),
        (64, 63, "63", "64"),
        (63, 65, "63 and 65", "64 and 72"),
        (3, 64, "", ""),
        (64, 64, "", ""),
    ],
)
def test_channels_that_are_no_multiple_of_8(
    channels: int, outputs: int, told: str, wanted: str
) -> None:
    line = f"conv_fwd x=f16[8,{channels},14,14]:nhwc w=f16[{outputs},{channels},3,3]:nhwc pad=1"
    found = hints(canonical(line))
    assert [hint.text.partition(" channels")[0] for hint in found] == [told] * bool(told)
    assert not told or found[0].change.startswith(f"use {wanted} channels")
    assert rules(canonical(line.replace("f16", "f32"))) == []


def test_savings_that_may_overlap_are_not_to_be_added() -> None:
    late = canonical(HALF, row("aten:default", 0.01, host_ms=0.03))
    one = hints_table(hints(late))
    two = hints_table(
        hints(late, canonical(HALF.replace("nhwc", "nchw"), changed_ms={"layout": 0.5}))
    )
    assert one.footer == "" and "may overlap" in two.footer


def test_a_page_begins_with_what_saves_most() -> None:
    fast, slow = row("graph:eng1", 1.8), row("aten:default", 2.0)
    for changed_ms, first in ((1.7, "Most to gain"), (0.5, "What costs time")):
        one = canonical(HALF.replace("nhwc", "nchw"), fast, slow, changed_ms={"layout": changed_ms})
        page = Profile([one], make_settings("cpu")).to_html()
        headings = [page.index(f"<h2>{name}") for name in ("Most to gain", "What costs time")]
        assert (headings[0] < headings[1]) == (first == "Most to gain")


def test_what_a_change_saves_is_estimated_where_it_was_tried() -> None:
    nchw = HALF.replace("nhwc", "nchw")
    (hint,) = hints(canonical(nchw, count=3, changed_ms={"layout": 0.75}))
    assert (hint.rule, hint.gain_ms, hint.is_measured) == ("layout", 0.75, False)
    tried = canonical(nchw, changed_ms={"layout": 0.75})
    slower = canonical(nchw.replace("14,14", "28,28"), changed_ms={"layout": 1.5})
    assert rules(tried, slower) == [], "it is for the whole network"
    assert rules(canonical(HALF, changed_ms={"layout": 0.5})) == []


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (HALF.replace("nhwc", "nchw"), {"layout": HALF}),
        (HALF.replace("64", "63"), {"channels": HALF}),
        (
            HALF.replace("64", "63").replace("nhwc", "nchw"),
            {"layout": HALF.replace("64", "63"), "channels": HALF.replace("nhwc", "nchw")},
        ),
        (HALF.replace("w=f16[64,64", "w=f16[126,63").replace("64", "126") + " groups=2", {}),
        (FLOAT, {"tf32": FLOAT}),
        (f"{FLOAT.replace('64', '63')} compute=f32", {"tf32": FLOAT.replace("64", "63")}),
    ],
)
def test_the_problem_of_a_change(line: str, changes: dict[str, str]) -> None:
    found = {
        one.rule: one.changed
        for one in static_hints(_C.canonical_problem(line), "allow_tf32=false")
        if one.changed
    }
    assert found == {rule: _C.canonical_problem(text) for rule, text in changes.items()}


def test_a_change_is_tried_without_tuning() -> None:
    """On the CPU, where no rule of these holds, the trial itself works alike."""
    settings = dataclasses.replace(make_settings("cpu", time_budget_s=1), policy="allow_tf32=false")
    line = _C.canonical_problem(FLOAT.replace("[8,", "[1,"))
    (ms,) = _changed_ms(line, settings).values()
    assert 0 < ms < 1000
    assert tuning.entries() == []


def test_convolutions_over_one_dimension() -> None:
    """Their tensors have no layout to change, but channels."""
    line = "conv_fwd x=f16[8,63,14]:nchw w=f16[64,63,3]:nchw pad=1"
    assert rules(canonical(line)) == ["channels"]
    assert rules(canonical(line.replace("63", "64"))) == []


def test_tf32_off() -> None:
    assert rules(canonical(FLOAT), policy="allow_tf32=false") == ["tf32"]
    assert rules(canonical(FLOAT), policy="allow_tf32=true") == []
    product = canonical("matmul_fwd x=f32[1,64,64]:nchw w=f32[1,64,64]:nchw")
    conv, linear = hints(canonical(FLOAT), product, policy="allow_tf32=false")
    assert "for conv:" in conv.text and "enable(" in conv.change
    assert "for matmul:" in linear.text and "matmul_precision" in linear.change
    assert rules(canonical(HALF), policy="allow_tf32=false") == []
    softmax = "softmax_fwd x=f32[16,10,1]:nchw log=false"
    assert rules(canonical(softmax), policy="allow_tf32=false") == []


def test_a_cap_that_costs_time() -> None:
    fast, slow = row("graph:eng1", 1.0, 5 * 2**20), row("aten:default", 1.5)
    (hint,) = hints(canonical(HALF, fast, slow, count=2), max_workspace_bytes=2**20)
    assert (hint.rule, hint.gain_ms, hint.is_measured) == ("cap", 1.0, True)
    assert hint.change == 'policy="max_workspace=5MiB"' and "1 MiB" in hint.text
    assert rules(canonical(HALF, fast, slow), max_workspace_bytes=2**23) == []
    assert rules(canonical(HALF, fast, slow)) == []
    larger = canonical(FLOAT, row("graph:eng1", 1.0, 9 * 2**20), slow)
    (both,) = hints(canonical(HALF, fast, slow), larger, max_workspace_bytes=2**20)
    assert both.change == 'policy="max_workspace=9MiB"' and len(both.layers) == 2


def test_a_constraint_that_excludes_pytorchs_faster_kernel() -> None:
    plain = row("aten:default", 1.0, status="excluded", reason="baseline only: may use TF32")
    (hint,) = hints(canonical(HALF, row("graph:eng1", 2.0), plain))
    assert (hint.rule, hint.gain_ms) == ("constraint", 1.0) and "may use TF32" in hint.text
    assert rules(canonical(HALF, row("graph:eng1", 0.9), plain)) == []


def test_a_fallback_engine() -> None:
    best, other = row("graph:eng1", 1.0), row("graph:eng2", 3.0, source="heuristic FALLBACK #1")
    plain = row("aten:default", 2.0)
    (hint,) = hints(canonical(HALF, best, plain, other, current="graph:eng2"))
    assert (hint.rule, hint.gain_ms, hint.is_measured) == ("fallback", 2.0, True)
    assert rules(canonical(HALF, best, plain, other, current="graph:eng1")) == []


def test_a_host_that_is_late() -> None:
    late = row("aten:default", 0.01, host_ms=0.03)
    (hint,) = hints(canonical(HALF, late, count=10))
    assert hint.rule == "host" and hint.gain_ms == pytest.approx(0.2) and not hint.is_measured


def test_a_clock_that_moved() -> None:
    def timed(low: int, high: int) -> LayerProfile:
        clocks = {"clock_low_mhz": low, "clock_high_mhz": high, "throttled": ["power cap"]}
        return canonical(HALF, row("aten:default", 1.0, **clocks))

    (hint,) = hints(timed(1755, 1980))
    assert hint.rule == "clocks" and "(power cap)" in hint.text and hint.gain_ms is None
    assert rules(timed(1900, 1980)) == []


def test_batch_norms_and_activations_of_inference_that_are_kernels_of_their_own() -> None:
    conv = canonical(HALF, names=("conv",))
    norm = canonical(
        "batch_norm_infer x=f16[8,64,196]:nhwc", row("graph:eng1", 0.25), names=("bn",), count=2
    )
    relu = canonical(
        "activation_fwd x=f16[100352]:nchw kind=relu", row("aten:default", 0.5), names=("relu",)
    )
    (hint,) = hints(conv, norm, relu)
    assert (hint.rule, hint.layers, hint.gain_ms) == ("unfused", ("bn", "relu"), 1.0)
    assert not hint.is_measured and "optimize(model, images)" in hint.change
    elu = canonical("activation_fwd x=f16[100352]:nchw kind=elu", names=("e",))
    assert rules(conv, elu) == []
    assert rules(norm, relu) == []  # nothing takes them in
    backward = canonical(HALF.replace("conv_fwd", "conv_bwd_data"), names=("conv",))
    assert rules(conv, norm, backward) == []  # a training step
    unnamed = canonical("activation_fwd x=f16[100352]:nchw kind=relu", row("aten:default", 0.5))
    assert rules(conv, unnamed) == []  # problems of a file, in any order
    for one in (conv, norm, relu):
        one.device = "cpu"
    assert rules(conv, norm, relu) == []


def test_hints_are_told_with_their_layers() -> None:
    line = HALF.replace("nhwc", "nchw")
    layers = [
        canonical(line.replace("x=f16[8", f"x=f16[{n}"), names=(f"conv{n}",)) for n in range(1, 6)
    ]
    late = canonical(HALF, row("aten:default", 0.01, host_ms=0.03), names=("late",))
    found = Profile([*layers, late], make_settings("cpu"), "net")
    first, second = found.hints()
    assert first.rule == "host" and second.layers == tuple(f"conv{n}" for n in range(1, 6))
    rows = hints_table(found.hints()).rows
    assert rows[0][2] == "0.02 (estimate)" and rows[1][2] == "not measured"
    assert rows[1][3] == "conv1; conv2; conv3 and 2 other problems"
    assert [table.title for table in profile_tables(found, Extent())][2] == "What costs time"
    assert "What costs time" in found.to_html() and "What costs time" in found.to_markdown()


def test_the_cpu_has_no_hints_for_gpus(measured: Profile) -> None:
    on_cpu = canonical(HALF.replace("nhwc", "nchw"), device="cpu")
    assert rules(on_cpu) == []
    assert "layout" in rules(dataclasses.replace(on_cpu, rows=[], listed_for="target:h200"))
    assert "What costs time" not in measured.to_html()


def test_an_explanation_has_the_hints_of_its_problems() -> None:
    line = _C.canonical_problem(HALF.replace("nhwc", "nchw"))
    call = LayerCall("conv", "Conv2d", "conv_fwd", line, "aten:default", "heuristic", device="cuda")
    (hint,) = Explanation([call], "Net").hints()
    assert hint.rule == "layout" and hint.layers == ("conv",)
    assert "What costs time" in str(Explanation([call], "Net"))
    assert not Explanation([dataclasses.replace(call, device="cpu")], "Net").hints()
