"""Threads with policies of their own, decisions that they share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torch_cudnn_ext import _C, knobs, last_decision, ops, tuning
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext.knobs import pushed

OPS = torch.ops.torch_cudnn_ext
THREADS = 8


def _on_threads(work: Callable[[int], Any]) -> list[Any]:
    """Results of ``work(0)`` to ``work(7)``, all begun before any goes on."""
    with ThreadPoolExecutor(THREADS) as pool:
        barrier = threading.Barrier(THREADS, timeout=60)

        def begin(index: int) -> Any:
            barrier.wait()
            return work(index)

        return list(pool.map(begin, range(THREADS)))


def _layer(device: str, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(batch, 8, 8, 8, device=device, dtype=torch.float64, requires_grad=True)
    w = torch.randn(8, 8, 3, 3, device=device, dtype=torch.float64, requires_grad=True)
    return x, w


def _problem(op: str, x: torch.Tensor, w: torch.Tensor) -> str:
    return _C.convolution_problem(op, x, w, [1, 1], [1, 1], [1, 1], 1)


def _supported(op: str, x: torch.Tensor, w: torch.Tensor, device: str) -> list[str]:
    candidates = _C.candidates(_problem(op, x, w), device)
    return [candidate["algorithm"] for candidate in candidates if candidate["status"] == "ok"]


def test_each_thread_sees_its_own_flags(device: str) -> None:
    x, w = _layer(device)
    passes = ("fwd", "bwd_data", "bwd_filter")
    pins = [
        {
            name: algorithms[index % len(algorithms)]
            for name in passes
            for algorithms in [_supported(f"conv_{name}", x, w, device)]
        }
        for index in range(THREADS)
    ]
    expected = F.conv2d(x, w, padding=1)
    gradients = torch.autograd.grad(expected.square().sum(), (x, w))
    one_at_a_time = threading.Lock()
    all_hold = threading.Barrier(THREADS, timeout=60)

    def work(index: int) -> None:
        with pushed(";".join(f"{name}={algorithm}" for name, algorithm in pins[index].items())):
            all_hold.wait()
            for _ in range(20):
                y = OPS.conv2d.default(x, w, padding=[1, 1])
                got = torch.autograd.grad(y.square().sum(), (x, w))
                torch.testing.assert_close(y, expected)
                torch.testing.assert_close(got, gradients)
                for name, algorithm in pins[index].items():
                    chosen = _C.decide(_problem(f"conv_{name}", x, w), device)
                    assert chosen["algorithm"] == algorithm
            all_hold.wait()
            with one_at_a_time:
                y = OPS.conv2d.default(x, w, padding=[1, 1])
                torch.autograd.grad(y.square().sum(), (x, w))
                for name, algorithm in pins[index].items():
                    ran = _C.last_decision(f"conv_{name}")
                    assert ran is not None and ran["algorithm"] == algorithm
            all_hold.wait()

    _on_threads(work)
    assert _C.resolved_policy(None) == _C.resolved_policy("")


def test_arguments_of_many_threads_do_not_mix(device: str) -> None:
    x, w = _layer(device)
    algorithms = _supported("conv_fwd", x, w, device)
    expected = F.conv2d(x, w, padding=1)
    last = threading.Lock()

    def work(index: int) -> None:
        for step in range(50):
            algorithm = algorithms[(index + step) % len(algorithms)]
            with last:
                y = OPS.conv2d.default(x, w, padding=[1, 1], policy=f"fwd={algorithm}")
                ran = _C.last_decision("conv_fwd")
            assert ran is not None and ran["algorithm"] == algorithm
            torch.testing.assert_close(y, expected)

    _on_threads(work)


def test_one_thread_tunes_a_key_and_the_others_wait(
    device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x, w = _layer(device, batch=3)
    problem = _problem("conv_fwd", x, w)
    knobs.verbose = True  # the process that measures on an unverified GPU prints as well
    capfd.readouterr()
    choices = _on_threads(lambda _: _C.decide(problem, device, "autotune"))
    # One line for each tuning and for each new decision: there was one.
    lines = [line for line in capfd.readouterr().err.splitlines() if problem in line]
    assert len(lines) == 2 and "candidates" in lines[0] and "tuned" in lines[1], lines
    assert len({choice["algorithm"] for choice in choices}) == 1
    assert [entry["problem"] for entry in _C.table_export()] == [problem]


def test_threads_tune_different_keys_at_once(device: str) -> None:
    def work(index: int) -> None:
        x, w = _layer(device, batch=index + 1)
        y = OPS.conv2d.default(x, w, padding=[1, 1], policy="autotune")
        torch.testing.assert_close(y, F.conv2d(x, w, padding=1))

    _on_threads(work)
    assert len(_C.table_export()) == THREADS


def test_a_knob_set_by_one_thread_reaches_all(device: str) -> None:
    x, w = _layer(device)
    problem = _problem("conv_fwd", x, w)
    algorithms = _supported("conv_fwd", x, w, device)
    step = threading.Barrier(THREADS, timeout=60)

    def work(index: int) -> list[str]:
        seen = []
        for algorithm in algorithms[:3]:
            if index == 0:
                _C.set_knobs(f"fwd={algorithm}", False)
            step.wait()
            OPS.conv2d.default(x, w, padding=[1, 1])
            seen.append(_C.decide(problem, device)["algorithm"])
            step.wait()
        return seen

    for seen in _on_threads(work):
        assert seen == algorithms[:3]


def test_flags_end_with_their_thread(device: str) -> None:
    before = _C.resolved_policy(None)

    def work(index: int) -> None:
        _C.push_flags("max_workspace=0;deterministic")

    _on_threads(work)
    assert _C.resolved_policy(None) == before


def test_flags_are_closed_where_they_were_opened(device: str) -> None:
    before = _C.resolved_policy(None)
    block = knobs.flags(max_workspace=0)
    block.__enter__()
    inside = _C.resolved_policy(None)

    def close(index: int) -> None:
        with knobs.flags(deterministic=True):
            with pytest.raises(RuntimeError, match="opened on another thread"):
                _C.pop_flags(level)
            assert "deterministic" in _C.resolved_policy(None), "its own knobs hold"

    level = _C.push_flags("prefer=memory")
    _on_threads(close)
    # In another order than they were opened.
    block.__exit__(None, None, None)
    assert "prefer=memory" in _C.resolved_policy(None)
    assert "max_workspace" in inside and "max_workspace" not in _C.resolved_policy(None)
    _C.pop_flags(level)
    assert _C.resolved_policy(None) == before


def test_a_backward_keeps_to_its_forward_whatever_the_number_of_threads() -> None:
    """What was tuned for one number is not known for another, but what the forward left is."""
    before = torch.get_num_threads()
    module = ours.LSTM(4, 5, num_layers=2, dropout=0.5, policy="autotune")
    x = torch.randn(3, 2, 4)
    try:
        torch.set_num_threads(1)
        tuning.reset()
        y = torch.compile(lambda x: module(x)[0], backend="aot_eager")(x)
        ran = last_decision("rnn_fwd")
        torch.set_num_threads(2)
        y.sum().backward()
        led = last_decision("rnn_bwd")
        assert ran is not None and led is not None and ran.algorithm == led.algorithm
        assert len(tuning.entries()) == 1
        tuning.reset()
        w, image = torch.randn(2, 3, 3, 3), torch.randn(1, 3, 8, 8)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ops.conv2d(image, w, policy="autotune")
        assert len(tuning.entries()) == 2
    finally:
        torch.set_num_threads(before)
