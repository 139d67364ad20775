"""Problems that nothing was tuned for: counted in this process, and recorded in the store."""

import os
from pathlib import Path

import pytest
import torch

from torch_cudnn_ext import _C, knobs, ops, tuning
from torch_cudnn_ext.tuning import keeping
from torch_cudnn_ext.tuning.untuned import take_recorded

HERE = _C.device_fingerprint("cpu")


def softmax(size: int, policy: str | None) -> str:
    """Calls the softmax of a size; its problem."""
    ops.softmax(torch.zeros(3, size), 1, policy=policy)
    return f"softmax_fwd x=f32[3,{size},1]:nchw log=false"


def calls_of(problem: str) -> dict[str, int]:
    """The calls that ran untuned, by why."""
    return {one.why: one.calls for one in tuning.untuned() if one.problem == problem}


def test_calls_are_counted_until_the_problem_is_tuned() -> None:
    for _ in range(3):
        problem = softmax(211, None)
    softmax(211, "tuned")
    assert calls_of(problem) == {"heuristic": 3, "heuristic: nothing was tuned for it": 1}
    tuning.tune(problem, device="cpu")
    assert calls_of(problem) == {}
    tuning.clear()
    softmax(211, None)
    assert calls_of(problem)["heuristic"] == 4


def test_pinned_and_tuned_calls_are_none() -> None:
    problem = softmax(223, "cpu:online")
    softmax(223, "autotune")
    tuning.clear()
    assert calls_of(problem) == {}


def test_the_most_called_come_first() -> None:
    for size, count in ((227, 3), (229, 5), (233, 1)):
        for _ in range(count):
            softmax(size, None)
    wanted = [f"softmax_fwd x=f32[3,{size},1]:nchw log=false" for size in (229, 227, 233)]
    assert [one.problem for one in tuning.untuned() if one.problem in wanted] == wanted


def test_the_longest_in_all_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, count in ((239, 3), (200_003, 1)):
        for _ in range(count):
            softmax(size, None)
    wanted = [f"softmax_fwd x=f32[3,{size},1]:nchw log=false" for size in (200_003, 239)]
    # Other tests of this process ran thousands of problems, which take minutes to measure.
    records = [one for one in _C.executed_decisions() if one["problem"] in wanted]
    monkeypatch.setattr(_C, "executed_decisions", lambda: records)
    found = tuning.untuned(timed=True)
    assert [one.problem for one in found] == wanted
    assert all((one.total_ms or 0.0) > 0 for one in found)
    assert _C.table_export() == []
    with pytest.raises(TypeError, match="timed"):
        tuning.untuned(timed="yes")  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of this test's own."""
    knobs.store = tmp_path / "store"
    keeping._warned.clear()
    _C.table_clear()
    return tmp_path / "store"


def lines(store: Path) -> list[str]:
    return [line for part in take_recorded(store, HERE).values() for line in part]


def test_a_miss_is_recorded_once(store: Path) -> None:
    policy = "autotune;on_miss=record"
    problems = [softmax(size, policy) for size in (5, 6, 5)]
    assert lines(store) == problems[:2]
    _C.plan_cache_clear()
    softmax(6, policy)
    softmax(7, "tuned")
    assert lines(store) == problems[:2]
    assert not any(store.rglob("*.jsonl")), "nothing was measured"
    tuning.tune(problems, device="cpu")
    softmax(5, policy)
    assert ops.last_decision("softmax_fwd").why == "cached"


def test_without_a_store_a_warning_says_so() -> None:
    knobs.store = ""
    keeping._warned.clear()
    with pytest.warns(UserWarning, match="on_miss=record: there is no store"):
        softmax(8, "autotune;on_miss=record")


def test_a_store_that_cannot_be_written_costs_a_warning(store: Path) -> None:
    store.write_text("a file")
    with pytest.warns(UserWarning, match="this process goes on without"):
        softmax(9, "autotune;on_miss=record")


def test_a_record_of_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert take_recorded(tmp_path / "none", HERE) == {}
    assert os.listdir(tmp_path) == []
