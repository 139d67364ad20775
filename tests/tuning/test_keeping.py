"""The tuning store of a process: what is tuned is found again by the next one."""

import dataclasses
import errno
import math
import os
import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER, PROBLEM
from store_helpers import (
    H200,
    WHEN,
    entry,
    fields_of,
    forget,
    measurement,
    read_all,
    run_process,
    summed,
)

from torch_cudnn_ext import _C, knobs, ops, tuning
from torch_cudnn_ext.tuning import keeping, store_rows
from torch_cudnn_ext.tuning.store_files import (
    SegmentWriter,
    device_folders,
    folder_name,
    segments,
)
from torch_cudnn_ext.tuning.store_rows import row_line
from torch_cudnn_ext.tuning.store_upkeep import verify

HERE = _C.device_fingerprint("cpu")
CONV = _C.constraints_text(LINE, _C.policy_for(LINE, ""))
SOFTMAX = "softmax_fwd x=f32[4,64,1]:nchw log=false"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of this test's own, which nothing has read yet."""
    folder = tmp_path / "store"
    knobs.store = folder
    forget()
    yield folder
    forget()


def changes(before: tuning.Statistics) -> dict[str, Any]:
    """What was counted since."""
    now = dataclasses.asdict(tuning.statistics())
    then = dataclasses.asdict(before)
    missed = {k: n - then["missed"].get(k, 0) for k, n in now.pop("missed").items()}
    found = {name: count - then[name] for name, count in now.items() if count != then[name]}
    return found | {"missed": {k: n for k, n in missed.items() if n}}


def put(root: Path, *lines: bytes, device: str = HERE) -> Path:
    """Append rows to a store, as another process would."""
    writer = SegmentWriter(root)
    for line in lines:
        writer.append(device, line)
    return next(iter(segments(root / folder_name(device))))


def winner(algorithm: str = "cpu:online", when: str = WHEN, **fields: Any) -> bytes:
    """A row of the softmax, in which an algorithm is the best."""
    rows = [measurement(algorithm, 0.5, **fields), measurement("aten:default", 1.0)]
    return row_line(entry(SOFTMAX, None, "", *rows), when)


def decided() -> tuple[str, str]:
    """The softmax's algorithm and why, with autotune."""
    chosen = _C.decide(SOFTMAX, "cpu", "autotune")
    return chosen["algorithm"], chosen["why"]


_PROCESS = """
import json, sys, torch
import torch_cudnn_ext as tce
from torch_cudnn_ext import tuning

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.MaxPool2d(2), torch.nn.Softmax(1)
)
problems = tce.trace(model, torch.randn(2, 3, 8, 8))
with tce.enabled("autotune"):
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    chosen = [
        decision.algorithm
        for op in ("conv_fwd", "conv_bwd_filter", "batch_norm_fwd", "pool_fwd", "softmax_fwd")
        if (decision := tce.last_decision(op)) is not None
    ]
stats = tuning.statistics()
print(json.dumps([chosen, stats.measured, stats.timed_runs, stats.found, stats.kept, stats.missed]))
"""


def test_a_second_process_measures_nothing_and_decides_the_same(tmp_path: Path) -> None:
    quiet = "from torch_cudnn_ext import _C; _C.ignore_other_work(True)\n"
    chosen, measured, runs, found, kept, missed = run_process(quiet + _PROCESS, tmp_path / "s")
    assert measured == kept == sum(missed.values()) > 3 and runs > 3 * measured and found == 0
    again = run_process(_PROCESS, tmp_path / "s")
    assert again == [chosen, 0, 0, measured, 0, {}]


_THREADS = """
import json, os, threading, torch
from torch_cudnn_ext import _C, ops, tuning

_C.ignore_other_work(True)

def work():
    for size in range(5, 9):
        x = torch.randn(2, size, requires_grad=True)
        ops.softmax(x, 1, policy="autotune").sum().backward()

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if (child := os.fork()) == 0:
    ops.softmax(torch.randn(3, 3), 1, policy="autotune")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(json.dumps([tuning.statistics().measured, tuning.statistics().kept]))
"""


