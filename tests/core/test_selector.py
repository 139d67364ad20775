"""How an algorithm is chosen, on a backend whose algorithms do what the test says."""

import fcntl
import math
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, newest
from torch import Tensor
from torch.utils import cpp_extension

from torch_cudnn_ext import _C, enabled, knobs, ops, tuning, when
from torch_cudnn_ext.knobs import pushed

OPS = torch.ops.torch_cudnn_ext
TUNE = "autotune;backends=fake"
THREADS = 8


@pytest.fixture(scope="module")
def fake_backend() -> Any:
    """The compiled backend; compiled again only where it or a header of the extension changed.

    Times that its algorithms are scripted to take are what the clock shows, exactly.
    """
    folder = ROOT / "build" / "fake_backend" / str(sysconfig.get_config_var("SOABI"))
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = [sys.executable, str(ROOT / "setup.py"), "toolchain"]
    compiler = subprocess.run(toolchain, capture_output=True, text=True, check=True).stdout.strip()
    with pytest.MonkeyPatch.context() as patch, (folder / "mutex").open("w") as mutex:
        patch.setenv("CXX", compiler)
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")  # ninja
        fcntl.flock(mutex, fcntl.LOCK_EX)
        # Torch's own lock outlives a process that was killed; with ours held, it is such a one.
        (folder / "lock").unlink(missing_ok=True)
        module = cpp_extension.load(
            "fake_backend",
            [str(ROOT / "tests" / "cpp" / "fake_backend.cpp")],
            extra_cflags=["-O1", "-g0"],
            extra_include_paths=[str(ROOT / "csrc")],
            extra_ldflags=[_C.__file__],  # so that there is one registry of backends
            build_directory=str(folder),
        )
    return module


@pytest.fixture
def fake(fake_backend: Any) -> Iterator[Any]:
    """The backend, without algorithms before and after."""
    yield fake_backend
    fake_backend.reset()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 2, 6, 6)


@pytest.fixture
def w() -> Tensor:
    return torch.randn(3, 2, 3, 3)


def _problem(x: Tensor, w: Tensor, policy: str | None = None) -> str:
    return _C.convolution_problem("conv_fwd", x, w, [0, 0], [1, 1], [1, 1], 1, policy)


def _convolve(x: Tensor, w: Tensor, policy: str | None = None) -> str:
    """Runs a convolution, sees that it is right, and says which algorithm ran."""
    y = OPS.conv2d.default(x, w, policy=policy)
    torch.testing.assert_close(y, F.conv2d(x, w))
    return _ran().algorithm


def _ran() -> ops.Decision:
    return newest("conv_fwd")


def _measure(x: Tensor, w: Tensor, policy: str = "backends=fake", **more: Any) -> dict[str, Any]:
    """Measurements by algorithm, best first."""
    return {m["algorithm"]: m for m in _C.measure(_problem(x, w, policy), "cpu", policy, **more)}


def _winner(measured: dict[str, Any]) -> str:
    return next(iter(measured))


# The backend itself.


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
    assert "fake" not in {c["backend"] for c in _C.candidates(_problem(x, w), "cpu")}
    with pytest.raises(RuntimeError, match="fake:a is not scripted"):
        _convolve(x, w, "fake:a")


# What decides, and in which order.


