"""Tuning with several processes: same results, errors, signals and lack of memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from helpers import LINE, OTHER

from torch_cudnn_ext import _C, knobs, tuning
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.tuning import measure
from torch_cudnn_ext.tuning.tasks import (
    Task,
    as_here,
    current_switches,
    measure_elsewhere,
    obey_switches,
)
from torch_cudnn_ext.tuning.worker_pool import worker_pool

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry


def test_jobs_tune_what_one_process_would() -> None:
    torch.use_deterministic_algorithms(True)
    with pushed("max_workspace=64MiB"):
        alone = tuning.tune([LINE, OTHER], device="cpu")
        before = tuning.entries()
        tuning.clear()
        together = tuning.tune([LINE, OTHER], device="cpu", jobs=2)
    assert list(together) == list(alone) == [LINE, OTHER]

    def keys(entries: "list[TableEntry]") -> set[tuple[str, str, str]]:
        return {(one["problem"], one["device"], one["constraints"]) for one in entries}

    def measured(entries: "list[TableEntry]") -> set[str]:
        return {f"{m['algorithm']} {m['status']}" for one in entries for m in one["measurements"]}

    assert keys(tuning.entries()) == keys(before)
    assert measured(tuning.entries()) == measured(before)
    with pytest.raises(ValueError, match="jobs: got 0, wanted 1 or more"):
        tuning.tune(LINE, device="cpu", jobs=0)
    with pytest.raises(RuntimeError, match="no algorithm works"):
        tuning.tune([LINE, OTHER], device="cpu", policy="backends=graph", jobs=2)


def test_jobs_keep_a_cap_beside_fastest() -> None:
    knobs.fastest = True
    with pushed("max_workspace=10KiB"):
        for jobs in (1, 2):
            tuning.clear()
            tuning.tune([LINE, OTHER], device="cpu", jobs=jobs, time_budget_s=0.1)
            kept = tuning.entries()
            assert all("max_workspace=10KiB" in one["constraints"] for one in kept)
            for one in kept:
                assert (one["measurements"][0]["workspace_bytes"] or 0) <= 10240
                assert _C.tuned(one["problem"], "cpu", "")


def _short_of_memory_once(task: Task) -> Any:
    """In another process: as if LINE found no memory the first time that it is measured."""
    rows, entries = measure_elsewhere(task)
    with Path(os.environ["MEASURED"]).open("a+") as file:
        file.seek(0)
        first = LINE not in file.read()
        file.write(f"{os.getpid()} {task.problem}\n")
    if first and task.problem == LINE:
        for measured in (rows, *(entry["measurements"] for entry in entries)):
            for row in measured:
                row.update(status="failed", reason="out of memory: 18 GiB", median_ms=None)
    return rows, entries


def test_what_lacks_memory_is_measured_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEASURED", str(tmp_path / "measured"))
    monkeypatch.setattr(measure, "measure_elsewhere", _short_of_memory_once)
    tasks = [Task(problem, "cpu", "", time_budget_s=0.1) for problem in (LINE, OTHER)]
    lacking, other = measure.measure_tasks(tasks, jobs=2)
    assert lacking[0]["status"] == other[0]["status"] == "ok"
    *together, (pid, problem) = (
        line.split(maxsplit=1) for line in (tmp_path / "measured").read_text().splitlines()
    )
    assert sorted(problem for _, problem in together) == sorted([LINE, OTHER])
    assert problem == LINE and pid not in [before for before, _ in together]
    kept = {entry["problem"]: entry["measurements"] for entry in tuning.entries()}
    assert kept == {LINE: lacking, OTHER: other}


def test_what_lacked_memory_is_not_kept_without_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEASURED", str(tmp_path / "measured"))
    monkeypatch.setattr(measure, "measure_elsewhere", _short_of_memory_once)
    turns = measure._locked_workers

    def interrupted(count: int, isolated: bool, lock: str) -> Any:
        if count == 1:
            raise KeyboardInterrupt
        return turns(count, isolated, lock)

    monkeypatch.setattr(measure, "_locked_workers", interrupted)
    tasks = [Task(problem, "cpu", "", time_budget_s=0.1) for problem in (LINE, OTHER)]
    with pytest.raises(KeyboardInterrupt):
        list(measure.measure_tasks(tasks, jobs=2))
    assert [entry["problem"] for entry in tuning.entries()] == [OTHER]


def test_jobs_measure_on_what_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    there = [as_here(Task(LINE, device, "")).device for device in ("cuda", "cuda:1")]
    assert there == ["cuda:3", "cuda:1"]
    tuning.tune([LINE, OTHER], device="cpu", jobs=2, time_budget_s=0.1)
    (before,) = {entry["device"] for entry in tuning.entries()}
    tuning.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        tuning.tune([LINE, OTHER], device="cpu", jobs=2, time_budget_s=0.1)
        (device,) = {entry["device"] for entry in tuning.entries()}
        assert before != device == _C.device_fingerprint("cpu")
    finally:
        torch.set_num_threads(threads)


def test_jobs_measure_under_the_same_switches() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    mkldnn: Any = torch.backends.mkldnn
    products: Any = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction
    mkldnn.enabled = False
    products.allow_bf16_reduced_precision_reduction = not before
    try:
        with worker_pool(1, obey_switches, "", current_switches()) as pool:
            assert pool.submit(current_switches).result() == current_switches()
    finally:
        mkldnn.enabled = True
        products.allow_bf16_reduced_precision_reduction = before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_problem_without_algorithms_keeps_no_other_from_being_tuned(jobs: int) -> None:
    small = [f"softmax_fwd x=f32[2,{n},4]:nchw log=false" for n in (3, 5)]
    lines = [small[0], LINE.replace("8,8", "64,64"), small[1]]
    policy = "max_workspace=1KiB;backends=aten"
    with pytest.raises(RuntimeError, match=f"no algorithm works under '{policy}' for conv_fwd"):
        tuning.tune(lines, device="cpu", policy=policy, jobs=jobs, time_budget_s=0.1)
    tuned = {e["problem"] for e in tuning.entries() if e["measurements"][0]["status"] == "ok"}
    assert tuned == set(small)


class Stopping:
    """A progress that does something when one problem is finished."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def problem(self, done: int, total: int, text: str) -> None:
        if done == 1:
            self.act()

    def algorithm(self, done: int, total: int, text: str) -> None:
        pass