def test_threads_and_forked_processes_write_whole_rows(tmp_path: Path) -> None:
    assert run_process(_THREADS, tmp_path, OMP_NUM_THREADS="1") == [8, 8]
    lines, damage = read_all(tmp_path)
    assert len(lines) == 9 and not damage
    (folder,) = device_folders(tmp_path)
    assert len(segments(folder)) == 2
    assert run_process(_THREADS, tmp_path, OMP_NUM_THREADS="1") == [0, 0]


def test_what_calls_and_tune_measure_is_kept(store: Path) -> None:
    before = tuning.statistics()
    ops.softmax(torch.randn(4, 64), 1, policy="autotune")
    tuning.tune(LINE, device="cpu", time_budget_s=0.05)
    tuning.tune(OTHER, device="cpu", time_budget_s=0.05, isolate="always")
    counted = changes(before)
    assert counted["measured"] == counted["kept"] == 3 and counted["missed"] == {"nothing known": 1}
    lines, damage = read_all(store)
    assert len(lines) == 3 and not damage
    entries = tuning.entries()
    forget()
    assert tuning.entries() == []
    before = tuning.statistics()
    for problem in (LINE, OTHER, SOFTMAX):
        assert _C.decide(problem, "cpu", "autotune")["why"] == "cached"
    assert changes(before) == {"found": 3, "missed": {}}
    ran = [[r for r in e["measurements"] if r["status"] == "ok"] for e in entries]
    assert ran == [[r for r in e["measurements"] if r["status"] == "ok"] for e in tuning.entries()]


def test_several_jobs_keep_each_problem_once(store: Path) -> None:
    tuning.tune([LINE, OTHER], device="cpu", time_budget_s=0.05, jobs=2, isolate="never")
    lines, _ = read_all(store)
    assert len(lines) == 2 and len(segments(store / folder_name(HERE))) == 1


def test_what_a_process_adds_is_found_by_one_that_read_before(store: Path) -> None:
    put(store, row_line(entry(LINE, None, CONV), WHEN))
    assert _C.tuned(PROBLEM, "cpu") is not None and _C.tuned(SOFTMAX, "cpu") is None
    put(store, winner())
    assert decided() == ("cpu:online", "cached")


def test_a_ranking_in_memory_is_not_replaced(store: Path) -> None:
    put(store, winner())
    _C.table_import([entry(SOFTMAX)])
    assert decided() == ("aten:default", "cached")


def test_the_newest_row_holds(store: Path) -> None:
    put(store, winner(), winner("cpu:unsafe", "2026-11-27T12:00:00.000000Z"))
    assert decided()[0] == "cpu:online"


def test_a_switch_turns_the_store_off(store: Path) -> None:
    put(store, winner())
    knobs.store = ""
    assert tuning.store_path() is None and _C.tuned(SOFTMAX, "cpu") is None
    before = tuning.statistics()
    tuning.tune(SOFTMAX, device="cpu", time_budget_s=0.05)
    assert "kept" not in changes(before) and len(read_all(store)[0]) == 1
    knobs.store = store
    _C.table_clear()
    assert decided() == ("cpu:online", "cached")


def test_the_store_has_a_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(knobs._DEFAULTS, "store", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert knobs.store is None
    assert tuning.store_path() == tmp_path / "torch_cudnn_ext" / "tuning"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.store_path() == tmp_path / ".cache" / "torch_cudnn_ext" / "tuning"
    monkeypatch.setenv("HOME", "nowhere")
    keeping._warned.clear()
    with pytest.warns(UserWarning, match="no home folder.*TORCH_CUDNN_EXT_STORE") as told:
        assert tuning.store_path() is tuning.store_path() is None
    assert len(told) == 1


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("store", 3, "got 3 .int., wanted a folder, or '' for no store"),
        ("store_shared", "folder", "got 'folder', wanted a list of folders"),
        ("store_shared", [""], "got .''., wanted a list of folders"),
        ("store_match", "same", "got 'same', wanted one of 'strict', 'same_cudnn', 'same_gpu'"),
    ],
)
def test_a_bad_value_is_named(name: str, value: Any, wanted: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name}: {wanted}"):
        setattr(knobs, name, value)
    with pytest.raises(TypeError, match=f"flags: got the keyword '{name}'"):
        knobs.flags(**{name: value})