def test_a_pin_beats_tuning_and_tuning_beats_the_heuristic(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:fast")
    fake.script("fake:slow", milliseconds=2)
    for weaker in ("", "autotune", "heuristic", "benchmark"):
        with pushed(weaker):
            assert _convolve(x, w, "fwd=fake:slow") == "fake:slow"
            assert _ran().why == "pinned"
    assert fake.counts("fake:fast") == (0, 0) and _C.table_export() == []

    with pushed("benchmark"):
        assert _convolve(x, w, "heuristic") == "aten:default"
        assert _ran().why == "heuristic"
    assert fake.counts("fake:fast") == (0, 0) and _C.table_export() == []

    for weaker in ("heuristic", "fwd=fake:slow"):
        with pushed(weaker):
            assert _convolve(x, w, TUNE) == "fake:fast"
    with pushed("benchmark;backends=fake"):
        assert _convolve(x, w) == "fake:fast"
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
            assert _convolve(x, w, "fastest") == "fake:fast"
            assert _convolve(x, w, "fastest;fwd=fake:slow") == "fake:slow"
    # As of every level, it is for all that weaker ones say, and a stronger one may take it back.
    with pushed("backends=fake;fwd=fake:slow"), pushed("fastest"):
        assert _convolve(x, w) == "fake:fast"
    with enabled("fastest"), pushed("backends=fake"):
        assert _convolve(x, w) == "fake:fast"
        OPS.conv2d.default(x, w, policy="fastest=false")
        assert _ran().why == "heuristic"
    with when("conv_fwd", use="fake:slow"), pushed("backends=fake"):
        assert _convolve(x, w) == "fake:slow"
        assert _convolve(x, w, "fastest") == "fake:fast"
        with when("conv_fwd", use="fastest"):
            assert _convolve(x, w) == "fake:fast"


def test_every_backend_is_no_constraint(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    every = ",".join(dict.fromkeys(b for op in _C.operators() for b in op["backends"]))
    assert "fake" in every
    assert _convolve(x, w, "autotune") in ("fake:a", "aten:default")
    _convolve(x, w, f"autotune;backends={every}")
    assert _ran().why == "cached"
    assert len(_C.table_export()) == 1


def test_the_fastest_wins(fake: Any, x: Tensor, w: Tensor) -> None:
    times = {"fake:c": 4, "fake:a": 1, "fake:b": 2}
    for algorithm, milliseconds in times.items():
        fake.script(algorithm, milliseconds=milliseconds)
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "tuned"
    (entry,) = _C.table_export()
    ranked = [m for m in entry["measurements"] if m["status"] == "ok"]
    assert [m["algorithm"] for m in ranked] == ["fake:a", "fake:b", "fake:c"]
    for m in ranked:
        assert m["median_ms"] == times[m["algorithm"]] and m["spread_ms"] == 0
        assert m["samples"] >= 1 and m["error"] is not None and m["error"] < 1e-5
    assert ranked[0]["samples"] > ranked[2]["samples"], "what is far slower is dropped early"


@pytest.mark.parametrize(
    ("policy", "first", "second", "winner"),
    [
        # (milliseconds, bytes) of fake:first and fake:second
        ("", (1.0, 512), (1.0, 256), "fake:second"),
        ("", (1.0, 256), (1.004, 0), "fake:second"),
        ("", (1.0, 256), (1.03, 0), "fake:first"),
        ("", (0.0100, 2**21), (0.0104, 2**22), "fake:first"),
        ("", (0.0100, 2**21), (0.0104, 256), "fake:second"),  # less than counts
        ("", (0.0100, 2**21), (0.0108, 256), "fake:first"),
        ("prefer=gpu_time", (0.0040, 2**21), (0.00409, 256), "fake:second"),  # events resolve more
        ("prefer=gpu_time", (0.0100, 2**21), (0.0104, 256), "fake:first"),
        ("prefer=gpu_time", (1.0, 256), (1.004, 0), "fake:second"),
        ("prefer=gpu_time", (1.0, 256), (1.007, 0), "fake:first"),
        ("prefer=memory", (1.0, 256), (1.03, 0), "fake:second"),
        ("prefer=memory", (1.0, 256), (1.1, 0), "fake:first"),
        ("prefer=memory", (0.0040, 256), (0.0044, 0), "fake:second"),  # less than counts
    ],
)
def test_equal_times_go_to_the_smaller_workspace(
    fake: Any,
    x: Tensor,
    w: Tensor,
    policy: str,
    first: tuple[float, int],
    second: tuple[float, int],
    winner: str,
) -> None:
    fake.script("fake:first", milliseconds=first[0], workspace_bytes=first[1])
    fake.script("fake:second", milliseconds=second[0], workspace_bytes=second[1])
    measured = _measure(x, w, f"backends=fake;{policy}")
    assert _winner(measured) == winner


def test_of_equal_medians_the_steadier_wins(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, swing_ms=0.2)
    fake.script("fake:b", milliseconds=1.001)  # as fast, by the median
    measured = _measure(x, w)
    assert measured["fake:a"]["median_ms"] == 1 and measured["fake:a"]["spread_ms"] > 0
    assert _winner(measured) == "fake:b"


def test_one_slow_sample_does_not_decide(fake: Any, x: Tensor, w: Tensor) -> None:
    # Its third run, the first that is timed, is the slow one.
    fake.script("fake:a", milliseconds=1, swing_ms=20, states_workspace=False)
    fake.script("fake:b", milliseconds=2)
    measured = _measure(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["median_ms"] == 1


def test_what_is_fast_in_one_place_of_memory_alone_does_not_win(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", milliseconds=1, elsewhere_ms=0.2)
    fake.script("fake:b", milliseconds=1.1)
    measured = _measure(x, w)
    assert _winner(measured) == "fake:b"
    assert measured["fake:a"]["median_ms"] == pytest.approx(1.2)


# What the host takes, as where a GPU works behind its back.


@pytest.mark.parametrize(
    ("policy", "first", "second", "winner"),
    [
        # (milliseconds, milliseconds of the host, bytes) of fake:first and fake:second
        ("", (0.004, 0.030, 0), (0.010, 0.006, 0), "fake:second"),
        ("prefer=time", (0.004, 0.030, 0), (0.010, 0.006, 0), "fake:second"),
        ("prefer=gpu_time", (0.004, 0.030, 0), (0.010, 0.006, 0), "fake:first"),
        ("prefer=memory", (0.004, 0.030, 0), (0.010, 0.006, 256), "fake:second"),
        ("", (0.050, 0.030, 0), (0.052, 0.006, 0), "fake:first"),
        # Equal ones: a large workspace, steps of 10 us, the kernel, bytes.
        ("", (1.0, 0.006, 2**21), (1.0, 0.030, 0), "fake:second"),
        ("", (1.0, 0.030, 256), (1.005, 0.006, 512), "fake:second"),
        ("", (0.006, 0.012, 0), (0.002, 0.012, 256), "fake:second"),
        ("", (1.0, 0.006, 512), (1.0, 0.013, 256), "fake:second"),
        ("prefer=gpu_time", (1.0, 0.030, 256), (1.0, 0.006, 512), "fake:first"),
        ("prefer=memory", (1.0, 0.030, 0), (1.03, 0.006, 256), "fake:first"),
        ("prefer=memory", (1.0, 0.030, 256), (1.03, 0.006, 256), "fake:second"),
    ],
)
def test_what_takes_longer_of_the_device_and_its_host_ranks(
    fake: Any,
    x: Tensor,
    w: Tensor,
    policy: str,
    first: tuple[float, float, int],
    second: tuple[float, float, int],
    winner: str,
) -> None:
    for name, script in (("first", first), ("second", second)):
        milliseconds, host_ms, size = script
        fake.script(
            f"fake:{name}", milliseconds=milliseconds, host_ms=host_ms, workspace_bytes=size
        )
    measured = _measure(x, w, f"backends=fake;{policy}")
    assert _winner(measured) == winner
    for name, script in (("first", first), ("second", second)):
        assert measured[f"fake:{name}"]["host_ms"] == pytest.approx(script[1])


@pytest.mark.parametrize(
    ("policy", "pytorch_ms", "milliseconds", "wins"),
    [
        ("", 1.0, 1.005, True),
        ("", 1.0, 1.02, False),
        ("", 0.0200, 0.0204, True),  # less than counts
        ("", 0.0200, 0.0207, False),
        ("", 0.0050, 0.00512, True),
        ("", 0.0050, 0.0053, False),  # more than 3 %
        ("", 0.0010, 0.00108, True),  # events resolve no more
        ("prefer=memory", 1.0, 1.04, True),
        ("prefer=memory", 1.0, 1.06, False),
    ],
)
def test_no_slower_kernel_than_pytorch_s_wins_by_its_host(
    fake: Any, x: Tensor, w: Tensor, policy: str, pytorch_ms: float, milliseconds: float, wins: bool
) -> None:
    fake.script_others(milliseconds=pytorch_ms, host_ms=5)
    fake.script("fake:other", milliseconds=pytorch_ms, host_ms=4)
    fake.script("fake:slow", milliseconds=milliseconds, host_ms=0.001)
    measured = _measure(x, w, f"backends=aten,fake;{policy}")
    order = [name for name in measured if name != "aten:im2col"][:3]
    rest = ["fake:other", "aten:default"]
    assert order == (["fake:slow", *rest] if wins else [*rest, "fake:slow"])
    # Where PyTorch's own row does not run, nothing is compared with it.
    assert _winner(_measure(x, w, f"backends=fake;{policy}")) == "fake:slow"


def test_a_slow_first_call_of_the_host_drops_nobody(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, host_ms=1, first_host_ms=100)
    fake.script("fake:b", milliseconds=3, host_ms=1)
    measured = _measure(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["host_ms"] == pytest.approx(1)


def test_a_time_that_holds_the_hosts_is_taken_again(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, first_stall_ms=100)
    fake.script("fake:b", milliseconds=3)
    measured = _measure(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["spread_ms"] == 0


def test_what_is_drawn_while_others_tune_is_not_drawn_again(x: Tensor, w: Tensor) -> None:
    drawn: list[Tensor] = []
    torch.manual_seed(0)
    _C.measure(_problem(x, w), "cpu", "", progress=lambda *_: drawn.append(torch.rand(())))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    assert len(drawn) > 1 and all(torch.equal(number, torch.rand(())) for number in drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_takes_the_host_far_longer_is_dropped_early(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script_others(milliseconds=1, host_ms=10)
    fake.script("fake:a", milliseconds=1, host_ms=2)
    fake.script("fake:b", milliseconds=1, host_ms=8)
    # It is no faster than PyTorch, so it drops nobody.
    fake.script("fake:slow", milliseconds=1.5, host_ms=0.1)
    samples = {name: m["samples"] for name, m in _measure(x, w, "backends=aten,fake").items()}
    order = [name for name in samples if name != "aten:im2col"]
    assert order[:4] == ["fake:a", "fake:b", "aten:default", "fake:slow"]
    assert samples["fake:a"] == samples["aten:default"]
    assert samples["fake:a"] > max(samples["fake:b"], samples["fake:slow"])
    fake.script("fake:a", unsupported="gone")
    samples = {name: m["samples"] for name, m in _measure(x, w, "backends=aten,fake").items()}
    assert samples["fake:b"] == samples["aten:default"]


def test_the_device_s_time_alone_is_a_ranking_of_its_own(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:kernel", milliseconds=1, host_ms=4)
    fake.script("fake:call", milliseconds=2, host_ms=1)
    for _ in range(2):
        for policy, winner in (
            ("", "call"),
            (";prefer=gpu_time", "kernel"),
            (";prefer=time", "call"),
        ):
            assert _convolve(x, w, TUNE + policy) == f"fake:{winner}"
    assert len(_C.table_export()) == 2


def test_there_is_no_time_of_a_host_that_does_the_work_itself(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    assert _measure(x, w, "backends=aten")["aten:default"]["host_ms"] is None


def test_equal_times_and_workspaces_go_to_the_simpler(fake: Any, x: Tensor, w: Tensor) -> None:
    for algorithm in ("fake:a/k=1/l=2", "fake:b", "fake:b/k=1"):
        fake.script(algorithm, milliseconds=1)
    assert _winner(_measure(x, w)) == "fake:b"


def test_the_knob_search_tries_what_is_near_the_best(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=2)
    fake.script("fake:a/k=1", milliseconds=1, neighbour_of="fake:a")
    assert "fake:a/k=1" not in _measure(x, w)
    measured = _measure(x, w, knob_search=True)
    assert _winner(measured) == "fake:a/k=1"
    assert measured["fake:a/k=1"]["source"] == "knob search"
    assert _convolve(x, w, TUNE) == "fake:a/k=1"


def test_the_heuristic_goes_on_to_the_next_backend(fake: Any, x: Tensor, w: Tensor) -> None:
    assert _convolve(x, w) == "aten:default"
    assert _convolve(x, w, "backends=cpu").startswith("cpu:")
    # PyTorch has no float32 convolution that sums in float64.
    assert _convolve(x, w, "compute=f64").startswith("cpu:")
    assert _ran().why == "heuristic"
    assert _C.canonical_problem(_ran().problem) == _ran().problem  # can be read back


# Constraints.


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
        assert _convolve(x, w, f"{TUNE};{strict}") == "fake:other"
        assert _convolve(x, w, f"{TUNE};{loose}") == "fake:best"
    assert len(_C.table_export()) == 2

    excluded = _measure(x, w, f"backends=fake;{strict}", record=False)["fake:best"]
    listed = {c["algorithm"]: c for c in _C.candidates(_problem(x, w), "cpu", strict)}["fake:best"]
    assert excluded["status"] == "excluded" and reason in excluded["reason"]
    assert listed["status"] == "excluded" and reason in listed["reason"]
    with pytest.raises(RuntimeError, match="pinned algorithm fake:best cannot run") as caught:
        _convolve(x, w, f"fwd=fake:best;{strict}")
    assert reason in str(caught.value)
    assert _convolve(x, w, f"fwd=fake:best;{loose}") == "fake:best"


def test_a_backend_that_is_not_admitted_is_not_even_built(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    assert _convolve(x, w, "autotune;backends=aten") == "aten:default"
    assert _convolve(x, w, TUNE) == "fake:a"
    assert len(_C.table_export()) == 2
    builds = fake.counts("fake:a")[0]
    excluded = _measure(x, w, "backends=aten")["fake:a"]
    assert (excluded["status"], excluded["reason"]) == ("excluded", "excluded by backends=aten")
    assert fake.counts("fake:a")[0] == builds


@pytest.mark.parametrize(
    ("values", "place", "difference", "error"),
    [
        ([1.0] * 1000, 0, 2.0, 0.1),  # a twentieth of it
        ([1.0] * 1000, slice(None), 0.03, 0.03),
        ([1000.0] + [0.0] * 999_999, 0, 10.0, 0.01),  # 1000 times their root mean square
        ([0.0] * 10, 3, 1.0, 0.1**0.5),
    ],
)
def test_errors_are_relative_to_all_numbers_or_to_large_ones_themselves(
    values: list[float], place: Any, difference: float, error: float, device: str
) -> None:
    reference = torch.tensor(values, dtype=torch.float64, device=device)
    result = reference.clone()
    result[place] += difference
    assert _C.relative_error(result, reference) == pytest.approx(error)


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
            _convolve(x, w, policy)
        counts.add(fake.counts("fake:a"))
        assert _problem(x, w, policy) in str(caught.value)
        assert reason in str(caught.value)
    assert len(counts) == 1, "it is not tried again"


# What cannot run.


def test_a_pin_that_cannot_be_built_is_built_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    fake.script("fake:b")
    counts = set()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="its phase of the moon is wrong") as caught:
            _convolve(x, w, "fwd=fake:a")
        counts.add((fake.counts("fake:a"), fake.counts("fake:b")))
        for part in ("conv_fwd", "fake:a", _problem(x, w), "would work", "fake:b"):
            assert part in str(caught.value)

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="its phase of the moon is wrong"):
            _convolve(x, w, "fwd=fake:a")

    thread = ThreadPoolExecutor(1)
    thread.submit(elsewhere).result()
    thread.shutdown()
    counts.add((fake.counts("fake:a"), fake.counts("fake:b")))
    assert len(counts) == 1, "the error is remembered, for all threads"


@pytest.mark.parametrize("kind", ["error", "out_of_memory"])
@pytest.mark.parametrize("when", ["build_raises", "run_raises"])
def test_a_candidate_that_fails_is_not_tried_again(
    fake: Any, x: Tensor, w: Tensor, when: str, kind: str
) -> None:
    fake.script("fake:a", **{when: kind})
    fake.script("fake:b", milliseconds=1)
    assert _convolve(x, w, TUNE) == "fake:b"
    counts = fake.counts("fake:a")
    assert counts == ((1, 0) if when == "build_raises" else (1, 1))
    _C.plan_cache_clear()  # every decision is made anew
    assert _convolve(x, w, TUNE) == "fake:b"
    assert _ran().why == "cached"
    assert fake.counts("fake:a") == counts

    (entry,) = _C.table_export()
    (failed,) = (m for m in entry["measurements"] if m["algorithm"] == "fake:a")
    assert failed["status"] == ("unsupported" if when == "build_raises" else "failed")
    assert "fake:a was told to" in failed["reason"] or kind == "out_of_memory"
    assert ("out of memory" in failed["reason"]) == (kind == "out_of_memory")
    assert "GPU 0 has" not in failed["reason"]  # which is so at one moment


@pytest.mark.parametrize(("first_ms", "left_out"), [(1.6, True), (1.4, False)])
def test_autotune_leaves_out_other_knobs_of_a_slow_compiled_engine(
    fake: Any, x: Tensor, w: Tensor, first_ms: float, left_out: bool
) -> None:
    fake.script("fake:a", milliseconds=1)
    for engine, notes in (("b", ["runtime_compilation"]), ("c", [])):
        fake.script(f"fake:{engine}/k1=1", milliseconds=first_ms, notes=notes)
        fake.script(f"fake:{engine}/k1=2", milliseconds=0.9 if engine == "b" else 2, notes=notes)
    fake.script("fake:b", milliseconds=3, notes=["runtime_compilation"])
    assert _convolve(x, w, TUNE) == ("fake:a" if left_out else "fake:b/k1=2")
    assert (fake.counts("fake:b/k1=2")[0] == 0) == left_out
    assert [fake.counts(f"fake:{a}")[0] for a in ("b", "b/k1=1", "c/k1=1", "c/k1=2")] == [1] * 4
    (entry,) = _C.table_export()
    (row,) = (m for m in entry["measurements"] if m["algorithm"] == "fake:b/k1=2")
    if left_out:
        assert (row["status"], row["samples"]) == ("excluded", 0)
        reason = "not tried: other knobs of its engine took 1.6 times as long as the best"
        assert row["reason"] == reason
    # To measure all is what tuning is for.
    assert (_C.tuned(_problem(x, w), "cpu", "backends=fake") is None) == left_out
    tuning.tune(_problem(x, w), device="cpu", policy="backends=fake")
    assert _C.tuned(_problem(x, w), "cpu", "backends=fake")
    assert _measure(x, w)["fake:b/k1=2"]["status"] == "ok"


def test_what_the_notes_exclude_is_not_built(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1)
    fake.script("fake:b", notes=["nondeterministic"])
    assert _convolve(x, w, f"{TUNE};deterministic") == "fake:a"
    assert fake.counts("fake:b") == (0, 0)
    excluded = _measure(x, w, "backends=fake;deterministic")["fake:b"]
    assert excluded["notes"] == ["nondeterministic"] and not excluded["deterministic"]
    assert "excluded by deterministic" in excluded["reason"]


def test_a_policy_that_comes_back_finds_its_decision(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b")
    _C.set_knobs("conv_fwd=fake:a", False)
    for _ in range(3):
        assert _convolve(x, w) == "fake:a"
        _C.set_knobs("conv_fwd=fake:b", False)
        assert _convolve(x, w) == "fake:b"
        _C.set_knobs("conv_fwd=fake:a", False)
        with enabled("fwd=fake:b"):
            F.conv2d(x, w)
            assert _ran().algorithm == "fake:b"
    made = _C.plan_cache_info()["misses"]
    assert (fake.counts("fake:a")[0], fake.counts("fake:b")[0]) == (1, 1)
    assert _convolve(x, w) == "fake:a"
    assert _C.plan_cache_info()["misses"] == made
    _C.remove_rule(_C.add_rule("conv_fwd", "fake:b"))  # now all are made anew
    assert _convolve(x, w) == "fake:a" and _C.plan_cache_info()["misses"] == made + 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"relative_error": 0.01}, "above the tolerance"),
        ({"relative_error": math.nan}, "not finite or not wholly written"),
        ({"relative_error": math.inf}, "not finite or not wholly written"),
        ({"written": 0.5}, "not finite or not wholly written"),
    ],
)
def test_a_wrong_result_is_rejected_however_fast(
    fake: Any, x: Tensor, w: Tensor, script: dict[str, float], reason: str
) -> None:
    fake.script("fake:wrong", **script)
    fake.script("fake:right", milliseconds=2)
    assert _convolve(x, w, TUNE) == "fake:right"
    (entry,) = _C.table_export()
    (m,) = (m for m in entry["measurements"] if m["algorithm"] == "fake:wrong")
    assert m["status"] == "rejected" and reason in m["reason"]
    assert m["median_ms"] is None and m["samples"] == 0
    error = m["error"]
    assert error is not None
    if reason == "above the tolerance":
        assert error == pytest.approx(0.01, rel=0.1)
        assert error > _C.tolerance(_problem(x, w), [])
    else:
        assert math.isnan(error)


def _tune_and_reject_all(x: Tensor, w: Tensor, policy: str) -> None:
    _C.table_clear()
    _convolve(x, w, policy)
    (entry,) = _C.table_export()
    for measurement in entry["measurements"]:
        if measurement["status"] == "ok":
            measurement.update(status="rejected", reason="relative error 1")
    _C.table_import([entry])
    _C.plan_cache_clear()


def test_pytorch_s_own_runs_where_tuning_rejects_everything(x: Tensor, w: Tensor) -> None:
    policy = "autotune;backends=aten,cpu"
    _tune_and_reject_all(x, w, policy)
    with pytest.warns(UserWarning, match="rejected every algorithm, .* relative error 1"):
        assert _convolve(x, w, policy) == "aten:default"
    assert _ran().why == "fallback: tuning rejected every algorithm"

    without = "autotune;backends=cpu"
    _tune_and_reject_all(x, w, without)
    with pytest.raises(RuntimeError, match=r"(?s)no algorithm can run.*relative error 1: cpu"):
        _convolve(x, w, without)


def test_a_wrong_sum_is_rejected_when_accumulating(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:wrong", written=0.5)
    fake.script("fake:right", milliseconds=1)
    problem = _problem(x, w) + " accumulate=add"
    first, second = _C.measure(problem, "cpu", "backends=fake")[:2]
    assert (first["algorithm"], first["status"]) == ("fake:right", "ok")
    assert (second["algorithm"], second["status"]) == ("fake:wrong", "rejected")


def test_the_heuristic_stands_in_for_a_pin_where_allowed(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    policy = "fwd=fake:a;on_unsupported="
    with pytest.warns(UserWarning, match="fake:a cannot run: its phase of the moon is wrong"):
        assert _convolve(x, w, policy + "warn") == "aten:default"
    why = _ran().why
    assert why.startswith("fallback: fake:a cannot run") and "phase of the moon" in why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _convolve(x, w, policy + "warn") == "aten:default"  # said once
        assert _convolve(x, w, policy + "fallback") == "aten:default"
    assert _ran().why.startswith("fallback: fake:a cannot run")
    assert fake.counts("fake:a") == (2, 0)
    with pytest.raises(RuntimeError, match="phase of the moon"):
        _convolve(x, w, policy + "error")


def test_a_warning_that_is_an_error_is_raised_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="phase of the moon"):
            _convolve(x, w, "fwd=fake:a;on_unsupported=warn")
        assert _convolve(x, w, "fwd=fake:a;on_unsupported=warn") == "aten:default"


# The table of what was measured.


def test_a_tuned_decision_is_reused_without_measuring(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=2)
    assert _convolve(x, w, TUNE) == "fake:a"
    tuned = _ran()
    assert tuned.why == "tuned" and tuned.decision_ms > 0
    runs, others = fake.counts("fake:a")[1], fake.counts("fake:b")
    for call in range(1, 4):
        assert _convolve(x, w, TUNE) == "fake:a"
        assert (fake.counts("fake:a")[1], fake.counts("fake:b")) == (runs + call, others)
    _C.plan_cache_clear()
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "cached"
    assert (fake.counts("fake:a")[1], fake.counts("fake:b")) == (runs + 4, others)


def test_export_import_and_clear_take_effect_at_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    _convolve(x, w, TUNE)
    (entry,) = _C.table_export()
    assert (entry["problem"], entry["device"]) == (_problem(x, w), _C.device_fingerprint("cpu"))
    ok, others = entry["measurements"][:2], entry["measurements"][2:]
    runs = fake.counts("fake:b")[1]

    assert _C.table_import([{**entry, "measurements": [*reversed(ok), *others]}]) == 1
    assert _convolve(x, w, TUNE) == "fake:b"
    assert _ran().why == "cached" and fake.counts("fake:b")[1] == runs + 1

    _C.table_clear()
    assert _C.table_export() == []
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "tuned"

    with pytest.raises(ValueError, match="status"):
        bad = {**ok[1], "status": "fine"}
        _C.table_import(
            [{**entry, "measurements": [*reversed(ok)]}, {**entry, "measurements": [bad]}]
        )
    assert _convolve(x, w, TUNE) == "fake:a", "an import with a mistake changes nothing"


def test_a_tuned_algorithm_that_is_gone_gives_way_to_the_next(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    assert _convolve(x, w, TUNE) == "fake:a"
    fake.script("fake:a", unsupported="gone")
    _C.plan_cache_clear()
    assert _convolve(x, w, TUNE) == "fake:b"


def test_what_was_measured_by_hand_is_what_tuning_takes(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1)
    assert _convolve(x, w, TUNE) == "fake:a"
    fake.script("fake:b")
    _measure(x, w, record=False)
    assert _convolve(x, w, TUNE) == "fake:a"
    _measure(x, w, algorithms=["fake:b"])
    assert _convolve(x, w, TUNE) == "fake:a", "a part of the candidates is no ranking"
    _measure(x, w)
    assert _convolve(x, w, TUNE) == "fake:b"
    assert _ran().why == "cached"


# Memory that runs out.


def _script_by_size(fake: Any, no_memory_above: float = math.inf) -> None:
    """By speed: 300, 400, 200 and 0 bytes."""
    for rank, size in enumerate((300, 400, 200, 0)):
        kind = "out_of_memory" if size > no_memory_above else ""
        fake.script(f"fake:b{size}", milliseconds=rank / 2, workspace_bytes=size, run_raises=kind)


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_the_next_smaller_runs_and_says_so(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    assert _convolve(x, w, TUNE) == "fake:b300"
    # Of what is left only the smaller ones are tried, in the order of their ranks.
    for no_memory_above, algorithm in ((250, "fake:b200"), (0, "fake:b0")):
        runs = fake.counts("fake:b400")[1]
        _script_by_size(fake, no_memory_above)
        assert _convolve(x, w, TUNE) == algorithm
        why = _ran().why
        assert why.startswith("fallback: no memory for the workspace of fake:b300 (300 bytes)")
        assert fake.counts("fake:b400")[1] == runs
    _script_by_size(fake)
    assert _convolve(x, w, TUNE) == "fake:b300"
    assert _ran().why == "tuned"
    choice = _C.decide(_problem(x, w), "cpu", TUNE)
    assert choice["algorithm"] == "fake:b300", "a lack of memory is not a decision"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
@pytest.mark.parametrize("policy", [TUNE, "heuristic;backends=fake"])
def test_what_runs_without_memory_is_built_once(
    fake: Any, x: Tensor, w: Tensor, policy: str
) -> None:
    _script_by_size(fake)
    # Where it is not tuned, in the order of their names.
    fake.script("fake:a", milliseconds=9, workspace_bytes=300)
    first = _convolve(x, w, policy)
    _script_by_size(fake, 100)
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    builds = []
    for _ in range(3):
        assert _convolve(x, w, policy) == "fake:b0"
        builds.append([fake.counts(f"fake:b{size}")[0] for size in (300, 400, 200, 0)])
    assert first == ("fake:b300" if policy == TUNE else "fake:a")
    assert builds[0] == builds[1] == builds[2]


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_pytorch_itself_may_be_the_smaller_one(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    policy = "autotune;backends=aten,fake"
    fake.script("fake:a", workspace_bytes=1 << 20)
    _convolve(x, w, policy)
    (entry,) = _C.table_export()
    best_first = sorted(entry["measurements"], key=lambda m: m["algorithm"] != "fake:a")
    _C.table_import([{**entry, "measurements": best_first}])
    assert _convolve(x, w, policy) == "fake:a"
    fake.script("fake:a", workspace_bytes=1 << 20, run_raises="out_of_memory")
    assert _convolve(x, w, policy) == "aten:default"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_the_sum_is_still_right(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    arguments = (x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    z = torch.randn(1, 3, 4, 4)
    for no_memory_above in (math.inf, 250):
        _script_by_size(fake, no_memory_above)
        out = z.clone()
        OPS.convolution_out.default(*arguments, out=out, beta=1.0, policy=TUNE)
        torch.testing.assert_close(out, F.conv2d(x, w) + z)


def test_without_memory_for_any_it_is_an_error(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    _convolve(x, w, TUNE)
    _script_by_size(fake, -1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _convolve(x, w, TUNE)
    for part in ("fake:b300", "no algorithm with a smaller workspace", _problem(x, w)):
        assert part in str(caught.value)
    _script_by_size(fake)
    assert _convolve(x, w, TUNE) == "fake:b300"


def test_a_pin_without_memory_is_an_error(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    assert _convolve(x, w, "fwd=fake:b400") == "fake:b400"
    _script_by_size(fake, 250)
    runs = fake.counts("fake:b200")[1]
    with pytest.raises(torch.OutOfMemoryError, match="fake:b400"):
        _convolve(x, w, "fwd=fake:b400")
    assert fake.counts("fake:b200")[1] == runs
    _script_by_size(fake)
    assert _convolve(x, w, "fwd=fake:b400") == "fake:b400"


def test_a_pin_whose_memory_cannot_be_told_is_an_error_that_is_kept(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", states_workspace=False, run_raises="error")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run"):
            _convolve(x, w, "fwd=fake:a;max_workspace=1MiB")
        assert fake.counts("fake:a")[1] == 1


def test_a_known_plan_is_no_way_around_what_its_backward_is_refused_for(fake: Any) -> None:
    fake.script("fake:d", notes=["nondeterministic"])
    x = torch.randn(5, requires_grad=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dropout_bwd: excluded by deterministic"):
            OPS.dropout.default(x, 0.5, policy="fake:d;deterministic")
        OPS.dropout.default(x, 0.5, policy="fake:d").sum().backward()


def test_without_memory_for_its_result_nothing_else_is_built(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    _script_by_size(fake)
    policy = "autotune;backends=fake;max_workspace=0"
    assert _convolve(x, w, policy) == "fake:b0"
    _script_by_size(fake, -1)
    builds = fake.counts("fake:b200")[0]
    with pytest.raises(torch.OutOfMemoryError):
        _convolve(x, w, policy)
    assert fake.counts("fake:b200")[0] == builds


@pytest.mark.filterwarnings("ignore:.*so the heuristic's algorithm runs")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("out_of_memory", "no memory to tune in"),
        ("error", "every algorithm failed while tuning"),
    ],
)
def test_a_tuning_in_which_all_failed_is_not_for_good(
    fake: Any, x: Tensor, w: Tensor, kind: str, why: str
) -> None:
    fake.script("fake:a", run_raises=kind, raises_at=1)
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == f"heuristic: {why}"
    assert _C.table_export() == []
    _C.plan_cache_clear()
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "tuned"
    assert len(_C.table_export()) == 1
    # A table of another process may hold such a ranking.
    (entry,) = _C.table_export()
    for row in entry["measurements"]:
        row.update(status="failed", reason="CUDA error: an illegal memory access", median_ms=None)
    _C.table_clear()
    _C.table_import([entry])
    _C.plan_cache_clear()
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "tuned"


# What is refused at a run.


@pytest.mark.parametrize("policy", ["heuristic;backends=fake", TUNE])
def test_what_refuses_at_its_run_is_followed_by_the_next(
    fake: Any, x: Tensor, w: Tensor, policy: str
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    if policy == TUNE:
        assert _convolve(x, w, policy) == "fake:a"
    fake.script("fake:a", run_raises="refusal")
    with pytest.warns(UserWarning, match="fake:a was chosen.*fake:a was told to refuse"):
        assert _convolve(x, w, policy) == "fake:b"
    runs = fake.counts("fake:a")[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _convolve(x, w, policy) == "fake:b"
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(_convolve, x, w, policy).result() == "fake:b"
    assert fake.counts("fake:a")[1] == runs, "it is not asked again"
    with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run: fake:a was told"):
        _convolve(x, w, "fwd=fake:a")  # a pin asks
    _C.plan_cache_clear()
    fake.script("fake:a")
    assert _convolve(x, w, policy) == "fake:a"


def test_a_pin_that_may_fall_back_does_so_where_it_refuses(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", run_raises="refusal")
    fake.script("fake:b")
    policy = "fwd=fake:a;on_unsupported=fallback;backends=fake"
    with pytest.warns(UserWarning, match="fake:a was told to refuse"):
        assert _convolve(x, w, policy) == "fake:b"
    assert _ran().why.startswith("fallback: fake:a cannot run: it did not support the problem")
    assert _convolve(x, w, policy) == "fake:b"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_what_refuses_for_want_of_memory_for_another_is_passed_over(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    fake.script("fake:b", workspace_bytes=200, run_raises="refusal")
    fake.script("fake:c")
    for _ in range(2):
        assert _convolve(x, w, "heuristic;backends=fake") == "fake:c"
    assert fake.counts("fake:b")[1] == 1


@pytest.mark.filterwarnings("ignore:.*was told to refuse")
def test_what_refuses_is_tuned_once(fake: Any, x: Tensor, w: Tensor) -> None:
    names = [f"fake:{letter}" for letter in "abcd"]
    for name in names:
        fake.script(name, run_raises="refusal")
    with pytest.raises(RuntimeError, match="no algorithm can run"):
        _convolve(x, w, TUNE)
    assert [fake.counts(name)[1] for name in names] == [2] * 4  # tuned, and asked
    with pytest.raises(RuntimeError, match="no algorithm can run"):
        _convolve(x, w, TUNE)
    assert [fake.counts(name)[1] for name in names] == [2] * 4


def test_a_warning_s_hook_decides_for_itself(
    fake: Any, x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("fake:a", run_raises="refusal")
    fake.script("fake:b")
    other, whys = torch.randn(1, 2, 7, 7), []

    def show(*_: Any) -> None:
        OPS.conv2d.default(other, w, policy="autotune;backends=aten")
        whys.append(_ran().why)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        OPS.conv2d.default(x, w, policy="heuristic;backends=fake")
    assert _ran().algorithm == "fake:b" and whys == ["tuned"]


@pytest.mark.parametrize("twice", ["a hook", "a handler of signals"])
def test_a_warning_s_hook_calls_what_was_decided(
    x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch, twice: str
) -> None:
    policy, ran = "fwd=legacy:fft;on_unsupported=warn", []

    def call(*_: Any) -> None:
        OPS.conv2d.default(x, w, policy=policy)
        ran.append(_ran().why)

    def show(*_: Any) -> None:
        if not ran:
            call() if twice == "a hook" else signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, call)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", show)
            OPS.conv2d.default(x, w, policy=policy)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(ran) == 1 and ran[0].startswith("fallback: ")


def test_who_waits_for_a_decision_does_not_keep_python_s_lock(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    policy = "autotune;backends=fake"
    fake.script("fake:a", sleep_ms=20)
    with ThreadPoolExecutor(1) as elsewhere:
        tuned = elsewhere.submit(OPS.conv2d.default, x, w, policy=policy)
        while fake.counts("fake:a")[1] == 0 and not tuned.done():
            time.sleep(0.001)
        # The tuning asks for Ctrl-C, for which it takes the lock, between its runs.
        got = fake.call_with_the_lock("torch_cudnn_ext::conv2d", x, w, policy)
        torch.testing.assert_close(got, tuned.result())


def test_what_a_capture_refuses_is_asked_again_behind_it(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", build_raises="failure")
    fake.script("fake:b")
    fake.capture(True)
    assert _convolve(x, w, "heuristic;backends=fake") == "fake:b"
    fake.capture(False)
    fake.script("fake:a")
    assert _convolve(x, w, "heuristic;backends=fake") == "fake:a"
    fake.script("fake:a", unsupported="never")
    _C.plan_cache_clear()
    fake.capture(True)
    builds = fake.counts("fake:a")[0]
    for _ in range(3):
        assert _convolve(x, w, "heuristic;backends=fake") == "fake:b"
    assert fake.counts("fake:a")[0] == builds + 1  # what has another reason is not asked again


def test_threads_that_knew_it_do_not_ask_again(fake: Any, x: Tensor, w: Tensor) -> None:
    policy = "heuristic;backends=fake"
    fake.script("fake:a")
    fake.script("fake:b")
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(1) as elsewhere:

        def knows() -> str:
            OPS.conv2d.default(x, w, policy=policy)
            barrier.wait()
            barrier.wait()
            OPS.conv2d.default(x, w, policy=policy)
            return _ran().algorithm

        ran = elsewhere.submit(knows)
        barrier.wait()
        fake.script("fake:a", run_raises="refusal")
        with pytest.warns(UserWarning, match="fake:a was told to refuse"):
            assert _convolve(x, w, policy) == "fake:b"
        runs = fake.counts("fake:a")[1]
        barrier.wait()
        assert ran.result() == "fake:b" and fake.counts("fake:a")[1] == runs


def test_a_backward_does_not_fall_back_from_its_forward_s_algorithm() -> None:
    x, h = torch.randn(5, 2, 4, requires_grad=True), torch.zeros(1, 2, 4)
    weights = [torch.randn(16, 4), torch.randn(16, 4)]
    policy = "aten:default;on_unsupported=fallback"
    y = ops.lstm(x, (h, h), weights, False, 1, 0.0, False, False, False, policy=policy)[0]
    with pushed("max_workspace=1KiB"), pytest.raises(RuntimeError, match="rnn_bwd.*max_workspace"):
        y.sum().backward()


def test_a_pin_that_refuses_at_its_run_is_an_error(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", run_raises="refusal")
    fake.script("fake:b")
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            _convolve(x, w, "fwd=fake:a;backends=fake")
        for part in (
            "conv_fwd: the pinned algorithm fake:a cannot run: fake:a was told to refuse",
            "problem: conv_fwd x=f32[1,2,6,6]",
            "device: cpu",
            "would work: fake:b",
        ):
            assert part in str(caught.value)
    fake.script("fake:a")
    assert _convolve(x, w, "fwd=fake:a;backends=fake") == "fake:a"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_a_pin_without_memory_is_an_error_or_falls_back(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    fake.script("fake:b", workspace_bytes=200)
    policy = "fwd=fake:a;backends=fake"
    with pytest.raises(
        torch.OutOfMemoryError, match="fake:a cannot run: no memory .workspace: 300"
    ):
        _convolve(x, w, policy)
    for action in ("warn", "fallback"):
        assert _convolve(x, w, f"{policy};on_unsupported={action}") == "fake:b"


def test_where_all_refuse_at_their_runs_each_reason_is_told(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    for name in ("fake:a", "fake:b"):
        fake.script(name, run_raises="refusal")
    with (
        pytest.warns(UserWarning, match="was told to refuse"),
        pytest.raises(RuntimeError, match="no algorithm can run") as caught,
    ):
        _convolve(x, w, "heuristic;backends=fake")
    assert all(f"{name} was told to refuse" in str(caught.value) for name in ("fake:a", "fake:b"))


def test_what_tuning_measured_of_memory_is_told(x: Tensor, w: Tensor) -> None:
    OPS.conv2d.default(x, w, policy="autotune;backends=aten")
    (entry,) = _C.table_export()
    assert _ran().workspace_bytes == entry["measurements"][0]["workspace_bytes"] is not None


def test_what_a_time_budget_cut_is_tuned_with_a_larger_one(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", sleep_ms=30)
    fake.script("fake:b")
    problem = _problem(x, w)
    tuning.tune(problem, device="cpu", policy="backends=aten,fake", time_budget_s=1e-3)
    known = partial(_C.tuned, problem, "cpu", "backends=aten,fake")
    assert known(1e-3) is not None
    assert known(1e-4) is not None
    assert known(1) is None
    assert known(0) is None
    tuning.tune(problem, device="cpu", policy="backends=aten,fake")
    assert known(0) is not None


def test_a_time_budget_ends_the_rounds_too(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in ("fake:a", "fake:b"):
        fake.script(name, sleep_ms=100)
    policy = "backends=aten,fake"
    rows = _C.measure(_problem(x, w), "cpu", policy, time_budget_s=0.3, record=False)
    samples = {row["algorithm"]: row["samples"] for row in rows if row["status"] == "ok"}
    slow = [count for name, count in samples.items() if name.startswith("fake")]
    assert "aten:default" in samples and min(slow, default=1) < 4  # three rounds give each as many


def test_verbose_prints_every_candidate(
    fake: Any, x: Tensor, w: Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.script("fake:a", milliseconds=2)
    fake.script("fake:b", milliseconds=1, workspace_bytes=100)
    fake.script("fake:c", unsupported="it is Monday")
    knobs.verbose = True
    try:
        _convolve(x, w, TUNE)
    finally:
        knobs.verbose = False
    lines = [line for line in capfd.readouterr().err.splitlines() if "torch_cudnn_ext:" in line]
    first, last = lines[0], lines[-1]
    assert _problem(x, w) in first and first.endswith(f" on cpu, {len(lines) - 2} candidates:")
    assert "1. fake:b: 1 ms, workspace 100 bytes, ok" in lines[1]
    assert "2. fake:a: 2 ms, workspace 0 bytes, ok" in lines[2]
    wanted = "fake:c: no time, workspace unknown, unsupported: it is Monday"
    assert any(line.endswith(wanted) for line in lines[3:-1])
    assert "-> fake:b (tuned; workspace 100 bytes" in last


def test_a_list_holds_to_the_cap_that_a_pin_holds_to(x: Tensor, w: Tensor) -> None:
    policy = "backends=aten;max_workspace=0"
    (row,) = (
        row
        for row in _C.candidates(_problem(x, w), "cpu", policy)
        if row["algorithm"] == "aten:default"
    )
    assert row["status"] == "excluded" and row["workspace_bytes"] > 0
    with pytest.raises(RuntimeError) as caught:
        OPS.conv2d.default(x, w, policy=policy)
    assert row["reason"] in str(caught.value)


def test_a_shortage_of_memory_is_not_kept(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", states_workspace=False, run_raises="out_of_memory", raises_at=1)
    with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run"):
        _convolve(x, w, "fwd=fake:a;max_workspace=1MiB")
    assert _convolve(x, w, "fwd=fake:a;max_workspace=1MiB") == "fake:a"


def test_what_a_first_run_alone_allocates_is_no_workspace(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", states_workspace=False, workspace_bytes=1 << 12, first_bytes=1 << 24)
    assert _convolve(x, w, "fwd=fake:a;max_workspace=64KiB") == "fake:a"
    assert 1 << 12 <= newest("conv_fwd").workspace_bytes <= 1 << 16
    with pytest.raises(RuntimeError, match="excluded by max_workspace=1024"):
        _convolve(x, w, "fwd=fake:a;max_workspace=1KiB")
    fake.script("fake:b", states_workspace=False, workspace_bytes=1 << 12, first_bytes=1 << 24)
    for row in _C.measure(_problem(x, w), "cpu", "backends=fake;max_workspace=64KiB"):
        assert row["backend"] != "fake" or row["status"] == "ok", row["reason"]


def test_the_saved_policy_keeps_a_cap_beside_fastest(x: Tensor, w: Tensor) -> None:
    w = w.clone().requires_grad_()
    with knobs.flags(max_workspace="64KiB"):
        y = OPS.conv2d.default(x, w, policy="fastest;backends=aten")
    y.sum().backward()
    assert "max_workspace=64KiB" in newest("conv_bwd_filter").policy


def test_more_policies_than_a_thread_remembers(x: Tensor, w: Tensor) -> None:
    for count in (*range(1, 1100), *range(1, 10)):
        policy = f"max_workspace={count}GiB;backends=cpu"
        assert _C.resolved_policy(policy).startswith(f"max_workspace={count}GiB;")


def test_a_handler_of_signals_may_call_what_is_being_tuned(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    ran: list[str] = []

    def handler(signum: int, frame: object) -> None:
        OPS.conv2d.default(x, w, policy="autotune;backends=fake,aten")
        ran.append(_ran().why)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(20):
            _C.table_clear()
            _C.plan_cache_clear()
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            OPS.conv2d.default(x, w, policy="autotune;backends=fake,aten")
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert set(ran) <= {"heuristic: met again while it is being tuned", "tuned", "cached"}


# Measuring leaves no trace.


def test_tuning_leaves_the_users_tensors_alone(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:wrong", relative_error=1)
    before = x.clone(), w.clone()
    OPS.conv2d.default(x, w, policy=TUNE)
    assert torch.equal(x, before[0]) and torch.equal(w, before[1])


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.0)])
def test_the_first_tuned_call_into_an_output_is_right(
    fake: Any, x: Tensor, w: Tensor, alpha: float, beta: float
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    arguments = (x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    z = torch.randn(1, 3, 4, 4)
    out = z.clone()
    OPS.convolution_out.default(*arguments, out=out, alpha=alpha, beta=beta, policy=TUNE)
    assert _ran().why == "tuned"
    expected = alpha * F.conv2d(x, w) + beta * z
    torch.testing.assert_close(out, expected)
    kept = z.clone()
    y = OPS.convolution.default(*arguments, z=z, alpha=alpha, beta=beta, policy=TUNE)
    torch.testing.assert_close(y, expected)
    assert torch.equal(z, kept)


def test_tuning_does_not_move_the_random_state(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    state = torch.get_rng_state()
    assert _convolve(x, w, TUNE) == "fake:a" and _ran().why == "tuned"
    assert torch.equal(torch.get_rng_state(), state)
    # And does not depend on it.
    errors = set()
    for seed in range(2):
        torch.manual_seed(seed)
        errors.add(_measure(x, w)["fake:a"]["error"])
    assert len(errors) == 1


@pytest.mark.parametrize("where", ["fake:b", "timing:round"])
def test_an_interrupted_measuring_stores_nothing(
    fake: Any, x: Tensor, w: Tensor, where: str
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)

    def interrupt(done: int, total: int, algorithm: str) -> None:
        assert 0 <= done <= total
        if algorithm == where:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _measure(x, w, progress=interrupt)
    assert fake.counts("fake:a")[0] == 1 and _C.table_export() == []
    assert _convolve(x, w, TUNE) == "fake:a"
    assert _ran().why == "tuned"


@pytest.mark.parametrize("during", range(1, 6))
@pytest.mark.parametrize("by_call", [False, True], ids=["measure", "autotune"])
def test_no_run_begins_after_an_interrupt(
    fake: Any, x: Tensor, w: Tensor, by_call: bool, during: int
) -> None:
    """Whichever of its runs it comes in: for the workspace, the check, or a time."""
    fake.script("fake:a", sleep_ms=200, states_workspace=False)

    def send() -> None:
        while fake.counts("fake:a")[1] < during:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        _convolve(x, w, "fwd=autotune;backends=fake") if by_call else _measure(
            x, w, "backends=fake", algorithms=["fake:a"]
        )
    sender.join()
    assert fake.counts("fake:a")[1] == during
    assert _C.table_export() == []
    fake.script("fake:a")
    assert _convolve(x, w, "fwd=autotune;backends=fake") == "fake:a"
    assert _ran().why == "tuned"


def test_the_time_budget_keeps_pytorch_and_names_what_was_not_tried(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", sleep_ms=1100)
    fake.script("fake:b")
    measured = _measure(x, w, "backends=aten,fake", time_budget_s=1.0)
    assert measured["aten:default"]["status"] == "ok"
    assert measured["fake:a"]["status"] == "ok"
    assert measured["fake:b"]["status"] == "excluded"
    assert "not tried: the time budget of 1 s" in measured["fake:b"]["reason"]
    assert fake.counts("fake:b") == (1, 0)  # built before anything ran


def test_the_time_budget_keeps_pytorch_however_short_it_is(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    measured = _measure(x, w, "backends=aten,fake", time_budget_s=1e-6)
    assert "not tried" in measured["fake:a"]["reason"]
    assert measured["aten:default"]["status"] == "ok"
    assert _convolve(x, w, "autotune;backends=aten,fake") == "aten:default"


# Threads and caches.


def test_one_thread_builds_and_measures_for_all(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", sleep_ms=1)
    fake.script("fake:b", milliseconds=3, sleep_ms=3)
    fake.script("fake:c", unsupported="no")
    barrier = threading.Barrier(THREADS, timeout=60)

    def work(_: int) -> Tensor:
        barrier.wait()
        return OPS.conv2d.default(x, w, policy=TUNE)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for y in results:
        torch.testing.assert_close(y, F.conv2d(x, w))
    assert fake.counts("fake:b")[0] == 1 and fake.counts("fake:c") == (1, 0)
    # Once to measure, and a plan for each thread.
    assert fake.counts("fake:a")[0] == 1 + THREADS
    samples = _C.table_export()[0]["measurements"][0]["samples"]
    assert fake.counts("fake:a")[1] == 1 + samples + THREADS


def test_a_changed_pin_takes_effect_on_a_seen_shape(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    for name in "abba":
        assert _convolve(x, w, f"fwd=fake:{name}") == f"fake:{name}"
    assert fake.counts("fake:a") == (1, 2) and fake.counts("fake:b") == (1, 2)


def test_going_back_to_a_knob_builds_nothing_again(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    for name in "abba":
        _C.set_knobs(f"fwd=fake:{name}", False)
        assert _convolve(x, w) == f"fake:{name}"
    assert fake.counts("fake:a") == (1, 2) and fake.counts("fake:b") == (1, 2)


def test_a_knob_reaches_every_thread(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    barrier = threading.Barrier(THREADS, timeout=60)

    def work(_: int) -> None:
        barrier.wait()  # so that each thread takes one
        OPS.conv2d.default(x, w)

    with ThreadPoolExecutor(THREADS) as pool:
        for name, a_runs, b_runs in (("a", 1, 0), ("b", 1, 1), ("a", 2, 1)):
            _C.set_knobs(f"fwd=fake:{name}", False)
            list(pool.map(work, range(THREADS)))
            assert fake.counts("fake:a")[1] == a_runs * THREADS
            assert fake.counts("fake:b")[1] == b_runs * THREADS


def test_the_plan_cache_is_bounded_and_forgets_the_oldest(fake: Any) -> None:
    fake.script("fake:a")
    _C.plan_cache_clear()
    capacity = _C.plan_cache_info()["capacity"]
    assert capacity == 1024
    problems = [
        _C.canonical_problem(f"conv_fwd x=f32[{n},1,4,4]:nchw w=f32[1,1,3,3]:nchw")
        for n in range(1, capacity + 102)
    ]

    def look_up(problem: str) -> str:
        """Whether this thread remembered the call."""
        before = _C.plan_cache_info()
        assert _C.decide(problem, "cpu", "fwd=fake:a")["algorithm"] == "fake:a"
        after = _C.plan_cache_info()
        hit, miss = (after[key] - before[key] for key in ("hits", "misses"))
        assert hit + miss == 1
        return "hit" if hit else "miss"

    kept = problems[0]
    for count, problem in enumerate(problems, 1):
        assert look_up(problem) == "miss"
        assert look_up(kept) == "hit"
        assert _C.plan_cache_info()["size"] == min(count, capacity)
    assert fake.counts("fake:a") == (len(problems), 0)
    assert look_up(problems[-1]) == "hit"
    assert look_up(problems[1]) == "miss", "it was used longest ago"
    assert _C.plan_cache_info()["size"] == capacity
    _C.plan_cache_clear()
    assert _C.plan_cache_info()["size"] == 0


LEAVING = """
import atexit, importlib.util, os, sys, threading, time

started, go = threading.Event(), threading.Event()

def convolve():
    ops.conv2d(x, w, policy="fwd=fake:a")
    started.set()
    go.wait()

def end(thread):
    go.set()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.01)
    print(fake.plans_alive())

def begin():
    started.clear()
    go.clear()
    thread = threading.Thread(target=convolve, daemon=True)
    thread.start()
    started.wait()
    return thread

atexit.register(lambda: end(last))  # runs after what the package registers
import torch
from torch_cudnn_ext import ops
spec = importlib.util.spec_from_file_location("fake_backend", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
fake.script("fake:a")
x, w = torch.randn(1, 2, 6, 6), torch.randn(4, 2, 3, 3)
end(begin())
last = begin()
"""


def test_a_thread_destroys_its_plans_unless_the_process_ends(fake: Any) -> None:
    """Autograd's threads end behind the CUDA driver, which destroying a plan would call."""
    program = [sys.executable, "-c", LEAVING, fake.__file__]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n1\n", "", 0)


# A candidate may fail in any of its runs: the check of its result, or a later, timed one.
@pytest.mark.parametrize("kind", ["error", "out_of_memory"])
@pytest.mark.parametrize("run", [1, 4, 8, 2])
def test_a_candidate_that_fails_while_tuning_does_not_stop_the_rest(
    fake: Any, x: Tensor, w: Tensor, run: int, kind: str
) -> None:
    fake.script("fake:a", run_raises=kind, raises_at=run)
    fake.script("fake:b", milliseconds=0.001)
    measured = _C.measure(_problem(x, w), "cpu", "backends=fake")
    best, failed = (m for m in measured if m["backend"] == "fake")
    assert (best["algorithm"], best["status"]) == ("fake:b", "ok")
    assert (failed["algorithm"], failed["status"]) == ("fake:a", "failed")
    assert "fake:a was told to" in failed["reason"]
    assert fake.counts("fake:a")[1] == run, "it is not run again"
    assert _convolve(x, w, TUNE) == "fake:b"


def test_plans_of_all_threads_are_forgotten(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    with ThreadPoolExecutor(1) as elsewhere:

        def convolve() -> int:
            _convolve(x, w, "fwd=fake:a")
            return int(fake.counts("fake:a")[0])

        assert convolve() == 1 and elsewhere.submit(convolve).result() == 2
        assert elsewhere.submit(convolve).result() == 2
        tuning.reset()
        assert elsewhere.submit(convolve).result() == 3
        assert elsewhere.submit(convolve).result() == 3 and convolve() == 4
