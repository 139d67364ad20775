"""Drift: what an upgrade, or a hand, changed is found by timing again."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from helpers import LINE, OTHER
from store_helpers import H200, WHEN, entry, measurement

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning import store_drift
from torch_cudnn_ext.tuning.store_drift import Drift, drift, rows_to_time
from torch_cudnn_ext.tuning.store_rows import Row
from torch_cudnn_ext.tuning.tasks import Task, fp32_switches

HERE = _C.device_fingerprint("cpu")
THREADS = HERE.rpartition("/")[0] + "/77 threads"
SOFTMAX = "softmax_fwd x=f32[64,1024,1]:nchw log=false"


def row(*measured: dict[str, Any], device: str = HERE, when: str = WHEN, **texts: str) -> Row:
    problem, constraints = texts.get("problem", SOFTMAX), texts.get("constraints", "")
    return Row(when, "torch 2", entry(problem, device, constraints, *measured))


def measured_here() -> list[dict[str, Any]]:
    """What an honest row holds."""
    return [{**one} for one in _C.measure(SOFTMAX, "cpu", record=False) if one["status"] == "ok"]


def one_drift(rows: Sequence[Row], **options: Any) -> Drift:
    (found,) = drift(rows, "cpu", **options)
    return found


def test_rows_that_were_changed_by_hand_are_found() -> None:
    honest = measured_here()
    winner = honest[0]

    def scaled(factor: float) -> Row:
        times = {"median_ms": winner["median_ms"] * factor, "spread_ms": 0.0}
        return row({**winner, **times}, *honest[1:])

    assert one_drift([row(*honest)], tolerance=5).verdict in ("same", "new leader")
    assert one_drift([scaled(0.001)]).verdict in ("slower", "new leader")
    assert one_drift([row({**winner, "median_ms": 1e4, "spread_ms": 0.0})]).verdict == "faster"
    gone = one_drift([row(measurement("cpu:nothing"), *honest)])
    assert (gone.verdict, gone.now_ms) == ("gone", None) and gone.reason
    slowest = max(honest, key=lambda one: one["median_ms"])
    if slowest["median_ms"] > 2 * winner["median_ms"]:
        led = one_drift([row(slowest, winner)])
        assert led.verdict == "new leader" and winner["algorithm"] in led.reason


def test_a_row_of_another_fingerprint_is_timed_if_the_hardware_is_the_same() -> None:
    rows = [
        row(measurement(), device=H200, problem=LINE),
        row(measurement(), device=THREADS, when="2026-11-28T13:00:00.000000Z"),
        row(measurement("cpu:online")),
        row(measurement(status="failed"), problem=OTHER),
        row(measurement(), constraints="deterministic"),
    ]
    found = rows_to_time(rows, "cpu")
    assert found == [rows[1], rows[4]]
    assert one_drift(found[:1]).device == THREADS


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        ([measurement("cpu:fft")], "same"),
        ([measurement("cpu:fft", 1.05), measurement(ms=1.04)], "same"),
        ([measurement("cpu:fft", 1.5)], "slower"),
        ([measurement("cpu:fft", 0.5)], "faster"),
        ([measurement("cpu:fft", 1.5, spread_ms=0.6)], "same"),
        ([measurement(ms=0.5), measurement("cpu:fft", 1.0)], "new leader"),
        ([measurement(ms=0.98), measurement("cpu:fft", 1.0)], "same"),
        ([measurement("cpu:fft", host_ms=2.0)], "slower"),
        ([measurement("cpu:fft", status="rejected", reason="error 1")], "wrong"),
        ([measurement("cpu:fft", status="failed", reason="raised", median_ms=None)], "gone"),
        ([measurement("cpu:fft", status="unsupported", reason="no", median_ms=None)], "gone"),
        ([measurement("cpu:fft", status="excluded", reason="no", median_ms=None)], "gone"),
        ([measurement("cpu:fft", status="unstable", reason="noisy")], "unclear"),
        ([measurement()], "gone"),
    ],
)
def test_verdicts(monkeypatch: pytest.MonkeyPatch, now: list[Any], verdict: str) -> None:
    monkeypatch.setattr(store_drift, "measure_tasks", lambda tasks: iter([now]))
    found = one_drift([row(measurement("cpu:fft", 1.0), measurement(ms=1.2), problem=LINE)])
    assert found.verdict == verdict and found.was_ms == 1.0
    assert bool(found.reason) == (verdict in ("wrong", "gone", "new leader", "unclear"))


@pytest.mark.parametrize("constraints", ["", "allow_tf32", "allow_tf32;deterministic"])
def test_what_is_timed(monkeypatch: pytest.MonkeyPatch, constraints: str) -> None:
    asked: list[tuple[Task, list[str]]] = []

    def measure(tasks: list[Task]) -> Any:
        asked.append((tasks[0], [switch.fp32_precision for switch in fp32_switches()]))
        return iter([[measurement("cpu:fft")]])

    monkeypatch.setattr(store_drift, "measure_tasks", measure)
    before = [switch.fp32_precision for switch in fp32_switches()]
    names = ("cpu:fft", "cpu:direct", "cpu:im2col", "aten:default")
    rows = [row(*map(measurement, names), problem=LINE, constraints=constraints)]
    assert one_drift(rows, time_budget_s=3).verdict == "same"
    ((task, precisions),) = asked
    assert task.algorithms == ("cpu:fft", "cpu:direct", "aten:default")
    assert task.time_budget_s == 3 and re.match("allow_tf32" if constraints else "", task.policy)
    assert {*precisions} == {"tf32" if constraints else "ieee"}
    assert ("allow_tf32=false" in task.policy) == (not constraints)
    assert [switch.fp32_precision for switch in fp32_switches()] == before


@pytest.mark.parametrize(
    ("constraints", "verdict"),
    [("", "new leader"), ("prefer=gpu_time", "same"), ("prefer=memory", "same")],
)
def test_a_leader_is_one_by_what_the_row_prefers(constraints: str, verdict: str) -> None:
    rows = [
        measurement("cpu:im2col", 1.0, host_ms=2.0, workspace_bytes=0),
        measurement("aten:default", 1.2, host_ms=1.2, workspace_bytes=8),
    ]
    row = Row(WHEN, "", entry(LINE, H200, constraints, *rows))
    assert store_drift._compared(row, row.entry["measurements"], 0.1).verdict == verdict
