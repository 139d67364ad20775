"""Algorithms that cannot be built, fail, or compute wrong results."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from selector_helpers import TUNE, conv_decision, conv_problem, convolve, measure_conv
from torch import Tensor

from torch_cudnn_ext import _C, tuning


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


def test_a_pin_that_cannot_be_built_is_built_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    fake.script("fake:b")
    counts = set()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="its phase of the moon is wrong") as caught:
            convolve(x, w, "fwd=fake:a")
        counts.add((fake.counts("fake:a"), fake.counts("fake:b")))
        for part in ("conv_fwd", "fake:a", conv_problem(x, w), "would work", "fake:b"):
            assert part in str(caught.value)

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="its phase of the moon is wrong"):
            convolve(x, w, "fwd=fake:a")

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
    assert convolve(x, w, TUNE) == "fake:b"
    counts = fake.counts("fake:a")
    assert counts == ((1, 0) if when == "build_raises" else (1, 1))
    _C.plan_cache_clear()  # every decision is made anew
    assert convolve(x, w, TUNE) == "fake:b"
    assert conv_decision().why == "cached"
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
    assert convolve(x, w, TUNE) == ("fake:a" if left_out else "fake:b/k1=2")
    assert (fake.counts("fake:b/k1=2")[0] == 0) == left_out
    assert [fake.counts(f"fake:{a}")[0] for a in ("b", "b/k1=1", "c/k1=1", "c/k1=2")] == [1] * 4
    (entry,) = _C.table_export()
    (row,) = (m for m in entry["measurements"] if m["algorithm"] == "fake:b/k1=2")
    if left_out:
        assert (row["status"], row["samples"]) == ("excluded", 0)
        reason = "not tried: other knobs of its engine took 1.6 times as long as the best"
        assert row["reason"] == reason
    # To measure all is what tuning is for.
    assert (_C.tuned(conv_problem(x, w), "cpu", "backends=fake") is None) == left_out
    tuning.tune(conv_problem(x, w), device="cpu", policy="backends=fake")
    assert _C.tuned(conv_problem(x, w), "cpu", "backends=fake")
    assert measure_conv(x, w)["fake:b/k1=2"]["status"] == "ok"


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
    assert convolve(x, w, TUNE) == "fake:right"
    (entry,) = _C.table_export()
    (m,) = (m for m in entry["measurements"] if m["algorithm"] == "fake:wrong")
    assert m["status"] == "rejected" and reason in m["reason"]
    assert m["median_ms"] is None and m["samples"] == 0
    error = m["error"]
    assert error is not None
    if reason == "above the tolerance":
        assert error == pytest.approx(0.01, rel=0.1)
        assert error > _C.tolerance(conv_problem(x, w), [])
    else:
        assert math.isnan(error)


def _tune_and_reject_all(x: Tensor, w: Tensor, policy: str) -> None:
    _C.table_clear()
    convolve(x, w, policy)
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
        assert convolve(x, w, policy) == "aten:default"
    assert conv_decision().why == "fallback: tuning rejected every algorithm"

    without = "autotune;backends=cpu"
    _tune_and_reject_all(x, w, without)
    with pytest.raises(RuntimeError, match=r"(?s)no algorithm can run.*relative error 1: cpu"):
        convolve(x, w, without)


def test_a_wrong_sum_is_rejected_when_accumulating(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:wrong", written=0.5)
    fake.script("fake:right", milliseconds=1)
    problem = conv_problem(x, w) + " accumulate=add"
    first, second = _C.measure(problem, "cpu", "backends=fake")[:2]
    assert (first["algorithm"], first["status"]) == ("fake:right", "ok")
    assert (second["algorithm"], second["status"]) == ("fake:wrong", "rejected")


def test_the_heuristic_stands_in_for_a_pin_where_allowed(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    policy = "fwd=fake:a;on_unsupported="
    with pytest.warns(UserWarning, match="fake:a cannot run: its phase of the moon is wrong"):
        assert convolve(x, w, policy + "warn") == "aten:default"
    why = conv_decision().why
    assert why.startswith("fallback: fake:a cannot run") and "phase of the moon" in why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convolve(x, w, policy + "warn") == "aten:default"  # said once
        assert convolve(x, w, policy + "fallback") == "aten:default"
    assert conv_decision().why.startswith("fallback: fake:a cannot run")
    assert fake.counts("fake:a") == (2, 0)
    with pytest.raises(RuntimeError, match="phase of the moon"):
        convolve(x, w, policy + "error")


def test_a_warning_that_is_an_error_is_raised_once(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", unsupported="its phase of the moon is wrong")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="phase of the moon"):
            convolve(x, w, "fwd=fake:a;on_unsupported=warn")
        assert convolve(x, w, "fwd=fake:a;on_unsupported=warn") == "aten:default"


# A candidate may fail in any of its runs: the check of its result, or a later, timed one.
@pytest.mark.parametrize("kind", ["error", "out_of_memory"])
@pytest.mark.parametrize("run", [1, 4, 8, 2])
def test_a_candidate_that_fails_while_tuning_does_not_stop_the_rest(
    fake: Any, x: Tensor, w: Tensor, run: int, kind: str
) -> None:
    fake.script("fake:a", run_raises=kind, raises_at=run)
    fake.script("fake:b", milliseconds=0.001)
    measured = _C.measure(conv_problem(x, w), "cpu", "backends=fake")
    best, failed = (m for m in measured if m["backend"] == "fake")
    assert (best["algorithm"], best["status"]) == ("fake:b", "ok")
    assert (failed["algorithm"], failed["status"]) == ("fake:a", "failed")
    assert "fake:a was told to" in failed["reason"]
    assert fake.counts("fake:a")[1] == run, "it is not run again"
    assert convolve(x, w, TUNE) == "fake:b"
