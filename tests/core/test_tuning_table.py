"""The table of what was measured: reuse, export, import and budgets."""

from functools import partial
from typing import Any

import pytest
from selector_helpers import TUNE, conv_decision, conv_problem, convolve, measure_conv
from torch import Tensor

from torch_cudnn_ext import _C, tuning


def test_a_tuned_decision_is_reused_without_measuring(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=2)
    assert convolve(x, w, TUNE) == "fake:a"
    tuned = conv_decision()
    assert tuned.why == "tuned" and tuned.decision_ms > 0
    runs, others = fake.counts("fake:a")[1], fake.counts("fake:b")
    for call in range(1, 4):
        assert convolve(x, w, TUNE) == "fake:a"
        assert (fake.counts("fake:a")[1], fake.counts("fake:b")) == (runs + call, others)
    _C.plan_cache_clear()
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "cached"
    assert (fake.counts("fake:a")[1], fake.counts("fake:b")) == (runs + 4, others)


def test_export_import_and_clear_take_effect_at_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    convolve(x, w, TUNE)
    (entry,) = _C.table_export()
    assert (entry["problem"], entry["device"]) == (conv_problem(x, w), _C.device_fingerprint("cpu"))
    ok, others = entry["measurements"][:2], entry["measurements"][2:]
    runs = fake.counts("fake:b")[1]

    assert _C.table_import([{**entry, "measurements": [*reversed(ok), *others]}]) == 1
    assert convolve(x, w, TUNE) == "fake:b"
    assert conv_decision().why == "cached" and fake.counts("fake:b")[1] == runs + 1

    _C.table_clear()
    assert _C.table_export() == []
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "tuned"

    with pytest.raises(ValueError, match="status"):
        bad = {**ok[1], "status": "fine"}
        _C.table_import(
            [{**entry, "measurements": [*reversed(ok)]}, {**entry, "measurements": [bad]}]
        )
    assert convolve(x, w, TUNE) == "fake:a", "an import with a mistake changes nothing"


def test_a_tuned_algorithm_that_is_gone_gives_way_to_the_next(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    assert convolve(x, w, TUNE) == "fake:a"
    fake.script("fake:a", unsupported="gone")
    _C.plan_cache_clear()
    assert convolve(x, w, TUNE) == "fake:b"


def test_what_was_measured_by_hand_is_what_tuning_takes(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", milliseconds=1)
    assert convolve(x, w, TUNE) == "fake:a"
    fake.script("fake:b")
    measure_conv(x, w, record=False)
    assert convolve(x, w, TUNE) == "fake:a"
    measure_conv(x, w, algorithms=["fake:b"])
    assert convolve(x, w, TUNE) == "fake:a", "a part of the candidates is no ranking"
    measure_conv(x, w)
    assert convolve(x, w, TUNE) == "fake:b"
    assert conv_decision().why == "cached"


def test_what_a_time_budget_cut_is_tuned_with_a_larger_one(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", sleep_ms=30)
    fake.script("fake:b")
    problem = conv_problem(x, w)
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
    rows = _C.measure(conv_problem(x, w), "cpu", policy, time_budget_s=0.3, record=False)
    samples = {row["algorithm"]: row["samples"] for row in rows if row["status"] == "ok"}
    slow = [count for name, count in samples.items() if name.startswith("fake")]
    assert "aten:default" in samples and min(slow, default=1) < 4  # three rounds give each as many
