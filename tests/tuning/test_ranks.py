"""Four ranks on the CPU: they tune together, and agree inside a step."""

import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from helpers import LINE
from store_helpers import entry, measurement, read_all
from torch import distributed as dist

import torch_cudnn_ext as tce
from torch_cudnn_ext import _C, knobs, ops, tuning
from torch_cudnn_ext.tuning import group_tuning, keeping, meeting
from torch_cudnn_ext.tuning.store_rows import Row, row_line

RANKS = 4
LIMIT_S = 300.0  # for what takes seconds
SIZES = {0: (3, 4, 5), 1: (4,), 2: (), 3: (6,)}  # of the softmax problems of each rank


def softmax(size: int) -> str:
    """A problem that takes a moment."""
    return f"softmax_fwd x=f32[4,{size},1]:nchw log=false"


def run_ranks(work: Callable[[int, Path], Any], folder: Path) -> list[Any]:
    """What the work gives on each rank; ``None`` for a rank that was killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch_cudnn_ext"])
    ranks = [
        context.Process(target=_rank, args=(rank, store.port, work, folder))
        for rank in range(RANKS)
    ]
    for one in ranks:
        one.start()
    end = time.monotonic() + LIMIT_S
    try:
        for one in ranks:
            one.join(max(0.0, end - time.monotonic()))
        assert [one.exitcode for one in ranks if one.exitcode is None] == [], "it hangs"
    finally:
        for one in ranks:
            one.kill()
    results = []
    for rank, one in enumerate(ranks):
        assert one.exitcode in (0, -signal.SIGKILL), (rank, one.exitcode)
        text = (folder / f"{rank}.json").read_text() if one.exitcode == 0 else "null"
        results.append(json.loads(text))
    return results


def _rank(rank: int, port: int, work: Callable[[int, Path], Any], folder: Path) -> None:
    torch.set_num_threads(1)
    _C.ignore_other_work(True)
    try:
        store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        result = work(rank, folder)
        (folder / f"{rank}.json").write_text(json.dumps(result))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # others may be killed: no rank waits for them


def table() -> str:
    """The SHA-256 of the tuning table."""
    lines = sorted(row_line(entry, whole=True) for entry in tuning.entries())
    return hashlib.sha256(b"".join(lines)).hexdigest()


def error_of(call: Callable[[], object]) -> str:
    """What a call raises, as a text; empty if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def tuned(*sizes: int, **keywords: Any) -> dict[str, Any]:
    """The best of softmax problems, tuned by all ranks."""
    lines = [softmax(size) for size in sizes]
    return tuning.tune(lines, device="cpu", **{"group": "world", **keywords})


