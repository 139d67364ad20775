"""Algorithms that refuse at their run, and warnings about them."""

import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from selector_helpers import OPS, TUNE, conv_decision, convolve
from torch import Tensor

from torch_cudnn_ext import _C, ops
from torch_cudnn_ext.knobs import pushed


@pytest.mark.parametrize("policy", ["heuristic;backends=fake", TUNE])
def test_what_refuses_at_its_run_is_followed_by_the_next(
    fake: Any, x: Tensor, w: Tensor, policy: str
) -> None:
    fake.script("fake:a")
    fake.script("fake:b", milliseconds=1)
    if policy == TUNE:
        assert convolve(x, w, policy) == "fake:a"
    fake.script("fake:a", run_raises="refusal")
    with pytest.warns(UserWarning, match="fake:a was chosen.*fake:a was told to refuse"):
        assert convolve(x, w, policy) == "fake:b"
    runs = fake.counts("fake:a")[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convolve(x, w, policy) == "fake:b"
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(convolve, x, w, policy).result() == "fake:b"
    assert fake.counts("fake:a")[1] == runs, "it is not asked again"
    with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run: fake:a was told"):
        convolve(x, w, "fwd=fake:a")  # a pin asks
    _C.plan_cache_clear()
    fake.script("fake:a")
    assert convolve(x, w, policy) == "fake:a"


def test_a_pin_that_may_fall_back_does_so_where_it_refuses(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", run_raises="refusal")
    fake.script("fake:b")
    policy = "fwd=fake:a;on_unsupported=fallback;backends=fake"
    with pytest.warns(UserWarning, match="fake:a was told to refuse"):
        assert convolve(x, w, policy) == "fake:b"
    assert conv_decision().why.startswith(
        "fallback: fake:a cannot run: it did not support the problem"
    )
    assert convolve(x, w, policy) == "fake:b"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_what_refuses_for_want_of_memory_for_another_is_passed_over(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    fake.script("fake:b", workspace_bytes=200, run_raises="refusal")
    fake.script("fake:c")
    for _ in range(2):
        assert convolve(x, w, "heuristic;backends=fake") == "fake:c"
    assert fake.counts("fake:b")[1] == 1


@pytest.mark.filterwarnings("ignore:.*was told to refuse")
def test_what_refuses_is_tuned_once(fake: Any, x: Tensor, w: Tensor) -> None:
    names = [f"fake:{letter}" for letter in "abcd"]
    for name in names:
        fake.script(name, run_raises="refusal")
    with pytest.raises(RuntimeError, match="no algorithm can run"):
        convolve(x, w, TUNE)
    assert [fake.counts(name)[1] for name in names] == [2] * 4  # tuned, and asked
    with pytest.raises(RuntimeError, match="no algorithm can run"):
        convolve(x, w, TUNE)
    assert [fake.counts(name)[1] for name in names] == [2] * 4


def test_a_warning_s_hook_decides_for_itself(
    fake: Any, x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("fake:a", run_raises="refusal")
    fake.script("fake:b")
    other, whys = torch.randn(1, 2, 7, 7), []

    def show(*_: Any) -> None:
        OPS.conv2d.default(other, w, policy="autotune;backends=aten")
        whys.append(conv_decision().why)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        OPS.conv2d.default(x, w, policy="heuristic;backends=fake")
    assert conv_decision().algorithm == "fake:b" and whys == ["tuned"]


@pytest.mark.parametrize("twice", ["a hook", "a handler of signals"])
def test_a_warning_s_hook_calls_what_was_decided(
    x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch, twice: str
) -> None:
    policy, ran = "fwd=legacy:fft;on_unsupported=warn", []

    def call(*_: Any) -> None:
        OPS.conv2d.default(x, w, policy=policy)
        ran.append(conv_decision().why)

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


def test_what_a_capture_refuses_is_asked_again_behind_it(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", build_raises="failure")
    fake.script("fake:b")
    fake.capture(True)
    assert convolve(x, w, "heuristic;backends=fake") == "fake:b"
    fake.capture(False)
    fake.script("fake:a")
    assert convolve(x, w, "heuristic;backends=fake") == "fake:a"
    fake.script("fake:a", unsupported="never")
    _C.plan_cache_clear()
    fake.capture(True)
    builds = fake.counts("fake:a")[0]
    for _ in range(3):
        assert convolve(x, w, "heuristic;backends=fake") == "fake:b"
    assert fake.counts("fake:a")[0] == builds + 1  # what has another reason is not asked again


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
            convolve(x, w, "fwd=fake:a;backends=fake")
        for part in (
            "conv_fwd: the pinned algorithm fake:a cannot run: fake:a was told to refuse",
            "problem: conv_fwd x=f32[1,2,6,6]",
            "device: cpu",
            "would work: fake:b",
        ):
            assert part in str(caught.value)
    fake.script("fake:a")
    assert convolve(x, w, "fwd=fake:a;backends=fake") == "fake:a"


def test_where_all_refuse_at_their_runs_each_reason_is_told(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    for name in ("fake:a", "fake:b"):
        fake.script(name, run_raises="refusal")
    with (
        pytest.warns(UserWarning, match="was told to refuse"),
        pytest.raises(RuntimeError, match="no algorithm can run") as caught,
    ):
        convolve(x, w, "heuristic;backends=fake")
    assert all(f"{name} was told to refuse" in str(caught.value) for name in ("fake:a", "fake:b"))
