"""What runs if nothing was tuned for a problem, and rankings that serve other constraints."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from selector_helpers import TUNE, conv_decision, conv_problem, convolve
from torch import Tensor
from torch import distributed as dist

from torch_cudnn_ext import _C, knobs, nn, tuning

FAKE = "backends=fake"
UNTUNED = "heuristic: nothing was tuned for it"


@pytest.fixture(autouse=True)
def _algorithms(fresh_state: None, fake: Any) -> None:
    fake.script("fake:a", milliseconds=2, workspace_bytes=64)
    fake.script("fake:b", milliseconds=1, workspace_bytes=4096, notes=["nondeterministic"])


def searches() -> int:
    return _C.measure_counts()["problems"]


def tune(x: Tensor, w: Tensor, policy: str = FAKE) -> None:
    tuning.tune(conv_problem(x, w), device="cpu", policy=policy)


@pytest.mark.parametrize(
    "policy", ["tuned", "autotune;on_miss=heuristic", "benchmark;on_miss=heuristic"]
)
def test_what_was_tuned_runs_and_nothing_is_measured(x: Tensor, w: Tensor, policy: str) -> None:
    before = searches()
    for _ in range(2):
        assert convolve(x, w, f"{policy};{FAKE}") == "fake:a"
        assert conv_decision().why == UNTUNED
    assert searches() == before
    tune(x, w)
    assert convolve(x, w, f"{policy};{FAKE}") == "fake:b"
    assert (conv_decision().why, searches()) == ("cached", before + 1)


def test_tuned_is_of_a_pass_and_of_modules(x: Tensor, w: Tensor) -> None:
    assert convolve(x, w, f"bwd_data=autotune;fwd=tuned;{FAKE}") == "fake:a"
    assert conv_decision().why == UNTUNED
    assert convolve(x, w, f"tuned;fwd=autotune;{FAKE}") == "fake:b"
    nn.Conv2d(2, 3, 3, bias=False, policy=f"tuned;{FAKE}")(x[:, :, 1:])
    assert conv_decision().why == UNTUNED


def test_an_error_names_the_problem_until_it_is_tuned(x: Tensor, w: Tensor) -> None:
    policy = f"autotune;on_miss=error;{FAKE}"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="nothing was tuned for this problem") as caught:
            convolve(x, w, policy)
        assert conv_problem(x, w) in str(caught.value)
    tune(x, w)
    assert convolve(x, w, policy) == "fake:b"


def test_the_nearest_in_size_is_taken(fake: Any, w: Tensor) -> None:
    policy = f"autotune;on_miss=nearest;{FAKE}"
    large, small = torch.randn(4, 2, 20, 20), torch.randn(1, 2, 6, 6)
    tune(large, w)  # fake:b
    fake.script("fake:a", milliseconds=0.1)
    tune(small, w)  # fake:a
    before = searches()
    assert convolve(torch.randn(4, 2, 24, 20), w, policy) == "fake:b"
    assert conv_decision().why == f"nearest: as tuned for {conv_problem(large, w)}"
    assert convolve(torch.randn(1, 2, 7, 7), w, policy) == "fake:a"
    # Another filter is another layer.
    assert convolve(torch.randn(1, 2, 7, 7), torch.randn(5, 2, 3, 3), policy) == "fake:a"
    assert conv_decision().why == UNTUNED
    # A problem that was tuned itself has no need of it.
    assert convolve(large, w, policy) == "fake:b" and conv_decision().why == "cached"
    assert searches() == before


def test_what_is_nearest_gives_way_where_it_is_not_supported(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.reset()
    fake.script("fake:b", milliseconds=1)
    tune(x, w)
    fake.script("fake:b", milliseconds=1, unsupported="not today")
    fake.script("fake:a", milliseconds=2)
    assert convolve(torch.randn(2, 2, 9, 9), w, f"autotune;on_miss=nearest;{FAKE}") == "fake:a"
    assert conv_decision().why == UNTUNED


@pytest.mark.parametrize("word", ["", "never", "autotune,error"])
def test_words_that_are_none(x: Tensor, w: Tensor, word: str) -> None:
    with pytest.raises(ValueError, match="on_miss"):
        convolve(x, w, f"autotune;on_miss={word}")


def test_levels_and_knobs(x: Tensor, w: Tensor) -> None:
    knobs.on_miss = "heuristic"
    assert convolve(x, w, TUNE) == "fake:a"
    with knobs.flags(on_miss="error"), pytest.raises(RuntimeError, match="on_miss=error"):
        convolve(x, w, TUNE)
    assert convolve(x, w, f"{TUNE};on_miss=autotune") == "fake:b"
    with pytest.raises(ValueError, match="'nearest', 'record' or 'error'"):
        knobs.on_miss = "never"


# Rankings under constraints that admit more.


@pytest.mark.parametrize("strict", ["max_workspace=1KiB", "deterministic"])
def test_a_stricter_constraint_needs_no_new_measurement(x: Tensor, w: Tensor, strict: str) -> None:
    tune(x, w)
    before = searches()
    assert convolve(x, w, f"{TUNE};{strict}") == "fake:a"
    assert conv_decision().why.startswith("cached: ranked under allow_tf32;backends=fake")
    rows = _C.tuned(conv_problem(x, w), "cpu", f"{FAKE};{strict}")
    assert rows is not None and [row["status"] for row in rows][:2] == ["ok", "excluded"]
    assert searches() == before
    assert len(tuning.entries()) == 1


def test_fewer_backends_need_no_new_measurement(x: Tensor, w: Tensor) -> None:
    convolve(x, w, "autotune")
    before = searches()
    assert convolve(x, w, TUNE) == "fake:b"
    assert (conv_decision().why, searches()) == ("cached: ranked under allow_tf32", before)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("max_workspace=1KiB", ""),
        ("max_workspace=1KiB", "max_workspace=8KiB"),
        ("deterministic", ""),
        ("", "prefer=memory"),
        ("deterministic", "max_workspace=8KiB"),
    ],
)
def test_what_admits_less_or_ranks_otherwise_serves_nothing(
    x: Tensor, w: Tensor, first: str, second: str
) -> None:
    convolve(x, w, f"{TUNE};{first}")
    before = searches()
    convolve(x, w, f"{TUNE};{second}")
    assert (conv_decision().why, searches()) == ("tuned", before + 1)


def test_a_ranking_of_which_nothing_is_left_is_measured_again(x: Tensor, w: Tensor) -> None:
    tune(x, w)
    before = searches()
    with pytest.raises(RuntimeError, match="no algorithm can run"):
        convolve(x, w, f"{TUNE};max_workspace=8")
    assert searches() == before + 1


def test_what_was_not_tried_may_be_the_best_of_what_is_left(x: Tensor, w: Tensor) -> None:
    tune(x, w)
    (entry,) = tuning.entries()
    late = dict(entry["measurements"][0], algorithm="fake:late", status="excluded", median_ms=None)
    late["reason"] = f"{_C.OUT_OF_TIME}1 s was used up"
    entry["measurements"].append(late)  # type: ignore[arg-type]
    _C.table_import([entry])
    before = searches()
    assert convolve(x, w, f"{TUNE};max_workspace=4KiB") == "fake:b"  # the best still is
    assert searches() == before
    assert convolve(x, w, f"{TUNE};max_workspace=1KiB") == "fake:a"
    assert searches() == before + 1


# Ranks that agree.


@pytest.mark.parametrize("script", [{"disturbed": True}, {"run_raises": "error"}])
def test_ranks_agree_also_on_a_measurement_that_came_to_nothing(
    fake: Any, x: Tensor, w: Tensor, script: dict[str, Any]
) -> None:
    fake.reset()
    _C.ignore_other_work(False)
    fake.script_others(milliseconds=[1.0], host_ms=0)
    fake.script("fake:a", milliseconds=0.1, **script)
    policy = "autotune;backends=aten,fake" if "disturbed" in script else TUNE
    store = dist.HashStore()
    why = "heuristic: its measurement came to nothing on the rank that claimed it"
    key = conv_problem(x, w), _C.device_fingerprint("cpu")
    with tuning.agree(store) as agreement:
        if "disturbed" in script:
            convolve(x, w, policy)
            assert conv_decision().why == why
        else:
            with pytest.raises(RuntimeError):  # that of the algorithm
                convolve(x, w, policy)
        constraints = _C.constraints_text(key[0], _C.policy_for(key[0], policy))
        assert agreement.find((*key, constraints), lambda: None) == why.partition(": ")[2]
    assert tuning.entries() == []


# The time of searches in calls.


@pytest.fixture
def spent() -> Iterator[None]:
    """A search budget that is spent."""
    knobs.search_budget_s = 0
    yield
    knobs.search_budget_s = None


def test_a_spent_budget_runs_the_heuristics_choice(spent: None, x: Tensor, w: Tensor) -> None:
    before = searches()
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "heuristic: the search budget is spent"
    assert searches() == before
    tune(x, w)  # an explicit call is no search
    assert convolve(x, w, TUNE) == "fake:b"


def test_a_larger_budget_holds_for_what_was_decided(spent: None, x: Tensor, w: Tensor) -> None:
    assert convolve(x, w, TUNE) == "fake:a"
    knobs.search_budget_s = float("inf")
    assert convolve(x, w, TUNE) == "fake:b"


def test_a_budget_is_of_all_searches_together(x: Tensor, w: Tensor) -> None:
    knobs.search_budget_s = _C.measure_counts()["search_seconds"] + 1e-6
    try:
        assert convolve(x, w, TUNE) == "fake:b"  # which spends it
        assert convolve(x[:, :, 1:], w, TUNE) == "fake:a"
    finally:
        knobs.search_budget_s = None


@pytest.mark.parametrize("value", [-1, float("nan"), "soon", True, [60]])
def test_budgets_that_are_none(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="search_budget_s: got"):
        knobs.search_budget_s = value  # type: ignore[assignment]
    assert knobs.search_budget_s is None


_SEARCHES = """
import torch, torch_cudnn_ext as tce
from torch_cudnn_ext import ops
for size in range(48, 80, 2):
    ops.conv2d(torch.randn(8, 16, size, size), torch.randn(32, 16, 3, 3), policy="autotune")
    if torch_cudnn_ext._C.measure_counts()["search_seconds"] > 3:
        break
"""


def test_a_terminal_is_told_what_takes_so_long() -> None:
    script = _SEARCHES.replace("torch_cudnn_ext._C", "tce._C")
    master, terminal = pty.openpty()
    environment = os.environ | {"TORCH_CUDNN_EXT_STORE": ""}
    child = subprocess.Popen([sys.executable, "-c", script], stderr=terminal, env=environment)
    os.close(terminal)
    shown = _read_all(lambda: os.read(master, 4096))
    assert child.wait() == 0
    os.close(master)
    assert "torch_cudnn_ext: tuning, " in shown and "conv_fwd x=f32[8,16," in shown
    assert shown.endswith("\r\x1b[K"), "the line is taken away"


def _read_all(read: Callable[[], bytes]) -> str:
    data = b""
    while True:
        try:
            part = read()
        except OSError:  # the other end was closed
            part = b""
        if not part:
            return data.decode()
        data += part
