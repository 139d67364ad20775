"""What decides which algorithm runs, and in which order; constraints."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import newest
from selector_helpers import OPS, TUNE, conv_decision, conv_problem, convolve, measure_conv
from torch import Tensor

from torch_cudnn_ext import _C, enabled, knobs, ops, when
from torch_cudnn_ext.knobs import pushed


def test_the_scripted_backend_computes_every_pass(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", workspace_bytes=64)
    x.requires_grad_()
    w.requires_grad_()
    y = OPS.conv2d.default(x, w, padding=[1, 1], policy="fake:a")
    expected = F.conv2d(x, w, padding=1)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, (x, w), dy), torch.autograd.grad(expected, (x, w), dy)
    )
    assert fake.counts("fake:a") == (3, 3)
    for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"):
        choice = newest(op)
        assert (choice.algorithm, choice.workspace_bytes) == ("fake:a", 64)


def test_nothing_is_listed_unless_scripted(fake: Any, x: Tensor, w: Tensor) -> None:
    assert "fake" not in {c["backend"] for c in _C.candidates(conv_problem(x, w), "cpu")}
    with pytest.raises(RuntimeError, match="fake:a is not scripted"):
        convolve(x, w, "fake:a")


def test_a_pin_beats_tuning_and_tuning_beats_the_heuristic(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:fast")
    fake.script("fake:slow", milliseconds=2)
    for weaker in ("", "autotune", "heuristic", "benchmark"):
        with pushed(weaker):
            assert convolve(x, w, "fwd=fake:slow") == "fake:slow"
            assert conv_decision().why == "pinned"
    assert fake.counts("fake:fast") == (0, 0) and _C.table_export() == []

    with pushed("benchmark"):
        assert convolve(x, w, "heuristic") == "aten:default"
        assert conv_decision().why == "heuristic"
    assert fake.counts("fake:fast") == (0, 0) and _C.table_export() == []

    for weaker in ("heuristic", "fwd=fake:slow"):
        with pushed(weaker):
            assert convolve(x, w, TUNE) == "fake:fast"
    with pushed("benchmark;backends=fake"):
        assert convolve(x, w) == "fake:fast"
    assert len(_C.table_export()) == 1


def test_a_stronger_level_s_choice_holds_for_what_shares_it() -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    with pushed("pool_bwd=cpu:unfold"):
        y = ops.max_pool2d(x, 2, policy="fwd=cpu:taps")
        y.sum().backward()
        assert (_C.last_decision("pool_bwd") or {})["algorithm"] == "cpu:taps"
        # Of one level it is still a mistake.
        with pytest.raises(RuntimeError, match="these passes are coupled"):
            ops.max_pool2d(x, 2, policy="fwd=cpu:taps;bwd=cpu:unfold")


def test_a_backward_keeps_to_what_its_forward_was_told() -> None:
    x, w = torch.randn(1, 2, 6, 6, requires_grad=True), torch.randn(3, 2, 3, 3)
    for now in ("autotune", "conv_bwd_data=cpu:fft", "fastest"):
        with enabled(), pushed("bwd_data=cpu:im2col"):
            y = F.conv2d(x, w)
        with enabled(now):
            y.sum().backward()
        choice = newest("conv_bwd_data")
        assert (choice.algorithm, choice.why) == ("cpu:im2col", "pinned")


def test_fastest_is_a_choice_of_its_level(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:fast")
    fake.script("fake:slow", milliseconds=2)
    for weaker in ("heuristic", "fwd=fake:slow"):
        with pushed(f"backends=fake;{weaker}"):
            assert convolve(x, w, "fastest") == "fake:fast"
            assert convolve(x, w, "fastest;fwd=fake:slow") == "fake:slow"
    # As of every level, it is for all that weaker ones say, and a stronger one may take it back.
    with pushed("backends=fake;fwd=fake:slow"), pushed("fastest"):
        assert convolve(x, w) == "fake:fast"
    with enabled("fastest"), pushed("backends=fake"):
        assert convolve(x, w) == "fake:fast"
        OPS.conv2d.default(x, w, policy="fastest=false")
        assert conv_decision().why == "heuristic"
    with when("conv_fwd", use="fake:slow"), pushed("backends=fake"):
        assert convolve(x, w) == "fake:slow"
        assert convolve(x, w, "fastest") == "fake:fast"
        with when("conv_fwd", use="fastest"):
            assert convolve(x, w) == "fake:fast"


def test_every_backend_is_no_constraint(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    every = ",".join(dict.fromkeys(b for op in _C.operators() for b in op["backends"]))
    assert "fake" in every
    assert convolve(x, w, "autotune") in ("fake:a", "aten:default")
    convolve(x, w, f"autotune;backends={every}")
    assert conv_decision().why == "cached"
    assert len(_C.table_export()) == 1


def test_the_heuristic_goes_on_to_the_next_backend(fake: Any, x: Tensor, w: Tensor) -> None:
    assert convolve(x, w) == "aten:default"
    assert convolve(x, w, "backends=cpu").startswith("cpu:")
    # PyTorch has no float32 convolution that sums in float64.
    assert convolve(x, w, "compute=f64").startswith("cpu:")
    assert conv_decision().why == "heuristic"
    assert (
        _C.canonical_problem(conv_decision().problem) == conv_decision().problem
    )  # can be read back


@pytest.mark.parametrize(
    ("strict", "loose", "script", "reason"),
    [
        ("max_workspace=1KiB", "", {"workspace_bytes": 4096}, "max_workspace=1024"),
        ("max_workspace=1KiB", "max_workspace=4KiB", {"workspace_bytes": 4096}, "4096 bytes"),
        (
            "max_workspace=4KiB",
            "",
            {"workspace_bytes": 1 << 20, "states_workspace": False},
            "max_workspace=4096",
        ),
        ("deterministic", "", {"notes": ["nondeterministic"]}, "deterministic"),
        ("allow_tf32=false", "allow_tf32", {"notes": ["tf32"]}, "TF32"),
        ("", "allow_down_convert", {"notes": ["down_convert"]}, "allow_down_convert"),
        ("", "allow_down_convert", {"notes": ["low_accuracy"]}, "large tiles"),
        ("", "allow_reduced_range", {"notes": ["reduced_range"]}, "allow_reduced_range"),
    ],
)
def test_a_constraint_excludes_with_a_reason_and_is_part_of_the_key(
    fake: Any, x: Tensor, w: Tensor, strict: str, loose: str, script: dict[str, Any], reason: str
) -> None:
    fake.script("fake:best", **script)
    fake.script("fake:other", milliseconds=1)
    for _ in range(2):
        assert convolve(x, w, f"{TUNE};{strict}") == "fake:other"
        assert convolve(x, w, f"{TUNE};{loose}") == "fake:best"
    assert len(_C.table_export()) == 2

    excluded = measure_conv(x, w, f"backends=fake;{strict}", record=False)["fake:best"]
    listed = {c["algorithm"]: c for c in _C.candidates(conv_problem(x, w), "cpu", strict)}[
        "fake:best"
    ]
    assert excluded["status"] == "excluded" and reason in excluded["reason"]
    assert listed["status"] == "excluded" and reason in listed["reason"]
    with pytest.raises(RuntimeError, match="pinned algorithm fake:best cannot run") as caught:
        convolve(x, w, f"fwd=fake:best;{strict}")
    assert reason in str(caught.value)
    assert convolve(x, w, f"fwd=fake:best;{loose}") == "fake:best"


def test_a_backend_that_is_not_admitted_is_not_even_built(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    assert convolve(x, w, "autotune;backends=aten") == "aten:default"
    assert convolve(x, w, TUNE) == "fake:a"
    assert len(_C.table_export()) == 2
    builds = fake.counts("fake:a")[0]
    excluded = measure_conv(x, w, "backends=aten")["fake:a"]
    assert (excluded["status"], excluded["reason"]) == ("excluded", "excluded by backends=aten")
    assert fake.counts("fake:a")[0] == builds


@pytest.mark.parametrize(
    ("policy", "script", "reason"),
    [
        ("compute=f64;backends=aten", {}, "aten computes f32 data in f32, not f64"),
        ("max_workspace=0;backends=aten", {}, "max_workspace=0: it needs"),
        (f"{TUNE};deterministic", {"notes": ["nondeterministic"]}, "can differ from run to run"),
        (TUNE, {"unsupported": "its phase of the moon is wrong"}, "phase of the moon"),
        (TUNE, {"relative_error": 0.5}, "above the tolerance"),
    ],
)
def test_when_nothing_can_run_the_error_says_why(
    fake: Any, x: Tensor, w: Tensor, policy: str, script: dict[str, Any], reason: str
) -> None:
    fake.script("fake:a", **script)
    counts = set()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no algorithm can run") as caught:
            convolve(x, w, policy)
        counts.add(fake.counts("fake:a"))
        assert conv_problem(x, w, policy) in str(caught.value)
        assert reason in str(caught.value)
    assert len(counts) == 1, "it is not tried again"


def test_what_the_notes_exclude_is_not_built(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1)
    fake.script("fake:b", notes=["nondeterministic"])
    assert convolve(x, w, f"{TUNE};deterministic") == "fake:a"
    assert fake.counts("fake:b") == (0, 0)
    excluded = measure_conv(x, w, "backends=fake;deterministic")["fake:b"]
    assert excluded["notes"] == ["nondeterministic"] and not excluded["deterministic"]
    assert "excluded by deterministic" in excluded["reason"]


def test_a_policy_that_comes_back_finds_its_decision(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b")
    _C.set_knobs("conv_fwd=fake:a", False)
    for _ in range(3):
        assert convolve(x, w) == "fake:a"
        _C.set_knobs("conv_fwd=fake:b", False)
        assert convolve(x, w) == "fake:b"
        _C.set_knobs("conv_fwd=fake:a", False)
        with enabled("fwd=fake:b"):
            F.conv2d(x, w)
            assert conv_decision().algorithm == "fake:b"
    made = _C.plan_cache_info()["misses"]
    assert (fake.counts("fake:a")[0], fake.counts("fake:b")[0]) == (1, 1)
    assert convolve(x, w) == "fake:a"
    assert _C.plan_cache_info()["misses"] == made
    _C.remove_rule(_C.add_rule("conv_fwd", "fake:b"))  # now all are made anew
    assert convolve(x, w) == "fake:a" and _C.plan_cache_info()["misses"] == made + 1


def test_verbose_prints_every_candidate(
    fake: Any, x: Tensor, w: Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.script("fake:a", milliseconds=2)
    fake.script("fake:b", milliseconds=1, workspace_bytes=100)
    fake.script("fake:c", unsupported="it is Monday")
    knobs.verbose = True
    try:
        convolve(x, w, TUNE)
    finally:
        knobs.verbose = False
    lines = [line for line in capfd.readouterr().err.splitlines() if "torch_cudnn_ext:" in line]
    first, last = lines[0], lines[-1]
    assert conv_problem(x, w) in first and first.endswith(f" on cpu, {len(lines) - 2} candidates:")
    assert "1. fake:b: 1 ms, workspace 100 bytes, ok" in lines[1]
    assert "2. fake:a: 2 ms, workspace 0 bytes, ok" in lines[2]
    wanted = "fake:c: no time, workspace unknown, unsupported: it is Monday"
    assert any(line.endswith(wanted) for line in lines[3:-1])
    assert "-> fake:b (tuned; workspace 100 bytes" in last


def test_the_saved_policy_keeps_a_cap_beside_fastest(x: Tensor, w: Tensor) -> None:
    w = w.clone().requires_grad_()
    with knobs.flags(max_workspace="64KiB"):
        y = OPS.conv2d.default(x, w, policy="fastest;backends=aten")
    y.sum().backward()
    assert "max_workspace=64KiB" in newest("conv_bwd_filter").policy
