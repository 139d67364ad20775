"""What `status` tells of this process."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from torch_cudnn_ext import apply_pins, enabled, knobs, ops, pinned, status, tuning, when


@pytest.fixture(autouse=True)
def _nothing_set() -> Iterator[None]:
    tuning.clear()
    yield
    knobs.reset()
    tuning.clear()


def test_nothing_is_set() -> None:
    now = status()
    assert now.enabled is None and now.rules == () and now.pins == {} and now.tuned == {}
    assert "enabled: no\nrules: none\n" in str(now) and "pins: none\ntuned: none\n" in str(now)


def test_what_is_set_is_told() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1))
    apply_pins(model, {"0": "fwd=cpu:im2col"})
    knobs.max_workspace = "64MiB"
    x = torch.randn(1, 3, 8, 8)
    with enabled("heuristic", replay="off"), when("softmax_fwd", use="cpu:online") as rule:
        with when("pool_fwd", use="autotune") as newer:
            model(x)
            now = status(model)
            assert now.rules == (newer, rule)
        assert status().rules == (rule,)
    assert now.enabled == "heuristic;replay=off"
    assert now.pins == {"0": "fwd=cpu:im2col"} and status().pins == {}
    assert now.knobs["max_workspace"] == "64MiB"
    text = str(now)
    for line in (
        "enabled: heuristic;replay=off",
        "  when('softmax_fwd', use='cpu:online'): matched 1 problem",
        "  max_workspace = '64MiB'",
        "  0: fwd=cpu:im2col",
    ):
        assert line in text.splitlines()
    assert status().enabled is None and status().rules == ()
    with enabled():
        assert "enabled: yes, without a policy" in str(status())


def test_what_is_tuned_and_what_runs_again_is_counted() -> None:
    x = torch.zeros(1, 4)
    before = status().plans
    for _ in range(3):
        ops.softmax(x, 1, policy="autotune")
    now = status()
    assert [*now.tuned.values()] == [1] and "  1 problem on cpu/" in str(now)
    assert now.plans["misses"] > before["misses"]


def test_many_rules_are_not_all_printed() -> None:
    made = [when("softmax_fwd", use="cpu:online") for _ in range(12)]
    assert len(status().rules) == 12 and "\n  2 more\n" in str(status())
    for rule in made:
        rule.remove()


def test_a_pinned_layer_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    plain = repr(model)
    with pinned(model, {"0": "fwd=cpu:im2col", "1": "heuristic"}):
        assert "Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), pinned='fwd=cpu:im2col')" in repr(
            model
        )
        assert "ReLU(pinned=" in repr(model)
    assert repr(model) == plain


def test_what_is_no_model_is_an_error() -> None:
    with pytest.raises(TypeError, match="status: .*model"):
        status(3)  # type: ignore[arg-type]


def test_what_was_tuned_for_one_call_is_counted() -> None:
    before = status().tuned_for_one_call
    ops.softmax(torch.zeros(1, 263), 1, policy="autotune")
    now = status()
    assert now.tuned_for_one_call == before + 1
    assert "tuned in a call and never called again: " in str(now)
    ops.softmax(torch.zeros(1, 263), 1, policy="autotune")
    assert status().tuned_for_one_call == before


def test_what_ran_untuned_is_counted() -> None:
    before = status().untuned
    for _ in range(2):
        ops.softmax(torch.zeros(1, 269), 1)
    now = status()
    assert now.untuned == before + 1 and "run untuned: " in str(now)
