"""Measuring: one process at a time, and host time."""

import fcntl
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import newest
from helpers import LINE

from torch_cudnn_ext import _C, ops
from torch_cudnn_ext._timing import host_ms


@pytest.mark.parametrize("memory", [False, True])
def test_tuning_beside_pytorchs_profiler(memory: bool, device: str) -> None:
    x, w = (torch.randn(*sizes, device=device) for sizes in ((2, 3, 9, 9), (4, 3, 3, 3)))
    with torch.profiler.profile(profile_memory=memory) as profiler:
        y = ops.conv2d(x, w, policy="autotune")
    assert newest("conv_fwd").why == "tuned"
    torch.testing.assert_close(y, torch.conv2d(x, w), rtol=1e-2, atol=1e-2)
    assert "torch_cudnn_ext::conv2d" in {event.key for event in profiler.key_averages()}


def test_measuring_takes_turns(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    _C.set_measurement_lock(str(turns))
    try:
        with turns.open("w") as file, ThreadPoolExecutor(1) as thread:
            fcntl.flock(file, fcntl.LOCK_EX)
            waiting = thread.submit(_C.measure, LINE, "cpu", time_budget_s=1.0)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1.3)
            fcntl.flock(file, fcntl.LOCK_UN)
            rows = waiting.result(timeout=60)
        # The wait is no part of the budget, nor of building.
        timed = [row for row in rows if row["status"] == "ok"]
        assert len(timed) > 1 and all(row["build_ms"] < 1000 for row in rows)
        with turns.open() as file:
            seen: list[tuple[str, bool]] = []

            def progress(done: int, total: int, algorithm: str) -> None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                    seen.append((algorithm, False))
                except BlockingIOError:
                    seen.append((algorithm, True))

            rows = _C.measure(LINE, "cpu", progress=progress)
            # Each is built without a turn first, then all run in one.
            assert [held for _, held in seen[: len(rows)]] == [False] * len(rows)
            assert ("timing:round", False) not in seen and ("timing:round", True) in seen
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back
        _C.set_measurement_lock(str(tmp_path / "no folder" / "turns"))
        with pytest.raises(RuntimeError, match="cannot open the lock file .*: No such file"):
            _C.measure(LINE, "cpu")
    finally:
        _C.set_measurement_lock("")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_error_gives_the_turn_back_though_a_forked_process_has_its_file(tmp_path: Path) -> None:
    turns, children = tmp_path / "turns", []

    def progress(done: int, total: int, algorithm: str) -> None:
        if algorithm.startswith("timing:"):
            if (child := os.fork()) == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
            raise KeyError

    _C.set_measurement_lock(str(turns))
    try:
        with pytest.raises(KeyError):
            _C.measure(LINE, "cpu", progress=progress)
        with turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        _C.set_measurement_lock("")
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_host_time_is_of_the_work() -> None:
    assert host_ms(lambda: time.sleep(0.02)) >= 20
