"""Plans and decisions of several threads, and bounded caches."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from selector_helpers import OPS, TUNE, conv_decision, convolve
from torch import Tensor

from torch_cudnn_ext import _C, tuning

THREADS = 8


def test_who_waits_for_a_decision_does_not_keep_python_s_lock(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    policy = "autotune;backends=fake"
    fake.script("fake:a", sleep_ms=20)
    with ThreadPoolExecutor(1) as elsewhere:
        tuned = elsewhere.submit(OPS.conv2d.default, x, w, policy=policy)
        while fake.counts("fake:a")[1] == 0 and not tuned.done():
            time.sleep(0.001)
        # The tuning asks for Ctrl-C, for which it takes the lock, between its runs.
        got = fake.call_with_the_lock("torch_cudnn_ext::conv2d", x, w, policy)
        torch.testing.assert_close(got, tuned.result())


def test_threads_that_knew_it_do_not_ask_again(fake: Any, x: Tensor, w: Tensor) -> None:
    policy = "heuristic;backends=fake"
    fake.script("fake:a")
    fake.script("fake:b")
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(1) as elsewhere:

        def knows() -> str:
            OPS.conv2d.default(x, w, policy=policy)
            barrier.wait()
            barrier.wait()
            OPS.conv2d.default(x, w, policy=policy)
            return conv_decision().algorithm

        ran = elsewhere.submit(knows)
        barrier.wait()
        fake.script("fake:a", run_raises="refusal")
        with pytest.warns(UserWarning, match="fake:a was told to refuse"):
            assert convolve(x, w, policy) == "fake:b"
        runs = fake.counts("fake:a")[1]
        barrier.wait()
        assert ran.result() == "fake:b" and fake.counts("fake:a")[1] == runs


def test_more_policies_than_a_thread_remembers(x: Tensor, w: Tensor) -> None:
    for count in (*range(1, 1100), *range(1, 10)):
        policy = f"max_workspace={count}GiB;backends=cpu"
        assert _C.resolved_policy(policy).startswith(f"max_workspace={count}GiB;")


def test_one_thread_builds_and_measures_for_all(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", sleep_ms=1)
    fake.script("fake:b", milliseconds=3, sleep_ms=3)
    fake.script("fake:c", unsupported="no")
    barrier = threading.Barrier(THREADS, timeout=60)

    def work(_: int) -> Tensor:
        barrier.wait()
        return OPS.conv2d.default(x, w, policy=TUNE)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for y in results:
        torch.testing.assert_close(y, F.conv2d(x, w))
    assert fake.counts("fake:b")[0] == 1 and fake.counts("fake:c") == (1, 0)
    # Once to measure, and a plan for each thread.
    assert fake.counts("fake:a")[0] == 1 + THREADS
    samples = _C.table_export()[0]["measurements"][0]["samples"]
    assert fake.counts("fake:a")[1] == 1 + samples + THREADS


def test_a_changed_pin_takes_effect_on_a_seen_shape(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    for name in "abba":
        assert convolve(x, w, f"fwd=fake:{name}") == f"fake:{name}"
    assert fake.counts("fake:a") == (1, 2) and fake.counts("fake:b") == (1, 2)


def test_going_back_to_a_knob_builds_nothing_again(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    for name in "abba":
        _C.set_knobs(f"fwd=fake:{name}", False)
        assert convolve(x, w) == f"fake:{name}"
    assert fake.counts("fake:a") == (1, 2) and fake.counts("fake:b") == (1, 2)


def test_a_knob_reaches_every_thread(fake: Any, x: Tensor, w: Tensor) -> None:
    for name in "ab":
        fake.script(f"fake:{name}")
    barrier = threading.Barrier(THREADS, timeout=60)

    def work(_: int) -> None:
        barrier.wait()  # so that each thread takes one
        OPS.conv2d.default(x, w)

    with ThreadPoolExecutor(THREADS) as pool:
        for name, a_runs, b_runs in (("a", 1, 0), ("b", 1, 1), ("a", 2, 1)):
            _C.set_knobs(f"fwd=fake:{name}", False)
            list(pool.map(work, range(THREADS)))
            assert fake.counts("fake:a")[1] == a_runs * THREADS
            assert fake.counts("fake:b")[1] == b_runs * THREADS


def test_the_plan_cache_is_bounded_and_forgets_the_oldest(fake: Any) -> None:
    fake.script("fake:a")
    _C.plan_cache_clear()
    capacity = _C.plan_cache_info()["capacity"]
    assert capacity == 1024
    problems = [
        _C.canonical_problem(f"conv_fwd x=f32[{n},1,4,4]:nchw w=f32[1,1,3,3]:nchw")
        for n in range(1, capacity + 102)
    ]

    def look_up(problem: str) -> str:
        """Whether this thread remembered the call."""
        before = _C.plan_cache_info()
        assert _C.decide(problem, "cpu", "fwd=fake:a")["algorithm"] == "fake:a"
        after = _C.plan_cache_info()
        hit, miss = (after[key] - before[key] for key in ("hits", "misses"))
        assert hit + miss == 1
        return "hit" if hit else "miss"

    kept = problems[0]
    for count, problem in enumerate(problems, 1):
        assert look_up(problem) == "miss"
        assert look_up(kept) == "hit"
        assert _C.plan_cache_info()["size"] == min(count, capacity)
    assert fake.counts("fake:a") == (len(problems), 0)
    assert look_up(problems[-1]) == "hit"
    assert look_up(problems[1]) == "miss", "it was used longest ago"
    assert _C.plan_cache_info()["size"] == capacity
    _C.plan_cache_clear()
    assert _C.plan_cache_info()["size"] == 0


LEAVING = """
import atexit, importlib.util, os, sys, threading, time

started, go = threading.Event(), threading.Event()

def convolve():
    ops.conv2d(x, w, policy="fwd=fake:a")
    started.set()
    go.wait()

def end(thread):
    go.set()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.01)
    print(fake.plans_alive())

def begin():
    started.clear()
    go.clear()
    thread = threading.Thread(target=convolve, daemon=True)
    thread.start()
    started.wait()
    return thread

atexit.register(lambda: end(last))  # runs after what the package registers
import torch
from torch_cudnn_ext import ops
spec = importlib.util.spec_from_file_location("fake_backend", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
fake.script("fake:a")
x, w = torch.randn(1, 2, 6, 6), torch.randn(4, 2, 3, 3)
end(begin())
last = begin()
"""


def test_a_thread_destroys_its_plans_unless_the_process_ends(fake: Any) -> None:
    """Autograd's threads end behind the CUDA driver, which destroying a plan would call."""
    program = [sys.executable, "-c", LEAVING, fake.__file__]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n1\n", "", 0)


def test_plans_of_all_threads_are_forgotten(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a")
    with ThreadPoolExecutor(1) as elsewhere:

        def again() -> int:
            convolve(x, w, "fwd=fake:a")
            return int(fake.counts("fake:a")[0])

        assert again() == 1 and elsewhere.submit(again).result() == 2
        assert elsewhere.submit(again).result() == 2
        tuning.reset()
        assert elsewhere.submit(again).result() == 3
        assert elsewhere.submit(again).result() == 3 and again() == 4