def test_the_environment_names_stores(tmp_path: Path) -> None:
    code = "import json; from torch_cudnn_ext import knobs, tuning; print(json.dumps([knobs.store,"
    code += "knobs.store_shared, knobs.store_match, str(tuning.store_path())]))"
    shared = {"TORCH_CUDNN_EXT_STORE_SHARED": f"/a:{tmp_path}/ü:"}
    shared["TORCH_CUDNN_EXT_STORE_MATCH"] = "strict"
    assert run_process(code, tmp_path / "ö", **shared) == [
        f"{tmp_path}/ö", ["/a", f"{tmp_path}/ü"], "strict", f"{tmp_path}/ö",
    ]  # fmt: skip
    assert run_process(code, Path(), TORCH_CUDNN_EXT_STORE=" ")[0::3] == ["", "None"]


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "graph:eng99999", "backend": "graph"},
        {"algorithm": "graph:eng0/k2=999999", "backend": "graph"},
        {"algorithm": "legacy:accurate", "backend": "legacy"},
        {"algorithm": "aten:nothing", "backend": "aten"},
        {"median_ms": -1.0},
        {"median_ms": math.nan},
        {"median_ms": 1e308},
        {"algorithm": "cpu:online", "backend": "cpu", "status": "failed"},
    ],
)
def test_a_poisoned_row_is_never_chosen(store: Path, fields: dict[str, Any]) -> None:
    row = fields_of(winner())
    row["measurements"] = [row["measurements"][0] | fields]
    put(store, summed(row))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithm, why = decided()
    listed = {row["algorithm"] for row in _C.candidates(SOFTMAX, "cpu") if row["status"] == "ok"}
    assert why == "tuned" and algorithm in listed
    ran = ops.softmax(torch.zeros(4, 64), 1, policy="autotune")
    torch.testing.assert_close(ran, torch.full((4, 64), 1 / 64))
    forget()
    assert decided() == (algorithm, "cached")  # the newer row holds


