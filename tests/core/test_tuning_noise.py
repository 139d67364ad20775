"""What tuning decides from noisy times, and what it does not."""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selector_helpers import conv_decision, convolve, measure_conv
from store_helpers import run_process
from torch import Tensor

from torch_cudnn_ext import _C

BOTH = "backends=aten,fake"


@pytest.fixture(autouse=True)
def _noise_counts(fresh_state: None) -> None:
    _C.ignore_other_work(False)


def compare(
    fake: Any, x: Tensor, w: Tensor, own: list[float], baseline: list[float], policy: str = ""
) -> list[tuple[str, str]]:
    """Algorithm and status by rank, of one that takes these times by round, and of PyTorch's."""
    fake.script("fake:a", times=own)
    fake.script_others(milliseconds=baseline, host_ms=0)
    names = ["aten:default", "fake:a"]
    rows = measure_conv(x, w, f"{BOTH};{policy}", algorithms=names, record=False)
    return [(name, row["status"]) for name, row in rows.items()]


WINS = [("fake:a", "ok"), ("aten:default", "ok")]
LOSES = [("aten:default", "ok"), ("fake:a", "ok")]
UNSTABLE = [("aten:default", "ok"), ("fake:a", "unstable")]
DRIFT = [1.1**i for i in range(40)]
JITTER = [1.0, 1.04, 0.97, 1.05, 0.98, 1.02, 0.99]


@pytest.mark.parametrize(
    ("own", "baseline", "wanted"),
    [
        ([0.5], [1.0], WINS),
        ([0.97], [1.0], WINS),
        ([1.0], [1.0], LOSES),
        ([2.0], [1.0], LOSES),
        # Within noise: the times of both jump by more than they differ.
        ([0.99 * t for t in JITTER], [*reversed(JITTER)], LOSES),
        ([0.8 * t for t in JITTER], [*reversed(JITTER)], WINS),
        # Outliers: one of 12 rounds.
        ([0.5] * 5 + [50.0] + [0.5] * 6, [1.0], WINS),
        ([1.2] * 12, [1.0] * 5 + [50.0] + [1.0] * 6, LOSES),
        # All becomes slower and slower, so that the medians alone say little.
        ([0.9 * t for t in DRIFT], DRIFT, WINS),
        ([1.1 * t for t in DRIFT], DRIFT, LOSES),
        # Half of the rounds are slow, of one or of the other.
        ([0.9, 6.0, 0.9, 6.0, 2.0], [1.0, 3.0, 1.0, 4.0, 1.0, 3.0, 5.0], UNSTABLE),
    ],
)
def test_only_what_is_faster_beyond_noise_replaces_pytorch(
    fake: Any, x: Tensor, w: Tensor, own: list[float], baseline: list[float], wanted: object
) -> None:
    assert compare(fake, x, w, own, baseline) == wanted


@pytest.mark.parametrize(
    ("policy", "own", "size", "wins"),
    [
        ("", 1.03, 0, False),
        ("prefer=memory", 1.03, 0, True),
        ("prefer=memory", 1.1, 0, False),
        ("prefer=memory", 1.03, 2**26, False),  # more than PyTorch's own
    ],
)
def test_a_smaller_workspace_makes_up_for_some_time_if_memory_is_preferred(
    fake: Any, x: Tensor, w: Tensor, policy: str, own: float, size: int, wins: bool
) -> None:
    fake.script("fake:a", milliseconds=own, workspace_bytes=size)
    fake.script_others(milliseconds=[1.0], host_ms=0)
    names = ["aten:default", "fake:a"]
    rows = measure_conv(x, w, f"{BOTH};{policy}", algorithms=names, record=False)
    assert [*rows] == (names[::-1] if wins else names)


def test_more_rounds_are_spent_until_it_is_decided(fake: Any, x: Tensor, w: Tensor) -> None:
    def rounds(own: list[float]) -> int:
        compare(fake, x, w, own, [1.0])
        return int(fake.counts("fake:a")[1])

    first = rounds([0.5])
    clear = rounds([0.5]) - first
    noisy = rounds([1.0, 8.0, 0.5, 2.0, 0.6]) - clear - first
    assert clear < noisy < 3 * clear


def test_few_rounds_decide_what_is_clear(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    for milliseconds, first in ((0.4, "fake:a"), (0.9, "fake:a"), (1.0, "aten:default")):
        fake.script("fake:a", milliseconds=milliseconds)
        names = ["aten:default", "fake:a"]
        rows = measure_conv(x, w, BOTH, algorithms=names, min_samples=4, record=False)
        assert next(iter(rows)) == first


def test_a_disturbed_measurement_is_not_kept(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    fake.script("fake:a", milliseconds=0.1, disturbed=True)
    row = measure_conv(x, w, BOTH)["fake:a"]
    assert row["status"] == "unstable" and row["median_ms"] == pytest.approx(0.1)
    assert row["reason"].startswith("other work disturbed the measurement")
    assert convolve(x, w, f"autotune;{BOTH}") == "aten:default"
    assert conv_decision().why.startswith("unstable: ")
    assert _C.table_export() == []
    # A quiet machine decides later.
    _C.plan_cache_clear()
    fake.script("fake:a", milliseconds=0.1)
    assert convolve(x, w, f"autotune;{BOTH}") == "fake:a"
    assert len(_C.table_export()) == 1


def test_what_is_much_slower_is_told_in_spite_of_other_work(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    for milliseconds, status in ((1.2, "unstable"), (1.4, "ok")):
        fake.script("fake:a", milliseconds=milliseconds, disturbed=True)
        names = ["aten:default", "fake:a"]
        rows = measure_conv(x, w, BOTH, algorithms=names, record=False)
        assert [*rows] == names and rows["fake:a"]["status"] == status


def test_what_is_proven_is_kept_although_others_are_unstable(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    fake.script("fake:a", milliseconds=0.1, disturbed=True)
    fake.script("fake:b", milliseconds=0.12)
    assert convolve(x, w, f"autotune;{BOTH}") == "fake:b"
    (entry,) = _C.table_export()
    by_name = {row["algorithm"]: row["status"] for row in entry["measurements"]}
    assert by_name["fake:a"] == "unstable" and by_name["fake:b"] == "ok"
    assert _C.table_import([entry]) == 1


def _keep_busy() -> None:
    while True:
        pass


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process on every core that does nothing but take its time."""
    context = multiprocessing.get_context("fork")
    count = len(os.sched_getaffinity(0))
    others = [context.Process(target=_keep_busy, daemon=True) for _ in range(count)]
    try:
        for other in others:
            other.start()
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


# In a process of its own, whose timer no test has replaced.
TUNES = """
import json, torch
from torch import nn
from torch_cudnn_ext import tuning
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
kept = set()
for _ in range({times}):
    tuning.clear()
    tuning.tune_model(network, torch.randn(2, 3, 24, 24), train=False, time_budget_s=1.0)
    kept |= {{entry["measurements"][0]["algorithm"] for entry in tuning.entries()}}
print(json.dumps(sorted(kept)))
"""


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_nothing_replaces_pytorch_on_a_busy_machine(times: int) -> None:
    cores = len(os.sched_getaffinity(0))
    with busy_cores():
        kept = run_process(TUNES.format(times=times), "", OMP_NUM_THREADS=str(cores))
    assert {*kept} <= {"aten:default"}
