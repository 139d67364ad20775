"""Candidates that cost the process that measures them, and what is remembered of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, needs_cuda, newest
from helpers import LINE, OTHER
from selector_helpers import OPS, conv_problem, convolve
from torch import Tensor

from torch_cudnn_ext import _C, knobs, profile, tuning
from torch_cudnn_ext._files import ERRATA_VARIABLE
from torch_cudnn_ext.cli import main
from torch_cudnn_ext.tuning import isolation, local_errata
from torch_cudnn_ext.tuning.measure import measure_tasks
from torch_cudnn_ext.tuning.tasks import Task

FAKE = "backends=fake,aten"
# Every new process of Python gets the scripted algorithms.
SITE = """
import json, os, sys
import torch_cudnn_ext
sys.path.append(os.environ["FAKE_FOLDER"])
import fake_backend
for script in json.loads(os.environ["FAKE_SCRIPTS"]):
    fake_backend.script(**script)
"""


def called(x: Tensor, w: Tensor) -> Tensor:
    return torch.ops.torch_cudnn_ext.conv2d(x, w, policy="autotune;backends=fake")


def forked(x: Tensor, w: Tensor) -> Tensor:
    """Runs on a thread of PyTorch's own."""
    future = torch.jit.fork(called, x, w)
    return torch.jit.wait(future)


def children() -> list[int]:
    """The processes that this one started and that did not end."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(status.parent.name))
    return found


class Scripted:
    """Scripts algorithms for this process and for those that it starts."""

    def __init__(self, fake: Any, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.fake, self.patch, self.scripts = fake, patch, list[dict[str, Any]]()
        self.others = set(children())
        self.file = folder / "cache" / "errata.jsonl"
        (folder / "sitecustomize.py").write_text(SITE)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT), *sys.path]))
        patch.setenv("FAKE_FOLDER", str(Path(fake.__file__).parent))
        patch.setenv("FAKE_SCRIPTS", "[]")
        patch.setenv(ERRATA_VARIABLE, str(self.file))

    def __call__(self, algorithm: str, **script: Any) -> None:
        self.scripts.append({"algorithm": algorithm, **script})
        self.fake.script(algorithm, **script)
        self.patch.setenv("FAKE_SCRIPTS", json.dumps(self.scripts))

    def processes(self) -> list[int]:
        """Those that this process started since and that did not end."""
        return [pid for pid in children() if pid not in self.others]

    def errata(self) -> dict[str, str]:
        """What happened, by algorithm, from the file."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {row["algorithm"]: row["what"] for row in map(json.loads, lines)}