def test_what_stops_jobs_leaves_no_process_behind() -> None:
    lines = [LINE.replace("[2,", f"[{n},") for n in range(1, 60)]

    def send(signal_number: signal.Signals) -> None:
        os.kill(multiprocessing.active_children()[0].pid or 0, signal_number)

    def fail() -> None:
        raise KeyError("of the user's own")

    has_ended = "a process that works for this one has ended"
    acts: list[tuple[Callable[[], None], type[Exception], str]] = [
        (partial(send, signal.SIGKILL), RuntimeError, has_ended),
        # Of one that is between two problems there is no more to tell.
        (partial(send, signal.SIGTERM), RuntimeError, f"was ended by SIGTERM|{has_ended}"),
        (fail, KeyError, "of the user's own"),
    ]
    for act, error, match in acts:
        tuning.clear()
        with pytest.raises(error, match=match):
            tuning.tune(lines, device="cpu", jobs=2, time_budget_s=0.1, progress=Stopping(act))
        assert multiprocessing.active_children() == []
        assert lines[0] in {entry["problem"] for entry in tuning.entries()}
        assert len(tuning.entries()) < len(lines)
    tasks = [Task(line, "cpu", "", time_budget_s=0.1) for line in lines]
    abandoned: Any = measure.measure_tasks(tasks, jobs=2)
    assert next(abandoned)[0]["status"] == "ok"
    abandoned.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("victim", ["group", "parent"])
def test_signals_end_all_jobs(tmp_path: Path, victim: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from torch_cudnn_ext import tuning\n"
        f"lines = [{LINE!r}.replace('[2,', f'[{{n}},') for n in range(1, 60)]\n"
        "class Stopping:\n"
        "    def algorithm(self, done, total, text): ...\n"
        "    def problem(self, done, total, text):\n"
        "        if tuning.entries():\n"  # none is kept of a problem whose times were too noisy
        + (
            "            os.killpg(0, signal.SIGINT)\n"
            if victim == "group"
            else "            os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        + "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n"
        "        tuning.tune(lines, device='cpu', jobs=2, time_budget_s=0.1, progress=Stopping())\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', 1 <= len(tuning.entries()) < 59)\n"
    )
    done = subprocess.run(  # returns when no process has its pipes
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    if victim == "group":
        assert done.stdout == "interrupted True\n"
    else:
        assert done.returncode == -signal.SIGKILL