def _tunes_together(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    knobs.store = folder / f"store{rank // 2}"  # two ranks share one
    best = tuned(*SIZES[rank])
    found["together"] = [{**best}, table(), tuning.statistics().measured]
    # A part of the ranks, twice; then all make a group, which has one name on all of them.
    part = dist.new_group([1, 3])
    if rank in (1, 3):
        tuned(10 + rank, group=part)
        tuned(12, group=part)
        found["part"] = table()
    else:
        found["part"] = error_of(lambda: tuned(10, group=part))
    everyone = dist.new_group([0, 1, 2, 3])
    dist.barrier(group=everyone)
    # What one rank has is given to the others.
    tuning.clear()
    knobs.store = ""
    model, x = torch.nn.Softmax(1), torch.randn(2, 30 + rank // 2)
    if rank == 2:
        tuning.tune_model(model, x, train=False)
    before = tuning.statistics().measured
    best = tuning.tune_model(model, x, train=False, group=everyone)
    again = tuning.tune_model(model, x, train=False, group=everyone)
    measured = tuning.statistics().measured - before
    found["model"] = [sorted(best), again, table(), measured]
    # Other devices tune apart.
    tuning.clear()
    torch.set_num_threads(1 + rank // 2)
    apart = tuned(3, 4, 5, 6)
    found["apart"] = [sorted(apart), {e["device"] for e in tuning.entries()}.pop(), table()]
    return found


def test_ranks_have_one_table(tmp_path: Path) -> None:
    found = run_ranks(_tunes_together, tmp_path)
    best, first, _ = found[0]["together"]
    assert {*best} == {softmax(size) for size in (3, 4, 5, 6)}
    assert all(one["together"][:2] == [best, first] for one in found)
    measured = [one["together"][2] for one in found]
    assert sum(measured) == 4 and max(measured) == 1, measured
    for folder in ("store0", "store1"):  # each has every row once
        rows, damage = read_all(tmp_path / folder)
        problems = [json.loads(row)["problem"] for row in rows]
        wanted = [softmax(size) for size in (3, 4, 5, 6, 11, 12, 13)]
        assert sorted(problems) == sorted(wanted) and damage == []

    assert found[1]["part"] == found[3]["part"]
    for rank in (0, 2):
        assert found[rank]["part"].startswith("ValueError: tune: group: got one without this rank")

    models = [one["model"] for one in found]
    assert all(one[:3] == models[0][:3] for one in models)
    assert models[0][1] == {}
    (line,) = models[0][0]  # rank 2 had the other one
    assert "x=f32[2,30," in line and sum(one[3] for one in models) == 1

    apart = [one["apart"] for one in found]
    assert apart[0] == apart[1] != apart[2] == apart[3]
    assert apart[0][1].endswith("/1 thread") and apart[2][1].endswith("/2 threads")


class _Failing:
    """Progress that fails when a problem begins."""

    def problem(self, done: int, total: int, text: str) -> None:
        raise KeyError("in progress")

    def algorithm(self, done: int, total: int, text: str) -> None:
        pass


class _Nesting(_Failing):
    """Progress that tunes in the same group."""

    def problem(self, done: int, total: int, text: str) -> None:
        tuned(9)


def _poisoned(**fields: Any) -> list[Row]:
    made = tuning.entries()
    one: Any
    for one in made:
        one.update({key: value for key, value in fields.items() if key in one})
        for row in one["measurements"]:
            row.update({key: value for key, value in fields.items() if key in row})
    return [Row("", "", one) for one in made]


def _fails_together(rank: int, folder: Path) -> list[Any]:
    errors: list[Any] = []

    def fails(call: Callable[[], object]) -> None:
        errors.append([error_of(call), table()])
        tuning.clear()

    def fails_with(name: str, of_rank: int, value: Any) -> None:
        whole = getattr(group_tuning, name)
        if rank == of_rank:
            setattr(group_tuning, name, value)
        fails(lambda: tuned(3, 4, 5, 6))
        setattr(group_tuning, name, whole)

    fails(lambda: tuned(3, policy="max_workspace=1MiB" if rank == 2 else ""))
    fails(lambda: tuned(3, time_budget_s=float(rank == 1)))
    knobs.max_workspace = "1MiB" if rank == 3 else None
    fails(lambda: tuning.tune(LINE, device="cpu", group="world"))
    knobs.max_workspace = None
    fails(lambda: tuning.tune("nothing" if rank == 1 else softmax(3), device="cpu", group="world"))
    fails(lambda: tuned(*SIZES[3], 7, 8, 9, progress=_Failing() if rank == 2 else None))
    fails(lambda: tuned(3, 4, 5, 6, progress=_Nesting() if rank == 0 else None))
    fails_with("software", 3, lambda: "another version")
    fails_with("held_rows", 2, lambda: _poisoned(median_ms=-1.0))
    fails_with("held_rows", 1, lambda: _poisoned(algorithm="nothing"))
    fails_with("check_entry", 0, lambda entry: entry)
    fails_with("_sha", 3, lambda entry: "another")
    fails(lambda: tuned(3, policy="backends=graph"))
    # One comes late. Afterwards they work together again.
    meeting.WAIT_LIMIT_S, usual = 0.5, meeting.WAIT_LIMIT_S
    if rank == 3:
        dist.barrier()
    fails(lambda: tuned(3))
    if rank != 3:
        dist.barrier()
    meeting.WAIT_LIMIT_S = usual
    if rank == 1:  # as after an exchange that failed
        meeting._members[tuple(range(RANKS))].gloo = None
    fails(lambda: tuned(3))
    return errors


def test_an_error_reaches_all_ranks(tmp_path: Path) -> None:
    found = run_ranks(_fails_together, tmp_path)
    by_call = [[one[call] for one in found] for call in range(len(found[0]))]
    empty = hashlib.sha256(b"").hexdigest()

    def check(call: int, *wanted: str, keeps: bool = False) -> None:
        """Each rank's error begins so; one text is of all ranks."""
        texts = wanted if len(wanted) == RANKS else wanted * RANKS
        for (text, kept), begin in zip(by_call[call], texts, strict=True):
            assert text.startswith(begin), (call, text, begin)
            assert keeps or kept == empty, (call, text)

    def other(rank: int, text: str) -> str:
        return f"RuntimeError: tune: rank {rank}: {text}"

    check(0, "RuntimeError: tune: policy: got '' on rank 0 and 'max_workspace=1MiB' on rank 2")
    check(1, "RuntimeError: tune: time_budget_s: got '0.0' on rank 0 and '1.0' on rank 1")
    check(2, f"RuntimeError: tune: constraints of {LINE}: got '")
    nothing = other(1, "ValueError: ")
    check(3, nothing, "ValueError: ", nothing, nothing)
    inside = other(2, "KeyError: 'in progress'")
    check(4, inside, inside, "KeyError: 'in progress'", inside, keeps=True)
    nested = "RuntimeError: tune: called while a call for the same group runs"
    others = other(0, nested)
    check(5, nested, others, others, others, keeps=True)
    check(6, "RuntimeError: tune: software: got 'torch_cudnn_ext ")
    check(7, "RuntimeError: tune: rank 2 gave a wrong entry for 'softmax_fwd ", keeps=True)
    check(8, "RuntimeError: tune: rank 1 gave a wrong entry for 'softmax_fwd ", keeps=True)
    check(9, "", keeps=True)
    row = f"RuntimeError: tune: entry of {softmax(3)}: got '"
    check(10, row, keeps=True)
    assert all("on rank 0 and 'another' on rank 3" in text for text, _ in by_call[10])
    check(11, "RuntimeError: tune: no algorithm works under 'backends=graph' for softmax_fwd ")
    (late,) = {text for text, _ in by_call[12]}  # on a busy machine others may be late, too
    assert re.fullmatch(r"RuntimeError: tune: no sign of rank (\d, )*3 for 0.5 s", late)
    check(13, "", keeps=True)
    assert len({kept for _, kept in by_call[13]}) == 1 and by_call[13][0][1] != empty


def called(size: int) -> list[str]:
    """The algorithm of a softmax that is tuned if the knobs say so, and why."""
    ops.softmax(torch.zeros(2, size), 1)
    chosen = ops.last_decision("softmax_fwd")
    assert chosen is not None
    return [chosen.algorithm, chosen.why]


def _trains(seed: int) -> list[str]:
    """Two steps of data parallel training that meet new problems; the algorithms."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
    network = torch.nn.parallel.DistributedDataParallel(model)
    with tce.enabled("autotune"):
        for _ in range(2):
            network(torch.randn(2, 3, 9, 9)).sum().backward()
        passes = ("conv_fwd", "conv_bwd_filter", "pool_fwd", "pool_bwd")
        decisions = [ops.last_decision(op) for op in passes]
        return [one.algorithm for one in decisions if one is not None]


def _agrees(rank: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    device = _C.device_fingerprint("cpu")

    def asked(size: int) -> tuple[str, str, str]:
        (problem,) = _C.problems_posed_by(lambda: ops.softmax(torch.zeros(2, size), 1))
        return problem, device, _C.constraints_text(problem, _C.policy_for(problem, ""))

    def measured() -> int:
        return tuning.statistics().measured

    knobs.softmax_fwd_algo = "autotune"
    with tuning.agree():
        before = measured()
        called(20)
        found["one"] = [table(), measured() - before]
        # Nothing is measured, so nobody waits.
        with knobs.flags(softmax_fwd_algo="tuned"):
            found["unmeasured"] = called(21)[1]
        knobs.softmax_fwd_algo = None
        tuning.clear()
        ops.softmax(torch.zeros(2, 22), 1, policy="autotune")
        found["call"] = table()
        knobs.softmax_fwd_algo = "autotune"
        found["training"] = [_trains(rank), table()]
        found["own"] = called(100 + rank)[1]
        # One has a row in its store, which all obey and keep.
        knobs.store = folder / f"store{rank}"
        if rank == 0:
            row = entry(asked(30)[0], None, asked(30)[2], measurement("cpu:online"))
            keeping._keep(row)
            called(30)
        dist.barrier()
        found["row"] = called(30)
        knobs.store = ""
    # One measures too long.
    with tuning.agree(timeout_s=0.2):
        late = entry(asked(40)[0], None, asked(40)[2], measurement("cpu:online"))
        found["late"] = [keeping._claim(*asked(40)) if rank == 0 else ""]
        dist.barrier()
        found["late"] += [called(40)[1] if rank else ""]
        dist.barrier()
        found["late"] += [keeping._add(late) if rank == 0 else called(40)[1]]
    # One publishes nonsense.
    with tuning.agree() as agreement:
        if rank == 2:
            agreement._publish(asked(50), '{"measurements": [{}]')
        dist.barrier()
        found["nonsense"] = called(50)
    # One is killed while it measures.
    claimed = folder / "claimed"
    with tuning.agree(timeout_s=0.5):
        if rank == 1:
            assert keeping._claim(*asked(60)) is None
            claimed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while not claimed.exists():
            time.sleep(0.01)
        found["killed"] = [called(60)]
    _C.plan_cache_clear()
    with tuning.agree(timeout_s=2 * LIMIT_S):  # nobody waits again
        found["killed"].append(called(60))
    meeting.WAIT_LIMIT_S = 0.5
    found["dead"] = error_of(lambda: tuned(3))
    return found


def test_ranks_obey_what_comes_first(tmp_path: Path) -> None:
    found = run_ranks(_agrees, tmp_path)
    assert found[1] is None
    living = [found[0], found[2], found[3]]

    def same(name: str) -> Any:
        """What all ranks found."""
        assert all(one[name] == living[0][name] for one in living), (name, living)
        return living[0][name]

    assert len({one["one"][0] for one in living}) == 1
    assert sum(one["one"][1] for one in living) <= 1  # or it was the rank that was killed
    assert same("unmeasured") == "heuristic: nothing was tuned for it"
    assert same("call") != hashlib.sha256(b"").hexdigest()
    algorithms, _ = same("training")
    assert len(algorithms) == 4
    assert same("own") == "tuned"
    assert same("row") == ["cpu:online", "cached"]
    for rank in range(RANKS):
        (row,), _ = read_all(tmp_path / f"store{rank}")
        assert json.loads(row)["measurements"][0]["algorithm"] == "cpu:online"
    too_late = "no ranking came from another rank within 0.2 s"
    assert living[0]["late"] == [None, "", too_late]
    assert all(one["late"][1:] == [f"heuristic: {too_late}"] * 2 for one in living[1:])
    _, why = same("nonsense")
    assert why.startswith("heuristic: what another rank published is no ranking (")
    dead = r"RuntimeError: tune: no sign of rank (0, )?1(, \d)* for 0.5 s"
    assert re.fullmatch(dead, same("dead"))
    first, again = same("killed")
    assert (
        first == again and first[1] == "heuristic: no ranking came from another rank within 0.5 s"
    )
