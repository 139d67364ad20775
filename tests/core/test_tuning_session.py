"""Measuring leaves no trace and ends at interrupts and budgets."""

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from selector_helpers import OPS, TUNE, conv_decision, convolve, measure_conv
from torch import Tensor

from torch_cudnn_ext import _C


def test_a_handler_of_signals_may_call_what_is_being_tuned(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    ran: list[str] = []

    def handler(signum: int, frame: object) -> None:
        OPS.conv2d.default(x, w, policy="autotune;backends=fake,aten")
        ran.append(conv_decision().why)

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
    assert conv_decision().why == "tuned"
    expected = alpha * F.conv2d(x, w) + beta * z
    torch.testing.assert_close(out, expected)
    kept = z.clone()
    y = OPS.convolution.default(*arguments, z=z, alpha=alpha, beta=beta, policy=TUNE)
    torch.testing.assert_close(y, expected)
    assert torch.equal(z, kept)


def test_tuning_does_not_move_the_random_state(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    state = torch.get_rng_state()
    assert convolve(x, w, TUNE) == "fake:a" and conv_decision().why == "tuned"
    assert torch.equal(torch.get_rng_state(), state)
    # And does not depend on it.
    errors = set()
    for seed in range(2):
        torch.manual_seed(seed)
        errors.add(measure_conv(x, w)["fake:a"]["error"])
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
        measure_conv(x, w, progress=interrupt)
    assert fake.counts("fake:a")[0] == 1 and _C.table_export() == []
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "tuned"


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
        convolve(x, w, "fwd=autotune;backends=fake") if by_call else measure_conv(
            x, w, "backends=fake", algorithms=["fake:a"]
        )
    sender.join()
    assert fake.counts("fake:a")[1] == during
    assert _C.table_export() == []
    fake.script("fake:a")
    assert convolve(x, w, "fwd=autotune;backends=fake") == "fake:a"
    assert conv_decision().why == "tuned"


def test_the_time_budget_keeps_pytorch_and_names_what_was_not_tried(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", sleep_ms=1100)
    fake.script("fake:b")
    measured = measure_conv(x, w, "backends=aten,fake", time_budget_s=1.0)
    assert measured["aten:default"]["status"] == "ok"
    assert measured["fake:a"]["status"] == "ok"
    assert measured["fake:b"]["status"] == "excluded"
    assert "not tried: the time budget of 1 s" in measured["fake:b"]["reason"]
    assert fake.counts("fake:b") == (1, 0)  # built before anything ran


def test_the_time_budget_keeps_pytorch_however_short_it_is(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    measured = measure_conv(x, w, "backends=aten,fake", time_budget_s=1e-6)
    assert "not tried" in measured["fake:a"]["reason"]
    assert measured["aten:default"]["status"] == "ok"
    assert convolve(x, w, "autotune;backends=aten,fake") == "aten:default"


def test_an_observer_is_told_before_each_algorithm_runs(fake: Any, x: Tensor, w: Tensor) -> None:
    names = ("fake:a", "fake:b")
    for name in names:
        fake.script(name, milliseconds=1)
    told: list[tuple[str, dict[str, tuple[int, int]]]] = []

    def before_run(algorithm: str) -> None:
        told.append((algorithm, {name: fake.counts(name) for name in names}))

    measure_conv(x, w, before_run=before_run)
    algorithms = [algorithm for algorithm, _ in told]
    assert algorithms[:4] == ["fake:a", "fake:b", "", "fake:a"]  # built, then tried
    assert algorithms[-1] == "" and set(algorithms) == {"fake:a", "fake:b", ""}
    for (algorithm, before), (_, after) in zip(told, told[1:], strict=False):
        assert {name for name in names if before[name] != after[name]} <= {algorithm}
    assert min(fake.counts("fake:a")) > 0


def test_what_failed_before_is_not_tried(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    fake.script("fake:lost")
    rows = measure_conv(x, w, failed={"fake:lost": "context lost"}, record=False)
    assert rows["fake:a"]["status"] == "ok"
    assert rows["fake:lost"]["status"] == "failed"
    assert rows["fake:lost"]["reason"] == "context lost"
    assert fake.counts("fake:lost") == (0, 0)
