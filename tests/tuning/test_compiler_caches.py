"""Rankings in the artifacts that ``torch.compiler`` saves and loads."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import LINE
from store_helpers import WHEN, changed, entry, forget, measurement, read_all, run_process

from torch_cudnn_ext import knobs, tuning
from torch_cudnn_ext._torch_internals import compiler_caches
from torch_cudnn_ext.tuning.store import held_rows
from torch_cudnn_ext.tuning.store_rows import result_line, row_line

KIND = "torch_cudnn_ext"
EARLIER, LATER = "2026-11-28T11:00:00.000000Z", "2026-11-28T13:00:00.000000Z"

_PROCESS = """
import json, sys, torch
import torch_cudnn_ext as tce
from torch_cudnn_ext import _C, tuning

assert "torch._dynamo" not in sys.modules
_C.ignore_other_work(True)
file, loads = {file!r}, {loads}
torch.manual_seed(0)
conv = torch.nn.Conv2d(3, 4, 3)
ahead = "softmax_fwd x=f32[4,64,1]:nchw log=false"
if loads:
    assert torch.compiler.load_cache_artifacts(open(file, "rb").read()) is not None
else:
    tuning.tune(ahead, device="cpu")
with tce.enabled("autotune", compiled="all"):
    torch.compile(conv, backend="aot_eager")(torch.randn(2, 3, 8, 8)).sum().backward()
chosen = [tce.last_decision(op).algorithm for op in ("conv_fwd", "conv_bwd_filter")]
chosen.append(_C.decide(ahead, "cpu", "autotune")["algorithm"])
if not loads:
    open(file, "wb").write(torch.compiler.save_cache_artifacts()[0])
stats = tuning.statistics()
print(json.dumps([chosen, stats.measured, stats.timed_runs, stats.kept, len(tuning.entries())]))
"""


@pytest.mark.parametrize("kept", [True, False])
def test_a_second_process_loads_them_and_measures_nothing(tmp_path: Path, kept: bool) -> None:
    file = str(tmp_path / "artifacts")
    saves, loads = (_PROCESS.format(file=file, loads=loads) for loads in (False, True))
    chosen, measured, runs, _, held = run_process(saves, tmp_path / "first")
    assert measured == held >= 3 and runs > measured
    setting = {} if kept else {"TORCH_CUDNN_EXT_STORE": " "}
    again = run_process(loads, tmp_path / "other", **setting)
    assert again == [chosen, 0, 0, held if kept else 0, held]
    if kept:
        assert run_process(loads, tmp_path / "other")[3] == 0  # they are in the store


def saved(*contents: bytes) -> bytes:
    """What PyTorch saves of these contents."""
    with compiler_caches.CacheArtifactManager.with_fresh_cache():
        for number, content in enumerate(contents):
            compiler_caches.CacheArtifactManager.record_artifact(KIND, str(number), content)
        made = torch.compiler.save_cache_artifacts()
    assert made is not None
    return made[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of this test's own."""
    knobs.store = tmp_path / "store"
    forget()
    yield tmp_path / "store"
    forget()


def row(ms: float, when: str = WHEN) -> bytes:
    return row_line(entry(LINE, None, "", measurement(ms=ms)), when).rstrip()


def test_damaged_and_foreign_artifacts_are_one_warning(store: Path) -> None:
    negative = changed(row(3).decode(), lambda text: text.replace("3, ", "-3, ")).encode().rstrip()
    result = result_line(("cpu", LINE, "profile"), {}).rstrip()
    bad = [b"", b"nonsense", b"\xff\x00", row(2)[:-9], row(2).replace(b"2", b"1"), negative, result]
    with pytest.warns(UserWarning, match="tuning store: an artifact of torch.compiler: ") as told:
        assert torch.compiler.load_cache_artifacts(saved(*bad, row(1), *bad)) is not None
    assert len(told) == 1
    (held,) = tuning.entries()
    assert held["measurements"][0]["median_ms"] == 1 and len(read_all(store)[0]) == 1


def test_the_newest_ranking_holds(store: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lines in ([row(1), row(2, LATER), row(3, EARLIER)], [row(1)], [row(2, LATER)]):
            torch.compiler.load_cache_artifacts(saved(*lines))
            (held,) = held_rows()
            assert held.entry["measurements"][0]["median_ms"] == 2 and held.when == LATER
    assert len(read_all(store)[0]) == 2  # the others were known
    with compiler_caches.CacheArtifactManager.with_fresh_cache():
        forget()
        tuning.import_table(store)
        assert compiler_caches.CacheArtifactManager.need_serialize()


def test_a_store_that_cannot_be_written_is_one_warning(store: Path) -> None:
    store.write_text("")
    with pytest.warns(UserWarning, match="tuning store: cannot ") as told:
        torch.compiler.load_cache_artifacts(saved(row(1), row(2, LATER)))
    assert len(told) == 1 and len(tuning.entries()) == 1