@pytest.fixture
def script(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(isolation, "STEP_LIMIT_S", 4.0)
    yield Scripted(fake, tmp_path, monkeypatch)
    isolation._of_calls.end()
    isolation._forget_after_fork()
    monkeypatch.undo()
    local_errata.load()


def by_algorithm(rows: list[Any]) -> dict[str, Any]:
    return {row["algorithm"]: row for row in rows}


def measure_alone(problem: str = LINE, **more: Any) -> dict[str, Any]:
    """Rows by algorithm, in their order, that a process of its own measured."""
    (rows,) = measure_tasks([Task(problem, "cpu", FAKE, **more)], isolate="always")
    return by_algorithm(rows)


@pytest.mark.filterwarnings("ignore:.*measuring it cost a process")
def test_candidates_that_cost_their_process_fail_and_are_not_tried_again(
    script: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    script("fake:good", milliseconds=1.0)
    script("fake:aborts", run_raises="abort")
    script("fake:builds_and_ends", build_raises="exit")
    script("fake:hangs", run_raises="hang")
    script("fake:writes", milliseconds=0.5, run_raises="out_of_bounds", raises_at=4)
    happened = {
        "fake:aborts": "the process was ended by SIGABRT",
        "fake:builds_and_ends": "the process ended with exit code 3",
        "fake:hangs": "hung for 4 s",
        "fake:writes": "the process was ended by SIGSEGV",
    }
    rows = measure_alone()
    assert {name: row["reason"] for name, row in rows.items() if row["status"] == "failed"} == (
        happened
    )
    assert rows["fake:good"]["status"] == rows["aten:default"]["status"] == "ok"
    order = ["ok", "rejected", "failed", "excluded", "unsupported"]
    assert [row["status"] for row in rows.values()] == sorted(
        (row["status"] for row in rows.values()), key=order.index
    )
    assert by_algorithm(tuning.entries()[0]["measurements"]) == rows
    assert script.errata() == happened
    assert script.fake.counts("fake:aborts") == (0, 0)  # of this process

    tuning.clear()
    again = by_algorithm(next(measure_tasks([Task(LINE, "cpu", FAKE)], isolate="never")))
    for name, what in happened.items():
        assert again[name]["status"] == "unsupported"
        assert again[name]["reason"].startswith(f"{what} when it was measured here (local erratum")
        assert str(script.file) in again[name]["reason"]
    with pytest.raises(RuntimeError, match=r"fake:hangs cannot run: hung for 4 s when it was"):
        _C.decide(LINE, "cpu", "fwd=fake:hangs")
    assert _C.decide(LINE, "cpu", "backends=fake")["algorithm"] == "fake:good"
    assert script.fake.counts("fake:aborts") == (0, 0)

    assert main(["info", "--errata"]) == 0
    shown = capsys.readouterr().out
    assert "fake:hangs" in shown and "hung for 4 s" in shown
    code = (
        "from torch_cudnn_ext import _C\n"
        f"rows = _C.measure({LINE!r}, 'cpu', 'backends=fake', record=False)\n"
        "print(*(row['algorithm'] for row in rows if 'local' in row['reason']))\n"
    )
    arguments = [sys.executable, "-c", code]
    second = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert sorted(second.stdout.split()) == sorted(happened)

    script.file.unlink()
    local_errata.load()
    script.fake.script("fake:builds_and_ends")  # since candidates are built in this process
    assert by_algorithm(_C.candidates(LINE, "cpu", FAKE))["fake:hangs"]["status"] == "ok"


@pytest.mark.filterwarnings("ignore:.*measuring it cost a process")
def test_several_jobs_lose_their_own_process_alone(script: Scripted) -> None:
    script("fake:good", milliseconds=1.0)
    script("fake:aborts", run_raises="abort")
    tasks = [Task(line, "cpu", FAKE, time_budget_s=0.5) for line in (LINE, OTHER)]
    for rows in measure_tasks(tasks, jobs=2, isolate="always"):
        found = by_algorithm(rows)
        assert found["fake:aborts"]["reason"] == "the process was ended by SIGABRT"
        assert found["fake:good"]["status"] == "ok"
    assert len(tuning.entries()) == 2
    assert len(script.file.read_text().splitlines()) == 2


@pytest.mark.filterwarnings("ignore:.*measuring it cost a process")
def test_a_process_that_is_killed_blames_no_algorithm_for_good(script: Scripted) -> None:
    script("fake:good", milliseconds=1.0)
    script("fake:large", run_raises="kill")
    rows = measure_alone()
    assert rows["fake:large"]["reason"].startswith("the process was ended by SIGKILL, as for want")
    assert rows["fake:good"]["status"] == "ok"
    assert script.errata() == {}


def test_a_problem_that_loses_too_many_is_given_up(
    script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MOST_LOST", 1)
    for name in ("fake:a", "fake:b", "fake:c"):
        script(name, build_raises="abort")
    match = "given up, since 2 algorithms cost the process that measured them: fake:a .*, fake:b"
    with pytest.raises(RuntimeError, match=match):
        measure_alone()
    assert [*script.errata()] == ["fake:a", "fake:b"]


def test_what_is_measured_alone_is_what_this_process_measures(script: Scripted) -> None:
    script("fake:good", milliseconds=1.0)
    script("fake:wrong", relative_error=1.0)
    script("fake:raises", run_raises="error")
    script("fake:next", milliseconds=0.5, neighbour_of="fake:good")

    def states(rows: dict[str, Any]) -> set[tuple[str, str]]:
        return {(name, row["status"]) for name, row in rows.items()}

    class Told:
        def problem(self, done: int, total: int, text: str) -> None:
            assert (done, total, text) == (0, 1, LINE)

        def algorithm(self, done: int, total: int, text: str) -> None:
            algorithms.append(text)

    algorithms: list[str] = []
    task = Task(LINE, "cpu", FAKE, knob_search=True)
    with knobs.flags(deterministic=True):
        (alone,) = measure_tasks([task], progress=Told(), isolate="always")
        kept = tuning.entries()
        (here,) = measure_tasks([task], isolate="never")
        assert [entry["constraints"] for entry in tuning.entries()] == [kept[0]["constraints"]]
    assert states(by_algorithm(alone)) == states(by_algorithm(here))
    assert ("fake:next", "ok") in states(by_algorithm(alone))
    assert algorithms


@pytest.mark.filterwarnings("ignore:.*measuring it cost a process")
def test_calls_that_tune_keep_one_process(script: Scripted, x: Tensor, w: Tensor) -> None:
    script("fake:good", milliseconds=1.0)
    script("fake:aborts", run_raises="abort")
    knobs.isolate = "always"
    assert convolve(x, w, "autotune;backends=fake") == "fake:good"
    assert newest("conv_fwd").why == "tuned"
    assert script.errata() == {"fake:aborts": "the process was ended by SIGABRT"}
    (process,) = script.processes()
    failed = [row for row in tuning.entries()[0]["measurements"] if row["status"] == "failed"]
    assert [row["algorithm"] for row in failed] == ["fake:aborts"]
    pruned = "autotune;backends=fake;deterministic"
    assert convolve(x, w, pruned) == "fake:good"
    assert script.processes() == [process]
    assert script.fake.counts("fake:good")[1] == 2  # the calls, and no measurements


def test_calls_of_several_threads_tune_one_after_the_other(script: Scripted, x: Tensor) -> None:
    script("fake:good", milliseconds=1.0)
    knobs.isolate = "always"
    results = []

    def call(size: int) -> None:
        w = x.new_ones(size, 2, 3, 3)
        OPS.conv2d.default(x, w, policy="autotune;backends=fake")
        results.append(newest("conv_fwd").why)

    threads = [threading.Thread(target=call, args=(size,)) for size in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tuning.entries()) == 3 and len(results) == 3


def test_a_backward_and_a_caller_with_pythons_lock_tune_in_another_process(
    script: Scripted, x: Tensor, w: Tensor
) -> None:
    script("fake:good", milliseconds=1.0)
    knobs.isolate = "always"
    w.requires_grad_()
    OPS.conv2d.default(x, w, policy="autotune;backends=fake").sum().backward()
    assert newest("conv_bwd_filter").why == "tuned"
    policy = "autotune;backends=fake;prefer=memory"
    script.fake.call_with_the_lock("torch_cudnn_ext::conv2d", x, w.detach(), policy)
    assert newest("conv_fwd").why == "tuned"
    assert len(tuning.entries()) == 3 and len(script.processes()) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_thread_that_python_does_not_know_takes_the_heuristic(
    script: Scripted, x: Tensor, w: Tensor
) -> None:
    script("fake:good")
    knobs.isolate = "always"
    call = torch.jit.script(forked)
    match = "the process that tunes for this one failed.*this thread is not known to Python"
    with pytest.warns(UserWarning, match=match):
        torch.testing.assert_close(call(x, w), torch.nn.functional.conv2d(x, w))
    assert tuning.entries() == [] and script.processes() == []


def test_a_signal_handler_does_not_wait_for_the_call_that_it_interrupts(
    script: Scripted, x: Tensor, w: Tensor
) -> None:
    script("fake:good", milliseconds=1.0)
    knobs.isolate = "always"

    def handler(signum: int, frame: object) -> None:
        OPS.conv2d.default(x, w[:1], policy="autotune;backends=fake")
        reasons.append(newest("conv_fwd").why)

    reasons: list[str] = []
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # while the process starts
        with pytest.warns(UserWarning, match="a call tunes inside of another one that tunes"):
            OPS.conv2d.default(x, w, policy="autotune;backends=fake")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert reasons == ["heuristic: the process that tunes for this one failed"]
    assert newest("conv_fwd").why == "tuned"


def test_a_call_takes_the_heuristic_if_no_process_starts(
    script: Scripted, x: Tensor, w: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("fake:good")
    monkeypatch.setattr(isolation, "get_executable", lambda: b"/nowhere/python")
    knobs.isolate = "always"
    match = "the process that tunes for this one failed.*cannot start a process to measure in"
    with pytest.warns(UserWarning, match=match):
        convolve(x, w, "autotune;backends=fake")
    assert newest("conv_fwd").why == "heuristic: the process that tunes for this one failed"
    assert tuning.entries() == []
    with pytest.raises(RuntimeError, match="cannot start a process to measure in: .*nowhere"):
        measure_alone()


UNGUARDED = f"""
import os, torch
from torch_cudnn_ext import _C, knobs, ops, tuning
print("imported")
_C.ignore_other_work(True)
knobs.isolate = "always"
best = tuning.tune({LINE!r}, device="cpu", time_budget_s=0.1)
ops.softmax(torch.randn(4, 8), 1, policy="autotune")
print(len(tuning.entries()), ops.last_decision("softmax_fwd").why, flush=True)
child = os.fork()
ops.softmax(torch.randn(4, 8 if child else 16), 1, policy="autotune")
if child:
    os.waitpid(child, 0)
print(len(tuning.entries()), ops.last_decision("softmax_fwd").why)
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """No process imports the main module; a process that is forked starts one for itself."""
    file = tmp_path / "script.py"
    file.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(file)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "OMP_NUM_THREADS": "1",  # OpenMP's threads are not in a process that is forked
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["imported", "2 tuned", "3 tuned", "2 tuned"]


WAITING = f"""
import os, signal, sys, threading, time
from torch_cudnn_ext import tuning
from torch_cudnn_ext.tuning.measure import measure_tasks
from torch_cudnn_ext.tuning.tasks import Task

class Told:
    def problem(self, done, total, text): ...
    def algorithm(self, done, total, text):
        if text == "fake:hangs":
            print("hangs", flush=True)
            os.kill(0 if sys.argv[1] == "group" else os.getpid(), int(sys.argv[2]))

try:
    next(measure_tasks([Task({LINE!r}, "cpu", {FAKE!r})], progress=Told(), isolate="always"))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("victim", "by"), [("group", signal.SIGINT), ("parent", signal.SIGKILL)], ids=str
)
def test_the_process_ends_with_this_one(
    script: Scripted, tmp_path: Path, victim: str, by: signal.Signals
) -> None:
    script("fake:hangs", build_raises="hang")
    file = tmp_path / "script.py"
    file.write_text(WAITING)
    done = subprocess.run(  # returns when no process has its pipes
        [sys.executable, str(file), victim, str(int(by))],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
    )
    lines = ["hangs", "interrupted"] if victim == "group" else ["hangs"]
    assert done.stdout.splitlines() == lines, done.stderr
    assert "Traceback" not in done.stderr
    assert script.errata() == {}


class Stopping:
    """A progress that raises when an algorithm, or the second problem, is next."""

    def __init__(self, at: str) -> None:
        self.at = at

    def problem(self, done: int, total: int, text: str) -> None:
        if self.at == "problem" and done == 1:
            raise KeyError

    def algorithm(self, done: int, total: int, text: str) -> None:
        if self.at == "algorithm":
            raise KeyError


@pytest.mark.parametrize(("jobs", "at"), [(1, "algorithm"), (1, "problem"), (2, "problem")])
def test_what_a_user_stops_leaves_no_process(script: Scripted, jobs: int, at: str) -> None:
    script("fake:good", milliseconds=1.0)
    lines = [LINE.replace("[2,", f"[{n},") for n in range(1, 60)]
    tasks = [Task(line, "cpu", FAKE, time_budget_s=0.1) for line in lines]
    with pytest.raises(KeyError):
        list(measure_tasks(tasks, jobs, Stopping(at), "always"))
    assert script.processes() == []
    assert len(tuning.entries()) < len(tasks)


def test_a_process_that_was_idle_is_replaced(
    script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "IDLE_S", 0.2)
    script("fake:good", milliseconds=1.0)
    tasks = [Task(line, "cpu", FAKE, time_budget_s=0.1) for line in (LINE, OTHER)]
    results = measure_tasks(tasks, isolate="always")
    assert next(results)[0]["status"] == "ok"
    time.sleep(2)
    assert next(results)[0]["status"] == "ok"


@pytest.mark.parametrize("isolate", ["sometimes", 1])
def test_a_wrong_value_is_an_error(isolate: Any, x: Tensor, w: Tensor) -> None:
    wanted = f"isolate: got {isolate!r}.*wanted one of 'auto', 'always', 'never'"
    error = ValueError if isinstance(isolate, str) else TypeError
    for call in (tuning.tune, profile):
        with pytest.raises(error, match=wanted):
            call(conv_problem(x, w), device="cpu", isolate=isolate)
    with pytest.raises(error, match=wanted):
        knobs.isolate = isolate
    with pytest.raises(TypeError, match="flags: got the keyword 'isolate'"):
        knobs.flags(isolate="always")


def test_auto_isolates_on_gpus_that_were_not_verified() -> None:
    assert [_C.is_isolated("cpu", word) for word in ("auto", "always", "never")] == [
        False,
        True,
        False,
    ]
    assert not isolation.is_isolated("cpu")
    knobs.isolate = "always"
    assert isolation.is_isolated("cpu") and not isolation.is_isolated("cpu", "never")


@needs_cuda
@pytest.mark.filterwarnings("ignore:.*measuring it cost a process")
def test_a_write_out_of_bounds_costs_another_gpu_context(script: Scripted) -> None:
    script("fake:good")
    script("fake:first", run_raises="out_of_bounds", raises_at=1)
    script("fake:later", run_raises="out_of_bounds", raises_at=4)
    (rows,) = measure_tasks([Task(LINE, "cuda", FAKE)], isolate="always")
    found = by_algorithm(rows)
    for name in ("fake:first", "fake:later"):
        row = found[name]
        assert (row["status"], row["reason"]) == ("failed", "context lost"), row
    assert found["fake:good"]["status"] == found["aten:default"]["status"] == "ok"
    assert script.errata() == dict.fromkeys(("fake:first", "fake:later"), "context lost")
    assert torch.ones(3, device="cuda").sum().item() == 3  # the context of this process


@needs_cuda
def test_auto_follows_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = _C.caution(0, _C.capability("cuda")) == ""
    assert _C.is_isolated("cuda", "auto") is not verified
    _C.override_library_version("cuDNN", 99999)
    try:
        assert _C.is_isolated("cuda", "auto")
        assert not _C.is_isolated("cpu", "auto")
    finally:
        _C.override_library_version("cuDNN", 0)


def test_the_command_line_isolates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "softmax_fwd x=f32[4,64,1]:nchw log=false"
    table = str(tmp_path / "table.jsonl")
    for words in (["profile"], ["tune", "--table", table]):
        arguments = [*words, line, "--device", "cpu", "--isolate"]
        assert main([*arguments, "sometimes"]) == 2
        assert "--isolate: got 'sometimes', wanted one of 'auto', " in capsys.readouterr().err
        assert main([*arguments, "always", "--time-budget", "0.2"]) == 0
        assert "aten:default" in capsys.readouterr().out
