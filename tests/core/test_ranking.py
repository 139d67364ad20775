"""Which measured algorithm wins: device time, host time, workspaces and the knob search."""

from typing import Any

import pytest
import torch
from selector_helpers import TUNE, conv_decision, conv_problem, convolve, measure_conv
from torch import Tensor

from torch_cudnn_ext import _C


def _winner(measured: dict[str, Any]) -> str:
    return next(iter(measured))


def test_the_fastest_wins(fake: Any, x: Tensor, w: Tensor) -> None:
    times = {"fake:c": 4, "fake:a": 1, "fake:b": 2}
    for algorithm, milliseconds in times.items():
        fake.script(algorithm, milliseconds=milliseconds)
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "tuned"
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
    measured = measure_conv(x, w, f"backends=fake;{policy}")
    assert _winner(measured) == winner


def test_of_equal_medians_the_steadier_wins(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, swing_ms=0.2)
    fake.script("fake:b", milliseconds=1.001)  # as fast, by the median
    measured = measure_conv(x, w)
    assert measured["fake:a"]["median_ms"] == 1 and measured["fake:a"]["spread_ms"] > 0
    assert _winner(measured) == "fake:b"


def test_one_slow_sample_does_not_decide(fake: Any, x: Tensor, w: Tensor) -> None:
    # Its third run, the first that is timed, is the slow one.
    fake.script("fake:a", milliseconds=1, swing_ms=20, states_workspace=False)
    fake.script("fake:b", milliseconds=2)
    measured = measure_conv(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["median_ms"] == 1


def test_what_is_fast_in_one_place_of_memory_alone_does_not_win(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", milliseconds=1, elsewhere_ms=0.2)
    fake.script("fake:b", milliseconds=1.1)
    measured = measure_conv(x, w)
    assert _winner(measured) == "fake:b"
    assert measured["fake:a"]["median_ms"] == pytest.approx(1.2)


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
    measured = measure_conv(x, w, f"backends=fake;{policy}")
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
    fake.script_others(milliseconds=[pytorch_ms], host_ms=5)
    fake.script("fake:other", milliseconds=pytorch_ms, host_ms=4)
    fake.script("fake:slow", milliseconds=milliseconds, host_ms=0.001)
    measured = measure_conv(x, w, f"backends=aten,fake;{policy}")
    order = [name for name in measured if name != "aten:im2col"][:3]
    rest = ["fake:other", "aten:default"]
    assert order == (["fake:slow", *rest] if wins else [*rest, "fake:slow"])
    # Where PyTorch's own row does not run, nothing is compared with it.
    assert _winner(measure_conv(x, w, f"backends=fake;{policy}")) == "fake:slow"


def test_a_slow_first_call_of_the_host_drops_nobody(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, host_ms=1, first_host_ms=100)
    fake.script("fake:b", milliseconds=3, host_ms=1)
    measured = measure_conv(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["host_ms"] == pytest.approx(1)


def test_a_time_that_holds_the_hosts_is_taken_again(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1, first_stall_ms=100)
    fake.script("fake:b", milliseconds=3)
    measured = measure_conv(x, w)
    assert _winner(measured) == "fake:a"
    assert measured["fake:a"]["spread_ms"] == 0


def test_what_is_drawn_while_others_tune_is_not_drawn_again(x: Tensor, w: Tensor) -> None:
    drawn: list[Tensor] = []
    torch.manual_seed(0)
    _C.measure(conv_problem(x, w), "cpu", "", progress=lambda *_: drawn.append(torch.rand(())))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    assert len(drawn) > 1 and all(torch.equal(number, torch.rand(())) for number in drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_takes_the_host_far_longer_is_dropped_early(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script_others(milliseconds=[1], host_ms=10)
    fake.script("fake:a", milliseconds=1, host_ms=2)
    fake.script("fake:b", milliseconds=1, host_ms=8)
    # It is no faster than PyTorch, so it drops nobody.
    fake.script("fake:slow", milliseconds=1.5, host_ms=0.1)
    samples = {name: m["samples"] for name, m in measure_conv(x, w, "backends=aten,fake").items()}
    order = [name for name in samples if name != "aten:im2col"]
    assert order[:4] == ["fake:a", "fake:b", "aten:default", "fake:slow"]
    assert samples["fake:a"] == samples["aten:default"]
    assert samples["fake:a"] > max(samples["fake:b"], samples["fake:slow"])
    fake.script("fake:a", unsupported="gone")
    samples = {name: m["samples"] for name, m in measure_conv(x, w, "backends=aten,fake").items()}
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
            assert convolve(x, w, TUNE + policy) == f"fake:{winner}"
    assert len(_C.table_export()) == 2


def test_there_is_no_time_of_a_host_that_does_the_work_itself(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    assert measure_conv(x, w, "backends=aten")["aten:default"]["host_ms"] is None


def test_equal_times_and_workspaces_go_to_the_simpler(fake: Any, x: Tensor, w: Tensor) -> None:
    for algorithm in ("fake:a/k=1/l=2", "fake:b", "fake:b/k=1"):
        fake.script(algorithm, milliseconds=1)
    assert _winner(measure_conv(x, w)) == "fake:b"


def test_the_knob_search_tries_what_is_near_the_best(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=2)
    fake.script("fake:a/k=1", milliseconds=1, neighbour_of="fake:a")
    assert "fake:a/k=1" not in measure_conv(x, w)
    measured = measure_conv(x, w, knob_search=True)
    assert _winner(measured) == "fake:a/k=1"
    assert measured["fake:a/k=1"]["source"] == "knob search"
    assert convolve(x, w, TUNE) == "fake:a/k=1"