_ODD = (
    "", "x", "aten:default", "graph:eng99999", "graph:eng0/k2=9999999999", "legacy:fft/math=magic",
    None, True, [], {}, 0, -1, 2**63, 2**64, 1e308, -0.0, math.nan, math.inf, ["tf32"], "ok",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_odd_rows_with_right_checksums_crash_nothing(store: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = put(store, winner())
    listed = {row["algorithm"] for row in _C.candidates(SOFTMAX, "cpu") if row["status"] == "ok"}
    served = 0
    for _ in range(150):
        row = fields_of(winner())
        for _ in range(draw.randint(1, 3)):
            holder = draw.choice([row, *row["measurements"], *row["measurements"]])
            name = draw.choice([*holder])
            if name != "measurements":
                holder[name] = draw.choice(_ODD)
        path.write_bytes(summed(row))
        forget()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = keeping._find(SOFTMAX, HERE, "")
            if known is not None and any(one["algorithm"] in listed for one in known[0]):
                served += 1
                assert decided()[0] in listed
    assert served


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_row_that_cannot_be_written_is_one_line(
    store: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fails)
    wanted = f"tuning store: cannot write to {store}: {os.strerror(code)}; this process goes on"
    with pytest.warns(UserWarning, match=wanted) as told:
        for _ in range(2):
            tuning.tune(SOFTMAX, device="cpu", time_budget_s=0.05)
    assert len(told) == 1 and decided()[1] == "cached"


def test_a_ranking_of_which_nothing_ran_is_not_written(store: Path) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no algorithm can run under these constraints"):
            ops.conv2d(
                torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3),
                policy="autotune;max_workspace=1KiB",
            )  # fmt: skip
        forget()
    assert verify(store) == (0, [])


def test_an_older_row_serves_if_the_newest_is_impossible(store: Path) -> None:
    row = fields_of(winner(when="2026-11-28T13:00:00.000000Z"))
    row["measurements"][0]["median_ms"] = -1.0
    path = put(store, winner(), summed(row))
    with pytest.warns(UserWarning, match=f"tuning store: {path}: median_ms is -1.0.*ignored"):
        assert decided() == ("cpu:online", "cached")


def test_damage_is_one_line_and_work_goes_on(store: Path) -> None:
    path = put(store, winner(), b"nonsense\n", summed({"format": 9}), winner()[:50] + b"\n")
    wanted = f"tuning store: {path}, line 2: got 'nonsense', wanted a row .*, and 2 more; ignored"
    with pytest.warns(UserWarning, match=wanted) as told:
        assert decided() == ("cpu:online", "cached")
        assert _C.tuned(LINE, "cpu") is None
    assert len(told) == 1


def unusable(tmp_path: Path, kind: str) -> Path:
    """A store that cannot be used."""
    path = tmp_path / "folder"
    if kind == "a file":
        path.write_text("")
    elif kind == "a device's file":
        path.mkdir()
        (path / folder_name(HERE)).parent.write_text("")
    elif kind == "below a file":
        path.write_text("")
        path /= "store"
    else:
        path = Path("/proc/self/store")  # nothing can be made there
    return path


@pytest.mark.parametrize("kind", ["a file", "a device's file", "below a file", "read-only"])
def test_a_store_that_cannot_be_used_is_one_line(tmp_path: Path, store: Path, kind: str) -> None:
    knobs.store = unusable(tmp_path, kind)
    with pytest.warns(UserWarning) as told:
        for problem in (SOFTMAX, LINE):
            assert _C.decide(problem, "cpu", "autotune")["why"] in ("tuned", "cached")
            tuning.tune(problem, device="cpu", time_budget_s=0.05)
    messages = [str(one.message) for one in told]
    assert len(messages) == 1 and messages[0].startswith("tuning store: cannot "), messages
    assert len(tuning.entries()) == 2


def test_shared_stores_are_read_after_the_own_and_never_written(
    store: Path, tmp_path: Path
) -> None:
    team = tmp_path / "team"
    preferred = row_line(entry(SOFTMAX), "2026-11-28T13:00:00.000000Z")
    put(team, preferred, row_line(entry(LINE, None, CONV), WHEN))
    kept = read_all(team)
    knobs.store_shared = [tmp_path / "missing", team]
    assert _C.tuned(PROBLEM, "cpu") is not None
    put(store, winner())
    assert decided() == ("cpu:online", "cached")
    tuning.tune([LINE, OTHER], device="cpu", time_budget_s=0.05)
    assert read_all(team) == kept and len(read_all(store)[0]) == 3
    knobs.store = ""
    forget()
    assert decided() == ("aten:default", "cached")


THREADS = HERE.replace(HERE.rpartition("/")[2], "77 threads")
ANOTHER = "cpu/Another CPU/1 thread"


@pytest.mark.parametrize(
    ("device", "match", "served", "reason"),
    [
        (HERE, "same_cudnn", True, ""),
        (HERE, "strict", False, "other software"),
        (THREADS, "same_cudnn", False, "other threads"),
        (THREADS, "same_gpu", True, ""),
        (ANOTHER, "same_gpu", False, "other device"),
        (ANOTHER, "any", True, ""),
        (ANOTHER, "strict", False, "other device"),
        (H200, "any", False, "nothing known"),
    ],
)
def test_which_rows_serve(store: Path, device: str, match: str, served: bool, reason: str) -> None:
    row = entry(SOFTMAX, device, "", measurement("cpu:online", 0.5), measurement())
    put(store, row_line(row, WHEN, "torch 1.0"), device=device)
    knobs.store_match = match
    before = tuning.statistics()
    algorithm, why = decided()
    counted = changes(before)
    if served:
        assert algorithm == "cpu:online" and counted == {"found": 1, "missed": {}}
        assert why == "cached" + (f": measured on {device}" if device != HERE else "")
        assert (_C.tuned(SOFTMAX, "cpu") is not None) == (device == HERE)
    else:
        assert why == "tuned" and counted["missed"] == {reason: 1}


def test_rows_of_another_cudnn_serve_if_they_are_asked_for(store: Path) -> None:
    newer = H200.replace("91900", "92000")
    put(store, row_line(entry(LINE, H200, CONV), WHEN), device=H200)
    before = tuning.statistics()
    assert keeping._find(LINE, newer, CONV) is None
    assert changes(before)["missed"] == {"other cuDNN": 1}
    assert keeping._find(OTHER, newer, CONV) is None
    assert changes(before)["missed"] == {"other cuDNN": 1, "nothing known": 1}
    knobs.store_match = "same_gpu"
    known = keeping._find(LINE, newer, CONV)
    assert known is not None and known[1] == H200
    assert keeping._find(LINE, H200.replace("132sm", "78sm"), CONV) is None
    assert changes(before)["missed"]["other device"] == 1


def test_a_strict_match_takes_what_the_same_software_measured(store: Path) -> None:
    row = entry(SOFTMAX, None, "", measurement("cpu:online", 0.5), measurement())
    put(store, row_line(row, WHEN, store_rows.software_of(HERE)))
    knobs.store_match = "strict"
    assert decided() == ("cpu:online", "cached")


def test_rows_of_the_same_hardware_are_nearer_than_newer_ones(store: Path) -> None:
    for device, when, best in (
        (THREADS, "2026-11-01T12:00:00.000000Z", "cpu:online"),
        (ANOTHER, "2026-11-28T12:00:00.000000Z", "aten:default"),
    ):
        put(store, row_line(entry(SOFTMAX, device, "", measurement(best)), when), device=device)
    knobs.store_match = "any"
    assert decided() == ("cpu:online", f"cached: measured on {THREADS}")


def test_rows_under_other_constraints_do_not_serve(store: Path) -> None:
    put(store, row_line(entry(SOFTMAX, None, "deterministic"), WHEN))
    before = tuning.statistics()
    assert decided()[1] == "tuned" and changes(before)["missed"] == {"other constraints": 1}


def test_nothing_is_read_before_the_first_question(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(keeping, "_current", fails)
    ops.softmax(torch.randn(4, 64), 1)
    assert _C.tuned(SOFTMAX, "target:h200") is None
    monkeypatch.undo()
    put(store, winner())
    assert decided()[1] == "cached"
    monkeypatch.setattr(keeping, "_current", fails)
    for _ in range(3):  # nor after it is decided
        ops.softmax(torch.randn(4, 64), 1, policy="autotune")


@pytest.mark.parametrize("rows", [20_000])
def test_a_large_store_is_read_quickly(store: Path, rows: int) -> None:
    others = [measurement(f"cpu:{i}") for i in range(5)]
    lines = [
        row_line(entry(SOFTMAX.replace("[4,", f"[{n},"), None, "", *others), WHEN)
        for n in range(5, rows + 5)
    ]
    put(store, winner()).write_bytes(winner() + b"".join(lines))
    least = math.inf
    for _ in range(4):
        forget()
        start = time.perf_counter()
        assert _C.tuned(SOFTMAX, "cpu") is not None
        least = min(least, time.perf_counter() - start)
    assert least < 1, f"{least:.3f} s"


def test_a_deleted_knob_has_its_default() -> None:
    code = (
        "import json, torch\n"
        "from torch_cudnn_ext import knobs, ops, status, tuning\n"
        "for name in ('store', 'store_match', 'store_shared', 'isolate', 'verbose'):\n"
        "    delattr(knobs, name)\n"
        "ops.softmax(torch.randn(5, 7), 1, policy='autotune')\n"
        "status()\n"
        "print(json.dumps(tuning.statistics().measured))"
    )
    assert run_process(code, "") == 1
